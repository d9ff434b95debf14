package flows

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/wire"
)

// phase is what a connection is doing. The sweeper judges by it how long is too long.
type phase int32

const (
	phaseIdle    phase = iota // between requests
	phaseHead                 // a request has begun to come
	phaseHandler              // a flow is running
	phaseBody                 // waiting for more of a request body
	phaseWrite                // the answer is being written
	phaseClosing              // after the last answer: the rest of what the client sends is thrown away
)

// A conn is a client's connection. Its goroutine serves one request after the other; see Entry.serve.
//
// Time limits are not timers per read: each phase notes its start, and the entry's sweeper ends what lasts too long by
// moving the socket's deadline into the past.
type conn struct {
	net.Conn
	entry *Entry
	raw   *net.TCPConn    // under TLS the connection below it
	sock  syscall.RawConn // of raw
	try   func(fd uintptr) bool

	// state is the phase in the lowest byte and, above it, the coarse time at which it began or last made progress, in
	// milliseconds (see Entry.clock). It is one word, since it is written several times a request.
	state   atomic.Int64
	verdict atomic.Int32 // the phase that the sweeper last found too long

	used        atomic.Bool // a request has begun to come
	interrupted atomic.Bool // the request's body is not read on: the node has answered

	// The fields below belong to the connection's goroutine.
	x      *Exchange // the one being served, whose buffer holds what was read; nil while nothing comes
	got    int       // what try read
	gotErr error
	first  [1]byte // under TLS, what was waited for
	last   bool    // no further request is read
	linger bool    // the client may still be sending: drain before closing
	blanks int     // times that nothing but empty lines came

	trusted bool // the peer is one of the entry's trusted_proxies

	peer netip.AddrPort    // the other end, or whom the PROXY protocol names
	cert *x509.Certificate // what the client has proven to have, or nil

	mu      sync.Mutex // guards the field below
	waiting *Exchange  // the exchange whose flow is running
}

func newConn(e *Entry, nc net.Conn) *conn {
	c := &conn{Conn: nc, entry: e}
	c.raw, _ = nc.(*net.TCPConn)
	c.peer, _ = addrPort(nc.RemoteAddr())
	c.sock, _ = c.raw.SyscallConn() // it fails for nil only
	c.try = c.readNow
	c.trusted = e.callers.trusts(c.peer.Addr())
	c.enter(phaseIdle)
	return c
}

// addrPort returns the address of a TCP connection's end, an IPv4 one never in IPv6 clothes.
func addrPort(addr net.Addr) (netip.AddrPort, bool) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), true
}

func (c *conn) enter(p phase) { c.state.Store(c.entry.clock.Load()<<8 | int64(p)) }

// phase returns what the connection is doing.
func (c *conn) phase() phase { return phase(c.state.Load() & 0xff) }

// await waits until something of a request has come. As long as nothing does, the connection holds neither a buffer nor
// an exchange: it costs a small goroutine.
func (c *conn) await() bool {
	if c.x != nil && c.x.in.len() > 0 {
		return true // the next request came with the one before
	}
	c.enter(phaseIdle)
	// Other connections have their turn first. Where there is work for them, the client's next request has come by then,
	// and neither a read in vain nor a wait is needed: measured, 4 % of a forwarded request and 2 % of an echo.
	runtime.Gosched()
	for {
		n, err := c.readFirst()
		switch {
		case n > 0:
			c.used.Store(true)
			return true
		case errors.Is(err, os.ErrDeadlineExceeded) && c.unjust():
		default:
			return false
		}
	}
}

// readFirst waits for bytes, takes an exchange for them and reads them into its buffer.
func (c *conn) readFirst() (int, error) {
	if c.Conn == net.Conn(c.raw) {
		if err := c.sock.Read(c.try); err != nil {
			return 0, err
		}
		if c.got > 0 {
			c.x.in.w = c.got
		}
		return c.got, c.gotErr
	}
	c.drop()
	n, err := c.Conn.Read(c.first[:])
	if n > 0 {
		c.take()
		c.x.in.w = copy(c.x.in.b, c.first[:])
	}
	return n, err
}

// readNow reads what is there. It returns false if that is nothing; it is called again then when something has come.
func (c *conn) readNow(fd uintptr) bool {
	if c.x == nil {
		c.take()
	}
	c.x.in.r = 0
	for {
		c.got, c.gotErr = syscall.Read(int(fd), c.x.in.b)
		switch c.gotErr {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			c.drop()
			return false
		}
		return true
	}
}

// take gives the connection an exchange.
func (c *conn) take() {
	c.x, _ = c.entry.pool.Get().(*Exchange)
	c.x.conn, c.x.callers = c, &c.entry.callers
}

// drop gives the connection's exchange back.
func (c *conn) drop() {
	if x := c.x; x != nil {
		c.x, x.conn, x.callers = nil, nil, nil
		x.in.reset()
		c.entry.pool.Put(x)
	}
}

// unjust tells whether a verdict of the sweeper came too late, when the phase that it was about was over. It is undone
// then.
func (c *conn) unjust() bool {
	if c.interrupted.Load() || phase(c.verdict.Load()) == c.phase() {
		return false
	}
	_ = c.Conn.SetReadDeadline(time.Time{})
	return true
}

// read reads from the connection.
func (c *conn) read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !c.unjust() {
			return n, err
		}
	}
}

// Faults of a head that is too long.
var (
	errLongLine = errors.New("request line over the limit")
	errLongHead = errors.New("header over the limit")
)

// errNoRequest says that nothing but empty lines has come.
var errNoRequest = errors.New("no request")

// readHead reads until the head of a request is in the exchange's buffer and returns its length. It returns
// errNoRequest if no request has begun.
func (c *conn) readHead(head *wire.Head) (int, error) {
	in, limits, begun := &c.x.in, &c.entry.limits, false
	for {
		if in.skipEmptyLines(); in.len() == 0 {
			return 0, errNoRequest
		}
		if first := in.bytes()[:1]; first[0] != '\r' && !wire.ValidToken(first) {
			return 0, wire.ErrRequestLine // TLS, for one, which would wait for an answer
		}
		n, err := head.Scan(in.bytes())
		if err != nil || n > 0 {
			if n-head.FirstLine() > limits.maxHead {
				err = errLongHead
			}
			return n, err
		}
		switch line := head.FirstLine(); {
		case line == 0 && in.len() > limits.maxLine+len("\r\n"):
			return 0, errLongLine
		case in.len()-line > limits.maxHead:
			return 0, errLongHead
		}
		if !begun {
			c.enter(phaseHead) // the limit is on the whole head, so its time begins once
			begun = true
		}
		in.room()
		m, err := c.read(in.b[in.w:])
		in.w += m
		if m == 0 && err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
	}
}

// write sends a part of an answer: a, then b.
func (c *conn) write(a, b []byte) error {
	x := c.x
	c.enter(phaseWrite)
	for {
		part := b[:min(len(b), writeSlice)]
		var n int64
		var err error
		if len(part) == 0 {
			var m int
			m, err = c.Conn.Write(a)
			n = int64(m)
		} else {
			x.parts = [2][]byte{a, part}
			x.vec = x.parts[:]
			n, err = x.vec.WriteTo(c.Conn)
			x.parts, x.vec = [2][]byte{}, nil
		}
		x.ResponseBytes += n
		if err != nil && !c.slow(n, err) {
			return err
		}
		taken := min(int(n), len(a))
		a, b = a[taken:], b[int(n)-taken:]
		if len(a)+len(b) == 0 {
			return nil
		}
		c.enter(phaseWrite)
	}
}

// slow tells whether a write that the sweeper ended may go on: the client took n bytes, which is enough, or the verdict
// came late. Over TLS a write that was cut short cannot go on.
func (c *conn) slow(n int64, err error) bool {
	if c.entry.tls != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	limits := &c.entry.limits
	waited := time.Duration(c.entry.clock.Load()-c.state.Load()>>8) * time.Millisecond
	if waited >= limits.write && (n == 0 || n < int64(limits.write.Seconds()*float64(limits.minRate))) {
		return false
	}
	return c.Conn.SetWriteDeadline(time.Time{}) == nil
}

// writeSlice is the most that is written under one write limit.
const writeSlice = 256 << 10

// watch lets the sweeper cancel x when the client leaves.
func (c *conn) watch(x *Exchange) {
	c.mu.Lock()
	c.waiting = x
	c.mu.Unlock()
}

// unwatch ends watch.
func (c *conn) unwatch() { c.watch(nil) }

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
	gone := false
	err := c.sock.Control(func(fd uintptr) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, perr := unix.Poll(fds[:], 0)
		gone = perr == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// past is a deadline that has been missed.
var past = time.Unix(1, 0)

// interrupt ends a read that waits in phase p. What is to be written can still be written.
func (c *conn) interrupt(p phase) {
	c.verdict.Store(int32(p))
	_ = c.Conn.SetReadDeadline(past)
}

// cutOff makes the end of the connection one that a client notices, whatever it would take for the end of an answer: a
// reset.
func (c *conn) cutOff() {
	_ = c.raw.SetLinger(0)
	c.linger = false
}

// shut closes the socket. If the client may still be sending, what it sends is thrown away first, so that it can read the
// answer: a close over unread bytes resets the connection (RFC 9112 section 9.6), and many clients read only when they have
// sent everything.
func (c *conn) shut() {
	if c.linger {
		c.enter(phaseClosing)
		if t, ok := c.Conn.(*tls.Conn); ok {
			_ = t.CloseWrite() // so that the client knows that nothing is missing: RFC 9112 section 9.8
		}
		_ = c.raw.CloseWrite()
		c.discard()
	}
	_ = c.Conn.Close()
}

const (
	lingerTime  = 2 * time.Second // without a byte, after which a client is taken to have read its answer
	lingerBytes = 64 << 20        // beyond the largest body
)

// discard reads on for as long as the client sends, within the bounds that hold for bodies.
func (c *conn) discard() {
	limits := &c.entry.limits
	rest := make([]byte, smallBuf) // many may linger at once
	begun := time.Now()
	for read := int64(0); read < 2*limits.maxBody+lingerBytes; {
		if err := c.Conn.SetDeadline(time.Now().Add(lingerTime)); err != nil {
			return
		}
		n, err := c.Conn.Read(rest)
		if err != nil {
			return
		}
		read += int64(n)
		taken := time.Since(begun)
		if c.entry.closing.Load() && taken > lingerTime || taken > limits.read && read < int64(taken.Seconds()*float64(limits.minRate)) {
			return
		}
	}
}

const (
	firstBuffer = 8 << 10 // holds the head and the body of most requests
	keptBuffer  = 64 << 10
)

// A buffer holds what was read from a client and not yet used: b[r:w]. What is in front of base is in use by the
// exchange that runs.
type buffer struct {
	b          []byte
	base, r, w int
}

func (b *buffer) bytes() []byte { return b.b[b.r:b.w] }
func (b *buffer) len() int      { return b.w - b.r }

// reset empties b, and lets go of its memory if that is much.
func (b *buffer) reset() {
	b.base, b.r, b.w = 0, 0, 0
	if cap(b.b) > keptBuffer {
		b.b = make([]byte, firstBuffer)
	}
}

// hold takes the next n bytes for the exchange that runs and returns them.
func (b *buffer) hold(n int) []byte {
	b.r += n
	b.base = b.r
	return b.b[b.r-n : b.r : b.r]
}

// free ends the use of what was held.
func (b *buffer) free() { b.base = 0 }

// room makes room for more bytes behind those that are there, which may move; what is held stays where it is.
func (b *buffer) room() {
	if b.r == b.w {
		b.r, b.w = b.base, b.base
	}
	if len(b.b)-b.w >= firstBuffer/8 {
		return
	}
	left := b.bytes()
	to := b.b
	if b.base > 0 || 2*len(left) > len(b.b) {
		to = make([]byte, max(firstBuffer, 2*len(left)))
	}
	b.w = copy(to, left)
	b.b, b.base, b.r = to, 0, 0
}

// skipEmptyLines skips what some clients send behind a body (RFC 9112 section 2.2).
func (b *buffer) skipEmptyLines() {
	for b.len() >= 2 && b.b[b.r] == '\r' && b.b[b.r+1] == '\n' {
		b.r += 2
	}
}
