package cache

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
)

// With `identity: principal` the cluster is asked who a caller is, the way that the caller's searches take, and callers who are the
// same to it share answers. Whoever it cannot say that of is a caller by credentials, as with `per_credential`.

// A principal is what a cluster said of a caller. It never changes.
type principal struct {
	asked  time.Time // when the node was asked
	stamp  generation.Stamp
	known  bool // the fields below are; else the caller is who its credentials say
	digest [sha256.Size]byte
	name   string // for people
	failed bool   // the cluster could not answer, and may soon
}

// shares tells whether p shares answers with others who are the same to the cluster.
func (p *principal) shares() bool { return p != nil && p.known }

// askLimit is how long the question who a caller is may take.
const askLimit = 10 * time.Second

// principals are the callers of one filter since it was started: what lies below it may make somebody else of them.
type principals struct {
	mu     sync.Mutex // guards the fields below
	seen   map[callerID]*principal
	asking map[callerID]*inquiry
	apis   map[string]int // by cluster, which of query.PrincipalAPIs it has
}

// An inquiry is a question that a cluster is being asked.
type inquiry struct {
	done chan struct{}
	who  *principal // set before done is closed; nil if nothing is to be remembered
}

// maxPrincipals bounds the callers that are remembered. Who is forgotten is asked about once more.
const maxPrincipals = 64 << 10

// get returns what is remembered of a caller since that time, or nil.
func (ps *principals) get(id callerID, since, now time.Time) *principal {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.seen[id]
	switch {
	case p == nil, !p.asked.After(since), p.stamp.Revoked(), p.failed && now.Sub(p.asked) >= renewEvery:
		return nil
	}
	return p
}

// forget makes who a caller is be asked anew.
func (ps *principals) forget(id callerID) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.seen, id)
}

// begin returns the inquiry about a caller, and whether it is new, so that the caller of begin must end it.
func (ps *principals) begin(id callerID) (q *inquiry, fresh bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if q = ps.asking[id]; q != nil {
		return q, false
	}
	q = &inquiry{done: make(chan struct{})}
	if ps.asking == nil {
		ps.seen, ps.asking, ps.apis = map[callerID]*principal{}, map[callerID]*inquiry{}, map[string]int{}
	}
	ps.asking[id] = q
	return q, true
}

// end notes what came of an inquiry.
func (ps *principals) end(id callerID, q *inquiry, who *principal) {
	q.who = who
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.asking, id)
	if who != nil {
		makeRoom(ps.seen, id, maxPrincipals, nil)
		ps.seen[id] = who
	}
	close(q.done)
}

// identify finds out who sends x, if that is part of the key of a request with this verdict. Without next nobody is asked. It
// returns an error if the client leaves meanwhile.
func (l *lookup) identify(x *flows.Exchange, next flows.Handler, t *ticket, v *query.Verdict) error {
	if !v.Nameable || t.identified || l.principals == nil { // not started
		return nil
	}
	t.identified = true
	id, now := l.callerID(t, v), time.Now()
	t.who = l.principals.get(id, now.Add(-l.proof.AuthTTL.Std()), now)
	if t.who != nil || next == nil || v.OnlyIfCached {
		return nil
	}
	q, fresh := l.principals.begin(id)
	if fresh {
		l.inquire(x, next, t.cluster, id, q)
	}
	select {
	case <-q.done:
		t.who = q.who
	case <-x.Cancel().Done():
		return errClientLeft
	}
	return nil
}

// inquire asks the cluster who sends x, in an exchange of its own, since others may wait for the answer too.
func (l *lookup) inquire(x *flows.Exchange, next flows.Handler, cluster string, id callerID, q *inquiry) {
	d := x.Detach(askLimit)
	if d == nil {
		l.principals.end(id, q, nil)
		return
	}
	l.inBackground(d, func() {
		var who *principal
		defer func() { l.principals.end(id, q, who) }() // also when a filter below panics
		who = l.askWho(d, next, cluster)
		if who != nil && who.known {
			l.shared.callers.accept(id, who.asked)
		}
	})
}

// askWho asks the cluster who sends d. It returns nil if nothing is to be remembered.
func (l *lookup) askWho(d *flows.Exchange, next flows.Handler, cluster string) *principal {
	first := l.principals.api(cluster)
	for i := range query.PrincipalAPIs {
		which := (first + i) % len(query.PrincipalAPIs)
		who, absent := l.askBy(d, next, cluster, query.PrincipalAPIs[which])
		if absent && i+1 < len(query.PrincipalAPIs) {
			continue
		}
		if who != nil && who.known {
			l.principals.has(cluster, which)
		}
		return who
	}
	return nil
}

// api returns which of query.PrincipalAPIs is to be tried first.
func (ps *principals) api(cluster string) int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.apis[cluster]
}

// has notes which of query.PrincipalAPIs a cluster has.
func (ps *principals) has(cluster string, which int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.apis[cluster] = which
}

// askBy asks by one API, and tells whether the cluster seems not to have it.
func (l *lookup) askBy(d *flows.Exchange, next flows.Handler, cluster, path string) (who *principal, absent bool) {
	h, r := &d.Request.Header, &d.Response
	for _, name := range []string{"content-type", "accept", "accept-encoding"} {
		h.Del(name) // of the search
	}
	h.AddString("Accept", "application/json")
	d.Request.Method = methodGet
	d.Retarget([]byte(path))
	d.Request.Body.Replace(nil)
	ask := &generation.Ask{}
	ask.Add(nil, nil, 0)
	flows.Stamps.Set(d, ask)
	who = &principal{asked: time.Now()}
	err := next.Serve(d)
	who.stamp = ask.Stamp(0)
	if d.Trace.Outcome != flows.Upstream || d.Trace.Cluster != cluster || err != nil || !r.Answered() {
		who.failed = true // also by a limit or a rule of the gateway
		return who, false
	}
	switch {
	case r.Status == 200:
	case r.Status == 401, r.Status == 403:
		return nil, false // the search itself will be refused, or not
	case r.Status >= 500, r.Status == 408, r.Status == 429:
		who.failed = true
		return who, false
	default:
		return who, true
	}
	who.asked = who.asked.Add(-query.Age(&r.Header))
	body, why, err := l.shared.body(&r.Body, maxFailure)
	if why != "" || err != nil {
		who.failed = true
		return who, false
	}
	if p, ok := query.ReadPrincipal(body, h.Get("authorization")); ok {
		mac := hmac.New(sha256.New, l.shared.secret)
		mac.Write(p.Text)
		mac.Sum(who.digest[:0])
		who.known, who.name = true, strings.ToValidUTF8(p.Name, "?")
	}
	return who, false
}
