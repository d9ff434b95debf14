package flows

import (
	"errors"
	"fmt"
	"io"
	"os"

	"weir/internal/wire"
)

// A requestBody is a request's body as it comes: the entry's limit is enforced on it, and it knows whether all has been
// read. One goroutine at a time reads it.
type requestBody struct {
	x       *Exchange
	chunked bool
	chunks  wire.Chunks
	left    int64 // of an announced length
	framing int64 // bytes around chunks
	waited  int64 // milliseconds that were spent waiting for the client since arrived was counted from
	arrived int64 // bytes that came in that time
	expect  bool  // the client waits for 100 Continue
	begun   bool
	done    bool
	err     error // what every further Read returns
}

// A bodyError is a request's body that does not come as announced: the client's fault, never the node's.
type bodyError struct{ cause error }

func (e *bodyError) Error() string { return "request body: " + e.cause.Error() }
func (e *bodyError) Unwrap() error { return e.cause }

var continueLine = []byte("HTTP/1.1 100 Continue\r\n\r\n")

func (b *requestBody) Read(p []byte) (int, error) {
	switch {
	case b.done:
		return 0, io.EOF
	case b.err != nil:
		return 0, b.err
	case len(p) == 0:
		return 0, nil
	}
	b.begun = true
	if err := b.invite(); err != nil {
		return 0, b.fail(err)
	}
	n, err := b.next(p)
	b.x.RequestBytes += int64(n)
	switch {
	case err != nil:
		return n, b.fail(err)
	case b.x.RequestBytes > b.x.conn.entry.limits.maxBody || b.framing > 8*b.x.conn.entry.limits.maxBody:
		// A body may be sent in chunks of one byte, but not for ever.
		b.x.conn.linger = true
		b.err = ErrBodyTooLarge
		return 0, b.err
	case b.done && n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// invite tells a client that waits for it to send the body (RFC 9110 section 10.1.1). Everything that a flow decides
// without the body, be it route, identity, limit or cache, has been decided by now.
func (b *requestBody) invite() error {
	if !b.expect {
		return nil
	}
	b.expect = false
	c := b.x.conn
	if b.x.in.len() > 0 {
		return nil // it did not wait
	}
	c.enter(phaseWrite)
	_, err := c.Conn.Write(continueLine)
	c.enter(phaseHandler)
	return err
}

// fail ends the body. What the client sends behind it cannot be told from the rest of it.
func (b *requestBody) fail(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	b.x.conn.linger = true
	b.err = &bodyError{err}
	return b.err
}

// next reads a piece of the body; no bytes and no error at its end.
func (b *requestBody) next(p []byte) (int, error) {
	if !b.chunked {
		n, err := b.pull(p, b.left)
		b.left -= int64(n)
		b.done = b.left == 0
		return n, err
	}
	in := &b.x.in
	for {
		n, err := b.chunks.Frame(in.bytes())
		in.r += n
		b.framing += int64(n)
		switch {
		case err != nil:
			return 0, err
		case b.chunks.Done():
			b.done = true
			return 0, nil
		case b.chunks.Left() > 0:
			n, err := b.pull(p, b.chunks.Left())
			b.chunks.Took(n)
			return n, err
		}
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
}

// pull reads at most left bytes of data: from the buffer, or else from the connection, directly if that is much.
func (b *requestBody) pull(p []byte, left int64) (int, error) {
	in := &b.x.in
	if in.len() == 0 {
		p = p[:min(int64(len(p)), left)]
		if len(p) >= firstBuffer/2 {
			return b.receive(p)
		}
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, in.b[in.r:min(int64(in.w), int64(in.r)+left)])
	in.r += n
	return n, nil
}

// fill reads more into the buffer.
func (b *requestBody) fill() error {
	in := &b.x.in
	in.room()
	n, err := b.receive(in.b[in.w:])
	in.w += n
	return err
}

// receive reads from the connection.
func (b *requestBody) receive(p []byte) (int, error) {
	c := b.x.conn
	since := c.entry.clock.Load()
	c.enter(phaseBody)
	n, err := c.read(p)
	c.enter(phaseHandler)
	if n > 0 {
		err = b.pace(n, c.entry.clock.Load()-since)
	}
	return n, err
}

// pace judges a client that always sends something in time, but never much (RFC 9110 section 15.5.9). The time that the
// node takes to swallow a body is not counted.
func (b *requestBody) pace(n int, ms int64) error {
	limits := &b.x.conn.entry.limits
	b.arrived += int64(n)
	if b.waited += ms; b.waited <= limits.read.Milliseconds() {
		return nil
	}
	if b.arrived < limits.minRate*b.waited/1000 {
		return errTooSlow
	}
	b.waited, b.arrived = 0, 0
	return nil
}

// errTooSlow is a client that sends a body below the minimum rate.
var errTooSlow = fmt.Errorf("%w: below min_rate", os.ErrDeadlineExceeded)

// Untouched tells whether nothing has been read yet: the request can still be sent to another node.
func (b *requestBody) Untouched() bool { return !b.begun }

// Interrupt makes a waiting Read, and every further one, fail. The connection cannot go on after the answer, since the
// rest of the body may still come.
func (b *requestBody) Interrupt() {
	b.x.conn.interrupted.Store(true)
	b.x.conn.interrupt(phaseBody)
}

// drainable is how much of a request body that no filter wanted is read to keep the connection.
const drainable = 256 << 10

// skippable tells whether what is left of the body is so little that it is read and thrown away to keep the connection.
func (b *requestBody) skippable() bool {
	return b.done || b.x == nil || !b.chunked && !b.expect && b.err == nil && b.left <= drainable && !b.x.conn.interrupted.Load()
}

// skip reads what is left of the body and throws it away. It returns false if that does not come.
func (b *requestBody) skip() bool {
	if b.done || b.x == nil {
		return true
	}
	in := &b.x.in
	in.free() // nothing of the exchange is needed any more
	for !b.done {
		if in.len() == 0 {
			if err := b.fill(); err != nil {
				return false
			}
		}
		n := min(int64(in.len()), b.left)
		in.r += int(n)
		b.left -= n
		b.x.RequestBytes += n
		b.done = b.left == 0
	}
	return true
}

func (b *requestBody) reset() {
	b.chunks.Reset()
	*b = requestBody{chunks: b.chunks}
}

// errCut ends an answer whose stream brought another number of bytes than it announced.
var errCut = errors.New("the answer ended early")
