package cache

import (
	"bytes"
	"io"
	"strconv"
	"time"

	"weir/elastic/query"
	"weir/flows"
)

// A ticket is what a cache filter knows of one exchange. get_cache leaves it for set_cache.
type ticket struct {
	shared  *shared
	busy    bool // a cache filter is at work on the exchange
	request query.Request
	key     query.Key
	verdict query.Verdict
	asked   time.Time
	least   int64 // bytes of an answer that the filter above wants stored
	most    int64 // -1: no limit of its own

	// What became of the answer.
	open    bool // it may be offered to the cache
	offered bool
	stored  bool
	entry   *Entry       // a complete answer, even if it was not stored
	why     query.Reason // why it was not stored

	scratch []byte // what is written into the exchange
	address [16]byte
	lent    *flows.Budget // lent bytes for a body
	debt    int64
}

// ticketOf is where the ticket stands in an exchange.
var ticketOf = flows.Var[ticket]{Name: "cache ticket"}

// take returns the ticket of x, or nil if another cache filter is at work on it.
func (s *shared) take(x *flows.Exchange) *ticket {
	t := ticketOf.Get(x)
	if t == nil {
		t, _ = s.tickets.Get().(*ticket)
		ticketOf.Set(x, t)
		x.ReleaseWith(t)
	}
	if t.busy {
		return nil
	}
	t.busy = true
	t.scratch = t.scratch[:0]
	t.open, t.offered, t.stored, t.entry, t.why = false, false, false, nil, ""
	return t
}

// Release implements flows.Releaser.
func (t *ticket) Release() {
	if t.debt > 0 {
		t.lent.Release(t.debt)
	}
	*t = ticket{shared: t.shared, scratch: t.scratch[:0]}
	t.shared.tickets.Put(t)
}

var (
	cacheStatus = []byte("Cache-Status")
	ageName     = []byte("Age")
)

// say ends a value of Cache-Status (RFC 9211), which begins in t.scratch at from, and gives it to x.
func (t *ticket) say(x *flows.Exchange, from int) {
	value := t.scratch[from:len(t.scratch):len(t.scratch)]
	x.Trace.Cache = value
	if x.Response.Answered() {
		x.Response.Header.Add(cacheStatus, value) // behind those of caches nearer to the node
	}
}

// sayHit says that x was answered by an entry of that age which may be given for ttl more.
func (t *ticket) sayHit(x *flows.Exchange, age, ttl time.Duration) {
	from := len(t.scratch)
	t.scratch = strconv.AppendInt(t.scratch, int64(age/time.Second), 10)
	x.Response.Header.Add(ageName, t.scratch[from:len(t.scratch):len(t.scratch)])
	from = len(t.scratch)
	t.scratch = append(t.scratch, "weir; hit; ttl="...)
	t.scratch = strconv.AppendInt(t.scratch, int64(ttl/time.Second), 10)
	t.say(x, from)
}

// sayForward says why x was forwarded, and what came of it.
func (t *ticket) sayForward(x *flows.Exchange, fwd, result string, why query.Reason) {
	from := len(t.scratch)
	t.scratch = append(append(t.scratch, "weir; fwd="...), fwd...)
	if result != "" {
		t.scratch = append(append(t.scratch, "; "...), result...)
	}
	if why != "" {
		t.scratch = append(append(t.scratch, "; detail="...), why...)
	}
	t.say(x, from)
}

// body returns the request's body if it has at most limit bytes, or why it is not looked at. The request can be forwarded
// in either case.
func (t *ticket) body(x *flows.Exchange, limit int64, budget *flows.Budget) ([]byte, query.Reason, error) {
	b := &x.Request.Body
	if b.Len() >= 0 {
		data, err := b.Bytes(limit)
		switch err {
		case flows.ErrBodyTooLarge:
			return nil, query.ReasonBodySize, nil
		case flows.ErrBudget:
			return nil, reasonMemory, nil
		}
		return data, "", err
	}
	// A body that comes in chunks says its length last. What was read of one that is too long goes in front of the rest.
	if !budget.Acquire(limit) {
		return nil, reasonMemory, nil
	}
	t.lent, t.debt = budget, limit
	stream := b.Reader()
	var buf bytes.Buffer
	n, err := buf.ReadFrom(io.LimitReader(stream, limit+1))
	if err != nil {
		return nil, "", err
	}
	if n > limit {
		b.ReplaceStream(&rejoined{head: buf.Bytes(), rest: stream}, -1)
		return nil, query.ReasonBodySize, nil
	}
	b.Replace(buf.Bytes())
	return buf.Bytes(), "", nil
}

// rejoined is a stream of which the head was read already.
type rejoined struct {
	head []byte
	rest io.Reader
}

func (r *rejoined) Read(p []byte) (int, error) {
	if len(r.head) > 0 {
		n := copy(p, r.head)
		r.head = r.head[n:]
		return n, nil
	}
	return r.rest.Read(p)
}

// Interrupt makes a waiting Read fail, if the stream knows how to.
func (r *rejoined) Interrupt() {
	if i, ok := r.rest.(interface{ Interrupt() }); ok {
		i.Interrupt()
	}
}
