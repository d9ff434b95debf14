package limit

// An order says who of those that wait is next.
type order uint8

const (
	fair order = iota // callers in turn, and of one caller the first that came
	fifo              // the first that came
	lifo              // the last that came
)

// orders are the orders by their names.
var orders = map[string]order{"fair": fair, "fifo": fifo, "lifo": lifo}

// A verdict is what becomes of a waiter.
type verdict uint8

const (
	admitted verdict = iota
	crowded          // another one took its place in a line that is full
	tooLate          // it would have to wait for too long
)

// A waiter is an exchange that waits. Whoever takes it out of its line sends it one verdict.
type waiter struct {
	caller  uint64
	verdict chan verdict // has room for one
	turn    *turn        // nil if it is in no line
	prev    *waiter
	next    *waiter

	charges []Charge // what it waits to be charged, in a room
	room    *room
	arrived int64 // in a room
	until   int64 // when it gives up, in a room
	class   class // in a gate
}

func newWaiter(caller uint64) *waiter { return &waiter{caller: caller, verdict: make(chan verdict, 1)} }

// A line holds those that wait for one thing. Callers stand in a ring and take turns, so that one with two hundred requests
// is served as often as one with a single one. Every operation takes the same time however long the line is, other than
// longest. The zero value is an empty line; whoever owns it guards it.
type line struct {
	order order
	turns map[uint64]*turn
	ring  *turn // whose turn it is
	n     int
}

// A turn is the waiters of one caller.
type turn struct {
	caller     uint64
	head, tail *waiter
	n          int
	prev, next *turn
}

// push adds w behind the others of its caller. A caller that is new comes behind all others.
func (l *line) push(w *waiter) {
	caller := w.caller
	if l.order != fair {
		caller = 0
	}
	t := l.turns[caller]
	if t == nil {
		if l.turns == nil {
			l.turns = map[uint64]*turn{}
		}
		t = &turn{caller: caller}
		l.turns[caller] = t
		if l.ring == nil {
			l.ring, t.prev, t.next = t, t, t
		} else {
			t.prev, t.next = l.ring.prev, l.ring
			t.prev.next, t.next.prev = t, t
		}
	}
	w.turn, w.prev, w.next = t, t.tail, nil
	if t.tail == nil {
		t.head = w
	} else {
		t.tail.next = w
	}
	t.tail = w
	t.n++
	l.n++
}

// first returns who is next, or nil.
func (l *line) first() *waiter {
	switch {
	case l.ring == nil:
		return nil
	case l.order == lifo:
		return l.ring.tail
	}
	return l.ring.head
}

// pop takes out who is next, and passes the turn on.
func (l *line) pop() *waiter {
	w := l.first()
	if w != nil {
		after := l.ring.next
		l.remove(w)
		if l.ring != nil {
			l.ring = after
		}
	}
	return w
}

// remove takes w out of the line.
func (l *line) remove(w *waiter) {
	t := w.turn
	if w.prev == nil {
		t.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		t.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.turn, w.prev, w.next = nil, nil, nil
	t.n--
	l.n--
	if t.n > 0 {
		return
	}
	delete(l.turns, t.caller)
	if t.next == t {
		l.ring = nil
		return
	}
	t.prev.next, t.next.prev = t.next, t.prev
	if l.ring == t {
		l.ring = t.next
	}
}

// of returns how many waiters a caller has.
func (l *line) of(caller uint64) int {
	if t := l.turns[caller]; t != nil {
		return t.n
	}
	return 0
}

// displaced returns who gives up its place to a newcomer of a caller in a line that is full: the last of the caller that has
// most, if that has at least two more than the newcomer's would; in a line that serves the last first, the one that
// has waited longest. It is nil if the newcomer has to go.
func (l *line) displaced(caller uint64) *waiter {
	switch {
	case l.ring == nil || l.order == fifo:
		return nil
	case l.order == lifo, l.longest().n > l.of(caller)+1:
		return l.last()
	}
	return nil
}

// longest returns the turn with most waiters.
func (l *line) longest() *turn {
	most := l.ring
	for t := l.ring.next; t != l.ring; t = t.next {
		if t.n > most.n {
			most = t
		}
	}
	return most
}

// last returns who is needed least: of the caller that has most, the one that would be served last.
func (l *line) last() *waiter {
	t := l.longest()
	if l.order == lifo {
		return t.head
	}
	return t.tail
}
