package limit

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/flows"
	"weir/internal/simtime"
)

// arrival is one exchange of a test that waits: when it came and how it went on.
type arrival struct {
	user string
	at   time.Duration // since the test began, when it was answered
	ok   bool
}

// crowd serves exchanges of users from goroutines of their own, one after the other, and returns what became of them in
// the order of their answers.
type crowd struct {
	g     *gateway
	start time.Time
	wg    sync.WaitGroup
	mu    sync.Mutex // guards done
	done  []arrival
}

func (c *crowd) comes(x *flows.Exchange) {
	c.wg.Go(func() {
		err := c.g.flow.Serve(x)
		x.Conclude()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.done = append(c.done, arrival{string(x.Request.User), time.Since(c.start), err == nil})
	})
	synctest.Wait() // it waits, or is done
}

func (c *crowd) all() []arrival {
	c.wg.Wait()
	return c.done
}

func served(list []arrival) string {
	out := ""
	for _, a := range list {
		if a.ok {
			out += a.user
		}
	}
	return out
}

const waiting = `- rate_limit: {on_limit: wait, max_wait: %s, limits: [{name: a, key: [global], rate: 10/s, burst: 1}]}`

func TestWaitsInTurn(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, fmt.Sprintf(waiting, "10s"))
		c := crowd{g: g, start: time.Now()}
		for range 6 {
			c.comes(as("a")(0))
		}
		for range 2 {
			c.comes(as("b")(0))
		}
		c.comes(as("c")(0))
		got := c.all()
		if o := served(got); o != "aabcabaaa" {
			t.Errorf("served %s, want callers in turn: aabcabaaa", o)
		}
		for i, a := range got {
			if want := time.Duration(i) * 100 * time.Millisecond; a.at != want {
				t.Errorf("exchange %d passed after %s, want %s", i, a.at, want)
			}
		}
		labels := map[string]string{"limit": "a", "outcome": "waited"}
		if n := g.metric("weir_limit_decisions_total", labels); n != 8 {
			t.Errorf("%v counted as passed after a wait, want 8", n)
		}
		if n := g.metric("weir_limit_waiting", nil); n != 0 {
			t.Errorf("%v wait, want none", n)
		}
	})
}

// TestWaitEnds holds that a wait ends with max_wait, with the client, and at once where it would be too long.
func TestWaitEnds(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, fmt.Sprintf(waiting, "250ms"))
		c := crowd{g: g, start: time.Now()}
		for range 4 {
			c.comes(as("a")(0))
		}
		leaver := as("b")(0)
		c.comes(leaver)
		leaver.Cancel().Fire()
		got := c.all()
		want := []arrival{{"a", 0, true}, {"b", 0, false}, {"a", 100 * time.Millisecond, true}, {"a", 200 * time.Millisecond, true}, {"a", 250 * time.Millisecond, false}}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("answer %d: %+v, want %+v", i, got[i], want[i])
			}
		}
		g.load(`- rate_limit: {on_limit: wait, max_wait: 1s, limits: [{key: [global], rate: 1/10s}]}`)
		g.serve(as("a")(0))
		before := time.Now()
		if e := g.serve(as("a")(0)); e == nil || e.RetryAfter != 10*time.Second || time.Since(before) != 0 {
			t.Errorf("refused with %v after %s, want at once", e, time.Since(before))
		}
	})
}

// TestCrowdGivesUpPlaces holds that a caller who fills all places does not keep others from waiting.
func TestCrowdGivesUpPlaces(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {on_limit: wait, max_wait: 10s, max_waiting: 4, limits: [{key: [global], rate: 10/s, burst: 1}]}`)
		c := crowd{g: g, start: time.Now()}
		for range 7 { // one passes, four wait, two are refused
			c.comes(as("a")(0))
		}
		c.comes(as("b")(0))
		c.comes(as("c")(0))
		if o := served(c.all()); o != "aabca" {
			t.Errorf("served %s, want aabca", o)
		}
	})
}

// TestWaitForTwoLimits holds that who is let pass by one limit and held up by another waits for that one, and is charged
// once.
func TestWaitForTwoLimits(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `
- rate_limit:
    on_limit: wait
    max_wait: 10s
    limits: [{name: own, key: [user], rate: 10/s, burst: 1}, {name: all, key: [global], rate: 4/s, burst: 1}]
`)
		c := crowd{g: g, start: time.Now()}
		for range 3 {
			c.comes(as("a")(0))
			c.comes(as("b")(0))
		}
		got := c.all()
		if len(got) != 6 || !got[5].ok || got[5].at != 1250*time.Millisecond {
			t.Errorf("answers %+v, want six in 1.25 s", got)
		}
		synctest.Wait()
		rooms := g.filters[0].rooms
		rooms.mu.Lock()
		defer rooms.mu.Unlock()
		if len(rooms.open) != 0 {
			t.Error("a room is left open")
		}
	})
}

// TestPatienceOfLimits holds that each limit says for itself whether requests wait for it and how long, whichever holds them up
// first.
func TestPatienceOfLimits(t *testing.T) {
	f := func(limits string, want ...arrival) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, "- rate_limit: {max_wait: 3s, limits: ["+limits+"]}")
			c := crowd{g: g, start: time.Now()}
			for range want {
				c.comes(as("a")(0))
			}
			got := c.all()
			slices.SortStableFunc(got, func(a, b arrival) int { // of one moment those first that passed
				switch {
				case a.at != b.at:
					return int(a.at - b.at)
				case a.ok == b.ok:
					return 0
				case a.ok:
					return -1
				}
				return 1
			})
			if d := cmp.Diff(want, got, cmp.AllowUnexported(arrival{})); d != "" {
				t.Errorf("%s (-want +got):\n%s", limits, d)
			}
		})
	}
	const second = time.Second
	f("{name: a, rate: 1/s}", arrival{"a", 0, true}, arrival{"a", 0, false})
	f("{name: a, rate: 1/s, on_limit: wait}", arrival{"a", 0, true}, arrival{"a", second, true}, arrival{"a", 2 * second, true})
	f("{name: a, rate: 1/s, on_limit: wait, max_wait: 1500ms}",
		arrival{"a", 0, true}, arrival{"a", second, true}, arrival{"a", 3 * second / 2, false})
	f("{name: a, rate: 1/s, on_limit: wait}, {name: b, rate: 1/h, burst: 2, on_limit: reject}", // when its turn comes it is refused
		arrival{"a", 0, true}, arrival{"a", second, true}, arrival{"a", second, false})
	// The second waits for a; then b holds it up, for which it may wait for longer.
	f("{name: a, rate: 1/s, on_limit: wait, max_wait: 1500ms}, {name: b, rate: 2/5s, burst: 1, on_limit: wait}",
		arrival{"a", 0, true}, arrival{"a", 5 * second / 2, true})
}

// TestPatienceFromLimitToLimit holds that one who has waited for a limit and is then held up by another waits as long as that one
// lets it, counted from when it came.
func TestPatienceFromLimitToLimit(t *testing.T) {
	f := func(patience string, other time.Duration, passed bool, at time.Duration) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, `
- rate_limit:
    limits:
      - {name: first, key: [user], rate: 1/s, on_limit: wait, max_wait: 1500ms}
      - {name: then, key: [global], rate: 1/s, on_limit: wait, max_wait: `+patience+`, when: {method: POST}}
`)
			from := func(method, user string) *flows.Exchange {
				x := exchange(method, "/i/_search")
				x.Request.User = []byte(user)
				return x
			}
			g.serve(from("GET", "ann"))
			c := crowd{g: g, start: time.Now()}
			c.comes(from("POST", "ann"))
			<-time.After(other)
			if e := g.serve(from("POST", "bob")); e != nil {
				t.Fatal(e)
			}
			if got := c.all()[0]; got.ok != passed || got.at != at {
				t.Errorf("with %s, another after %s: %+v, want passed %v after %s", patience, other, got, passed, at)
			}
		})
	}
	f("1500ms", 300*time.Millisecond, true, 1300*time.Millisecond)
	f("1500ms", 700*time.Millisecond, false, time.Second) // it would have to wait until 1.7 s
	f("3s", 700*time.Millisecond, true, 1700*time.Millisecond)
}
