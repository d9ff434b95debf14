package transport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	scratchSize    = 8 << 10  // head and body of most answers in one read
	maxKeptScratch = 64 << 10 // larger buffers are not kept
)

// A scratch holds the buffers of one exchange.
type scratch struct {
	in   []byte // in[r:w] was read from the connection and not yet used
	r, w int
	out  []byte // head of the request, and behind it, while it is written, a short body
	head int    // length of the head, for the request may be written more than once
}

// A conn is one connection to the node. One exchange owns it at a time; only the sender of a long body works beside it.
type conn struct {
	node *Node
	raw  net.Conn         // the connection itself, which is what Close is called on
	nc   net.Conn         // what is read and written: raw, or TLS over it
	tls  *tls.Config      // nil if it is plain
	sock syscall.RawConn  // nil if raw is not a socket
	peek func(fd uintptr) // sets seen
	seen verdict

	born     int64 // when it was opened
	served   bool  // an exchange was completed
	now      int64 // when the exchange got the connection
	lastUsed int64 // when something was read last
	scratch  *scratch

	// State of the exchange.
	answered bool
	sent     chan sending
	vec      net.Buffers
	parts    [2][]byte

	// State of a direct exchange; see there.
	step     func(fd uintptr) bool // advance
	stage    stage
	request  []byte
	limit    int
	wrote    int
	writeErr error
	readErr  error

	mu         sync.Mutex // guards the fields below, which the sender shares
	readBy     int64      // time limit of reading; 0 = none
	writeBy    int64      // of writing
	armedRead  int64      // what the socket was last told
	armedWrite int64
	stopped    bool // nothing more is to be written
	streamRead bool // a byte of Request.Stream may be gone
	inBody     bool // the limits of reading are those of the answer's body
}

func newConn(n *Node, raw net.Conn, now int64) *conn {
	c := &conn{node: n, raw: raw, nc: raw, born: now}
	if s, ok := raw.(syscall.Conn); ok && sockets {
		if sock, err := s.SyscallConn(); err == nil {
			c.sock = sock
			c.step = c.advance
			var start [12]byte // as much as judge wants to see
			c.peek = func(fd uintptr) {
				n, err := peekSocket(fd, start[:])
				c.seen = c.judge(start[:n], err)
			}
		}
	}
	return c
}

// close closes the connection at once, without the farewell of TLS, which could block.
func (c *conn) close() { _ = c.raw.Close() }

// limitRead sets the time limit of reads from now on; 0 = none. The socket is told only of an earlier limit than it
// knows: one that strikes too soon is replaced when it does, which saves a timer operation in nearly every exchange.
func (c *conn) limitRead(by int64) {
	c.mu.Lock()
	c.setReadBy(by)
	c.mu.Unlock()
}

// setReadBy is limitRead for those who hold mu.
func (c *conn) setReadBy(by int64) {
	c.readBy = by
	if by != 0 && (c.armedRead == 0 || by < c.armedRead) {
		c.armRead(by)
	}
}

// hurry makes the time limit of reads an earlier one; 0 = as it is.
func (c *conn) hurry(by int64) {
	c.mu.Lock()
	c.setReadBy(earlier(by, c.readBy))
	c.mu.Unlock()
}

// hurryHead is hurry for the sender. It does nothing when the head of the answer has been read.
func (c *conn) hurryHead(by int64) {
	c.mu.Lock()
	if !c.inBody {
		c.setReadBy(earlier(by, c.readBy))
	}
	c.mu.Unlock()
}

func (c *conn) armRead(by int64) {
	c.armedRead = by
	_ = c.nc.SetReadDeadline(c.node.deadline(by))
}

// read reads into p. The error is ErrTimeout when the limit has passed.
func (c *conn) read(p []byte) (int, error) {
	for range 100 {
		n, err := c.nc.Read(p)
		switch {
		case n > 0:
			return n, nil
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		case !c.extendRead():
			return 0, ErrTimeout
		}
	}
	return 0, io.ErrNoProgress
}

// extendRead replaces a limit that struck too soon; false if it did not.
func (c *conn) extendRead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readBy != 0 && c.node.clock() >= c.readBy {
		return false
	}
	c.armRead(c.readBy)
	return true
}

// limitWrite is limitRead for writes. Over TLS the socket is always told: there a write that was cut short cannot go
// on. It returns false if nothing more is to be written.
func (c *conn) limitWrite(by int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.writeBy = by
	if c.tls != nil && by != c.armedWrite || by != 0 && (c.armedWrite == 0 || by < c.armedWrite) {
		c.armWrite(by)
	}
	return true
}

func (c *conn) armWrite(by int64) {
	c.armedWrite = by
	_ = c.nc.SetWriteDeadline(c.node.deadline(by))
}

func (c *conn) extendWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopped:
		return errStopped
	case c.tls != nil || c.writeBy != 0 && c.node.clock() >= c.writeBy:
		return ErrTimeout
	}
	c.armWrite(c.writeBy)
	return nil
}

// stopWriting makes a write that is under way, and all further ones, return. It tells whether Request.Stream has been read from.
func (c *conn) stopWriting() (streamRead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.armWrite(1)
	return c.streamRead
}

// beginRead allows to read from Request.Stream, unless nothing more is to be written: a stream that was not touched can still be
// sent elsewhere.
func (c *conn) beginRead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streamRead = c.streamRead || !c.stopped
	return !c.stopped
}

func (c *conn) writingStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// write writes a, then b, in one system call where the connection can. It returns how much may have reached the node.
func (c *conn) write(a, b []byte, by int64) (int64, error) {
	if !c.limitWrite(by) {
		return 0, errStopped
	}
	total := int64(len(a) + len(b))
	written := int64(0)
	for range 100 {
		var n int64
		var err error
		if len(b) == 0 {
			var m int
			m, err = c.nc.Write(a)
			n, a = int64(m), a[m:]
		} else {
			c.parts = [2][]byte{a, b}
			c.vec = c.parts[:]
			n, err = c.vec.WriteTo(c.nc)
			m := min(int(n), len(a))
			a, b = a[m:], b[int(n)-m:]
			c.parts, c.vec = [2][]byte{}, nil
		}
		written += n
		if err == nil {
			return written, nil
		}
		if c.tls != nil {
			written = total // a record may have left although Write does not count it
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return written, err
		}
		if err := c.extendWrite(); err != nil {
			return written, err
		}
	}
	return written, ErrTimeout
}

// deadline returns the wall-clock time of a moment, for a socket.
func (n *Node) deadline(by int64) time.Time {
	if by == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(by - n.clock()))
}
