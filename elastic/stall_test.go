package elastic

import (
	"strings"
	"sync"
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

// TestLongCallsAreWaitedFor has nodes work for long, as merging and copying may: each call is sent once and answered when it is done,
// whatever its client is told to expect, and the node that works on it stays in (elastic/elasticsearch#84577).
func TestLongCallsAreWaitedFor(t *testing.T) {
	for _, took := range []time.Duration{130 * time.Second, 20 * time.Minute} {
		bubble(t, 2, "", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer) {
			es.Inject(estest.Fault{Match: func(c *estest.Call) bool { return c.Header.Get("X-Opaque-Id") != "" }, Delay: took, Body: []byte(`{"took":1}`)})
			var all sync.WaitGroup
			long := []string{
				"POST /i/_forcemerge", "POST /_reindex", "POST /i/_update_by_query", "POST /i/_delete_by_query", "PUT /_snapshot/r/s?wait_for_completion=true",
				"POST /i/_shrink/j", "PUT /_enrich/policy/p/_execute", "GET /_tasks/n:1?wait_for_completion=true", "POST /i/_search", "POST /_bulk",
			}
			for _, request := range long {
				all.Go(func() {
					method, target, _ := strings.Cut(request, " ")
					r := call(method, target, "{}\n")
					r.Header.AddString("X-Opaque-Id", request)
					var resp transport.Response
					begun := time.Now()
					if err := k.Do(r, &resp); err != nil || resp.Status != 200 || r.Attempts != 1 || time.Since(begun) != took {
						t.Errorf("%s: status %d, %v, after %s and %d attempts", request, resp.Status, err, time.Since(begun), r.Attempts)
					}
				})
			}
			all.Wait()
			calls := 0
			for _, c := range es.Calls() {
				if c.Header.Get("X-Opaque-Id") != "" {
					calls++
				}
			}
			if calls != len(long) || strings.Contains(logs.String(), "node is out") {
				t.Errorf("%d calls for %d requests\n%s", calls, len(long), logs)
			}
		})
	}
}
