package e2e

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/elastic/estest"
)

// Labels come from closed sets: whatever a scanner asks for, /metrics does not grow (openshift/elasticsearch-operator#429,
// linkerd/linkerd2#604).
func TestRandomPathsLeaveMetricsAsTheyAre(t *testing.T) {
	paths := soak(20_000, 100_000)
	c := estest.New(t, estest.Options{})
	s := newSite(t, c.URL())
	s.build = buildUnraced // what is counted are series
	g := s.start()
	awaitNodes(t, g, 1)
	const connections, batch = 8, 50
	scan := func(paths int) {
		var all sync.WaitGroup
		for worker := range connections {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(worker)))
				if err := scanPaths(g.addr, random, paths/connections, batch, c.Forget); err != nil {
					t.Errorf("worker %d: %v", worker, err)
				}
			})
		}
		all.Wait()
	}
	scan(1_000) // series that begin with the first request of their kind are there
	before := g.metrics()
	scan(paths)
	after := g.metrics()
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("random paths made the series %s", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("/metrics has %d series, had %d", len(after), len(before))
	}
	if n := after.sum("weir_http_requests_total") - before.sum("weir_http_requests_total"); n < float64(paths) {
		t.Errorf("%v requests were counted, want %d", n, paths)
	}
}

// scanPaths sends requests with random paths over one connection, in batches without waiting for answers in between.
func scanPaths(addr string, random *rand.Rand, paths, batch int, done func()) error {
	methods := []string{"GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"}
	apis := []string{"_search", "_doc/1", "_count", "_bulk", "_cat/indices", "_cluster/health", "_scan", "_search/scroll", ""}
	c, err := dialWire(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	w := bufio.NewWriter(c)
	for sent := 0; sent < paths; sent += batch {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		asked := make([]string, batch)
		for i := range asked {
			asked[i] = methods[random.IntN(len(methods))]
			path := fmt.Sprintf("/x%x/%s", random.Uint64(), apis[random.IntN(len(apis))])
			if random.IntN(2) == 0 {
				path = fmt.Sprintf("/%x/%x?a%x=1", random.Uint32(), random.Uint64(), random.Uint32())
			}
			fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: h%x.test\r\nX-Opaque-Id: %x\r\nContent-Length: 0\r\n\r\n",
				asked[i], path, random.Uint32(), random.Uint64())
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for i, method := range asked {
			status, _, _, err := c.read(method == http.MethodHead)
			if err != nil || status == 0 {
				return fmt.Errorf("request %d (%s): %w", sent+i, strings.ToLower(method), err)
			}
		}
		done()
	}
	return nil
}
