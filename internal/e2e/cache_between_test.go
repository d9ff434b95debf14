package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// testCacheBetween has a cluster's own answers cut, held up and lost on their way to the gateway's cache.
func testCacheBetween(t *testing.T, cluster string) {
	b := putBetween(t, cluster)
	g := newPlainSite(t, b.url, "      - cache: {ttl: 1m, max_entry: 64kb}\n", swap("endpoint: "+b.url, "endpoint: "+b.url+", discovery: {enabled: false}")).start()
	c := &betweenTest{&cacheTest{TB: t, cluster: cluster, gateway: g}, b}
	c.direct(http.MethodPut, "/cached-between", `{"settings":{"number_of_shards":1,"number_of_replicas":0},"mappings":{"properties":{"n":{"type":"long"}}}}`)
	long := strings.Repeat("x", 100_000)
	c.direct(http.MethodPut, "/cached-between/_doc/1?refresh=true", fmt.Sprintf(`{"n":0,"long":%q}`, long))
	for _, part := range []struct {
		name string
		run  func(*betweenTest)
	}{
		{"answers that are not whole", (*betweenTest).notWhole},
		{"answers to several searches that do not fit", (*betweenTest).notAll},
		{"many wait", (*betweenTest).manyWait},
		{"the first of many leaves", (*betweenTest).firstLeaves},
		{"some of many leave", (*betweenTest).someLeave},
		{"many wait for a failure", (*betweenTest).failure},
		{"many wait for a large answer", (*betweenTest).tooLarge},
		{"many wait for a partial answer", (*betweenTest).partial},
		{"writes while a search is on its way", (*betweenTest).overtaken},
	} {
		t.Run(part.name, func(t *testing.T) {
			part.run(&betweenTest{&cacheTest{t, cluster, g}, b})
			b.onSearches(nil)
		})
	}
}

type betweenTest struct {
	*cacheTest
	between *between
}

// small is a search with a short answer, another one for each n.
func small(n int) string { return fmt.Sprintf(`{"_source":["n"],"from":0,"size":%d}`, 1+n) }

// notWhole are answers that are no whole answers, though each looks like one in some way: none is given again.
func (c *betweenTest) notWhole() {
	replace := func(old, fresh string) func(http.ResponseWriter, *httptest.ResponseRecorder) {
		return func(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
			if !strings.Contains(rec.Body.String(), old) {
				c.Errorf("the node's answer has no %s: %s", old, rec.Body)
			}
			send(w, rec, strings.Replace(rec.Body.String(), old, fresh, 1), -1)
		}
	}
	status := func(code int, kind, body string) func(http.ResponseWriter, *httptest.ResponseRecorder) {
		return func(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
			rec.Code = code
			rec.Header().Set("Content-Type", kind)
			if body == "" {
				body = rec.Body.String()
			}
			send(w, rec, body, -1)
		}
	}
	const kind = "application/json; charset=UTF-8"
	spoils := []struct {
		name  string
		count bool // an answer to _count can be spoiled like that too
		spoil func(http.ResponseWriter, *httptest.ResponseRecorder)
	}{
		{"timed out", false, replace(`"timed_out":false`, `"timed_out":true`)},
		{"ended early", false, replace(`"timed_out":false`, `"timed_out":false,"terminated_early":true`)},
		{"a shard failed", true, replace(`"failed":0`, `"failed":1`)},
		{"a shard is missing", true, replace(`"successful":1`, `"successful":0`)},
		{"a cluster was left out", true, replace(`"_shards":`, `"_clusters":{"total":2,"successful":1,"skipped":1},"_shards":`)},
		{"broken off", true, func(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
			send(w, rec, rec.Body.String()[:rec.Body.Len()/2], rec.Body.Len())
			panic(http.ErrAbortHandler)
		}},
		{"broken off between chunks", true, func(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()-1])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{"a length that is too short", true, func(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
			send(w, rec, rec.Body.String()[:rec.Body.Len()-1], -1)
		}},
		{"a length that is too long", true, func(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
			send(w, rec, rec.Body.String(), rec.Body.Len()+1)
			panic(http.ErrAbortHandler)
		}},
		{"206", true, status(http.StatusPartialContent, kind, "")},
		{"429", true, status(http.StatusTooManyRequests, kind, `{"error":{"type":"circuit_breaking_exception"},"status":429}`)},
		{"503", true, status(http.StatusServiceUnavailable, kind, `{"error":{"type":"search_phase_execution_exception"},"status":503}`)},
		{"a page", true, status(http.StatusOK, "text/html", "<html>")},
		{"a page that calls itself JSON", true, status(http.StatusOK, kind, "<html>")},
	}
	for i, s := range spoils {
		for _, ask := range []struct{ target, body string }{
			{"/cached-between/_search", small(i)},
			{"/cached-between/_search?filter_path=hits.hits._id", small(i)},
			{"/cached-between/_search?filter_path=hits,_shards", small(i)},
			{"/_msearch", "{\"index\":\"cached-between\"}\n" + strings.Replace(small(i), "{", `{"version":true,`, 1) + "\n"},
			{"/cached-between/_count", fmt.Sprintf(`{"query":{"range":{"n":{"gte":%d}}}}`, -i)},
		} {
			if strings.HasSuffix(ask.target, "_count") && !s.count {
				continue
			}
			c.between.onSearches(func(w http.ResponseWriter, r *http.Request, node http.Handler) { s.spoil(w, answered(r, node)) })
			before := c.between.asked.Load()
			first, err := askOf(c.Context(), c.gateway, ask.target, ask.body)
			if got := first.header.Get("Cache-Status"); err == nil && (strings.HasPrefix(got, "weir; hit") || strings.HasSuffix(got, "stored")) {
				c.Errorf("%s: %s %s: %s", s.name, ask.target, ask.body, got)
			}
			c.between.onSearches(nil)
			spoiled := c.between.asked.Load()
			if spoiled == before {
				c.Errorf("%s: %s %s was not asked of the node", s.name, ask.target, ask.body)
			}
			status := c.equal(ask.target, ask.body)
			if s.name == "a page" && strings.Contains(ask.target, "filter_path") {
				continue // what nobody can cut is asked for alone for a while
			}
			if asked := c.between.asked.Load() - spoiled; asked != 1 || !strings.HasPrefix(status, "weir; hit") {
				c.Errorf("%s: %s %s: asked %d times after it, want once and then a hit: %s", s.name, ask.target, ask.body, asked, status)
			}
		}
	}
}

// askOf sends a search to a gateway.
func askOf(ctx context.Context, g *gateway, target, body string, fields ...string) (answer, error) {
	return ask(ctx, g.client, http.MethodPost, g.url+target, body, fields...)
}

// notAll is a node that answers a _msearch with one answer too few or too many: it is asked again for all of them.
func (c *betweenTest) notAll() {
	item := func(n int) string { // no two have the same answer
		return "{\"index\":\"cached-between\"}\n" + fmt.Sprintf(`{"query":{"constant_score":{"filter":{"match_all":{}},"boost":%d}},"_source":["n"]}`, n) + "\n"
	}
	for i, change := range []func([]json.RawMessage) []json.RawMessage{
		func(all []json.RawMessage) []json.RawMessage { return all[1:] },
		func(all []json.RawMessage) []json.RawMessage { return append(all, all[0]) },
	} {
		first := 100 + 10*i
		c.equal("/_msearch", item(first)) // one of them is there, so that fewer are asked for than came
		calls := 0
		c.between.onSearches(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
			rec := answered(r, node)
			calls++
			if calls > 1 {
				send(w, rec, rec.Body.String(), -1)
				return
			}
			var all struct {
				Responses []json.RawMessage `json:"responses"`
			}
			if err := json.Unmarshal(rec.Body.Bytes(), &all); err != nil {
				c.Error(err)
			}
			all.Responses = change(all.Responses)
			body, err := json.Marshal(all)
			if err != nil {
				c.Error(err)
			}
			send(w, rec, string(body), -1)
		})
		body := item(first) + item(first+1) + item(first+2)
		_, want, _ := c.send(c.cluster, "/_msearch", body)
		if _, got, status := c.send(c.gateway.url, "/_msearch", body); got != want || calls != 2 {
			c.Errorf("asked %d times, got %s (%s), want %s", calls, got, status, want)
		}
		for n := range 3 {
			c.equal("/_msearch", item(first+n)) // whatever is kept of it
		}
	}
}

// hold keeps searches from the node until release is called; what is then done to them is up to m.
func (c *betweenTest) hold(m meddler) (release func()) {
	gate := make(chan struct{})
	var once sync.Once
	release = func() { once.Do(func() { close(gate) }) }
	c.Cleanup(release)
	c.between.onSearches(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		<-gate
		if m == nil {
			node.ServeHTTP(w, r)
			return
		}
		m(w, r, node)
	})
	return release
}

// A caller is somebody who asked.
type caller struct {
	answer
	err error
}

// crowd has one caller ask, and others as soon as the node is asked for that one; it returns when they all wait.
func (c *betweenTest) crowd(n int, first, others func() (answer, error)) (all []caller, wait func()) {
	c.Helper()
	all = make([]caller, 1+n)
	var wg sync.WaitGroup
	before := c.between.asked.Load()
	wg.Go(func() { all[0].answer, all[0].err = first() })
	until(c, 10*time.Second, func(context.Context) error {
		if c.between.asked.Load() == before {
			return fmt.Errorf("the node is not asked")
		}
		return nil
	})
	for i := range n {
		wg.Go(func() { all[1+i].answer, all[1+i].err = others() })
	}
	c.waiting(n)
	return all, wg.Wait
}

// waiting waits until n callers wait for the answer to another's search.
func (c *betweenTest) waiting(n int) {
	c.Helper()
	until(c, 30*time.Second, func(context.Context) error {
		if got := c.gateway.metrics().sum("weir_cache_waiting_requests"); got != float64(n) {
			return fmt.Errorf("%v callers wait, want %d", got, n)
		}
		return nil
	})
}

// asker returns a function that sends one and the same search.
func (c *betweenTest) asker(ctx context.Context, target, body string) func() (answer, error) {
	return func() (answer, error) { return askOf(ctx, c.gateway, target, body) }
}

// same checks that callers were given the same, with a status, and how often the node was asked for it.
func (c *betweenTest) same(all []caller, status int, asked int64) {
	c.Helper()
	for i, a := range all {
		if a.err != nil || a.status != status || !bytes.Equal(a.body, all[0].body) {
			c.Errorf("caller %d: %d %.200s, %v; the first got %.200s", i, a.status, a.body, a.err, all[0].body)
		}
	}
	if got := c.between.asked.Load(); got != asked {
		c.Errorf("the node was asked %d times, want %d", got, asked)
	}
}

func (c *betweenTest) manyWait() {
	release := c.hold(nil)
	ask := c.asker(c.Context(), "/cached-between/_search", small(200))
	before := c.between.asked.Load()
	all, wait := c.crowd(999, ask, ask)
	release()
	wait()
	c.same(all, http.StatusOK, before+1)
	c.equal("/cached-between/_search", small(200))
	c.same(all, http.StatusOK, before+1)
}

// firstLeaves is a first caller who leaves; that the gateway has seen it shows by a control, who leaves later and is cut off.
func (c *betweenTest) firstLeaves() {
	gate, cut := make(chan struct{}), make(chan struct{})
	c.between.onSearches(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		if r.URL.Query().Has("control") {
			_, _ = io.Copy(io.Discard, r.Body) // the server looks for the end of connections behind their requests
			<-r.Context().Done()
			close(cut)
			return
		}
		<-gate
		node.ServeHTTP(w, r)
	})
	ctx, leave := context.WithCancel(c.Context())
	defer leave()
	before := c.between.asked.Load()
	all, wait := c.crowd(50, c.asker(ctx, "/cached-between/_search", small(210)), c.asker(c.Context(), "/cached-between/_search", small(210)))
	leave()
	late, leaveLate := context.WithTimeout(c.Context(), 200*time.Millisecond)
	defer leaveLate()
	if a, err := askOf(late, c.gateway, "/cached-between/_search?control=1", small(210)); err == nil {
		c.Errorf("the control was answered: %d %s", a.status, a.body)
	}
	<-cut
	close(gate)
	wait()
	if all[0].err == nil {
		c.Errorf("the first caller was answered: %d %s", all[0].status, all[0].body)
	}
	c.same(all[1:], http.StatusOK, before+2)
}

func (c *betweenTest) someLeave() {
	release := c.hold(nil)
	ask := c.asker(c.Context(), "/cached-between/_search", small(220))
	before := c.between.asked.Load()
	all, wait := c.crowd(20, ask, ask)
	const deadline = 50 * time.Millisecond
	var hasty sync.WaitGroup
	for range 20 {
		hasty.Go(func() {
			ctx, cancel := context.WithTimeout(c.Context(), deadline)
			defer cancel()
			if a, err := askOf(ctx, c.gateway, "/cached-between/_search", small(220)); err == nil {
				c.Errorf("answered within %s: %d %s", deadline, a.status, a.body)
			}
		})
	}
	hasty.Wait()
	c.waiting(20) // those who left wait no more
	release()
	wait()
	c.same(all, http.StatusOK, before+1)
}

func (c *betweenTest) failure() {
	const body = `{"error":{"type":"planted"},"status":500}`
	release := c.hold(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		rec := answered(r, node)
		rec.Code = http.StatusInternalServerError
		send(w, rec, body, -1)
	})
	ask := c.asker(c.Context(), "/cached-between/_search", small(230))
	before := c.between.asked.Load()
	all, wait := c.crowd(50, ask, ask)
	release()
	wait()
	c.same(all, http.StatusInternalServerError, before+1)
	c.between.onSearches(nil)
	c.equal("/cached-between/_search", small(230))
	if got := c.between.asked.Load(); got != before+2 {
		c.Errorf("the node was asked %d times after a failure, want once", got-before-1)
	}
}

func (c *betweenTest) tooLarge() {
	const squeezed = 4 // of those who have waited go on at a time
	first, others := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	came, now, most := 0, 0, 0
	c.between.onSearches(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		mu.Lock()
		came++
		gate := others
		if came == 1 {
			gate = first
		} else {
			now++
			most = max(most, now)
		}
		mu.Unlock()
		<-gate
		rec := answered(r, node)
		if gate == others {
			mu.Lock()
			now-- // before the gateway has the answer, and sends the next one
			mu.Unlock()
		}
		send(w, rec, rec.Body.String(), -1)
	})
	ask := c.asker(c.Context(), "/cached-between/_search", `{"size":240}`)
	before := c.between.asked.Load()
	all, wait := c.crowd(20, ask, ask)
	close(first)
	until(c, 10*time.Second, func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if now < squeezed {
			return fmt.Errorf("%d of those who have waited are at the node, want %d", now, squeezed)
		}
		return nil
	})
	c.waiting(0)
	close(others)
	wait()
	if most != squeezed {
		c.Errorf("%d of those who have waited were at the node at a time, want %d", most, squeezed)
	}
	if len(all[0].body) < 100_000 {
		c.Errorf("an answer of %d bytes is not large", len(all[0].body))
	}
	for i := range all { // each asks by itself, so that the times differ
		all[i].body = took.ReplaceAll(all[i].body, nil)
	}
	c.same(all, http.StatusOK, before+21)
}

// partial is a first caller who is content with a part, and others who are not.
func (c *betweenTest) partial() {
	release := c.hold(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		rec := answered(r, node)
		body := rec.Body.String()
		if r.URL.Query().Has("timeout") {
			body = strings.Replace(body, `"timed_out":false`, `"timed_out":true`, 1)
		}
		send(w, rec, body, -1)
	})
	before := c.between.asked.Load()
	all, wait := c.crowd(50, c.asker(c.Context(), "/cached-between/_search?timeout=1ms", small(250)),
		c.asker(c.Context(), "/cached-between/_search?allow_partial_search_results=false", small(250)))
	release()
	wait()
	if !strings.Contains(string(all[0].body), `"timed_out":true`) {
		c.Errorf("the first caller got %s", all[0].body)
	}
	c.same(all[1:], http.StatusOK, before+2)
	for _, a := range all[1:] {
		if !strings.Contains(string(a.body), `"timed_out":false`) {
			c.Errorf("one who wants all shards got %s", a.body)
		}
	}
}

// overtaken are searches that a write passes on their way, at each place where it can: once the write is acknowledged nobody is
// given what was so before.
func (c *betweenTest) overtaken() {
	const search = `{"query":{"ids":{"values":["w"]}},"_source":["n"]}`
	n := 0
	write := func(refresh string) {
		n++
		if n%2 == 0 {
			must(c, c.gateway.client, http.MethodPut, c.gateway.url+"/cached-between/_doc/w?refresh="+refresh, fmt.Sprintf(`{"n":%d}`, n))
			return
		}
		must(c, c.gateway.client, http.MethodPost, c.gateway.url+"/_bulk?refresh="+refresh,
			fmt.Sprintf("{\"index\":{\"_index\":\"cached-between\",\"_id\":\"w\"}}\n{\"n\":%d}\n", n))
	}
	sees := func(when string) {
		c.Helper()
		for range 2 {
			a, err := askOf(c.Context(), c.gateway, "/cached-between/_search", search)
			if err != nil || !strings.Contains(string(a.body), fmt.Sprintf(`"_source":{"n":%d}`, n)) {
				c.Errorf("%s: %s %s, want n %d: %v", when, a.header.Get("Cache-Status"), a.body, n, err)
			}
		}
	}
	write("true")
	sees("after a write")
	for _, refresh := range []string{"true", "wait_for"} {
		for _, place := range []string{"before the node", "after the node"} {
			gate, there := make(chan struct{}), make(chan struct{}, 1)
			c.between.onSearches(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
				if place == "before the node" {
					there <- struct{}{}
					<-gate
					node.ServeHTTP(w, r)
					return
				}
				rec := answered(r, node)
				there <- struct{}{}
				<-gate
				send(w, rec, rec.Body.String(), -1)
			})
			done := make(chan error, 1)
			go func() {
				_, err := askOf(c.Context(), c.gateway, "/cached-between/_search", search, "Cache-Control: no-cache")
				done <- err
			}()
			<-there
			write(refresh)
			c.between.onSearches(nil)
			sees(place + ", while the older search is on its way")
			close(gate)
			if err := <-done; err != nil {
				c.Error(err)
			}
			sees(place)
		}
	}
	// The write is done, and its answer on its way, when a search begins and ends.
	gate, there := make(chan struct{}), make(chan struct{})
	c.between.onAll(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		if !strings.HasSuffix(r.URL.Path, "_bulk") && !strings.Contains(r.URL.Path, "/_doc/") {
			node.ServeHTTP(w, r)
			return
		}
		close(there)
		<-gate
		node.ServeHTTP(w, r)
	})
	old := n
	var wg sync.WaitGroup
	wg.Go(func() { write("true") })
	<-there
	a, err := askOf(c.Context(), c.gateway, "/cached-between/_search", search, "Cache-Control: no-cache")
	if err != nil || !strings.Contains(string(a.body), fmt.Sprintf(`{"n":%d}`, old)) {
		c.Errorf("before the write has reached the node: %s %v", a.body, err)
	}
	close(gate)
	wg.Wait()
	sees("the search began after the write was sent")
}
