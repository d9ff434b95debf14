package transport

import (
	"bytes"
	"fmt"
	"io"
	"strconv"

	"weir/internal/wire"
)

const (
	joinBody  = 16 << 10  // a body up to this is copied behind the head, so that TLS too sends one record
	maxInline = 64 << 10  // a body up to this fits the socket's buffers; while a longer one is sent the answer is awaited
	slice     = 256 << 10 // the most that is written under one WriteTimeout
	chunk     = 32 << 10  // of a stream, and the most that is read of it at once
)

// A sending is what became of a request.
type sending struct {
	written int64 // bytes that may have reached the node
	err     error // nil if it was wholly written
	source  bool  // err came from Request.Stream
}

// appendHead appends the head of req. What could end a line early, or the head, is refused: RFC 9112 section 11.1.
func appendHead(out []byte, req *Request, addr string) ([]byte, error) {
	if !wire.ValidToken(req.Method) {
		return out, fmt.Errorf("%w: method %q", ErrRequest, req.Method)
	}
	if len(req.Target) == 0 {
		return out, fmt.Errorf("%w: empty target", ErrRequest)
	}
	for _, c := range req.Target {
		if c <= ' ' || c == 0x7f {
			return out, fmt.Errorf("%w: target %q", ErrRequest, req.Target)
		}
	}
	out = append(out, req.Method...)
	out = append(out, ' ')
	out = append(out, req.Target...)
	out = append(out, " HTTP/1.1\r\nHost: "...)
	switch {
	case len(req.Host) == 0:
		out = append(out, addr...)
	case wire.ValidValue(req.Host):
		out = append(out, req.Host...)
	default:
		return out, fmt.Errorf("%w: host %q", ErrRequest, req.Host)
	}
	out = append(out, '\r', '\n')
	var err error
	if req.Header != nil {
		connection := req.Header.Has("connection")
		for _, f := range req.Header.Fields() {
			if reserved(f.Name) || replaced(f.Name, req.Extra) || connection && wire.ConnectionNames(req.Header, f.Name) {
				continue
			}
			if out, err = appendField(out, f); err != nil {
				return out, err
			}
		}
	}
	for _, f := range req.Extra {
		if reserved(f.Name) {
			continue
		}
		if out, err = appendField(out, f); err != nil {
			return out, err
		}
	}
	switch length := bodyLength(req); {
	case length < 0:
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	case length > 0 || req.HasBody || expectsBody(req.Method):
		out = append(out, "Content-Length: "...)
		out = strconv.AppendInt(out, length, 10)
		out = append(out, '\r', '\n')
	}
	return append(out, '\r', '\n'), nil
}

func appendField(out []byte, f wire.Field) ([]byte, error) {
	if !wire.ValidToken(f.Name) || !wire.ValidValue(f.Value) {
		return out, fmt.Errorf("%w: field %q", ErrRequest, f.Name)
	}
	out = append(out, f.Name...)
	out = append(out, ':', ' ')
	out = append(out, f.Value...)
	return append(out, '\r', '\n'), nil
}

// reserved tells whether a field is written by the transport itself or not at all.
func reserved(name []byte) bool {
	switch len(name) {
	case 4:
		if wire.EqualFold(name, "host") {
			return true
		}
	case 6:
		return wire.EqualFold(name, "expect") // the body follows the head at once
	case 14:
		return wire.EqualFold(name, "content-length")
	}
	return wire.HopByHop(name)
}

func replaced(name []byte, extra []wire.Field) bool {
	for i := range extra {
		if len(extra[i].Name) == len(name) && bytes.EqualFold(extra[i].Name, name) {
			return true
		}
	}
	return false
}

// bodyLength returns the length of req's body; -1 if it is sent chunked.
func bodyLength(req *Request) int64 {
	if req.Stream == nil {
		return int64(len(req.Body))
	}
	return req.StreamLength
}

// expectsBody tells whether the absence of a body is said too: servers answer 411 to these methods otherwise
// (elastic/elasticsearch-js#289).
func expectsBody(method []byte) bool {
	return string(method) == "POST" || string(method) == "PUT" || string(method) == "PATCH"
}

// sendShort writes a request whose body is at most maxInline.
func (c *conn) sendShort(req *Request, now int64) (s sending) {
	head, body := c.scratch.out[:c.scratch.head], req.Body
	if req.Stream != nil {
		body = nil
	}
	if len(body) <= joinBody {
		head = append(head, body...)
		c.scratch.out, body = head, nil
	}
	s.written, s.err = c.write(head, body, c.writeLimit(req, now))
	return s
}

// writeLimit returns until when a write that begins now must be done.
func (c *conn) writeLimit(req *Request, now int64) int64 {
	return earlier(c.node.at(req.Deadline), after(now, c.node.o.WriteTimeout))
}

// sendLong writes a request with a long body or a stream, while exchange awaits the answer, and tells the reading side
// until when to wait. It is joined by stopSending.
func (c *conn) sendLong(req *Request) {
	var s sending
	defer func() {
		if p := recover(); p != nil { // in Stream.Read; the kernel could not contain it on this goroutine
			s.err, s.source = fmt.Errorf("read the request's body: panic: %v", p), true
		}
		if s.source {
			c.close() // a request that ends early must not look whole, and the answer has nobody to go to
		} else {
			c.hurryHead(c.answerBy(req, s, c.node.clock()))
		}
		c.sent <- s
	}()
	if req.Stream == nil {
		c.sendBody(req, &s)
	} else {
		c.sendStream(req, &s)
	}
}

// stopSending ends sendLong, if it still runs, and returns what became of the request.
func (c *conn) stopSending(req *Request) sending {
	select {
	case s := <-c.sent:
		return s
	default:
	}
	if i, ok := req.Stream.(Interrupter); c.stopWriting() && ok {
		i.Interrupt()
	}
	return <-c.sent
}

func (c *conn) sendBody(req *Request, s *sending) {
	head, body := c.scratch.out[:c.scratch.head], req.Body
	for s.err == nil && (len(head) > 0 || len(body) > 0) {
		part := body[:min(len(body), slice)]
		var n int64
		n, s.err = c.write(head, part, c.writeLimit(req, c.node.clock()))
		s.written += n
		head, body = nil, body[len(part):]
	}
}

func (c *conn) sendStream(req *Request, s *sending) {
	s.written, s.err = c.write(c.scratch.out[:c.scratch.head], nil, c.writeLimit(req, c.node.clock()))
	if s.err != nil {
		return
	}
	buf := make([]byte, wire.ChunkRoom+chunk+wire.ChunkEnd)
	left := req.StreamLength
	for left != 0 {
		data := buf[wire.ChunkRoom : wire.ChunkRoom+chunk]
		if left > 0 {
			data = data[:min(int64(len(data)), left)]
		}
		if !c.beginRead() {
			s.err = errStopped
			return
		}
		n, err := req.Stream.Read(data)
		part := data[:n]
		switch {
		case left > 0:
			left -= int64(n)
		case n > 0:
			part = wire.FrameChunk(buf, n)
		}
		if n > 0 {
			var m int64
			m, s.err = c.write(part, nil, c.writeLimit(req, c.node.clock()))
			s.written += m
			if s.err != nil {
				return
			}
		}
		switch {
		case err == nil || left == 0:
			continue
		case err == io.EOF && left < 0:
			left = 0
			continue
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
		}
		if c.writingStopped() {
			s.err = errStopped // by an Interrupter, or at a moment when it no longer matters
		} else {
			s.err, s.source = fmt.Errorf("read the request's body: %w", err), true
		}
		return
	}
	if req.StreamLength < 0 {
		var m int64
		m, s.err = c.write([]byte("0\r\n\r\n"), nil, c.writeLimit(req, c.node.clock()))
		s.written += m
	}
}
