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

// A request that moves to another node takes its whole body along, however it was sent; one whose body is gone does not move
// (caddyserver/caddy#7547, golang/go#16036).
func TestRequestsMoveWithTheirBodies(t *testing.T) {
	const search, posted = "/i/_search", "/i/_doc"
	refuse := func(n *estest.Node) { n.Stop() }
	swallow := func(n *estest.Node) { n.Inject(estest.Fault{Method: "POST", Cut: estest.ResetAfterRequest}) }
	f := func(path string, size int, chunked bool, trouble func(*estest.Node), moves bool) {
		t.Helper()
		es := estest.New(t, estest.Options{Nodes: 2})
		g := flowstest.New(t, registry(), one(endpoints(es.URLs()...), ", balancer: first"),
			flowstest.Options{Entry: func(c *flows.EntryConfig) { c.Explain = true }})
		ask(t, es.Node(0).Addr(), request("PUT", "/i", ""))
		trouble(es.Node(0))
		body := []byte(`{"query":{"match_all":{}},"stats":["` + strings.Repeat("x", size) + `"]}`)
		name := fmt.Sprintf("%s with %d bytes, chunked %v", path, len(body), chunked)
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-Weir-Explain: 1\r\n", path)
		raw := fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
		if chunked {
			half := len(body) / 2
			raw = fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", head, half, body[:half], len(body)-half, body[half:])
		}
		resp, text := ask(t, g.Addr(), raw)
		var got []*estest.Call
		for _, c := range es.Node(1).Calls() {
			if c.Path == path {
				got = append(got, c)
			}
		}
		if !moves {
			if resp.StatusCode != 502 || len(got) > 0 {
				t.Errorf("%s: status %d %s, sent %d times to the other node, want 502 and none", name, resp.StatusCode, text, len(got))
			}
			return
		}
		if len(got) != 1 || !bytes.Equal(got[0].Body, body) || resp.StatusCode/100 != 2 || resp.Header.Get("X-Weir-Attempts") != "2" {
			t.Fatalf("%s: status %d %.300s after %s attempts, sent %d times to the other node", name, resp.StatusCode, text, resp.Header.Get("X-Weir-Attempts"), len(got))
		}
		if length := got[0].Header.Get("Content-Length"); length != fmt.Sprint(len(body)) && (!chunked || length != "") {
			t.Errorf("%s: sent on with the length %q", name, length)
		}
	}
	const short, long = 200 << 10, 3 << 20 // kept, so that it can be sent again, and not
	for _, chunked := range []bool{false, true} {
		for _, size := range []int{short, long} {
			f(search, size, chunked, refuse, true)
			f(posted, size, chunked, refuse, true)
			f(search, size, chunked, swallow, size == short)
			f(posted, size, chunked, swallow, false)
		}
	}
}
