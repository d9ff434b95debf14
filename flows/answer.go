package flows

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"weir/internal/wire"
)

const (
	joinBody  = 16 << 10 // a body up to this is copied behind the head, so that TLS too sends one record
	streamBuf = 64 << 10 // of a stream, read and written at once
	smallBuf  = 4 << 10  // when the budget is used up, and for what is thrown away
)

// answer writes the response. The request's body has been read, or thrown away, when it returns, if the connection is to
// go on. An error means that the client did not get the whole answer; the connection must be closed then.
func (e *Entry) answer(x *Exchange) error {
	x.served = time.Since(x.Start)
	c, body := x.conn, &x.Response.Body
	headOnly := string(x.Request.Method) == "HEAD"
	empty := headOnly || x.Response.Status == http.StatusNoContent || x.Response.Status == http.StatusNotModified
	toClose := !body.Buffered() && body.length < 0 && x.Request.HTTP10 && !empty
	if c.interrupted.Load() || !x.body.skippable() {
		c.linger = true
	}
	c.last = c.last || c.linger || toClose || e.closing.Load()

	x.appendHead(empty, headOnly)
	var err error
	switch {
	case empty:
		err = c.write(x.out, nil)
	case !body.Buffered():
		if err = c.write(x.out, nil); err == nil {
			err = e.stream(x, toClose)
		}
	case len(body.data) <= joinBody:
		x.out = append(x.out, body.data...)
		err = c.write(x.out, nil)
	default:
		err = c.write(x.out, body.data)
	}
	if err != nil {
		if x.Trace.Outcome != Failed {
			x.Trace.Outcome = ClientGone
		}
		c.cutOff()
		return err
	}
	if !c.last && !x.body.skip() {
		c.last = true
	}
	c.linger = c.last // the client may have sent more, over which a close would take the answer back
	return nil
}

// appendHead makes x.out the head of the answer. The fields stand as they are; only framing is the connection's own.
func (x *Exchange) appendHead(empty, headOnly bool) {
	r := &x.Response
	out := appendStatus(x.out[:0], r.Status, r.Reason)
	switch {
	case x.conn.last:
		out = append(out, "Connection: close\r\n"...)
	case x.keepAlive10:
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	length := r.Body.Len()
	switch {
	case r.Body.Buffered() && length == 0 && r.Body.length != 0 && empty:
		length = r.Body.length // announced: what GET would get, or what the client has
	case r.Status == http.StatusNoContent, r.Status == http.StatusNotModified, empty && length == 0 && !headOnly:
		length = -1
	}
	told := length < 0
	for _, f := range r.Header.Fields() {
		if len(f.Name) == len("content-length") && wire.EqualFold(f.Name, "content-length") {
			if told {
				continue
			}
			told = true
			out = appendLength(append(out, f.Name...), length)
			continue
		}
		out = append(append(append(append(out, f.Name...), ": "...), f.Value...), "\r\n"...)
	}
	switch {
	case !told:
		out = appendLength(append(out, "Content-Length"...), length)
	case !empty && !r.Body.Buffered() && length < 0 && !x.Request.HTTP10:
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	x.out = append(out, "\r\n"...)
}

func appendLength(out []byte, n int64) []byte {
	return append(strconv.AppendInt(append(out, ": "...), n, 10), "\r\n"...)
}

func appendStatus(out []byte, status int, reason []byte) []byte {
	out = append(out, "HTTP/1.1 "...)
	out = append(strconv.AppendInt(out, int64(status), 10), ' ')
	if reason != nil && wire.ValidValue(reason) {
		out = append(out, reason...)
	} else {
		out = append(out, http.StatusText(status)...)
	}
	return append(out, "\r\n"...)
}

// A streamBuffer has room for what stands around a chunk.
type streamBuffer struct{ b []byte }

func newStreamBuffer(size int) *streamBuffer {
	return &streamBuffer{make([]byte, wire.ChunkRoom+size+wire.ChunkEnd)}
}

var streamBuffers = sync.Pool{New: func() any { return newStreamBuffer(streamBuf) }}

// stream writes a body as it comes from the node. A client whose answer breaks off must notice: its connection is reset
// then, whatever it would take for the end of the body.
func (e *Entry) stream(x *Exchange, toClose bool) error {
	var buf []byte
	if e.budget.Acquire(streamBuf) {
		defer e.budget.Release(streamBuf)
		pooled, _ := streamBuffers.Get().(*streamBuffer)
		defer streamBuffers.Put(pooled)
		buf = pooled.b
	} else {
		buf = newStreamBuffer(smallBuf).b // slower, but an answer that has begun cannot be refused
	}
	c, body := x.conn, &x.Response.Body
	left := body.length
	for {
		c.enter(phaseHandler) // the next part may be long in coming, and that is not the client's fault
		data := buf[wire.ChunkRoom : len(buf)-wire.ChunkEnd]
		if left >= 0 {
			data = data[:min(int64(len(data)), left)]
		}
		var n int
		var err error
		if left != 0 {
			n, err = body.stream.Read(data)
		} else {
			err = io.EOF
		}
		if n > 0 {
			part := data[:n]
			if left >= 0 {
				left -= int64(n)
			} else if !toClose {
				part = wire.FrameChunk(buf, n)
			}
			if werr := c.write(part, nil); werr != nil {
				return werr
			}
		}
		switch {
		case err == nil:
			continue
		case err == io.EOF && left <= 0:
			if left < 0 && !toClose {
				return c.write(lastChunk, nil)
			}
			return nil
		case err == io.EOF:
			err = fmt.Errorf("%w: %d bytes are missing", errCut, left)
		}
		if !x.cancel.Fired() {
			x.Trace.Outcome = Failed
		}
		return err
	}
}

var lastChunk = []byte("0\r\n\r\n")
