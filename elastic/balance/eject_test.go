package balance

import (
	"slices"
	"testing"
	"time"
)

func TestEjectionAndReadmission(t *testing.T) {
	p, ms, c := newPicker(t, Options{}, 3, one)
	refuse := func(times int) {
		for range times {
			ms[0].Report(Search, Refused, 0, "refused")
		}
	}
	refuse(4)
	ms[0].Report(Search, Good, time.Millisecond, "")
	refuse(1)
	if ms[0].Out() {
		t.Fatal("out although the failures were not consecutive")
	}
	refuse(4)
	s := ms[0].State()
	if !s.Out || s.Cause != "refused" || s.Until.Before(c.now.Add(4*time.Second)) || s.Until.After(c.now.Add(6*time.Second)) {
		t.Fatalf("got %+v", s)
	}
	if got := send(p, 3, 100, time.Millisecond); got[0] != 0 {
		t.Fatal("a node that is out was picked")
	}
	// No connection can be made: it does not come back by itself.
	c.advance(time.Minute)
	p.Review()
	if got := send(p, 3, 100, time.Millisecond); got[0] != 0 {
		t.Fatal("a node that refuses connections was picked when its time was over")
	}
	refuse(1)
	if !ms[0].Out() {
		t.Fatal("not out again although it still fails")
	}
	ms[0].Check(Good, "")
	if n := send(p, 3, 1000, time.Millisecond)[0]; n < 10 || n > 100 {
		t.Errorf("right after it came back the node got %d of 1000", n)
	}
	c.advance(time.Minute)
	if n := send(p, 3, 1000, time.Millisecond)[0]; n < 250 {
		t.Errorf("a minute later it got %d of 1000", n)
	}
}

func TestEjectionsGrow(t *testing.T) {
	_, ms, c := newPicker(t, Options{}, 2, one)
	for _, want := range []time.Duration{5, 10, 20, 40, 80, 120, 120} {
		ms[0].Stalled("x")
		if got := ms[0].State().Until.Sub(c.now); got < want*8*time.Second/10 || got > want*12*time.Second/10 {
			t.Errorf("out for %v, want %ds within a fifth", got, want)
		}
		ms[0].Check(Good, "")
	}
	c.advance(2 * time.Minute)
	ms[0].Stalled("x")
	if got := ms[0].State().Until.Sub(c.now); got > 6*time.Second {
		t.Errorf("out for %v after two good minutes", got)
	}
}

func TestShareOfFailuresEjects(t *testing.T) {
	_, ms, c := newPicker(t, Options{}, 3, one)
	f := func(m *Member[int], rounds int, outcomes ...Outcome) {
		for range rounds {
			for _, o := range outcomes {
				m.Report(Search, o, time.Millisecond, "half of it fails")
			}
		}
	}
	f(ms[0], 9, Failed, Good)
	if ms[0].Out() {
		t.Error("out after 18 attempts")
	}
	f(ms[0], 2, Failed, Good)
	if !ms[0].Out() {
		t.Error("in although half of 22 attempts failed")
	}
	f(ms[1], 30, Failed, Good, Good)
	if ms[1].Out() {
		t.Error("out although two of three succeed")
	}
	f(ms[2], 9, Failed, Good)
	c.advance(11 * time.Second)
	f(ms[2], 5, Failed, Good)
	if ms[2].Out() {
		t.Error("out for failures that are longer ago than ten seconds")
	}
}

func TestNothingCountsAgainstANode(t *testing.T) {
	p, ms, _ := newPicker(t, Options{}, 2, one)
	for range 100 {
		p.Pick(Search, nil).Done(Search, Ignored, 0, "")
		ms[0].Report(Search, Busy, 0, "")
		// The whole cluster is blocked.
		ms[0].Report(Search, Blocked, 0, "")
		ms[1].Report(Search, Blocked, 0, "")
	}
	for _, m := range ms {
		if m.Out() {
			t.Error("out for nothing")
		}
	}
	_, ms, _ = newPicker(t, Options{}, 2, one)
	for range 5 {
		ms[1].Report(Search, Good, time.Millisecond, "")
		ms[0].Report(Search, Blocked, 0, "no master")
	}
	if !ms[0].Out() {
		t.Error("in although it alone lost its master")
	}
}

func TestOnlyNodeStaysIn(t *testing.T) {
	p, ms, _ := newPicker(t, Options{}, 1, one)
	for range 100 {
		ms[0].Report(Search, Refused, 0, "refused")
		ms[0].Stalled("stalled")
	}
	if ms[0].Out() || p.Pick(Search, nil) != ms[0] {
		t.Error("the only node is out")
	}
}

// That a node fails is told once, also if it is not taken out since too many would be, and so is that it fails no longer.
func TestKeptNodesAreTold(t *testing.T) {
	var told []Change
	p, ms, c := newPicker(t, Options{OnChange: func(ch Change) { told = append(told, ch) }}, 3, one)
	f := func(want ...Change) {
		t.Helper()
		for i := range told {
			told[i].Until = time.Time{}
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %+v, want %+v", told, want)
		}
		told = nil
	}
	fail := func(m *Member[int], o Outcome, times int) {
		for range times {
			m.Report(Search, o, 0, "reset")
		}
	}
	fail(ms[0], Refused, 5)
	fail(ms[1], Refused, 9)
	fail(ms[2], Failed, 9)
	p.Review()
	f(Change{Name: ms[0].Name, Out: true, Cause: "reset"}, Change{Name: ms[1].Name, Kept: true, Cause: "reset"}, Change{Name: ms[2].Name, Kept: true, Cause: "reset"})
	if s := ms[1].State(); s.Out || s.Cause != "reset" {
		t.Errorf("got %+v", s)
	}
	ms[0].Check(Good, "")
	fail(ms[1], Refused, 1) // now there is room
	f(Change{Name: ms[0].Name, Cause: "a health check succeeded"}, Change{Name: ms[1].Name, Out: true, Cause: "reset"})
	ms[2].Report(Search, Good, time.Millisecond, "")
	p.Review()
	f(Change{Name: ms[2].Name, Cause: failsNoMore})
	if s := ms[2].State(); s.Cause != "" {
		t.Errorf("got %+v", s)
	}
	// Half of what a node does fails: that is one change, not one for each.
	for range 30 {
		fail(ms[2], Failed, 1)
		ms[2].Report(Search, Good, time.Millisecond, "")
		p.Review()
	}
	f(Change{Name: ms[2].Name, Kept: true, Cause: "reset"})
	c.advance(ratioWindow * time.Second)
	p.Review()
	f(Change{Name: ms[2].Name, Cause: failsNoMore})
}

// One node in two may be out: the other dead one is tried only when nothing else is left.
func TestDeadNodesBeyondTheBoundAreAvoided(t *testing.T) {
	p, ms, _ := newPicker(t, Options{}, 3, one)
	for _, m := range ms[:2] {
		for range 5 {
			m.Report(Search, Refused, 0, "refused")
		}
	}
	if ms[0].Out() == ms[1].Out() {
		t.Error("one of the two must be out")
	}
	if got := send(p, 3, 100, time.Millisecond); got[2] != 100 {
		t.Errorf("shares are %v", got)
	}
	if m := p.Pick(Search, ms[2:]); m == nil {
		t.Error("nothing picked when only dead ones are left")
	}
}

func TestPanic(t *testing.T) {
	var told []bool
	p, ms, c := newPicker(t, Options{
		Outlier: Outlier{MaxEjected: 1}, OnPanic: func(on bool) { told = append(told, on) },
	}, 4, one)
	for _, m := range ms[:2] {
		for range 5 {
			m.Report(Search, Failed, 0, "502")
		}
	}
	if got := send(p, 4, 200, time.Millisecond); got[0]+got[1] != 0 || told != nil {
		t.Errorf("with half of the nodes in: shares are %v, told %v", got, told)
	}
	for range 5 {
		ms[2].Report(Search, Refused, 0, "refused")
	}
	for _, m := range ms[:2] { // what they were punished with
		for range 100 {
			m.observe(Search, p.since(), 0.001)
		}
	}
	if got := send(p, 4, 300, time.Millisecond); got[0] < 50 || got[1] < 50 || got[2] != 0 {
		t.Errorf("in a panic: shares are %v, want all but the one that refuses connections", got)
	}
	c.advance(time.Hour)
	p.Review()
	if !slices.Equal(told, []bool{true, false}) {
		t.Errorf("told %v", told)
	}
}

func TestMostlyWell(t *testing.T) {
	f := func(n, failing int, want bool) {
		t.Helper()
		p, ms, _ := newPicker(t, Options{}, n, one)
		for _, m := range ms[:failing] {
			m.Report(Search, Failed, 0, "x")
		}
		if p.MostlyWell() != want {
			t.Errorf("%d of %d fail: got %v", failing, n, !want)
		}
		for _, m := range ms {
			m.Report(Search, Good, time.Millisecond, "")
		}
		if p.MostlyWell() != (n > 1) {
			t.Errorf("%d nodes, all well: got %v", n, n <= 1)
		}
	}
	f(1, 0, false)
	f(2, 1, true)
	f(2, 2, false)
	f(3, 1, true)
	f(3, 2, false)
}

func TestFewerMembersFewerOut(t *testing.T) {
	p, ms, _ := newPicker(t, Options{}, 6, one)
	for _, m := range ms[:3] {
		m.Stalled("x")
	}
	p.Set(ms[:4])
	out := 0
	for _, m := range ms[:4] {
		if m.Out() {
			out++
		}
	}
	if out != 2 {
		t.Errorf("%d of four are out", out)
	}
}
