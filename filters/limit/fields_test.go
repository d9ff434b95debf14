package limit

import (
	"fmt"
	"testing"
	"time"

	"weir/flows"
	"weir/internal/simtime"
	"weir/internal/wire"
)

// told returns what an answer or a refusal says of limits.
func told(g *gateway, x *flows.Exchange) string {
	g.t.Helper()
	var fields []wire.Field
	if e := g.serve(x); e != nil {
		fields = e.Fields
	} else {
		fields = x.Response.Header.Fields()
	}
	out := ""
	for _, f := range fields {
		if string(f.Name) != "Content-Type" {
			out += fmt.Sprintf("%s: %s\n", f.Name, f.Value)
		}
	}
	return out
}

func TestFields(t *testing.T) {
	f := func(params string, wants ...string) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, "- rate_limit: {"+params+"}")
			for i, want := range wants {
				if got := told(g, exchange("GET", "/i/_search")); got != want {
					t.Errorf("%s: request %d is told\n%swant\n%s", params, i+1, got, want)
				}
			}
		})
	}
	policy := `RateLimit-Policy: "a";q=2;w=20` + "\n"
	f(`limits: [{name: a, rate: 1/10s, burst: 2}]`,
		policy+`RateLimit: "a";r=1;t=10`+"\n", policy+`RateLimit: "a";r=0;t=10`+"\n", policy+`RateLimit: "a";r=0;t=10`+"\n")
	f(`limits: [{name: a, rate: 1/10s, burst: 2}], headers: legacy`,
		"X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 10\n",
		"X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 10\n",
		"X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 10\n")
	f(`limits: [{name: a, rate: 1/10s, burst: 2}], headers: both`,
		policy+`RateLimit: "a";r=1;t=10`+"\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 10\n")
	f(`limits: [{name: a, rate: 1/10s}], headers: off`, "", "")
	f(`limits: [{name: a, rate: 1/10s}], mode: shadow`, "", "")
	f(`limits: [{name: wide, rate: 100/s}, {name: "n\"är", rate: 3/s}]`, `RateLimit-Policy: "n\"??r";q=3;w=1`+"\n"+`RateLimit: "n\"??r";r=2;t=1`+"\n")
	f(`limits: [{name: a, unit: took, rate: 20s/s}]`, `RateLimit-Policy: "a";q=20000;w=1;qu="weir-milliseconds"`+"\n"+`RateLimit: "a";r=20000;t=0`+"\n")
	f(`limits: [{name: a, unit: response_bytes, rate: 1mb/s}]`, `RateLimit-Policy: "a";q=1048576;w=1;qu="content-bytes"`+"\n"+`RateLimit: "a";r=1048576;t=0`+"\n")
	f(`limits: [{name: a, key: [ip], rate: 1/s, overrides: [{key: 192.0.2.1, rate: 5/s}]}]`, `RateLimit-Policy: "a";q=5;w=1`+"\n"+`RateLimit: "a";r=4;t=1`+"\n")
}

// TestToldIsTrue holds that who comes back when it is told to passes.
func TestToldIsTrue(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{name: a, rate: 2/7s, burst: 3}], status: 503, type: slow_down_exception, message: later}`)
		g.passes(3, get("/"))
		err := g.flow.Serve(exchange("GET", "/"))
		if err == nil || err.Error() != "503 slow_down_exception: later" {
			t.Fatalf("refusal %v", err)
		}
		<-time.After(4 * time.Second) // 3.5, rounded up
		if e := g.serve(exchange("GET", "/")); e != nil {
			t.Errorf("refused after waiting as told: %v", e)
		}
	})
}

// TestDebtIsTold holds that who passes and leaves a debt is told when one more request passes, also where another limit has
// nothing left either.
func TestDebtIsTold(t *testing.T) {
	f := func(limits string) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, "- rate_limit: {limits: ["+limits+"]}")
			x := exchange("GET", "/i/_count")
			if e := g.serve(x); e != nil {
				t.Fatal(e)
			}
			if got := string(x.Response.Header.Get("ratelimit")); got != `"debt";r=0;t=4` {
				t.Errorf("%s: told %s, want that one more passes in 4 s", limits, got)
			}
			if e := g.serve(exchange("GET", "/i/_search")); e == nil || e.RetryAfter != 4*time.Second {
				t.Errorf("%s: refusal %v, want one for 4 s", limits, e)
			}
			<-time.After(4 * time.Second)
			if e := g.serve(exchange("GET", "/i/_search")); e != nil {
				t.Errorf("%s: refused after waiting as told: %v", limits, e)
			}
		})
	}
	const debt = "{name: debt, rate: 2/s, burst: 4, cost: {count: 10}}"
	f(debt)
	f("{name: one, rate: 1/s}, " + debt)
	f(debt + ", {name: one, rate: 1/s}")
}
