package flows

import (
	"errors"
	"io"
	"sync/atomic"
)

// ErrBodyTooLarge is returned by Body.Bytes when a body is longer than the caller's limit, and by a request body's
// reader when it passes the entry's limit.
var ErrBodyTooLarge = errors.New("body over the limit")

// ErrBudget is returned when buffering a body would pass the memory budget.
var ErrBudget = errors.New("memory budget for bodies is used up")

// A Budget bounds the bytes of all bodies held in memory at the same time. The zero value allows nothing.
type Budget struct {
	limit int64
	used  atomic.Int64
	full  atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Acquire takes n bytes, or returns false and takes nothing.
func (b *Budget) Acquire(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		b.full.Add(1)
		return false
	}
	return true
}

// Release gives n bytes back.
func (b *Budget) Release(n int64) { b.used.Add(-n) }

// Used returns the bytes taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limit returns the size of the budget in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Refusals returns how often Acquire said no.
func (b *Budget) Refusals() int64 { return b.full.Load() }

const (
	// smallBody is what an exchange may buffer without asking the budget: it is reused from exchange to exchange.
	smallBody = 16 << 10
	// firstBody is what a buffer begins with. It grows with what comes, not with what is announced.
	firstBody = 2 << 10
)

// A Body is the body of a request or of a response: bytes or a stream. It becomes bytes only when a filter asks.
type Body struct {
	data   []byte
	stream io.Reader
	closer io.Closer
	length int64 // of the stream, -1 if unknown

	overrun []byte // what was read of a body that proved too long

	scratch []byte // kept from exchange to exchange, at most smallBody
	budget  *Budget
	held    int64 // bytes taken from budget
}

// Len returns the length in bytes, or -1 for a stream of unknown length.
func (b *Body) Len() int64 {
	if b.stream != nil {
		return b.length
	}
	return int64(len(b.data))
}

// Buffered tells whether the body is in memory.
func (b *Body) Buffered() bool { return b.stream == nil }

// Bytes returns the whole body, reading it into memory first if it is a stream. It returns ErrBodyTooLarge if the body
// is longer than limit bytes, and ErrBudget if there is no room for it. It can still be read as a stream, or tried again, after
// ErrBudget, and after ErrBodyTooLarge if its length was known.
func (b *Body) Bytes(limit int64) ([]byte, error) {
	if b.stream == nil {
		if int64(len(b.data)) > limit {
			return nil, ErrBodyTooLarge
		}
		return b.data, nil
	}
	if b.length > limit {
		return nil, ErrBodyTooLarge
	}
	data, err := b.readAll(limit)
	if err != nil {
		return nil, err
	}
	b.closeStream()
	b.data = data
	return data, nil
}

// Prefetch reads a stream of unknown length into memory as far as limit bytes. It returns the whole body and true if
// that was all; otherwise the body stays a stream, which begins with what was read, and the result is nil.
func (b *Body) Prefetch(limit int64) ([]byte, bool, error) {
	if b.stream == nil {
		return b.data, true, nil
	}
	data, err := b.readAll(limit)
	switch {
	case err == nil:
		b.closeStream()
		b.data = data
		return data, true, nil
	case err == ErrBodyTooLarge && b.overrun != nil:
		b.stream = &prefetched{rest: b.stream, data: b.overrun}
		b.overrun = nil
		return nil, false, nil
	}
	return nil, false, err
}

// prefetched is a stream of which the beginning has been read.
type prefetched struct {
	data    []byte
	rest    io.Reader
	touched bool
}

func (p *prefetched) Read(b []byte) (int, error) {
	p.touched = true
	if len(p.data) > 0 {
		n := copy(b, p.data)
		p.data = p.data[n:]
		return n, nil
	}
	return p.rest.Read(b)
}

// Untouched tells whether the stream can still be sent to another node.
func (p *prefetched) Untouched() bool { return !p.touched }

// Interrupt makes a waiting Read fail, if the stream below can.
func (p *prefetched) Interrupt() {
	if i, ok := p.rest.(interface{ Interrupt() }); ok {
		i.Interrupt()
	}
}

func (b *Body) readAll(limit int64) ([]byte, error) {
	buf := b.scratch[:0]
	if cap(buf) == 0 {
		buf = make([]byte, 0, firstBody)
	}
	for {
		if len(buf) == cap(buf) {
			// Memory follows what has come: an announcement alone takes none from others.
			grown := 2 * cap(buf)
			if b.length >= int64(len(buf)) {
				grown = min(grown, int(b.length)+1)
			}
			if !b.hold(int64(grown)) {
				// What has come is not lost: the body begins with it.
				b.stream, b.scratch = &prefetched{rest: b.stream, data: buf}, nil
				return nil, ErrBudget
			}
			buf = append(make([]byte, 0, grown), buf...)
		}
		n, err := b.stream.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > limit {
			b.overrun = buf
			return nil, ErrBodyTooLarge
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if cap(buf) <= smallBody {
		b.scratch = buf
	}
	return buf, nil
}

// hold takes from the budget what a buffer of n bytes takes. Small buffers are free: each exchange keeps one.
func (b *Body) hold(n int64) bool {
	if n <= smallBody || n <= b.held || b.budget == nil {
		return true
	}
	if !b.budget.Acquire(n - b.held) {
		return false
	}
	b.held = n
	return true
}

// Reader returns the body as a stream. A buffered body may be read again and again, a stream once.
func (b *Body) Reader() io.Reader {
	if b.stream != nil {
		return b.stream
	}
	return &sliceReader{b.data}
}

// Replace makes data the body. The body keeps data; the caller must not change it while the exchange runs.
func (b *Body) Replace(data []byte) {
	b.closeStream()
	b.data = data
}

// ReplaceStream makes r the body. length is -1 if unknown. If r is an io.Closer it is closed when the exchange ends or
// the body is replaced.
func (b *Body) ReplaceStream(r io.Reader, length int64) {
	b.closeStream()
	b.data, b.stream, b.length = nil, r, length
	b.closer, _ = r.(io.Closer)
}

// Announce makes the body empty but announces a length: the answer to HEAD says how long that to GET would be. -1 says
// nothing.
func (b *Body) Announce(length int64) {
	b.closeStream()
	b.data, b.length = nil, length
}

func (b *Body) closeStream() {
	if b.closer != nil {
		_ = b.closer.Close()
	}
	b.stream, b.closer, b.length = nil, nil, 0
}

// reset closes the stream, gives the memory back and empties b.
func (b *Body) reset() {
	b.closeStream()
	b.data, b.overrun = nil, nil
	if b.held > 0 {
		b.budget.Release(b.held)
		b.held = 0
	}
}

type sliceReader struct{ rest []byte }

func (r *sliceReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
