package limit

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/wire"
)

// A class says how important an exchange is.
type class uint8

const (
	critical class = iota
	interactive
	batch
	background
	classes = int(background) + 1
)

var classNamesByNumber = [classes]string{"critical", "interactive", "batch", "background"}

func (c class) String() string { return classNamesByNumber[c] }

// parseClass returns the class of a name.
func parseClass(name string) (class, bool) {
	for c, known := range classNamesByNumber {
		if known == name {
			return class(c), true
		}
	}
	return 0, false
}

// A gateShape is how gates are configured.
type gateShape struct {
	max    int // that are past a gate at once
	places int // for those that wait
	order  order
	share  [classes]float64 // of slots and places that a class is sure of
}

// sure returns how many of n slots or places a class is sure of.
func (s *gateShape) sure(c class, n int) int { return int(s.share[c] * float64(n)) }

const gateShards = 16

// Gates let a bounded number of exchanges of a key pass at once, and hold up the others. A gate is there as long as somebody
// is past it or waits. Slots are handed over: who leaves a gate names the one who comes next, so that nobody has to look
// whether there is room.
type gates struct {
	seed     maphash.Seed
	shards   [gateShards]gateShard
	inFlight atomic.Int64
	waiting  atomic.Int64
	shape    atomic.Pointer[gateShape]

	mu     sync.Mutex // guards shapes
	shapes []*gateShape
}

type gateShard struct {
	mu    sync.Mutex // guards the gates
	gates map[string]*gate
	spare []*gate
}

// spareGates bounds how many gates that are gone a shard keeps to be used again.
const spareGates = 64

// A gate holds the exchanges of one key.
type gate struct {
	key     string
	shard   *gateShard
	inUse   [classes]int
	total   int
	lines   [classes]line
	waiting int
}

func newGates() *gates {
	g := &gates{seed: maphash.MakeSeed()}
	for i := range g.shards {
		g.shards[i].gates = map[string]*gate{}
	}
	return g
}

// adopt puts a shape in force until another one is adopted. What it returns gives it up: then the one adopted last of those
// that are left is in force.
func (g *gates) adopt(s *gateShape) (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shapes = append(g.shapes, s)
	g.apply()
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		for i, held := range g.shapes {
			if held == s {
				g.shapes = append(g.shapes[:i:i], g.shapes[i+1:]...)
				break
			}
		}
		g.apply()
	}
}

// apply puts the last shape in force. Those who wait may pass at once if there are more slots now. The caller holds mu.
func (g *gates) apply() {
	if len(g.shapes) == 0 {
		return
	}
	shape := g.shapes[len(g.shapes)-1]
	g.shape.Store(shape)
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for _, gt := range s.gates {
			g.grant(gt, shape)
		}
		s.mu.Unlock()
	}
}

func (g *gates) shardOf(key []byte) *gateShard {
	return &g.shards[maphash.Bytes(g.seed, key)%gateShards]
}

// A passage says how an exchange came past a gate, or why not.
type passage uint8

const (
	passed passage = iota
	waited
	full         // all places to wait are taken
	displacedBy  // somebody else needed the place more
	timedOut     // the wait took too long
	clientLeft   // the client left while it waited
	passedBeyond // there was no slot, and it passed all the same, since limits only count
	passages     = int(passedBeyond) + 1
)

var passageNames = [passages]string{"passed", "waited", "full", "displaced", "timeout", "client_left", "would_wait"}

// open counts an exchange in if there is a slot, or in any case if forced, and tells whether there was one.
func (g *gates) open(key []byte, c class, forced bool) (*gate, bool) {
	s := g.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	gt := s.gates[string(key)]
	free := gt == nil || gt.total < g.shape.Load().max
	if !free && !forced {
		return nil, false
	}
	if gt == nil {
		gt = s.add(key)
	}
	g.let(gt, c)
	return gt, free
}

// add makes the gate of a key. The shard is locked.
func (s *gateShard) add(key []byte) *gate {
	var gt *gate
	if n := len(s.spare); n > 0 {
		gt, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		gt = &gate{}
	}
	if gt.key != string(key) { // of a key that comes and goes it is the same again
		gt.key = string(key)
	}
	gt.shard = s
	s.gates[gt.key] = gt
	return gt
}

// let counts an exchange in. The shard is locked.
func (g *gates) let(gt *gate, c class) {
	gt.inUse[c]++
	gt.total++
	g.inFlight.Add(1)
}

// refuses tells whether an exchange could not even wait.
func (g *gates) refuses(key []byte, c class, caller uint64) bool {
	s := g.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	gt, shape := s.gates[string(key)], g.shape.Load()
	if gt == nil || gt.total < shape.max || gt.waiting < shape.places {
		return false
	}
	return gt.loser(shape, c, caller) == nil
}

// pass lets an exchange past the gate of a key, if need be after a wait, which cancel may end.
func (g *gates) pass(key []byte, w *waiter, wait time.Duration, cancel *wire.Cancel) (*gate, passage) {
	s := g.shardOf(key)
	s.mu.Lock()
	gt, shape := s.gates[string(key)], g.shape.Load()
	if gt == nil {
		gt = s.add(key)
	}
	if gt.total < shape.max {
		g.let(gt, w.class)
		s.mu.Unlock()
		return gt, passed
	}
	if gt.waiting >= shape.places {
		loser := gt.loser(shape, w.class, w.caller)
		if loser == nil {
			s.mu.Unlock()
			return nil, full
		}
		g.call(gt, loser, crowded)
	}
	line := &gt.lines[w.class]
	if line.n == 0 {
		line.order = shape.order
	}
	line.push(w)
	gt.waiting++
	g.waiting.Add(1)
	s.mu.Unlock()
	return g.await(gt, w, wait, cancel)
}

// await waits for the verdict on w.
func (g *gates) await(gt *gate, w *waiter, wait time.Duration, cancel *wire.Cancel) (*gate, passage) {
	limit := time.NewTimer(wait)
	defer limit.Stop()
	why := timedOut
	select {
	case v := <-w.verdict:
		return verdictOf(gt, v)
	case <-limit.C:
	case <-cancel.Done():
		why = clientLeft
	}
	gt.shard.mu.Lock()
	if w.turn != nil {
		gt.lines[w.class].remove(w)
		gt.waiting--
		g.waiting.Add(-1)
		gt.shard.mu.Unlock()
		return nil, why
	}
	gt.shard.mu.Unlock()
	gt, how := verdictOf(gt, <-w.verdict)
	if how == waited && why == clientLeft { // the slot that it was given is for the next
		g.leave(gt, w.class)
		return nil, clientLeft
	}
	return gt, how
}

func verdictOf(gt *gate, v verdict) (*gate, passage) {
	if v == admitted {
		return gt, waited
	}
	return nil, displacedBy
}

// call takes a waiter out of its line with a verdict. The shard is locked.
func (g *gates) call(gt *gate, w *waiter, v verdict) {
	gt.lines[w.class].remove(w)
	gt.waiting--
	g.waiting.Add(-1)
	w.verdict <- v
}

// leave counts an exchange out, and hands its slot over.
func (g *gates) leave(gt *gate, c class) {
	s := gt.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	gt.inUse[c]--
	gt.total--
	g.inFlight.Add(-1)
	g.grant(gt, g.shape.Load())
	if gt.total == 0 && gt.waiting == 0 {
		delete(s.gates, gt.key)
		if len(s.spare) < spareGates {
			s.spare = append(s.spare, gt)
		}
	}
}

// grant hands free slots to those who wait. The shard is locked.
func (g *gates) grant(gt *gate, shape *gateShape) {
	for gt.total < shape.max && gt.waiting > 0 {
		c := gt.next(shape)
		w := gt.lines[c].pop()
		gt.waiting--
		g.waiting.Add(-1)
		g.let(gt, c)
		w.verdict <- admitted
	}
}

// next returns the class whose turn it is: the most important of those that have less than they are sure of, or else the most
// important one. Somebody waits.
func (gt *gate) next(shape *gateShape) class {
	best := class(classes)
	for c := range class(classes) {
		if gt.lines[c].n == 0 {
			continue
		}
		if gt.inUse[c] < shape.sure(c, shape.max) {
			return c
		}
		best = min(best, c)
	}
	return best
}

// loser returns who gives up its place to a newcomer when all are taken, or nil if nobody does: somebody of the least
// important class below the newcomer's that has more places than it is sure of; somebody of any class that has, if the
// newcomer's has less than it is sure of; or one of a caller of its own class that has many.
func (gt *gate) loser(shape *gateShape, c class, caller uint64) *waiter {
	lowest := c + 1
	if gt.lines[c].n < shape.sure(c, shape.places) {
		lowest = 0
	}
	for other := class(classes); other > lowest; {
		other--
		if l := &gt.lines[other]; other != c && l.n > shape.sure(other, shape.places) {
			return l.last()
		}
	}
	return gt.lines[c].displaced(caller)
}

// top returns the keys with most exchanges that wait or are past their gate.
func (g *gates) top(selectors []selector) []GateStatus {
	var all []GateStatus
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for key, gt := range s.gates {
			status := GateStatus{Key: describeKey(selectors, []byte(key)), InFlight: gt.total}
			for c := range class(classes) {
				if n := gt.lines[c].n; n > 0 {
					if status.Waiting == nil {
						status.Waiting = map[string]int{}
					}
					status.Waiting[c.String()] = n
					status.Callers += len(gt.lines[c].turns)
				}
			}
			all = append(all, status)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b GateStatus) int {
		return cmp.Or(cmp.Compare(b.Callers, a.Callers), cmp.Compare(b.InFlight, a.InFlight), slices.Compare(a.Key, b.Key))
	})
	return all[:min(topKeys, len(all))]
}
