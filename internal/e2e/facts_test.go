package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/searchnode"
)

// A fact is something that nodes do and that the cache relies on, or is careful about.
type fact struct {
	name string
	ask  func(c *cacheTest) string // what a node does
}

// facts are asked of nodes without a gateway in between. What they answer stands in docs/compatibility.md.
var facts = []fact{
	{"`sort` with its members in another order", func(c *cacheTest) string {
		return map[bool]string{true: "another order of hits", false: "the same order"}[c.ids(`{"sort":{"a":"asc","b":"desc"}}`) != c.ids(`{"sort":{"b":"desc","a":"asc"}}`)]
	}},
	{"`1`, `1.0` and `1e0` on a keyword field", func(c *cacheTest) string {
		term := func(v string) string { return c.ids(`{"sort":["n"],"query":{"term":{"k":` + v + `}}}`) }
		return fmt.Sprintf("`%s`, `%s`, `%s`", term("1"), term("1.0"), term("1e0"))
	}},
	{"`size: 1.5`", func(c *cacheTest) string { return c.outcome("/_search", `{"size":1.5}`) }},
	{"`size` twice", func(c *cacheTest) string { return c.outcome("/_search", `{"size":1,"size":1}`) }},
	{"a field twice in a `term`", func(c *cacheTest) string {
		return c.outcome("/_search", `{"query":{"bool":{"filter":[{"term":{"a":1,"a":1}}]}}}`)
	}},
	{"a comment in a body", func(c *cacheTest) string { return c.outcome("/_search", `/* x */{"size":1}`) }},
	{"a byte order mark before a body", func(c *cacheTest) string { return c.outcome("/_search", "\xef\xbb\xbf{\"size\":1}") }},
	{"`?size=0` and `size: 3`", func(c *cacheTest) string { return c.outcome("/_search?size=0", `{"size":3}`) }},
	{"`?q=` and `query`", func(c *cacheTest) string {
		return c.outcome("/_search?q=k:absent", `{"query":{"match_all":{}}}`)
	}},
	{"`?size=1&size=2`", func(c *cacheTest) string { return c.outcome("/_search?size=1&size=2", `{}`) }},
	{"a shard that fails", func(c *cacheTest) string {
		return c.outcome(",cached-narrow/_search", `{"sort":["only_here"]}`)
	}},
	{"`filter_path=hits` of that", func(c *cacheTest) string {
		_, text, _ := c.send(c.cluster, "/cached-facts,cached-narrow/_search?filter_path=hits", `{"sort":["only_here"]}`)
		return map[bool]string{true: "says so", false: "does not say so"}[strings.Contains(text, "_shards") || strings.Contains(text, "timed_out")]
	}},
	{"`X-Opaque-Id`", func(c *cacheTest) string {
		req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.cluster+"/cached-facts/_search", nil)
		if err != nil {
			c.Fatal(err)
		}
		req.Header.Set("X-Opaque-Id", "me")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			c.Fatal(err)
		}
		_ = resp.Body.Close()
		return map[bool]string{true: "is sent back", false: "is not sent back"}[resp.Header.Get("X-Opaque-Id") == "me"]
	}},
	{"`random_score` without `seed`, ten times", func(c *cacheTest) string {
		orders := map[string]bool{}
		for range 10 {
			orders[c.ids(`{"query":{"function_score":{"random_score":{}}}}`)] = true
		}
		return map[bool]string{true: "another order", false: "one order"}[len(orders) > 1]
	}},
	{"`terms` of a keyword without hits", func(c *cacheTest) string {
		_, text, _ := c.send(c.cluster, "/cached-facts/_search", `{"size":0,"aggs":{"k":{"terms":{"field":"k"}}}}`)
		return map[bool]string{true: "`terminated_early`", false: "no `terminated_early`"}[strings.Contains(text, `"terminated_early":true`)]
	}},
	{"`_msearch` with one search that cannot be read", func(c *cacheTest) string {
		return c.outcome("/_msearch", "{}\n{\"size\":1}\n{}\n{\"query\":{\"nope\":{}}}\n")
	}},
	{"`_msearch` without a line end behind it", func(c *cacheTest) string { return c.outcome("/_msearch", "{}\n{\"size\":1}") }},
	{"a write to an index that nobody searches", func(c *cacheTest) string {
		idle := time.NewTimer(1500 * time.Millisecond) // since it was made, which counts as a search of it
		defer idle.Stop()
		<-idle.C
		before := c.counters("cached-idle")
		c.direct(http.MethodPut, "/cached-idle/_doc/1", `{"a":1}`)
		// As long as a refresh would take that is not put off.
		wake := time.NewTimer(2500 * time.Millisecond)
		defer wake.Stop()
		<-wake.C
		written := c.counters("cached-idle")
		c.send(c.cluster, "/cached-idle/_search", `{}`)
		searched := c.counters("cached-idle")
		return fmt.Sprintf("sequence number +%d, refreshes +%d; after a search +%d", written[0]-before[0], written[1]-before[1], searched[1]-written[1])
	}},
	{"a search without hits again, on two shards", func(c *cacheTest) string { return c.ownCache(firstDay+hours/2*hour, firstDay+hours/2*hour) }},
	{"that from a millisecond later on", func(c *cacheTest) string { return c.ownCache(firstDay+hours/2*hour, firstDay+hours/2*hour+1) }},
	{"that, where it begins before all documents", func(c *cacheTest) string { return c.ownCache(firstDay-hour, firstDay-hour+1) }},
	{"buckets of four ranges of whole hours", func(c *cacheTest) string {
		return c.cutInFour(`{"avg":{"avg":{"field":"n"}},"p":{"percentiles":{"field":"n"}},"c":{"cardinality":{"field":"k"}},` +
			`"k":{"terms":{"field":"k","size":3},"aggs":{"max":{"max":{"field":"n"}}}},"top":{"top_hits":{"size":2,"sort":["n"]}}}`)
	}},
	{"those with `derivative`", func(c *cacheTest) string {
		return c.cutInFour(`{"avg":{"avg":{"field":"n"}},"d":{"derivative":{"buckets_path":"avg"}}}`)
	}},
	{"those with `cumulative_sum`", func(c *cacheTest) string {
		return c.cutInFour(`{"avg":{"avg":{"field":"n"}},"s":{"cumulative_sum":{"buckets_path":"avg"}}}`)
	}},
	{"buckets by a date with one value", func(c *cacheTest) string { return c.counted("ts") }},
	{"buckets by a date with several", func(c *cacheTest) string { return c.counted("several") }},
}

const (
	hour     = 3_600_000                       // in milliseconds
	firstDay = 1_750_000_000_000 / hour * hour // of the documents in cached-days
	hours    = 48                              // over which they are spread
)

// days makes cached-days.
func (c *cacheTest) days() {
	c.Helper()
	c.direct(http.MethodPut, "/cached-days", `{"settings":{"number_of_shards":2,"number_of_replicas":0},"mappings":{"properties":{`+
		`"ts":{"type":"date"},"several":{"type":"date"},"k":{"type":"keyword"},"n":{"type":"long"}}}}`)
	var lines strings.Builder
	for n := range 600 {
		ts := firstDay + n*7919%(hours*60)*60_000
		fmt.Fprintf(&lines, `{"index":{}}%s{"ts":%d,"several":[%d,%d],"k":"k%d","n":%d}%[1]s`, "\n", ts, ts, ts+n%3*hour, n%5, n)
	}
	a, err := ask(c.Context(), c.gateway.client, http.MethodPost, c.cluster+"/cached-days/_bulk?refresh=true", lines.String())
	if err != nil || a.status != http.StatusOK || strings.Contains(string(a.body), `"errors":true`) {
		c.Fatalf("fill cached-days: %v %s", err, a.body)
	}
}

// A slice is what a date_histogram by hours says of a range.
type slice struct {
	Hits struct {
		Total struct{ Value int }
	}
	Aggregations struct {
		H struct{ Buckets []json.RawMessage }
	}
}

// slice asks for the hours of a range by a field, empty ones included, each with what sub says.
func (c *cacheTest) slice(field string, from, to int, sub string) slice {
	c.Helper()
	_, text, _ := c.send(c.cluster, "/cached-days/_search", fmt.Sprintf(`{"size":0,"track_total_hits":true,"query":{"range":{%[1]q:{"gte":%d,"lt":%d,"format":"epoch_millis"}}},`+
		`"aggs":{"h":{"date_histogram":{"field":%[1]q,"fixed_interval":"1h","extended_bounds":{"min":%[4]d,"max":%[5]d}},"aggs":%[6]s}}}`, field, from, to, from/hour*hour, to-1, sub))
	var s slice
	if err := json.Unmarshal([]byte(text), &s); err != nil || len(s.Aggregations.H.Buckets) == 0 {
		c.Fatalf("%s: %v", text, err)
	}
	return s
}

// cutInFour compares the buckets of all hours with those of four parts of them.
func (c *cacheTest) cutInFour(sub string) string {
	whole := c.slice("ts", firstDay, firstDay+hours*hour, sub)
	var parts slice
	for from := 0; from < hours; from += hours / 4 {
		part := c.slice("ts", firstDay+from*hour, firstDay+(from+hours/4)*hour, sub)
		parts.Hits.Total.Value += part.Hits.Total.Value
		parts.Aggregations.H.Buckets = append(parts.Aggregations.H.Buckets, part.Aggregations.H.Buckets...)
	}
	if !reflect.DeepEqual(parts, whole) {
		return "others than of one range"
	}
	return "the same as of one range"
}

// counted compares how many documents are in buckets with how many are found.
func (c *cacheTest) counted(field string) string {
	s := c.slice(field, firstDay, firstDay+hours*hour, `{}`)
	sum := 0
	for _, raw := range s.Aggregations.H.Buckets {
		var b struct {
			Count int `json:"doc_count"`
		}
		if err := json.Unmarshal(raw, &b); err != nil {
			c.Fatal(err)
		}
		sum += b.Count
	}
	return map[int]string{-1: "fewer documents in buckets than hits", 0: "as many documents in buckets as hits", 1: "more documents in buckets than hits"}[cmp.Compare(sum, s.Hits.Total.Value)]
}

// ownCache asks for all hours from one moment on, and then from another one on, and tells how many shards have taken the second
// answer from the node's own cache.
func (c *cacheTest) ownCache(first, second int) string {
	hits := func() int {
		a, err := ask(c.Context(), c.gateway.client, http.MethodGet, c.cluster+"/cached-days/_stats/request_cache", "")
		if err != nil {
			c.Fatal(err)
		}
		var s struct {
			All struct {
				Total struct {
					Cache struct {
						Hits int `json:"hit_count"`
					} `json:"request_cache"`
				}
			} `json:"_all"`
		}
		if err := json.Unmarshal(a.body, &s); err != nil {
			c.Fatal(err)
		}
		return s.All.Total.Cache.Hits
	}
	c.direct(http.MethodPost, "/cached-days/_cache/clear?request=true", "")
	c.slice("ts", first, firstDay+2*hours*hour, `{}`)
	before := hits()
	c.slice("ts", second, firstDay+2*hours*hour, `{}`)
	return fmt.Sprintf("%d from the node's cache", hits()-before)
}

// facts asks the cluster directly, and compares what it does with the page, in the column of its engine.
func (c *cacheTest) facts(engine string) {
	const mapping = `{"settings":{"number_of_shards":1,"number_of_replicas":0},"mappings":{"properties":{"k":{"type":"keyword"},"a":{"type":"long"},"b":{"type":"long"},"n":{"type":"long"}%s}}}`
	c.direct(http.MethodPut, "/cached-facts", fmt.Sprintf(mapping, ""))
	c.direct(http.MethodPut, "/cached-narrow", fmt.Sprintf(mapping, `,"only_here":{"type":"long"}`))
	c.direct(http.MethodPut, "/cached-idle", `{"settings":{"number_of_shards":1,"number_of_replicas":0,"index.search.idle.after":"1s"}}`)
	for i, k := range []string{"1", "1.0", "1e0", "x", "y", "z"} {
		c.direct(http.MethodPut, fmt.Sprintf("/cached-facts/_doc/%d?refresh=true", i), fmt.Sprintf(`{"k":%q,"a":%d,"b":%d,"n":%d}`, k, i%2, i%3, i))
	}
	column := map[string]int{searchnode.Elasticsearch7: 2, searchnode.OpenSearch2: 3, searchnode.OpenSearch3: 4}[engine]
	page, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		c.Fatal(err)
	}
	told := map[string]string{}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, " | "); len(cells) == 4 {
			told[strings.TrimPrefix(cells[0], "| ")] = strings.TrimSuffix(strings.TrimSpace(cells[column-1]), " |")
		}
	}
	for _, f := range facts {
		if got := f.ask(c); got != told[f.name] {
			c.Errorf("| %s | %s |: the page says %q", f.name, got, told[f.name])
		}
	}
}

// ids returns the ids of the hits of a search, in their order.
func (c *cacheTest) ids(body string) string {
	c.Helper()
	_, text, _ := c.send(c.cluster, "/cached-facts/_search", body)
	var a struct {
		Hits struct {
			Hits []struct {
				Source struct{ K string } `json:"_source"`
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		c.Fatalf("%s: %v", text, err)
	}
	var list []string
	for _, h := range a.Hits.Hits {
		list = append(list, h.Source.K)
	}
	return strings.Join(list, " ")
}

// outcome returns what a node makes of a request: its status, how many hits there are, and how many shards failed.
func (c *cacheTest) outcome(target, body string) string {
	c.Helper()
	status, text, _ := c.send(c.cluster, "/cached-facts"+target, body)
	if status != http.StatusOK {
		return fmt.Sprint(status)
	}
	var a struct {
		Hits   struct{ Hits []any }
		Shards struct{ Failed int } `json:"_shards"`
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		c.Fatalf("%s: %v", text, err)
	}
	out := fmt.Sprintf("200, hits: %d", len(a.Hits.Hits))
	if a.Shards.Failed > 0 {
		out = fmt.Sprintf("200, shards failed: %d", a.Shards.Failed)
	}
	return out
}

// counters returns the highest sequence number of an index of one copy, and how often that was refreshed for searches.
func (c *cacheTest) counters(index string) [2]int64 {
	c.Helper()
	a, err := ask(c.Context(), c.gateway.client, http.MethodGet, c.cluster+"/"+index+"/_stats/refresh?level=shards", "")
	if err != nil {
		c.Fatal(err)
	}
	var s struct {
		Indices map[string]struct {
			Shards map[string][]struct {
				SeqNo struct {
					Max int64 `json:"max_seq_no"`
				} `json:"seq_no"`
				Refresh struct {
					External int64 `json:"external_total"`
				}
			}
		}
	}
	if err := json.Unmarshal(a.body, &s); err != nil {
		c.Fatal(err)
	}
	shard := s.Indices[index].Shards["0"][0]
	return [2]int64{shard.SeqNo.Max, shard.Refresh.External}
}

// stampede is many callers with a search that nobody has asked before: one of them asks the node.
func (c *cacheTest) stampede() {
	const callers = 300
	for round := range 5 {
		body := fmt.Sprintf(`{"size":5,"from":%d,"sort":["k"],"aggs":{"k":{"terms":{"field":"k"}}}}`, round)
		statuses, answers := make([]string, callers), make([]string, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				a, err := ask(c.Context(), c.gateway.client, http.MethodPost, c.gateway.url+"/cached-1/_search", body)
				if err != nil {
					c.Error(err)
					return
				}
				statuses[i], answers[i] = a.header.Get("Cache-Status"), string(a.body)
			})
		}
		wg.Wait()
		asked := 0
		for i, s := range statuses {
			if strings.HasSuffix(s, "; stored") {
				asked++
			}
			if answers[i] != answers[0] {
				c.Fatalf("%s %s, another got %s %s", s, answers[i], statuses[0], answers[0])
			}
		}
		if asked != 1 {
			c.Errorf("a node was asked %d times for the same", asked)
		}
	}
}

// leaderLeaves is many callers with a long search, of whom the first leaves while the others wait for its answer: a node is not asked
// again for them.
func (c *cacheTest) leaderLeaves() {
	const callers = 20
	left := 0
	for round := range 3 {
		body := fmt.Sprintf(`{"size":0,"aggs":{"h":{"date_histogram":{"field":"ts","fixed_interval":"%ds"},"aggs":{"p":{"percentiles":{"field":"n"}}}}}}`, 15+round)
		ctx, leave := context.WithCancel(c.Context())
		defer leave()
		leader := make(chan error, 1)
		go func() {
			_, err := ask(ctx, c.gateway.client, http.MethodPost, c.gateway.url+"/cached-days/_search", body)
			leader <- err
		}()
		c.counts("weir_cache_flights")
		var wg sync.WaitGroup
		answers := make([]answer, callers)
		for i := range callers {
			wg.Go(func() {
				var err error
				if answers[i], err = ask(c.Context(), c.gateway.client, http.MethodPost, c.gateway.url+"/cached-days/_search", body); err != nil {
					c.Error(err)
				}
			})
		}
		c.counts("weir_cache_waiting_requests")
		leave()
		if <-leader != nil {
			left++
		}
		wg.Wait()
		for _, a := range answers {
			status := a.header.Get("Cache-Status")
			if a.status != http.StatusOK || !strings.HasPrefix(status, "weir; hit") && status != "weir; fwd=miss; collapsed" || !bytes.Equal(a.body, answers[0].body) {
				c.Errorf("%d %s, %d bytes, another got %d", a.status, status, len(a.body), len(answers[0].body))
			}
		}
	}
	if left == 0 {
		c.Error("no search took so long that its first caller could leave")
	}
}

// counts waits until a gauge of the gateway is above 0.
func (c *cacheTest) counts(gauge string) {
	c.Helper()
	until(c, 10*time.Second, func(context.Context) error {
		if c.gateway.metrics().sum(gauge) == 0 {
			return fmt.Errorf("%s is 0", gauge)
		}
		return nil
	})
}

// race is searches while documents are written through the gateway: what is found is never older than the last write that was
// acknowledged when it was asked for.
func (c *cacheTest) race() {
	const target, search = "/cached-race/_doc/1?refresh=true", `{"query":{"ids":{"values":["1"]}}}`
	var acknowledged, found sync.Map
	write := func(n int) {
		must(c, c.gateway.client, http.MethodPut, c.gateway.url+target, fmt.Sprintf(`{"n":%d}`, n))
		acknowledged.Store("n", n)
	}
	write(0)
	end := time.Now().Add(3 * time.Second)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; time.Now().Before(end); n++ {
			write(n)
		}
	})
	for range 8 {
		wg.Go(func() {
			for time.Now().Before(end) {
				least, _ := acknowledged.Load("n")
				a, err := ask(c.Context(), c.gateway.client, http.MethodPost, c.gateway.url+"/cached-race/_search", search)
				if err != nil {
					c.Error(err)
					return
				}
				var got struct {
					Hits struct {
						Hits []struct {
							Source struct{ N int } `json:"_source"`
						}
					}
				}
				if err := json.Unmarshal(a.body, &got); err != nil || len(got.Hits.Hits) != 1 {
					c.Errorf("%s: %v", a.body, err)
					return
				}
				if n := got.Hits.Hits[0].Source.N; n < least.(int) {
					c.Errorf("found %d after %d was acknowledged: %s", n, least, a.header.Get("Cache-Status"))
				}
				kind, _, _ := strings.Cut(a.header.Get("Cache-Status"), "; ttl")
				found.Store(kind, true)
			}
		})
	}
	wg.Wait()
	for _, kind := range []string{"weir; hit", "weir; fwd=stale; stored"} {
		if _, seen := found.Load(kind); !seen {
			c.Errorf("no answer was a %q", kind)
		}
	}
}

// TestFactsAreOnThePage holds that the page has a row for each fact.
func TestFactsAreOnThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts {
		if !strings.Contains(string(page), "\n| "+f.name+" | ") {
			t.Errorf("the page says nothing of %s", f.name)
		}
	}
}
