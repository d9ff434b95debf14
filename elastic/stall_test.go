package elastic

import (
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/elastic/transport"
	"weir/internal/wire"
)

// TestReadsOfANodeThatHangs has a node answer nothing for a while. Reads that wait for it go to another node; where there is
// none they wait on, and get their answer when it comes.
func TestReadsOfANodeThatHangs(t *testing.T) {
	f := func(nodes int, want time.Duration) {
		t.Helper()
		bubble(t, nodes, ", discovery: {enabled: false}", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
			const pause = 10 * time.Second
			es.Inject(estest.Fault{Match: func(c *estest.Call) bool { return c.Node == 0 }, Delay: pause})
			for range 2 * nodes { // each node is asked
				r := call("POST", "/_search", "{}")
				r.Cancel = new(wire.Cancel)
				var resp transport.Response
				begun := time.Now()
				if err := k.Do(r, &resp); err != nil || resp.Status != 200 {
					t.Errorf("%d nodes: status %d, %v", nodes, resp.Status, err)
				}
				if took := time.Since(begun); took > want {
					t.Errorf("%d nodes: it took %s", nodes, took)
				}
				resp.Reset()
			}
		})
	}
	f(1, 10*time.Second)
	f(2, 4*time.Second)
}
