package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// A cluster that stands under a path of its own is mounted under another one: whole segments are put in the place of whole
// segments, and what follows stays as it is (elastic/elasticsearch#22913, elastic/kibana#2849).
func TestMountBeforeABasePath(t *testing.T) {
	var mu sync.Mutex
	var seen []string // targets of marked requests
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("X-Mark") != "" {
			mu.Lock()
			seen = append(seen, req.RequestURI)
			mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasPrefix(req.RequestURI, "/cluster1/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Location", "/i/_doc/orders%2F17")
		_, _ = io.WriteString(w, `{"cluster_uuid":"base","version":{"number":"7.17.28"}}`)
	}))
	t.Cleanup(node.Close)
	for _, slash := range []string{"", "/"} {
		g := newPlainSite(t, node.URL+"/cluster1"+slash, "      - mount: {path: /es}\n").start()
		awaitNodes(t, g, 1)
		f := func(target, want string) {
			t.Helper()
			mu.Lock()
			seen = nil
			mu.Unlock()
			conn := dial(t, g.addr)
			conn.send(t, request("GET", target, "", "X-Mark: 1"))
			r, err := conn.readReply(false)
			if err != nil {
				t.Fatalf("%s: %v", target, err)
			}
			mu.Lock()
			got := strings.Join(seen, " ")
			mu.Unlock()
			status, location := "HTTP/1.1 200 ", "/es/i/_doc/orders%2F17"
			switch {
			case strings.Contains(target, ".."):
				status, location = "HTTP/1.1 400 ", ""
			case want == "":
				status, location = "HTTP/1.1 503 ", ""
			}
			if got != want || !strings.HasPrefix(r.line, status) || r.field("location") != location {
				t.Errorf("%s came to the node as %q, want %q, and was answered with %s, Location %q", target, got, want, r.line, r.field("location"))
			}
		}
		f("/es", "/cluster1/")
		f("/es/", "/cluster1/")
		f("/es?pretty", "/cluster1/?pretty")
		f("/es/esindex/_search", "/cluster1/esindex/_search")
		f("/es/es/_doc/1", "/cluster1/es/_doc/1")
		f("/es/cluster1/_search", "/cluster1/cluster1/_search")
		f("/es/%3Cl-%7Bnow%2Fd%7D%3E", "/cluster1/%3Cl-%7Bnow%2Fd%7D%3E")
		f("/es/i/_doc/orders%2F17?q=%zz", "/cluster1/i/_doc/orders%2F17?q=%zz")
		f("/es//_bulk", "/cluster1//_bulk")
		f("http://node.test:9200/es/a", "/cluster1/a")
		f("/esindex/_search", "")
		f("/ES/_search", "")
		f("/e%73/_search", "")
		f("/cluster1/_search", "")
		f("/", "")
		f("/es/..%2Fcluster2/_search", "") // what leads out
		f("/es/../x", "")
	}
}
