package transport

import (
	"io"
	"time"

	"weir/internal/wire"
)

// maxKeptBody is the size above which a Response does not keep a body buffer for its next use.
const maxKeptBody = 1 << 20

// A Response is a node's answer. The zero value is ready; everything in it is valid until Reset, the next Do with it,
// or TakeBody.
type Response struct {
	Status int
	Reason []byte
	Minor  byte        // 0 for HTTP/1.0, 1 for HTTP/1.1
	Header wire.Header // end-to-end fields as they came; Content-Length among them, if the node sent it

	// Length is the length of the body, and for an answer to HEAD or a 304 the one that it announces; -1 if unknown.
	Length int64
	Body   []byte // the whole body, if Stream is nil
	// Stream is set for a body above Options.MaxBufferedBody and for text/event-stream. It must be read to io.EOF or
	// closed, by one goroutine; Close before io.EOF closes the connection. A body that the node cut off ends with an
	// *Error around io.ErrUnexpectedEOF.
	Stream io.ReadCloser

	Reused          bool          // the connection had served before
	WarningsDropped int           // Warning fields left out because the head was over Options.MaxHeadBytes
	Queued          time.Duration // waiting for a connection
	Connected       time.Duration // dialling and TLS handshake
	FirstByte       time.Duration // from the first write until the first byte of the answer

	memory Memory
	held   int64 // bytes taken from memory

	buf  []byte // backs Body
	head []byte // backs Reason and Header
	body body   // is Stream, and reads Body
}

// freeBody is what a body may take without asking Request.Memory.
const freeBody = 64 << 10

// room tells whether a body may take n bytes in all, and takes them.
func (r *Response) room(n int64) bool {
	if n <= freeBody || n <= r.held || r.memory == nil {
		return true
	}
	if !r.memory.Acquire(n - r.held) {
		return false
	}
	r.held = n
	return true
}

// TakeBody hands Body and its memory over to the caller.
func (r *Response) TakeBody() []byte {
	b := r.Body
	r.Body, r.buf = nil, nil
	return b
}

// GiveBody lets r use the memory of buf for bodies to come. The caller must not use it any more.
func (r *Response) GiveBody(buf []byte) {
	if cap(buf) <= maxKeptBody && cap(buf) > cap(r.buf) {
		r.buf = buf[:0]
	}
}

// Reset makes r ready for another answer and keeps its memory. A Stream that is still open is closed.
func (r *Response) Reset() {
	if r.Stream != nil {
		_ = r.Stream.Close()
	}
	if r.held > 0 {
		r.memory.Release(r.held)
	}
	*r = Response{Header: r.Header, buf: kept(r.buf), head: kept(r.head)}
	r.Header.Reset()
}

// kept returns buf empty, or nil if it is too large to be kept.
func kept(buf []byte) []byte {
	if cap(buf) > maxKeptBody {
		return nil
	}
	return buf[:0]
}
