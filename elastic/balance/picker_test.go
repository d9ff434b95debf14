package balance

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// clock is a clock that tests move.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func newPicker(t testing.TB, o Options, n int, weight func(i int) int) (*Picker[int], []*Member[int], *clock) {
	t.Helper()
	c := &clock{now: time.Unix(1000, 0)}
	r := rand.New(rand.NewPCG(1, 2))
	o.Now, o.Rand = c.Now, r.IntN
	p := NewPicker[int](o)
	var ms []*Member[int]
	for i := range n {
		ms = append(ms, p.NewMember(strconv.Itoa(i), i, weight(i)))
	}
	p.Set(ms)
	return p, ms, c
}

func one(int) int { return 1 }

// send picks and ends n exchanges one after the other, and returns how many each member got.
func send(p *Picker[int], members, n int, d time.Duration) []int {
	got := make([]int, members)
	for range n {
		m := p.Pick(Search, nil)
		got[m.Node]++
		m.Done(Search, Good, d, "")
	}
	return got
}

// At equal latency the shares are those of the weights, within 5 %, whether there is much to do or little.
func TestWeightsShareTheLoad(t *testing.T) {
	f := func(o Options, n, inFlight int) {
		t.Helper()
		p, ms, _ := newPicker(t, o, n, func(i int) int { return 1 + i%2 })
		const exchanges = 12_000
		shares := make([]float64, n)
		var running []*Member[int]
		dice := rand.New(rand.NewPCG(3, 4))
		for range exchanges {
			m := p.Pick(Search, nil)
			shares[m.Node]++
			if running = append(running, m); len(running) > inFlight {
				j := dice.IntN(len(running))
				running[j].Done(Search, Good, 5*time.Millisecond, "")
				running = append(running[:j], running[j+1:]...)
			}
		}
		total := 0.0
		for _, m := range ms {
			total += float64(m.weight.Load())
		}
		for i, m := range ms {
			want := float64(m.weight.Load()) / total
			if got := shares[i] / exchanges; got < want*.95 || got > want*1.05 {
				t.Errorf("%+v, %d nodes, %d in flight: node %d of weight %d got a share of %.3f, want %.3f", o, n, inFlight, i, m.weight.Load(), got, want)
			}
		}
	}
	for _, n := range []int{2, 3} {
		f(Options{}, n, 0)
		f(Options{}, n, 60)
		f(Options{Policy: Least}, n, 60)
	}
	f(Options{}, 6, 400)
	f(Options{Policy: RoundRobin}, 6, 7)
}

func TestIdleClusterIsShared(t *testing.T) {
	p, _, _ := newPicker(t, Options{}, 3, one)
	shares := make([]int, 3)
	for range 3000 {
		m := p.Pick(Search, nil)
		shares[m.Node]++
		m.Done(Search, Good, time.Duration(1900+100*m.Node)*time.Microsecond, "")
	}
	for i, n := range shares {
		if n < 900 {
			t.Errorf("node %d got %d of 3000", i, n)
		}
	}
}

func TestFirstTakesTheFirstThatIsWell(t *testing.T) {
	p, ms, _ := newPicker(t, Options{Policy: First, MaxInFlight: 2}, 3, one)
	f := func(want int) *Member[int] {
		t.Helper()
		m := p.Pick(Search, nil)
		if m == nil || m.Node != want {
			t.Fatalf("got %v, want node %d", m, want)
		}
		return m
	}
	a, b := f(0), f(0)
	f(1).Done(Search, Good, 0, "") // the first is full
	a.Done(Search, Good, 0, "")
	b.Done(Search, Good, 0, "")
	ms[0].Stalled("paused")
	f(1)
}

func TestWeightZeroDrains(t *testing.T) {
	for _, policy := range []Policy{PowerOfTwo, Least, RoundRobin, First} {
		p, ms, _ := newPicker(t, Options{Policy: policy}, 3, one)
		running := p.Pick(Search, nil)
		ms[0].SetWeight(0)
		if got := send(p, 3, 100, time.Millisecond); got[0] != 0 {
			t.Fatalf("policy %d: a drained node was picked", policy)
		}
		running.Done(Search, Good, time.Millisecond, "")
		for _, m := range ms {
			m.SetWeight(0)
		}
		if m := p.Pick(Search, nil); m != nil {
			t.Fatalf("policy %d: a drained node was picked although all are", policy)
		}
	}
}

func TestSlowNodeGetsLessAndIsTriedAgain(t *testing.T) {
	p, ms, c := newPicker(t, Options{}, 2, one)
	for range 50 {
		m := p.Pick(Search, nil)
		d := 2 * time.Millisecond
		if m == ms[0] {
			d = 200 * time.Millisecond
		}
		m.Done(Search, Good, d, "")
	}
	if got := send(p, 2, 100, 2*time.Millisecond); got[0] > 5 {
		t.Errorf("the slow node got %d of 100", got[0])
	}
	// It is slow at searches; that says nothing about writes.
	writes := 0
	for range 100 {
		m := p.Pick(Write, nil)
		if m == ms[0] {
			writes++
		}
		m.Done(Write, Good, 2*time.Millisecond, "")
	}
	if writes < 30 {
		t.Errorf("the node that is slow at searches got %d of 100 writes", writes)
	}
	c.advance(2 * time.Minute)
	if got := send(p, 2, 100, 2*time.Millisecond); got[0] < 20 {
		t.Errorf("the node that was slow got %d of 100 after two quiet minutes", got[0])
	}
}

// A node that answers errors at once is not the fastest one.
func TestFailingFastIsNotFast(t *testing.T) {
	f := func(o Outcome) {
		t.Helper()
		p, ms, _ := newPicker(t, Options{Outlier: Outlier{Failures: 1 << 20, Ratio: 2}}, 3, one)
		send(p, 3, 100, 20*time.Millisecond)
		bad := 0
		for range 1000 {
			m := p.Pick(Search, nil)
			if m == ms[1] {
				bad++
				m.Done(Search, o, 100*time.Microsecond, "x")
			} else {
				m.Done(Search, Good, 20*time.Millisecond, "")
			}
		}
		if bad > 50 {
			t.Errorf("outcome %d: the failing node got %d of 1000", o, bad)
		}
	}
	f(Failed)
	f(Busy)
	f(Blocked)
}

func TestUnknownNodeIsJudgedByTheOthers(t *testing.T) {
	p, ms, c := newPicker(t, Options{}, 3, one)
	for _, m := range ms {
		m.Report(Search, Good, 50*time.Millisecond, "")
	}
	fresh := p.NewMember("3", 3, 1)
	p.Set(append(ms, fresh))
	c.advance(slowStart)
	for _, m := range ms {
		m.Report(Search, Good, 50*time.Millisecond, "")
	}
	got := make([]int, 4)
	for range 400 { // all stay in flight
		got[p.Pick(Search, nil).Node]++
	}
	if got[3] < 80 || got[3] > 120 {
		t.Errorf("shares are %v", got)
	}
}

func TestTiers(t *testing.T) {
	p, ms, _ := newPicker(t, Options{MaxInFlight: 1}, 3, one)
	ms[1].SetTier(Search, 1)
	ms[2].SetTier(Search, 2)
	f := func(c Class, want int) {
		t.Helper()
		m := p.Pick(c, nil)
		if m == nil || m.Node != want {
			t.Errorf("class %d: got %v, want node %d", c, m, want)
		}
	}
	f(Search, 0)
	f(Search, 1) // the better one is full
	ms[0].Release()
	ms[0].Stalled("paused")
	f(Write, 2) // the tiers of searches are not those of writes
	if m := p.Pick(Search, nil); m != nil {
		t.Errorf("got node %d: nodes that are well but full are worth waiting for", m.Node)
	}
	ms[2].Release()
	f(Search, 2)
}

func TestZone(t *testing.T) {
	p, ms, _ := newPicker(t, Options{ZonePenalty: 1.5}, 4, one)
	share := func() float64 {
		near := 0
		var running []*Member[int]
		dice := rand.New(rand.NewPCG(3, 4))
		for range 4000 {
			m := p.Pick(Search, nil)
			if m.local.Load() {
				near++
			}
			if running = append(running, m); len(running) > 40 {
				j := dice.IntN(len(running))
				running[j].Done(Search, Good, 5*time.Millisecond, "")
				running = append(running[:j], running[j+1:]...)
			}
		}
		for _, m := range running {
			m.Release()
		}
		return float64(near) / 4000
	}
	ms[0].SetLocal(true)
	if s := share(); s < 0.22 || s > 0.28 {
		t.Errorf("one node in the zone is not enough to prefer it: it got %.2f", s)
	}
	ms[1].SetLocal(true)
	if s := share(); s < 0.55 || s > 0.7 {
		t.Errorf("the two in the zone got %.2f, want more than half, and some left to the others", s)
	}
	ms[0].Stalled("paused")
	if s := share(); s < 0.28 || s > 0.4 {
		t.Errorf("with one of two in the zone away the other got %.2f", s)
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	for _, policy := range []Policy{PowerOfTwo, Least, RoundRobin, First} {
		p, _, _ := newPicker(t, Options{Policy: policy, MaxInFlight: 10, MaxWaiting: 1}, 6, one)
		n := testing.AllocsPerRun(1000, func() {
			m, _, err := p.Acquire(Ask{})
			if err != nil {
				t.Fatal(err)
			}
			m.Done(Search, Good, time.Millisecond, "")
		})
		if n != 0 {
			t.Errorf("policy %d: %v allocations", policy, n)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{3, 6, 60} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p, _, _ := newPicker(b, Options{MaxInFlight: 256}, n, one)
			b.ReportAllocs()
			for b.Loop() {
				p.Pick(Search, nil).Done(Search, Good, time.Millisecond, "")
			}
		})
	}
}

// TestPickerHolds holds for any history: at most as many members are out as the bound says, and the only one never is;
// every member that has a weight, room and was not tried is found; nobody has more exchanges than it may have.
func TestPickerHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 3
		c := &clock{now: time.Unix(1000, 0)}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		type told struct{ out, kept bool }
		last := map[string]told{}
		panicking := false
		p := NewPicker[int](Options{
			Policy: Policy(rapid.IntRange(0, 3).Draw(t, "policy")), MaxInFlight: most, Now: c.Now, Rand: r.IntN, ZonePenalty: 1.5,
			OnChange: func(ch Change) {
				now := told{ch.Out, ch.Kept}
				if last[ch.Name] == now || ch.Out && ch.Kept {
					t.Fatalf("told after %+v: %+v", last[ch.Name], ch)
				}
				last[ch.Name] = now
			},
			OnPanic: func(on bool) {
				if on == panicking {
					t.Fatalf("panic %v told twice", on)
				}
				panicking = on
			},
		})
		var every []*Member[int]
		for i := range 8 {
			every = append(every, p.NewMember(strconv.Itoa(i), i, 1))
		}
		members := every[:rapid.IntRange(1, 8).Draw(t, "members")]
		p.Set(members)
		var running []*Member[int]
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			m := members[rapid.IntRange(0, len(members)-1).Draw(t, "node")]
			class := Class(rapid.IntRange(0, classes-1).Draw(t, "class"))
			switch rapid.IntRange(0, 10).Draw(t, "step") {
			case 0:
				c.advance(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
				p.Review()
			case 1:
				m.Check(Good, "")
			case 2:
				m.Report(class, Good, time.Millisecond, "")
			case 3:
				m.SetWeight(rapid.IntRange(0, 2).Draw(t, "weight"))
			case 4:
				members = every[:rapid.IntRange(1, 8).Draw(t, "members")]
				p.Set(members)
			case 5:
				m.Stalled("x")
			case 6:
				if m := p.Pick(class, nil); m != nil {
					running = append(running, m)
				}
			case 7:
				if len(running) > 0 {
					running[0].Done(class, Good, time.Millisecond, "")
					running = running[1:]
				}
			default:
				for range 5 {
					m.Report(class, Outcome(rapid.IntRange(int(Ignored), int(Refused)).Draw(t, "outcome")), 0, "x")
				}
			}
			away, total, usable := 0, 0, 0
			well := false
			for _, m := range members {
				if n := m.InFlight(); n > most {
					t.Fatalf("%s has %d exchanges", m.Name, n)
				}
				if m.weight.Load() == 0 {
					continue
				}
				total++
				if m.Out() {
					away++
				}
				if !m.Out() && !m.dead.Load() {
					well = true
				}
				usable++
			}
			bound := max(1, total/2)
			if total < 2 {
				bound = 0
			}
			if away > bound {
				t.Fatalf("%d of %d nodes are out", away, total)
			}
			if p.Panicking() && 2*(total-away) >= total {
				t.Fatalf("panic although %d of %d are in", total-away, total)
			}
			var tried []*Member[int]
			for {
				m := p.Pick(class, tried)
				if m == nil {
					break
				}
				if m.weight.Load() == 0 || slices.Contains(tried, m) {
					t.Fatalf("picked %s", m.Name)
				}
				if well && len(tried) == 0 && (m.dead.Load() || m.Out() && !p.Panicking()) {
					t.Fatalf("picked %s although others are well", m.Name)
				}
				m.Release()
				tried = append(tried, m)
			}
			if len(running) == 0 && len(tried) != usable {
				t.Fatalf("%d of %d were found", len(tried), usable)
			}
		}
	})
}
