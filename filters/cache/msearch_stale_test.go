package cache

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic"
	"weir/elastic/query"
	"weir/flows"
)

// search is the body of one of the searches that these tests ask for.
func search(n int) string { return fmt.Sprintf(`{"size":%d}`, n) }

// multiOf is a _msearch of these searches.
func multiOf(searches ...int) string {
	var all []string
	for _, n := range searches {
		all = append(all, head, search(n))
	}
	return lines(all...)
}

// tooks returns which call has answered each search of x; 0 for an error.
func tooks(t *testing.T, x *flows.Exchange) string {
	t.Helper()
	all, ok := query.Responses([]byte(bodyOf(x)))
	if !ok {
		t.Fatalf("no answer to a _msearch: %s", bodyOf(x))
	}
	var out []string
	for _, item := range all {
		n := 0
		_, _ = fmt.Sscanf(string(item), `{"took":%d,`, &n)
		out = append(out, fmt.Sprint(n))
	}
	return strings.Join(out, " ")
}

func TestStaleSearchesOfMultiSearchAreRenewed(t *testing.T) {
	stale(t, "stale_while_revalidate: 20s", func(t *testing.T, r *rig) {
		var sent []string
		node := multiNode(&sent)
		r.node = node
		r.ask("/i/_search", search(1), "Authorization", "a")
		r.ask("/_msearch", multiOf(2), "Authorization", "a")
		<-time.After(12 * time.Second)
		r.ask("/i/_search", search(3), "Authorization", "a")
		sent = nil
		hold := make(chan struct{})
		r.node = func(x *flows.Exchange, call int64) error { <-hold; return node(x, call) }
		body := multiOf(1, 2, 3, 1)
		for range 20 {
			x := r.ask("/_msearch?max_concurrent_searches=3", body, "Authorization", "a")
			if got := tooks(t, x); got != "1 2 3 1" || field(x, "age") != "12" || x.Trace.Outcome != flows.Hit ||
				!strings.HasPrefix(field(x, "cache-status"), "weir; hit; ttl=-") || !strings.HasSuffix(field(x, "cache-status"), "; detail=stale-while-revalidate") {
				t.Fatalf("answers of %s, Age %s, %s, %s", got, field(x, "age"), field(x, "cache-status"), x.Trace.Outcome)
			}
		}
		x := r.ask("/i/_search", search(1), "Authorization", "a") // has nothing left to renew
		if !strings.HasSuffix(field(x, "cache-status"), "; detail=stale-while-revalidate") {
			t.Errorf("alone: %s", field(x, "cache-status"))
		}
		synctest.Wait()
		r.wantCalls(4)
		close(hold)
		synctest.Wait()
		if want := []string{multiOf(1, 2)}; len(sent) != 1 || sent[0] != want[0] {
			t.Errorf("sent %q, want %q", sent, want)
		}
		x = r.ask("/_msearch", body, "Authorization", "a")
		if got := tooks(t, x); got != "4 4 3 4" || strings.Contains(field(x, "cache-status"), "stale") {
			t.Errorf("after the renewal: %s, %s", got, field(x, "cache-status"))
		}
		if r.count("weir_cache_renewals_total", "stored") != 2 || r.count("weir_cache_requests_total", "main", "stale") != 21 ||
			r.count("weir_cache_searches_total", "main", "stale") != 60 {
			t.Error("the metrics do not say two renewals, 21 stale requests and 60 stale searches")
		}
		if n := r.shared().renewals.Load(); n != 0 {
			t.Errorf("%d renewals run", n)
		}
		// Beyond the window, and for who wants nothing that old.
		<-time.After(12 * time.Second)
		wantStatus(t, r.ask("/_msearch", body, "Authorization", "a", "Cache-Control", "max-age=3"), "weir; fwd=miss; stored")
		<-time.After(40 * time.Second)
		wantStatus(t, r.ask("/_msearch", body, "Authorization", "a"), "weir; fwd=miss; stored")
	})
}

// What is missing is waited for; what is only old is not, and is not asked for with it.
func TestStaleAndMissingSearchesOfMultiSearch(t *testing.T) {
	stale(t, "stale_while_revalidate: 20s", func(t *testing.T, r *rig) {
		r.node = multiNode(nil)
		r.ask("/_msearch", multiOf(1))
		<-time.After(12 * time.Second)
		x := r.ask("/_msearch", multiOf(1, 2))
		wantStatus(t, x, `weir; fwd=partial; detail="1/2 stale-while-revalidate"`)
		first := tooks(t, x)
		synctest.Wait()
		r.wantCalls(3)
		second := tooks(t, r.ask("/_msearch", multiOf(1, 2)))
		if !strings.HasPrefix(first, "1 ") || first == "1 1" || strings.HasPrefix(second, "1 ") || strings.Fields(first)[1] != strings.Fields(second)[1] {
			t.Errorf("answers of %s, then %s", first, second)
		}
	})
}

// The first line of a search that stands for no parameters can be empty, but not where it is the first of what is sent.
func TestRenewalOfASearchWithoutParameters(t *testing.T) {
	stale(t, "stale_while_revalidate: 20s", func(t *testing.T, r *rig) {
		var sent []string
		r.node = multiNode(&sent)
		body := lines(`{}`, search(1), ``, search(2))
		r.ask("/i/_msearch", body)
		<-time.After(12 * time.Second)
		r.ask("/i/_search", search(1), "Cache-Control", "no-cache")
		sent = nil
		if got := tooks(t, r.ask("/i/_msearch", body)); got != "2 1" {
			t.Errorf("answers of %s", got)
		}
		synctest.Wait()
		if want := lines(`{}`, search(2)); len(sent) != 1 || sent[0] != want {
			t.Errorf("sent %q, want %q", sent, want)
		}
	})
}

// Renewals that fail are held back, and what is refused by then is not given again.
func TestRenewalsOfMultiSearchThatFail(t *testing.T) {
	stale(t, "stale_while_revalidate: 1m", func(t *testing.T, r *rig) {
		node := multiNode(nil)
		r.node = node
		r.ask("/_msearch", multiOf(1, 2))
		<-time.After(12 * time.Second)
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 503, `{"error":{},"status":503}`); return nil }
		for range 100 {
			if got := tooks(t, r.ask("/_msearch", multiOf(1, 2))); got != "1 1" {
				t.Fatalf("answers of %s", got)
			}
			synctest.Wait()
			<-time.After(50 * time.Millisecond)
		}
		if n := r.calls.Load() - 1; n < 4 || n > 6 {
			t.Errorf("%d renewals in 5 s, want about one a second", n)
		}
		if r.count("weir_cache_renewals_total", "failed") < 8 {
			t.Error("failures are not counted by search")
		}
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 403, `{"error":{},"status":403}`); return nil }
		<-time.After(time.Second)
		r.ask("/_msearch", multiOf(1, 2))
		synctest.Wait()
		if x := r.ask("/_msearch", multiOf(1, 2)); x.Response.Status != 403 {
			t.Errorf("got %d %s", x.Response.Status, field(x, "cache-status"))
		}
	})
}

// Hot answers are asked for anew before their time is over, by whichever way they are in demand.
func TestRefreshAheadOfMultiSearch(t *testing.T) {
	stale(t, "refresh_ahead: 4s", func(t *testing.T, r *rig) {
		r.node = multiNode(nil)
		for range hotHits + 1 {
			r.ask("/_msearch", multiOf(1))
		}
		r.ask("/i/_search", search(2))
		<-time.After(7 * time.Second)
		x := r.ask("/_msearch", multiOf(1, 2))
		if synctest.Wait(); tooks(t, x) != "1 2" || x.Trace.Outcome != flows.Hit {
			t.Errorf("answers of %s, %s", tooks(t, x), field(x, "cache-status"))
		}
		r.wantCalls(3)
		if got := tooks(t, r.ask("/_msearch", multiOf(1, 2))); got != "3 2" {
			t.Errorf("answers of %s", got)
		}
	})
}

// Of one _msearch some answers are fresh, some are there from before, and some are missing, when the cluster fails.
func TestMultiSearchIsRescued(t *testing.T) {
	const body503 = `{"error":{"type":"e","reason":"down"},"status":503}`
	outages := map[string]struct {
		node  func(x *flows.Exchange, call int64) error
		error string // of what is missing
	}{
		"503":           {func(x *flows.Exchange, _ int64) error { reply(x, 503, body503); return nil }, body503},
		"429":           {func(x *flows.Exchange, _ int64) error { reply(x, 429, `{"error":{},"status":429}`); return nil }, `{"error":{},"status":429}`},
		"500 HTML":      {func(x *flows.Exchange, _ int64) error { reply(x, 500, `<html>`); return nil }, `"status":500}`},
		"502 that lies": {func(x *flows.Exchange, _ int64) error { reply(x, 502, `{"took":1,"status":200}`); return nil }, `"status":502}`},
		"no node": {func(*flows.Exchange, int64) error {
			return elastic.Errorf(503, "no_node_available_exception", "no node")
		}, `"type":"no_node_available_exception","reason":"no node"},"status":503}`},
		"refused": {func(*flows.Exchange, int64) error { return errors.New("connection refused") }, `"status":500}`},
	}
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			stale(t, "stale_if_error: 1m", func(t *testing.T, r *rig) {
				node := multiNode(nil)
				r.node = node
				r.ask("/i/_search", search(1))
				r.ask("/_msearch", multiOf(2))
				<-time.After(12 * time.Second)
				r.ask("/i/_search", search(3))
				var sent atomic.Pointer[string]
				r.node = func(x *flows.Exchange, call int64) error {
					body, _ := x.Request.Body.Bytes(1 << 20)
					text := string(body)
					sent.Store(&text)
					return outage.node(x, call)
				}
				x := r.ask("/_msearch", multiOf(4, 1, 3, 2, 1), "X-Opaque-Id", "mine")
				if got := tooks(t, x); got != "0 1 3 2 1" || x.Response.Status != 200 || x.Response.Header.Has("retry-after") {
					t.Errorf("%d, answers of %s: %s", x.Response.Status, got, bodyOf(x))
				}
				if got := items(t, x)[0]; !strings.HasPrefix(got, `{"error":{`) || !strings.HasSuffix(got, outage.error) {
					t.Errorf("what is missing is %s", got)
				}
				if field(x, "content-type") == "" || field(x, "x-opaque-id") != "mine" || x.Response.Header.Count("content-type") != 1 {
					t.Errorf("header %q", x.Response.Header.Fields())
				}
				wantStatus(t, x, `weir; fwd=partial; detail="4/5 stale-if-error"`)
				r.wantCalls(4)
				if want := multiOf(4, 1, 2); *sent.Load() != want {
					t.Errorf("sent %q, want %q", *sent.Load(), want)
				}

				// Where nothing is missing nobody sees a failure.
				x = r.ask("/_msearch", multiOf(1, 3, 2))
				if got := tooks(t, x); got != "1 3 2" || field(x, "age") != "12" || !strings.HasSuffix(field(x, "cache-status"), "; detail=stale-if-error") ||
					!strings.HasPrefix(field(x, "cache-status"), "weir; hit; ttl=-") {
					t.Errorf("answers of %s, %s", got, field(x, "cache-status"))
				}
				if r.count("weir_cache_searches_total", "main", "stale") != 5 || r.count("weir_cache_requests_total", "main", "stale") != 1 {
					t.Error("the metrics do not say five stale searches and one stale request")
				}

				// Where there is nothing from before, and for who wants nothing that old, the failure is that of all.
				for _, body := range []string{multiOf(3, 4), multiOf(4)} {
					y := request("/_msearch", body)
					if err := r.serve("main", y); err == nil && y.Response.Status == 200 {
						t.Errorf("%s: %s", body, bodyOf(y))
					}
				}
				y := request("/_msearch", multiOf(1, 2), "Cache-Control", "max-age=5")
				if err := r.serve("main", y); err == nil && y.Response.Status == 200 {
					t.Error("max-age was not heeded")
				}
				if n := r.shared().flights.count(); n != 0 {
					t.Errorf("%d flights are left", n)
				}
				r.node = node
				if got := tooks(t, r.ask("/_msearch", multiOf(1, 2))); strings.Contains(got, "1") || strings.Contains(got, "2") {
					t.Errorf("after the outage: answers of %s", got)
				}
			})
		})
	}
}

// Of an answer in which the cluster fails for some searches only, these are given as they were before; what a node refuses, and
// what is incomplete, is not.
func TestSearchesOfMultiSearchAreRescued(t *testing.T) {
	f := func(status int, rescued bool) {
		t.Helper()
		stale(t, "stale_if_error: 1m", func(t *testing.T, r *rig) {
			node := multiNode(nil)
			r.node = node
			r.ask("/_msearch", multiOf(1, 2))
			<-time.After(12 * time.Second)
			r.node = func(x *flows.Exchange, call int64) error {
				if err := node(x, call); err != nil {
					return err
				}
				got := items(t, x)
				got[1] = fmt.Sprintf(`{"error":{"type":"e"},"status":%d}`, status)
				x.Response.Body.Replace([]byte(`{"took":9,"responses":[` + strings.Join(got, ",") + `]}`))
				return nil
			}
			x := r.ask("/_msearch", multiOf(1, 2))
			want, header := "2 0", "weir; fwd=miss; stored"
			if rescued {
				want, header = "2 1", `weir; fwd=partial; detail="1/2 stale-if-error"`
			}
			if got := tooks(t, x); got != want {
				t.Errorf("status %d: answers of %s, want %s", status, got, want)
			}
			wantStatus(t, x, header)
			if got := tooks(t, r.ask("/_msearch", multiOf(1))); got != "2" { // what came is kept
				t.Errorf("the first search is answered by %s", got)
			}
		})
	}
	f(503, true)
	f(429, true)
	f(500, true)
	f(404, false)
	f(403, false)
	f(400, false)
}

// Whoever waits for a search that fails is given what is kept of before, in whatever way either has asked, and is told so.
func TestWaitersOfMultiSearchAreRescued(t *testing.T) {
	f := func(first, want string) {
		t.Helper()
		stale(t, "stale_if_error: 1m", func(t *testing.T, r *rig) {
			r.node = multiNode(nil)
			r.ask("/_msearch", multiOf(1, 2))
			<-time.After(12 * time.Second)
			r.node = func(x *flows.Exchange, _ int64) error {
				<-time.After(time.Second)
				reply(x, 503, `{"error":{},"status":503}`)
				return nil
			}
			var wg sync.WaitGroup
			for i, x := range []*flows.Exchange{
				request("/_msearch", first), request("/_msearch", multiOf(2, 1)), request("/i/_search", search(1)), request("/_msearch", multiOf(2)),
			} {
				wg.Go(func() {
					err, want := r.serve("main", x), want
					if i > 0 {
						want = "; detail=stale-if-error"
					}
					if err != nil || x.Response.Status != 200 || !strings.HasSuffix(field(x, "cache-status"), want) {
						t.Errorf("%d: %v, %d %s, want %s", i, err, x.Response.Status, field(x, "cache-status"), want)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
			r.wantCalls(2)
		})
	}
	f(multiOf(1, 2), "; detail=stale-if-error")
	f(multiOf(1, 2, 9), `; detail="2/3 stale-if-error"`)
}

// What the gateway refuses by a limit of its own is no failure of the cluster.
func TestOwnRefusalsOfMultiSearchAreNotPaperedOver(t *testing.T) {
	stale(t, "stale_if_error: 1m", func(t *testing.T, r *rig) {
		r.node = multiNode(nil)
		r.ask("/_msearch", multiOf(1, 2))
		<-time.After(12 * time.Second)
		if err := r.serve("main", request("/_msearch", multiOf(1, 2), "limited", "1")); !errors.Is(err, errLimited) {
			t.Errorf("got %v", err)
		}
	})
}

// With older answers at hand for all that is asked for nobody waits longer than max_wait, and the new ones are kept when they come
// in the end. Who comes next does not wait at all, until it is time to try again.
func TestMultiSearchDoesNotWaitAtAnyPrice(t *testing.T) {
	stale(t, "stale_if_error: 10m, max_wait: 2s", func(t *testing.T, r *rig) {
		var takes atomic.Int64
		node := multiNode(nil)
		r.node = func(x *flows.Exchange, call int64) error {
			select {
			case <-time.After(time.Duration(takes.Load())):
				return node(x, call)
			case <-x.Cancel().Done():
				return elastic.Errorf(502, "answer_exception", "cut off")
			}
		}
		ask := func(wait time.Duration, calls, status string, searches ...int) {
			t.Helper()
			before := time.Now()
			x := r.ask("/_msearch", multiOf(searches...))
			if took := time.Since(before); took != wait || tooks(t, x) != calls || !strings.HasSuffix(field(x, "cache-status"), status) {
				t.Errorf("%d after %s: answers of %s, %s, want %s after %s, %s", searches, took, tooks(t, x), field(x, "cache-status"), calls, wait, status)
			}
		}
		ask(0, "1 1", "weir; fwd=miss; stored", 1, 2)
		<-time.After(12 * time.Second)
		takes.Store(int64(3 * time.Second))
		ask(2*time.Second, "1 1", "; detail=stale-if-error", 1, 2)
		ask(0, "1", "; detail=stale-if-error", 2)
		r.wantCalls(2)
		<-time.After(1001 * time.Millisecond)
		ask(0, "2 2", "", 1, 2)
		if r.count("weir_cache_requests_total", "main", "hit") != 1 {
			t.Error("the answers that came late were not kept")
		}

		<-time.After(12 * time.Second)
		takes.Store(int64(time.Second))
		x := r.ask("/_msearch", multiOf(1, 2, 1))
		wantStatus(t, x, "weir; fwd=miss; stored")
		if got := tooks(t, x); got != "3 3 3" || x.Trace.Outcome != flows.Upstream || field(x, "x-elastic-product") != "Elasticsearch" {
			t.Errorf("answers of %s, outcome %s, header %q", got, x.Trace.Outcome, x.Response.Header.Fields())
		}
		r.wantCalls(3)

		// What is missing is waited for, and the old one with it.
		<-time.After(12 * time.Second)
		takes.Store(int64(5 * time.Second))
		ask(5*time.Second, "4 4", "weir; fwd=miss; stored", 1, 9)
		// So it is for another one, as long as it has anything older.
		<-time.After(12 * time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { ask(5*time.Second, "5 5", "weir; fwd=miss; stored", 1, 8) })
		synctest.Wait()
		ask(2*time.Second, "4", "; detail=stale-if-error", 1)
		wg.Wait()
		if n := r.shared().flights.count(); n != 0 {
			t.Errorf("%d flights are left", n)
		}
	})
}

// What a node says to searches that were sent for their client in an exchange of their own is what that client is given, in one call.
func TestLaunchedMultiSearchIsAnsweredAsNodesDo(t *testing.T) {
	f := func(status int, want string, answer func(x *flows.Exchange, call int64) error) {
		t.Helper()
		stale(t, "stale_if_error: 10m", func(t *testing.T, r *rig) {
			node := multiNode(nil)
			r.node = node
			r.ask("/_msearch", multiOf(1, 2))
			<-time.After(12 * time.Second)
			r.node = func(x *flows.Exchange, call int64) error {
				if err := node(x, call); err != nil {
					return err
				}
				return answer(x, call)
			}
			x := r.ask("/_msearch", multiOf(1, 2))
			if x.Response.Status != status || x.Trace.Outcome != flows.Upstream || !strings.Contains(bodyOf(x), want) {
				t.Errorf("%d, %s, %s, want %d and %s", x.Response.Status, x.Trace.Outcome, bodyOf(x), status, want)
			}
			if got := field(x, "cache-status"); strings.Contains(got, "stale") || x.Response.Header.Count("content-type") != 1 {
				t.Errorf("Cache-Status %s, header %q", got, x.Response.Header.Fields())
			}
			r.wantCalls(2)
			if n := r.count("weir_cache_requests_total", "main", "miss"); n != 2 {
				t.Errorf("%v misses are counted, want 2", n)
			}
		})
	}
	item := func(item string) func(x *flows.Exchange, call int64) error {
		return func(x *flows.Exchange, _ int64) error {
			all, _ := query.Responses([]byte(bodyOf(x)))
			x.Response.Body.Replace([]byte(`{"took":9,"responses":[` + item + `,` + string(all[1]) + `]}`))
			return nil
		}
	}
	f(200, `{"error":{"type":"gone"},"status":404}`, item(`{"error":{"type":"gone"},"status":404}`))
	f(200, `"failed":1`, item(`{"took":2,"timed_out":false,"_shards":{"total":2,"successful":1,"failed":1},"hits":{"hits":[]},"status":200}`))
	f(403, `{"error":{},"status":403}`, func(x *flows.Exchange, _ int64) error { reply(x, 403, `{"error":{},"status":403}`); return nil })
	f(200, `"took":2`, func(x *flows.Exchange, _ int64) error { x.Response.Header.AddString("Warning", "299 - w"); return nil })
}

// Searches that go on without their client's exchange end when nobody wants any of their answers any more.
func TestLaunchedMultiSearchEndsWithThoseWhoWait(t *testing.T) {
	stale(t, "stale_if_error: 10m", func(t *testing.T, r *rig) {
		r.node = multiNode(nil)
		r.ask("/_msearch", multiOf(1, 2))
		<-time.After(12 * time.Second)
		ended := make(chan struct{})
		r.node = func(x *flows.Exchange, _ int64) error {
			<-x.Cancel().Done()
			close(ended)
			return elastic.Errorf(502, "answer_exception", "cut off")
		}
		c := &crowd{}
		first, second := request("/_msearch", multiOf(1, 2)), request("/i/_search", search(2))
		c.send(r, first)
		synctest.Wait()
		c.send(r, second)
		synctest.Wait()
		first.Cancel().Fire()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the searches ended although somebody waits for one")
		default:
		}
		second.Cancel().Fire()
		c.wg.Wait()
		<-ended
		synctest.Wait()
		r.wantCalls(2)
		if m := c.statuses(); m["error"] != 2 {
			t.Errorf("got %v", m)
		}
	})
}
