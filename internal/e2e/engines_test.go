package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/estest"
	"weir/elastic/estest/agree"
	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

// TestEngines runs what needs a real engine, on each of them.
func TestEngines(t *testing.T) {
	for _, engine := range searchnode.Engines() {
		t.Run(engine, func(t *testing.T) {
			cluster := searchtest.ForTest(t, engine, 1).URLs()[0]
			t.Run("classic file", func(t *testing.T) { testClassicFile(t, cluster) })
			t.Run("queue refuses what nodes refuse", func(t *testing.T) { testQueueRefusals(t, cluster) })
			t.Run("same answers", func(t *testing.T) { testSameAnswers(t, cluster) })
			t.Run("cache", func(t *testing.T) { testCache(t, cluster, engine) })
			// What holds without a gateway is what the gateway is measured against.
			t.Run("clients directly", func(t *testing.T) { RunClients(t, cluster, engine) })
			t.Run("clients through weir", func(t *testing.T) {
				RunClients(t, newSite(t, cluster, highLimit).start().url, engine)
			})
			if engine != searchnode.OpenSearch2 { // its clients are those of OpenSearch 3
				t.Run("clients recover from 429", func(t *testing.T) {
					g := newSite(t, cluster, highLimit, narrowLimit).start()
					RunPatience(t, g.url, engine, func() float64 { return g.metrics().sum("weir_limit_decisions_total", `outcome="refused"`) })
				})
			}
			t.Run("a shard at a time", func(t *testing.T) { testReadersOfShards(t, cluster) })
			t.Run("dashboards", func(t *testing.T) { testDashboards(t, cluster) })
			if engine != searchnode.OpenSearch2 { // what tools see of OpenSearch is the same in 2 and 3
				t.Run("sniffing client", func(t *testing.T) { testSniffingClient(t, cluster) })
				t.Run("elasticdump", func(t *testing.T) { testElasticdump(t, cluster) })
			}
			if engine != searchnode.OpenSearch3 { // OpenSearch 2 has the same front
				t.Run("same bytes", func(t *testing.T) { testDifferential(t, cluster, engine) })
				t.Run("silent connections", func(t *testing.T) { testConnectionsThatNodesLeaveSilent(t, cluster) })
			}
			if engine != searchnode.Elasticsearch7 { // it has no scripts here, see package searchnode
				t.Run("search ends with its client", func(t *testing.T) { testSearchEndsWithItsClient(t, cluster) })
			}
		})
	}
}

// testReadersOfShards reads an index as elasticsearch-hadoop does, with a scroll for each of its shards, twice and through a cache:
// each document comes once (elastic/elasticsearch-hadoop#657).
func testReadersOfShards(t *testing.T, cluster string) {
	const documents, page = 500, 60
	client := newClient(t)
	deleteAll(t, client, cluster, "by-shard*")
	must(t, client, http.MethodPut, cluster+"/by-shard", `{"settings":{"number_of_shards":5,"number_of_replicas":0}}`)
	var bulk strings.Builder
	for n := range documents {
		fmt.Fprintf(&bulk, "{\"index\":{\"_id\":\"%d\"}}\n{\"n\":%d}\n", n, n)
	}
	must(t, client, http.MethodPost, cluster+"/by-shard/_bulk?refresh=true", bulk.String())
	g := newPlainSite(t, cluster, "      - cache: {ttl: 1h}\n").start()
	awaitNodes(t, g, 1)
	var where struct{ Shards [][]struct{ Node string } }
	if err := json.Unmarshal(g.get("/by-shard/_search_shards").body, &where); err != nil || len(where.Shards) != 5 {
		t.Fatalf("%d shards, %v", len(where.Shards), err)
	}
	for range 2 {
		seen := map[string]int{}
		for shard, copies := range where.Shards {
			target, body, before := fmt.Sprintf("/by-shard/_search?sort=_doc&scroll=5m&size=%d&preference=_shards:%d%%7C_only_nodes:%s", page, shard, copies[0].Node), "", len(seen)
			for {
				a := must(t, client, http.MethodPost, g.url+target, body)
				var found struct {
					ID   string `json:"_scroll_id"`
					Hits struct {
						Hits []struct {
							ID string `json:"_id"`
						}
					}
				}
				if err := json.Unmarshal(a.body, &found); err != nil {
					t.Fatal(err)
				}
				for _, h := range found.Hits.Hits {
					seen[h.ID]++
				}
				target, body = "/_search/scroll", `{"scroll":"5m","scroll_id":"`+found.ID+`"}`
				if len(found.Hits.Hits) == 0 {
					must(t, client, http.MethodDelete, g.url+target, `{"scroll_id":"`+found.ID+`"}`)
					break
				}
			}
			if n := len(seen) - before; n == 0 || n == documents {
				t.Errorf("shard %d has %d new documents", shard, n)
			}
		}
		for id, times := range seen {
			if times != 1 {
				t.Errorf("document %s came %d times", id, times)
			}
		}
		if len(seen) != documents {
			t.Errorf("%d documents of %d came", len(seen), documents)
		}
	}
}

// highLimit keeps the classic file's limits out of the way of clients that are in a hurry.
var highLimit = swap("max_qps: 100", "max_qps: 10000")

// narrowLimit refuses most bulks and searches of clients that are in a hurry.
var narrowLimit = swap(`          message: "Hey, You just reached our request limit!"`, `          message: "Hey, You just reached our request limit!"
          limits: [{name: narrow, key: [global], rate: 20/s, burst: 1, when: {api: [bulk, search]}}]`)

func TestSameAnswers(t *testing.T) {
	testSameAnswers(t, estest.New(t, estest.Options{}).URL())
}

// testSameAnswers sends a list of requests, odd and wrong ones among them, to a node and through the gateway. The list asks
// the same before and after writes, so the cache is told to stay out of the way, by a parameter that the node never sees.
func testSameAnswers(t *testing.T, cluster string) {
	g := newSite(t, cluster, highLimit).start()
	cases, err := agree.Cases()
	if err != nil {
		t.Fatal(err)
	}
	send := func(client *http.Client, url string) (answers []string) {
		deleteAll(t, g.client, cluster, "agree*")
		for _, c := range cases {
			a, err := c.Send(t.Context(), client, url)
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, a)
		}
		return answers
	}
	want := send(g.client, cluster)
	past := &http.Client{Transport: pastCache{g.client.Transport}}
	got := send(past, g.url)
	for i, c := range cases {
		if strings.Contains(c.Target, "no_cache=") {
			continue // a parameter that nodes refuse, and the gateway takes
		}
		if diff := cmp.Diff(want[i], got[i]); diff != "" {
			t.Errorf("%s: %s %s: answer through the gateway differs (-node +gateway):\n%s", c.Name, c.Method, c.Target, diff)
		}
	}
}

// pastCache adds the parameter by which a request is kept out of the cache.
type pastCache struct{ http.RoundTripper }

func (p pastCache) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if req.URL.RawQuery != "" {
		req.URL.RawQuery += "&"
	}
	req.URL.RawQuery += "no_cache=true"
	return p.RoundTripper.RoundTrip(req)
}

// deleteAll deletes the indices that match a pattern.
func deleteAll(tb testing.TB, client *http.Client, cluster, pattern string) {
	tb.Helper()
	a := must(tb, client, http.MethodGet, cluster+"/_cat/indices/"+pattern+"?h=index&expand_wildcards=all", "")
	for _, index := range strings.Fields(string(a.body)) {
		must(tb, client, http.MethodDelete, cluster+"/"+index, "")
	}
}

// slowScript takes some ten milliseconds for a document. A loop may have a million rounds, but functions count for themselves.
const slowScript = `long work(long n) { for (int i = 0; i < 100000; i++) { n = n * 31 + i } return n }
	long n = doc['n'].value; for (int i = 0; i < 100; i++) { n = work(n) } return n != 42`

// testSearchEndsWithItsClient measures how long a search that would run for a long time goes on after its client has left,
// with and without the gateway. Nodes look between segments and every few thousand documents whether the client is there,
// so the index has many small segments.
func testSearchEndsWithItsClient(t *testing.T, cluster string) {
	client := newClient(t)
	const index = "slow-scripts"
	deleteAll(t, client, cluster, index+"*")
	must(t, client, http.MethodPut, cluster+"/"+index, `{"settings":{"number_of_shards":10,"number_of_replicas":0,"refresh_interval":-1,
		"merge.policy.segments_per_tier":100,"merge.policy.max_merge_at_once":100},"mappings":{"properties":{"n":{"type":"long"}}}}`)
	for segment := range 25 {
		var bulk strings.Builder
		for i := range 100 {
			fmt.Fprintf(&bulk, "{\"index\":{}}\n{\"n\":%d}\n", segment*100+i)
		}
		must(t, client, http.MethodPost, cluster+"/"+index+"/_bulk?refresh=true", bulk.String())
	}
	source, err := json.Marshal(slowScript)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"query":{"bool":{"filter":{"script":{"script":{"source":%s}}}}}}`, source)
	g := newSite(t, cluster).start()

	var direct, through []time.Duration
	for round := range 3 {
		direct = append(direct, taskAfterLeaving(t, client, cluster, strings.TrimPrefix(cluster, "http://"), index, body, fmt.Sprint("direct-", round)))
		through = append(through, taskAfterLeaving(t, client, cluster, g.addr, index, body, fmt.Sprint("through-", round)))
	}
	t.Logf("searches went on after their clients left: directly %v, through the gateway %v", direct, through)
	slices.Sort(direct)
	slices.Sort(through)
	if through[1] > direct[1]+time.Second {
		t.Errorf("a search through the gateway goes on for %s after its client has left, one sent to the node for %s", through[1], direct[1])
	}
}

// taskAfterLeaving starts a search over a connection to addr, leaves when it runs, and returns how long it goes on.
func taskAfterLeaving(t *testing.T, client *http.Client, cluster, addr, index, body, id string) time.Duration {
	t.Helper()
	tasks := func(ctx context.Context) (n int, runs time.Duration, err error) {
		a, err := ask(ctx, client, http.MethodGet, cluster+"/_tasks?actions=indices:data/read/search&detailed=true", "")
		if err != nil {
			return 0, 0, err
		}
		var list struct {
			Nodes map[string]struct {
				Tasks map[string]struct {
					Headers map[string]string
					Running time.Duration `json:"running_time_in_nanos"`
				}
			}
		}
		if err := json.Unmarshal(a.body, &list); err != nil {
			return 0, 0, fmt.Errorf("list of tasks %s: %w", a.body, err)
		}
		for _, node := range list.Nodes {
			for _, task := range node.Tasks {
				if task.Headers["X-Opaque-Id"] == id {
					n++
					runs = max(runs, task.Running)
				}
			}
		}
		return n, runs, nil
	}
	conn := dial(t, addr)
	conn.send(t, fmt.Sprintf("POST /%s/_search HTTP/1.1\r\nHost: %s\r\nX-Opaque-Id: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		index, addr, id, len(body), body))
	until(t, 20*time.Second, func(ctx context.Context) error {
		n, runs, err := tasks(ctx)
		if err == nil && (n == 0 || runs < time.Second) {
			err = fmt.Errorf("%d searches run, for %s: %s", n, runs, id)
		}
		return err
	})
	left := time.Now()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, time.Minute, func(ctx context.Context) error {
		n, runs, err := tasks(ctx)
		if err == nil && n > 0 {
			err = fmt.Errorf("search %s has been running for %s, its client left %s ago", id, runs, time.Since(left))
		}
		return err
	})
	return time.Since(left)
}
