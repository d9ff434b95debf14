package balance

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// clock is a clock that tests move.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func newPicker(t testing.TB, n int, weight func(i int) int) (*Picker[int], []*Member[int], *clock) {
	t.Helper()
	c := &clock{now: time.Unix(1000, 0)}
	r := rand.New(rand.NewPCG(1, 2))
	p := NewPicker[int](Options{Now: c.Now, Rand: r.IntN})
	var ms []*Member[int]
	for i := range n {
		ms = append(ms, p.NewMember(strconv.Itoa(i), i, weight(i)))
	}
	p.Set(ms)
	return p, ms, c
}

func one(int) int { return 1 }

func TestWeightsShareTheLoad(t *testing.T) {
	for _, n := range []int{2, 3, 6} {
		p, ms, _ := newPicker(t, n, func(i int) int { return 1 + i%2 })
		shares := make([]float64, n)
		var running []*Member[int]
		dice := rand.New(rand.NewPCG(3, 4))
		for i := range 20_000 {
			m := p.Pick(nil)
			shares[m.Node]++
			if running = append(running, m); i >= 60 { // 60 exchanges are always in flight
				j := dice.IntN(len(running))
				running[j].Done(Good, 5*time.Millisecond, "")
				running = append(running[:j], running[j+1:]...)
			}
		}
		total := 0.0
		for _, m := range ms {
			total += float64(m.weight.Load())
		}
		for i, m := range ms {
			want := float64(m.weight.Load()) / total
			if got := shares[i] / 20_000; got < want*.9 || got > want*1.1 {
				t.Errorf("%d nodes: node %d of weight %d got a share of %.3f, want %.3f", n, i, m.weight.Load(), got, want)
			}
		}
	}
}

func TestIdleClusterIsShared(t *testing.T) {
	p, _, _ := newPicker(t, 3, one)
	shares := make([]int, 3)
	for range 3000 {
		m := p.Pick(nil)
		shares[m.Node]++
		m.Done(Good, time.Duration(1100+100*m.Node)*time.Microsecond, "")
	}
	for i, n := range shares {
		if n < 800 {
			t.Errorf("node %d got %d of 3000", i, n)
		}
	}
}

func TestWeightZeroDrains(t *testing.T) {
	p, ms, _ := newPicker(t, 3, one)
	ms[1].SetWeight(0)
	for range 100 {
		if m := p.Pick(nil); m == ms[1] {
			t.Fatal("a drained node was picked")
		}
	}
}

func TestSlowNodeGetsLessAndIsTriedAgain(t *testing.T) {
	p, ms, c := newPicker(t, 2, one)
	for range 50 {
		m := p.Pick(nil)
		d := 2 * time.Millisecond
		if m == ms[0] {
			d = 200 * time.Millisecond
		}
		m.Done(Good, d, "")
	}
	slow := 0
	for range 100 {
		m := p.Pick(nil)
		if m == ms[0] {
			slow++
		}
		m.Done(Good, 2*time.Millisecond, "")
	}
	if slow > 5 {
		t.Errorf("the slow node got %d of 100", slow)
	}
	c.advance(2 * time.Minute)
	slow = 0
	for range 100 {
		m := p.Pick(nil)
		if m == ms[0] {
			slow++
		}
		m.Done(Good, 2*time.Millisecond, "")
	}
	if slow < 20 {
		t.Errorf("the node that was slow got %d of 100 after two quiet minutes", slow)
	}
}

func TestEjectionAndReadmission(t *testing.T) {
	p, ms, c := newPicker(t, 3, one)
	for range failuresToOut - 1 {
		ms[0].Report(Refused, 0, "refused")
	}
	ms[0].Report(Good, time.Millisecond, "")
	ms[0].Report(Refused, 0, "refused")
	if ms[0].State().Out {
		t.Fatal("out although the failures were not consecutive")
	}
	for range failuresToOut {
		ms[0].Report(Refused, 0, "refused")
	}
	s := ms[0].State()
	if !s.Out || s.Cause != "refused" || s.Until.Before(c.now.Add(4*time.Second)) || s.Until.After(c.now.Add(6*time.Second)) {
		t.Fatalf("got %+v", s)
	}
	for range 100 {
		m := p.Pick(nil)
		if m == ms[0] {
			t.Fatal("a node that is out was picked")
		}
		m.Done(Good, time.Millisecond, "")
	}
	ms[0].Readmit()
	share := func() int {
		n := 0
		for range 1000 {
			m := p.Pick(nil)
			if m == ms[0] {
				n++
			}
			m.Done(Good, time.Millisecond, "")
		}
		return n
	}
	if n := share(); n < 10 || n > 100 {
		t.Errorf("right after it came back the node got %d of 1000", n)
	}
	c.advance(time.Minute)
	if n := share(); n < 250 {
		t.Errorf("a minute later it got %d of 1000", n)
	}
}

func TestNothingCountsAgainstANode(t *testing.T) {
	p, ms, _ := newPicker(t, 2, one)
	for range 100 {
		p.Pick(nil).Done(Ignored, 0, "")
	}
	for _, m := range ms {
		if m.State().Out {
			t.Error("out for nothing")
		}
	}
}

// TestBoundOnEjections holds for any history: at most half of the nodes, but at least one of two or more, are out; the
// only node never is; a pick is found as long as a member that was not tried has a weight.
func TestBoundOnEjections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "nodes")
		c := &clock{now: time.Unix(1000, 0)}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		p := NewPicker[int](Options{Now: c.Now, Rand: r.IntN})
		var ms []*Member[int]
		for i := range n {
			ms = append(ms, p.NewMember(strconv.Itoa(i), i, 1))
		}
		p.Set(ms)
		bound := max(1, n/2)
		if n == 1 {
			bound = 0
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			m := ms[rapid.IntRange(0, n-1).Draw(t, "node")]
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				c.advance(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			case 1:
				m.Readmit()
			case 2:
				m.Report(Good, time.Millisecond, "")
			default:
				for range failuresToOut {
					m.Report(Outcome(rapid.IntRange(int(Failed), int(Refused)).Draw(t, "outcome")), 0, "x")
				}
			}
			out := 0
			for _, m := range ms {
				if m.State().Out {
					out++
				}
			}
			if out > bound {
				t.Fatalf("%d of %d nodes are out", out, n)
			}
			var tried []*Member[int]
			for range n {
				m := p.Pick(tried)
				if m == nil {
					t.Fatalf("nothing picked although %d of %d were tried", len(tried), n)
				}
				m.Done(Ignored, 0, "")
				if contains(tried, m) {
					t.Fatal("picked what was tried")
				}
				tried = append(tried, m)
			}
			if p.Pick(tried) != nil {
				t.Fatal("picked although all were tried")
			}
		}
	})
}

func TestPickAllocatesNothing(t *testing.T) {
	p, _, _ := newPicker(t, 6, one)
	if n := testing.AllocsPerRun(1000, func() { p.Pick(nil).Done(Good, time.Millisecond, "") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPick(b *testing.B) {
	p, _, _ := newPicker(b, 6, one)
	b.ReportAllocs()
	for b.Loop() {
		p.Pick(nil).Done(Good, time.Millisecond, "")
	}
}
