package flows

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// phase is what a connection is doing. The sweeper judges by it how long is too long.
type phase int32

const (
	phaseIdle    phase = iota // between requests, inside the server's loop
	phaseParked               // between requests, outside of it: costs a small goroutine only
	phaseHead                 // a request has begun to come
	phaseHandler              // a flow is running
	phaseBody                 // waiting for more of a request body
	phaseWrite                // the answer is being written
	phaseClosing              // after the last answer: the rest of what the client sends is thrown away
)

// errParked ends the server's loop over a connection that has nothing to say for a while. The connection stays open.
var errParked = errors.New("connection parked")

// A conn is a client's connection. It stands between fasthttp and the socket, and knows what fasthttp does not: when
// an answer has been written, how long each phase takes, and whether the client is still there.
//
// Time limits are not timers per read: each phase notes its start, and the entry's sweeper ends what lasts too long by
// moving the socket's deadline into the past.
type conn struct {
	net.Conn
	entry *Entry
	raw   *net.TCPConn // under TLS the connection below it

	// state is the phase in the lowest byte and, above it, the coarse time at which it began or last made progress, in
	// milliseconds (see Entry.clock). It is one word, since it is written several times a request.
	state   atomic.Int64
	verdict atomic.Int32 // the phase that the sweeper last found too long

	used        atomic.Bool // a request has begun to come
	interrupted atomic.Bool // the request's body is not read on: the node has answered

	// The fields up to pending belong to the connection's goroutine.
	first     byte // read while parked
	hasFirst  bool
	inHead    bool  // a part of the next request's head has come
	serving   bool  // a flow is running
	streaming bool  // the answer is written as it comes from a node
	unread    bool  // the last request's body was not read to its end
	bodyBytes int64 // read from the socket while the flow runs
	parked    bool  // the server let go of the connection because it was idle
	mute      bool  // the answer has been written past the server, which is to write no more
	linger    bool  // the client may still be sending: drain before closing

	peer  netip.AddrPort // the other end
	spare *Exchange      // for the next request

	request   *fasthttp.RequestCtx // of the request being served
	expecting *Exchange            // its body has been asked for; see expect.go

	pending []*Exchange // answered, perhaps not written yet

	mu      sync.Mutex // guards the field below
	waiting *Exchange  // the exchange whose flow is running
}

func (c *conn) enter(p phase) { c.state.Store(c.entry.clock.Load()<<8 | int64(p)) }

// phase returns what the connection is doing.
func (c *conn) phase() phase { return phase(c.state.Load() & 0xff) }

// Read hands bytes to the server. Being asked for more, it knows that all answers so far have been written.
func (c *conn) Read(p []byte) (int, error) {
	c.finish()
	if c.hasFirst && len(p) > 0 {
		p[0], c.hasFirst, c.inHead = c.first, false, true
		c.enter(phaseHead)
		return 1, nil
	}
	if c.unread && c.request.RequestBodyStream() == nil {
		c.unread = false // the server has thrown away what was left of the body
	}
	idle := false
	switch {
	case c.serving, c.unread:
		c.enter(phaseBody)
	case c.inHead:
		// The limit is on the whole head, so its time begins once.
		if c.phase() != phaseHead {
			c.enter(phaseHead)
		}
	case len(p) < c.entry.server.ReadBufferSize:
		// The server's buffer is not empty: it holds the beginning of a pipelined request.
		c.inHead = true
		c.enter(phaseHead)
	default:
		idle = true
		c.enter(phaseIdle)
	}
	n, err := c.read(p)
	switch {
	case n == 0 && err != nil && c.expecting != nil:
		c.abandonExpect()
	case n > 0 && idle:
		c.inHead = true // most often the whole of it; see above for when not
	case n > 0 && c.serving:
		c.enter(phaseHandler)
		// Chunk sizes and their extensions count as well, but a body may be sent in chunks of one byte.
		if c.bodyBytes += int64(n); c.bodyBytes > 8*c.entry.limits.maxBody {
			return 0, ErrBodyTooLarge
		}
	case n == 0 && idle && errors.Is(err, os.ErrDeadlineExceeded):
		c.parked = true
		return 0, errParked
	}
	return n, err
}

// read reads from the socket. A verdict of the sweeper may come late, when the phase that it was about is over: then
// it is undone.
func (c *conn) read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.interrupted.Load() || phase(c.verdict.Load()) == c.phase() {
			return n, err
		}
		_ = c.Conn.SetReadDeadline(time.Time{})
	}
}

// Write sends a part of an answer.
func (c *conn) Write(p []byte) (int, error) {
	if c.mute {
		return len(p), nil
	}
	c.enter(phaseWrite)
	n, err := c.Conn.Write(p)
	if c.streaming {
		c.enter(phaseHandler) // the next part may be long in coming, and that is not the client's fault
	}
	if err != nil {
		c.abandonExpect()
	}
	if len(c.pending) > 0 {
		x := c.pending[len(c.pending)-1]
		x.written += int64(n)
		if err != nil {
			x.Trace.Outcome = ClientGone
		}
	}
	return n, err
}

// Close is called by the server when it is done with the connection. The entry's loop closes the socket.
func (c *conn) Close() error {
	c.finish()
	return nil
}

// finish ends the exchanges whose answers have been written.
func (c *conn) finish() {
	if len(c.pending) == 0 {
		return
	}
	for i, x := range c.pending {
		c.entry.written(x)
		c.pending[i] = nil
	}
	c.pending = c.pending[:0]
}

// watch lets the sweeper cancel x when the client leaves.
func (c *conn) watch(x *Exchange) {
	c.mu.Lock()
	c.waiting = x
	c.mu.Unlock()
}

// unwatch ends watch, unless another exchange is watched by now.
func (c *conn) unwatch(x *Exchange) {
	c.mu.Lock()
	if c.waiting == x {
		c.waiting = nil
	}
	c.mu.Unlock()
}

// cancelIfGone cancels the running exchange if its client has left or shut its sending side, which nodes treat alike.
func (c *conn) cancelIfGone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil || c.waiting.cancel.Fired() || !c.gone() {
		return
	}
	if hold := c.waiting.hold.Load(); hold != nil && (*hold)() {
		return
	}
	c.waiting.cancel.Fire()
}

// gone asks the kernel whether the peer has closed, without reading: POLLRDHUP works under TLS and pipelining alike.
func (c *conn) gone() bool {
	rc, err := c.raw.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = rc.Control(func(fd uintptr) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, perr := unix.Poll(fds[:], 0)
		gone = perr == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// letGo gives back what the connection keeps between requests.
func (c *conn) letGo() {
	if c.spare != nil {
		c.entry.pool.Put(c.spare)
		c.spare = nil
	}
}

// past is a deadline that has been missed.
var past = time.Unix(1, 0)

// interrupt ends a read that waits in phase p. What is to be written can still be written.
func (c *conn) interrupt(p phase) {
	c.verdict.Store(int32(p))
	_ = c.Conn.SetReadDeadline(past)
}

// await waits outside the server for the first byte of a request.
func (c *conn) await() bool {
	c.enter(phaseParked)
	_ = c.Conn.SetReadDeadline(time.Time{})
	var b [1]byte
	n, err := c.read(b[:])
	if n == 0 || err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	c.first, c.hasFirst, c.inHead, c.parked = b[0], true, false, false
	return true
}

// shut closes the socket. If the client may still be sending, what it sends is thrown away within bounds first, so
// that it can read the answer: a close over unread bytes resets the connection (RFC 9112 section 9.6).
func (c *conn) shut() {
	if c.linger {
		c.enter(phaseClosing)
		_ = c.raw.CloseWrite()
		_ = c.Conn.SetDeadline(time.Now().Add(c.entry.limits.lingerTime))
		_, _ = io.CopyN(io.Discard, c.Conn, c.entry.limits.lingerBytes)
	}
	_ = c.Conn.Close()
}
