package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"weir/internal/wire"
)

const (
	// answerGrace is how long an exchange whose request could not be written waits for what the node has to say about
	// it: a node that refuses a body answers 413 and closes while the rest is on its way (elastic/elasticsearch#2902).
	answerGrace = int64(time.Second)
	// maxInterim bounds the interim answers (100, 103) that are skipped.
	maxInterim = 16
)

// errStopped ends a write after the exchange has its answer, or its failure.
var errStopped = errors.New("the rest of the request was not written")

// exchange writes req, whose head is in s.out, and reads the answer into resp. On success c and s belong to the body of
// the answer, or are given back already. After a failure the caller still has both, and nothing uses c any more. With
// errStale nothing was done: a pooled connection was found closed, or with something to read.
func (c *conn) exchange(req *Request, resp *Response, s *scratch) *Error {
	c.scratch, c.answered, c.streamRead, c.stopped = s, false, false, false
	s.r, s.w = 0, 0
	resp.Reused = c.served
	if req.Cancel != nil && !req.Cancel.Arm(c.raw) {
		return c.fail(req.Cancel, Write, 0, ErrCancelled)
	}
	var sent sending
	var framing wire.Framing
	var err error
	running := false // sendLong is
	long := req.Stream != nil && req.StreamLength != 0 || len(req.Body) > maxInline
	switch {
	case !long && c.tls == nil && c.sock != nil && len(req.Body) <= joinBody:
		c.limitRead(c.answerBy(req, sent, c.now))
		if sent, err = c.sendDirect(req, resp); err == errStale {
			return c.stale(req.Cancel)
		}
		if err == nil {
			framing, err = c.readHead(resp)
		}
	case c.served && c.look() != silent:
		return c.stale(req.Cancel)
	case long:
		c.limitRead(c.node.at(req.Deadline))
		if c.sent == nil {
			c.sent = make(chan sending, 1)
		}
		c.inBody = false
		go c.sendLong(req)
		framing, err = c.readHead(resp)
		// A node that refuses reads no further (elastic/elasticsearch#2902). One that answers while it still reads, as
		// OpenSearch does to POST _bulk/stream, gets the rest of the request.
		if running = err == nil && resp.Status < 400; !running {
			sent = c.stopSending(req)
		}
	default:
		sent = c.sendShort(req, c.now)
		c.limitRead(c.answerBy(req, sent, c.now))
		framing, err = c.readHead(resp)
	}
	switch {
	case err != nil && sent.source:
		return c.sourceFailed(req.Cancel, sent)
	case err != nil && sent.err != nil && !c.answered:
		if sent.err != errStopped {
			err = sent.err
		}
		return c.fail(req.Cancel, Write, sent.written, err)
	case err != nil:
		return c.fail(req.Cancel, Head, sent.written, err)
	}
	b := &resp.body
	*b = body{c: c, resp: resp, req: req, cancel: req.Cancel, sent: sent, sending: running}
	if err := b.begin(framing); err != nil {
		if b.settle(true); b.sent.source {
			return c.sourceFailed(req.Cancel, b.sent)
		}
		return c.fail(req.Cancel, Body, b.sent.written, err)
	}
	return nil
}

// sourceFailed makes the Error of an exchange whose Request.Stream failed.
func (c *conn) sourceFailed(cancel *wire.Cancel, sent sending) *Error {
	e := c.fail(cancel, Write, sent.written, sent.err)
	e.Source = !e.Cancelled
	return e
}

// sendDirect writes a request whose body is at most joinBody to a plain socket, and reads the first bytes of the answer
// if the request went out at one go. The error is that of direct.
func (c *conn) sendDirect(req *Request, resp *Response) (sending, error) {
	request := c.scratch.out[:c.scratch.head]
	if req.Stream == nil && len(req.Body) > 0 {
		request = append(request, req.Body...)
		c.scratch.out = request
	}
	sent, err := c.direct(request, c.node.o.MaxHeadBytes)
	if c.scratch.w > 0 {
		c.begun(resp)
	}
	if err == nil && sent.err == nil && sent.written < int64(len(request)) {
		// The socket's buffer is full, which a request so short hardly ever meets.
		var n int64
		n, sent.err = c.write(request[sent.written:], nil, c.writeLimit(req, c.now))
		sent.written += n
		c.limitRead(c.answerBy(req, sent, c.node.clock()))
	} else if err == nil && sent.err != nil {
		c.limitRead(c.answerBy(req, sent, c.now))
	}
	return sent, err
}

// stale gives up a pooled connection before it was used.
func (c *conn) stale(cancel *wire.Cancel) *Error {
	if c.seen == unasked {
		c.node.distrust(c.now)
	}
	return c.fail(cancel, Write, 0, errStale)
}

// begun notes that the answer has begun to come.
func (c *conn) begun(resp *Response) {
	c.answered = true
	c.lastUsed = c.node.clock()
	resp.FirstByte = time.Duration(c.lastUsed - c.now)
}

// fail makes the Error of an exchange that had a connection.
func (c *conn) fail(cancel *wire.Cancel, p Phase, written int64, err error) *Error {
	e := &Error{Addr: c.node.o.Addr, Phase: p, Written: written, Answered: c.answered, Err: err}
	e.settle(cancel)
	return e
}

// answerBy returns until when the head of the answer must be read, once the request was sent or could not be.
func (c *conn) answerBy(req *Request, sent sending, now int64) int64 {
	if sent.err != nil {
		return earlier(c.node.at(req.Deadline), c.node.clock()+answerGrace)
	}
	limit := c.node.o.HeadTimeout
	if req.HeadTimeout != 0 {
		limit = req.HeadTimeout
	}
	return earlier(c.node.at(req.Deadline), after(now, limit))
}

// readHead reads the head of the final answer into resp and returns how its body is framed.
func (c *conn) readHead(resp *Response) (wire.Framing, error) {
	for range maxInterim {
		if err := c.readBlock(resp); err != nil {
			return wire.Framing{}, err
		}
		line, fields, _ := bytes.Cut(resp.head, []byte("\r\n"))
		status, err := wire.ParseStatusLine(line)
		if err != nil {
			return wire.Framing{}, err
		}
		if err := wire.ParseFields(&resp.Header, fields); err != nil {
			return wire.Framing{}, err
		}
		switch {
		case status.Status == 101:
			return wire.Framing{}, ErrUpgrade
		case status.Status < 200:
			resp.Header.Reset()
			continue
		}
		resp.Status, resp.Reason, resp.Minor = status.Status, status.Reason, status.Minor
		framing, err := wire.FramingOf(&resp.Header)
		if err == nil && framing.Chunked && status.Minor == 0 {
			err = fmt.Errorf("%w: chunked in HTTP/1.0", wire.ErrCoding) // RFC 9112 section 6.1
		}
		return framing, err
	}
	return wire.Framing{}, ErrInterim
}

// readBlock reads a block of lines that ends with an empty one, the head of an answer, into resp.head. A block above
// the limit loses Warning lines first: a node sends one for each deprecated thing that a search meets, and proxies that
// fail on them leave Kibana broken (elastic/elasticsearch#28301).
func (c *conn) readBlock(resp *Response) error {
	s, limit, dropped := c.scratch, c.node.o.MaxHeadBytes, 0
	line, seen := 0, 0 // where the current line begins and how far it was looked at, from s.r
	hurried := false   // a block that has begun has little time
	for {
		for {
			i := bytes.IndexByte(s.in[s.r+seen:s.w], '\n')
			if i < 0 {
				if seen = s.w - s.r; line == 0 && !wire.BeginsStatusLine(s.in[s.r:s.w]) {
					return notStatus(s.in[s.r:s.w]) // it may never end a line
				}
				break
			}
			end := seen + i + 1
			if line == 0 && !wire.BeginsStatusLine(s.in[s.r:s.r+end]) {
				return notStatus(s.in[s.r : s.r+end]) // what follows may be long in coming
			}
			if end-line < 2 || s.in[s.r+end-2] != '\r' {
				return wire.ErrBareLineFeed
			}
			if end-line == 2 {
				resp.head = append(resp.head[:0], s.in[s.r:s.r+end]...)
				s.r += end
				return nil
			}
			line, seen = end, end
		}
		if s.w-s.r >= limit {
			lost := c.dropWarnings(resp, line)
			dropped += lost
			line, seen = line-lost, s.w-s.r
			if s.w-s.r >= limit || dropped > 16*limit {
				return ErrHeadTooLong
			}
		}
		if s.w > s.r && !hurried {
			c.hurry(after(c.node.clock(), c.node.o.IdleReadTimeout))
			hurried = true
		}
		s.room(limit)
		n, err := c.read(s.in[s.w:min(len(s.in), s.r+limit)])
		if err != nil {
			if err == io.EOF && c.answered {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		s.w += n
		if !c.answered {
			c.begun(resp)
		}
	}
}

func notStatus(b []byte) error { return fmt.Errorf("%w %q", wire.ErrStatusLine, clip(b)) }

// dropWarnings takes the whole Warning lines out of the first n bytes that were read and returns how many bytes went.
func (c *conn) dropWarnings(resp *Response, n int) int {
	s := c.scratch
	block := s.in[s.r : s.r+n]
	kept := block[:0]
	for len(block) > 0 {
		end := bytes.IndexByte(block, '\n') + 1
		if name, _, _ := bytes.Cut(block[:end], []byte{':'}); wire.EqualFold(name, "warning") {
			resp.WarningsDropped++
			c.node.warningsDropped.Add(1)
		} else {
			kept = append(kept, block[:end]...)
		}
		block = block[end:]
	}
	lost := n - len(kept)
	copy(s.in[s.r+len(kept):], s.in[s.r+n:s.w])
	s.w -= lost
	return lost
}

// room makes place for more bytes behind those that were read, in a buffer of at most limit bytes if it must grow.
func (s *scratch) room(limit int) {
	if s.w < len(s.in) {
		return
	}
	if s.r > 0 {
		s.w = copy(s.in, s.in[s.r:s.w])
		s.r = 0
		return
	}
	in := make([]byte, min(2*len(s.in), max(limit, len(s.in)+1)))
	s.w = copy(in, s.in)
	s.in = in
}

// silences tells whether an answer may be the last that the connection gives. After refusing a head as too long, or two
// values for a field that may have one, Elasticsearch 7.17 and OpenSearch 2 keep the connection open and never answer
// on it again.
func silences(resp *Response) bool {
	return resp.Status == 400 && (resp.Stream != nil || resp.Header.Has("content-encoding") ||
		bytes.Contains(resp.Body, []byte("too_long_http_header_exception")) ||
		bytes.Contains(resp.Body, []byte("multiple values for single-valued header")))
}
