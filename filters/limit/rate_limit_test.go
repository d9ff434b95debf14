package limit

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/simtime"
)

type answerConfig struct{}

type answer struct{}

// Serve answers as a cluster would that needs as long as the field x-work says, with the body in the field x-answer.
func (answer) Serve(x *flows.Exchange, _ flows.Handler) error {
	if field := x.Request.Header.Get("x-work"); field != nil {
		work, err := time.ParseDuration(string(field))
		if err != nil {
			return err
		}
		<-time.After(work)
		x.Trace.Outcome, x.Trace.Attempts, x.Trace.Upstream = flows.Upstream, 1, work
	}
	x.Reply(200, "application/json", x.Request.Header.Get("x-answer"))
	return nil
}

// registry has the filters of this package, of which made gets each rate_limit that is built, and one that answers.
func registry(made func(*rateLimit)) *flows.Registry {
	r := flows.NewRegistry()
	flows.Register(r, Concurrency())
	flows.Register(r, RequestPathLimiter())
	flows.Register(r, RequestClientIPLimiter())
	flows.Register(r, RequestUserLimiter())
	flows.Register(r, RequestHostLimiter())
	flows.Register(r, RequestAPIKeyLimiter())
	flows.Register(r, ContextLimiter())
	flows.Register(r, BulkRequestThrottle())
	factory := RateLimit()
	factory.Build = func(b *flows.Builder, c RateLimitConfig) flows.Filter {
		f := RateLimit().Build(b, c)
		if f, ok := f.(*rateLimit); ok {
			made(f)
		}
		return f
	}
	flows.Register(r, factory)
	flows.Register(r, flows.Factory[answerConfig]{
		Name: "answer", Default: func() answerConfig { return answerConfig{} },
		Build: func(*flows.Builder, answerConfig) flows.Filter { return answer{} },
	})
	return r
}

// build makes the flow main of a list of filters.
func build(t testing.TB, filters string, made func(*rateLimit)) (*flows.Builder, *conf.Problems) {
	t.Helper()
	text := "flow:\n- name: main\n  filter:\n" + indent(filters, "  ") + "\n  - answer: {}\n"
	root, p := conf.Parse("test.yml", text, nil)
	b := flows.NewBuilder(registry(made), p)
	b.Define(root.Get("flow"))
	return b, p
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

// gateway runs a flow, and others that replace it.
type gateway struct {
	t       testing.TB
	keeper  *flows.Keeper
	metrics *obs.Metrics
	flow    *flows.Flow
	filters []*rateLimit
	current *flows.Generation
	number  uint64
}

func newGateway(t testing.TB, filters string) *gateway {
	t.Helper()
	g := &gateway{t: t, keeper: flows.NewKeeper(), metrics: obs.NewMetrics()}
	g.load(filters)
	t.Cleanup(func() {
		g.current.Retire()
		<-g.current.Drained()
	})
	return g
}

func (g *gateway) load(filters string) {
	g.t.Helper()
	g.filters = nil
	b, p := build(g.t, filters, func(f *rateLimit) { g.filters = append(g.filters, f) })
	if err := p.Err(); err != nil {
		g.t.Fatal(err)
	}
	g.number++
	flow := b.Flow("main", nil)
	gen := b.Generation(g.number, nil, &flows.Runtime{Metrics: g.metrics, Logger: slog.New(slog.DiscardHandler)}, g.keeper)
	if err := gen.Start(); err != nil {
		g.t.Fatal(err)
	}
	if g.current != nil {
		g.current.Retire()
		<-g.current.Drained()
	}
	g.flow, g.current = flow, gen
}

func exchange(method, target string, fields ...string) *flows.Exchange {
	x := flows.Explaining(method, target, fields...)
	x.Request.ClientIP = netip.MustParseAddr("192.0.2.1")
	return x
}

// serve runs one exchange, and returns its refusal or nil.
func (g *gateway) serve(x *flows.Exchange) *elastic.Error {
	g.t.Helper()
	err := g.flow.Serve(x)
	x.Conclude()
	if err == nil {
		if x.Response.Status != 200 {
			g.t.Fatalf("%s: neither refused nor answered", x.Request.Target)
		}
		return nil
	}
	var e *elastic.Error
	if !errors.As(err, &e) || e.Status != 429 && e.Status != 400 || x.Trace.Outcome != flows.Limited {
		g.t.Fatalf("%s: error %v, outcome %s", x.Request.Target, err, x.Trace.Outcome)
	}
	return e
}

// passes tells how many of n exchanges pass, one right after the other.
func (g *gateway) passes(n int, x func(i int) *flows.Exchange) int {
	g.t.Helper()
	passed := 0
	for i := range n {
		if g.serve(x(i)) == nil {
			passed++
		}
	}
	return passed
}

// get makes the same GET each time.
func get(target string, fields ...string) func(int) *flows.Exchange {
	return func(int) *flows.Exchange { return exchange("GET", target, fields...) }
}

func (g *gateway) metric(name string, labels map[string]string) float64 {
	g.t.Helper()
	families, err := g.metrics.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if want, ok := labels[l.GetName()]; ok && want != l.GetValue() {
					continue series
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	g.t.Fatalf("no series %s%v", name, labels)
	return 0
}

const classic = `
- name: rate_limit_1
  type: rate_limit
  parameters:
    message: "Hey, You just reached our request limit!"
    rules:
      - pattern: "/(?P<index_name>medcl)/_search"
        max_qps: 3
        group: index_name
      - pattern: "/(?P<index_name>.*?)/_search"
        max_qps: 100
        group: index_name
`

func TestClassicForm(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, classic)
		if n := g.passes(3, get("/medcl/_search?q=a")); n != 3 {
			t.Fatalf("%d of the first three searches passed", n)
		}
		x := exchange("GET", "/medcl/_search?q=b")
		e := g.serve(x)
		want := &elastic.Error{
			Status: 429, Type: "rate_limit_exceeded_exception", Reason: "Hey, You just reached our request limit!", RetryAfter: time.Second,
		}
		if d := cmp.Diff(want, e, cmpopts.IgnoreFields(elastic.Error{}, "Fields"), cmpopts.IgnoreUnexported(elastic.Error{})); d != "" {
			t.Errorf("the fourth search (-want +got):\n%s", d)
		}
		if x.Trace.Limit != "rule_1" {
			t.Errorf("limit %q in the trace, want rule_1", x.Trace.Limit)
		}
		if n := g.passes(101, get("/other/_search")); n != 100 {
			t.Errorf("%d of 101 searches on another index passed, want 100", n)
		}
		if n := g.passes(1, get("/third/_search")); n != 1 {
			t.Error("a third index has no budget of its own")
		}
		if n := g.passes(200, get("/medcl/_count")); n != 200 {
			t.Errorf("%d of 200 requests passed that no rule is for", n)
		}
		<-time.After(333 * time.Millisecond)
		if g.serve(exchange("GET", "/medcl/_search")) == nil {
			t.Error("a search passed before its interval was over")
		}
		<-time.After(time.Millisecond)
		if n := g.passes(2, get("/medcl/_search")); n != 1 {
			t.Errorf("%d searches passed after one interval, want 1", n)
		}
		<-time.After(time.Minute)
		if n := g.passes(9, get("/medcl/_search")); n != 3 {
			t.Errorf("%d searches passed at once after a long rest, want 3", n)
		}
	})
}

func TestSpellingsDoNotEvade(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, classic)
		targets := []string{
			"/medcl/_search", "//medcl/_search", "/medcl//_search", "/medcl/_search/", "/%6dedcl/_search", "/medcl/%5Fsearch",
			"/medcl%2F_search", "/medcl/_search?x=/other/_search",
		}
		if n := g.passes(len(targets), func(i int) *flows.Exchange { return exchange("POST", targets[i]) }); n != 3 {
			t.Errorf("%d of %d spellings of one path passed, want 3", n, len(targets))
		}
	})
}

func TestRetryAfterIsRoundedUp(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{name: slow, key: [global], rate: 1/90s}]}`)
		g.serve(exchange("GET", "/"))
		<-time.After(30*time.Second + time.Millisecond)
		e := g.serve(exchange("GET", "/"))
		if e == nil || e.RetryAfterSeconds() != 60 || e.Reason != "[slow] 1/1m30s exceeded; retry in 60s" {
			t.Fatalf("refusal %+v, want a retry in 60s", e)
		}
		<-time.After(e.RetryAfter)
		if e := g.serve(exchange("GET", "/")); e != nil {
			t.Errorf("refused after waiting as told: %v", e)
		}
	})
}

// TestSelectors tells for pairs of requests whether they share a budget.
func TestSelectors(t *testing.T) {
	type request struct {
		ip, user, target string
		fields           []string
	}
	f := func(key string, a, b request, shared bool) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, `- rate_limit: {limits: [{key: [`+key+`], rate: 1/h, pattern: "^/(?P<first>[^/]*)"}]}`)
			for i, r := range []request{a, b} {
				x := exchange("GET", r.target, r.fields...)
				x.Request.ClientIP, _ = netip.ParseAddr(r.ip)
				if r.user != "" {
					x.Request.User = []byte(r.user)
				}
				if refused := g.serve(x) != nil; refused != (i == 1 && shared) {
					t.Errorf("key [%s]: request %d of %+v, %+v: refused %v", key, i, a, b, refused)
				}
			}
		})
	}
	at := func(ip string) request { return request{ip: ip, target: "/i/_search"} }
	f("ip", at("192.0.2.1"), at("192.0.2.1"), true)
	f("ip", at("192.0.2.1"), at("::ffff:192.0.2.1"), true)
	f("ip", at("192.0.2.1"), at("192.0.2.2"), false)
	f("ip", at("2001:db8::1"), at("2001:db8::ffff:1"), true)
	f("ip", at("2001:db8::1"), at("2001:db8:0:1::1"), false)
	f("ip", at(""), at(""), true)

	by := func(user string) request { return request{user: user, target: "/i/_search"} }
	f("user", by("ann"), by("ann"), true)
	f("user", by("ann"), by("bob"), false)
	f("user", by(""), by(""), true)
	f("user", by(""), by("ann"), false)

	to := func(target string) request { return request{target: target} }
	f("api", to("/i/_search"), to("/j/_search"), true)
	f("api", to("/i/_search"), to("/i/_count"), false)
	f("class", to("/i/_search"), to("/i/_count"), true)
	f("class", to("/i/_search"), to("/_cluster/health"), false)
	f("path:first", to("/i/_search"), to("/i/_count"), true)
	f("path:first", to("/i/_search"), to("/j/_search"), false)
	f("global", to("/i/_search"), to("/_cat"), true)

	f("index", to("/i/_search"), to("/i/_count"), true)
	f("index", to("/i/_search"), to("/j/_search"), false)
	f("index", to("/i/_search"), to("/j,i/_search"), true)
	f("index", to("/i/_search"), to("/j%2Ci/_search"), true)
	f("index", to("/i/_search"), to("/%69/_search"), true)
	f("index", to("/i/_search"), to("/i::data/_search"), true)
	f("index", to("/i,i/_search"), to("/j/_search"), false)
	f("index", to("/_search"), to("/_all/_search"), true)
	f("index", to("/_search"), to("/i*/_search"), true)
	f("index", to("/i*/_search"), to("/%3Ci-%7Bnow%2Fd%7D%3E/_search"), true)
	f("index", to("/j*/_search"), to("/%3Clogs-%7Bnow%2Fd%7D%3E/_search"), false)
	f("index", to("/_search/scroll"), to("/_async_search/x"), true) // nobody knows of what
	f("index", to("/_search/scroll"), to("/_search"), false)
	f("index", to("/i*,-x/_search"), to("/,/_search"), true)
	f("index", to("/_search"), to("/i/_search"), true)
	f("index", to("/i/_search"), to("/_search"), true)
	f("index", to("/i/_search"), to("/r:*/_search"), false)
	f("index", to("/r:i/_search"), to("/*:i/_search"), true)

	host := func(h string) request { return request{target: "/", fields: []string{"Host", h}} }
	f("host", host("es.example:9200"), host("ES.example."), true)
	f("host", host("es.example"), host("es2.example"), false)
	f("host", host("[2001:db8::1]:9200"), host("[2001:db8::1]"), true)
	f("host", host("[2001:db8::1]"), host("[2001:db8::2]"), false)

	with := func(fields ...string) request { return request{target: "/", fields: fields} }
	f("header:X-Team", with("x-team", "a"), with("X-TEAM", "a"), true)
	f("header:x-team", with("x-team", "a"), with("x-team", "b"), false)
	f("header:x-team", with(), with("other", "b"), true)
	f("header:x-team", with("x-team", strings.Repeat("a", 5000)), with("x-team", strings.Repeat("a", 5000)), true)
	f("header:x-team", with("x-team", strings.Repeat("a", 5000)), with("x-team", strings.Repeat("a", 5001)), false)

	f("header:a, header:b", with("a", "12", "b", "3"), with("a", "1", "b", "23"), false)
	f("ip, user", by("ann"), by("ann"), true)
	f("ip, user", by("ann"), by("bob"), false)
}

// TestManyIndices holds that a long list in a path charges each index that it names and no other, and that one that is too long is
// refused and costs nothing.
func TestManyIndices(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{name: each, key: [index], rate: 1/h, burst: 2}]}`)
		list := func(n int, last string) func(int) *flows.Exchange {
			return func(i int) *flows.Exchange {
				var names []string
				for j := range n {
					names = append(names, fmt.Sprint("x", i, "-", j))
				}
				return exchange("GET", "/"+strings.Join(append(names, last), ",")+"/_search")
			}
		}
		if n := g.passes(2, get("/aa/_search")); n != 2 {
			t.Fatalf("%d passed, want 2", n)
		}
		for _, filler := range []int{1, 16, 64, 65, maxIndices - 1} {
			if n := g.passes(2, list(filler, "aa")); n != 0 {
				t.Errorf("%d passed with %d indices beside one that is used up, want 0", n, filler)
			}
		}
		if n := g.passes(5, list(maxIndices-1, "b")); n != 2 {
			t.Errorf("%d lists passed, want 2", n)
		}
		if e := g.serve(list(maxIndices, "c")(0)); e == nil || e.Status != 400 || !strings.Contains(e.Reason, "[each] takes at most 1000 indices") {
			t.Errorf("a list that is too long: %v", e)
		}
		if n := g.passes(1, get("/c/_search")); n != 1 { // which is not in the lists
			t.Error("an index is refused for what others asked for")
		}
		if n := g.passes(1, get("/_search")); n != 0 { // which is in all that were in the lists as well
			t.Error("a search in all indices passes while one of them is used up")
		}
		g.load(`- rate_limit: {mode: shadow, limits: [{name: each, key: [index], rate: 1/h}]}`)
		if n := g.passes(3, list(maxIndices, "c")); n != 3 {
			t.Errorf("%d of 3 long lists passed in shadow mode", n)
		}
		g.load(`- rate_limit: {limits: [{key: [index], unit: bulk_docs, rate: 1/h}, {key: [index], cost: {search: 0}, rate: 1/h}]}`)
		if n := g.passes(3, list(maxIndices, "c")); n != 3 {
			t.Errorf("%d of 3 long lists passed limits that do not count them", n)
		}
	})
}

// TestIndexCannotBeEvaded holds that a limit on an index counts all requests that may touch it.
func TestIndexCannotBeEvaded(t *testing.T) {
	f := func(target string, limited bool) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, `- rate_limit: {limits: [{key: [global], index: "pay-*", rate: 1/h}]}`)
			if n := g.passes(2, get(target)); (n == 1) != limited {
				t.Errorf("%s: %d of two passed, limited should be %v", target, n, limited)
			}
		})
	}
	f("/pay-1/_search", true)
	f("/other,pay-1/_search", true)
	f("/p*/_search", true)
	f("/*-1/_search", true)
	f("/_all/_search", true)
	f("/_search", true)
	f("/,/_search", true)
	f("/-x/_search", true)
	f("/%70ay-1/_search", true)
	f("/_bulk", true)
	f("//_search", true)
	f("/_unheard_of", true)
	f("/_cat/indices", true)
	f("/_stats", true)
	f("/_aliases", true)
	f("/_cluster/health/pay-1", true)
	f("/_cluster/health", false)
	f("/", false)
	f("/_cat/nodes", false)
	f("/_nodes/stats", false)
	f("/other/_search", false)
	f("/other,-pay-1/_search", false)
	f("/remote:pay-1/_search", false)
}

// TestOthersOfAList holds that a limit on some indices is not for others that stand in a list with them.
func TestOthersOfAList(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{key: [index], index: "pay-*", rate: 1/h}]}`)
		n := g.passes(3, func(i int) *flows.Exchange { return exchange("GET", fmt.Sprintf("/logs,pay-%d/_search", i)) })
		if n != 3 || g.serve(exchange("GET", "/pay-1/_search")) == nil {
			t.Errorf("%d of 3 searches in different lists passed, and another in an index of one of them", n)
		}
	})
}

// TestAllOrNothing holds that a request that one limit refuses costs nothing of the others.
func TestAllOrNothing(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `
- rate_limit:
    rules: [{pattern: ^/i/, max_qps: 0.001, burst: 4}]
    limits:
      - {name: narrow, key: [user], rate: 1/h, burst: 2}
      - {name: wide, key: [global], rate: 1/h, burst: 5}
      - {name: never, key: [global], rate: 1/h, when: {method: DELETE}}
`)
		as := func(user string) func(int) *flows.Exchange {
			return func(int) *flows.Exchange {
				x := exchange("GET", "/i/_search")
				x.Request.User = []byte(user)
				return x
			}
		}
		if n := g.passes(10, as("ann")); n != 2 {
			t.Errorf("%d of ann's passed, want 2", n)
		}
		if n := g.passes(10, as("bob")); n != 2 {
			t.Errorf("%d of bob's passed, want 2: what was refused was charged", n)
		}
		if n := g.passes(10, as("eve")); n != 0 {
			t.Errorf("%d of eve's passed, want none: the rule has 4", n)
		}
		if n := g.passes(10, get("/j/_search")); n != 1 {
			t.Errorf("%d passed beside the rule, want the 1 that is left of wide", n)
		}
	})
}

func TestShadowAndOff(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {mode: shadow, limits: [{name: a, rate: 1/h}]}`)
		x := exchange("GET", "/")
		if n := g.passes(3, func(int) *flows.Exchange { return x }); n != 3 {
			t.Errorf("%d of 3 passed a shadow limit", n)
		}
		if d := cmp.Diff(flows.Trace{}, x.Trace); d != "" {
			t.Errorf("a shadow limit shows in the trace:\n%s", d)
		}
		labels := map[string]string{"flow": "main", "filter": "rate_limit", "limit": "a", "outcome": "would_refuse"}
		if n := g.metric("weir_limit_decisions_total", labels); n != 2 {
			t.Errorf("%v requests counted that would be refused, want 2", n)
		}
		g.load(`- rate_limit: {mode: off, limits: [{name: a, rate: 1/h}]}`)
		if n := g.passes(3, get("/")); n != 3 {
			t.Errorf("%d of 3 passed a limit that is off", n)
		}
		g.load(`- rate_limit: {limits: [{name: a, rate: 1/h}]}`)
		if n := g.passes(3, get("/")); n != 0 {
			t.Errorf("%d passed, want none: the shadow limit had charged the key", n)
		}
	})
}

func TestTracingFlowGoesNoFurther(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{key: [global], rate: 1/h}]}`)
		for i, want := range []int{200, 0} {
			x := exchange("GET", "/")
			x.Tracing = true
			if err := g.flow.Serve(x); err != nil || x.Response.Status != want || x.Trace.Outcome == flows.Limited {
				t.Errorf("snapshot %d: error %v, status %d, outcome %s", i, err, x.Response.Status, x.Trace.Outcome)
			}
		}
	})
}

func TestReloadKeepsState(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, classic)
		g.passes(3, get("/medcl/_search"))
		g.load(classic)
		if n := g.passes(3, get("/medcl/_search")); n != 0 {
			t.Errorf("%d passed after a reload without changes, want none", n)
		}
		g.load("- rate_limit: {limits: [{key: [global], rate: 50/s}]}\n" + strings.Replace(classic, "max_qps: 100", "max_qps: 90", 1))
		if n := g.passes(3, get("/medcl/_search")); n != 0 {
			t.Errorf("%d passed after another filter came before it, want none", n)
		}
		g.load(strings.Replace(classic, "name: rate_limit_1", "name: other", 1))
		if n := g.passes(3, get("/medcl/_search")); n != 3 {
			t.Errorf("%d passed after the filter got another name, want 3", n)
		}
		g.load(classic + "\n- rate_limit: {limits: [{key: [global], rate: 50/s}]}")
		g.passes(3, get("/medcl/_search"))
		g.load(strings.Replace(classic, "max_qps: 100", "max_qps: 90", 1))
		if n := g.passes(3, get("/medcl/_search")); n != 0 {
			t.Errorf("%d passed after a change of another rule, want none", n)
		}
		g.load(strings.Replace(classic, "max_qps: 3", "max_qps: 4", 1))
		if n := g.passes(9, get("/medcl/_search")); n != 4 {
			t.Errorf("%d passed after a change of the rule itself, want 4", n)
		}
	})
}

// TestTwinFilters holds that two filters of one flow that are configured the same charge different keys.
func TestTwinFilters(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		const filter = "- rate_limit: {limits: [{key: [global], rate: 1/h, burst: 4}]}\n"
		g := newGateway(t, filter+filter)
		if n := g.passes(9, get("/")); n != 4 {
			t.Errorf("%d passed, want 4", n)
		}
		g.load(filter + filter)
		if n := g.passes(9, get("/")); n != 0 {
			t.Errorf("%d passed after a reload, want none", n)
		}
	})
}

// TestTwinLimits holds that no two limits of a filter charge the same key, which a table does not allow, and that each
// finds its own again.
func TestTwinLimits(t *testing.T) {
	const filter = "- rate_limit: {limits: [{key: [global], rate: 1/h}, {key: [global], rate: 1/h}]}"
	g := newGateway(t, filter)
	first, second := g.filters[0].limits[0].id, g.filters[0].limits[1].id
	if first == second {
		t.Error("two limits have one number")
	}
	g.load(filter)
	if now := g.filters[0].limits; now[0].id != first || now[1].id != second {
		t.Errorf("numbers %d and %d after a reload, want %d and %d", now[0].id, now[1].id, first, second)
	}
}

func TestReloadGivesUpWhatIsGone(t *testing.T) {
	g := newGateway(t, classic)
	for i := range 5 {
		g.load(strings.Replace(classic, "max_qps: 3", fmt.Sprint("max_qps: ", 4+i), 1))
	}
	if n := len(g.filters[0].table.names); n != 2 {
		t.Errorf("the table knows %d limits, want the 2 of the last configuration", n)
	}
}

func TestMetrics(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {rules: [{name: all, pattern: "^/(?P<a>.*)", group: a, max_qps: 1}], max_keys: 1000}`)
		for i := range 1100 {
			g.serve(exchange("GET", fmt.Sprint("/", i)))
		}
		g.serve(exchange("GET", "/1099"))
		f := func(name, outcome string, want float64) {
			t.Helper()
			if got := g.metric(name, map[string]string{"flow": "main", "limit": "all", "outcome": outcome}); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		f("weir_limit_decisions_total", "passed", 1100)
		f("weir_limit_decisions_total", "refused", 1)
		f("weir_limit_paths", "", 1100)
		keys := g.metric("weir_limit_keys", nil) // under max_keys, since its shards do not fill up alike
		if keys > 1000 || keys < 900 {
			t.Errorf("%v keys remembered, want up to 1000", keys)
		}
		f("weir_limit_evicted_hot_total", "", 1100-keys)
	})
}

func TestMistakes(t *testing.T) {
	f := func(params string, want ...string) {
		t.Helper()
		_, p := build(t, "- rate_limit: "+params, func(*rateLimit) {})
		var got []string
		for _, q := range p.Sorted() {
			got = append(got, q.String())
		}
		all := strings.Join(got, "\n")
		if len(got) != len(want) {
			t.Errorf("%s: problems\n%s\nwant %q", params, all, want)
		}
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("%s: problems\n%s\nwant %q", params, all, w)
			}
		}
	}
	f(`{}`, "neither rules nor limits")
	f(`{rules: [{pattern: x}]}`, `the required field "max_qps" is missing`)
	f(`{rules: [{pattern: x, max_qps: many}]}`, "want a number")
	f(`{rules: [{pattern: x, max_qps: 0}]}`, "test.yml:4:48: flow main: rate_limit: max_qps must be above 0")
	f(`{rules: [{pattern: x, max_qps: -3}]}`, "must be above 0")
	f(`{rules: [{pattern: x, max_qps: 10000000000}]}`, "cannot be told from no limit")
	f(`{rules: [{pattern: x, max_qps: 0.000000001}]}`, "less than one a year")
	f(`{rules: [{pattern: x, max_qps: 1, burst: 0}]}`, "at least 1")
	f(`{rules: [{pattern: "(", max_qps: 1}]}`, "no regular expression")
	f(`{rules: [{pattern: "(?P<index>x)", group: indx, max_qps: 1}]}`, `no group called "indx"`)
	f(`{rules: [{pattern: x, group: index, max_qps: 1}, {pattern: y, max_qps: 0}]}`, `no group called "index"`, "must be above 0")
	f(`{rules: [{pattern: x, max_qps: 1}, {pattern: x, max_qps: 2}]}`, "rule 2 is never reached: rule 1 has the same pattern")
	f(`{rules: [{name: a, pattern: x, max_qps: 1}, {name: a, pattern: y, max_qps: 2}]}`, `test.yml:4:68: flow main: rate_limit: two limits are called "a"`)
	f(`{rules: [{pattern: y, max_qps: 2}], limits: [{name: rule_1, rate: 1/s}]}`, `two limits are called "rule_1"`)
	f(`{limits: [{key: [ip]}]}`, `the required field "rate" is missing`)
	f(`{limits: [{key: [], rate: 1/s}]}`, "an empty key")
	f(`{limits: [{key: [usr], rate: 1/s}]}`, `unknown selector "usr"; did you mean "user"?`)
	f(`{limits: [{key: ["header:"], rate: 1/s}]}`, "names nothing behind the colon")
	f(`{limits: [{key: ["cooky:x"], rate: 1/s}]}`, `unknown selector "cooky:x"`)
	f(`{limits: [{key: [ip/40], rate: 1/s}]}`, "is no network")
	f(`{limits: [{key: [ip/24/0], rate: 1/s}]}`, "is no network")
	f(`{limits: [{unit: took, rate: 20/s}]}`, "took counts time: write 20s/s")
	f(`{limits: [{unit: took, rate: 20s/s, burst: 3}]}`, "took counts time")
	f(`{limits: [{unit: request_bytes, rate: 20s/s}]}`, "counts bytes: write 10mb/s")
	f(`{limits: [{rate: 10mb/s}]}`, "requests are counted")
	f(`{limits: [{unit: docs, rate: 10/s}]}`, "not one of requests")
	f(`{limits: [{rate: 1/s, cost: {serch: 2}}]}`, `did you mean "search"?`)
	f(`{limits: [{rate: 1/s, cost: -1}]}`, "between 0 and")
	f(`{limits: [{rate: 1/s, cost: {scroll: 2}}]}`, "above the burst of 1")
	f(`{limits: [{rate: 1/s, overrides: [{key: [a, b]}]}]}`, `want a value for each of the selectors ["ip"]`)
	f(`{limits: [{rate: 1/s, overrides: [{key: a}]}]}`, `"a" is no address`)
	f(`{limits: [{rate: 1/s, key: [identity], overrides: [{key: a}]}]}`, "write user:NAME")
	f(`{limits: [{rate: 1/s, key: [api], overrides: [{key: serch}]}]}`, `"serch" is no API`)
	f(`{limits: [{rate: 1/s, key: [class], overrides: [{key: serch}]}]}`, "is no class")
	f(`{limits: [{rate: 1/s, key: [global], overrides: [{key: a}]}]}`, "want a value for each")
	f(`{limits: [{rate: 1/s, key: [user], overrides: [{key: a}, {key: a, rate: 2/s}]}]}`, "has an override already")
	f(`{limits: [{rate: 1/s, key: [user], overrides: [{key: a, burst: 2}]}]}`, "a burst without a rate")
	f(`{limits: [{rate: 1/s}], exempt: {apy: [info]}}`, "unknown word")
	f(`{limits: [{rate: 1/s}], max_wait: 2s}`, "max_wait has no effect without on_limit: wait")
	f(`{limits: [{rate: 1/s}], on_limit: wait, fair_by: [index]}`, "not known of every request")
	f(`{limits: [{rate: 1/s}], status: 200}`, "at least 400")
	f(`{limits: [{rate: 1/s}], percent: 10}`, "write 10%")
	f(`{limits: [{rate: 1/s}], percent: 0%}`, "write mode: shadow")
	f(`{limits: [{rate: 0.5/s}]}`, "write 1/2s")
	f(`{limits: [{rate: 1/s, index: ''}]}`, "an empty name of an index")
	f(`{limits: [{rate: 1/s, index: [a, ""]}]}`, "an empty name of an index")
	f(`{limits: [{rate: 1/10s}], on_limit: wait, max_wait: 2s}`, "one more pass each 10s, and requests wait for it at most 2s")
	f(`{limits: [{rate: 1/10s, on_limit: wait}]}`, "at most 1s")
	f(`{rules: [{pattern: x, max_qps: 0.1}], on_limit: wait}`, "rule_1 lets one more pass each 10s")
	f(`{limits: [{rate: 9/s, overrides: [{key: 192.0.2.1, rate: 1/m}], on_limit: wait}]}`, "one more pass each 1m")
	f(`{limits: [{key: [ip, ip], rate: 1/s}]}`, "stands twice")
	f(`{limits: [{key: ["header:a b"], rate: 1/s}]}`, `"a b" is not the name of a header field`)
	f(`{limits: [{key: ["path:x"], rate: 1/s}]}`, "is a group of pattern, which is missing")
	f(`{limits: [{key: ["path:x"], pattern: "(?P<y>.)", rate: 1/s}]}`, `no group called "x"`)
	f(`{limits: [{rate: 1/s, when: {index: x}}]}`, "write index beside when")
	f(`{limits: [{rate: 1/s, when: {any: [{user: a}, {not: {index: x}}]}}]}`, "write index beside when")
	f(`{limits: [{rate: 1/s, when: {indx: x}}]}`, "unknown word")
	f(`{limits: [{rate: 1/s, when: {header: {x a: b}}}]}`, "not the name of a header field")
	f(`{limits: [{rate: 1/s, when: {status: 429}}]}`, "no status matches: there is no answer yet")
	f(`{limits: [{rate: 1/s, when: {all: [{user: a}, {not: {status: 5xx}}]}}]}`, "no status matches")
	f(`{limits: [{rate: 1/s}], exempt: {status: 404}}`, "no status matches")
	f(`{limits: [{rate: 1/s, index: "A*"}]}`, `"A*" matches no index, since their names are in lower case, only an alias may; for indices write "a*"`)
	f(`{limits: [{rate: 1/s, index: [a, "logs-B"]}]}`, `for indices write "logs-b"`)
	f(`{limits: [{rate: 1/s, key: [index], overrides: [{key: Logs, rate: 2/s}]}]}`, `for indices write "logs"`)
	f(`{mode: dry, limits: [{rate: 1/s}]}`, "not one of enforce, shadow, off")
	f(`{on_limit: drop, limits: [{rate: 1/s}]}`, "not one of reject, wait")
	f(`{max_keys: 10, limits: [{rate: 1/s}]}`, "at least 1000")
	f(`{limits: [{rate: 1/s, brust: 3}]}`, `did you mean "burst"?`)
}

func TestDefaultBurst(t *testing.T) {
	f := func(limit string, want int) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, "- rate_limit: {"+limit+"}")
			if n := g.passes(want+1, get("/")); n != want {
				t.Errorf("%s: %d pass at once, want %d", limit, n, want)
			}
		})
	}
	f(`rules: [{pattern: /, max_qps: 100}]`, 100)
	f(`rules: [{pattern: /, max_qps: 2.5}]`, 2)
	f(`rules: [{pattern: /, max_qps: 0.5}]`, 1)
	f(`rules: [{pattern: /, max_qps: 3, burst: 7}]`, 7)
	f(`limits: [{rate: 600/m}]`, 10)
	f(`limits: [{rate: 1/10s}]`, 1)
	f(`limits: [{rate: 7/35ms}]`, 200)
}

func TestExamplesLoad(t *testing.T) {
	for _, e := range RateLimit().Examples {
		if _, p := build(t, e.YAML, func(*rateLimit) {}); len(p.Sorted()) > 0 {
			t.Errorf("%s: %v", e.Title, p.Sorted())
		}
	}
}

func TestStopWithoutStart(t *testing.T) {
	f := &rateLimit{}
	f.Stop()
	f.Stop()
}

// TestConcurrently serves one flow from many goroutines: no budget is spent twice.
func TestConcurrently(t *testing.T) {
	g := newGateway(t, classic)
	var wg sync.WaitGroup
	passed := make([]int, 4)
	flow := g.flow
	for i := range passed {
		wg.Go(func() {
			for n := range 500 {
				_ = flow.Serve(exchange("GET", fmt.Sprintf("/i%d,medcl/_search", n)))
				if flow.Serve(exchange("GET", "/medcl/_search")) == nil {
					passed[i]++
				}
			}
		})
	}
	start := time.Now()
	wg.Wait()
	sum := 0
	for _, n := range passed {
		sum += n
	}
	if most := 3 + int(time.Since(start).Seconds()*3) + 1; sum < 3 || sum > most {
		t.Errorf("%d passed, want 3 to %d", sum, most)
	}
}

// manyRules is a filter with n rules by index.
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("- rate_limit:\n    rules:\n")
	for i := range n - 1 {
		fmt.Fprintf(&b, "    - {pattern: '/(?P<index>index-%04d)/_search', group: index, max_qps: 1000000000}\n", i)
	}
	b.WriteString("    - {pattern: '/(?P<index>.*?)/_search', group: index, max_qps: 1000000000}\n")
	return b.String()
}

func TestSeenPathAllocates(t *testing.T) {
	if raced {
		t.Skip("sync.Pool forgets under the race detector")
	}
	f := func(filters, target string) {
		t.Helper()
		g := newGateway(t, filters)
		x := exchange("GET", target, "Host", "ES.example:9200", "x-team", "search")
		x.Request.User = []byte("ann")
		if n := testing.AllocsPerRun(1000, func() {
			if err := g.flow.Serve(x); err != nil {
				t.Fatal(err)
			}
			x.Conclude()
			x.Response.Header.Reset()
		}); n != 0 {
			t.Errorf("%s: %v allocations", target, n)
		}
	}
	f(manyRules(1000), "/index-0500/_search")
	f(`- rate_limit: {limits: [{key: [ip, user, index, api, class, host, "header:x-team"], index: "*", rate: 1000000000/s}]}`,
		"/a,%62,c*/_search")
}

func TestRefusalAllocates(t *testing.T) {
	if raced {
		t.Skip("sync.Pool forgets under the race detector")
	}
	g := newGateway(t, classic)
	x := exchange("GET", "/medcl/_search")
	g.passes(3, func(int) *flows.Exchange { return x })
	if n := testing.AllocsPerRun(1000, func() { _ = g.flow.Serve(x) }); n != 0 {
		t.Errorf("%v allocations for a refusal", n)
	}
}

const byIndexLimit = `- rate_limit: {limits: [{key: [index], rate: 1000000000/s}]}`

// nameHundred asks for a hundred indices.
func nameHundred(g *gateway) {
	for i := range 100 {
		_ = g.serve(exchange("GET", fmt.Sprintf("/logs-%d/_search", i)))
	}
}

// TestPatternsAllocateNothing holds that what a pattern counts for is worked out once, not for each request.
func TestPatternsAllocateNothing(t *testing.T) {
	if raced {
		t.Skip("sync.Pool forgets under the race detector")
	}
	g := newGateway(t, byIndexLimit)
	nameHundred(g)
	for _, target := range []string{"/logs-*/_search", "/logs-1/_search"} {
		x := exchange("GET", target)
		if n := testing.AllocsPerRun(1000, func() {
			_ = g.flow.Serve(x)
			x.Conclude()
			x.Response.Header.Reset()
		}); n != 0 {
			t.Errorf("%s: %v allocations", target, n)
		}
	}
}

// TestRollIsOfKeys holds that names are remembered only where they tell whose budget a pattern uses.
func TestRollIsOfKeys(t *testing.T) {
	f := func(limits string, want bool) {
		t.Helper()
		g := newGateway(t, "- rate_limit: {limits: ["+limits+"]}")
		nameHundred(g)
		families, err := g.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := false
		for _, family := range families {
			got = got || family.GetName() == "weir_limit_indices"
		}
		if got != want {
			t.Errorf("%s: names are remembered: %v", limits, got)
		}
	}
	f(`{rate: 1/s}`, false)
	f(`{key: [global], index: "logs-*", rate: 1/s}`, false)
	f(`{key: [global], index: "logs-*", rate: 1/s}, {key: [ip, index], rate: 1/s}`, true)
}

func BenchmarkServe(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("rules/%d", n), func(b *testing.B) {
			g := newGateway(b, manyRules(n))
			x := exchange("GET", "/index-0005/_search")
			b.ReportAllocs()
			for b.Loop() {
				_ = g.flow.Serve(x)
				x.Conclude()
				x.Response.Header.Reset()
			}
		})
	}
	for _, target := range []string{"/logs-1/_search", "/logs-*/_search"} { // the pattern counts for a hundred names
		b.Run("index"+target, func(b *testing.B) {
			g := newGateway(b, byIndexLimit)
			nameHundred(g)
			x := exchange("GET", target)
			b.ReportAllocs()
			for b.Loop() {
				_ = g.flow.Serve(x)
				x.Conclude()
				x.Response.Header.Reset()
			}
		})
	}
	b.Run("of an index", func(b *testing.B) {
		g := newGateway(b, `- rate_limit: {limits: [{index: "logs-*", rate: 1000000000/s}]}`)
		nameHundred(g)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			x := exchange("GET", "/logs-1,logs-2,logs-3*/_search")
			for pb.Next() {
				_ = g.flow.Serve(x)
				x.Conclude()
				x.Response.Header.Reset()
			}
		})
	})
	b.Run("refused", func(b *testing.B) {
		g := newGateway(b, `- rate_limit: {limits: [{rate: 1/s}]}`)
		x := exchange("GET", "/")
		b.ReportAllocs()
		for b.Loop() {
			_ = g.flow.Serve(x)
		}
	})
}

// as makes exchanges of a user, or without one.
func as(user string) func(int) *flows.Exchange {
	return func(int) *flows.Exchange {
		x := exchange("GET", "/i/_search")
		if user != "" {
			x.Request.User = []byte(user)
		}
		return x
	}
}

func TestOverrides(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		const filter = `
- rate_limit:
    limits:
      - {name: a, key: [user], rate: 2/h, burst: 2, overrides: [{key: loader, rate: 5/h, burst: 5}, {key: free}]}
      - {name: b, key: [user, api], rate: 9/h, burst: 9, overrides: [{key: [bob, search], rate: 1/h}]}
`
		g := newGateway(t, filter)
		f := func(user string, want int) {
			t.Helper()
			if n := g.passes(12, as(user)); n != want {
				t.Errorf("%d of %s's passed, want %d", n, user, want)
			}
		}
		f("ann", 2)
		f("loader", 5)
		f("free", 9)
		f("bob", 1)
		g.load(strings.Replace(filter, "rate: 5/h, burst: 5", "rate: 6/h, burst: 6", 1))
		f("ann", 0)    // another key's override is not its business
		f("loader", 4) // that are left of b
	})
}

func TestMissing(t *testing.T) {
	f := func(missing string, want int) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, `- rate_limit: {limits: [{name: a, key: [user], rate: 2/h, burst: 2`+missing+`}]}`)
			if n := g.passes(5, as("")); n != want {
				t.Errorf("%q: %d of 5 without a user passed, want %d", missing, n, want)
			}
			if n := g.passes(5, as("ann")); n != 2 {
				t.Errorf("%q: %d of 5 of a user passed, want 2", missing, n)
			}
		})
	}
	f("", 2)
	f(", missing: anonymous", 2)
	f(", missing: skip", 5)
	f(", missing: reject", 0)
}

func TestExempt(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {exempt: {any: [{api: [info, ping]}, {user: probe}]}, limits: [{key: [global], rate: 1/h}]}`)
		if n := g.passes(5, get("/")) + g.passes(5, as("probe")); n != 10 {
			t.Errorf("%d of 10 exempt requests passed", n)
		}
		if n := g.passes(5, as("ann")); n != 1 {
			t.Errorf("%d of 5 others passed, want 1", n)
		}
	})
}

// TestPercent holds that a limit is enforced for its share of the keys, always the same ones, and counts for the others.
func TestPercent(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		const filter = `- rate_limit: {percent: 25%, limits: [{name: a, key: [user], rate: 1/h}, {name: b, key: [user], rate: 2/h, burst: 2}]}`
		g := newGateway(t, filter)
		limited := map[int]bool{}
		for i := range 1000 {
			limited[i] = g.passes(2, as(fmt.Sprint("user-", i))) == 1
		}
		n := 0
		for _, l := range limited {
			if l {
				n++
			}
		}
		if n < 200 || n > 300 {
			t.Errorf("the limit is enforced for %d of 1000 users, want about 250", n)
		}
		labels := map[string]string{"limit": "a", "outcome": "would_refuse"}
		if got := g.metric("weir_limit_decisions_total", labels); got != float64(1000-n) {
			t.Errorf("%v requests counted that would be refused, want %d", got, 1000-n)
		}
		g.load(strings.Replace(filter, "25%", "26%", 1))
		for i := range 1000 {
			if limited[i] && g.passes(1, as(fmt.Sprint("user-", i))) != 0 {
				t.Fatalf("user %d is not limited any more", i)
			}
		}
	})
}

// TestForgedAddress holds that a caller does not get another budget by what it says of its address; whom to believe is for
// the entry to say.
func TestForgedAddress(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{key: [ip], rate: 1/h, burst: 7}, {key: [identity], rate: 1/h, burst: 9}]}`)
		if n := g.passes(1000, func(i int) *flows.Exchange {
			forged := fmt.Sprintf("10.%d.%d.%d", i, i, i)
			return exchange("GET", "/", "X-Forwarded-For", forged, "Forwarded", "for="+forged, "X-Real-IP", forged)
		}); n != 7 {
			t.Errorf("%d of 1000 with forged addresses passed, want 7", n)
		}
	})
}

// TestMoreSelectors is TestSelectors for those that credentials, cookies and the like are taken apart for.
func TestMoreSelectors(t *testing.T) {
	f := func(key string, a, b func(x *flows.Exchange), shared bool) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, `- rate_limit: {limits: [{key: ["`+key+`"], rate: 1/h}]}`)
			for i, change := range []func(*flows.Exchange){a, b} {
				x := exchange("GET", "/i/_search?a=1&b=%32")
				change(x)
				if refused := g.serve(x) != nil; refused != (i == 1 && shared) {
					t.Errorf("key %s: request %d refused %v, shared should be %v", key, i, refused, shared)
				}
			}
		})
	}
	field := func(name, value string) func(*flows.Exchange) {
		return func(x *flows.Exchange) { x.Request.Header.AddString(name, value) }
	}
	from := func(ip string) func(*flows.Exchange) {
		return func(x *flows.Exchange) { x.Request.ClientIP = netip.MustParseAddr(ip) }
	}
	to := func(target string) func(*flows.Exchange) {
		return func(x *flows.Exchange) { *x = *exchange("GET", target) }
	}
	key := func(text string) func(*flows.Exchange) {
		return field("Authorization", "ApiKey "+base64.StdEncoding.EncodeToString([]byte(text)))
	}
	user := func(name string) func(*flows.Exchange) {
		return func(x *flows.Exchange) { x.Request.User = []byte(name) }
	}
	f("api_key", key("id:secret"), key("id:other secret"), true)
	f("api_key", key("id:secret"), key("id2:secret"), false)
	f("api_key", field("Authorization", "ApiKey !"), field("Authorization", "Bearer x"), true)
	f("identity", key("id:secret"), key("id:other secret"), true)
	f("identity", key("ann:x"), user("ann"), false)
	f("identity", user("ann"), user("ann"), true)
	f("identity", from("192.0.2.7"), from("192.0.2.7"), true)
	f("identity", from("192.0.2.7"), from("192.0.2.8"), false)
	f("ip/24", from("192.0.2.7"), from("192.0.2.8"), true)
	f("ip/24", from("192.0.2.7"), from("192.0.3.8"), false)
	f("ip/24/48", from("2001:db8:1:2::1"), from("2001:db8:1:3::1"), true)
	f("ip/24/48", from("2001:db8:1:2::1"), from("2001:db8:2:3::1"), false)
	f("ip/24", from("2001:db8:1:2::1"), from("2001:db8:1:3::1"), false)
	f("cookie:sid", field("Cookie", "a=b; sid=7"), field("Cookie", "sid=7; c=d"), true)
	f("cookie:sid", field("Cookie", "sid=7"), field("Cookie", "sid=8"), false)
	f("cookie:sid", field("Cookie", "xsid=7"), field("Cookie", "xsid=8"), true)
	f("query:a", to("/?a=1&b=2"), to("/?b=3&a=1"), true)
	f("query:b", to("/?a=1&b=2"), to("/?b=%32"), true)
	f("path", to("/i/_search"), to("//i/%5Fsearch"), true)
	f("path", to("/i/_search"), to("/i/_count"), false)
	f("method", to("/i/_search"), to("/"), true)
}

// seats returns the filters that are at work, in no order.
func (g *gateway) seats() []explainer {
	var out []explainer
	for _, s := range flows.Kept[*seat](g.keeper) {
		if f := s.current(); f != nil {
			out = append(out, f)
		}
	}
	return out
}

// TestTimelineOfTheGuide holds that docs/limits.md tells the truth about when requests pass.
func TestTimelineOfTheGuide(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{key: [global], rate: 2/s, burst: 4}]}`)
		now := time.Duration(0)
		f := func(at time.Duration, requests, passes int) {
			t.Helper()
			<-time.After(at - now)
			now = at
			if n := g.passes(requests, get("/")); n != passes {
				t.Errorf("%d of %d passed after %s, want %d", n, requests, at, passes)
			}
		}
		f(0, 5, 4)
		f(500*time.Millisecond, 2, 1)
		f(time.Second, 1, 1)
		f(3500*time.Millisecond, 9, 4)
	})
}
