package cache

import (
	"time"

	"weir/elastic"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/conf"
)

// StaleConfig says when an answer is given whose time is over. All cache filters that look for answers have it.
type StaleConfig struct {
	// How long after its time an answer is still given while a new one is asked for in the background (RFC 5861); 0 is
	// never. It adds to how old an answer may be.
	StaleWhileRevalidate conf.Duration `conf:"stale_while_revalidate" min:"0s"`
	// How long after its time an answer is given when the cluster cannot answer: it fails with 429, 500, 502, 503 or 504,
	// no node can be reached, or the answer takes longer than max_wait; 0 is never.
	StaleIfError conf.Duration `conf:"stale_if_error" min:"0s"`
	// How long before the end of its time an answer that is asked for often is asked for anew in the background, so that
	// nobody waits for it; 0 is never.
	RefreshAhead conf.Duration `conf:"refresh_ahead" min:"0s"`
	// How long a request waits for the answer to another one like it. Of those that waited so long one asks a node, and
	// the others wait for that. Where stale_if_error has an older answer, it is also how long a request waits for a node: then
	// it is given that answer, as are those that come next, and what the node says in the end is kept. What else a node may
	// take is up to the upstream filter's timeout.
	MaxWait conf.Duration `conf:"max_wait" min:"10ms"`
}

func defaultStale() StaleConfig { return StaleConfig{MaxWait: conf.Duration(30 * time.Second)} }

// RefreshAhead returns how long before the end of their time answers are asked for anew.
func (l *lookup) RefreshAhead() time.Duration { return l.stale.ahead }

// staleness is a StaleConfig at work.
type staleness struct {
	whileRevalidate, ifError, ahead, maxWait time.Duration
}

func (c *StaleConfig) build() staleness {
	return staleness{
		whileRevalidate: c.StaleWhileRevalidate.Std(), ifError: c.StaleIfError.Std(), ahead: c.RefreshAhead.Std(),
		maxWait: c.MaxWait.Std(),
	}
}

const (
	// hotHits is how often an answer was given that is worth being renewed before somebody misses it.
	hotHits = 3
	// renewEvery is how often at most one answer is asked for anew in the background. While the cluster fails each try
	// may fail.
	renewEvery = time.Second
	// renewLimit is how long a renewal may take, and maxRenewals how many run at a time in the process.
	renewLimit  = time.Minute
	maxRenewals = 32
	// launchLimit bounds a launched flight where the upstream filter has no limit of its own. Others try again before.
	launchLimit = 10 * time.Minute
)

// Why an answer was given whose time is over, in the detail of Cache-Status.
const (
	detailRevalidate = "stale-while-revalidate"
	detailError      = "stale-if-error"
	detailProven     = "proven"
)

// renewsAhead tells whether e, which answers requests, is to be renewed before its time is over. An answer that is known to
// be what a node would say needs no renewal.
func (l *lookup) renewsAhead(e *Entry, now time.Time) bool {
	left := e.left(now)
	return l.stale.ahead > 0 && 0 < left && left <= l.stale.ahead && e.hits.Load() >= hotHits && !l.proven(e, now)
}

// mayGive tells whether e may be given within a window behind its time. From when its rounding of now changes on it is never given.
func (l *lookup) mayGive(t *ticket, e *Entry, now time.Time, window time.Duration) bool {
	return window > 0 && !e.turned(now) && !l.outdated(e, e.age(now)) && e.left(now) > -window && !t.verdict.Refresh &&
		(t.verdict.MaxAge < 0 || e.age(now) <= t.verdict.MaxAge)
}

// mayRevalidate tells whether e, whose time is over, may be given while it is asked for anew.
func (l *lookup) mayRevalidate(t *ticket, e *Entry, now time.Time) bool {
	return l.mayGive(t, e, now, l.stale.whileRevalidate) && l.trusts(t, e.age(now), now)
}

// giveStale answers x with e, whose time is over.
func (l *lookup) giveStale(x *flows.Exchange, t *ticket, e *Entry, now time.Time, detail string) {
	l.requests[outcomeStale].Inc()
	l.give(x, t, e, now)
	t.sayHit(x, e.age(now), e.left(now), detail)
}

// mayRescue tells whether there is an answer whose time is over that may be given when the cluster fails.
func (l *lookup) mayRescue(t *ticket, now time.Time) bool {
	return t.past != nil && l.mayGive(t, t.past, now, l.stale.ifError)
}

// rescue answers x with such an answer, if there is one.
func (l *lookup) rescue(x *flows.Exchange, t *ticket) bool {
	now := time.Now()
	if !l.mayRescue(t, now) {
		return false
	}
	l.giveStale(x, t, t.past, now, detailError)
	return true
}

// failed tells whether the cluster could not answer x. What a limit or a rule of the gateway refuses is no such failure,
// and neither is an answer that says no.
func failed(x *flows.Exchange, err error) bool {
	if x.Trace.Outcome != flows.Upstream || x.Cancel().Fired() {
		return false
	}
	if err != nil {
		return failing(elastic.AsError(err).Status)
	}
	return failing(x.Response.Status)
}

// failing tells whether a status says that the cluster could not answer.
func failing(status int) bool {
	switch status {
	case 429, 500, 502, 503, 504:
		return true
	}
	return false
}

// renew asks for the answer under the ticket's key anew, in the background, unless that was tried a moment ago or is
// being done.
func (l *lookup) renew(x *flows.Exchange, next flows.Handler, t *ticket, e *Entry, now time.Time) {
	if !e.claim(now) || !l.shared.beginRenewal() {
		return
	}
	f := l.leadRenewal(&t.key, &t.verdict, now)
	if f == nil {
		l.shared.renewals.Add(-1)
		return
	}
	d, td := l.detach(x, t, renewLimit)
	if d == nil {
		l.shared.renewals.Add(-1)
		l.shared.flights.land(f, now, false)
		return
	}
	l.inBackground(d, func() {
		defer l.shared.renewals.Add(-1)
		err := l.fill(d, next, td, f)
		l.shared.countRenewal(td.stored, failed(d, err))
	})
}

// claim makes the caller the one who sees to it that e is renewed, unless somebody tried that a moment ago.
func (e *Entry) claim(now time.Time) bool {
	due := e.renewed.Load()
	return now.UnixNano() >= due && e.renewed.CompareAndSwap(due, now.Add(renewEvery).UnixNano())
}

// beginRenewal counts a renewal as running, unless there are too many.
func (s *shared) beginRenewal() bool {
	if s.renewals.Add(1) > maxRenewals {
		s.renewals.Add(-1)
		s.metrics.renewals[renewalSkipped].Inc()
		return false
	}
	return true
}

// leadRenewal returns a flight that asks anew for the answer under key, or nil if one is on its way.
func (l *lookup) leadRenewal(key *query.Key, v *query.Verdict, now time.Time) *flight {
	j := l.joiner(v)
	j.maxAge = -1 // whatever this caller wants, an answer is on its way
	f, lead := l.shared.flights.join(key, now, j)
	if lead {
		return f
	}
	if f != nil {
		l.shared.flights.leave(f)
	}
	return nil
}

// inBackground runs work, for which d was detached, and ends d.
func (l *lookup) inBackground(d *flows.Exchange, work func()) {
	go func() {
		defer func() {
			if p := recover(); p != nil {
				l.shared.fault(p)
			}
			d.End()
		}()
		work()
	}()
}

// countRenewal counts what became of one renewal.
func (s *shared) countRenewal(stored, failed bool) {
	how := renewalStored
	switch {
	case stored:
	case failed:
		how = renewalFailed
	default:
		how = renewalRejected
	}
	s.metrics.renewals[how].Inc()
}

// detach returns an exchange of its own that asks for what x does, with its ticket, or nil if there can be none. It has
// to be ended.
func (l *lookup) detach(x *flows.Exchange, t *ticket, limit time.Duration) (*flows.Exchange, *ticket) {
	d := x.Detach(limit)
	if d == nil {
		return nil, nil
	}
	td := l.shared.take(d)
	td.key, td.verdict, td.least, td.most, td.cluster = t.key, t.verdict, t.least, t.most, t.cluster
	td.routed, td.who = t.routed, t.who
	body, _ := d.Request.Body.Bytes(d.Request.Body.Len())
	td.request = query.Request{API: t.request.API, Index: d.Call().Index, RawQuery: d.Request.Query, Body: body}
	return d, td
}

// launch lets f, which x leads, run in an exchange of its own, and makes x wait for it like others. It returns false if that
// cannot be done.
func (l *lookup) launch(x *flows.Exchange, next flows.Handler, t *ticket, f *flight) bool {
	d, td := l.detach(x, t, launchLimit)
	if d == nil {
		return false
	}
	l.shared.flights.await(f)
	f.launch.Store(&launch{cancel: d.Cancel(), flights: []*flight{f}})
	l.inBackground(d, func() { _ = l.fill(d, next, td, f) }) // an error is given to those who wait
	return true
}

// A renewal says what became of a renewal.
type renewal uint8

const (
	renewalStored   renewal = iota
	renewalFailed           // the cluster could not answer
	renewalRejected         // there was an answer, which was not stored
	renewalSkipped          // too many were running
	renewals
)

var renewalNames = [renewals]string{"stored", "failed", "rejected", "skipped"}
