package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"weir/elastic/estest"
)

// spread are indices enough to stay below the classic file's limit of a hundred searches a second for each.
var spread = func() (names []string) {
	for i := range 10 {
		names = append(names, fmt.Sprint("spread-", i))
	}
	return names
}()

// discoverOften makes a node that has left be found soon after it is back: the next discovery finds it, and by default half a
// minute lies between two.
var discoverOften = swap("          discovery:\n            enabled: true\n", "          discovery:\n            enabled: true\n            interval: 2s\n")

// searchLoad sends searches that are all different.
func searchLoad(tb testing.TB, g *gateway) *load {
	return startLoad(tb, g.addr, 4, 10*time.Millisecond, func(n int) string {
		return fmt.Sprintf("GET /%s/_search?preference=load-%d HTTP/1.1\r\nHost: weir.test\r\n\r\n", spread[n%len(spread)], n)
	})
}

func TestNodesStopUnderLoad(t *testing.T) {
	c := estest.New(t, estest.Options{Nodes: 3})
	fill(t, newClient(t), c.URL(), spread...)
	g := newSite(t, c.URL(), discoverOften).start()
	awaitNodes(t, g, 3)
	l := searchLoad(t, g)
	l.await(100)
	for i, n := range c.Nodes() { // the first is the one that the configuration names
		n.Stop()
		l.last(time.Second)
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		before := len(n.Calls())
		until(t, 30*time.Second, func(context.Context) error {
			searches := 0
			for _, call := range n.Calls()[before:] {
				if call.Path != "/" && call.Path != "/_nodes/http" {
					searches++
				}
			}
			if searches < 10 {
				return fmt.Errorf("node %d got %d searches since it runs again", i, searches)
			}
			return nil
		})
	}
	checkShots(t, l.stop(), every)
}

// awaitNodes waits until the gateway knows n nodes.
func awaitNodes(tb testing.TB, g *gateway, n int) {
	tb.Helper()
	until(tb, 30*time.Second, func(ctx context.Context) error {
		a, err := g.ask(ctx, http.MethodGet, g.adminURL+"/_weir/clusters", "")
		if err != nil {
			return err
		}
		var seen struct {
			Clusters []struct{ Nodes []struct{ Node string } }
		}
		if err := json.Unmarshal(a.body, &seen); err != nil {
			return fmt.Errorf("%s: %w", a.body, err)
		}
		if len(seen.Clusters) != 1 || len(seen.Clusters[0].Nodes) != n {
			return fmt.Errorf("the gateway knows %s, want one cluster of %d nodes", a.body, n)
		}
		return nil
	})
}
