package cache

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/simtime"
)

// crowd is many exchanges on their way at the same time.
type crowd struct {
	wg  sync.WaitGroup
	mu  sync.Mutex // guards the fields below
	all []*flows.Exchange
	err []error
}

func (c *crowd) send(r *rig, x *flows.Exchange) {
	c.wg.Go(func() {
		defer func() {
			if p := recover(); p != nil && p != "planted" {
				panic(p)
			}
		}()
		err := r.serve("main", x)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all, c.err = append(c.all, x), append(c.err, err)
	})
}

// statuses counts the values of Cache-Status.
func (c *crowd) statuses() map[string]int {
	m := map[string]int{}
	for i, x := range c.all {
		if c.err[i] != nil {
			m["error"]++
			continue
		}
		m[field(x, "cache-status")]++
	}
	return m
}

// stampede sends one request, and when it has reached the node, others more; then script says how the node goes on.
func stampede(r *rig, others int, first, other func() *flows.Exchange, script func(x *flows.Exchange, call int64) error) (*flows.Exchange, *crowd, chan struct{}) {
	release := make(chan struct{})
	r.node = func(x *flows.Exchange, call int64) error {
		if call == 1 {
			<-release
		}
		return script(x, call)
	}
	c := &crowd{}
	leader := first()
	c.send(r, leader)
	synctest.Wait()
	for range others {
		c.send(r, other())
	}
	synctest.Wait()
	return leader, c, release
}

// patience is how long flights are joined unless a test is about that.
const patience = time.Minute

func plain() *flows.Exchange { return request("/i/_search", `{}`) }

func TestStampedeIsOneCall(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		_, c, release := stampede(r, 999, plain, plain, whole)
		if n := r.count("weir_cache_waiting_requests"); n != 999 {
			t.Errorf("%v requests wait, want 999", n)
		}
		if n := r.count("weir_cache_flights"); n != 1 {
			t.Errorf("%v flights, want 1", n)
		}
		<-time.After(500 * time.Millisecond)
		close(release)
		c.wg.Wait()
		r.wantCalls(1)
		if m := c.statuses(); m["weir; fwd=miss; stored"] != 1 || m["weir; fwd=miss; collapsed"] != 999 {
			t.Errorf("got %v", m)
		}
		for _, x := range c.all {
			if !strings.HasPrefix(bodyOf(x), `{"took":1,`) {
				t.Fatalf("answer %s", bodyOf(x))
			}
		}
		if r.count("weir_cache_waiting_requests") != 0 || r.count("weir_cache_flights") != 0 {
			t.Error("flights or waiters are left")
		}
		r.ask("/i/_search", `{}`)
		r.wantCalls(1)
	})
}

func TestLeaderWhoseClientLeavesStillFills(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		leader, c, release := stampede(r, 10, plain, plain, whole)
		// The entry asks whether the flight is held before it cancels; see TestLeaderLeavesTheSocket.
		close(release)
		c.wg.Wait()
		r.wantCalls(1)
		if leader.Cancel().Fired() {
			t.Error("the leader was cancelled")
		}
	})
}

func TestCancelledLeaderHandsOver(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		leader, c, release := stampede(r, 20, plain, plain, func(x *flows.Exchange, call int64) error {
			if x.Cancel().Fired() {
				return elastic.Errorf(502, "answer_exception", "cut off")
			}
			return whole(x, call)
		})
		leader.Cancel().Fire()
		close(release)
		c.wg.Wait()
		r.wantCalls(2)
		if m := c.statuses(); m["error"] != 1 || m["weir; fwd=miss; stored"] != 1 || m["weir; fwd=miss; collapsed"]+hits(m) != 19 {
			t.Errorf("got %v", m)
		}
	})
}

// hits counts the answers that came from the cache.
func hits(m map[string]int) int {
	n := 0
	for status, k := range m {
		if strings.HasPrefix(status, "weir; hit") {
			n += k
		}
	}
	return n
}

func TestPanicOfTheLeaderFreesTheWaiters(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		_, c, release := stampede(r, 20, plain, plain, func(x *flows.Exchange, call int64) error {
			if call == 1 {
				panic("planted")
			}
			return whole(x, call)
		})
		close(release)
		c.wg.Wait()
		r.wantCalls(2)
		if len(c.all) != 20 {
			t.Errorf("%d exchanges ended, want 20 beside the one that panicked", len(c.all))
		}
	})
}

func TestFailureIsSharedAmongEqualsOnly(t *testing.T) {
	f := func(status int, body, why string) {
		t.Helper()
		bubbles(t, func(t *testing.T, r *rig) {
			_, c, release := stampede(r, 50, plain, plain, func(x *flows.Exchange, _ int64) error {
				reply(x, status, body)
				x.Response.Header.AddString("Retry-After", "7")
				return nil
			})
			close(release)
			c.wg.Wait()
			r.wantCalls(1)
			if m := c.statuses(); m["weir; fwd=miss; collapsed; detail="+why] != 50 {
				t.Errorf("got %v", m)
			}
			for _, x := range c.all {
				if x.Response.Status != status || bodyOf(x) != body {
					t.Fatalf("got %d %s", x.Response.Status, bodyOf(x))
				}
				if x.Trace.Outcome == flows.Shared && x.Response.Header.Has("retry-after") != (status >= 400) {
					t.Fatalf("status %d with the fields %v", status, x.Response.Header.Fields())
				}
			}
			r.ask("/i/_search", `{}`)
			r.wantCalls(2)
		})
	}
	f(500, `{"error":{},"status":500}`, "status")
	f(429, `{"error":{},"status":429}`, "status")
	f(200, `{"timed_out":true,"_shards":{"total":1,"successful":1,"failed":0}}`, "timed-out")
	f(200, `{"timed_out":false,"_shards":{"total":2,"successful":1,"failed":1}}`, "shards")
}

// A caller who will not have a partial answer must not inherit one that another caller's parameters allowed.
func TestPartialAnswerOfOtherParametersIsNotInherited(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		hasty := func() *flows.Exchange { return request("/i/_search?timeout=1ms", `{}`) }
		strict := func() *flows.Exchange { return request("/i/_search?allow_partial_search_results=false", `{}`) }
		_, c, release := stampede(r, 30, hasty, strict, func(x *flows.Exchange, call int64) error {
			if strings.Contains(string(x.Request.Query), "timeout") {
				reply(x, 200, `{"timed_out":true,"_shards":{"total":1,"successful":1,"failed":0}}`)
				return nil
			}
			return whole(x, call)
		})
		close(release)
		c.wg.Wait()
		r.wantCalls(2)
		for _, x := range c.all {
			if partial := strings.Contains(bodyOf(x), `"timed_out":true`); partial != strings.Contains(string(x.Request.Query), "timeout") {
				t.Errorf("%s got %s", x.Request.Query, bodyOf(x))
			}
		}
	})
}

func TestErrorOfTheUpstreamIsShared(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		down := elastic.Errorf(503, "no_node_available_exception", "no node")
		_, c, release := stampede(r, 40, plain, plain, func(*flows.Exchange, int64) error { return down })
		close(release)
		c.wg.Wait()
		r.wantCalls(1)
		for i, err := range c.err {
			if !errors.Is(err, down) {
				t.Errorf("exchange %d: %v", i, err)
			}
		}
		if len(c.err) != 41 {
			t.Errorf("%d exchanges ended", len(c.err))
		}
	})
}

func TestErrorOfOtherParametersIsNotInherited(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		hasty := func() *flows.Exchange { return request("/i/_search?timeout=1ms", `{}`) }
		whole := r.node
		_, c, release := stampede(r, 10, hasty, plain, func(x *flows.Exchange, call int64) error {
			if call == 1 {
				return elastic.Errorf(504, "timeout_exception", "too slow")
			}
			return whole(x, call)
		})
		close(release)
		c.wg.Wait()
		r.wantCalls(2)
		if m := c.statuses(); m["error"] != 1 {
			t.Errorf("got %v", m)
		}
	})
}

func TestOvertakenFlightLeavesTheNewerOne(t *testing.T) {
	fs := newFlights()
	key, now := query.Key{1}, time.Now()
	old, _ := fs.join(&key, now, joiner{maxAge: -1, patience: patience})
	newer, lead := fs.join(&key, now, joiner{patience: patience})
	if !lead || newer == old {
		t.Fatal("joined a flight that is too old")
	}
	fs.land(old, now, false)
	if f, lead := fs.join(&key, now, joiner{maxAge: -1, patience: patience}); lead || f != newer {
		t.Error("the newer flight was forgotten")
	}
}

func TestRefusalOfTheLeaderIsItsOwn(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		s := r.shared()
		limited := func() *flows.Exchange { return request("/i/_search", `{}`, "limited", "1") }
		// The leader is refused before the node: nobody else is.
		x := limited()
		if err := r.serve("main", x); !errors.Is(err, errLimited) {
			t.Fatal(err)
		}
		f, lead := s.flights.join(&ticketOf.Get(x).key, time.Now(), joiner{maxAge: -1, patience: patience})
		if f == nil || !lead {
			t.Error("a refusal left a flight or a mark")
		}
		l := &lookup{shared: s}
		refused := &ticket{shared: s, wanted: wanted{why: reasonUnanswered}}
		l.land(x, refused, f, errLimited, true)
		if f.err != nil || f.serves(&refused.verdict.Dropped) {
			t.Error("the refusal of the leader is given to others")
		}
	})
}

func TestFailureForOneOnly(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		_, c, release := stampede(r, 5, plain, plain, func(x *flows.Exchange, call int64) error {
			reply(x, 500, `{"error":{},"status":500}`)
			x.Response.Header.AddString("Set-Cookie", "a=b")
			return nil
		})
		close(release)
		c.wg.Wait()
		r.wantCalls(6)
		if m := c.statuses(); m["weir; fwd=miss; detail=status"] != 6 {
			t.Errorf("got %v", m)
		}
	})
}

func TestTooLargeAnswers(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{cache: {max_entry: 1kb}}, {node: {}}]}]`)
		var now, most atomic.Int64
		gate := make(chan struct{})
		body := `{"timed_out":false,"_shards":{"total":1,"successful":1,"failed":0},"x":"` + strings.Repeat("x", 2000) + `"}`
		_, c, release := stampede(r, 20, plain, plain, func(x *flows.Exchange, call int64) error {
			if call > 1 {
				n := now.Add(1)
				for {
					old := most.Load()
					if n <= old || most.CompareAndSwap(old, n) {
						break
					}
				}
				<-gate
				now.Add(-1)
			}
			reply(x, 200, "")
			x.Response.Body.ReplaceStream(strings.NewReader(body), int64(len(body)))
			return nil
		})
		close(release)
		synctest.Wait()
		if n := now.Load(); n != narrowCap {
			t.Errorf("%d waiters are at the node, want %d", n, narrowCap)
		}
		close(gate)
		c.wg.Wait()
		r.wantCalls(21)
		if most.Load() > narrowCap {
			t.Errorf("%d waiters were at the node at the same time", most.Load())
		}
		for _, x := range c.all {
			if bodyOf(x) != body {
				t.Errorf("an answer has %d bytes", len(bodyOf(x)))
			}
		}

		// For a while nobody waits for that key.
		concurrent := func() int64 {
			before := r.calls.Load()
			hold := make(chan struct{})
			r.node = func(x *flows.Exchange, call int64) error { <-hold; reply(x, 200, body); return nil }
			c := &crowd{}
			for range 10 {
				c.send(r, plain())
			}
			synctest.Wait()
			n := r.calls.Load() - before
			close(hold)
			c.wg.Wait()
			return n
		}
		if n := concurrent(); n != 10 {
			t.Errorf("%d of 10 went on at once, want all", n)
		}
		<-time.After(missFor + time.Second)
		if n := concurrent(); n != 1 {
			t.Errorf("%d of 10 went on at once after the mark ran out, want 1", n)
		}
	})
}

func TestWaiterWhoseClientLeaves(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		impatient := plain()
		_, c, release := stampede(r, 1, plain, func() *flows.Exchange { return impatient }, whole)
		impatient.Cancel().Fire()
		synctest.Wait()
		c.mu.Lock()
		if len(c.err) != 1 || !errors.Is(c.err[0], errClientLeft) {
			t.Errorf("the waiter did not end with its client: %v", c.err)
		}
		c.mu.Unlock()
		if n := r.count("weir_cache_waiting_requests"); n != 0 {
			t.Errorf("%v requests wait", n)
		}
		close(release)
		c.wg.Wait()
		r.wantCalls(1)
	})
}

func TestWaitersFollowTheirOwnDemands(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		fresh := func() *flows.Exchange { return request("/i/_search", `{}`, "Cache-Control", "no-cache") }
		_, c, release := stampede(r, 3, plain, fresh, whole)
		c.wg.Go(func() { <-time.After(time.Second); close(release) })
		c.wg.Wait()
		r.wantCalls(4) // what began before no-cache was asked for is not fresh enough for it
	})
}

// A flight that hangs must neither hold those who wait for it nor let them loose together.
func TestOneOfThoseWhoWaitTooLongAsksAnew(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		_, c, release := stampede(r, 300, plain, plain, whole)
		<-time.After(29 * time.Second)
		r.wantCalls(1)
		<-time.After(2 * time.Second)
		r.wantCalls(2)
		if x := r.ask("/i/_search", `{}`); x.Trace.Outcome != flows.Hit {
			t.Errorf("the second answer was not kept: %s", x.Trace.Cache)
		}
		close(release)
		c.wg.Wait()
		r.wantCalls(2)
		if m := c.statuses(); m["weir; fwd=miss; stored"] != 2 || m["weir; fwd=miss; collapsed"]+hits(m) != 299 {
			t.Errorf("got %v", m)
		}
	})
}

func TestHeld(t *testing.T) {
	fs := newFlights()
	key := query.Key{1}
	f, lead := fs.join(&key, time.Now(), joiner{maxAge: -1, patience: patience})
	if !lead || f.held() {
		t.Error("a flight without waiters is held")
	}
	if g, lead := fs.join(&key, time.Now(), joiner{maxAge: -1, patience: patience}); lead || g != f || !f.held() {
		t.Error("a flight with a waiter is not held")
	}
	fs.leave(f)
	if f.held() {
		t.Error("held though the last waiter left")
	}
	fs.join(&key, time.Now(), joiner{maxAge: -1, patience: patience})
	fs.land(f, time.Now(), false)
	if f.held() {
		t.Error("held though landed")
	}
}

// An answer stored between the look into the store and the start of a flight is not asked for again.
func TestLeaderLooksAgain(t *testing.T) {
	r := newRig(t, classic)
	x := r.ask("/i/_search", `{}`)
	key := ticketOf.Get(x).key
	s := r.shared()
	l := &lookup{shared: s, flow: "main"}
	if err := l.start(r.rt); err != nil {
		t.Fatal(err)
	}
	defer l.stop()
	y := plain()
	tk := s.take(y)
	tk.key, tk.verdict.MaxAge = key, -1
	if err := l.fetch(y, nil, tk, "miss"); err != nil {
		t.Fatal(err)
	}
	if y.Trace.Outcome != flows.Hit || s.flights.count() != 0 {
		t.Errorf("outcome %v, %d flights", y.Trace.Outcome, s.flights.count())
	}
}

func TestMarksAreBounded(t *testing.T) {
	fs := newFlights()
	now := time.Now()
	for i := range 10 * shardMarks {
		key := query.Key{byte(i), byte(i >> 8)}
		f, lead := fs.join(&key, now, joiner{maxAge: -1, patience: patience})
		if !lead {
			t.Fatal("not the leader")
		}
		fs.land(f, now, true)
	}
	if n := len(fs.shards[0].marks); n != shardMarks {
		t.Errorf("%d marks, want %d", n, shardMarks)
	}
	// What has run out gives way before what has not.
	last := query.Key{255, 255}
	later := now.Add(missFor)
	f, _ := fs.join(&last, later, joiner{maxAge: -1, patience: patience})
	fs.land(f, later, true)
	if n := len(fs.shards[0].marks); n != 1 {
		t.Errorf("%d marks after all ran out but one", n)
	}
	if f, _ := fs.join(&last, later, joiner{maxAge: -1, patience: patience}); f != nil {
		t.Error("the fresh mark was forgotten")
	}
}
