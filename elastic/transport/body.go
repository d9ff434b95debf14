package transport

import (
	"errors"
	"io"
	"slices"
	"time"

	"weir/internal/wire"
)

const (
	// minBody is the first size of a buffer for a body of unknown length.
	minBody = 4 << 10
	// chunkRoom bounds the buffer for what stands around chunks.
	chunkRoom = 64 << 10
)

// errStreamClosed is what Stream.Read returns after Close.
var errStreamClosed = errors.New("answer's body is closed")

// errPrompt says that a body which is to be passed on promptly is not whole in time.
var errPrompt = errors.New("answer is passed on as it comes")

// A framing state says what comes next in a body.
type state uint8

const (
	inLength state = iota // left bytes, then the end
	toClose               // everything until the node closes
	inChunks              // as chunks say
)

// A body reads the body of an answer. It lives in the Response and holds the connection until it ends.
type body struct {
	c        *conn
	resp     *Response
	req      *Request // used until begin returns
	cancel   *wire.Cancel
	sending  bool    // sendLong still runs
	sent     sending // what became of the request otherwise
	prefix   []byte  // read before the body turned out to be too long for Response.Body
	state    state
	chunks   wire.Chunks
	left     int64
	deadline int64 // for all of it; 0 = none
	promptBy int64 // until when it must be whole, or is passed on as it comes; 0 = any time
	waited   int64 // nanoseconds spent waiting for bytes in this window of Options.MinRate, negative if that does not hold
	came     int64 // bytes that came in it
	reusable bool  // the connection may serve again when the body has ended
	err      error // what every further Read returns
}

// promptTime is how long a Prompt answer of unknown length may take from its head to its end before it becomes a Stream.
const promptTime = int64(100 * time.Millisecond)

// begin reads the body of the answer whose head is in b.resp, or makes it a Stream.
func (b *body) begin(framing wire.Framing) error {
	c, req, resp := b.c, b.req, b.resp
	h := &resp.Header
	if b.sending {
		c.mu.Lock()
		c.inBody = true
		c.mu.Unlock()
	}
	b.left, b.deadline = framing.Length, c.node.at(req.Deadline)
	b.reusable = resp.Minor == 1 && !closes(h)
	streamed := eventStream(h.Get("content-type"))
	if streamed {
		b.waited = -1 // events come when they happen
	}
	h.DropHopByHop()
	resp.Length = framing.Length
	switch {
	case string(req.Method) == "HEAD" || resp.Status == 204 || resp.Status == 304:
		if resp.Status == 204 {
			resp.Length = 0
		}
		b.left = 0
	case framing.Chunked:
		b.state = inChunks
	case framing.Length < 0:
		b.state, b.reusable = toClose, false
	}
	resp.memory = req.Memory
	limit := c.node.o.MaxBufferedBody
	if b.state == inLength && b.left == 0 {
		b.finish()
		return nil
	}
	if streamed || b.state == inLength && (b.left > limit || !resp.room(b.left)) {
		return b.stream(nil)
	}
	if b.state == inLength {
		return b.readLength()
	}
	if req.Prompt {
		b.promptBy = c.node.clock() + promptTime
	}
	return b.readUnknown(limit)
}

// stream makes the body, of which prefix has been read, a Stream. While a request is still being sent nobody reads its
// answer: the rest of the request goes out first.
func (b *body) stream(prefix []byte) error {
	if b.settle(false); b.sent.err != nil {
		return b.sent.err
	}
	b.prefix, b.promptBy, b.resp.Stream = prefix, 0, b
	return nil
}

// settle ends the sending of the request: at once, or when it is whole.
func (b *body) settle(stop bool) {
	switch {
	case !b.sending:
		return
	case stop:
		b.sent = b.c.stopSending(b.req)
	default:
		b.sent = <-b.c.sent
	}
	b.sending = false
}

// closes tells whether the node said that it closes the connection.
func closes(h *wire.Header) bool {
	for _, f := range h.Fields() {
		if wire.EqualFold(f.Name, "connection") && wire.HasToken(f.Value, "close") {
			return true
		}
	}
	return false
}

// eventStream tells whether a body is made of events, which must be passed on as they come (elastic/kibana#139534).
func eventStream(contentType []byte) bool {
	const kind = "text/event-stream"
	return len(contentType) >= len(kind) && wire.EqualFold(contentType[:len(kind)], kind)
}

// readLength reads a body of known length whole.
func (b *body) readLength() error {
	size := int(b.left)
	buf := slices.Grow(b.resp.buf[:0], size)[:size]
	b.resp.buf = buf
	for n := 0; n < size; {
		m, err := b.take(buf[n:])
		if err != nil {
			return err
		}
		n += m
	}
	b.resp.Body = buf
	b.finish()
	return nil
}

// readUnknown reads a body of unknown length whole, or makes it a stream when it passes limit.
func (b *body) readUnknown(limit int64) error {
	buf := b.resp.buf[:0]
	for {
		full, grown := len(buf) == cap(buf), max(minBody, 2*len(buf))
		if int64(len(buf)) > limit || full && !b.resp.room(int64(grown)) {
			return b.stream(buf)
		}
		if full {
			buf = slices.Grow(buf, grown-len(buf))
		}
		n, err := b.next(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		b.resp.buf = buf
		switch {
		case err == errPrompt:
			return b.stream(buf)
		case err == io.EOF:
			b.resp.Body, b.resp.Length = buf, int64(len(buf))
			b.finish()
			return nil
		case err != nil:
			return err
		}
	}
}

// Read reads from the body. The connection goes back to the pool when it returns io.EOF.
func (b *body) Read(p []byte) (int, error) {
	if len(b.prefix) > 0 {
		n := copy(p, b.prefix)
		b.prefix = b.prefix[n:]
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := b.next(p)
	switch {
	case err == io.EOF:
		b.err = err
		b.finish()
	case err != nil:
		b.err = b.c.fail(b.cancel, Body, b.sent.written, err)
		b.drop()
	}
	return n, b.err
}

// Close ends the use of the body. Before its end that closes the connection, and a node then stops working for it.
func (b *body) Close() error {
	b.prefix = nil
	if b.c != nil {
		b.err = errStreamClosed
		b.drop()
	}
	return nil
}

// finish gives the connection back after the whole body.
func (b *body) finish() {
	c, s := b.c, b.c.scratch
	b.settle(true)
	b.reusable = b.reusable && b.sent.err == nil
	alive := b.cancel == nil || b.cancel.Disarm()
	if b.reusable && s.r != s.w {
		c.node.distrust(c.lastUsed)
	}
	if !alive || !b.reusable || s.r != s.w || silences(b.resp) {
		b.drop()
		return
	}
	b.c, c.scratch, c.served = nil, nil, true
	c.node.giveScratch(s)
	c.node.release(c)
}

// drop closes the connection.
func (b *body) drop() {
	c := b.c
	c.close()
	c.node.freeSlot()
	c.node.giveScratch(c.scratch)
	b.c, c.scratch = nil, nil
}

// next reads a piece of the body into p, which is not empty. It returns io.EOF at the end, without bytes.
func (b *body) next(p []byte) (int, error) {
	s := b.c.scratch
	for {
		switch b.state {
		case inLength:
			if b.left == 0 {
				return 0, io.EOF
			}
			return b.take(p)
		case toClose:
			n, err := b.pull(p)
			if err == io.EOF && n > 0 {
				err = nil
			}
			return n, err
		case inChunks:
			n, err := b.chunks.Frame(s.in[s.r:s.w])
			s.r += n
			switch {
			case err != nil:
				return 0, err
			case b.chunks.Done():
				return 0, io.EOF
			case b.chunks.Left() > 0:
				n, err := b.pull(p[:min(int64(len(p)), b.chunks.Left())])
				b.chunks.Took(n)
				return n, unexpected(err)
			}
			s.room(chunkRoom)
			if n, err = b.fill(s.in[s.w:]); err != nil {
				return 0, unexpected(err)
			}
			s.w += n
		}
	}
}

// take reads at least one of the left bytes into p.
func (b *body) take(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.pull(p)
	b.left -= int64(n)
	return n, unexpected(err)
}

// pull reads what is there: from the buffer, or else from the connection, directly if p is not small.
func (b *body) pull(p []byte) (int, error) {
	s := b.c.scratch
	if s.r == s.w {
		s.r, s.w = 0, 0
		if len(p) >= len(s.in)/2 {
			return b.fill(p)
		}
		n, err := b.fill(s.in)
		s.w = n
		if err != nil {
			return 0, err
		}
	}
	n := copy(p, s.in[s.r:s.w])
	s.r += n
	return n, nil
}

// fill reads from the connection into p under the limits on the time between reads, on all of the body, and on how slow
// it may be. Only the time spent waiting counts for the last: a slow reader of the body is not the node's fault.
func (b *body) fill(p []byte) (int, error) {
	c, o := b.c, &b.c.node.o
	rated := o.MinRate > 0 && b.waited >= 0
	if o.IdleReadTimeout <= 0 && b.deadline == 0 && !rated && b.promptBy == 0 {
		c.limitRead(0)
		n, err := c.read(p)
		c.lastUsed = c.node.clock()
		return n, err
	}
	start := c.node.clock()
	if b.promptBy != 0 && start >= b.promptBy {
		return 0, errPrompt
	}
	limit := earlier(b.deadline, after(start, o.IdleReadTimeout))
	for {
		by := earlier(limit, b.promptBy)
		if rated {
			by = earlier(by, start+int64(o.MinRateWindow)-b.waited)
		}
		c.limitRead(by)
		n, err := c.read(p)
		now := c.node.clock()
		c.lastUsed = now
		if err == ErrTimeout && b.promptBy != 0 && now >= b.promptBy && (limit == 0 || now < limit) {
			return n, errPrompt
		}
		if !rated {
			return n, err
		}
		b.came += int64(n)
		if b.waited += now - start; b.waited >= int64(o.MinRateWindow) {
			if float64(b.came) < float64(o.MinRate)*time.Duration(b.waited).Seconds() {
				return n, ErrTooSlow
			}
			b.waited, b.came = 0, 0
			if err == ErrTimeout && (limit == 0 || now < limit) {
				start = now
				continue
			}
		}
		return n, err
	}
}

// unexpected turns an end of the connection into one in the middle of a body.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func clip(b []byte) []byte { return b[:min(len(b), 64)] }
