package transform

import (
	"fmt"
	"strings"
	"testing"

	"weir/flows"
	"weir/flows/flowstest"
)

func TestSetRequestHeader(t *testing.T) {
	reg := flows.NewRegistry()
	flows.Register(reg, SetRequestHeader())
	f := func(config string, want string, fields ...string) {
		t.Helper()
		_, routers, p := flowstest.Build(reg, flowstest.Main("{set_request_header: {"+config+"}}"))
		if err := p.Err(); err != nil {
			if want == "" || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", config, err, want)
			}
			return
		}
		x := flows.Explaining("GET", "/", fields...)
		_ = routers["default"].Explain(x).Flows[0].Serve(x)
		var got []string
		for _, field := range x.Request.Header.Fields() {
			got = append(got, fmt.Sprintf("%s: %s", field.Name, field.Value))
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: got %s, want %s", config, text, want)
		}
	}
	sent := []string{"Host", "a", "origin", "http://dash.test", "X-A", "1", "x-a", "2", "X-B", "3"}
	f("remove: [Origin]", "Host: a, X-A: 1, x-a: 2, X-B: 3", sent...)
	f("remove: [x-a, ORIGIN, x-none]", "Host: a, X-B: 3", sent...)
	f("headers: {X-A: new, X-C: c}, remove: origin", "Host: a, X-A: new, X-B: 3, X-C: c", sent...)
	f("remove: [X-A], headers: {X-A: new}", "Host: a, origin: http://dash.test, X-B: 3, X-A: new", sent...)

	f("remove: []", "the filter would change nothing")
	f("remove: [host]", "`host` of the cluster")
	f("headers: {authorization: Basic eA==}", "`credentials` of the filter elasticsearch")
	f("remove: [Transfer-Encoding]", "frames the message")
	f("headers: {Content-Length: '1'}", "frames the message")
	f("headers: {Expect: 100-continue}", "Expect ends at the gateway")
	f("headers: {X-A: a, x-a: b}", "X-A and x-a are one field")
	f(`headers: {X-A: "a\r\nb"}`, "cannot be sent as a header field")
	f("remove: ['a b']", "cannot be sent as a header field")
}
