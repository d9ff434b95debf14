package main

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"weir/elastic/balance"
)

const (
	nodes     = 6
	slots     = 8 // exchanges that a node serves at once
	gateways  = 3 // each with what it has seen itself, and no more
	mean      = 20 * time.Millisecond
	spread    = 0.8 // sigma of the log-normal service time
	checkTime = 5 * time.Second
)

// A scenario is a cluster and its load. Nil functions are those of a cluster without trouble.
type scenario struct {
	policy   balance.Policy
	seed     uint64
	load     float64 // of what all nodes can do without trouble
	length   time.Duration
	member   func(node int, at time.Duration) bool
	slowness func(node int, at time.Duration) float64
	refuses  func(node int, at time.Duration) bool
}

// A result is what came of a scenario.
type result struct {
	length time.Duration
	times  []time.Duration // of exchanges, sorted
	served []serving
	peak   [nodes]int // longest queue of each node
	failed int        // exchanges that found no node
}

type serving struct {
	node int
	at   time.Duration
}

func (r *result) quantile(q float64) time.Duration {
	return r.times[int(q*float64(len(r.times)-1))]
}

// share is the part of the exchanges since a moment that node served.
func (r *result) share(node int, since time.Duration) float64 {
	all, its := 0, 0
	for _, s := range r.served {
		if s.at < since {
			continue
		}
		all++
		if s.node == node {
			its++
		}
	}
	return float64(its) / float64(all)
}

// simulation is a run of a scenario.
type simulation struct {
	scenario
	result
	dice    *rand.Rand
	now     time.Duration
	events  events
	pickers []*balance.Picker[int]
	known   [][]*balance.Member[int] // of each gateway, by node
	queues  [nodes][]*exchange
	busy    [nodes]int
}

type exchange struct {
	arrived time.Duration
	gateway int
	member  *balance.Member[int]
	tried   []*balance.Member[int]
	sent    time.Duration
}

// run plays a scenario to its end.
func run(s scenario) *result {
	sim := &simulation{scenario: s, dice: rand.New(rand.NewPCG(s.seed, 9))}
	sim.result.length = s.length
	if sim.member == nil {
		sim.member = func(int, time.Duration) bool { return true }
	}
	if sim.slowness == nil {
		sim.slowness = func(int, time.Duration) float64 { return 1 }
	}
	if sim.refuses == nil {
		sim.refuses = func(int, time.Duration) bool { return false }
	}
	epoch := time.Unix(0, 0)
	for range gateways {
		p := balance.NewPicker[int](balance.Options{
			Policy: s.policy, Rand: sim.dice.IntN, Now: func() time.Time { return epoch.Add(sim.now) },
		})
		var known []*balance.Member[int]
		for n := range nodes {
			known = append(known, p.NewMember(strconv.Itoa(n), n, 1))
		}
		sim.pickers, sim.known = append(sim.pickers, p), append(sim.known, known)
	}
	sim.look()
	sim.arrive()
	for sim.events.Len() > 0 {
		e := heap.Pop(&sim.events).(event)
		if sim.now = e.at; sim.now > s.length && len(sim.times) > 0 && e.arrival {
			continue
		}
		e.do()
	}
	slices.Sort(sim.times)
	return &sim.result
}

// at makes do happen after a while.
func (s *simulation) after(d time.Duration, arrival bool, do func()) {
	s.events.next++
	heap.Push(&s.events, event{s.now + d, s.events.next, arrival, do})
}

// look is what gateways do besides exchanges: they check each node, and note who belongs to the cluster.
func (s *simulation) look() {
	for g, p := range s.pickers {
		var in []*balance.Member[int]
		for n, m := range s.known[g] {
			if s.refuses(n, s.now) {
				m.Check(balance.Refused, "refused")
			} else {
				m.Check(balance.Good, "")
			}
			if s.member(n, s.now) {
				in = append(in, m)
			}
		}
		if !slices.Equal(in, p.Members()) {
			p.Set(in)
		}
		p.Review()
	}
	s.after(checkTime, true, s.look)
}

// arrive starts an exchange and waits for the next one, which comes when it likes.
func (s *simulation) arrive() {
	s.send(&exchange{arrived: s.now, gateway: s.dice.IntN(gateways)})
	rate := s.load * nodes * slots / mean.Seconds()
	s.after(time.Duration(s.dice.ExpFloat64()/rate*float64(time.Second)), true, s.arrive)
}

// send gives an exchange to a node, and to another one if that refuses.
func (s *simulation) send(x *exchange) {
	for {
		m := s.pickers[x.gateway].Pick(balance.Search, x.tried)
		if m == nil {
			s.failed++
			return
		}
		if s.refuses(m.Node, s.now) {
			m.Done(balance.Search, balance.Refused, 0, "refused")
			x.tried = append(x.tried, m)
			continue
		}
		x.member, x.sent = m, s.now
		n := m.Node
		s.queues[n] = append(s.queues[n], x)
		s.peak[n] = max(s.peak[n], len(s.queues[n]))
		s.serve(n)
		return
	}
}

// serve lets a node begin what it has room for.
func (s *simulation) serve(n int) {
	for s.busy[n] < slots && len(s.queues[n]) > 0 {
		x := s.queues[n][0]
		s.queues[n] = s.queues[n][1:]
		s.busy[n]++
		mu := math.Log(mean.Seconds()) - spread*spread/2
		seconds := math.Exp(mu+spread*s.dice.NormFloat64()) * s.slowness(n, s.now)
		s.after(time.Duration(seconds*float64(time.Second)), false, func() {
			s.busy[n]--
			x.member.Done(balance.Search, balance.Good, s.now-x.sent, "")
			s.times = append(s.times, s.now-x.arrived)
			s.served = append(s.served, serving{n, s.now})
			s.serve(n)
		})
	}
}

// An event happens at its moment; events of one moment in the order in which they were made.
type event struct {
	at      time.Duration
	number  int
	arrival bool // it makes further ones for ever
	do      func()
}

type events struct {
	list []event
	next int
}

func (e *events) Len() int { return len(e.list) }
func (e *events) Less(i, j int) bool {
	a, b := e.list[i], e.list[j]
	return a.at < b.at || a.at == b.at && a.number < b.number
}
func (e *events) Swap(i, j int) { e.list[i], e.list[j] = e.list[j], e.list[i] }
func (e *events) Push(x any)    { e.list = append(e.list, x.(event)) }
func (e *events) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = e.list[:len(e.list)-1]
	return last
}
