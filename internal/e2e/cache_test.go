package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/estest"
)

func TestCache(t *testing.T) { testCache(t, estest.New(t, estest.Options{}).URL()) }

// testCache asks a cluster directly and through the gateway's cache, and compares.
func testCache(t *testing.T, cluster string) {
	g := newSite(t, cluster, highLimit).start()
	c := &cacheTest{TB: t, cluster: cluster, gateway: g}
	c.prepare()
	defer deleteAll(t, g.client, cluster, "cached*")
	t.Run("same search, same answer", c.with((*cacheTest).sameSearches))
	t.Run("other search, other answer", c.with((*cacheTest).otherSearches))
	t.Run("incomplete answers", c.with((*cacheTest).incomplete))
	t.Run("several searches", c.with((*cacheTest).several))
	t.Run("writes through the gateway", c.with((*cacheTest).writes))
	t.Run("changes around the gateway", c.with((*cacheTest).foreign))
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
		`{"size":1}`, "/* a comment */{\"size\":1}", "\xef\xbb\xbf{\"size\":1}", `{"size":1.5}`, `{"indices_boost":[{"cached-1":2}]}`, `{"size":1,"unknown":1}`,
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

// foreign changes are seen although the cache keeps the cluster from being searched, within the bound that is published.
func (c *cacheTest) foreign() {
	const bound = 10*time.Second + 5*time.Second // twice the interval of polls, and what this machine may take for it
	const body = `{"size":0,"track_total_hits":true}`
	for _, change := range []struct{ method, target, body string }{
		{http.MethodPut, "/cached-1/_doc/200", `{"a":1}`}, // without refresh: the default one, as nobody searches
		{http.MethodPost, "/_aliases", `{"actions":[{"add":{"index":"cached-1","alias":"cached","filter":{"term":{"a":1}}}}]}`},
		{http.MethodPost, "/_aliases", `{"actions":[{"remove":{"index":"cached-1","alias":"cached"}},{"add":{"index":"cached-2","alias":"cached"}}]}`},
	} {
		_, before, _ := c.send(c.gateway.url, "/cached/_search", body)
		c.direct(change.method, change.target, change.body)
		changed := time.Now()
		until(c, bound, func(context.Context) error {
			_, now, status := c.send(c.gateway.url, "/cached/_search", body)
			outdated := now == before
			if change.method != http.MethodPut { // whoever asks the cluster wakes an index that nobody searches
				_, want, _ := c.send(c.cluster, "/cached/_search", body)
				outdated = now != want
			}
			if outdated {
				return fmt.Errorf("%s: %s after %s", change.target, status, time.Since(changed))
			}
			return nil
		})
		c.Logf("%s was seen after %s", change.target, time.Since(changed).Round(100*time.Millisecond))
	}
	// And while nothing changes an answer lives longer than its time.
	until(c, 30*time.Second, func(context.Context) error {
		if _, _, status := c.send(c.gateway.url, "/cached/_search", body); !strings.Contains(status, "proven") {
			return errors.New(status)
		}
		return nil
	})
}
