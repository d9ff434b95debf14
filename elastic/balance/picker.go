// Package balance chooses the node that gets an exchange, makes exchanges wait in a fair order while all nodes are full,
// and takes nodes out that fail.
//
// It opens no sockets and starts no goroutines: what happened is told to it, and its clock and its dice come from
// outside. It trades exactness for speed: scores are read without a lock, so two exchanges that choose at the same time
// may see the same in-flight counts.
package balance

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Class is a kind of exchanges whose times to the first byte can be compared: nodes run each in a thread pool of its
// own.
type Class uint8

// The classes.
const (
	Search  Class = iota // runs a query
	Get                  // fetches documents by id
	Write                // changes documents
	Ingest               // the same, by way of a pipeline
	Manage               // everything else
	classes = 5
)

// A Policy is a way to choose among the nodes that are well.
type Policy uint8

// The policies.
const (
	// PowerOfTwo compares two nodes that are drawn at random, and all where there are up to three, by exchanges in flight,
	// latency and weight: nothing herds, and a slow node gets little.
	PowerOfTwo Policy = iota
	// Least compares all nodes by exchanges in flight and weight.
	Least
	// RoundRobin goes round by weight, whatever the nodes are doing.
	RoundRobin
	// First takes the first node in the order of the list, as long as that one is well and not full.
	First
)

// The rules that are the same for everybody.
const (
	halfLife      = 10 * time.Second // of a latency average that gets no samples, so that a node once slow is tried again
	floor         = time.Millisecond // below it latency says nothing about load
	alike         = 3                // latencies that differ by less than this factor are taken for equal
	alikeUnder    = 0.005            // and so are those that differ by fewer seconds
	ratioSamples  = 20               // attempts within ratioWindow from which on their share of failures counts
	ratioWindow   = 10               // seconds
	forgiveAfter  = time.Minute      // healthy time after which ejections are short again
	slowStart     = 30 * time.Second
	slowStartFrom = 0.1 // share of the exchanges for which a node is considered at first
)

// Outlier says when nodes are taken out, and for how long. Zero fields take their default.
type Outlier struct {
	Failures   int           // in a row that take a node out, 5 by default
	Ratio      float64       // share of failures among at least 20 attempts in 10 seconds that does, 0.5 by default
	MaxEjected float64       // share of the nodes that may be out, 0.5 by default; of two or more, one always may
	First      time.Duration // the first ejection, doubled each time, 5 seconds by default
	Longest    time.Duration // 2 minutes by default
}

func (o *Outlier) setDefaults() {
	if o.Failures <= 0 {
		o.Failures = 5
	}
	if o.Ratio <= 0 {
		o.Ratio = 0.5
	}
	if o.MaxEjected <= 0 {
		o.MaxEjected = 0.5
	}
	if o.First <= 0 {
		o.First = 5 * time.Second
	}
	if o.Longest <= 0 {
		o.Longest = 2 * time.Minute
	}
}

// Options are what a Picker takes from outside. The zero value uses the system's clock and dice, and has no limits.
type Options struct {
	Policy      Policy
	Outlier     Outlier
	MaxInFlight int     // exchanges in flight at one member, 0 = no limit
	MaxWaiting  int     // exchanges in the queue of Acquire
	ZonePenalty float64 // factor on the score of members outside the zone while two or more within it are well; 0 or 1 = none

	Now      func() time.Time
	Rand     func(n int) int // a number from 0 up to, but not including, n
	OnChange func(Change)    // a member went out, was kept in or is well again; called without locks held
	OnPanic  func(on bool)   // fewer than half of the members are in, or no longer; called without locks held
}

// A Change is a member going out, being kept in although it fails, or being well again, which it is if neither Out nor Kept.
type Change struct {
	Name  string
	Out   bool
	Kept  bool // it would be out if not too many were
	Cause string
	Until time.Time // when it may come back by itself, if Out
}

// A Picker chooses among members. It is safe for concurrent use.
type Picker[T any] struct {
	o       Options
	epoch   time.Time
	members atomic.Pointer[[]*Member[T]]
	turn    atomic.Uint64 // of RoundRobin
	waiting atomic.Int64  // exchanges in queue

	mu    sync.Mutex // serialises Set, ejection and readmission; guards the field below
	panic bool       // as told to OnPanic

	queue queue[T]
}

// NewPicker returns a picker without members.
func NewPicker[T any](o Options) *Picker[T] {
	o.Outlier.setDefaults()
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.IntN
	}
	p := &Picker[T]{o: o, epoch: o.Now()}
	p.queue.lines = map[uint64]*line[T]{}
	p.members.Store(new([]*Member[T]))
	return p
}

// Set makes members the ones to choose from. Members that stay keep what is known of them; ones that join later than
// the first Set start slowly.
func (p *Picker[T]) Set(members []*Member[T]) {
	p.mu.Lock()
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
	p.settle(now)
	p.dispatch()
}

// Members returns the members. The slice must not be changed.
func (p *Picker[T]) Members() []*Member[T] { return *p.members.Load() }

// Waiting returns how many exchanges wait in Acquire.
func (p *Picker[T]) Waiting() int { return int(p.waiting.Load()) }

func (p *Picker[T]) since() int64 { return max(1, int64(p.o.Now().Sub(p.epoch))) }

// Pick chooses a member that is neither full nor among tried, and counts the exchange as in flight until Done. It
// returns nil if there is none; it never waits.
//
// Members that are in go first, those that start slowly as often as their ramp says. Then come those that would be out
// if not too many were, and those that are out; last those that no connection can be made to. While fewer than half of
// the members are in, one that is out for another reason than refusing connections counts as in. Within these, members
// of a better tier for the class go first.
func (p *Picker[T]) Pick(c Class, tried []*Member[T]) *Member[T] {
	now := p.since()
	all := *p.members.Load()
	v := view{now: now, class: c, dice: 1, panic: panicking(all, now)}
	for _, m := range all {
		if m.ramp(now) < 1 {
			v.dice = float64(p.o.Rand(1000)) / 1000
			break
		}
	}
	// Another exchange may fill the member, or change its rank, between the choice and the taking.
	for range len(all) + 1 {
		m := p.pick(all, tried, &v)
		if m == nil || p.take(m, now) {
			return m
		}
	}
	return nil
}

// take counts an exchange in, unless others have filled m meanwhile.
func (p *Picker[T]) take(m *Member[T], now int64) bool {
	if n := m.inFlight.Add(1); p.o.MaxInFlight > 0 && n > m.room(now) {
		m.inFlight.Add(-1)
		return false
	}
	return true
}

// A view is what a choice has to know besides the members.
type view struct {
	now   int64
	class Class
	dice  float64 // a number from 0 up to 1, for members that start slowly
	panic bool
	local int // members within the zone that are well
}

// Ranks of members, from the best. A tier of a class is added to them.
const (
	warm   = iota * tiers
	cold   // starts slowly, and it is not its turn
	shaky  // fails, but is kept in, or out but not dead
	gone   // no connection can be made
	ranks  // as many as there are
	nobody = ranks
	tiers  = 4
)

// rank says how good a choice m is, be it full or not: lower is better, nobody is none at all.
func (m *Member[T]) rank(v *view) int {
	if m.weight.Load() <= 0 {
		return nobody
	}
	rank := warm
	switch in := m.in(v.now); {
	case m.dead.Load() && in:
		rank = shaky
	case m.dead.Load():
		rank = gone
	case !in && !v.panic:
		rank = shaky
	case v.dice < 1 && v.dice >= m.ramp(v.now):
		rank = cold
	}
	return rank + int(m.tiers[v.class].Load())
}

// ranks tells whether m is of a rank and has room.
func (m *Member[T]) ranks(v *view, rank int) bool { return m.rank(v) == rank && !m.full(v.now) }

// pick chooses among the members of the best rank that there is.
func (p *Picker[T]) pick(all, tried []*Member[T], v *view) *Member[T] {
	best, count, full := nobody, 0, nobody
	v.local = 0
	for _, m := range all {
		if slices.Contains(tried, m) {
			continue
		}
		switch r := m.rank(v); {
		case r < nobody && m.full(v.now):
			full = min(full, r)
		case r == nobody || r > best:
		case r < best:
			best, count = r, 1
		default:
			count++
		}
		if p.o.ZonePenalty > 1 && m.local.Load() && m.in(v.now) && !m.dead.Load() {
			v.local++
		}
	}
	if count == 0 || best >= shaky && full < shaky {
		return nil // nodes that fail are no place for what the others have no room for
	}
	switch p.o.Policy {
	case RoundRobin:
		return p.next(all, tried, v, best)
	case First:
		for _, m := range all {
			if !slices.Contains(tried, m) && m.ranks(v, best) {
				return m
			}
		}
		return nil // it has become full
	}
	return p.compare(all, tried, v, best, count)
}

// next is RoundRobin among the members of a rank.
func (p *Picker[T]) next(all, tried []*Member[T], v *view, rank int) *Member[T] {
	total := int64(0)
	for _, m := range all {
		if !slices.Contains(tried, m) && m.ranks(v, rank) {
			total += m.weight.Load()
		}
	}
	if total == 0 {
		return nil
	}
	at := int64((p.turn.Add(1) - 1) % uint64(total))
	for _, m := range all {
		if !slices.Contains(tried, m) && m.ranks(v, rank) {
			if at -= m.weight.Load(); at < 0 {
				return m
			}
		}
	}
	return nil
}

// compare chooses among count members of a rank by their scores.
func (p *Picker[T]) compare(all, tried []*Member[T], v *view, rank, count int) *Member[T] {
	first, second := -1, -1
	if count > 3 && p.o.Policy == PowerOfTwo {
		first = p.o.Rand(count)
		if second = p.o.Rand(count - 1); second >= first {
			second++
		}
	}
	var (
		best      *Member[T]
		bestLoad  load
		unknown   float64
		i, weight = -1, int64(0)
	)
	for _, m := range all {
		if slices.Contains(tried, m) || !m.ranks(v, rank) {
			continue
		}
		if i++; first >= 0 && i != first && i != second {
			continue
		}
		l := load{inFlight: m.inFlight.Load(), weight: m.weight.Load(), factor: 1, latency: 1}
		if p.o.Policy == PowerOfTwo {
			var known bool
			if l.latency, known = m.seconds(v.class, v.now); !known {
				if unknown == 0 {
					unknown = median(all, v.class, v.now)
				}
				l.latency = unknown
			}
		}
		if v.local >= 2 && !m.local.Load() {
			l.factor = p.o.ZonePenalty
		}
		order := -1
		if best != nil {
			order = l.compare(bestLoad)
		}
		switch {
		case order < 0:
			best, bestLoad, weight = m, l, l.weight
		case order == 0:
			// Equals share by their weights.
			if weight += l.weight; int64(p.o.Rand(int(weight))) < l.weight {
				best, bestLoad = m, l
			}
		}
	}
	return best
}

// A load is what members are compared by.
type load struct {
	inFlight, weight int64
	latency, factor  float64
}

// compare returns -1 if l promises a shorter wait than o, 1 if a longer one. Latencies that are alike count as equal:
// otherwise the node that noise makes the fastest for the moment would get everything while there is little load. So do
// members that have nothing to do: otherwise the heavier of two would get everything then.
func (l load) compare(o load) int {
	a, b := l.factor, o.factor
	if short, long := min(l.latency, o.latency), max(l.latency, o.latency); long >= alike*short && long-short >= alikeUnder {
		a, b = a*l.latency, b*o.latency
	}
	if l.inFlight > 0 || o.inFlight > 0 {
		a *= float64(l.inFlight+1) / float64(l.weight)
		b *= float64(o.inFlight+1) / float64(o.weight)
	}
	return cmp.Compare(a, b)
}

// panicking tells whether fewer than half of the members that have a weight are in.
func panicking[T any](all []*Member[T], now int64) bool {
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
// nothing is known of is judged by it: as unknown it would be flooded at zero (elastic/elasticsearch#147579) and starved
// at infinity.
func median[T any](all []*Member[T], c Class, now int64) float64 {
	var known [16]float64
	n := 0
	for _, m := range all {
		if s, ok := m.seconds(c, now); ok && n < len(known) {
			known[n] = s
			n++
		}
	}
	if n == 0 {
		return floor.Seconds()
	}
	slices.Sort(known[:n])
	return known[(n-1)/2]
}
