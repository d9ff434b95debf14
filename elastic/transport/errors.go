package transport

import (
	"errors"
	"strconv"
)

// Faults that are not those of a socket. They come wrapped in an *Error.
var (
	ErrClosed      = errors.New("node is closed")
	ErrPoolFull    = errors.New("too many exchanges wait for a connection")
	ErrWaitTimeout = errors.New("no connection became free in time")
	ErrCancelled   = errors.New("exchange was cancelled")
	ErrTimeout     = errors.New("time limit passed")
	ErrTooSlow     = errors.New("answer comes more slowly than the least rate allowed")
	ErrRequest     = errors.New("request cannot be written as one HTTP/1.1 message")
	ErrHeadTooLong = errors.New("head of the answer is too long")
	ErrInterim     = errors.New("too many interim answers")
	ErrUpgrade     = errors.New("node switched protocols without being asked")
)

// A Phase is the part of an exchange in which it failed.
type Phase uint8

// The phases in their order.
const (
	Wait      Phase = iota // for a free connection
	Dial                   // connecting
	Handshake              // TLS
	Write                  // the request was not yet wholly written
	Head                   // the request was written, the head of its answer not yet read
	Body                   // the head was read, the body not wholly
)

// String returns what was being done.
func (p Phase) String() string {
	switch p {
	case Wait:
		return "wait for a connection"
	case Dial:
		return "dial"
	case Handshake:
		return "TLS handshake"
	case Write:
		return "write the request"
	case Head:
		return "read the answer"
	default:
		return "read the answer's body"
	}
}

// An Error is why an exchange failed, with what is needed to decide whether it may be repeated elsewhere.
type Error struct {
	Addr      string
	Phase     Phase
	Written   int64 // bytes of the request that may have reached the node; 0 means that it knows nothing of it
	Answered  bool  // a byte of an answer was read
	Timeout   bool  // a time limit passed
	Cancelled bool  // Request.Cancel was fired
	Source    bool  // reading Request.Stream failed: the sender's fault, not the node's
	Err       error
}

// Error names the node, the phase and the cause.
func (e *Error) Error() string {
	s := "node " + e.Addr + ": " + e.Phase.String()
	if e.Written > 0 {
		s += " (" + strconv.FormatInt(e.Written, 10) + " bytes written)"
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
