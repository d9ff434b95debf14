package balance

import "time"

// Why a member comes back that nobody has checked, and why one is well again that was not taken out.
const (
	timeIsOver  = "its time is over"
	failsNoMore = "it fails no longer"
)

// eject takes m out for a while, unless too many would then be out.
func (p *Picker[T]) eject(m *Member[T], cause string) {
	p.mu.Lock()
	now := p.since()
	// The arithmetic is done for the time after the ejection (envoyproxy/envoy#3263).
	out, bound := p.out(now)
	if !m.in(now) || m.weight.Load() <= 0 {
		p.mu.Unlock()
		return
	}
	if out+1 > bound {
		// One whose time is over was told to be out, and nobody has taken note that it is not.
		first := !m.kept && m.outUntil.Load() == 0
		if first {
			m.kept, m.cause = true, cause
		}
		p.mu.Unlock()
		if first {
			p.changed(Change{Name: m.Name, Kept: true, Cause: cause})
		}
		return
	}
	if back := m.backAt.Load(); back != 0 && now-back > int64(forgiveAfter) {
		m.ejections = 0
	}
	length := min(p.o.Outlier.First<<min(m.ejections, 10), p.o.Outlier.Longest)
	length += length * time.Duration(p.o.Rand(41)-20) / 100
	m.ejections++
	m.cause, m.kept = cause, false
	// It came back by itself, and nobody has taken note. A dead one did not: it was never used.
	unsaid, still := m.outUntil.Load() != 0, m.dead.Load() && m.outUntil.Load() != 0
	until := now + int64(length)
	m.outUntil.Store(until)
	m.backAt.Store(until) // slow start begins when it comes back by itself
	tell := p.panicChange(now)
	p.mu.Unlock()
	if still {
		tell()
		return
	}
	if unsaid {
		p.changed(Change{Name: m.Name, Cause: timeIsOver})
	}
	p.changed(Change{Name: m.Name, Out: true, Cause: cause, Until: p.epoch.Add(time.Duration(until))})
	tell()
}

// out returns how many members are out, and how many may be: at least one of two or more, the only one never. Members
// without weight do not count. The caller holds mu.
func (p *Picker[T]) out(now int64) (out, bound int) {
	total := 0
	for _, m := range *p.members.Load() {
		if m.weight.Load() > 0 {
			total++
			if !m.in(now) {
				out++
			}
		}
	}
	if total >= 2 {
		bound = max(1, int(p.o.Outlier.MaxEjected*float64(total)))
	}
	return out, min(bound, max(0, total-1))
}

// settle takes members back until not too many are out, after the number of members has changed. The caller holds mu,
// which settle gives up for as long as it tells of that.
func (p *Picker[T]) settle(now int64) {
	var back []Change
	for out, bound := p.out(now); out > bound; out-- {
		var first *Member[T]
		for _, m := range *p.members.Load() {
			if m.weight.Load() > 0 && !m.in(now) && (first == nil || m.outUntil.Load() < first.outUntil.Load()) {
				first = m
			}
		}
		first.outUntil.Store(0)
		first.backAt.Store(now)
		back = append(back, Change{Name: first.Name, Cause: "too few nodes are left"})
	}
	tell := p.panicChange(now)
	p.mu.Unlock()
	for _, c := range back {
		p.changed(c)
	}
	tell()
	p.mu.Lock()
}

// readmit takes m back if it is out or dead, and forgets its failures and how long its answers took: what failures made
// of that says nothing about the node that is back.
func (m *Member[T]) readmit(cause string) {
	p := m.p
	p.mu.Lock()
	now := p.since()
	if m.dead.Swap(false) || m.outUntil.Load() != 0 {
		m.failures.Store(0)
		m.blocked.Store(0)
		for c := range m.latency {
			m.latency[c].Store(0)
		}
	}
	if m.outUntil.Load() == 0 {
		p.mu.Unlock()
		return
	}
	m.outUntil.Store(0)
	m.backAt.Store(now)
	m.cause = ""
	tell := p.panicChange(now)
	p.dispatch()
	p.changed(Change{Name: m.Name, Cause: cause})
	tell()
}

// Review takes note of members whose time is over, and of those that fail no longer although they were not taken out. It is to be
// called now and then: nothing else looks at the clock for them. A dead one stays out until a check finds it well.
func (p *Picker[T]) Review() {
	p.mu.Lock()
	now := p.since()
	var back []Change
	for _, m := range *p.members.Load() {
		if until := m.outUntil.Load(); until != 0 && until <= now {
			if m.dead.Load() {
				continue
			}
			m.outUntil.Store(0)
			m.cause = ""
			back = append(back, Change{Name: m.Name, Cause: timeIsOver})
		}
		if m.kept && !m.dead.Load() && !m.fails(m.window(now)) {
			m.kept, m.cause = false, ""
			back = append(back, Change{Name: m.Name, Cause: failsNoMore})
		}
	}
	tell := p.panicChange(now)
	p.dispatch()
	for _, c := range back {
		p.changed(c)
	}
	tell()
}

// panicChange returns what tells OnPanic, if that has changed. The caller holds mu.
func (p *Picker[T]) panicChange(now int64) func() {
	on := panicking(*p.members.Load(), now)
	if on == p.panic || p.o.OnPanic == nil {
		return func() {}
	}
	p.panic = on
	return func() { p.o.OnPanic(on) }
}

// Panicking tells whether fewer than half of the members are in.
func (p *Picker[T]) Panicking() bool { return panicking(*p.members.Load(), p.since()) }

// MostlyWell tells whether at least half of the members, and not the only one, are in and have not failed since they last
// answered.
func (p *Picker[T]) MostlyWell() bool {
	now := p.since()
	well, total := 0, 0
	for _, m := range *p.members.Load() {
		if m.weight.Load() <= 0 {
			continue
		}
		total++
		if m.in(now) && !m.dead.Load() && m.failures.Load()+m.unwell.Load() == 0 {
			well++
		}
	}
	return total > 1 && 2*well >= total
}

func (p *Picker[T]) changed(c Change) {
	if p.o.OnChange != nil {
		p.o.OnChange(c)
	}
}
