package cache

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic"
	"weir/elastic/estest"
	"weir/flows"
	"weir/internal/simtime"
)

// stale runs a test in a bubble, over a cache with these settings, in both spellings.
func stale(t *testing.T, settings string, f func(t *testing.T, r *rig)) {
	t.Run("get_cache and set_cache", func(t *testing.T) {
		simtime.Test(t, func(t *testing.T) {
			f(t, newRig(t, `[{name: main, filter: [{get_cache: {`+settings+`}}, {limit: {}}, {node: {}}, {set_cache: {cache_ttl: 10s}}]}]`))
		})
	})
	t.Run("cache", func(t *testing.T) {
		simtime.Test(t, func(t *testing.T) {
			f(t, newRig(t, `[{name: main, filter: [{cache: {ttl: 10s, `+settings+`}}, {limit: {}}, {node: {}}]}]`))
		})
	})
}

// answeredBy returns the number of the call whose answer x has.
func answeredBy(t *testing.T, x *flows.Exchange) int {
	t.Helper()
	var n int
	if _, err := fmt.Sscanf(bodyOf(x), `{"took":%d,`, &n); err != nil {
		t.Fatalf("%s: %v", bodyOf(x), err)
	}
	return n
}

// An answer that another cache kept is as old as that says.
func TestAgeBelow(t *testing.T) {
	stale(t, "", func(t *testing.T, r *rig) {
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			err := whole(x, call)
			x.Response.Header.AddString("Age", "4")
			return err
		}
		if x := r.ask("/i/_search", `{}`); field(x, "age") != "4" {
			t.Errorf("the node's own Age is given as %q", field(x, "age"))
		}
		<-time.After(4 * time.Second)
		if x := r.ask("/i/_search", `{}`); x.Trace.Outcome != flows.Hit || field(x, "age") != "8" {
			t.Errorf("%s, Age %s", field(x, "cache-status"), field(x, "age"))
		}
		<-time.After(4 * time.Second)
		if x := r.ask("/i/_search", `{}`); x.Trace.Outcome == flows.Hit {
			t.Errorf("given at the age of 12 s: %s", field(x, "cache-status"))
		}
	})
}

// Nobody knows what has changed while another cache kept an answer, so that nothing proves it.
func TestAgeBelowIsNotProven(t *testing.T) {
	for age, want := range map[string]bool{"0": true, "1": false} {
		asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
			r.node = func(x *flows.Exchange, call int64) error {
				err := r.forward(x, call)
				x.Response.Header.AddString("Age", age)
				return err
			}
			proven := false
			for range 30 {
				x := r.as("bob", "POST", "/i/_search", asyncBody)
				proven = proven || strings.HasSuffix(field(x, "cache-status"), "; detail=proven")
				<-time.After(time.Second)
			}
			if proven != want {
				t.Errorf("Age %s from below: proven %t, want %t", age, proven, want)
			}
		})
	}
}

func TestStaleWhileRevalidate(t *testing.T) {
	stale(t, "stale_while_revalidate: 20s", func(t *testing.T, r *rig) {
		r.ask("/i/_search", `{}`, "Authorization", "a", "X-Opaque-Id", "first")
		<-time.After(12 * time.Second)
		hold, whole := make(chan struct{}), r.node
		r.node = func(x *flows.Exchange, call int64) error {
			<-hold
			if string(x.Request.Header.Get("authorization")) != "a" || string(x.Request.Path) != "/i/_search" {
				t.Errorf("renewed with %v", x.Request.Header.Fields())
			}
			return whole(x, call)
		}
		for range 50 {
			x := r.ask("/i/_search", `{}`, "Authorization", "a", "X-Opaque-Id", "second")
			if n := answeredBy(t, x); n != 1 || !strings.HasSuffix(field(x, "cache-status"), "; detail=stale-while-revalidate") ||
				!strings.HasPrefix(field(x, "cache-status"), "weir; hit; ttl=-") || field(x, "age") != "12" {
				t.Fatalf("answer %d, Cache-Status %s, Age %s", n, field(x, "cache-status"), field(x, "age"))
			}
		}
		synctest.Wait()
		r.wantCalls(2) // one renewal for all of them
		close(hold)
		synctest.Wait()
		x := r.ask("/i/_search", `{}`, "Authorization", "a")
		if answeredBy(t, x) != 2 || x.Trace.Outcome != flows.Hit || strings.Contains(field(x, "cache-status"), "stale") {
			t.Errorf("after the renewal: %s %s", bodyOf(x), field(x, "cache-status"))
		}
		if r.count("weir_cache_renewals_total", "stored") != 1 || r.count("weir_cache_requests_total", "main", "stale") != 50 {
			t.Error("the metrics do not say one renewal and 50 stale answers")
		}
		// Beyond its window it is gone, and so it is for who wants none that old.
		r.node = whole
		<-time.After(12 * time.Second)
		wantStatus(t, r.ask("/i/_search", `{}`, "Authorization", "a", "Cache-Control", "max-age=3"), "weir; fwd=stale; stored")
		<-time.After(40 * time.Second)
		wantStatus(t, r.ask("/i/_search", `{}`, "Authorization", "a"), "weir; fwd=stale; stored")
	})
}

// A renewal that fails does not make each of those who ask a call to a cluster in trouble.
func TestRenewalsAreHeldBackWhileTheyFail(t *testing.T) {
	stale(t, "stale_while_revalidate: 1m", func(t *testing.T, r *rig) {
		r.ask("/i/_search", `{}`)
		<-time.After(12 * time.Second)
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 503, `{"error":{},"status":503}`); return nil }
		for range 100 {
			r.ask("/i/_search", `{}`)
			synctest.Wait()
			<-time.After(50 * time.Millisecond)
		}
		if n := r.calls.Load() - 1; n < 4 || n > 6 {
			t.Errorf("%d renewals in 5 s, want about one a second", n)
		}
		if r.count("weir_cache_renewals_total", "failed") == 0 {
			t.Error("failures are not counted")
		}
	})
}

// What the node refuses by now is not given again, however good it still looked.
func TestRefusalEndsWhatIsKept(t *testing.T) {
	for _, status := range []int{401, 403, 404} {
		stale(t, "stale_while_revalidate: 1m, stale_if_error: 1m", func(t *testing.T, r *rig) {
			r.ask("/i/_search", `{}`)
			<-time.After(12 * time.Second)
			r.node = func(x *flows.Exchange, _ int64) error { reply(x, status, `{"error":{}}`); return nil }
			r.ask("/i/_search", `{}`) // stale; renewed behind it
			synctest.Wait()
			if x := r.ask("/i/_search", `{}`); x.Response.Status != status {
				t.Errorf("got %d %s, want %d", x.Response.Status, field(x, "cache-status"), status)
			}
		})
	}
}

// One caller without rights does not take from all others what they share.
func TestRefusalOfOneLeavesWhatAllShare(t *testing.T) {
	stale(t, "identity: shared", func(t *testing.T, r *rig) {
		whole := r.node
		r.ask("/i/_search", `{}`)
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 401, `{"error":{}}`); return nil }
		r.ask("/i/_search", `{}`, "Cache-Control", "no-cache")
		r.node = whole
		if x := r.ask("/i/_search", `{}`); x.Trace.Outcome != flows.Hit {
			t.Errorf("after a 401 for another: %s", field(x, "cache-status"))
		}
	})
}

func TestRefreshAhead(t *testing.T) {
	stale(t, "refresh_ahead: 4s", func(t *testing.T, r *rig) {
		for range 2 {
			r.ask("/cold/_search", `{}`)
		}
		for range hotHits + 1 {
			r.ask("/hot/_search", `{}`)
		}
		r.wantCalls(2)
		<-time.After(7 * time.Second)
		for range 10 {
			if x := r.ask("/hot/_search", `{}`); x.Trace.Outcome != flows.Hit {
				t.Errorf("hot: %s", field(x, "cache-status"))
			}
			r.ask("/cold/_search", `{}`)
			synctest.Wait()
		}
		// The cold one has become hot on the way.
		r.wantCalls(4)
		<-time.After(4500 * time.Millisecond) // past the time of the first answers, and before renewing the new ones
		for _, target := range []string{"/hot/_search", "/cold/_search"} {
			if x := r.ask(target, `{}`); x.Trace.Outcome != flows.Hit || answeredBy(t, x) < 3 {
				t.Errorf("%s: %s %s", target, field(x, "cache-status"), bodyOf(x))
			}
		}
		r.wantCalls(4)
	})
}

func TestStaleIfError(t *testing.T) {
	outages := map[string]func(x *flows.Exchange, call int64) error{
		"503": func(x *flows.Exchange, _ int64) error { reply(x, 503, `{"error":{}}`); return nil },
		"429": func(x *flows.Exchange, _ int64) error { reply(x, 429, `{"error":{}}`); return nil },
		"no node": func(*flows.Exchange, int64) error {
			return elastic.Errorf(503, "no_node_available_exception", "no node")
		},
		"broken": func(*flows.Exchange, int64) error { return errors.New("broken") },
	}
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			stale(t, "stale_if_error: 1m", func(t *testing.T, r *rig) {
				whole := r.node
				r.ask("/i/_search", `{}`)
				<-time.After(12 * time.Second)
				r.node = outage
				x := r.ask("/i/_search", `{}`)
				if answeredBy(t, x) != 1 || x.Response.Status != 200 || x.Response.Header.Has("retry-after") ||
					!strings.HasSuffix(field(x, "cache-status"), "; detail=stale-if-error") {
					t.Errorf("%d %s %s", x.Response.Status, bodyOf(x), field(x, "cache-status"))
				}
				// Who asks for nothing older is told of the outage.
				y := request("/i/_search", `{}`, "Cache-Control", "max-age=5")
				if err := r.serve("main", y); err == nil && y.Response.Status == 200 {
					t.Error("max-age was not heeded")
				}
				r.node = whole
				wantStatus(t, r.ask("/i/_search", `{}`), "weir; fwd=stale; stored")
			})
		})
	}
}

// What the gateway refuses by a limit of its own is no failure of the cluster.
func TestOwnRefusalsAreNotPaperedOver(t *testing.T) {
	stale(t, "stale_if_error: 1m", func(t *testing.T, r *rig) {
		r.ask("/i/_search", `{}`)
		<-time.After(12 * time.Second)
		if err := r.serve("main", request("/i/_search", `{}`, "limited", "1")); !errors.Is(err, errLimited) {
			t.Errorf("got %v", err)
		}
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 400, `{"error":{}}`); return nil }
		if x := r.ask("/i/_search", `{}`); x.Response.Status != 400 {
			t.Errorf("got %d", x.Response.Status)
		}
	})
}

// All who wait for an answer that fails are given the older one, with one call.
func TestWaitersAreRescued(t *testing.T) {
	stale(t, "stale_if_error: 1m", func(t *testing.T, r *rig) {
		r.ask("/i/_search", `{}`)
		<-time.After(12 * time.Second)
		r.calls.Store(0)
		_, c, release := stampede(r, 300, plain, plain, func(x *flows.Exchange, _ int64) error {
			reply(x, 503, `{"error":{}}`)
			return nil
		})
		close(release)
		c.wg.Wait()
		r.wantCalls(1)
		for i, x := range c.all {
			if c.err[i] != nil || x.Response.Status != 200 {
				t.Fatalf("%v %d", c.err[i], x.Response.Status)
			}
		}
	})
}

func TestWhoWaitsTooLongIsGivenTheOlderAnswer(t *testing.T) {
	stale(t, "stale_if_error: 1m, max_wait: 2s", func(t *testing.T, r *rig) {
		r.ask("/i/_search", `{}`)
		<-time.After(12 * time.Second)
		r.calls.Store(0)
		whole := r.node
		_, c, release := stampede(r, 5, plain, plain, whole)
		<-time.After(3 * time.Second)
		synctest.Wait()
		c.mu.Lock()
		if len(c.all) != 6 {
			t.Errorf("%d of 6 were answered within max_wait, the leader included", len(c.all))
		}
		c.mu.Unlock()
		r.wantCalls(1)
		close(release)
		c.wg.Wait()
	})
}

// One caller alone does not wait longer than max_wait either when there is an older answer, and the new one is kept when it
// comes in the end. Who comes next does not wait at all, until it is time to try again.
func TestACallerAloneIsGivenTheOlderAnswer(t *testing.T) {
	stale(t, "stale_if_error: 10m, max_wait: 2s", func(t *testing.T, r *rig) {
		ask := func(wait time.Duration, call int, status string, fields ...string) {
			t.Helper()
			before := time.Now()
			x := r.ask("/i/_search", `{}`, fields...)
			if took := time.Since(before); took != wait || answeredBy(t, x) != call || !strings.HasSuffix(field(x, "cache-status"), status) {
				t.Errorf("after %s: answer %d, %s, want %d after %s, %s", took, answeredBy(t, x), field(x, "cache-status"), call, wait, status)
			}
		}
		ask(0, 1, "weir; fwd=miss; stored")
		<-time.After(12 * time.Second)
		var takes atomic.Int64
		takes.Store(int64(3 * time.Second))
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			select {
			case <-time.After(time.Duration(takes.Load())):
				return whole(x, call)
			case <-x.Cancel().Done():
				return elastic.Errorf(502, "answer_exception", "cut off")
			}
		}
		ask(2*time.Second, 1, "; detail=stale-if-error")
		ask(0, 1, "; detail=stale-if-error")
		r.wantCalls(2)
		<-time.After(1001 * time.Millisecond)
		if x := r.ask("/i/_search", `{}`); answeredBy(t, x) != 2 || x.Trace.Outcome != flows.Hit {
			t.Errorf("the answer that came late was not kept: %s %s", bodyOf(x), field(x, "cache-status"))
		}

		<-time.After(12 * time.Second)
		takes.Store(int64(time.Hour)) // it hangs
		ask(2*time.Second, 2, "; detail=stale-if-error")
		for range 19 {
			ask(0, 2, "; detail=stale-if-error")
			<-time.After(100 * time.Millisecond)
		}
		r.wantCalls(3)
		<-time.After(101 * time.Millisecond)
		takes.Store(int64(time.Second))
		x := r.ask("/i/_search", `{}`)
		wantStatus(t, x, "weir; fwd=stale; stored")
		if answeredBy(t, x) != 4 || x.Trace.Outcome != flows.Upstream {
			t.Errorf("answer %d, outcome %v", answeredBy(t, x), x.Trace.Outcome)
		}
		if miss, old := r.count("weir_cache_requests_total", "main", "miss"), r.count("weir_cache_requests_total", "main", "stale"); miss != 2 || old != 22 {
			t.Errorf("%v misses and %v stale answers are counted", miss, old)
		}
		// Who may not be given the older answer waits for the node.
		<-time.After(12 * time.Second)
		takes.Store(int64(5 * time.Second))
		ask(5*time.Second, 5, "weir; fwd=stale; stored", "Cache-Control", "max-age=1")
	})
}

// A search that goes on without its client's exchange ends when nobody wants its answer any more.
func TestLaunchedSearchEndsWithThoseWhoWait(t *testing.T) {
	stale(t, "stale_if_error: 10m", func(t *testing.T, r *rig) {
		r.ask("/i/_search", `{}`)
		<-time.After(12 * time.Second)
		ended := make(chan struct{})
		r.node = func(x *flows.Exchange, _ int64) error {
			<-x.Cancel().Done()
			close(ended)
			return elastic.Errorf(502, "answer_exception", "cut off")
		}
		c := &crowd{}
		first, second := plain(), plain()
		c.send(r, first)
		synctest.Wait()
		c.send(r, second)
		synctest.Wait()
		first.Cancel().Fire()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the search ended although somebody waits")
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

// A configuration that goes out of force does not wait for what it renews in the background.
func TestReloadCancelsRenewals(t *testing.T) {
	const settings = `[{name: main, filter: [{cache: {ttl: 1s, stale_while_revalidate: 1h}}, {node: {}}]}]`
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, settings)
		r.ask("/i/_search", `{}`)
		<-time.After(2 * time.Second)
		r.node = func(x *flows.Exchange, _ int64) error {
			<-x.Cancel().Done()
			return elastic.Errorf(502, "answer_exception", "cut off")
		}
		r.ask("/i/_search", `{}`)
		synctest.Wait()
		before := time.Now()
		r.load(settings)
		if took := time.Since(before); took > time.Second {
			t.Errorf("the reload took %s", took)
		}
		if n := r.shared().renewals.Load(); n != 0 {
			t.Errorf("%d renewals run", n)
		}
	})
}
