package cache

import (
	"sync/atomic"
	"time"

	"weir/elastic/generation"
	"weir/flows"
	"weir/internal/wire"
)

// entryOverhead is what an entry takes beside its bytes: structs, the store's node and its place in a hash table. Measured
// with 200,000 entries and rounded up.
const entryOverhead = 320

// An Entry is an answer that may be given to others. What it says never changes, because it may be on its way to clients
// at any time, and it is never pooled for the same reason.
type Entry struct {
	status int
	fields []wire.Field // by allow-list
	body   []byte
	gzip   []byte    // body compressed, or nil
	source *source   // nil unless it was stored
	asked  time.Time // when the node was asked: the answer is as old as that
	rule   *rule     // for how long it may be given without proof; nil unless it was stored
	spread int       // in thousandths, what is added to that
	moves  bool      // with the clock
	until  time.Time // when it may change with the clock; zero: never
	stamp  generation.Stamp
	timed  bool // no proof makes it live longer

	hits atomic.Int64 // how often it was given
	// coded tells that somebody has seen to the compressed form, whether or not it was worth keeping.
	coded atomic.Bool
	// renewed is when it may be asked for anew in the background, in nanoseconds of Unix time.
	renewed atomic.Int64
}

// maxSpread is the largest spread, a tenth.
const maxSpread = 100

// newEntry copies the answer of x, whose body consists of two parts.
func newEntry(x *flows.Exchange, front, end []byte, asked time.Time) *Entry {
	e := &Entry{status: x.Response.Status, asked: asked}
	length := len(front) + len(end)
	size, fields := length, 0
	for _, f := range x.Response.Header.Fields() {
		if kept(f.Name, e.status) {
			size += len(f.Name) + len(f.Value)
			fields++
		}
	}
	buf := append(append(make([]byte, 0, size), front...), end...)
	e.body = buf[:length:length]
	e.fields = make([]wire.Field, 0, fields)
	for _, f := range x.Response.Header.Fields() {
		if kept(f.Name, e.status) {
			start := len(buf)
			buf = append(append(buf, f.Name...), f.Value...)
			middle := start + len(f.Name)
			e.fields = append(e.fields, wire.Field{Name: buf[start:middle:middle], Value: buf[middle:]})
		}
	}
	return e
}

// maxFailure is the largest failed or partial answer that is copied for those who wait for it.
const maxFailure = 1 << 20

// failure copies a failed or partial answer for callers whose request is the same in every respect. It returns nil if the
// answer is for the one who got it only.
func failure(x *flows.Exchange, asked time.Time) *Entry {
	r := &x.Response
	if r.Status != 200 && r.Status < 400 || !r.Body.Buffered() || r.Body.Len() > maxFailure {
		return nil
	}
	for _, f := range r.Header.Fields() {
		if wire.EqualFold(f.Name, "set-cookie") || wire.EqualFold(f.Name, "content-encoding") ||
			wire.EqualFold(f.Name, "cache-control") || wire.EqualFold(f.Name, "vary") {
			return nil
		}
	}
	body, err := r.Body.Bytes(maxFailure)
	if err != nil {
		return nil
	}
	return newEntry(x, body, nil, asked)
}

// kept tells whether a field of an answer may be given to other callers. Everything that is not known to be the same for
// all of them is left out: nodes echo X-Opaque-Id (elastic/elasticsearch#81433), proxies set cookies and trace ids.
func kept(name []byte, status int) bool {
	switch len(name) {
	case len("warning"):
		return wire.EqualFold(name, "warning")
	case len("content-type"):
		return wire.EqualFold(name, "content-type")
	case len("x-elastic-product"):
		return wire.EqualFold(name, "x-elastic-product")
	case len("x-opensearch-version"):
		return wire.EqualFold(name, "x-opensearch-version")
	case len("retry-after"):
		return status >= 400 && wire.EqualFold(name, "retry-after")
	case len("www-authenticate"):
		return status >= 400 && wire.EqualFold(name, "www-authenticate")
	}
	return false
}

// weight returns the bytes of memory that e takes.
func (e *Entry) weight() int64 {
	n := int64(entryOverhead+len(e.body)+len(e.gzip)) + e.source.size()
	for _, f := range e.fields {
		n += int64(len(f.Name) + len(f.Value))
	}
	return n
}

// age returns how old the answer is.
func (e *Entry) age(now time.Time) time.Duration { return max(0, now.Sub(e.asked)) }

// life returns how old the answer may become without proof, as the configuration in force says.
func (e *Entry) life() time.Duration {
	ttl := e.rule.current.Load().of(e.moves)
	if e.stamp.Dirty() {
		return min(ttl, generation.Settle)
	}
	return ttl + ttl/1000*time.Duration(e.spread)
}

// left returns for how long e may still be given without proof; below 0 that is over.
func (e *Entry) left(now time.Time) time.Duration {
	left := e.life() - now.Sub(e.asked)
	if !e.until.IsZero() {
		left = min(left, e.until.Sub(now))
	}
	return left
}

// turned tells whether the moment has come at which the answer may change with the clock.
func (e *Entry) turned(now time.Time) bool { return !e.until.IsZero() && !now.Before(e.until) }

// clockSkew is by how much the clocks of gateway and nodes may differ where an answer is said to change at full times only.
const clockSkew = 30 * time.Second

// step makes e an answer that changes with the clock at multiples of step. Shortly after one it may still be that of before: some
// node's clock is slow. Then it moves.
func (e *Entry) step(step time.Duration) {
	since := e.asked.Truncate(step) // of absolute time
	e.until = since.Add(step)
	if e.asked.Sub(since) < clockSkew {
		e.moves, e.timed = true, true
	}
}

var (
	opaqueID        = []byte("X-Opaque-Id")
	varyName        = []byte("Vary")
	acceptEncoding  = []byte("Accept-Encoding")
	contentEncoding = []byte("Content-Encoding")
	codingGzip      = []byte("gzip")
)

// give makes e the response of x, in its compressed form if there is one and compressed is set. Nodes send no Vary although
// they heed Accept-Encoding; caches between the gateway and the client need it.
func (e *Entry) give(x *flows.Exchange, compressed bool) {
	if compressed && e.gzip != nil {
		e.reply(x, e.gzip)
		x.Response.Header.Add(contentEncoding, codingGzip)
	} else {
		e.reply(x, e.body)
	}
}

// reply makes body, which is a form of e, the response of x.
func (e *Entry) reply(x *flows.Exchange, body []byte) {
	x.Reply(e.status, "", body)
	for i := range e.fields {
		x.Response.Header.Add(e.fields[i].Name, e.fields[i].Value)
	}
	x.Response.Header.Add(varyName, acceptEncoding)
	if id := x.Request.Header.Get("x-opaque-id"); id != nil {
		x.Response.Header.Add(opaqueID, id) // as a node would
	}
}
