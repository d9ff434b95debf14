package cache

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/query"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
)

func TestConfiguration(t *testing.T) {
	f := func(filter string, wants ...string) {
		t.Helper()
		root, p := conf.Parse("t.yml", "flow: [{name: main, filter: ["+filter+"]}]", nil)
		reg := flows.NewRegistry()
		flows.Register(reg, GetCache())
		flows.Register(reg, SetCache())
		flows.Register(reg, Cache())
		flows.NewBuilder(reg, p).Define(root.Get("flow"))
		var got []string
		for _, q := range p.Sorted() {
			got = append(got, q.Severity.String()+" "+q.Message)
		}
		if len(got) != len(wants) {
			t.Errorf("%s: got %q, want %q", filter, got, wants)
			return
		}
		for i := range wants {
			if !strings.Contains(got[i], wants[i]) {
				t.Errorf("%s: got %q, want %q", filter, got[i], wants[i])
			}
		}
	}
	f(`{get_cache: {}}`)
	f(`{set_cache: {}}`)
	f(`{cache: {}}`)
	f(`{name: a, type: get_cache, parameters: {pass_patterns: ["_cat", "scroll"], hash_factor: {header: ["*"], path: true, query_args: [id], must_cache: {method: [GET], path: [_search, _async_search, _mget]}}}}`,
		"warning pass_patterns were looked for anywhere in the URL", "warning hash_factor.header named all",
		"warning hash_factor.query_args named all", "warning what must_cache names was cached whatever else held", "warning must_cache names _mget, which is never cached")
	f(`{get_cache: {hash_factor: {path: true, body: true, must_cache: {path: [_search]}}}}`, "warning what must_cache names was cached whatever else held")
	f(`{name: a, type: set_cache}`)
	f(`{set_cache: {cache_type: ristretto, cache_ttl: 30s, async_search_cache_ttl: 30m, min_response_size: 100, max_response_size: 1024000, max_cached_item: 1000, max_cached_size: 1000000000}}`,
		"warning \"async_search_cache_ttl\" is deprecated: async searches share answers with _search")
	f(`{set_cache: {min_response_size: -1, max_response_size: -1}}`)
	f(`{set_cache: {cache_type: memory}}`)
	f(`{set_cache: {cache_type: ccache}}`, "warning there is no ccache here")
	f(`{get_cache: {cache_type: ccache}}`, "warning there is no ccache here")
	f(`{set_cache: {cache_type: redis}}`, "error redis comes with a later version")
	f(`{get_cache: {cache_type: redis}}`, "error redis comes with a later version")
	f(`{get_cache: {cache_type: disk}}`, `error "disk" is not one of otter, ristretto, memory`)
	f(`{set_cache: {validated_status_code: [200]}}`)
	f(`{set_cache: {validated_status_code: [200, 404]}}`, "warning only answers with status 200 are stored; 404 is passed on")
	f(`{get_cache: {validated_status_code: [403]}}`, "warning only answers with status 200 are stored; 403 is passed on")
	f(`{get_cache: {hash_factor: {path: false}}}`, "warning the path stays in the key")
	f(`{get_cache: {hash_factor: {body: false}}}`, "warning the body stays in the key")
	f(`{get_cache: {identity: shared}}`, "warning everybody who reaches this flow")
	f(`{get_cache: {identity: principal}}`)
	f(`{get_cache: {identity: principal, auth_ttl: 0s}}`, "error identity: principal asks the cluster who a caller is")
	f(`{cache: {identity: principal, auth_ttl: 0s}}`, "error identity: principal asks the cluster who a caller is")
	f(`{get_cache: {hash_factor: {header: [`+strings.Repeat("x", 100)+`]}}}`, "error header name")
	f(`{cache: {key_headers: [`+strings.Repeat("x", 100)+`]}}`, "error header name")
	f(`{cache: {key_headers: ["x y"]}}`, `error "x y" is not the name of a header field`)
	f(`{cache: {key_headers: ["accept-language", "X-*"]}}`)
	f(`{cache: {harmless_headers: ["x-my-trace-*"]}}`)
	f(`{cache: {harmless_headers: ["x-*"]}}`, "error x-proxy-user says who asks")
	f(`{set_cache: {cache_ttl: 0s}}`, "error want at least 1ms")
	f(`{set_cache: {cache_ttl: 10}}`, "has no unit")
	f(`{cache: {max_entry: -1}}`, "error want at least 0")
	f(`{cache: {store: redis}}`, "error")
	f(`{cache: {also: [field_caps, sql.query]}}`)
	f(`{get_cache: {also: [bulk]}}`, `error "bulk" is not one of esql.query, field_caps,`)
	f(`{cache: {pass: [_search/scroll, _cat/, logs, "scroll=1m", "?q", "a%2Fb", "logs-*", ""]}}`,
		`warning "_search/scroll" never matches`, `warning "_cat/" never matches: it is compared with what stands between two slashes of the path; write one segment, such as "_cat"`,
		`warning "scroll=1m" never matches: it is compared with the names of parameters; write "scroll"`, `warning "?q" never matches`,
		`warning "a%2Fb" never matches`, `warning "logs-*" is compared as it stands`, "warning an empty word matches nothing")
	f(`{get_cache: {hash_factor: {query_args: ["a=b"], must_cache: {path: [/_search], method: [get]}}}}`,
		"warning hash_factor.query_args named all", `warning "a=b" never matches`, "warning what must_cache names", `warning must_cache names /_search`, `warning "/_search" never matches`,
		`warning methods are case-sensitive, and "get" never matches; write GET`)
	f(`{cache: {key_args: ["timeout="]}}`, `warning "timeout=" never matches: it is compared with the names of parameters; write "timeout"`)
	f(`{get_cache: {pass_patterns: [a/b]}}`, "warning pass_patterns were looked for anywhere", `warning "a/b" never matches`)
	f(`{cache: {poll_interval: 1ms}}`, "warning a poll of each index expression every 1ms is a load for the cluster")
	f(`{get_cache: {poll_interval: 99ms}}`, "warning a poll of each index expression")
	f(`{get_cache: {poll_interval: 100ms}}`)
	f(`{get_cache: {poll_interval: 0s}}`)
	f(`{get_cache: {poll_interval: 0s, proven_ttl: 0s}}`)
	f(`{get_cache: {poll_interval: 0s, proven_ttl: 1m}}`, "warning proven_ttl has no effect with poll_interval: 0s")
	f(`{cache: {ttl: 5s, now_ttl: 6s}}`, "warning now_ttl 6s has no effect: no answer is given longer than ttl 5s")
	f(`{cache: {ttl: 5s}}`)
	f(`{set_cache: {cache_ttl: 5s, now_ttl: 6s}}`, "warning now_ttl 6s has no effect: no answer is given longer than cache_ttl 5s")
	f(`{set_cache: {min_response_size: 2kb, max_response_size: 1kb}}`, "warning no answer is stored: none has at least 2kb and at most 1kb")
	f(`{get_cache: {min_response_size: 2kb, max_response_size: 1kb}}`, "warning no answer is stored")
	f(`{cache: {max_bytes: 4mb, max_entry: 2mb}}`, "warning max_entry 2mb has no effect: no answer may take more than a quarter of the store, 1mb")
	f(`{set_cache: {max_cached_size: 4mb, max_response_size: 2mb}}`, "warning max_response_size 2mb has no effect")
	f(`{cache: {max_bytes: 4mb}}`)
	f(`{cache: {identity: everyone}}`, "error")
	f(`{cache: {tttl: 1s}}`, `error unknown field "tttl"`)
}

func TestHashFactorDefaultsStay(t *testing.T) {
	root, p := conf.Parse("t.yml", "hash_factor: {header: [a]}", nil)
	c := GetCache().Default()
	conf.Decode(root, &c, p)
	if err := p.Err(); err != nil || !c.HashFactor.Path || !c.HashFactor.Body {
		t.Errorf("%v %+v", err, c.HashFactor)
	}
}

func TestExamplesLoad(t *testing.T) {
	reg := flows.NewRegistry()
	flows.Register(reg, GetCache())
	flows.Register(reg, SetCache())
	flows.Register(reg, Cache())
	for _, k := range reg.Kinds() {
		if len(k.Examples) == 0 || k.Summary == "" {
			t.Errorf("%s has no example or summary", k.Name)
		}
		for _, e := range k.Examples {
			root, p := conf.Parse("t.yml", "flow: [{name: main, filter: ["+strings.TrimPrefix(e.YAML, "- ")+"]}]", nil)
			flows.NewBuilder(reg, p).Define(root.Get("flow"))
			if err := p.Err(); err != nil {
				t.Errorf("%s: %s: %v", k.Name, e.Title, err)
			}
		}
	}
}

// Every reason has its series from the start.
func TestReasonsAreComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../elastic/query/reason.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	lists := [][]query.Reason{bypassReasons[:], nil, unstoredReasons[:]} // in the order of the blocks there
	block := 0
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			for _, v := range s.(*ast.ValueSpec).Values {
				text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				if lists[block] != nil && !slices.Contains(lists[block], query.Reason(text)) {
					t.Errorf("%s is in no list", text)
				}
			}
		}
		block++
	}
	if block != len(lists) {
		t.Errorf("%d blocks of reasons, want %d", block, len(lists))
	}
}

func TestMetricNames(t *testing.T) {
	r := newRig(t, classic)
	if err := obs.CheckNames(r.metrics.Describe()); err != nil {
		t.Error(err)
	}
	if err := r.metrics.Err(); err != nil {
		t.Error(err)
	}
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	for _, f := range families {
		before += len(f.GetMetric())
	}
	for _, target := range []string{"/i/_search", "/i/_search?q=a", "/i/_search?scroll=1m", "/x", "/i/_search?q=a"} {
		r.ask(target, "{}")
	}
	families, err = r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		before -= len(f.GetMetric())
	}
	if before != 0 {
		t.Errorf("requests added %d series", -before)
	}
}

func TestStopWithoutStart(t *testing.T) {
	for _, text := range []string{classic, short} {
		r := &rig{t: t}
		root, p := conf.Parse("t.yml", "flow: "+text, nil)
		b := flows.NewBuilder(r.registry(), p)
		b.Define(root.Get("flow"))
		gen := b.Generation(1, nil, &flows.Runtime{Metrics: obs.NewMetrics()}, flows.NewKeeper())
		gen.Abandon()
		<-gen.Drained()
	}
	(&getCache{}).Stop()
	(&cache{}).Stop()
}

func TestFieldsAreDescribed(t *testing.T) {
	for _, name := range []string{"get_cache.go", "set_cache.go", "cache.go", "stale.go", "source.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			if strings.Contains(line, "`conf:\"") && !strings.Contains(line, ",inline") && !strings.Contains(lines[i-1], "//") {
				t.Errorf("%s:%d: no comment", name, i+1)
			}
		}
	}
}

// TestThePageNamesAllDetails holds that docs/cache.md has all details of Cache-Status, each in the list that it belongs to.
func TestThePageNamesAllDetails(t *testing.T) {
	page, err := os.ReadFile("../../docs/cache.md")
	if err != nil {
		t.Fatal(err)
	}
	between := func(from, to string) string {
		_, rest, ok := strings.Cut(string(page), from)
		text, _, ok2 := strings.Cut(rest, to)
		if !ok || !ok2 {
			t.Fatalf("no text between %q and %q", from, to)
		}
		return text
	}
	f := func(text string, reasons []query.Reason) {
		t.Helper()
		var got, want []string
		for _, m := range regexp.MustCompile("(?m)`([a-z-]+)`").FindAllStringSubmatch(text, -1) {
			got = append(got, m[1])
		}
		for _, r := range reasons {
			want = append(want, string(r))
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-code +page)\n%s", diff)
		}
	}
	firstColumn := regexp.MustCompile(`(?m)^(\|[^|]*\|).*$`)
	f(firstColumn.ReplaceAllString(between("The details of a bypass:", "And of an answer"), "$1"), bypassReasons[:])
	f(between("And of an answer that was not kept:", "\n\n"), unstoredReasons[:])
}
