package api

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type tableRow struct {
	method, path, name, class, idempotency string
}

func table(t testing.TB) []tableRow {
	t.Helper()
	src, err := os.ReadFile("apis.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var rows []tableRow
	for line := range strings.Lines(string(src)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		rows = append(rows, tableRow{f[0], f[1], f[2], f[4], f[5]})
	}
	return rows
}

var letters = map[Idempotency]string{Unsafe: "U", Idempotent: "I", Cursor: "S", Context: "C", Read: "R"}

func classify(method, target string) *Call {
	path, query, _ := strings.Cut(target, "?")
	c := &Call{}
	Classify(c, []byte(method), []byte(path), []byte(query))
	return c
}

// example fills the parameters of a path with values that cannot be taken for literals.
func example(path string) string {
	segs := strings.Split(path, "/")
	for i, s := range segs {
		if strings.HasPrefix(s, "{") {
			segs[i] = "v-" + strings.Trim(s, "{}")
		}
	}
	return strings.Join(segs, "/")
}

func TestEveryRowClassifiesToItself(t *testing.T) {
	for _, r := range table(t) {
		c := classify(r.method, example(r.path))
		if c.Name != r.name || c.Class.String() != r.class || letters[c.Idempotency] != r.idempotency {
			t.Errorf("%s %s: got %s %s %s, want %s %s %s", r.method, r.path, c, c.Class, c.Idempotency, r.name, r.class, r.idempotency)
		}
		if Name(c.ID) != r.name || ClassOf(c.ID) != c.Class {
			t.Errorf("%s %s: number %d is %s, %s", r.method, r.path, c.ID, Name(c.ID), ClassOf(c.ID))
		}
		for seg := range strings.SplitSeq(r.path, "/") {
			if strings.HasPrefix(seg, "{") {
				name := strings.Trim(seg, "{}")
				if got := string(c.Param(name)); got != "v-"+name {
					t.Errorf("%s %s: parameter %s is %q", r.method, r.path, name, got)
				}
			}
		}
	}
}

func TestTableIsGenerated(t *testing.T) {
	out := filepath.Join(t.TempDir(), "table_gen.go")
	if msg, err := exec.Command("go", "run", "./gen", "-in", "apis.tsv", "-out", out).CombinedOutput(); err != nil {
		t.Fatalf("run the generator: %v\n%s", err, msg)
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("table_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("table_gen.go is not what apis.tsv makes: run go generate ./elastic/api")
	}
}

func TestClassify(t *testing.T) {
	f := func(method, target, name string, idempotency Idempotency, index string) {
		t.Helper()
		c := classify(method, target)
		if c.String() != name || c.Idempotency != idempotency || string(c.Index) != index {
			t.Errorf("%s %s: got %s, %s, index %q; want %s, %s, %q", method, target, c, c.Idempotency, c.Index, name, idempotency, index)
		}
	}
	f("GET", "/", "info", Read, "")
	f("HEAD", "/", "ping", Read, "")
	f("GET", "/logs/_search", "search", Read, "logs")
	f("POST", "/_search", "search", Read, "")
	f("POST", "/logs/_bulk", "bulk", Unsafe, "logs")
	f("POST", "/logs/_doc", "index", Unsafe, "logs")
	f("PUT", "/logs", "indices.create", Unsafe, "logs")
	f("POST", "/alias/_rollover", "indices.rollover", Unsafe, "alias")
	f("PUT", "/_data_stream/ds", "indices.create_data_stream", Unsafe, "ds")
	f("GET", "/_cat/indices/logs-*", "cat.indices", Read, "logs-*")
	f("PUT", "/_index_template/logs", "indices.put_index_template", Idempotent, "")

	// Names of before, which nodes still take.
	f("POST", "/_xpack/sql", "sql.query", Cursor, "")
	f("GET", "/_xpack/security/_authenticate", "security.authenticate", Read, "")
	f("POST", "/_opendistro/_sql", "sql.query", Cursor, "")
	f("POST", "/_opendistro/_ppl", "ppl.query", Read, "")
	f("GET", "/_xpack/usage", "xpack.usage", Read, "")
	f("GET", "/_opendistro/_security/sslinfo", "security.get_sslinfo", Read, "")
	f("GET", "/_xpack/nothing", "unknown", Unsafe, "")
	f("GET", "/_xpack", "xpack.info", Read, "")

	// Spellings that must not get around a rule.
	f("POST", "//_bulk", "bulk", Unsafe, "")
	f("POST", "/i//_search", "search", Read, "i")
	f("GET", "/i/_count/", "count", Read, "i")
	f("GET", "/i/_count//", "count", Read, "i")
	f("GET", "//i/_count", "count", Read, "")   // Elasticsearch 7.17 counts every index
	f("GET", "//_doc/_search", "get", Read, "") // and here too
	f("POST", "//_doc/_bulk", "bulk", Unsafe, "")
	f("GET", "///_count", "count", Read, "")
	f("GET", "/i/%5Fsearch", "search", Unsafe, "i") // a node takes it for a parameter or refuses it
	f("PUT", "/i/%5fdoc/1", "index", Unsafe, "i")   // a document on 7.17
	f("GET", "/%5Fall/_search", "search", Read, "%5Fall")
	f("GET", "/i/%5Fdoc%2F1", "unknown", Unsafe, "i")

	// Literals win over parameters, unless the method knows the parameter only.
	f("GET", "/_search/point_in_time/_all", "get_all_pits", Read, "")
	f("GET", "/_cat/count/_all", "cat.count", Read, "_all")
	f("DELETE", "/i/_doc/_search", "delete", Idempotent, "i")
	f("GET", "/_cluster/stats/nodes/n1", "cluster.stats", Read, "")

	// Underscores.
	f("GET", "/_all/_search", "search", Read, "_all")
	f("GET", "/_nothing", "unknown", Unsafe, "")
	f("GET", "/_nothing/_search", "unknown", Unsafe, "")
	f("GET", "/%5Fnothing/_search", "unknown", Unsafe, "")
	f("GET", "/_all2/_search", "unknown", Unsafe, "")
	f("GET", "/i/_nothing", "unknown", Unsafe, "i")

	// Ids and odd names.
	f("GET", "/i/_doc/..", "get", Read, "i")
	f("GET", "/i/_doc/orders%2F17", "get", Read, "i")
	f("GET", "/%3Clogs-%7Bnow%2Fd%7D%3E/_search", "search", Read, "%3Clogs-%7Bnow%2Fd%7D%3E")
	f("GET", "/r:i-*,j/_search", "search", Read, "r:i-*,j")
	f("GET", "/i/../_cluster/settings", "unknown", Unsafe, "i")

	// Types of Elasticsearch 6 and 7.
	f("GET", "/i/t/_search", "search", Read, "i")
	f("GET", "/i/../_count", "count", Read, "i") // 7.17: the type ".."
	f("GET", "/i/_nothing/_search", "search", Read, "i")
	// What Elasticsearch 7 takes for a search of a type is the document of that id for all others.
	for _, name := range []string{"_search", "_count", "_msearch", "_mget", "_termvectors", "_mtermvectors", "%5fsearch"} {
		f("GET", "/i/_doc/"+name, "get", Read, "i")
		f("POST", "/i/_doc/"+name, "index", Idempotent, "i")
	}
	f("GET", "/i/_doc/_search/template", "search_template", Read, "i")
	f("POST", "/i/_doc/1/_update", "update", Unsafe, "i")
	f("PUT", "/i/t/1", "index", Idempotent, "i")
	f("POST", "/i/t/_delete_by_query", "delete_by_query", Unsafe, "i")
	f("POST", "/i/t/_nothing", "unknown", Unsafe, "i")
	f("POST", "/i/_nothing/1", "unknown", Unsafe, "i")

	// HEAD falls back to GET, other methods to nothing.
	f("HEAD", "/i/_search", "search", Read, "i")
	f("HEAD", "/i/_doc/1", "exists", Read, "i")
	f("PATCH", "/i/_search", "unknown", Unsafe, "i")
	f("get", "/i/_search", "unknown", Unsafe, "i")
	f("OPTIONS", "*", "unknown", Unsafe, "")
	f("GET", "", "unknown", Unsafe, "")

	// The query.
	f("POST", "/i/_search?scroll=1m", "search", Context, "i")
	f("POST", "/i/_search?size=1;scroll=1m", "search", Context, "i")
	f("POST", "/i/_search?size=1&%73croll=1m", "search", Context, "i")
	f("POST", "/i/_search?scrolls=1m", "search", Read, "i")
	f("GET", "/_search/template?scroll=1m", "search_template", Context, "")
	f("PUT", "/i/_doc/1?refresh=wait_for&timeout=1s", "index", Idempotent, "i")
	f("PUT", "/i/_doc/1?op_type=index", "index", Idempotent, "i")
	f("PUT", "/i/_doc/1?op_type=create", "index", Unsafe, "i")
	f("PUT", "/i/_doc/1?if_seq_no=3&if_primary_term=1", "index", Unsafe, "i")
	f("PUT", "/i/_doc/1?version=3&version_type=external", "index", Unsafe, "i")
	f("DELETE", "/i/_doc/1?version=3", "delete", Unsafe, "i")
	f("PUT", "/_template/t?create=true", "indices.put_template", Unsafe, "")
	f("PUT", "/_template/t?create=false", "indices.put_template", Idempotent, "")
	f("GET", "/i/_doc/1?version=3", "get", Read, "i")
	f("GET", "/_cluster/health?scroll=1m", "cluster.health", Read, "")
	f("POST", "/_async_search", "async_search.submit", Context, "")
	f("POST", "/_search/scroll", "scroll", Cursor, "")
	f("POST", "/_sql", "sql.query", Cursor, "")
}

func TestClassifyTarget(t *testing.T) {
	f := func(path, want string) {
		t.Helper()
		if got := string(classify("POST", path).Target); got != want {
			t.Errorf("%s: target %q, want %q", path, got, want)
		}
	}
	f("/a/_clone/b", "b")
	f("/a/_rollover/b", "b")
	f("/a/_rollover", "")
	f("/_create_from/a/b", "b")
}

func TestCallIsReusable(t *testing.T) {
	c := classify("PUT", "/a/_clone/b?x")
	Classify(c, []byte("GET"), []byte("/_nothing"), nil)
	if c.Name != "" || c.Index != nil || c.Target != nil || c.Param("index") != nil || c.ID != 0 || c.Class != ClassUnknown {
		t.Errorf("an old call shows through: %+v", c)
	}
}

func TestID(t *testing.T) {
	for id := uint16(1); id < Count; id++ {
		if got, ok := ID(Name(id)); !ok || got != id {
			t.Errorf("ID(%q) = %d, %v, want %d", Name(id), got, ok, id)
		}
	}
	for _, name := range []string{"", "unknown", "Search", "zzz", "a"} {
		if id, ok := ID(name); ok || id != 0 {
			t.Errorf("ID(%q) = %d, %v", name, id, ok)
		}
	}
	if Name(Count) != "unknown" || ClassOf(Count) != ClassUnknown {
		t.Error("a number out of range is known")
	}
}

func TestNoEndpointIsUnsafeByGet(t *testing.T) {
	// GET that changes something is rare enough to be listed: whoever adds one decides it here.
	known := map[string]bool{
		"notifications.send_test": true, "security.enroll_kibana": true, "security.enroll_node": true, "security.cache": true,
	}
	for _, r := range table(t) {
		if r.method == "GET" && r.idempotency == "U" && !known[r.name] {
			t.Errorf("%s %s is unsafe", r.method, r.path)
		}
	}
}

// linear is the slow and plain reading of the table: of all rows that match, the one with a literal where the others have a
// parameter wins, from left to right.
func linear(rows []tableRow, method, path string) string {
	var segs []string
	for seg := range strings.SplitSeq(path, "/") {
		if seg != "" {
			segs = append(segs, seg)
		}
	}
	match := func(method string) *tableRow {
		var best *tableRow
		for i := range rows {
			r := &rows[i]
			if r.method == method && matches(r.path, segs) && (best == nil || moreLiteral(r.path, best.path)) {
				best = r
			}
		}
		return best
	}
	r := match(method)
	if r == nil && method == "HEAD" {
		r = match("GET")
	}
	if r == nil {
		return "unknown"
	}
	return r.name
}

func matches(pattern string, segs []string) bool {
	var want []string
	if pattern != "/" {
		want = strings.Split(pattern[1:], "/")
	}
	if len(want) != len(segs) {
		return false
	}
	typed := strings.HasPrefix(pattern, "/{index}/{type}/{id}") || pattern == "/{index}/{type}"
	for i, w := range want {
		s := string(DecodeSegment(nil, []byte(segs[i])))
		under := strings.HasPrefix(s, "_")
		index := w == "{index}" || w == "{alias}" || w == "{name}" &&
			(strings.HasPrefix(pattern, "/_data_stream/") || strings.HasPrefix(pattern, "/_resolve/index/")) ||
			w == "{source}"
		switch {
		case !strings.HasPrefix(w, "{"):
			if w != s {
				return false
			}
		case index && under && s != "_all",
			typed && w == "{type}" && under && s != "_doc",
			typed && w == "{id}" && under:
			return false
		}
	}
	return true
}

func moreLiteral(a, b string) bool {
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	for i := range as {
		if x, y := strings.HasPrefix(as[i], "{"), strings.HasPrefix(bs[i], "{"); x != y {
			return y
		}
	}
	return false
}

func TestTrieAgainstLinearSearch(t *testing.T) {
	rows := table(t)
	var vocabulary []string
	seen := map[string]bool{}
	for _, r := range rows {
		for seg := range strings.SplitSeq(r.path, "/") {
			if seg != "" && seg[0] != '{' && !seen[seg] {
				seen[seg] = true
				vocabulary = append(vocabulary, seg)
			}
		}
	}
	literal := rapid.SampledFrom(vocabulary)
	other := rapid.SampledFrom([]string{"i", "_all", "_doc", "_x", "a,b", "..", "%2F", "%5Fsearch", "%5Fx", "1", "%"})
	rapid.Check(t, func(t *rapid.T) {
		method := rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}).Draw(t, "method")
		var segs []string
		if rapid.Bool().Draw(t, "near a row") {
			r := rapid.SampledFrom(rows).Draw(t, "row")
			segs = strings.Split(r.path, "/")[1:]
			for i, s := range segs {
				if strings.HasPrefix(s, "{") || rapid.IntRange(0, 9).Draw(t, "replace") == 0 {
					segs[i] = rapid.OneOf(literal, other).Draw(t, "segment")
				}
			}
		} else {
			segs = rapid.SliceOfN(rapid.OneOf(literal, other), 0, 6).Draw(t, "segments")
		}
		path := "/" + strings.Join(segs, "/")
		if got, want := classify(method, path).String(), linear(rows, method, path); got != want {
			t.Fatalf("%s %s: the trie says %s, the table %s", method, path, got, want)
		}
	})
}

func TestClassifyDoesNotAllocate(t *testing.T) {
	var c Call
	for _, target := range []string{
		"/logs/_search?scroll=1m", "/logs/%5Fdoc/1?op_type=create", "/_nothing", "//i/t/_search",
		"/_plugins/_ml/memory_containers/c/memories/t/1",
	} {
		path, query, _ := strings.Cut(target, "?")
		m, p, q := []byte("GET"), []byte(path), []byte(query)
		if n := testing.AllocsPerRun(100, func() { Classify(&c, m, p, q) }); n != 0 {
			t.Errorf("%s: %v allocations", target, n)
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add("GET", "/logs/_search", "scroll=1m")
	f.Add("POST", "//%5Fdoc/_bulk", "op_type=create")
	f.Add("PUT", "/i/_doc/a%2Fb", "%zz;version")
	f.Add("HEAD", "/%3Clogs-%7Bnow%2Fd%7D%3E,_all/", "")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		var c, again Call
		Classify(&c, []byte(method), []byte(path), []byte(query))
		if (c.ID == 0) != (c.Name == "") || c.ID >= Count {
			t.Errorf("number %d, name %q", c.ID, c.Name)
		}
		if c.ID == 0 && c.Idempotency != Unsafe {
			t.Errorf("unknown and %s", c.Idempotency)
		}
		if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") && !strings.HasSuffix(path, "/") {
			Classify(&again, []byte(method), []byte(strings.ReplaceAll(path, "/", "//")[1:]), []byte(query))
			if again.ID != c.ID || !bytes.Equal(again.Index, c.Index) || again.Idempotency != c.Idempotency {
				t.Errorf("%q with double slashes is %s on %q", path, &again, again.Index)
			}
		}
		if _, err := c.Indices(nil); err != nil && !bytes.Contains(c.Index, []byte("%")) {
			t.Errorf("indices of %q: %v", path, err)
		}
	})
}

func BenchmarkClassify(b *testing.B) {
	for _, bc := range []struct{ name, method, path, query string }{
		{"search", "POST", "/logs-2024.05/_search", "pretty"},
		{"bulk", "POST", "/_bulk", ""},
		{"doc", "PUT", "/logs-2024.05/_doc/abcdefgh", "refresh=true"},
		{"deep", "GET", "/_plugins/_ml/memory_containers/c/memories/t/1", ""},
		{"unknown", "GET", "/favicon.ico/x", ""},
	} {
		b.Run(bc.name, func(b *testing.B) {
			var c Call
			m, p, q := []byte(bc.method), []byte(bc.path), []byte(bc.query)
			b.ReportAllocs()
			for b.Loop() {
				Classify(&c, m, p, q)
			}
		})
	}
}

func TestLongCalls(t *testing.T) {
	f := func(method, path string, want bool) {
		t.Helper()
		var c Call
		Classify(&c, []byte(method), []byte(path), nil)
		if c.Name == "" || c.Long() != want {
			t.Errorf("%s %s (%s): %v", method, path, c.Name, c.Long())
		}
	}
	f("POST", "/i/_forcemerge", true)
	f("POST", "/_reindex", true)
	f("POST", "/i/_update_by_query", true)
	f("POST", "/i/_delete_by_query", true)
	f("PUT", "/_snapshot/r/s", true)
	f("POST", "/_snapshot/r/s/_restore", true)
	f("PUT", "/a/_shrink/b", true)
	f("PUT", "/_enrich/policy/p/_execute", true)
	f("GET", "/_tasks/n:1", true)
	f("GET", "/_cluster/health", true)
	f("POST", "/i/_search", false)
	f("POST", "/_bulk", false)
	f("PUT", "/i", false)
}
