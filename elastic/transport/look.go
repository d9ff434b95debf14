package transport

import (
	"bytes"
	"errors"
	"os"
)

// HTTP/1.1 gives an answer no name: it belongs to a request because it comes after it. A node, or a proxy before it,
// that sends more than one answer to a request would have the surplus read by whoever uses the connection next. What
// can be done about it: nothing may be readable when a request is written (look), and a node that was caught once gets
// a connection for each exchange for a while (Node.distrust). What a node sends after the request has reached it cannot
// be told from its answer.

// errWouldBlock is what the socket functions return when there is nothing to read, or no room to write.
var errWouldBlock = errors.New("would block")

// errStale fails an exchange before it began: the pooled connection is closed, or has something to say unasked.
var errStale = errors.New("pooled connection cannot be used any more")

// A verdict is what a look at an idle connection finds.
type verdict uint8

const (
	silent  verdict = iota // open, and nothing to read
	dead                   // closed, or about to be
	unasked                // the node sent something that nobody asked for
)

// judge tells what it means that reading from an idle connection gave b or err.
func (c *conn) judge(b []byte, err error) verdict {
	switch {
	case err == errWouldBlock:
		return silent
	case err != nil:
		return dead
	case c.tls != nil && b[0] != recordData:
		return dead // an alert, most often the farewell
	case bytes.HasPrefix(b, []byte("HTTP/1.1 408")), bytes.HasPrefix(b, []byte("HTTP/1.0 408")):
		return dead // a proxy's way to end a connection that was idle for too long
	}
	return unasked
}

// recordData is the type of a TLS record with data of an application.
const recordData = 23

// look looks, without waiting, at an idle connection.
func (c *conn) look() verdict {
	if c.sock == nil {
		return silent // a connection in memory tells nothing before it is used
	}
	c.seen = dead
	if err := c.sock.Control(c.peek); err != nil {
		return dead
	}
	return c.seen
}

// A stage is how far a direct exchange is.
type stage uint8

const (
	toWrite stage = iota // the connection was not yet looked at
	toRead               // the request is written
	ended                // there is something to say about it
)

// direct looks at the connection, writes request and reads the first bytes of the answer behind scratch.w, with the
// system calls that are needed and no others: what package net would do costs one read in vain for each exchange, and a
// look before it another. It returns what became of the request; the error is that of looking (errStale) or of reading.
//
// All of it happens within one RawConn.Read. That forgets, before it calls step, what it knew of the socket being
// readable, and waits when step returns false until the socket becomes readable: nothing that comes in between is lost.
func (c *conn) direct(request []byte, limit int) (sent sending, err error) {
	c.stage, c.request, c.limit = toWrite, request, limit
	c.wrote, c.writeErr, c.readErr = 0, nil, nil
	for err = c.sock.Read(c.step); err != nil && errors.Is(err, os.ErrDeadlineExceeded); err = c.sock.Read(c.step) {
		if !c.extendRead() {
			err = ErrTimeout
			break
		}
	}
	c.request = nil
	sent.written, sent.err = int64(c.wrote), c.writeErr
	if err == nil {
		err = c.readErr
	}
	return sent, err
}

// advance takes a direct exchange as far as it goes without waiting, and returns false if it then has to wait for the
// answer.
func (c *conn) advance(fd uintptr) bool {
	s := c.scratch
	if c.stage == toWrite {
		if c.served {
			n, err := readSocket(fd, s.in)
			if c.seen = c.judge(s.in[:n], err); c.seen != silent {
				c.stage, c.readErr = ended, errStale
				return true
			}
		}
		if c.wrote, c.writeErr = writeSocket(fd, c.request); c.writeErr == errWouldBlock {
			c.writeErr = nil
		}
		if c.wrote < len(c.request) {
			c.stage = ended // what is left is written in a way that can wait
			return true
		}
		c.stage = toRead
		return false
	}
	n, err := readSocket(fd, s.in[s.w:min(len(s.in), s.r+c.limit)])
	if err == errWouldBlock {
		return false
	}
	s.w += n
	c.stage, c.readErr = ended, err
	return true
}
