package flows

import (
	"strings"
	"testing"
)

func TestFlowThatIsSwitchedOffSaysSo(t *testing.T) {
	f := func(rule, want string) {
		t.Helper()
		text := `
flow:
  - {name: off, enabled: false, filter: [{answer: {}}]}
  - {name: main, filter: [{answer: {text: main}}]}
router: [{name: default, default_flow: main, rules: [{flow: ` + rule + `}]}]
`
		g := newGateway(t, text, testRegistry(nil), nil)
		_, body := g.dial().send("GET /x HTTP/1.1\nHost: h\n\n").answer()
		if !strings.Contains(body, want) {
			t.Errorf("%s: answered %s", rule, body)
		}
	}
	f("off", "flow [off] is switched off")
	f("[off, main]", "main")
}

func TestWordsOfConditionsMeetWhatTheyName(t *testing.T) {
	f := func(condition, method, target string, status int, flow string, want bool) {
		t.Helper()
		b, _, p := build(t, "flow: [{name: a, filter: [{answer: {when: {"+condition+"}}}]}, {name: b}]", testRegistry(nil))
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		x := Explaining(method, target)
		x.Response.Status, x.Trace.Flow = status, flow
		if got := b.flows["a"].Meets(0, x); got != want {
			t.Errorf("{%s}: %v", condition, got)
		}
	}
	f("api: search", "GET", "/a/_search", 0, "", true)
	f("api: unknown", "GET", "/_no/_such/_api", 0, "", true)
	f("api: unknown", "GET", "/a/_search", 0, "", false)
	f("class: [write, search]", "GET", "/a/_search", 0, "", true)
	f("method: get", "GET", "/", 0, "", true)
	f("method: P*", "PUT", "/", 0, "", true)
	f("method: P*", "GET", "/", 0, "", false)
	f("status: 4*", "GET", "/", 404, "", true)
	f("status: 5xx", "GET", "/", 404, "", false)
	f("flow: b", "GET", "/", 0, "a,b", true)
	f("flow: b", "GET", "/", 0, "a,bb", false)
}

// TestBrokenRuleMatchesNothingMore: what cannot be understood of a rule must not make later ones unreachable.
func TestBrokenRuleMatchesNothingMore(t *testing.T) {
	for _, broken := range []string{"pattern: x", "when: {clas: write}", "api: serch", "method: PSOT", "index: []"} {
		_, _, p := build(t, `
flow: [{name: main, filter: [{answer: {}}]}]
router: [{name: default, rules: [{`+broken+`, flow: main}, {pattern: /a, flow: main}]}]
`, testRegistry(nil))
		if errs, warnings := p.Count(); errs != 1 || warnings != 0 {
			t.Errorf("%s: %v", broken, p.Sorted())
		}
	}
}

func TestHostsInRules(t *testing.T) {
	f := func(pattern, host string, want bool) {
		t.Helper()
		x := Explaining("GET", "/", "Host", host)
		c := &subject{key: "host", patterns: hostPatterns([]string{pattern})}
		if got := c.Match(x); got != want {
			t.Errorf("host: %s and Host: %s: %v", pattern, host, got)
		}
	}
	for _, host := range []string{"admin.example", "ADMIN.example", "admin.example:8000", "admin.example.", "Admin.Example.:80"} {
		f("admin.example", host, true)
		f("Admin.Example:9200", host, true)
		f("*.example", host, true)
		f("other.example", host, false)
	}
	f("[::1]", "[::1]:8000", true)
	f("[::1]:9200", "[::1]", true)
	f("admin.example", "xadmin.example", false)
}

type repeater struct{}

func (repeater) Serve(*Exchange, Handler) error { return nil }
func (repeater) Repeats()                       {}

// A tracing flow that sends requests would make every write twice.
func TestTracingFlowsSendNothing(t *testing.T) {
	reg := testRegistry(nil)
	Register(reg, Factory[struct{}]{
		Name: "send", Default: func() struct{} { return struct{}{} },
		Build: func(*Builder, struct{}) Filter { return repeater{} },
	})
	f := func(tracing, want string) {
		t.Helper()
		_, _, p := build(t, `
flow:
  - {name: main, filter: [{send: {}}]}
  - {name: log, filter: [{answer: {}}]}
router: [{name: default, default_flow: main, tracing_flow: `+tracing+`}]
`, reg)
		err := p.Err()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", tracing, err)
		}
	}
	f("log", "")
	f("main", "test.yml:5:60: router default: flow main cannot trace")
}
