package transport

import (
	"io"
	"time"

	"weir/internal/wire"
)

// A ReusePolicy says what to do when a pooled connection turns out to be dead before the first byte of an answer. The
// zero value is the careful one.
type ReusePolicy uint8

const (
	NoRetry     ReusePolicy = iota // fail
	RetryUnsent                    // repeat once on a fresh connection if nothing of the request was written
	RetryFresh                     // repeat once on a fresh connection; for requests that may run twice
)

// A Request is one request to a node. Do reads it and does not change it; it may be used again, for another node too,
// when Do has returned, unless its Stream was read.
type Request struct {
	Method []byte
	Target []byte       // request target, byte for byte
	Host   []byte       // value of the Host field
	Header *wire.Header // may be nil; hop-by-hop fields, Host, Content-Length and Expect in it are not written
	Extra  []wire.Field // written after Header; each replaces the fields of Header that have its name

	Body         []byte    // the whole body, or
	Stream       io.Reader // the body as a stream; see Interrupter
	StreamLength int64     // of Stream; -1 = unknown, sent chunked
	HasBody      bool      // an empty body is announced for any method, not only for POST, PUT and PATCH

	Cancel      *wire.Cancel  // may be nil
	Deadline    time.Time     // for the whole exchange, until the last byte of the answer; zero = none
	HeadTimeout time.Duration // in place of Options.HeadTimeout if > 0; none if < 0
	Reuse       ReusePolicy
	// Prompt makes an answer of unknown length a Stream if it is not whole a moment after its head, so that what a node
	// says bit by bit can be passed on as it comes.
	Prompt bool
	Memory Memory // what a body that is kept in memory is counted in; may be nil
}

// A Memory bounds what bodies take together. Acquire takes n bytes or returns false; an answer for which there is no room
// becomes a Stream.
type Memory interface {
	Acquire(n int64) bool
	Release(n int64)
}

// An Interrupter is a Request.Stream that can be told to give up. Do calls Interrupt, from another goroutine, when the
// node answered (or failed) although the stream was not yet read whole; a Read that waits must then return an error.
// For a Stream that is no Interrupter Do waits until Read returns.
type Interrupter interface{ Interrupt() }
