package flows_test

import (
	"strings"
	"testing"

	"weir/flows"
	"weir/flows/flowstest"
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
		_, body := g.Dial().Send("GET /x HTTP/1.1\nHost: h\n\n").Answer()
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
		b, _, p := flowstest.Build(testRegistry(nil), "flow: [{name: a, filter: [{answer: {when: {"+condition+"}}}]}, {name: b}]")
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		x := flows.Explaining(method, target)
		x.Response.Status, x.Trace.Flow = status, flow
		if got := b.Flow("a", nil).Meets(0, x); got != want {
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
	f("index: logs-*", "GET", "/logs-1,logs-2/_search", 0, "", true)
	f("index: logs-*", "GET", "/logs-1,users/_search", 0, "", false)
	f("index: logs-*", "GET", "/_search", 0, "", false)
	f("index: logs-*", "GET", "/_search?routing=a", 0, "", false)
	f("index: logs-*", "GET", "/_search?index=logs-1,%6Cogs-2", 0, "", true)
	f("index: logs-*", "GET", "/_search?index=logs-1,users", 0, "", false)
	f("index: logs-*", "GET", "/_search?index=logs-1&ind%65x=users", 0, "", false)
	f("index: logs-*", "GET", "/users/_search?index=logs-1", 0, "", false)
	f("index: logs-*", "GET", "/logs-1/_search?index=users", 0, "", true)
	f("index: logs-*", "GET", "//_search?index=logs-1", 0, "", false)
	f("index: logs-*", "GET", "/,/_search?index=logs-1", 0, "", false)
	f("index: logs-*", "GET", "/_no/_such/_api?index=logs-1", 0, "", false)
	f("flow: b", "GET", "/", 0, "a,b", true)
	f("flow: b", "GET", "/", 0, "a,bb", false)
}

// TestBrokenRuleMatchesNothingMore: what cannot be understood of a rule must not make later ones unreachable.
func TestBrokenRuleMatchesNothingMore(t *testing.T) {
	for _, broken := range []string{"pattern: x", "when: {clas: write}", "api: serch", "method: PSOT", "index: []", "when: {header: {a b: c}}"} {
		_, _, p := flowstest.Build(testRegistry(nil), `
flow: [{name: main, filter: [{answer: {}}]}]
router: [{name: default, rules: [{`+broken+`, flow: main}, {pattern: /a, flow: main}]}]
`)
		if errs, warnings := p.Count(); errs != 1 || warnings != 0 {
			t.Errorf("%s: %v", broken, p.Sorted())
		}
	}
}

type repeater struct{}

func (repeater) Serve(*flows.Exchange, flows.Handler) error { return nil }
func (repeater) Repeats()                                   {}

// A tracing flow that sends requests would make every write twice.
func TestTracingFlowsSendNothing(t *testing.T) {
	reg := testRegistry(nil)
	flows.Register(reg, flows.Factory[struct{}]{
		Name: "send", Default: func() struct{} { return struct{}{} },
		Build: func(*flows.Builder, struct{}) flows.Filter { return repeater{} },
	})
	f := func(tracing, want string) {
		t.Helper()
		_, _, p := flowstest.Build(reg, `
flow:
  - {name: main, filter: [{send: {}}]}
  - {name: log, filter: [{answer: {}}]}
router: [{name: default, default_flow: main, tracing_flow: `+tracing+`}]
`)
		err := p.Err()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", tracing, err)
		}
	}
	f("log", "")
	f("main", "test.yml:5:60: router default: flow main cannot trace")
}
