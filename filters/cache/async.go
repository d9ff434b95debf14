package cache

import (
	"bytes"
	"crypto/sha256"
	"sync"
	"time"

	"weir/elastic/api"
	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/wire"
)

// An async search has the key of the _search for the same, and shares its entries: what stands around the answer is written
// anew for each caller, as nodes of that cluster write it. A search that is running, and its id, are its submitter's own. When
// the submitter fetches the answer, it is stored under the key of the search, which is remembered by who asks and for which id.

// AsyncConfig says what async searches are answered with. All cache filters that look for answers have it.
type AsyncConfig struct {
	// Whether callers who want their async searches kept when they are over (`keep_on_completion=true`) need them: `needed`
	// lets these pass by; with `not_needed` they are answered from the cache too, without an id, so that such a search cannot be
	// fetched again. Kibana sends it where search sessions are enabled.
	AsyncIDs string `conf:"async_ids" enum:"needed,not_needed"`
}

func defaultAsync() AsyncConfig { return AsyncConfig{AsyncIDs: "needed"} }

// asyncTicket is what a ticket knows of an async search. It is at work if on is set.
type asyncTicket struct {
	query.Async
	on      bool
	apart   string    // what keeps its entries apart from those of _search
	line    query.Key // under which its upstream calls are known to others like it
	by      *lookup
	form    *asyncForm // nil if unknown
	pending *pending   // that is being fetched
	body    []byte
}

// apartOpenSearch keeps answers of OpenSearch's asynchronous searches apart: they take another right than _search.
const apartOpenSearch = "asynchronous_search"

// maxAsyncBody is the largest memory for an answer that goes back to the pool.
const maxAsyncBody = 1 << 20

func (a *asyncTicket) reset() {
	a.on, a.apart, a.by, a.form, a.pending = false, "", nil, nil, nil
	if cap(a.body) > maxAsyncBody {
		a.body = nil
	}
}

// An asyncForm is how nodes of a cluster answer that an async search is over.
type asyncForm struct {
	query.AsyncForm
	fields []wire.Field
}

// asyncForms are the forms of the clusters to which a filter's requests go. They are learned from answers.
type asyncForms struct {
	mu        sync.RWMutex // guards the field below
	byCluster map[string]*asyncForm
}

func (f *asyncForms) of(cluster string) *asyncForm {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.byCluster[cluster]
}

// asyncFields is how the names begin of fields in which nodes say the most important about an async search, beside its id.
const asyncFields = "x-elasticsearch-async-"

// learn notes how a node of a cluster has answered that a search is over.
func (f *asyncForms) learn(cluster string, form query.AsyncForm, h *wire.Header) {
	var fields []wire.Field
	for _, field := range h.Fields() {
		if n := len(asyncFields); len(field.Name) > n && wire.EqualFold(field.Name[:n], asyncFields) && !wire.EqualFold(field.Name, asyncFields+"id") {
			fields = append(fields, wire.Field{Name: bytes.Clone(field.Name), Value: bytes.Clone(field.Value)})
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byCluster == nil {
		f.byCluster = map[string]*asyncForm{}
	}
	f.byCluster[cluster] = &asyncForm{form, fields}
}

// readAsync makes the ticket's request of one that begins an async search, or says why that passes the cache by.
func (l *lookup) readAsync(t *ticket, c *api.Call, rawQuery []byte) query.Reason {
	a, r := &t.async, &t.request
	if why := a.Read(c.Name, c.Index, rawQuery, r.Body); why != "" {
		return why
	}
	if a.Keep && l.async.AsyncIDs == "needed" {
		return query.ReasonAsyncKept
	}
	a.on, a.by = true, l
	if c.Name != "async_search.submit" {
		a.apart = apartOpenSearch
	}
	r.API, r.Index, r.RawQuery = "search", a.Index, a.RawQuery
	return ""
}

// judgeAsync adds to the key of an async search what is its own.
func (l *lookup) judgeAsync(t *ticket) {
	a := &t.async
	t.scratch = append(append(t.scratch[:0], "async"...), t.key[:]...)
	a.line = sha256.Sum256(t.scratch)
	t.scratch = t.scratch[:0]
	a.form = l.forms.of(t.cluster)
}

// fetchAsync gets the answer to a request that begins an async search from next, or waits for that to another one like x, as
// long as the caller would wait for a node. Those who wait for a search that runs for longer need one of their own then.
func (l *lookup) fetchAsync(x *flows.Exchange, next flows.Handler, t *ticket, fwd string) error {
	a, begun := &t.async, time.Now()
	j := l.joiner(&t.verdict)
	for range 2 {
		now := time.Now()
		j.patience = min(a.Wait, l.stale.maxWait) - now.Sub(begun)
		f, lead := l.shared.flights.join(&a.line, now, j)
		switch {
		case f == nil:
			return l.alone(x, next, t, fwd)
		case lead && l.landedBefore(x, t, f):
			return nil
		case lead:
			return l.lead(x, next, t, f, fwd)
		}
		end := f.wait(x, j.patience)
		l.shared.flights.leave(f)
		switch {
		case end == waitLeft:
			return errClientLeft
		case end == waitLate:
			return l.alone(x, next, t, fwd)
		case f.failed && l.rescue(x, t):
			return nil
		}
		if a.form == nil {
			a.form = l.forms.of(t.cluster)
		}
		if f.serves(&t.verdict.Dropped) && (f.partial || a.form != nil) {
			return l.collapse(x, t, f, fwd, false)
		}
		if !f.lost {
			break
		}
	}
	return l.alone(x, next, t, fwd)
}

// giveAsync makes e the response of x as that of an async search.
func (t *ticket) giveAsync(x *flows.Exchange, e *Entry) {
	a := &t.async
	a.body = a.form.Append(a.body[:0], e.body, time.Now(), a.KeepAlive)
	e.reply(x, a.body)
	for _, f := range a.form.fields {
		x.Response.Header.Add(f.Name, f.Value)
	}
}

// private tells whether e, which is not a complete answer, is for the one who got it only: it may name a search of its own.
func (a *asyncTicket) private(e *Entry) bool {
	return a.on && (e.status < 400 || bytes.Contains(e.body, asyncID))
}

var asyncID = []byte(`"id"`)

// takeAsync takes the answer of the search out of an answer about an async search, if it is over and complete as far as the
// node says, or says why it is not. Of one that is running it is remembered what it searches for.
func (k *storing) takeAsync(x *flows.Exchange, t *ticket, body []byte) ([]byte, query.Reason) {
	a := &t.async
	answer, ok := query.ReadAsync(body)
	if !ok {
		return nil, query.ReasonMalformed
	}
	inTime := a.pending == nil && time.Since(t.asked) < a.Wait
	why := answer.Judge(inTime)
	switch {
	case a.pending != nil && why != query.ReasonRunning:
		k.shared.pendings.drop(a.pending)
	case a.pending == nil && why == query.ReasonRunning && answer.ID != nil && !a.Rendered:
		a.by.remember(x, t, k, answer.ID)
	}
	if why != "" {
		return nil, why
	}
	if p := a.pending; p != nil && !bytes.Equal(p.contentType, x.Response.Header.Get("content-type")) {
		return nil, query.ReasonContentType
	}
	a.by.forms.learn(t.cluster, answer.Form, &x.Response.Header)
	return answer.Response, ""
}

// A pending is a search that runs, as far as is known. It never changes.
type pending struct {
	id          query.Key // of its id and its submitter
	key         query.Key
	verdict     query.Verdict
	stamp       generation.Stamp
	asked       time.Time
	epoch       int64
	typed       bool
	contentType []byte
	source      *source
	until       time.Time // when its answer would be too old to be kept
}

// maxPendings bounds the searches that are remembered. One more makes another give way.
const maxPendings = 4096

// pendings are the searches that are running, by their id and who submitted them: nobody else has such a key.
type pendings struct {
	mu   sync.Mutex // guards the field below
	byID map[query.Key]*pending
}

func (ps *pendings) put(p *pending, now time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byID == nil {
		ps.byID = map[query.Key]*pending{}
	}
	makeRoom(ps.byID, p.id, maxPendings, func(old *pending) bool { return old.until.Before(now) })
	ps.byID[p.id] = p
}

// get returns the search with that id, or nil if its answer would not be kept any more.
func (ps *pendings) get(id query.Key, now time.Time) *pending {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byID[id]
	if p != nil && p.until.Before(now) {
		delete(ps.byID, id)
		return nil
	}
	return p
}

func (ps *pendings) drop(p *pending) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.byID, p.id)
}

func (ps *pendings) count() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.byID)
}

// remember notes that the search of t runs under an id.
func (l *lookup) remember(x *flows.Exchange, t *ticket, k *storing, id []byte) {
	if bytes.ContainsAny(id, `%\`) {
		return // as a path would spell it otherwise
	}
	key, why := l.idKey(x, t, id)
	if why != "" {
		return
	}
	longest := k.lifetime.of(t.verdict.NowBound)
	if longest += longest / 10; t.verdict.TTLOnly == "" {
		longest = max(longest, l.proof.ProvenTTL.Std())
	}
	l.shared.pendings.put(&pending{
		id: key, key: t.key, verdict: t.verdict, stamp: t.ask.Stamp(0), asked: t.asked, epoch: t.epoch, typed: t.async.Typed,
		contentType: bytes.Clone(x.Response.Header.Get("content-type")), source: newSource(x, &t.request, &t.verdict, k.tags, 0),
		until: t.asked.Add(longest),
	}, time.Now())
}

// idKey returns the key of a search's id, as a path spells it, for who sends x.
func (l *lookup) idKey(x *flows.Exchange, t *ticket, id []byte) (query.Key, query.Reason) {
	var h wire.Header
	for _, f := range x.Request.Header.Fields() {
		// What form the answer has is compared when it is there.
		if !wire.EqualFold(f.Name, "content-type") && !wire.EqualFold(f.Name, "accept") {
			h.Add(f.Name, f.Value)
		}
	}
	r := query.Request{API: "search", Method: methodGet, Index: id, Header: &h}
	t.caller(x, l.options.ByAddress, &r)
	key, v := l.keyer.Key(&r)
	if v.Bypass != "" {
		return key, v.Bypass
	}
	return l.scoped(t, key, &v, nil), "" // a search that runs is its submitter's own
}

var methodGet = []byte("GET")

// serveFetch forwards a request for an async search by its id, and keeps the answer if the search is over.
func (l *lookup) serveFetch(x *flows.Exchange, next flows.Handler, t *ticket) error {
	p, why := l.judgeFetch(x, next, t)
	if why != "" {
		return l.bypass(x, next, t, why)
	}
	t.async.on, t.async.by, t.async.pending = true, l, p
	t.request.API, t.key, t.verdict = "search", p.key, p.verdict
	t.ask.Reset() // what the answer depends on was asked for when the search began
	err := l.call(x, next, t)
	l.requests[outcomeMiss].Inc()
	l.sayMiss(x, t, "miss")
	return err
}

// judgeFetch returns the search that a request asks for, or why the request passes the cache by.
func (l *lookup) judgeFetch(x *flows.Exchange, next flows.Handler, t *ticket) (p *pending, why query.Reason) {
	defer func() {
		if f := recover(); f != nil {
			l.shared.fault(f)
			p, why = nil, reasonFault
		}
	}()
	c := x.Call()
	typed, ok := query.ReadFetch(x.Request.Query)
	switch {
	case oddPath(x):
		return nil, reasonPath
	case l.passes(x, t):
		return nil, reasonPass
	case !ok:
		return nil, query.ReasonAsyncArguments
	case !codingsOf(&x.Request.Header).plain:
		return nil, reasonCoding
	}
	t.cluster = flows.Destination(next, x)
	if c.Name != "async_search.get" {
		t.async.apart = apartOpenSearch
	}
	key, why := l.idKey(x, t, c.Param("id"))
	if why != "" {
		return nil, why
	}
	if p = l.shared.pendings.get(key, time.Now()); p == nil || p.typed != typed {
		return nil, query.ReasonAsyncID
	}
	return p, ""
}
