package limit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"weir/flows"
)

// Rooms are where exchanges wait until their limits let them pass: one room for each key that is used up, in which callers
// take turns.
type rooms struct {
	table   *Table
	most    int // that wait
	seed    maphash.Seed
	waiting atomic.Int64 // changed under mu

	mu   sync.Mutex // guards the fields below, and the lines
	open map[string]*room
}

// A room is the line for one key, with the timer that wakes the first of it.
type room struct {
	key      string
	patience time.Duration // of those in it
	line     line
	timer    *time.Timer
}

func newRooms(t *Table, most int) *rooms {
	return &rooms{table: t, most: most, seed: maphash.MakeSeed(), open: map[string]*room{}}
}

// hopeless tells whether a charge refuses for longer than it may be waited for, with so much of its patience used up.
func hopeless(charges []Charge, waited time.Duration) bool {
	for i := range charges {
		if c := &charges[i]; !c.Decision.OK && !c.Advisory && waited+c.Decision.Wait > c.Patience {
			return true
		}
	}
	return false
}

// enter charges all charges together, if need be after a wait. It returns the charge that refuses, or -1, and whether there
// was a wait.
func (r *rooms) enter(x *flows.Exchange, charges []Charge, fairBy []selector) (refused int, waited bool) {
	if r.waiting.Load() == 0 {
		if refused := r.table.CheckAll(charges); refused < 0 || hopeless(charges, 0) {
			return refused, false
		}
	}
	w := newWaiter(callerOf(r.seed, x, fairBy))
	w.charges = charges
	w.arrived = r.table.now()
	r.mu.Lock()
	refused = r.admit(w)
	seated, until := w.turn != nil, w.until
	r.mu.Unlock()
	if !seated {
		return refused, false
	}
	before := time.Now()
	ok := r.wait(x, w, time.Duration(until-w.arrived))
	x.Trace.Queued += time.Since(before)
	if ok {
		return -1, true
	}
	// What refuses now is what the caller is told.
	if refused = r.table.Peek(charges); refused < 0 {
		refused = 0
	}
	return refused, false
}

// callerOf returns a number that stands for who sent x.
func callerOf(seed maphash.Seed, x *flows.Exchange, by []selector) uint64 {
	var room [256]byte
	key, _ := appendKey(room[:0], 0, by, x, hit{}, nil)
	return maphash.Bytes(seed, key)
}

// admit charges w or puts it into a room, in which case w.turn is set. It returns the charge that refuses, or -1. The caller
// holds mu.
func (r *rooms) admit(w *waiter) (refused int) {
	for i := range w.charges {
		if room := r.open[string(w.charges[i].Key)]; room != nil { // others wait for the same
			if refused = r.table.Peek(w.charges); refused >= 0 && hopeless(w.charges, 0) || !r.sit(w, room) {
				return max(refused, i)
			}
			return -1
		}
	}
	refused = r.table.CheckAll(w.charges)
	if refused < 0 {
		return -1
	}
	c := &w.charges[refused]
	if hopeless(w.charges, 0) || !r.sit(w, r.room(c)) {
		return refused
	}
	return -1
}

// room opens a room for the key of a charge that refuses.
func (r *rooms) room(c *Charge) *room {
	room := &room{key: string(c.Key), patience: c.Patience}
	r.open[room.key] = room
	room.timer = time.AfterFunc(c.Decision.Wait, func() { r.wake(room) })
	return room
}

// sit puts w into a room. If all places are taken it is the one with most waiters that gives one up, or w has none. It
// returns false in the latter case.
func (r *rooms) sit(w *waiter, in *room) bool {
	if int(r.waiting.Load()) >= r.most {
		from := in
		for _, other := range r.open {
			if other.line.n > from.line.n+1 {
				from = other
			}
		}
		loser := from.line.displaced(w.caller)
		if loser == nil && from != in {
			loser = from.line.longest().tail
		}
		if loser == nil {
			r.closeIfEmpty(in)
			return false
		}
		r.rise(loser)
		loser.verdict <- crowded
	}
	r.seat(w, in)
	return true
}

// seat puts w at the end of its caller's in a room's line.
func (r *rooms) seat(w *waiter, in *room) {
	in.line.push(w)
	w.room, w.until = in, w.arrived+int64(in.patience)
	r.waiting.Add(1)
}

// rise takes w out of its room.
func (r *rooms) rise(w *waiter) {
	room := w.room
	room.line.remove(w)
	w.room = nil
	r.waiting.Add(-1)
	r.closeIfEmpty(room)
}

func (r *rooms) closeIfEmpty(room *room) {
	if room.line.n == 0 && r.open[room.key] == room {
		room.timer.Stop()
		delete(r.open, room.key)
	}
}

// wait waits for the verdict on w, for as long as the room that it is in lets it, at first so long, and its client is there.
func (r *rooms) wait(x *flows.Exchange, w *waiter, first time.Duration) bool {
	limit := time.NewTimer(first)
	defer limit.Stop()
	for {
		left := false
		select {
		case v := <-w.verdict:
			return v == admitted
		case <-limit.C:
		case <-x.Cancel().Done():
			left = true
		}
		more, seated := r.giveUp(w, left)
		switch {
		case !seated:
			return <-w.verdict == admitted
		case more == 0:
			return false
		}
		limit.Reset(more)
	}
}

// giveUp takes w out of its room, unless it has a verdict, or may wait for more in the room that it has come to.
func (r *rooms) giveUp(w *waiter, left bool) (more time.Duration, seated bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.turn == nil {
		return 0, false
	}
	if more := w.until - r.table.now(); more > 0 && !left {
		return time.Duration(more), true
	}
	r.rise(w)
	return 0, true
}

// wake lets those of a room pass that can, each in its turn.
func (r *rooms) wake(room *room) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := room.line.first(); w != nil; w = room.line.first() {
		refused := r.table.CheckAll(w.charges)
		if refused >= 0 && string(w.charges[refused].Key) == room.key {
			room.timer.Reset(w.charges[refused].Decision.Wait)
			return
		}
		room.line.pop()
		w.room = nil
		r.waiting.Add(-1)
		if refused < 0 {
			w.verdict <- admitted
			continue
		}
		r.move(w, &w.charges[refused])
	}
	r.closeIfEmpty(room)
}

// move puts w, which another limit holds up now, into the room of that one.
func (r *rooms) move(w *waiter, c *Charge) {
	if hopeless(w.charges, time.Duration(r.table.now()-w.arrived)) {
		w.verdict <- tooLate
		return
	}
	to := r.open[string(c.Key)]
	if to == nil {
		to = r.room(c)
	}
	r.seat(w, to)
}
