package flows

import (
	"io"

	"github.com/valyala/fasthttp"
)

// A requestBody is a request's body as it comes. It enforces the entry's limit on bodies that do not announce their
// length, and knows whether all has been read.
type requestBody struct {
	x      *Exchange
	src    io.Reader // nil until a client that waits for 100 Continue has been told to go on
	length int64     // announced, -1 if the body is chunked
	limit  int64
	left   int64
	done   bool
}

// A bodyError is a request's body that does not come as announced: the client's fault, never the node's.
type bodyError struct{ cause error }

func (e *bodyError) Error() string { return "request body: " + e.cause.Error() }
func (e *bodyError) Unwrap() error { return e.cause }

func (b *requestBody) Read(p []byte) (int, error) {
	if b.src == nil {
		if err := b.x.openBody(b); err != nil {
			return 0, &bodyError{err}
		}
	}
	n, err := b.src.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.x.conn.linger = true
		return 0, ErrBodyTooLarge
	}
	if err == io.EOF && b.length >= 0 && b.limit-b.left < b.length {
		// The server library takes the end of the connection for the end of the body.
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		b.x.conn.linger = true
		return n, &bodyError{err}
	}
	b.done = b.done || err == io.EOF
	return n, err
}

// Untouched tells whether nothing has been read yet: the request can still be sent to another node.
func (b *requestBody) Untouched() bool { return b.left == b.limit }

// Interrupt makes a waiting Read fail. The connection cannot go on after the answer, since the rest of the body may
// still come.
func (b *requestBody) Interrupt() {
	b.x.conn.interrupted.Store(true)
	if x := b.x; x.expect != nil {
		x.expect.interruptOnce.Do(func() { close(x.expect.interrupted) })
		if !x.expect.opened.Load() {
			return // the server is about to read the body for itself and must not be disturbed
		}
	}
	b.x.conn.interrupt(phaseBody)
}

// bodyReader returns the reader of the request's body.
func (x *Exchange) bodyReader(length int64) io.Reader {
	b := &x.body
	limit := x.conn.entry.limits.maxBody
	*b = requestBody{x: x, length: length, limit: limit, left: limit}
	if x.expect == nil {
		b.src = bodyStream(x.conn.request)
	}
	return b
}

// bodyRead tells whether the request's body has been read to its end.
func (x *Exchange) bodyRead() bool { return x.body.done }

func bodyStream(fc *fasthttp.RequestCtx) io.Reader {
	if s := fc.RequestBodyStream(); s != nil {
		return s
	}
	return &sliceReader{fc.Request.Body()}
}

// A responseStream is a response's body on its way from the node to the client.
type responseStream struct{ x *Exchange }

func (x *Exchange) responseStream() io.ReadCloser { return &responseStream{x} }

func (s *responseStream) Read(p []byte) (int, error) {
	n, err := s.x.Response.Body.stream.Read(p)
	if err != nil && err != io.EOF && s.x.Trace.Outcome != ClientGone {
		s.x.Trace.Outcome = Failed
	}
	return n, err
}

// Close ends the stream; the exchange may still be asked what it was.
func (s *responseStream) Close() error {
	s.x.Response.Body.closeStream()
	return nil
}
