package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

// What is found on several real nodes may change although nobody writes, and then is not given from the cache any more.
func TestCacheOfSeveralNodes(t *testing.T) {
	for _, engine := range searchnode.Engines() {
		if !standsForAll(engine) {
			continue
		}
		t.Run(engine, func(t *testing.T) {
			nodes := 2
			if engine == searchnode.Elasticsearch7 {
				nodes = 3 // TestNodesFailInTurn goes on with these
			}
			c := searchtest.ForTest(t, engine, nodes)
			b := putBetween(t, c.URLs()[1])
			g := newPlainSite(t, b.url, "      - cache: {ttl: 200ms, poll_interval: 500ms}\n",
				swap("endpoint: "+b.url, "endpoint: "+b.url+", discovery: {enabled: false}")).start()
			s := &cacheTest{TB: t, cluster: c.URLs()[0], gateway: g}
			t.Run("a copy that refreshes later", s.with((*cacheTest).lateCopy))
			t.Run("a node that is started again", s.with(func(s *cacheTest) { s.startedAgain(c, b) }))
		})
	}
}

// seenWithin is in what time a gateway that polls twice a second sees a change, on a machine that is busy.
const seenWithin = 5 * time.Second

// found returns how many documents a search finds, and what the cache says of it.
func (c *cacheTest) found(base, target string, fields ...string) (int, string) {
	c.Helper()
	a, err := ask(c.Context(), c.gateway.client, http.MethodPost, base+target, `{"track_total_hits":true,"size":3}`, fields...)
	if err != nil {
		c.Fatal(err)
	}
	var found struct {
		Hits struct{ Total struct{ Value int } }
	}
	if err := json.Unmarshal(a.body, &found); err != nil || a.status != http.StatusOK {
		c.Fatalf("%s is answered with %d %s: %v", target, a.status, a.body, err)
	}
	return found.Hits.Total.Value, a.header.Get("Cache-Status")
}

// lateCopy is a replica that goes on to give what was so before a write when the primary has refreshed and polls have seen that.
// What it answers then is forgotten when it has refreshed too.
func (c *cacheTest) lateCopy() {
	const index = "/late"
	c.direct(http.MethodPut, index, `{"settings":{"number_of_shards":1,"number_of_replicas":1,"refresh_interval":"4s","index.routing.allocation.include._name":"n1,n2"}}`)
	written := 0
	until(c, time.Minute, func(context.Context) error {
		c.direct(http.MethodGet, "/_cluster/health"+index+"?wait_for_status=green&timeout=30s", "")
		copies := c.copies(index)
		replica := index + "/_search?preference=" + c.preferring(index, copies["r"])
		for range 2 { // the second time begins when both have just refreshed
			written++
			c.direct(http.MethodPost, index+"/_doc", `{}`)
			var first, last time.Time // outdated answers that were kept
			until(c, 20*time.Second, func(context.Context) error {
				atPrimary, _ := c.found(c.cluster, index+"/_search?preference=_only_nodes:"+copies["p"])
				n, status := c.found(c.gateway.url, replica, "Cache-Control: no-cache")
				if atPrimary == written && n < written && strings.HasSuffix(status, "; stored") {
					last = time.Now()
					if first.IsZero() {
						first = last
					}
				}
				if atReplica, _ := c.found(c.cluster, index+"/_search?preference=_only_nodes:"+copies["r"]); atPrimary < written || atReplica < written {
					return errors.New("the write is not to be seen")
				}
				return nil
			})
			until(c, seenWithin, func(context.Context) error {
				if n, status := c.found(c.gateway.url, replica); n < written {
					return fmt.Errorf("found %d of %d documents after the replica has refreshed: %s", n, written, status)
				}
				return nil
			})
			if last.Sub(first) > time.Second { // in which there were polls
				return nil
			}
		}
		// Copies refresh at the same time: let the replica begin at another.
		for _, n := range []int{0, 1} {
			c.direct(http.MethodPut, index+"/_settings", fmt.Sprintf(`{"index.number_of_replicas":%d}`, n))
		}
		return errors.New("both copies refresh at the same time")
	})
}

// copies returns the nodes of an index of one shard: "p" has the primary and "r" the replica.
func (c *cacheTest) copies(index string) map[string]string {
	c.Helper()
	list := strings.Fields(string(must(c, c.gateway.client, http.MethodGet, c.cluster+"/_cat/shards"+index+"?h=prirep,id", "").body))
	if len(list) != 4 {
		c.Fatalf("copies of %s: %q", index, list)
	}
	return map[string]string{list[0]: list[1], list[2]: list[3]}
}

// preferring returns a preference of a caller's own by which a node answers.
func (c *cacheTest) preferring(index, node string) string {
	c.Helper()
	for i := range 100 {
		preference := fmt.Sprint("mine-", i)
		var chosen struct{ Shards [][]struct{ Node string } }
		body := must(c, c.gateway.client, http.MethodGet, c.cluster+index+"/_search_shards?preference="+preference, "").body
		if err := json.Unmarshal(body, &chosen); err != nil {
			c.Fatal(err)
		}
		if chosen.Shards[0][0].Node == node {
			return preference
		}
	}
	c.Fatalf("no preference leads to %s", node)
	return ""
}

// startedAgain is a node that shows what it had not shown before it was killed, with the counters that it had, while nobody looks.
func (c *cacheTest) startedAgain(cluster *searchnode.Cluster, between *between) {
	const index = "/again"
	c.direct(http.MethodPut, index, `{"settings":{"number_of_shards":1,"number_of_replicas":0,"refresh_interval":-1,"index.routing.allocation.require._name":"n2"}}`)
	c.direct(http.MethodPut, index+"/_doc/1", `{}`)
	until(c, seenWithin, func(context.Context) error {
		if n, status := c.found(c.gateway.url, index+"/_search"); n != 0 || !strings.HasSuffix(status, "detail=proven") {
			return fmt.Errorf("found %d: %s", n, status)
		}
		return nil
	})
	before := c.counters("again")
	between.onAll(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	if err := errors.Join(cluster.Node(1).Kill(), cluster.Node(1).Start(c.Context()), cluster.WaitGreen(c.Context())); err != nil {
		c.Fatal(err)
	}
	if after := c.counters("again"); after != before {
		c.Errorf("counters are %v after the start, and were %v: there is nothing to be confused", after, before)
	}
	between.onAll(nil)
	until(c, 10*time.Second, func(ctx context.Context) error {
		a, err := ask(ctx, c.gateway.client, http.MethodGet, c.gateway.url+index+"/_count", "", "Cache-Control: no-store")
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("the gateway has not found its node again: %d %s", a.status, a.body)
		}
		return err
	})
	known := c.gateway.metrics().sum("weir_generation_polls_total", `outcome="known"`)
	until(c, seenWithin, func(context.Context) error { // before, nothing would be proven, and a node asked
		if now := c.gateway.metrics().sum("weir_generation_polls_total", `outcome="known"`); now < known+2 {
			return errors.New("the counters of the node that was started are not polled")
		}
		return nil
	})
	until(c, seenWithin, func(context.Context) error {
		if n, status := c.found(c.gateway.url, index+"/_search"); n != 1 {
			return fmt.Errorf("found %d: %s", n, status)
		}
		return nil
	})
}
