package cache

import (
	"strconv"
	"time"

	"weir/elastic"
	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
)

// A ticket is what a cache filter knows of one exchange. get_cache leaves it for set_cache.
type ticket struct {
	shared  *shared
	busy    bool // a cache filter is at work on the exchange
	request query.Request
	wanted
	accepts    codings
	store      *store     // in which an entry was found
	cluster    string     // that is to answer
	routed     string     // the flow by which the request came
	who        *principal // who asks, as far as the cluster was asked; nil: whoever has the credentials
	identified bool       // the cluster was asked, or need not be
	multi      *multi     // of a _msearch, while its answer is fetched
	async      asyncTicket
	past       *Entry // an entry that does not answer the request while nodes do
	asked      time.Time
	epoch      int64          // of the cache when the node was asked
	ask        generation.Ask // for a stamp of the indices that the answer depends on
	least      int64          // bytes of an answer that the filter above wants stored
	most       int64          // -1: no limit of its own

	// What became of the answer.
	open    bool // it may be offered to the cache
	offered bool
	// narrowed tells that the response is as the client asked for it, although more was asked for.
	narrowed bool

	scratch []byte // what is written into the exchange
	address [16]byte
	cert    []byte // who vouches for whom in the client's certificate
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
	t.open, t.offered, t.narrowed, t.stored, t.entry, t.why = false, false, false, false, nil, ""
	t.store, t.past, t.routed = nil, nil, x.Trace.Flow
	t.who, t.identified = nil, false
	t.async.reset()
	return t
}

// Release implements flows.Releaser.
func (t *ticket) Release() {
	t.ask.Reset()
	t.async.reset()
	t.accepts, t.store, t.cluster, t.routed, t.multi, t.past = codings{}, nil, "", "", nil, nil
	t.who, t.identified = nil, false
	t.busy, t.request, t.wanted, t.asked, t.least, t.most = false, query.Request{}, wanted{}, time.Time{}, 0, 0
	t.open, t.offered, t.narrowed = false, false, false
	t.scratch, t.address = t.scratch[:0], [16]byte{}
	t.shared.tickets.Put(t)
}

// narrow makes body, which is the answer to more than the client asked for, the answer that it asked for, and returns that.
func (t *ticket) narrow(x *flows.Exchange, body []byte) []byte {
	if t.verdict.Hidden == 0 {
		return body
	}
	body = t.verdict.Narrow(body)
	x.Response.Body.Replace(body)
	t.narrowed = true
	return body
}

// caller adds to r who asks beyond what the header says. A certificate is known by issuer and subject, so that one that was
// renewed is the same caller.
func (t *ticket) caller(x *flows.Exchange, byAddress bool, r *query.Request) {
	r.Names = x
	if cert := x.Request.Cert; cert != nil {
		t.cert = append(append(t.cert[:0], cert.RawIssuer...), cert.RawSubject...)
		r.Certificate = t.cert
	}
	if byAddress {
		t.address = x.Request.ClientIP.As16()
		r.Address = t.address[:]
	}
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

// sayHit says that x was answered by an entry of that age which may be given for ttl more, or might have been until ttl
// ago: then detail says why it was given yet.
func (t *ticket) sayHit(x *flows.Exchange, age, ttl time.Duration, detail string) {
	from := len(t.scratch)
	t.scratch = strconv.AppendInt(t.scratch, int64(age/time.Second), 10)
	x.Response.Header.Add(ageName, t.scratch[from:len(t.scratch):len(t.scratch)])
	from = len(t.scratch)
	t.scratch = append(t.scratch, "weir; hit; ttl="...)
	t.scratch = strconv.AppendInt(t.scratch, int64(ttl/time.Second), 10)
	if detail != "" {
		t.scratch = append(append(t.scratch, "; detail="...), detail...)
	}
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

// requestBody returns the request's body if it has at most limit bytes, or why it is not looked at. The request can be
// forwarded in either case.
func requestBody(x *flows.Exchange, limit int64) ([]byte, query.Reason, error) {
	b := &x.Request.Body
	var data []byte
	var err error
	whole := true
	if b.Len() < 0 {
		data, whole, err = b.Prefetch(limit)
	} else {
		data, err = b.Bytes(limit)
	}
	switch {
	case !whole, err == flows.ErrBodyTooLarge:
		return nil, query.ReasonBodySize, nil
	case err == flows.ErrBudget && b.Len() >= 0:
		return nil, reasonMemory, nil
	}
	return data, "", err
}

// body returns the whole body of an answer, or why it is passed on as a stream.
func (s *shared) body(b *flows.Body, most int64) ([]byte, query.Reason, error) {
	var body []byte
	var err error
	whole := true
	switch {
	case b.Len() >= 0:
		if body, err = b.Bytes(most); err == flows.ErrBudget {
			return nil, reasonMemory, nil
		}
	case s.budget.Used()+2*most > s.budget.Limit():
		return nil, reasonMemory, nil // half-way there would be no going back
	default:
		body, whole, err = b.Prefetch(most)
	}
	switch {
	case err != nil:
		return nil, reasonUnanswered, elastic.Errorf(502, "answer_exception", "the answer of the node broke off").Because(err)
	case !whole:
		return nil, reasonTooLarge, nil
	}
	return body, "", nil
}
