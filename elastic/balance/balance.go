// Package balance chooses the node that gets an exchange, and takes nodes out that fail.
//
// It opens no sockets and starts no goroutines: what happened is told to it, and its clock and its dice come from
// outside. It trades exactness for speed: scores are read without a lock, so two exchanges that choose at the same time
// may see the same in-flight counts.
package balance

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// The rules of the picker.
const (
	halfLife      = 10 * time.Second // of a latency average that gets no samples, so that a node once slow is tried again
	floor         = time.Millisecond // below it latency says nothing about load
	failuresToOut = 5                // consecutive failures that eject a node
	firstEjection = 5 * time.Second  // doubled each time
	lastEjection  = 2 * time.Minute
	forgiveAfter  = time.Minute // healthy time after which the doubling starts again
	maxOut        = 0.5         // share of the nodes that may be out
	slowStart     = 30 * time.Second
	slowStartFrom = 0.1 // share of the exchanges for which a node is considered at first
)

// Outcome says how an exchange with a node went, as far as it tells about the node.
type Outcome uint8

// The outcomes. Refusals (429), errors of the request (4xx) and clients that leave tell nothing against a node.
const (
	Ignored Outcome = iota // says nothing: the client left, or the request never went out
	Good                   // the node answered
	Failed                 // reset, timeout of the first byte, 502 or 504
	Refused                // the connection could not be made
)

// Options are what a Picker takes from outside. The zero value uses the system's clock and dice.
type Options struct {
	Now      func() time.Time
	Rand     func(n int) int // a number from 0 up to, but not including, n
	OnChange func(Change)    // a node went out or came back; called without locks held
}

// A Change is a node going out or coming back.
type Change struct {
	Name  string
	Out   bool
	Cause string
	Until time.Time // when it may come back by itself, if Out
}

// A Picker chooses among members. It is safe for concurrent use.
type Picker[T any] struct {
	o       Options
	epoch   time.Time
	members atomic.Pointer[[]*Member[T]]

	mu sync.Mutex // serialises Set, ejection and readmission
}

// A Member is a node in a picker.
type Member[T any] struct {
	Node T
	Name string // for messages

	p        *Picker[T]
	weight   atomic.Int64
	inFlight atomic.Int64
	// latency is the average time to the first byte: a float32 of seconds in the upper half, and in the lower half the
	// milliseconds since the picker's epoch at which it was taken. 0 is unknown.
	latency  atomic.Uint64
	failures atomic.Int32

	outUntil atomic.Int64 // nanoseconds since the epoch, 0 while in
	backAt   atomic.Int64 // when it came back, 0 if it was never out
	refused  atomic.Bool  // it is out because it refuses connections

	// guarded by the picker's mu
	ejections int
	cause     string
}

// NewPicker returns a picker without members.
func NewPicker[T any](o Options) *Picker[T] {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.IntN
	}
	p := &Picker[T]{o: o, epoch: o.Now()}
	p.members.Store(new([]*Member[T]))
	return p
}

// NewMember makes a member with a weight; 0 drains it: no new exchanges, running ones finish.
func (p *Picker[T]) NewMember(name string, node T, weight int) *Member[T] {
	m := &Member[T]{Node: node, Name: name, p: p}
	m.weight.Store(int64(weight))
	return m
}

// Set makes members the ones to choose from. Members that stay keep what is known of them; ones that join later than
// the first Set start slowly.
func (p *Picker[T]) Set(members []*Member[T]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.members.Load()
	known := make(map[*Member[T]]bool, len(old))
	for _, m := range old {
		known[m] = true
	}
	now := p.since()
	for _, m := range members {
		if len(old) > 0 && !known[m] {
			m.backAt.Store(now)
		}
	}
	fresh := append([]*Member[T](nil), members...)
	p.members.Store(&fresh)
}

// Members returns the members. The slice must not be changed.
func (p *Picker[T]) Members() []*Member[T] { return *p.members.Load() }

func (p *Picker[T]) since() int64 { return max(1, int64(p.o.Now().Sub(p.epoch))) }

// Pick chooses a member that is not among tried, and counts the exchange as in flight until Done. It returns nil if
// there is none left.
//
// Of up to three members all are compared, of more two that are drawn at random: the one with the lowest score gets the
// exchange, ties are broken at random. If fewer than half of the members are in, those that are out for other reasons
// than refusing connections are taken back for as long as that lasts; if nothing else is left, any member is tried.
func (p *Picker[T]) Pick(tried []*Member[T]) *Member[T] {
	now := p.since()
	all := *p.members.Load()
	var best *Member[T]
	if !p.panicking(all, now) {
		if best = p.pick(all, tried, now, wellAndWarm); best == nil {
			best = p.pick(all, tried, now, well)
		}
	}
	if best == nil {
		best = p.pick(all, tried, now, reachable)
	}
	if best == nil {
		best = p.pick(all, tried, now, anyMember)
	}
	if best != nil {
		best.inFlight.Add(1)
	}
	return best
}

// A circle is a set of members, each wider than the one before.
type circle int

const (
	wellAndWarm circle = iota // in, and not held back by a slow start
	well                      // in
	reachable                 // in, or out for other reasons than refusing connections
	anyMember
)

// pick chooses among the members of a circle.
func (p *Picker[T]) pick(all, tried []*Member[T], now int64, c circle) *Member[T] {
	var dice float64
	if c == wellAndWarm {
		for _, m := range all {
			if m.ramp(now) < 1 {
				dice = float64(p.o.Rand(1000)) / 1000
				break
			}
		}
	}
	count := 0
	for _, m := range all {
		if m.belongs(c, now, dice) && !contains(tried, m) {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	first, second := -1, -1
	if count > 3 {
		first = p.o.Rand(count)
		if second = p.o.Rand(count - 1); second >= first {
			second++
		}
	}
	unknown := p.median(all, now)
	var best *Member[T]
	bestScore, ties, i := math.Inf(1), 0, -1
	for _, m := range all {
		if !m.belongs(c, now, dice) || contains(tried, m) {
			continue
		}
		if i++; first >= 0 && i != first && i != second {
			continue
		}
		switch score := m.score(now, unknown); {
		case score < bestScore:
			best, bestScore, ties = m, score, 1
		case score == bestScore:
			if ties++; p.o.Rand(ties) == 0 {
				best = m
			}
		}
	}
	return best
}

func contains[T any](list []*Member[T], m *Member[T]) bool {
	for _, each := range list {
		if each == m {
			return true
		}
	}
	return false
}

// panicking tells whether fewer than half of the members that have a weight are in.
func (p *Picker[T]) panicking(all []*Member[T], now int64) bool {
	in, total := 0, 0
	for _, m := range all {
		if m.weight.Load() > 0 {
			total++
			if m.in(now) {
				in++
			}
		}
	}
	return 2*in < total
}

// median returns the middle latency, in seconds, of the members whose latency is known, or the floor. A node that
// nothing is known of is judged by it: as unknown it would be flooded at zero and starved at infinity.
func (p *Picker[T]) median(all []*Member[T], now int64) float64 {
	var known [16]float64
	n := 0
	for _, m := range all {
		if s, ok := m.seconds(now); ok && n < len(known) {
			i := n
			for ; i > 0 && known[i-1] > s; i-- {
				known[i] = known[i-1]
			}
			known[i] = s
			n++
		}
	}
	if n == 0 {
		return floor.Seconds()
	}
	return known[(n-1)/2]
}

func (m *Member[T]) in(now int64) bool { return m.outUntil.Load() <= now }

// belongs tells whether m is in the circle c. While it starts slowly it is held back as often as its ramp says; dice is
// a number from 0 up to 1.
func (m *Member[T]) belongs(c circle, now int64, dice float64) bool {
	if m.weight.Load() <= 0 {
		return false
	}
	switch c {
	case wellAndWarm:
		return m.in(now) && dice < m.ramp(now)
	case well:
		return m.in(now)
	case reachable:
		return m.in(now) || !m.refused.Load()
	}
	return true
}

// score is what the picker compares: the wait that an exchange has to expect, by weight.
func (m *Member[T]) score(now int64, unknown float64) float64 {
	s, ok := m.seconds(now)
	if !ok {
		s = unknown
	}
	return float64(m.inFlight.Load()+1) * step(s) / float64(m.weight.Load())
}

// step rounds a latency down to a power of two. Nodes that differ by less are equals: otherwise the one that noise
// makes the fastest for the moment would get everything while there is little load, and a node that nothing is known
// of nothing.
func step(seconds float64) float64 {
	_, exp := math.Frexp(seconds)
	return math.Ldexp(1, exp)
}

// ramp is the share of the exchanges for which a member that starts slowly is considered.
func (m *Member[T]) ramp(now int64) float64 {
	back := m.backAt.Load()
	if back == 0 {
		return 1
	}
	age := time.Duration(now - back)
	if age >= slowStart {
		return 1
	}
	return slowStartFrom + (1-slowStartFrom)*age.Seconds()/slowStart.Seconds()
}

// seconds returns the decayed latency average.
func (m *Member[T]) seconds(now int64) (float64, bool) {
	packed := m.latency.Load()
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
// one, so that a node that turns slow is noticed at once.
func (m *Member[T]) observe(now int64, sample time.Duration) {
	for {
		packed := m.latency.Load()
		value, ok := m.seconds(now)
		s := max(sample, floor).Seconds()
		switch {
		case !ok:
			value = s
		case s > value:
			value += (s - value) / 2
		default:
			value += (s - value) / 10
		}
		next := uint64(math.Float32bits(float32(value)))<<32 | uint64(uint32(now/int64(time.Millisecond)))
		if m.latency.CompareAndSwap(packed, next) {
			return
		}
	}
}

// Done ends an exchange that Pick gave to m. firstByte is the time until the first byte of the answer; it counts for
// Good outcomes only. cause says in a few words what failed.
func (m *Member[T]) Done(o Outcome, firstByte time.Duration, cause string) {
	m.inFlight.Add(-1)
	m.Report(o, firstByte, cause)
}

// Report is Done for what was not picked: a health check.
func (m *Member[T]) Report(o Outcome, firstByte time.Duration, cause string) {
	switch o {
	case Ignored:
	case Good:
		m.failures.Store(0)
		if firstByte > 0 {
			m.observe(m.p.since(), firstByte)
		}
	case Failed, Refused:
		if m.failures.Add(1) >= failuresToOut {
			m.p.eject(m, o == Refused, cause)
		}
	}
}

// eject takes m out for a while, unless too many would then be out.
func (p *Picker[T]) eject(m *Member[T], refused bool, cause string) {
	p.mu.Lock()
	now := p.since()
	if !m.in(now) {
		m.refused.Store(refused)
		p.mu.Unlock()
		return
	}
	out, total := 1, 0
	for _, each := range *p.members.Load() {
		if each.weight.Load() > 0 {
			total++
			if each != m && !each.in(now) {
				out++
			}
		}
	}
	// At least one of two or more may be out; the only one never.
	if total < 2 || out > max(1, int(maxOut*float64(total))) {
		p.mu.Unlock()
		return
	}
	if back := m.backAt.Load(); back != 0 && now-back > int64(forgiveAfter) {
		m.ejections = 0
	}
	length := min(firstEjection<<min(m.ejections, 10), lastEjection)
	length += length * time.Duration(p.o.Rand(41)-20) / 100
	m.ejections++
	m.cause = cause
	m.refused.Store(refused)
	until := now + int64(length)
	m.outUntil.Store(until)
	m.backAt.Store(until) // slow start begins when it comes back by itself
	p.mu.Unlock()
	if p.o.OnChange != nil {
		p.o.OnChange(Change{Name: m.Name, Out: true, Cause: cause, Until: p.epoch.Add(time.Duration(until))})
	}
}

// Readmit takes m back, into a slow start, after a check has found it well. It does nothing if m is not out.
func (m *Member[T]) Readmit() {
	p := m.p
	p.mu.Lock()
	now := p.since()
	m.failures.Store(0)
	if m.in(now) {
		p.mu.Unlock()
		return
	}
	m.outUntil.Store(0)
	m.backAt.Store(now)
	m.cause = ""
	p.mu.Unlock()
	if p.o.OnChange != nil {
		p.o.OnChange(Change{Name: m.Name, Cause: "a health check succeeded"})
	}
}

// SetWeight changes the weight; 0 drains.
func (m *Member[T]) SetWeight(w int) { m.weight.Store(int64(w)) }

// A State is what is known of a member, for people.
type State struct {
	Weight   int           `json:"weight"`
	InFlight int64         `json:"in_flight"`
	Latency  time.Duration `json:"latency_nanos"` // decayed average of the time to the first byte, 0 if unknown
	Score    float64       `json:"score"`
	Out      bool          `json:"out"`
	Cause    string        `json:"cause,omitempty"`
	Until    *time.Time    `json:"until,omitempty"`
}

// State returns what is known of m.
func (m *Member[T]) State() State {
	p := m.p
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.since()
	s := State{Weight: int(m.weight.Load()), InFlight: m.inFlight.Load(), Out: !m.in(now)}
	if seconds, ok := m.seconds(now); ok {
		s.Latency = time.Duration(seconds * float64(time.Second))
	}
	s.Score = m.score(now, p.median(*p.members.Load(), now))
	if math.IsInf(s.Score, 0) || math.IsNaN(s.Score) {
		s.Score = -1
	}
	if s.Out {
		until := p.epoch.Add(time.Duration(m.outUntil.Load()))
		s.Cause, s.Until = m.cause, &until
	}
	return s
}
