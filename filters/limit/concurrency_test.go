package limit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/flows"
	"weir/internal/simtime"
)

// working makes an exchange of a user that the cluster needs so long for.
func working(user string, d time.Duration, fields ...string) *flows.Exchange {
	x := exchange("GET", "/i/_search", append(fields, "x-work", d.String())...)
	x.Request.User = []byte(user)
	return x
}

func TestSlots(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- concurrency: {max: 2, queue: {max_wait: 10s}}`)
		c := crowd{g: g, start: time.Now()}
		for range 6 { // two pass, four wait
			c.comes(working("a", 100*time.Millisecond))
		}
		c.comes(working("a", 0)) // the queue is full
		c.comes(working("b", 100*time.Millisecond))
		if n := g.metric("weir_concurrency_in_flight", nil); n != 2 {
			t.Errorf("%v are in flight, want 2", n)
		}
		if n := g.metric("weir_concurrency_waiting", nil); n != 4 {
			t.Errorf("%v wait, want 4", n)
		}
		got := c.all()
		if o := served(got); o != "aaabaa" && o != "aabaaa" {
			t.Errorf("served %s, want b at the second turn", o)
		}
		if last := got[len(got)-1]; last.at != 300*time.Millisecond {
			t.Errorf("the last one is done after %s, want 300ms", last.at)
		}
		f := func(outcome string, want float64) {
			t.Helper()
			if n := g.metric("weir_concurrency_decisions_total", map[string]string{"class": "interactive", "outcome": outcome}); n != want {
				t.Errorf("%v exchanges are counted as %s, want %v", n, outcome, want)
			}
		}
		f("passed", 2)
		f("waited", 4)
		f("full", 1)
		f("displaced", 1)
		if n := g.metric("weir_concurrency_in_flight", nil); n != 0 {
			t.Errorf("%v are in flight in the end", n)
		}
	})
}

func TestConcurrencyRefusal(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- concurrency: {name: slots, max: 1, queue: {size: 0}}`)
		c := crowd{g: g, start: time.Now()}
		c.comes(working("a", time.Second))
		x := working("b", 0)
		e := g.serve(x)
		if e == nil || e.Type != "es_rejected_execution_exception" || e.RetryAfter != time.Second || x.Trace.Limit != "slots" ||
			e.Reason != "[slots] all 1 slots are in use, and all places to wait for one are taken" {
			t.Fatalf("refusal %+v, limit %q", e, x.Trace.Limit)
		}
		if got, want := fmt.Sprintf("%s %s", e.Fields[0].Value, e.Fields[1].Value), `"slots";q=1;qu="concurrent-requests" "slots";r=0;t=1`; got != want {
			t.Errorf("fields %s, want %s", got, want)
		}
		c.all()
	})
}

// TestWaitForSlotEnds holds that a wait ends with max_wait, with the time that the client gives the cluster, and with the client,
// and that nobody is given the slot of somebody who left.
func TestWaitForSlotEnds(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- concurrency: {max: 1, queue: {max_wait: 300ms, order: fifo, size: 9}}`)
		c := crowd{g: g, start: time.Now()}
		c.comes(working("a", 250*time.Millisecond))
		hasty := exchange("GET", "/i/_search?timeout=100ms")
		hasty.Request.User = []byte("h")
		c.comes(hasty)
		leaver := working("l", time.Second)
		c.comes(leaver)
		c.comes(working("b", 100*time.Millisecond))
		c.comes(working("c", 100*time.Millisecond))
		leaver.Cancel().Fire()
		got := c.all()
		ms := time.Millisecond
		want := []arrival{{"l", 0, false}, {"h", 100 * ms, false}, {"a", 250 * ms, true}, {"c", 300 * ms, false}, {"b", 350 * ms, true}}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("answer %d: %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}

// TestPriorities holds that slots go to the important first, that a class gets what it is sure of, and that the least important
// are shed first.
func TestPriorities(t *testing.T) {
	const filter = `
- concurrency:
    max: 1
    queue: {size: 4, max_wait: 10s}
    share: %s
    priority: [{when: {user: C}, class: critical}, {when: {user: B}, class: batch}, {when: {user: G}, class: background}]
    priority_header: X-Priority
`
	f := func(share, comes, want string, fields ...string) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, fmt.Sprintf(filter, share))
			c := crowd{g: g, start: time.Now()}
			for _, user := range comes {
				c.comes(working(string(user), time.Second, fields...))
			}
			if got := served(c.all()); got != want {
				t.Errorf("share %s, %s came: served %s, want %s", share, comes, got, want)
			}
		})
	}
	f("{critical: 0%}", "iGBIC", "iCIBG")
	f("{critical: 0%}", "iGGBBC", "iCBBG")                             // the last G had no place left
	f("{critical: 0%}", "iIIIIG", "iIIII")                             // and a G gets none
	f("{critical: 0%}", "iIIIIC", "iCIII")                             // an interactive one gives its place up
	f("{background: 50%}", "iIIIIGG", "iIIGG")                         // two of four places are background's own
	f("{critical: 0%}", "iIC", "iIC", "X-Priority", "background")      // all are background: in their order
	f("{critical: 0%}", "iGBIC", "iICBG", "X-Priority", "interactive") // C says that it is less, G cannot say that it is more
	f("{critical: 0%}", "iGBIC", "iCIBG", "X-Priority", "very high")
}

// TestShares holds that under saturation each class gets at least the slots that it is sure of, and that what one does not use is
// lent.
func TestShares(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `
- concurrency:
    max: 10
    queue: {size: 400, max_wait: 1h}
    share: {interactive: 50%, batch: 30%, background: 20%}
    priority: [{when: {user: B}, class: batch}, {when: {user: G}, class: background}]
`)
		c := crowd{g: g, start: time.Now()}
		for range 10 { // all slots are lent to the background
			c.comes(working("G", 100*time.Millisecond))
		}
		for range 100 {
			c.comes(working("G", 100*time.Millisecond))
			c.comes(working("B", 100*time.Millisecond))
			c.comes(working("I", 100*time.Millisecond))
		}
		<-time.After(1050 * time.Millisecond) // the lent slots came back after the first tenth of a second
		c.mu.Lock()
		n := map[string]int{}
		for _, a := range c.done {
			n[a.user]++
		}
		c.mu.Unlock()
		if n["I"] != 45 || n["B"] != 27 || n["G"] != 10+18 {
			t.Errorf("after a second %v were served, want 45, 27 and 28", n)
		}
		c.all()
	})
}

// TestConcurrencyProperties holds, for storms of exchanges that come, work, wait and leave at random, that never more than max
// are past the gate of a key, that all end, and that nothing is left.
func TestConcurrencyProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 5).Draw(rt, "max")
		size := rapid.IntRange(0, 8).Draw(rt, "size")
		how := rapid.SampledFrom([]string{"fair", "fifo", "lifo"}).Draw(rt, "order")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		simtime.Test(t, func(t *testing.T) {
			g := newGateway(t, fmt.Sprintf(`- concurrency: {key: ["header:x-key"], max: %d, queue: {size: %d, order: %s, max_wait: 50ms}}`, limit, size, how))
			c := crowd{g: g, start: time.Now()}
			f, _ := g.seats()[0].(*concurrency)
			for range 60 {
				x := working(fmt.Sprint(random.IntN(6)), time.Duration(random.IntN(20))*time.Millisecond,
					"x-key", fmt.Sprint(random.IntN(2)), "X-Priority", "")
				c.wg.Go(func() {
					_ = g.flow.Serve(x)
					x.Conclude()
				})
				if random.IntN(4) == 0 {
					c.wg.Go(func() {
						<-time.After(time.Duration(random.IntN(30)) * time.Millisecond)
						x.Cancel().Fire()
					})
				}
				synctest.Wait()
				for _, key := range f.gates.top(f.key) {
					if key.InFlight > limit || key.Waiting["interactive"] > size {
						rt.Fatalf("%+v, want at most %d in flight and %d that wait", key, limit, size)
					}
				}
				<-time.After(time.Duration(random.IntN(4)) * time.Millisecond)
			}
			c.wg.Wait()
			if in, wait, keys := f.gates.inFlight.Load(), f.gates.waiting.Load(), len(f.gates.top(f.key)); in+wait != 0 || keys != 0 {
				rt.Errorf("%d in flight, %d wait and %d keys in the end", in, wait, keys)
			}
		})
	})
}

// TestEachCallerGetsItsTurn holds that under saturation each caller is served at least as often as the slots divided by the
// callers allow, however many requests another one has.
func TestEachCallerGetsItsTurn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slots := rapid.IntRange(1, 6).Draw(rt, "slots")
		callers := rapid.IntRange(2, 5).Draw(rt, "callers")
		greedy := rapid.IntRange(20, 60).Draw(rt, "greedy")
		simtime.Test(t, func(t *testing.T) {
			g := newGateway(t, fmt.Sprintf(`- concurrency: {max: %d, queue: {size: 1000, max_wait: 1h}}`, slots))
			c := crowd{g: g, start: time.Now()}
			for range greedy {
				c.comes(working("0", 10*time.Millisecond))
			}
			for caller := 1; caller < callers; caller++ {
				for range 15 {
					c.comes(working(fmt.Sprint(caller), 10*time.Millisecond))
				}
			}
			<-time.After(55 * time.Millisecond) // five times all slots, the first time for the greedy one alone
			c.mu.Lock()
			n := map[string]int{}
			for _, a := range c.done {
				n[a.user]++
			}
			c.mu.Unlock()
			for caller := range callers {
				if got, least := n[fmt.Sprint(caller)], min(15, 4*slots/callers-1); got < least {
					rt.Errorf("caller %d was served %d times, want at least %d: %v", caller, got, least, n)
				}
			}
			c.all()
		})
	})
}

// TestReloadKeepsSlots holds that who is past a gate counts after a reload, and that a new number is in force at once.
func TestReloadKeepsSlots(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		const filter = `- concurrency: {max: 2, queue: {size: 4, max_wait: 10s}}`
		g := newGateway(t, filter)
		c := crowd{g: g, start: time.Now()}
		gate, _ := g.seats()[0].(*concurrency)
		key, _ := appendKey(nil, 0, gate.key, working("a", 0), hit{}, nil)
		held, _ := gate.gates.open(key, interactive, false)
		held2, _ := gate.gates.open(key, interactive, false)
		g.load(strings.Replace(filter, "max: 2", "max: 3", 1))
		c.comes(working("a", 100*time.Millisecond))
		c.comes(working("b", 100*time.Millisecond))
		if n := g.metric("weir_concurrency_in_flight", nil); n != 3 {
			t.Errorf("%v are in flight after the reload, want 3", n)
		}
		if n := g.metric("weir_concurrency_waiting", nil); n != 1 {
			t.Errorf("%v wait after the reload, want 1", n)
		}
		gate.gates.leave(held, interactive)
		gate.gates.leave(held2, interactive)
		for _, a := range c.all() {
			if !a.ok || a.at != 100*time.Millisecond {
				t.Errorf("%+v, want both done after 100 ms", a)
			}
		}
	})
}

// TestBodyFirst holds that a body is read before the slot is taken, and not at all if there is no hope for one.
func TestBodyFirst(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- concurrency: {max: 1, queue: {size: 0}, body_first: 100b}`)
		f := func(body string, read bool) {
			t.Helper()
			x := with("POST", "/i/_search", body)(0)
			if e := g.serve(x); e != nil || x.Request.Body.Buffered() != read {
				t.Errorf("body of %d bytes: %v, read %v, want %v", len(body), e, x.Request.Body.Buffered(), read)
			}
		}
		f("{}", true)
		f(strings.Repeat("x", 101), false)
		c := crowd{g: g, start: time.Now()}
		c.comes(working("a", time.Second))
		x := with("POST", "/i/_search", "{}")(0)
		if e := g.serve(x); e == nil || x.Request.Body.Buffered() {
			t.Errorf("%v, read %v: want a refusal without the body", e, x.Request.Body.Buffered())
		}
		c.all()
	})
}

// TestPanicFreesTheSlot holds that a filter that panics does not take a slot with it: the entry ends the exchange.
func TestPanicFreesTheSlot(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- concurrency: {max: 1}`)
		x := working("a", 0)
		func() {
			defer func() { _ = recover() }()
			f, _ := g.seats()[0].(*concurrency)
			_ = f.Serve(x, panics{})
		}()
		if n := g.metric("weir_concurrency_in_flight", nil); n != 1 {
			t.Fatalf("%v are in flight before the exchange has ended", n)
		}
		x.Conclude()
		if n := g.metric("weir_concurrency_in_flight", nil); n != 0 {
			t.Errorf("%v are in flight", n)
		}
	})
}

type panics struct{}

func (panics) Serve(*flows.Exchange) error { panic("a filter's mistake") }

func TestConcurrencyShadow(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- concurrency: {max: 1, mode: shadow}`)
		c := crowd{g: g, start: time.Now()}
		for range 3 {
			c.comes(working("a", time.Second))
		}
		if n := g.metric("weir_concurrency_decisions_total", map[string]string{"class": "interactive", "outcome": "would_wait"}); n != 2 {
			t.Errorf("%v counted that would wait, want 2", n)
		}
		if o := served(c.all()); o != "aaa" {
			t.Errorf("served %s, want aaa", o)
		}
	})
}

func TestConcurrencyMistakes(t *testing.T) {
	f := func(params, want string) {
		t.Helper()
		_, p := build(t, "- concurrency: "+params, func(*rateLimit) {})
		all := ""
		for _, q := range p.Sorted() {
			all += q.String() + "\n"
		}
		if want == "" && all != "" || !strings.Contains(all, want) {
			t.Errorf("%s: problems %q, want %q", params, all, want)
		}
	}
	f(`{}`, `"max" is missing`)
	f(`{max: 0}`, "at least 1")
	f(`{max: 1, key: []}`, "an empty key")
	f(`{max: 1, key: [usr]}`, `did you mean "user"?`)
	f(`{max: 1, key: [index]}`, "not known of every request")
	f(`{max: 1, queue: {fair_by: [x]}}`, "unknown selector")
	f(`{max: 1, queue: {size: 0, max_wait: 2s}}`, "max_wait has no effect with size: 0")
	f(`{max: 1, queue: {size: 0, order: fair}}`, "order has no effect with size: 0")
	f(`{max: 1, share: {batch: 50%, critical: 51%}}`, "make 101% together")
	f(`{max: 1, share: {bach: 50%}}`, `did you mean "batch"?`)
	f(`{max: 1, priority: [{when: {user: a}, class: urgent}]}`, "not one of critical")
	f(`{max: 1, priority: [{when: {usr: a}, class: batch}]}`, "unknown word")
	f(`{max: 1, priority: [{when: {status: 5xx}, class: batch}]}`, "no status matches: there is no answer yet")
	f(`{max: 1, exempt: {status: 200}}`, "no status matches")
	f(`{max: 1, priority_header: Authorization}`, "Authorization is where callers put their credentials")
	f(`{max: 1, priority_header: X-Priority}`, "")
	f(`{max: 1, queue: {fair_by: [ip]}}`, "")
	for _, e := range Concurrency().Examples {
		if _, p := build(t, e.YAML, func(*rateLimit) {}); len(p.Sorted()) > 0 {
			t.Errorf("%s: %v", e.Title, p.Sorted())
		}
	}
}

func TestFreeSlotAllocates(t *testing.T) {
	if raced {
		t.Skip("sync.Pool forgets under the race detector")
	}
	g := newGateway(t, `- concurrency: {key: [user], max: 9}
- concurrency: {max: 9}`)
	x := exchange("GET", "/i/_search")
	x.Request.User = []byte("ann")
	if n := testing.AllocsPerRun(1000, func() {
		if err := g.flow.Serve(x); err != nil {
			t.Fatal(err)
		}
		x.Conclude()
		x.Response.Header.Reset()
	}); n != 0 {
		t.Errorf("%v allocations for two free slots", n)
	}
}
