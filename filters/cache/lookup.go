package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/obs"
)

// lookup is the part of a cache that stands above the upstream filter: it answers what it can, and lets one request of
// many that are alike go on.
type lookup struct {
	options query.Options
	pass    map[string]bool // path segments and names of URL parameters that are not cached
	must    mustCache
	least   int64    // bytes of an answer that is stored
	most    int64    // -1: as set_cache says
	flow    string   // in which the filter is configured
	keep    *storing // of the filter cache; nil for get_cache
	stale   staleness
	proof   ProofConfig
	async   AsyncConfig

	shared     *shared
	keyer      *query.Keyer
	requests   [outcomes]obs.Counter
	items      [origins]obs.Counter // of _msearch
	ages       obs.Histogram
	saved      obs.Counter
	given      obs.Counter
	forms      *asyncForms
	principals *principals
	forget     func()
}

// mustCache are exceptions from pass patterns.
type mustCache struct {
	methods map[string]bool // none: all
	paths   map[string]bool // segments
}

// outcome says what a cache did with a request.
type outcome uint8

const (
	outcomeHit outcome = iota
	outcomeMiss
	outcomeShared
	outcomeStale // an answer past its time
	outcomeBypass
	outcomeRefused // only-if-cached, and it was not
	outcomes
)

var outcomeNames = [outcomes]string{"hit", "miss", "shared", "stale", "bypass", "refused"}

// ageBuckets are limits of the ages of hits, in seconds.
var ageBuckets = []float64{0.1, 1, 3, 10, 30, 60, 300, 1800, 3600}

// start readies l for requests.
func (l *lookup) start(rt *flows.Runtime) error {
	var err error
	if l.shared, err = sharedOf(rt); err != nil {
		return err
	}
	o := l.options
	o.Secret = l.shared.secret
	// A cluster that is another one after a reload must not be answered for by what the old one said.
	o.ClusterID = rt.Resources
	if l.keyer, err = query.NewKeyer(o); err != nil {
		return err
	}
	l.forms, l.principals = &asyncForms{}, &principals{}
	requests := rt.Metrics.Counter("weir_cache_requests_total", "Requests that came to a cache, by what it did with them.",
		"flow", "outcome")
	for o := range l.requests {
		l.requests[o] = requests.With(l.flow, outcomeNames[o])
	}
	searches := rt.Metrics.Counter("weir_cache_searches_total", "Searches of _msearch requests that came to a cache, by where their answers came from.",
		"flow", "outcome")
	for o := range l.items {
		l.items[o] = searches.With(l.flow, originNames[o])
	}
	l.ages = rt.Metrics.Histogram("weir_cache_hit_age_seconds", "Age of answers that were given from the cache.", ageBuckets, "flow").With(l.flow)
	l.saved = rt.Metrics.Counter("weir_cache_saved_upstream_seconds_total",
		"Time that the upstream calls would have taken whose answers were given from the cache or shared, as far as their first calls tell.", "flow").With(l.flow)
	l.given = rt.Metrics.Counter("weir_cache_given_bytes_total", "Bodies of answers that were given from the cache or shared.", "flow").With(l.flow)
	l.forget = rt.Metrics.GaugeFunc("weir_cache_memo_bytes", "Memory in which keys of recent requests are remembered.", "flow").
		Set(func() float64 { return float64(l.keyer.MemoBytes()) }, l.flow)
	return nil
}

func (l *lookup) stop() {
	if l.forget != nil {
		l.forget()
		l.forget = nil
	}
}

// errClientLeft ends the wait of an exchange whose client has left.
var errClientLeft = errors.New("the client left while it waited for the answer to a request like its own")

// serve answers x from the cache or with the answer of next. It is the way of a request through the cache from top to
// bottom.
func (l *lookup) serve(x *flows.Exchange, next flows.Handler) error {
	if x.Tracing {
		return next.Serve(x)
	}
	t := l.shared.take(x)
	if t == nil {
		return next.Serve(x)
	}
	defer t.done()
	t.least, t.most = l.least, l.most
	if query.FetchesAsync(x.Call().Name) {
		return l.serveFetch(x, next, t)
	}
	why, err := l.judge(x, next, t)
	if err != nil {
		return err
	}
	switch {
	case why != "":
		return l.bypass(x, next, t, why)
	case x.Call().Name == "msearch":
		return l.serveMulti(x, next, t)
	}
	fwd, now := "miss", time.Now()
	if e := l.find(t); e != nil {
		switch fwd = l.refusal(t, e, now); {
		case fwd == "":
			if l.renewsAhead(e, now) && !t.async.on {
				l.renew(x, next, t, e, now)
			}
			l.hit(x, t, e, now)
			return nil
		case l.mayRevalidate(t, e, now) && !t.async.on: // which nobody would fetch
			l.renew(x, next, t, e, now)
			l.giveStale(x, t, e, now, detailRevalidate)
			return nil
		}
		t.past = e
	}
	if t.verdict.OnlyIfCached {
		l.requests[outcomeRefused].Inc()
		x.Trace.Outcome = flows.Denied
		t.sayForward(x, fwd, "", "")
		return elastic.Errorf(504, "not_cached_exception", "only-if-cached was asked for, and there is no stored answer")
	}
	if t.async.on {
		return l.fetchAsync(x, next, t, fwd)
	}
	return l.fetch(x, next, t, fwd)
}

func (t *ticket) done() { t.busy, t.open = false, false }

// judge works out the key of x, or why it passes the cache by.
func (l *lookup) judge(x *flows.Exchange, next flows.Handler, t *ticket) (why query.Reason, err error) {
	defer func() {
		if p := recover(); p != nil {
			l.shared.fault(p)
			why, err = reasonFault, nil
		}
	}()
	if why, err := l.admit(x, t); why != "" || err != nil {
		return why, err
	}
	if t.cluster = flows.Destination(next, x); x.Call().Name == "msearch" {
		return "", nil // its searches have keys of their own
	}
	t.key, t.verdict = l.keyer.Key(&t.request)
	if t.verdict.Bypass != "" {
		return t.verdict.Bypass, nil
	}
	if err := l.identify(x, next, t, &t.verdict); err != nil {
		return "", err
	}
	if t.key = l.scoped(t, t.key, &t.verdict, t.who); t.async.on {
		l.judgeAsync(t)
	}
	return "", nil
}

// admit makes the ticket's request of x, or says why x passes the cache by whatever is in it.
func (l *lookup) admit(x *flows.Exchange, t *ticket) (query.Reason, error) {
	c := x.Call()
	begins := query.BeginsAsync(c.Name)
	switch {
	case query.FetchesAsync(c.Name):
		return query.ReasonAsyncID, nil
	case c.Name != "search" && c.Name != "count" && c.Name != "msearch" && !begins && !slices.Contains(l.options.Others, c.Name):
		return query.ReasonAPI, nil
	case oddPath(x):
		return reasonPath, nil
	case c.Idempotency == api.Context && !begins:
		return query.ReasonScroll, nil
	}
	if l.passes(x, t) {
		return reasonPass, nil
	}
	if t.accepts = codingsOf(&x.Request.Header); !t.accepts.plain {
		return reasonCoding, nil
	}
	if c.Name == "msearch" {
		return "", nil
	}
	body, why, err := requestBody(x, int64(l.options.MaxBody))
	if why != "" || err != nil {
		return why, err
	}
	r := &t.request
	*r = query.Request{
		API: c.Name, Method: x.Request.Method, Index: c.Index, Type: c.Param("type"), RawQuery: x.Request.Query,
		Header: &x.Request.Header, Body: body,
	}
	t.caller(x, l.options.ByAddress, r)
	if begins {
		return l.readAsync(t, c, x.Request.Query), nil
	}
	return "", nil
}

// oddPath tells whether nodes may read the path of x as something else than its API, as they differ in slashes that are repeated, in
// names in escapes, and in names that might be those of documents. A call that may be of these kinds counts as one that changes
// something, which no API does otherwise whose answers are kept.
func oddPath(x *flows.Exchange) bool {
	switch x.Call().Idempotency {
	case api.Read, api.Cursor, api.Context:
		return bytes.Contains(x.Request.Path, twoSlashes)
	}
	return true
}

var twoSlashes = []byte("//")

// scoped makes the flows part of a key: that in which the cache is configured and that by which the request came, since
// one flow may stand inside several others. Below them the request may go to another cluster. The cluster is a part as well:
// one flow may send requests to several. Who asks is one where the verdict leaves that open.
func (l *lookup) scoped(t *ticket, key query.Key, v *query.Verdict, who *principal) query.Key {
	b := append(t.scratch[:0], key[:]...)
	b = append(binary.AppendUvarint(b, uint64(len(l.flow))), l.flow...)
	b = append(binary.AppendUvarint(b, uint64(len(t.routed))), t.routed...)
	switch {
	case !v.Nameable:
		b = append(b, 'k')
	case who.shares():
		b = append(append(b, 'p'), who.digest[:]...)
	default:
		b = append(append(b, 'c'), v.Caller[:]...)
	}
	b = append(append(b, t.cluster...), t.async.apart...)
	t.scratch = b[:0]
	return sha256.Sum256(b)
}

// passes tells whether the configuration keeps x out of the cache.
func (l *lookup) passes(x *flows.Exchange, t *ticket) bool {
	if len(l.pass) == 0 {
		return false
	}
	hit := anySegment(l.pass, x.DecodedPath())
	if !hit && len(x.Request.Query) > 0 {
		api.EachParam(x.Request.Query, func(name, _ []byte) {
			t.scratch = api.DecodeQuery(t.scratch[:0], name)
			hit = hit || l.pass[string(t.scratch)]
		})
	}
	if !hit {
		return false
	}
	m := &l.must
	forced := anySegment(m.paths, x.DecodedPath()) && (len(m.methods) == 0 || m.methods[string(x.Request.Method)])
	return !forced
}

// anySegment tells whether set has a segment of path.
func anySegment(set map[string]bool, path []byte) bool {
	for len(set) > 0 && len(path) > 0 {
		var segment []byte
		segment, path, _ = bytes.Cut(path, slash)
		if set[string(segment)] {
			return true
		}
	}
	return false
}

var slash = []byte{'/'}

// bypass forwards a request that is not the cache's business.
func (l *lookup) bypass(x *flows.Exchange, next flows.Handler, t *ticket, why query.Reason) error {
	l.requests[outcomeBypass].Inc()
	l.shared.metrics.bypasses[why].Add(1)
	err := next.Serve(x)
	t.scratch = t.scratch[:0]
	t.sayForward(x, "bypass", "", why)
	return err
}

// find returns the entry under the ticket's key, however old, or nil.
func (l *lookup) find(t *ticket) (e *Entry) {
	defer func() {
		if p := recover(); p != nil {
			l.shared.fault(p)
			e = nil
		}
	}()
	if t.async.on && t.async.form == nil {
		return nil // nobody knows how a node would put it
	}
	t.store, e = l.shared.find(&t.key)
	return e
}

// refusal returns why e does not answer the request, in the words of RFC 9211 section 2.2, or "".
func (l *lookup) refusal(t *ticket, e *Entry, now time.Time) string {
	age := e.age(now)
	switch {
	case l.outdated(e, age), e.left(now) <= 0 && !l.proven(e, now), !l.trusts(t, age, now):
		return "stale"
	case t.verdict.Refresh, t.verdict.MaxAge >= 0 && age > t.verdict.MaxAge:
		return "request"
	}
	return ""
}

// outdated tells whether e, of that age, must not be given because of a change that was seen.
func (l *lookup) outdated(e *Entry, age time.Duration) bool {
	return e.stamp.Changed() && (age > l.proof.MaxStale.Std() || e.stamp.Revoked())
}

// trusts tells whether the credentials of the ticket's request are good for an answer of that age.
func (l *lookup) trusts(t *ticket, age time.Duration, now time.Time) bool {
	ttl := l.proof.AuthTTL.Std()
	return age <= ttl || ttl == 0 || t.verdict.Caller == [16]byte{} ||
		l.shared.callers.accepted(l.callerID(t, &t.verdict), now.Add(-ttl))
}

// learn notes what the answer to x says of the credentials of the ticket's request.
func (l *lookup) learn(x *flows.Exchange, t *ticket) {
	if t.verdict.Caller == [16]byte{} || x.Trace.Outcome != flows.Upstream || x.Trace.Cluster != t.cluster {
		return
	}
	id := l.callerID(t, &t.verdict)
	switch x.Response.Status {
	case 200:
		l.shared.callers.accept(id, t.asked.Add(-query.Age(&x.Response.Header))) // when a node was asked
	case 401:
		l.shared.callers.refuse(id)
		l.principals.forget(id)
	case 403:
		l.principals.forget(id) // it may be somebody else by now
	}
}

// proven tells whether e may be given although its time is over, because nothing has changed.
func (l *lookup) proven(e *Entry, now time.Time) bool {
	return !e.timed && e.age(now) < l.proof.ProvenTTL.Std() && !e.turned(now) && e.stamp.Proven(now)
}

// hit answers x with e.
func (l *lookup) hit(x *flows.Exchange, t *ticket, e *Entry, now time.Time) {
	l.requests[outcomeHit].Inc()
	l.give(x, t, e, now)
	l.sayHit(x, t, e.age(now), e.left(now))
}

// sayHit says that x was answered by an entry of that age, which is fresh for left more or given since nothing has changed.
func (l *lookup) sayHit(x *flows.Exchange, t *ticket, age, left time.Duration) {
	detail := ""
	if left <= 0 {
		left, detail = l.proof.ProvenTTL.Std()-age, detailProven
	}
	t.sayHit(x, age, left, detail)
}

// give makes e the response of x, in the form that its client likes best.
func (l *lookup) give(x *flows.Exchange, t *ticket, e *Entry, now time.Time) {
	x.Trace.Outcome = flows.Hit
	l.ages.Observe(e.age(now).Seconds())
	if hits := e.hits.Add(1); t.async.on {
		t.giveAsync(x, e)
	} else {
		if hits > 1 && t.accepts.gzip && e.gzip == nil {
			e = t.store.compress(&t.key, e)
		}
		e.give(x, t.accepts.gzip)
	}
	l.save(e, x.Response.Body.Len())
}

// save counts what giving e, in n bytes, has spared the cluster.
func (l *lookup) save(e *Entry, n int64) {
	l.given.Add(float64(n))
	if e.source != nil {
		l.saved.Add(e.source.took.Seconds())
	}
}

// joiner returns what an upstream call must be like that answers a request with this verdict.
func (l *lookup) joiner(v *query.Verdict) joiner {
	j := joiner{maxAge: v.MaxAge, maxStale: l.proof.MaxStale.Std(), patience: l.stale.maxWait}
	if v.Refresh {
		j.maxAge = 0
	}
	return j
}

// fetch gets an answer from next, or waits for that of another request like x.
func (l *lookup) fetch(x *flows.Exchange, next flows.Handler, t *ticket, fwd string) error {
	j := l.joiner(&t.verdict)
	for tries := 0; tries < 2; {
		now := time.Now()
		if t.past != nil && l.shared.flights.overdue(&t.key, now, l.stale.maxWait) && l.rescue(x, t) {
			return nil
		}
		f, lead := l.shared.flights.join(&t.key, now, j)
		if f == nil {
			return l.alone(x, next, t, fwd)
		}
		if lead && l.landedBefore(x, t, f) {
			return nil
		}
		// Who has an older answer at hand does not wait for the new one at any price: it is fetched in an exchange of its own.
		launched := lead && tries == 0 && l.mayRescue(t, now) && l.launch(x, next, t, f)
		if lead && !launched {
			return l.lead(x, next, t, f, fwd)
		}
		end := f.wait(x, l.stale.maxWait)
		if end == waitLate && l.rescue(x, t) {
			f.late.Store(true)
			l.shared.flights.leave(f)
			return nil
		}
		l.shared.flights.leave(f)
		switch end {
		case waitLeft:
			return errClientLeft
		case waitLate:
			continue // of all who waited that long one asks anew, and the others wait for it
		}
		if launched {
			traceAs(x, &f.trace)
		}
		if f.failed && l.rescue(x, t) {
			return nil
		}
		if f.serves(&t.verdict.Dropped) {
			return l.collapse(x, t, f, fwd, launched)
		}
		if f.narrow != nil {
			return l.squeeze(x, next, t, f, fwd)
		}
		if !f.lost {
			tries++ // what failed for others may fail again: the third time each goes for itself
		}
	}
	return l.alone(x, next, t, fwd)
}

// A waitEnd says how a wait for a flight ended.
type waitEnd uint8

const (
	waitLanded waitEnd = iota
	waitLeft           // the client left before
	waitLate           // the flight takes too long
)

// wait waits until f has landed, as long as the client of x is there and f is younger than patience.
func (f *flight) wait(x *flows.Exchange, patience time.Duration) waitEnd {
	late := time.NewTimer(time.Until(f.begun.Add(patience)))
	defer late.Stop()
	select {
	case <-f.done:
		return waitLanded
	case <-x.Cancel().Done():
		return waitLeft
	case <-late.C:
		return waitLate
	}
}

// traceAs notes in x what was done for it in an exchange of its own.
func traceAs(x *flows.Exchange, done *flows.Trace) {
	own := x.Trace
	x.Trace = *done
	x.Trace.Flow = own.Flow
	x.Trace.Queued += own.Queued
}

// collapse answers x with what f brought. launched tells that f was launched for x.
func (l *lookup) collapse(x *flows.Exchange, t *ticket, f *flight, fwd string, launched bool) error {
	switch {
	case f.entry == nil:
	case t.async.on && !f.partial:
		t.giveAsync(x, f.entry)
	default:
		f.entry.give(x, false)
	}
	if launched {
		l.requests[outcomeMiss].Inc()
		t.stored, t.why = f.stored, f.why
		l.sayMiss(x, t, fwd)
		return f.err
	}
	l.requests[outcomeShared].Inc()
	if f.entry != nil {
		x.Trace.Outcome = flows.Shared
		l.save(f.entry, x.Response.Body.Len())
	}
	t.sayForward(x, fwd, "collapsed", f.why)
	return f.err
}

// squeeze forwards x when only a few of those who waited for f do so.
func (l *lookup) squeeze(x *flows.Exchange, next flows.Handler, t *ticket, f *flight, fwd string) error {
	select {
	case f.narrow <- struct{}{}:
	case <-x.Cancel().Done():
		return errClientLeft
	}
	defer func() { <-f.narrow }()
	return l.alone(x, next, t, fwd)
}

// alone forwards x. Nobody waits for its answer.
func (l *lookup) alone(x *flows.Exchange, next flows.Handler, t *ticket, fwd string) error {
	var err error
	if t.verdict.Hidden == 0 {
		err = l.forward(x, next, t)
	} else { // an answer that is too large cannot be cut
		t.why = query.ReasonFilterPath
		err = next.Serve(x)
	}
	if failed(x, err) && l.rescue(x, t) {
		return nil
	}
	l.requests[outcomeMiss].Inc()
	l.sayMiss(x, t, fwd)
	return err
}

// landedBefore answers x, which leads f, with what another flight has stored between the look into the store and the start
// of f, if it has.
func (l *lookup) landedBefore(x *flows.Exchange, t *ticket, f *flight) bool {
	e, now := l.find(t), time.Now()
	if e == nil || l.refusal(t, e, now) != "" {
		return false
	}
	f.entry = e
	l.shared.flights.land(f, now, false)
	l.hit(x, t, e, now)
	return true
}

// lead forwards x, and gives its answer to those who wait for f.
func (l *lookup) lead(x *flows.Exchange, next flows.Handler, t *ticket, f *flight, fwd string) (err error) {
	if !t.async.on { // whoever leaves a running async search behind leaves it to nobody
		x.HoldCancel(f.held)
	}
	err = l.fill(x, next, t, f)
	if failed(x, err) && l.rescue(x, t) {
		return nil
	}
	l.requests[outcomeMiss].Inc()
	l.sayMiss(x, t, fwd)
	return err
}

// fill forwards x, and lands f with what comes of it.
func (l *lookup) fill(x *flows.Exchange, next flows.Handler, t *ticket, f *flight) (err error) {
	returned := false
	defer func() { l.land(x, t, f, err, returned) }() // also when a filter below panics
	l.shared.flights.stampedBy(f, &t.ask, 0)
	err = l.forward(x, next, t)
	returned = true
	return err
}

// forward runs next, and stores its answer if that is up to this filter.
func (l *lookup) forward(x *flows.Exchange, next flows.Handler, t *ticket) error {
	t.ask.Reset()
	l.stampOf(&t.ask, &t.verdict, t.request.Index, t.request.RawQuery)
	err := l.callWidened(x, next, t)
	if x.Trace.Outcome == flows.Upstream && err == nil && l.refused(t, x.Response.Status) {
		l.shared.forget(&t.key)
		t.past = nil
	}
	return err
}

// call runs next for answers to be stored, and offers them to the cache if that is up to this filter. What they depend on is
// in the ticket's ask.
func (l *lookup) call(x *flows.Exchange, next flows.Handler, t *ticket) error {
	x.Request.Header.Del("accept-encoding") // one plain copy is for everybody
	flows.Stamps.Set(x, &t.ask)
	t.epoch, t.asked = l.shared.epoch.Load(), time.Now()
	t.open, t.offered = true, false
	err := next.Serve(x)
	if err == nil {
		l.learn(x, t)
	}
	if err == nil && l.keep != nil && !t.offered && x.Response.Answered() {
		err = l.keep.offer(x, t)
	}
	t.open = false
	switch {
	case t.offered:
	case err != nil || !x.Response.Answered():
		t.why = reasonUnanswered
	default:
		t.why = reasonNotOffered
	}
	return err
}

// callWidened is call for a request that may have to ask for more than its client did. The client is not given that.
func (l *lookup) callWidened(x *flows.Exchange, next flows.Handler, t *ticket) error {
	if t.verdict.Hidden == 0 {
		return l.call(x, next, t)
	}
	own := x.Request.Target
	// It must live as long as the exchange.
	x.Retarget(t.verdict.Widen(append(bytes.Clone(x.Request.Path), '?'), x.Request.Query))
	err := l.call(x, next, t)
	x.Retarget(own)
	switch {
	case err != nil || !x.Response.Answered() || t.narrowed:
		return err
	case t.why != reasonTooLarge && t.why != reasonMemory && !x.Response.Header.Has("content-encoding"):
		body, why, err := l.shared.body(&x.Response.Body, maxMerged)
		if err != nil {
			return err
		}
		if why == "" {
			x.Response.Body.Replace(t.verdict.Narrow(body))
			return nil
		}
	}
	// It cannot be cut: it is asked for as if there were no cache.
	return next.Serve(x)
}

// stampOf asks for a stamp of what the answer to a search depends on.
func (l *lookup) stampOf(a *generation.Ask, v *query.Verdict, index, rawQuery []byte) {
	if v.Elsewhere {
		a.Add(nil, nil, 0) // every write to the cluster changes it, and polls never prove it
	} else {
		a.Add(index, rawQuery, l.proof.PollInterval.Std())
	}
}

// refused tells whether a status says that there is no such answer for this caller any more: the password was revoked, the
// index is gone. What is kept must not be given again, however fresh it is. Where all callers share answers, one who may not
// have them says nothing about the others, and where those of a principal do, credentials that are not good say nothing about it.
func (l *lookup) refused(t *ticket, status int) bool {
	switch status {
	case 408, 429:
		return false
	case 401:
		return l.options.Identity != query.Shared && !t.who.shares()
	case 403:
		return l.options.Identity != query.Shared
	}
	return 400 <= status && status < 500
}

// sayMiss says what became of an answer from below.
func (l *lookup) sayMiss(x *flows.Exchange, t *ticket, fwd string) {
	if t.stored {
		t.sayForward(x, fwd, "stored", "")
		return
	}
	l.shared.metrics.unstored[t.why].Add(1)
	t.sayForward(x, fwd, "", t.why)
}

// land ends the flight that x led.
func (l *lookup) land(x *flows.Exchange, t *ticket, f *flight, err error, returned bool) {
	mark := false
	f.failed = returned && failed(x, err)
	switch {
	case t.entry != nil:
		f.entry = t.entry
	case !returned, x.Cancel().Fired():
		f.lost = true
	case err != nil:
		// A refusal by a limit or a rule above the upstream is this caller's own.
		if x.Trace.Outcome == flows.Upstream {
			f.err, f.partial, f.dropped, f.why = err, true, t.verdict.Dropped, t.why
		}
	case !passing(t.why):
		mark = true
		if t.why == reasonTooLarge {
			f.narrow = make(chan struct{}, narrowCap)
		}
	case f.held():
		if e := failure(x, t.asked); e != nil && !t.async.private(e) {
			f.entry, f.partial, f.dropped, f.why = e, true, t.verdict.Dropped, t.why
		}
	}
	if f.launch.Load() != nil {
		f.trace, f.stored, f.why = x.Trace, t.stored, t.why
	}
	l.shared.flights.land(f, time.Now(), mark)
}
