package balance

import (
	"math"
	"sync/atomic"
	"time"
)

// Outcome says how an exchange with a node went, as far as it tells about the node.
type Outcome uint8

// The outcomes. Refusals (429), errors of the request (4xx) and clients that leave never take a node out.
const (
	Ignored Outcome = iota // says nothing: the client left, or the request never went out
	Good                   // the node answered
	Busy                   // it refused because it has too much to do (429): others are better for a while
	Blocked                // it says that its cluster has no master or is blocked: its fault only if no other says so
	Failed                 // reset, timeout of the first byte, 502 or 504
	Refused                // the connection could not be made
)

// A Member is a node in a picker.
type Member[T any] struct {
	Node T
	Name string // for messages

	p        *Picker[T]
	weight   atomic.Int64
	local    atomic.Bool // within the gateway's zone
	tiers    [classes]atomic.Uint32
	inFlight atomic.Int64
	// latency is the average time to the first byte of each class: a float32 of seconds in the upper half, and in the
	// lower half the milliseconds since the picker's epoch at which it was taken. 0 is unknown.
	latency  [classes]atomic.Uint64
	failures atomic.Int32 // of exchanges in a row
	unwell   atomic.Int32 // failed checks in a row
	// recent counts attempts by the second, in a ring: the second in the upper 32 bits, then 16 bits for all and 16 for
	// those that failed.
	recent  [ratioWindow]atomic.Uint64
	blocked atomic.Int64 // when it last said that its cluster is blocked

	outUntil atomic.Int64 // nanoseconds since the epoch, 0 while in
	backAt   atomic.Int64 // when it came back, 0 if it was never out
	dead     atomic.Bool  // no connection can be made to it, or nothing comes back

	// guarded by the picker's mu
	ejections int
	cause     string
	kept      bool // it would be out if not too many were, and that has been told
}

// NewMember makes a member with a weight; 0 drains it: no new exchanges, running ones finish.
func (p *Picker[T]) NewMember(name string, node T, weight int) *Member[T] {
	m := &Member[T]{Node: node, Name: name, p: p}
	m.weight.Store(int64(weight))
	return m
}

// SetWeight changes the weight; 0 drains.
func (m *Member[T]) SetWeight(w int) {
	if m.weight.Swap(int64(w)) == int64(w) {
		return
	}
	m.p.mu.Lock()
	m.p.settle(m.p.since())
	m.p.dispatch()
}

// SetTier says how much m is wanted for a class: members of tier 0 go before those of tier 1, and so on up to 3.
func (m *Member[T]) SetTier(c Class, tier int) { m.tiers[c].Store(uint32(min(max(tier, 0), tiers-1))) }

// SetLocal says whether m is within the gateway's zone.
func (m *Member[T]) SetLocal(local bool) { m.local.Store(local) }

// InFlight returns how many exchanges m has.
func (m *Member[T]) InFlight() int { return int(m.inFlight.Load()) }

// Well tells whether m would get exchanges: it has a weight, is not out, and connections to it can be made.
func (m *Member[T]) Well() bool {
	return m.weight.Load() > 0 && !m.dead.Load() && m.in(m.p.since())
}

// Out tells whether m is out.
func (m *Member[T]) Out() bool { return !m.in(m.p.since()) }

func (m *Member[T]) in(now int64) bool { return m.outUntil.Load() <= now }

func (m *Member[T]) full(now int64) bool {
	return m.p.o.MaxInFlight > 0 && m.inFlight.Load() >= m.room(now)
}

// room is how many exchanges m may have: a member that starts slowly may have a part of them.
func (m *Member[T]) room(now int64) int64 {
	most := m.p.o.MaxInFlight
	if r := m.ramp(now); r < 1 {
		return max(1, int64(r*float64(most)))
	}
	return int64(most)
}

// ramp is the share of the exchanges for which a member that starts slowly is considered.
func (m *Member[T]) ramp(now int64) float64 {
	back := m.backAt.Load()
	if back == 0 || back > now {
		return 1 // it was never out, or is out: then other rules hold it back
	}
	age := time.Duration(now - back)
	if age >= slowStart {
		return 1
	}
	return slowStartFrom + (1-slowStartFrom)*age.Seconds()/slowStart.Seconds()
}

// seconds returns the decayed latency average.
func (m *Member[T]) seconds(c Class, now int64) (float64, bool) {
	packed := m.latency[c].Load()
	if packed == 0 {
		return 0, false
	}
	value := float64(math.Float32frombits(uint32(packed >> 32)))
	age := time.Duration(now) - time.Duration(uint32(packed))*time.Millisecond
	low := floor.Seconds()
	if value <= low || age <= 0 {
		return max(value, low), true
	}
	return low + (value-low)*math.Exp2(-age.Seconds()/halfLife.Seconds()), true
}

// observe takes a sample into the latency average. It rises half-way on a slow sample and falls by a tenth on a fast
// one, so that a node that turns slow is noticed at once. One sample alone does not make a node slow, however long it
// took: some search is always the longest.
func (m *Member[T]) observe(c Class, now int64, sample float64) {
	for {
		packed := m.latency[c].Load()
		value, ok := m.seconds(c, now)
		s := max(sample, floor.Seconds())
		switch {
		case !ok:
			value = s
		case s > value:
			value += (min(s, mostRise*value) - value) / 2
		default:
			value += (s - value) / 10
		}
		next := uint64(math.Float32bits(float32(value)))<<32 | uint64(uint32(now/int64(time.Millisecond)))
		if m.latency[c].CompareAndSwap(packed, next) {
			return
		}
	}
}

// mostRise is the factor by which a sample may be above the average before the rest of it is not counted.
const mostRise = 4

// worstLatency bounds what failures can make of a latency average.
const worstLatency = 30.0 // seconds

// punish takes a failure into the latency average: as twice the worst average of all members, since a node that fails
// fast would otherwise look like the best one.
func (m *Member[T]) punish(c Class, now int64) {
	worst := floor.Seconds()
	for _, each := range *m.p.members.Load() {
		if s, ok := each.seconds(c, now); ok && s > worst {
			worst = s
		}
	}
	m.observe(c, now, min(2*worst, worstLatency))
}

// tally counts an attempt and returns what the last seconds hold; only failures look.
func (m *Member[T]) tally(now int64, failed bool) (all, bad int) {
	second := uint64(now/int64(time.Second)) & math.MaxUint32
	slot := &m.recent[second%ratioWindow]
	add := uint64(1) << 16
	if failed {
		add++
	}
	for {
		was := slot.Load()
		next := was
		if was>>32 != second {
			next = second << 32
		}
		if next&(0xffff<<16) == 0xffff<<16 {
			break // 65,535 in a second are sample enough
		}
		if slot.CompareAndSwap(was, next+add) {
			break
		}
	}
	if !failed {
		return 0, 0
	}
	return m.window(now)
}

// window returns how many attempts the last seconds hold, and how many of them failed.
func (m *Member[T]) window(now int64) (all, bad int) {
	second := uint64(now/int64(time.Second)) & math.MaxUint32
	for i := range m.recent {
		if n := m.recent[i].Load(); second-n>>32 < ratioWindow {
			all += int(n >> 16 & 0xffff)
			bad += int(n & 0xffff)
		}
	}
	return all, bad
}

// Done ends an exchange of class c that Pick or Acquire gave to m. firstByte is the time until the first byte of the
// answer; it counts for Good outcomes only. cause says in a few words what failed.
func (m *Member[T]) Done(c Class, o Outcome, firstByte time.Duration, cause string) {
	m.Report(c, o, firstByte, cause)
	m.Release()
}

// Report tells how an exchange went that is still in flight: its answer has begun and is being read. Release ends it.
func (m *Member[T]) Report(c Class, o Outcome, firstByte time.Duration, cause string) {
	if o == Ignored {
		return
	}
	now := m.p.since()
	switch o {
	case Good:
		if firstByte > 0 {
			m.observe(c, now, firstByte.Seconds())
		}
		m.well(now)
	case Busy:
		m.punish(c, now)
		m.well(now)
	case Blocked:
		m.punish(c, now)
		m.blocked.Store(now)
		if !m.aloneBlocked(now) {
			m.failures.Store(0)
			return
		}
		m.failed(now, &m.failures, false, cause)
	default:
		m.punish(c, now)
		m.failed(now, &m.failures, o == Refused, cause)
	}
}

// Check tells how a health check of m went. One that is good takes m back, into a slow start.
func (m *Member[T]) Check(o Outcome, cause string) {
	switch o {
	case Good:
		m.unwell.Store(0)
		m.readmit("a health check succeeded")
	case Failed, Refused:
		m.failed(m.p.since(), &m.unwell, o == Refused, cause)
	}
}

// Release ends an exchange without saying anything about m.
func (m *Member[T]) Release() {
	m.inFlight.Add(-1)
	if m.p.waiting.Load() > 0 {
		m.p.mu.Lock()
		m.p.dispatch()
	}
}

func (m *Member[T]) well(now int64) {
	if m.failures.Load() != 0 {
		m.failures.Store(0)
	}
	if m.unwell.Load() != 0 {
		m.unwell.Store(0)
	}
	if m.dead.Load() {
		m.dead.Store(false)
	}
	m.tally(now, false)
}

// failed counts a failure in the row that it belongs to: a check that succeeds does not excuse exchanges that fail.
func (m *Member[T]) failed(now int64, row *atomic.Int32, refused bool, cause string) {
	all, bad := m.tally(now, true)
	row.Add(1)
	if m.inRow() && refused {
		m.dead.Store(true)
	}
	if m.fails(all, bad) {
		m.p.eject(m, cause)
	}
}

// inRow tells whether m has failed so often in a row that it is to be out.
func (m *Member[T]) inRow() bool {
	return int(m.failures.Load()+m.unwell.Load()) >= m.p.o.Outlier.Failures
}

// fails tells whether m is to be out: for its failures in a row, or for those among the last attempts.
func (m *Member[T]) fails(all, bad int) bool {
	return m.inRow() || all >= ratioSamples && float64(bad) >= m.p.o.Outlier.Ratio*float64(all)
}

// aloneBlocked tells whether no other member has said lately that the cluster is blocked.
func (m *Member[T]) aloneBlocked(now int64) bool {
	for _, each := range *m.p.members.Load() {
		if at := each.blocked.Load(); each != m && at != 0 && now-at < int64(ratioWindow*time.Second) {
			return false
		}
	}
	return true
}

// Stalled takes m out at once: it holds connections open and answers neither exchanges nor checks.
func (m *Member[T]) Stalled(cause string) {
	m.dead.Store(true)
	m.p.eject(m, cause)
}

// A State is what is known of a member, for people.
type State struct {
	Weight   int              `json:"weight"`
	InFlight int64            `json:"in_flight"`
	Latency  map[string]int64 `json:"latency_micros"` // decayed averages of the time to the first byte by class, as far as known
	Score    float64          `json:"score"`          // what exchanges of the class search are compared by; lower is better
	Share    int              `json:"slow_start_percent"`
	Local    bool             `json:"local"`
	Failures int              `json:"failures"` // in a row
	Out      bool             `json:"out"`
	Dead     bool             `json:"unreachable"`
	Cause    string           `json:"cause,omitempty"`
	Until    *time.Time       `json:"until,omitempty"`
}

// classNames are as State spells the classes.
var classNames = [classes]string{"search", "get", "write", "ingest", "manage"}

// State returns what is known of m.
func (m *Member[T]) State() State {
	p := m.p
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.since()
	s := State{
		Weight: int(m.weight.Load()), InFlight: m.inFlight.Load(), Out: !m.in(now), Dead: m.dead.Load(), Local: m.local.Load(),
		Failures: int(m.failures.Load() + m.unwell.Load()), Share: int(100 * m.ramp(now)), Latency: map[string]int64{},
	}
	for c := range Class(classes) {
		if seconds, ok := m.seconds(c, now); ok {
			s.Latency[classNames[c]] = int64(seconds * 1e6)
		}
	}
	if s.Weight > 0 {
		seconds, ok := m.seconds(Search, now)
		if !ok {
			seconds = median(*p.members.Load(), Search, now)
		}
		s.Score = float64(s.InFlight+1) * seconds / float64(s.Weight)
	}
	if s.Out {
		until := p.epoch.Add(time.Duration(m.outUntil.Load()))
		s.Cause, s.Until = m.cause, &until
	} else if m.kept {
		s.Cause = m.cause
	}
	return s
}
