package transport

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/wire"
)

// wary is how long a node that sent bytes unasked gets a connection for each exchange: long enough that a node that
// does so regularly is met with pooled connections hardly ever.
const wary = int64(time.Minute)

// Stats is a snapshot of a Node's connections and counters.
type Stats struct {
	Open    int // open or being opened
	Idle    int
	InUse   int
	Waiting int // exchanges that wait for a connection

	Dials           uint64 // attempts to connect
	DialErrors      uint64 // of them failed, TLS handshakes included
	Reuses          uint64 // exchanges that began on a pooled connection
	Dead            uint64 // pooled connections that were found dead or too old before use
	Unasked         uint64 // times that a node sent something on a connection without being asked
	FreshRetries    uint64 // exchanges repeated on a fresh connection
	Refused         uint64 // exchanges refused with ErrPoolFull
	WaitTimeouts    uint64 // exchanges that got no connection in time
	WarningsDropped uint64 // Warning fields left out of answers
}

// A Node is a pool of connections to one node. Its methods may be called from any goroutine.
type Node struct {
	o       Options
	tls     atomic.Pointer[tls.Config] // nil for plain connections
	epoch   time.Time                  // what clock counts from
	scratch sync.Pool                  // of *scratch, held by exchanges only, so that an idle connection has no buffers

	dials, dialErrors, reuses, dead, unasked, freshRetries, refused, waitTimeouts, warningsDropped atomic.Uint64

	mu      sync.Mutex // guards the fields below
	closed  bool
	open    int       // slots taken: connections open or being opened
	wary    int64     // until when no connection is kept for another exchange; see distrust
	idle    []*conn   // the one used last at the end
	waiting list.List // of waiter; not empty only while every slot is taken and no connection is idle
	expiry  *time.Timer
	expires bool // expiry is running
}

// A waiter is an exchange that waits for a grant.
type waiter chan grant

// A grant is a slot with an idle connection, or without one: then the exchange connects by itself.
type grant struct {
	c   *conn
	err error
}

// New returns a Node. It connects when first used.
func New(o Options) *Node {
	o = o.withDefaults()
	n := &Node{o: o, epoch: o.Now()}
	n.tls.Store(o.TLS)
	n.scratch.New = func() any { return &scratch{in: make([]byte, scratchSize)} }
	return n
}

// Close closes idle connections at once and those in use when they are given back. Exchanges that wait for a
// connection fail with ErrClosed, and so do further calls of Do.
func (n *Node) Close() {
	n.mu.Lock()
	n.closed = true
	idle := n.idle
	n.idle = nil
	n.open -= len(idle)
	for e := n.waiting.Front(); e != nil; e = n.waiting.Front() {
		n.waiting.Remove(e).(waiter) <- grant{err: ErrClosed}
	}
	if n.expires {
		n.expiry.Stop()
	}
	n.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// SetTLS replaces Options.TLS for connections to come. Those that are idle are closed, and those in use when they are given back.
func (n *Node) SetTLS(config *tls.Config) {
	n.tls.Store(n.o.named(config))
	n.closeIdle()
}

// closeIdle closes the connections that nobody uses at the moment.
func (n *Node) closeIdle() {
	n.mu.Lock()
	idle := n.idle
	n.idle = nil
	n.open -= len(idle)
	n.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// Stats returns the numbers of this moment.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	s := Stats{Open: n.open, Idle: len(n.idle), Waiting: n.waiting.Len()}
	n.mu.Unlock()
	s.InUse = s.Open - s.Idle
	s.Dials, s.DialErrors, s.Reuses = n.dials.Load(), n.dialErrors.Load(), n.reuses.Load()
	s.Dead, s.Unasked, s.FreshRetries, s.Refused = n.dead.Load(), n.unasked.Load(), n.freshRetries.Load(), n.refused.Load()
	s.WaitTimeouts, s.WarningsDropped = n.waitTimeouts.Load(), n.warningsDropped.Load()
	return s
}

// Do sends req and reads the answer into resp, which it resets first. A body up to Options.MaxBufferedBody is read
// whole. The error is an *Error; after one resp is empty, and no goroutine uses req or resp any more.
func (n *Node) Do(req *Request, resp *Response) error {
	resp.Reset()
	s := n.scratch.Get().(*scratch)
	var err error
	if s.out, err = appendHead(s.out[:0], req, n.o.Addr); err != nil {
		n.giveScratch(s)
		return &Error{Addr: n.o.Addr, Phase: Write, Err: err}
	}
	s.head = len(s.out)
	c, failure := n.acquire(req, resp)
	for failure == nil {
		failure = c.exchange(req, resp, s)
		switch {
		case failure == nil:
			return nil
		case failure.Err == errStale:
			c, failure = n.another(c, req, resp)
		case resp.Reused && repeatable(req, failure, c.streamRead):
			n.freshRetries.Add(1)
			c.close()
			c, failure = n.dial(req, resp)
		default:
			c.close()
			n.freeSlot()
		}
	}
	n.giveScratch(s)
	resp.Reset()
	return failure
}

// repeatable tells whether req, which failed on a pooled connection, may go to a fresh one.
func repeatable(req *Request, e *Error, streamRead bool) bool {
	if e.Answered || e.Timeout || e.Cancelled || e.Source || streamRead {
		return false
	}
	return req.Reuse == RetryFresh || req.Reuse == RetryUnsent && e.Written == 0
}

// acquire returns a connection for req: the idle one used last, a new one, or the next one given back. Whether an idle
// one is still good is looked at when the request is about to be written.
func (n *Node) acquire(req *Request, resp *Response) (*conn, *Error) {
	start := n.clock()
	n.mu.Lock()
	if c := n.popIdle(); c != nil {
		n.mu.Unlock()
		return n.use(c, start, req, resp)
	}
	switch {
	case n.closed:
		n.mu.Unlock()
		return nil, n.failure(req, Wait, ErrClosed)
	case n.open < n.o.MaxConns:
		n.open++
		n.mu.Unlock()
		return n.dial(req, resp)
	case n.waiting.Len() >= n.o.MaxWaiting:
		n.mu.Unlock()
		n.refused.Add(1)
		return nil, n.failure(req, Wait, ErrPoolFull)
	}
	w := make(waiter, 1)
	place := n.waiting.PushBack(w)
	n.mu.Unlock()
	g := n.wait(req, w, place, start)
	resp.Queued = time.Duration(n.clock() - start)
	switch {
	case g.err != nil:
		return nil, n.failure(req, Wait, g.err)
	case g.c == nil:
		return n.dial(req, resp)
	}
	return n.use(g.c, n.clock(), req, resp)
}

// popIdle takes the connection used last out of the idle ones, or returns nil if there is none. The caller holds mu.
func (n *Node) popIdle() *conn {
	last := len(n.idle) - 1
	if last < 0 {
		return nil
	}
	c := n.idle[last]
	n.idle[last] = nil
	n.idle = n.idle[:last]
	return c
}

// use returns c, whose slot the caller holds, or a fresh connection if it has been idle for too long.
func (n *Node) use(c *conn, now int64, req *Request, resp *Response) (*conn, *Error) {
	if now-c.lastUsed >= int64(n.o.IdleTimeout) {
		n.dead.Add(1)
		c.close()
		return n.dial(req, resp)
	}
	n.reuses.Add(1)
	c.now = now
	return c, nil
}

// another returns a connection in place of the pooled one c, which cannot be used: a pooled one again, or a fresh one.
func (n *Node) another(c *conn, req *Request, resp *Response) (*conn, *Error) {
	n.dead.Add(1)
	c.close()
	n.mu.Lock()
	next := n.popIdle()
	if next != nil {
		n.open-- // it has a slot too
	}
	n.mu.Unlock()
	if next == nil {
		return n.dial(req, resp)
	}
	return n.use(next, c.now, req, resp)
}

// distrust closes all idle connections and keeps none for a while: the node sent something unasked, which the next
// exchange on a connection would take for its answer.
func (n *Node) distrust(now int64) {
	n.unasked.Add(1)
	n.mu.Lock()
	n.wary = now + wary
	n.mu.Unlock()
	n.closeIdle()
}

// wait waits for a grant, a time limit or the end of the exchange.
func (n *Node) wait(req *Request, w waiter, place *list.Element, start int64) grant {
	by := earlier(n.at(req.Deadline), after(start, n.o.WaitTimeout))
	var timeout <-chan time.Time
	if by != 0 {
		t := time.NewTimer(time.Duration(by - start))
		defer t.Stop()
		timeout = t.C
	}
	var cancelled <-chan struct{}
	if req.Cancel != nil {
		cancelled = req.Cancel.Done()
	}
	var err error
	select {
	case g := <-w:
		return g
	case <-timeout:
		n.waitTimeouts.Add(1)
		err = ErrWaitTimeout
	case <-cancelled:
		err = ErrCancelled
	}
	n.mu.Lock()
	select {
	case g := <-w: // it came meanwhile, and goes to the next
		n.mu.Unlock()
		if g.c != nil {
			n.release(g.c)
		} else if g.err == nil {
			n.freeSlot()
		}
	default:
		n.waiting.Remove(place)
		n.mu.Unlock()
	}
	return grant{err: err}
}

// dial connects, using a slot that the caller holds; on an error the slot is free again.
func (n *Node) dial(req *Request, resp *Response) (*conn, *Error) {
	start := n.clock()
	n.dials.Add(1)
	c, failure := n.connect(req, start)
	if failure != nil {
		n.dialErrors.Add(1)
		n.freeSlot()
		return nil, failure
	}
	c.now = n.clock()
	resp.Connected = time.Duration(c.now - start)
	return c, nil
}

func (n *Node) connect(req *Request, start int64) (*conn, *Error) {
	limit := n.o.DialTimeout
	if by := n.at(req.Deadline); by != 0 {
		limit = min(limit, time.Duration(by-start))
	}
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	if req.Cancel != nil && !req.Cancel.Arm(stopper(stop)) {
		return nil, n.failure(req, Dial, ErrCancelled)
	}
	raw, err := n.o.Dial(ctx, n.o.Network, n.o.Addr)
	if err != nil {
		return nil, n.failure(req, Dial, dialCause(ctx, err))
	}
	c := newConn(n, raw, start)
	if config := n.tls.Load(); config != nil {
		t := tls.Client(raw, config)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, n.failure(req, Handshake, dialCause(ctx, err))
		}
		c.nc, c.tls = t, config
	}
	return c, nil
}

// dialCause makes err one that tells a time limit from other causes.
func dialCause(ctx context.Context, err error) error {
	var ne net.Error
	if ctx.Err() != nil || errors.As(err, &ne) && ne.Timeout() {
		return ErrTimeout
	}
	return err
}

// A stopper lets a wire.Cancel stop a dial.
type stopper context.CancelFunc

// Close stops the dial.
func (s stopper) Close() error { s(); return nil }

// failure makes the Error of an exchange that has no connection yet.
func (n *Node) failure(req *Request, p Phase, err error) *Error {
	e := &Error{Addr: n.o.Addr, Phase: p, Err: err}
	e.settle(req.Cancel)
	return e
}

// settle ends the exchange's hold on cancel and works out whether a cancel or a time limit was the cause.
func (e *Error) settle(cancel *wire.Cancel) {
	if cancel != nil && !cancel.Disarm() {
		e.Cancelled, e.Err = true, ErrCancelled
	}
	e.Timeout = errors.Is(e.Err, ErrTimeout) || errors.Is(e.Err, ErrTooSlow) || errors.Is(e.Err, ErrWaitTimeout)
}

// release gives a connection back: to the exchange that has waited longest, or to the idle ones.
func (n *Node) release(c *conn) {
	n.mu.Lock()
	switch e := n.waiting.Front(); {
	case n.closed, c.lastUsed < n.wary, c.lastUsed-c.born >= int64(n.o.MaxAge), c.tls != n.tls.Load():
		n.mu.Unlock()
		c.close()
		n.freeSlot()
		return
	case e != nil:
		n.waiting.Remove(e).(waiter) <- grant{c: c}
	default:
		n.idle = append(n.idle, c)
		if !n.expires {
			n.expires = true
			n.expireIn(n.o.IdleTimeout)
		}
	}
	n.mu.Unlock()
}

// freeSlot gives up the slot of a connection that is closed or was never opened.
func (n *Node) freeSlot() {
	n.mu.Lock()
	if e := n.waiting.Front(); e != nil {
		n.waiting.Remove(e).(waiter) <- grant{}
	} else {
		n.open--
	}
	n.mu.Unlock()
}

func (n *Node) expireIn(d time.Duration) {
	if n.expiry == nil {
		n.expiry = time.AfterFunc(d, n.expire)
	} else {
		n.expiry.Reset(d)
	}
}

// expire closes the connections that were idle for too long. One timer serves all: the oldest stands first.
func (n *Node) expire() {
	now := n.clock()
	n.mu.Lock()
	k := 0
	for k < len(n.idle) && now-n.idle[k].lastUsed >= int64(n.o.IdleTimeout) {
		k++
	}
	old := append([]*conn(nil), n.idle[:k]...)
	rest := copy(n.idle, n.idle[k:])
	clear(n.idle[rest:])
	n.idle = n.idle[:rest]
	n.open -= k
	n.expires = rest > 0 && !n.closed
	if n.expires {
		n.expireIn(time.Duration(n.idle[0].lastUsed + int64(n.o.IdleTimeout) - now))
	}
	n.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// clock returns the nanoseconds since the Node was made, which is what moments are counted in; 0 means none.
func (n *Node) clock() int64 { return int64(n.o.Now().Sub(n.epoch)) + 1 }

// at returns t as clock would have; 0 if t is zero.
func (n *Node) at(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, int64(t.Sub(n.epoch))+1)
}

// after returns the moment d after start, or none if d is none.
func after(start int64, d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return start + int64(d)
}

// earlier returns the earlier of two moments, either of which may be none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (n *Node) giveScratch(s *scratch) {
	if len(s.in) > maxKeptScratch || cap(s.out) > maxKeptScratch {
		return
	}
	n.scratch.Put(s)
}
