package balance

import (
	"container/list"
	"errors"
	"time"
)

// Reasons for which Acquire gives no member.
var (
	ErrNoMember  = errors.New("no node to try")
	ErrQueueFull = errors.New("too many exchanges wait for a node")
	ErrTooLate   = errors.New("no node became free in time")
	ErrCancelled = errors.New("exchange was cancelled while it waited for a node")
)

// An Ask is what Acquire has to know of an exchange.
type Ask struct {
	Class  Class
	Caller uint64        // callers take turns in the queue
	Wait   time.Duration // longest wait
	// Cancel ends the wait; nil never does. Done is only asked for if there is a wait.
	Cancel interface{ Done() <-chan struct{} }
}

// A queue holds exchanges that wait for a member that is not full, callers in turn. It is guarded by the picker's mu.
type queue[T any] struct {
	lines map[uint64]*line[T] // by caller
	turns list.List           // of *line[T], the next at the front
}

// A line holds what one caller waits for, the oldest first.
type line[T any] struct {
	caller  uint64
	waiters list.List // of *waiter[T]
	place   *list.Element
}

type waiter[T any] struct {
	class Class
	grant chan *Member[T]
	line  *line[T]
	place *list.Element
}

// Acquire is Pick, but waits in a fair order while all members are full. queued is how long it waited.
//
// Members are chosen when a place becomes free, not when the wait begins, and a place goes straight to the exchange
// whose turn it is: one that comes later cannot snatch it.
func (p *Picker[T]) Acquire(a Ask) (m *Member[T], queued time.Duration, err error) {
	if p.waiting.Load() == 0 {
		if m = p.Pick(a.Class, nil); m != nil {
			return m, 0, nil
		}
	}
	p.mu.Lock()
	if p.waiting.Load() == 0 {
		if m = p.Pick(a.Class, nil); m != nil { // it became free since
			p.mu.Unlock()
			return m, 0, nil
		}
		if !p.anyWeight() {
			p.mu.Unlock()
			return nil, 0, ErrNoMember
		}
	}
	if int(p.waiting.Load()) >= p.o.MaxWaiting {
		p.mu.Unlock()
		return nil, 0, ErrQueueFull
	}
	w := p.enqueue(a)
	p.dispatch() // what became free before waiting was counted up
	start := p.o.Now()
	timer := time.NewTimer(a.Wait)
	defer timer.Stop()
	var cancelled <-chan struct{}
	if a.Cancel != nil {
		cancelled = a.Cancel.Done()
	}
	select {
	case m = <-w.grant:
		return m, p.o.Now().Sub(start), nil
	case <-timer.C:
		err = ErrTooLate
	case <-cancelled:
		err = ErrCancelled
	}
	p.mu.Lock()
	select {
	case m = <-w.grant: // the place goes on to the next
		p.mu.Unlock()
		m.Release()
	default:
		p.remove(w)
		p.mu.Unlock()
	}
	return nil, p.o.Now().Sub(start), err
}

func (p *Picker[T]) anyWeight() bool {
	for _, m := range *p.members.Load() {
		if m.weight.Load() > 0 {
			return true
		}
	}
	return false
}

// enqueue puts an exchange at the end of its caller's line. The caller holds mu.
func (p *Picker[T]) enqueue(a Ask) *waiter[T] {
	q := &p.queue
	l := q.lines[a.Caller]
	if l == nil {
		l = &line[T]{caller: a.Caller}
		l.place = q.turns.PushBack(l)
		q.lines[a.Caller] = l
	}
	w := &waiter[T]{class: a.Class, grant: make(chan *Member[T], 1), line: l}
	w.place = l.waiters.PushBack(w)
	p.waiting.Add(1)
	return w
}

// remove takes an exchange out of the queue. The caller holds mu.
func (p *Picker[T]) remove(w *waiter[T]) {
	q := &p.queue
	w.line.waiters.Remove(w.place)
	if w.line.waiters.Len() == 0 {
		q.turns.Remove(w.line.place)
		delete(q.lines, w.line.caller)
	}
	p.waiting.Add(-1)
}

// dispatch gives free places to those whose turn it is. The caller holds mu, which dispatch gives up.
func (p *Picker[T]) dispatch() {
	defer p.mu.Unlock()
	for e := p.queue.turns.Front(); e != nil; e = p.queue.turns.Front() {
		l := e.Value.(*line[T])
		w := l.waiters.Front().Value.(*waiter[T])
		m := p.Pick(w.class, nil)
		if m == nil {
			return
		}
		p.queue.turns.MoveToBack(e)
		p.remove(w)
		w.grant <- m
	}
}
