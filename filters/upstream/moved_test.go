package upstream_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"weir/elastic/estest"
	"weir/flows"
	"weir/flows/flowstest"
)

// A request that moves to another node takes its whole body along, however it was sent and whoever has read it before; one whose
// body is gone does not move (caddyserver/caddy#7547, golang/go#16036).
func TestRequestsMoveWithTheirBodies(t *testing.T) {
	const search, posted = "/i/_search", "/i/_doc"
	refuse := func(n *estest.Node) { n.Stop() }
	swallow := func(n *estest.Node) { n.Inject(estest.Fault{Method: "POST", Cut: estest.ResetAfterRequest}) }
	answer := func(status int) func(*estest.Node) {
		return func(n *estest.Node) { n.Inject(estest.Fault{Method: "POST", Status: status}) }
	}
	reg := registry()
	flows.Register(reg, flows.Factory[struct{}]{
		Name: "read", Default: func() struct{} { return struct{}{} },
		Build: func(*flows.Builder, struct{}) flows.Filter { return reader{} },
	})
	// status is what the client gets: success if the request moves.
	f := func(before, path string, size int, framing string, trouble func(*estest.Node), status int) {
		t.Helper()
		es := estest.New(t, estest.Options{Nodes: 2})
		g := flowstest.New(t, reg, "elasticsearch: [{name: up"+endpoints(es.URLs()...)+"}]\n"+flowstest.Main(before+"{elasticsearch: {elasticsearch: up, balancer: first}}"),
			flowstest.Options{Entry: func(c *flows.EntryConfig) { c.Explain = true }})
		ask(t, es.Node(0).Addr(), request("PUT", "/i", ""))
		trouble(es.Node(0))
		body := []byte(`{"query":{"match_all":{}},"stats":["` + strings.Repeat("x", size) + `"]}`)
		name := fmt.Sprintf("%s%s with %d bytes, %s", before, path, len(body), framing)
		c := g.Dial().Send(fmt.Sprintf("POST %s HTTP/1.1\nHost: a\nContent-Type: application/json\nX-Weir-Explain: 1\n", path))
		switch framing {
		case "length":
			c.Send(fmt.Sprintf("Content-Length: %d\n\n%s", len(body), body))
		case "chunked":
			half := len(body) / 2
			c.Send(fmt.Sprintf("Transfer-Encoding: chunked\n\n%x\n%s\n%x\n%s\n0\n\n", half, body[:half], len(body)-half, body[half:]))
		case "asked for":
			c.Send(fmt.Sprintf("Expect: 100-continue\nContent-Length: %d\n\n", len(body)))
			if head := readHead(c.R); head != "HTTP/1.1 100 Continue\r\n\r\n" {
				t.Fatalf("%s: %q", name, head)
			}
			c.Send(string(body))
		}
		resp, text := c.Answer()
		var got []*estest.Call
		for _, c := range es.Node(1).Calls() {
			if c.Path == path {
				got = append(got, c)
			}
		}
		if resp.StatusCode != status {
			t.Errorf("%s: status %d %.300s, want %d", name, resp.StatusCode, text, status)
		}
		if status/100 != 2 {
			if len(got) > 0 {
				t.Errorf("%s: sent %d times to the other node", name, len(got))
			}
			return
		}
		if len(got) != 1 || !bytes.Equal(got[0].Body, body) || resp.Header.Get("X-Weir-Attempts") != "2" {
			t.Fatalf("%s: %s attempts, sent %d times to the other node", name, resp.Header.Get("X-Weir-Attempts"), len(got))
		}
		if length := got[0].Header.Get("Content-Length"); length != fmt.Sprint(len(body)) && (framing != "chunked" || length != "") {
			t.Errorf("%s: sent on with the length %q", name, length)
		}
	}
	const short, long = 200 << 10, 1200 << 10 // kept, so that it can be sent again, and not, unless a filter has read it
	for _, framing := range []string{"length", "chunked", "asked for"} {
		for _, before := range []string{"", "{read: {}}, "} {
			f(before, search, short, framing, refuse, 200)
			f(before, posted, short, framing, refuse, 201)
			f(before, search, long, framing, refuse, 200)
			f(before, posted, long, framing, refuse, 201)
			f(before, search, short, framing, swallow, 200)
			f(before, posted, short, framing, swallow, 502)
			if before == "" {
				f(before, search, long, framing, swallow, 502)
			} else {
				f(before, search, long, framing, swallow, 200)
			}
			f(before, posted, long, framing, swallow, 502)
		}
		for _, status := range []int{429, 502, 503, 504} {
			f("", search, short, framing, answer(status), 200)
			f("", search, long, framing, answer(status), status)
			if status == 429 { // who refuses has done nothing
				f("", posted, short, framing, answer(status), 201)
			} else {
				f("", posted, short, framing, answer(status), status)
			}
			f("", posted, long, framing, answer(status), status)
		}
	}
}

// A reader reads request bodies, as filters do that look at them.
type reader struct{}

func (reader) Serve(x *flows.Exchange, next flows.Handler) error {
	if _, err := x.Request.Body.Bytes(100 << 20); err != nil {
		return err
	}
	return next.Serve(x)
}
