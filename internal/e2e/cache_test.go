package e2e

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/estest"
)

func TestCache(t *testing.T) { testCache(t, estest.New(t, estest.Options{}).URL(), "") }

// testCache asks a cluster directly and through the gateway's cache, and compares. engine is empty if it is a scripted one.
func testCache(t *testing.T, cluster, engine string) {
	g := newSite(t, cluster, highLimit, pollOften).start()
	c := &cacheTest{TB: t, cluster: cluster, gateway: g}
	c.prepare()
	defer deleteAll(t, g.client, cluster, "cached*")
	// Where only a change ends an answer, one that is not noticed shows.
	lasting := &cacheTest{TB: t, cluster: cluster, gateway: newPlainSite(t, cluster, "      - cache: {ttl: 1h, poll_interval: 1s}\n").start()}
	t.Run("same search, same answer", c.with((*cacheTest).sameSearches))
	t.Run("other search, other answer", c.with((*cacheTest).otherSearches))
	t.Run("what counts in a request", c.with((*cacheTest).precedence))
	t.Run("filtered answers", c.with((*cacheTest).filterPaths))
	t.Run("fields of answers", c.with((*cacheTest).fields))
	t.Run("many at once", c.with((*cacheTest).stampede))
	t.Run("searches while writing", c.with((*cacheTest).race))
	if engine != "" {
		c.days()
		t.Run("facts", c.with(func(c *cacheTest) { c.facts(engine) }))
		t.Run("first caller leaves", c.with((*cacheTest).leaderLeaves))
		t.Run("rollover", lasting.with((*cacheTest).rollover))
		t.Run("a field that is mapped later", lasting.with((*cacheTest).mapped))
	}
	if engine == "" || standsForAll(engine) {
		t.Run("between", func(t *testing.T) { testCacheBetween(t, cluster) })
	}
	t.Run("incomplete answers", c.with((*cacheTest).incomplete))
	t.Run("several searches", c.with((*cacheTest).several))
	t.Run("writes through the gateway", c.with((*cacheTest).writes))
	t.Run("changes around the gateway", lasting.with((*cacheTest).foreign))
	t.Run("nothing changes", c.with((*cacheTest).proven))
}

// pollOften makes changes around the gateway be noticed, and answers outlive their time, within seconds.
func pollOften(tb testing.TB, text string) string {
	tb.Helper()
	text = swap("          pass_patterns:", "          poll_interval: 1s\n          pass_patterns:")(tb, text)
	return swap("        type: set_cache\n", "        type: set_cache\n        parameters: {cache_ttl: 2s}\n")(tb, text)
}

type cacheTest struct {
	testing.TB
	cluster string
	gateway *gateway
}

func (c *cacheTest) with(f func(c *cacheTest)) func(*testing.T) {
	return func(t *testing.T) { f(&cacheTest{t, c.cluster, c.gateway}) }
}

// prepare makes the indices cached-1 and cached-2 with an alias.
func (c *cacheTest) prepare() {
	deleteAll(c, c.gateway.client, c.cluster, "cached*")
	const mapping = `{"settings":{"number_of_shards":2,"number_of_replicas":0},"mappings":{"properties":{"k":{"type":"keyword"},"a":{"type":"long"},"b":{"type":"long"},"x":{"type":"double"}}}}`
	for _, index := range []string{"/cached-1", "/cached-2"} {
		c.direct(http.MethodPut, index, mapping)
		for i, k := range []string{"1", "1.0", "1e0", "9007199254740993", "9007199254740992"} {
			c.direct(http.MethodPut, fmt.Sprintf("%s/_doc/%d?refresh=true", index, i), fmt.Sprintf(`{"k":%q,"a":%d,"b":%d,"id":742241735434043391,"x":[1.0,1e2,-0,0.1000]}`, k, i%2, i%3))
		}
	}
	c.direct(http.MethodPost, "/_aliases", `{"actions":[{"add":{"index":"cached-1","alias":"cached"}}]}`)
}

func (c *cacheTest) direct(method, target, body string) {
	c.Helper()
	must(c, c.gateway.client, method, c.cluster+target, body)
}

// took is what may differ between two answers to the same search.
var took = regexp.MustCompile(`"took" ?: ?\d+`)

func (c *cacheTest) send(base, target, body string) (int, string, string) {
	c.Helper()
	a, err := ask(c.Context(), c.gateway.client, http.MethodPost, base+target, body)
	if err != nil {
		c.Fatal(err)
	}
	return a.status, took.ReplaceAllString(string(a.body), `"took":0`), a.header.Get("Cache-Status")
}

// equal checks that the gateway answers as the cluster does, twice, and returns its last Cache-Status.
func (c *cacheTest) equal(target, body string) (status string) {
	c.Helper()
	code, want, _ := c.send(c.cluster, target, body)
	for range 2 {
		gotCode, got, s := c.send(c.gateway.url, target, body)
		if diff := cmp.Diff(want, got); gotCode != code || diff != "" {
			c.Errorf("%s %s: %d, want %d (%s) (-node +gateway):\n%s", target, body, gotCode, code, s, diff)
		}
		status = s
	}
	return status
}

// sameSearches are spellings of one search: the node is asked once.
func (c *cacheTest) sameSearches() {
	for _, spellings := range [][]string{
		{
			`{"size":2,"sort":["k"],"query":{"bool":{"filter":[{"term":{"a":1}}],"must":[]}}}`,
			`{"query":{"bool":{"must":[],"filter":[{"term":{"\u0061":1}}]}}, "sort":["k"], "size":2}`,
		},
		{`{"size":0,"aggs":{"k":{"terms":{"field":"k"}}}}`, `{"aggs":{"k":{"terms":{"field":"k"}}},"size":0,"timeout":"30s"}`},
	} {
		c.equal("/cached-1/_search", spellings[0])
		for _, body := range spellings {
			if status := c.equal("/cached-1/_search", body); !strings.HasPrefix(status, "weir; hit") {
				c.Errorf("%s: %s, want a hit", body, status)
			}
		}
	}
}

// otherSearches look alike and are not: each is asked after the others, so that a key that mixes them up shows.
func (c *cacheTest) otherSearches() {
	for _, body := range []string{
		`{"sort":{"a":"asc","b":"desc"}}`, `{"sort":{"b":"desc","a":"asc"}}`,
		`{"query":{"term":{"k":1}}}`, `{"query":{"term":{"k":1.0}}}`, `{"query":{"term":{"k":1e0}}}`, `{"query":{"term":{"k":"1"}}}`,
		`{"query":{"term":{"k":9007199254740992}}}`, `{"query":{"term":{"k":9007199254740993}}}`,
		`{"size":1,"size":1}`, `{"query":{"bool":{"filter":[{"term":{"a":1,"a":1}}]}}}`, // 400, with a warm cache too
		`{"size":1}`, "/* a comment */{\"size\":1}", "\xef\xbb\xbf{\"size\":1}", `{"size":1.5}`, `{"indices_boost":[{"cached-1":2}]}`,
		`{"size":3,"indices_boost":[{"cached-1":9},{"cached-*":2}]}`, `{"size":3,"indices_boost":[{"cached-*":2},{"cached-1":9}]}`, `{"size":1,"unknown":1}`,
	} {
		c.equal("/cached-1/_search", body)
		c.equal("/cached-1,cached-2/_search", body)
	}
	for _, target := range []string{
		"/cached-1/_search?size=0", "/cached-1/_search?q=k:1", "/cached-1/_search?size=1&size=2", "/cached-1/_search?unknown=1",
		"/cached-2,cached-1/_search", "/cached-*,-cached-1/_search", "/cached/_search", "/cached-1/_search?typed_keys", "/cached-1/_search?rest_total_hits_as_int=true",
		"/cached-none/_search", "/cached-none/_search?ignore_unavailable=true", "/cached-1/_search?timeout=x", "/cached-1/_search?pretty", "/cached-1/_count",
	} {
		c.equal(target, `{"query":{"term":{"a":1}}}`)
	}
}

// precedence is which of several places in a request counts: an answer to another reading must not be kept under its key.
func (c *cacheTest) precedence() {
	const sorted = `"sort":["k"],"_source":false`
	for _, ask := range []struct{ target, body string }{
		{"/cached-1/_search", `{"size":3,` + sorted + `}`},
		{"/cached-1/_search?size=0", `{"size":3,` + sorted + `}`},
		{"/cached-1/_search?size=3", `{"size":0,` + sorted + `}`},
		{"/cached-1/_search?size=03", `{"size":0,` + sorted + `}`},
		{"/cached-1/_search?q=a:1", `{"query":{"term":{"a":0}},` + sorted + `}`},
		{"/cached-1/_search", `{"query":{"term":{"a":0}},` + sorted + `}`},
		{"/cached-1/_search?from=1", `{"from":2,` + sorted + `}`},
		{"/cached-1/_search?sort=b,k", `{` + sorted + `}`},
		{"/cached-1/_search?track_total_hits=1", `{"track_total_hits":true,` + sorted + `}`},
		{"/cached-1/_search?terminate_after=1", `{"size":0}`},
		{"/cached-1/_search?source=%7B%22size%22:1,%22sort%22:%5B%22k%22%5D%7D&source_content_type=application/json", ``},
		{"/cached-1/_search?source=%7B%22size%22:2,%22sort%22:%5B%22k%22%5D%7D&source_content_type=application/json", ``},
		{"/cached-1/_search?source=%7B%22size%22:2%7D", ``},
		{"/cached-1/_search?source=%7B%7D&source_content_type=application/json", `{"size":1}`},
		{"/cached-1/_search?size=1;from=1", `{` + sorted + `}`},
		{"/cached-1/_search?size=1&SIZE=2", `{` + sorted + `}`},
		{"/cached-1/_search?version", `{` + sorted + `}`},
		{"/cached-1/_search?version=false", `{"version":true,` + sorted + `}`},
		{"/cached-1/_search?preference=_local", `{` + sorted + `}`},
		{"/cached-1/_search?routing=1", `{` + sorted + `}`},
		{"/cached-1/_search?%73ize=1", `{` + sorted + `}`},
		{"/cached-1%2Ccached-2/_search", `{"size":3,"sort":["k","_index"]}`},
		{"/cached-%2A/_search", `{"size":3,"sort":["k","_index"]}`},
	} {
		c.equal(ask.target, ask.body)
	}
}

// filterPaths are answers that are cut down: they are kept, and look as the node's.
func (c *cacheTest) filterPaths() {
	const body = `{"size":2,"sort":["k"],"aggs":{"k":{"terms":{"field":"k"}}}}`
	for _, patterns := range []string{
		"hits.hits._id", "hits.total,aggregations.k.buckets.key", "hits,-hits.hits._source", "-hits", "nothing", "_shards", "_shards,hits.total",
		"timed_out,_shards,terminated_early,_clusters", "hits.hits._so*", "aggregations.*.buckets.doc_count", "took,hits.max_score",
	} {
		if status := c.equal("/cached-1/_search?filter_path="+patterns, body); !strings.HasPrefix(status, "weir; hit") {
			c.Errorf("%s: %s, want a hit", patterns, status)
		}
	}
	for _, patterns := range []string{"*.total", "**._id", "_shards.failed", "-_shards.total", "-*out", "hits&pretty", "hits.hits._id&size=x", "error"} {
		c.equal("/cached-1/_search?filter_path="+patterns, body)
		c.equal("/cached-none/_search?filter_path="+patterns, body)
	}
}

// fields of the answer to one caller are not those of the next.
func (c *cacheTest) fields() {
	ask := func(header http.Header) (http.Header, string) {
		c.Helper()
		req, err := http.NewRequestWithContext(c.Context(), http.MethodPost, c.gateway.url+"/cached-1/_search", strings.NewReader(`{"size":4,"sort":["k"]}`))
		if err != nil {
			c.Fatal(err)
		}
		req.Header = header
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			c.Fatal(err)
		}
		defer resp.Body.Close()
		var plain io.Reader = resp.Body
		if resp.Header.Get("Content-Encoding") == "gzip" {
			if plain, err = gzip.NewReader(resp.Body); err != nil {
				c.Fatal(err)
			}
		}
		text, err := io.ReadAll(plain)
		if err != nil {
			c.Fatal(err)
		}
		return resp.Header, string(text)
	}
	first, want := ask(http.Header{"X-Opaque-Id": {"one"}, "Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}})
	if first.Get("X-Opaque-Id") != "one" {
		c.Errorf("the first caller is called %q", first.Get("X-Opaque-Id"))
	}
	for i, coding := range []string{"", "gzip", "gzip", "identity", "gzip;q=0", ""} {
		id := fmt.Sprint("next-", i)
		header := http.Header{"X-Opaque-Id": {id}}
		if coding != "" {
			header.Set("Accept-Encoding", coding)
		}
		got, text := ask(header)
		if !strings.HasPrefix(got.Get("Cache-Status"), "weir; hit") || got.Get("X-Opaque-Id") != id || len(got["X-Opaque-Id"]) != 1 || text != want ||
			got.Get("Content-Encoding") == "gzip" && coding != "gzip" || got.Get("Content-Type") != first.Get("Content-Type") {
			c.Errorf("with Accept-Encoding %q: %v %s, want %s", coding, got, text, want)
		}
	}
	anonymous, _ := ask(http.Header{})
	if _, given := anonymous["X-Opaque-Id"]; given {
		c.Errorf("who has no X-Opaque-Id is given %v", anonymous["X-Opaque-Id"])
	}
}

// incomplete answers are given and not kept, however they were asked for.
func (c *cacheTest) incomplete() {
	c.direct(http.MethodPut, "/cached-2/_doc/0?refresh=true", `{"only_here":1}`)
	const body = `{"sort":["only_here"]}` // shards of cached-1 have no mapping for it: 200 with failures
	for _, target := range []string{"/cached-1,cached-2/_search", "/cached-1,cached-2/_search?filter_path=hits.total"} {
		for range 2 {
			code, got, status := c.send(c.gateway.url, target, body)
			if strings.Contains(status, "hit") || strings.Contains(status, "stored") {
				c.Errorf("%s: %d %s %s", target, code, status, got)
			}
		}
	}
}

// several searches at once are answered one by one, and put together as the node does.
func (c *cacheTest) several() {
	line := func(header, body string) string { return header + "\n" + body + "\n" }
	one, two := line(`{"index":"cached-1"}`, `{"size":1,"sort":["k"]}`), line(`{"index":["cached-1","cached-2"]}`, `{"size":0,"track_total_hits":true}`)
	three, missing := line(`{"index":"cached-2","search_type":"query_then_fetch"}`, `{"sort":["k"],"size":1}`), line(`{"index":"cached-none"}`, `{}`)
	for _, body := range []string{one, one + two, two + one, one + one, three + two + one, one + missing, missing + two, one + line(`{}`, `{"query":{"nope":{}}}`), strings.TrimSuffix(one, "\n"), "\n{}\n"} {
		c.equal("/cached-1/_msearch", body)
	}
	if status := c.equal("/_msearch", three+one+two); !strings.HasPrefix(status, "weir; hit") {
		c.Errorf("%s, want a hit", status)
	}
	c.equal("/cached-1/_search", `{"sort":["k"],"size":1}`)
	if status := c.equal("/cached-2/_search", `{"sort":["k"],"size":1}`); !strings.HasPrefix(status, "weir; hit") {
		c.Errorf("a search that was one of several: %s, want a hit", status)
	}
}

// writes through the gateway with refresh are seen by the next search.
func (c *cacheTest) writes() {
	const search = `{"size":0,"track_total_hits":true}`
	targets := []string{"/cached-1/_search", "/cached/_search", "/cached*/_search", "/cached-1/_count"}
	ask := func() {
		c.Helper()
		for _, target := range targets {
			body := search
			if strings.HasSuffix(target, "_count") {
				body = `{}`
			}
			c.equal(target, body)
		}
	}
	ask()
	for _, w := range []struct{ method, target, body string }{
		{http.MethodPut, "/cached-1/_doc/100?refresh=true", `{"a":1}`},
		{http.MethodPost, "/_bulk?refresh=wait_for", "{\"index\":{\"_index\":\"cached-1\",\"_id\":\"101\"}}\n{\"a\":1}\n{\"delete\":{\"_index\":\"cached-1\",\"_id\":\"100\"}}\n"},
		{http.MethodPost, "/cached/_update/101?refresh=true", `{"doc":{"a":2}}`},
		{http.MethodPost, "/cached-1/_delete_by_query?refresh=true", `{"query":{"term":{"a":2}}}`},
		{http.MethodPut, "/cached-1/_doc/102", `{"a":1}`},
		{http.MethodPost, "/cached-1/_refresh", ``},
		{http.MethodPost, "/_aliases", `{"actions":[{"remove":{"index":"cached-1","alias":"cached"}},{"add":{"index":"cached-2","alias":"cached"}}]}`},
		{http.MethodPost, "/_aliases", `{"actions":[{"remove":{"index":"cached-2","alias":"cached"}},{"add":{"index":"cached-1","alias":"cached"}}]}`},
	} {
		must(c, c.gateway.client, w.method, c.gateway.url+w.target, w.body)
		if strings.HasSuffix(w.target, "/_doc/102") {
			continue // not visible yet
		}
		ask()
	}
}

// recreate makes cached-2 anew, with other documents and its alias.
func (c *cacheTest) recreate() {
	c.direct(http.MethodPut, "/cached-2", `{"settings":{"number_of_shards":2,"number_of_replicas":0},"aliases":{"cached":{}}}`)
	for i := range 5 {
		c.direct(http.MethodPut, fmt.Sprintf("/cached-2/_doc/%d?refresh=true", i), `{"a":1}`)
	}
	c.direct(http.MethodDelete, "/cached-2/_doc/4?refresh=true", "")
}

// rollover is an alias that goes on to another index, around the gateway and through it: what is written there is found.
func (c *cacheTest) rollover() {
	const settings = `{"settings":{"number_of_shards":1,"number_of_replicas":0}`
	c.direct(http.MethodPut, "/cached-roll-000001", settings+`,"aliases":{"cached-roll":{"is_write_index":true}}}`)
	c.direct(http.MethodPut, "/cached-roll/_doc/1?refresh=true", `{}`)
	outdated := func(context.Context) error {
		_, want, _ := c.send(c.cluster, "/cached-roll/_search", allDocuments)
		if _, got, status := c.send(c.gateway.url, "/cached-roll/_search", allDocuments); got != want {
			return fmt.Errorf("%s: %s, want %s", status, got, want)
		}
		return nil
	}
	for id, base := range []string{c.cluster, c.gateway.url} {
		if status := c.equal("/cached-roll/_search", allDocuments); !strings.HasPrefix(status, "weir; hit") {
			c.Errorf("%s, want a hit", status)
		}
		must(c, c.gateway.client, http.MethodPost, base+"/cached-roll/_rollover", settings+`}`)
		must(c, c.gateway.client, http.MethodPut, fmt.Sprintf("%s/cached-roll/_doc/%d?refresh=true", base, id+2), `{}`)
		if base == c.cluster {
			until(c, foreignBound, outdated)
		} else if err := outdated(c.Context()); err != nil {
			c.Error(err)
		}
	}
}

// mapped is a field that comes to be around the gateway, while nothing is written: who searches for it is told.
func (c *cacheTest) mapped() {
	const target = "/cached-days/_search"
	const body = `{"size":0,"track_total_hits":true,"query":{"term":{"also":1}}}`
	if status := c.equal(target, body); !strings.HasPrefix(status, "weir; hit") {
		c.Errorf("%s, want a hit", status)
	}
	c.direct(http.MethodPut, "/cached-days/_mapping", `{"properties":{"also":{"type":"alias","path":"n"}}}`)
	_, want, _ := c.send(c.cluster, target, body)
	if !strings.Contains(want, `"value":1`) {
		c.Errorf("the node does not find what it has: %s", want)
	}
	until(c, foreignBound, func(context.Context) error {
		if _, got, status := c.send(c.gateway.url, target, body); got != want {
			return fmt.Errorf("%s: %s, want %s", status, got, want)
		}
		return nil
	})
}

// foreignBound is in what time changes around the gateway are seen: twice the interval of polls, and what this machine may take for it.
const foreignBound = 2*time.Second + 5*time.Second

// foreign changes are seen although the cache keeps the cluster from being searched, within the bound that is published.
func (c *cacheTest) foreign() {
	for _, change := range []struct{ method, target, body string }{
		{http.MethodPut, "/cached-1/_doc/200", `{"a":1}`}, // without refresh: the default one, as nobody searches
		{http.MethodPost, "/_aliases", `{"actions":[{"add":{"index":"cached-1","alias":"cached","filter":{"term":{"a":1}}}}]}`},
		{http.MethodPost, "/_aliases", `{"actions":[{"add":{"index":"cached-1","alias":"cached","filter":{"term":{"a":7}}}}]}`}, // no document has it
		{http.MethodPost, "/_aliases", `{"actions":[{"remove":{"index":"cached-1","alias":"cached"}},{"add":{"index":"cached-2","alias":"cached"}}]}`},
		{http.MethodDelete, "/cached-2", ""}, // and made anew
	} {
		before, asked := "", time.Now()
		until(c, 30*time.Second, func(context.Context) error { // until polls find that it holds, what was before it being settled
			var status string
			if _, before, status = c.send(c.gateway.url, "/cached/_search", allDocuments); !strings.HasPrefix(status, "weir; hit") {
				asked = time.Now()
			}
			if held := time.Since(asked); held < 2500*time.Millisecond {
				return fmt.Errorf("%s for %s", status, held)
			}
			return nil
		})
		c.direct(change.method, change.target, change.body)
		if change.method == http.MethodDelete {
			c.recreate()
		}
		changed := time.Now()
		until(c, foreignBound, func(context.Context) error {
			_, now, status := c.send(c.gateway.url, "/cached/_search", allDocuments)
			outdated := now == before
			if change.method != http.MethodPut { // whoever asks the cluster wakes an index that nobody searches
				_, want, _ := c.send(c.cluster, "/cached/_search", allDocuments)
				outdated = now != want
			}
			if outdated {
				return fmt.Errorf("%s: %s after %s", change.target, status, time.Since(changed))
			}
			return nil
		})
		c.Logf("%s was seen after %s", change.target, time.Since(changed).Round(100*time.Millisecond))
	}
}

// allDocuments counts them.
const allDocuments = `{"size":0,"track_total_hits":true}`

// proven is an answer that lives longer than its time, because nothing changes.
func (c *cacheTest) proven() {
	until(c, 30*time.Second, func(context.Context) error {
		if _, _, status := c.send(c.gateway.url, "/cached/_search", allDocuments); !strings.Contains(status, "proven") {
			return errors.New(status)
		}
		return nil
	})
}
