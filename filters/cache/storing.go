package cache

import (
	"math/rand/v2"
	"time"

	"weir/elastic/query"
	"weir/flows"
)

// storing is the part of a cache that stands below the upstream filter: it judges answers and stores them.
type storing struct {
	id       string // of the filter, over reloads
	lifetime lifetime
	least    int64 // bytes of an answer that is stored
	most     int64
	limits   limits
	tags     []string

	shared *shared
	store  *store
	rule   *rule
	leave  func() // the rule
}

// start readies k for answers.
func (k *storing) start(rt *flows.Runtime) error {
	var err error
	if k.shared, err = sharedOf(rt); err != nil {
		return err
	}
	if k.store, err = k.shared.store(rt, k.limits); err != nil {
		return err
	}
	if k.rule, err = ruleOf(rt, k.id); err != nil {
		return err
	}
	k.leave = k.rule.use(k.lifetime)
	return nil
}

// TTL returns how long answers are given.
func (k *storing) TTL() time.Duration { return k.lifetime.ttl }

func (k *storing) stop() {
	if k.leave != nil {
		k.leave()
		k.leave = nil
	}
}

// A wanted is a request that has a key, or one of several in it, and what became of its answer.
type wanted struct {
	key     query.Key
	verdict query.Verdict

	entry  *Entry       // a complete answer, even if it was not stored
	stored bool         // it was
	why    query.Reason // why it was not
}

// offer stores the answer of x if it is complete. It returns an error only if the answer cannot be given to the client
// either.
func (k *storing) offer(x *flows.Exchange, t *ticket) (err error) {
	defer func() {
		if p := recover(); p != nil {
			k.shared.fault(p)
			t.entry, t.stored, t.why, err = nil, false, reasonFault, nil
		}
	}()
	t.offered = true
	if t.multi != nil {
		t.why, err = k.offerMulti(x, t)
		return err
	}
	body, why, err := k.answer(x, t, k.limit(t))
	if why == "" && err == nil && t.async.on {
		body, why = k.takeAsync(x, t, body)
	}
	if why == "" && err == nil {
		_, why = query.Complete(t.request.API, &t.verdict, 200, &x.Response.Header, body)
		if why == "" {
			why = k.keep(x, t, &t.wanted, 0, &t.request, t.narrow(x, body), nil)
		}
	}
	t.why = why
	return err
}

// limit returns the longest answer to the ticket's request that is stored.
func (k *storing) limit(t *ticket) int64 {
	if t.most >= 0 {
		return min(k.most, t.most)
	}
	return k.most
}

// answer returns the whole body of the answer of x, or why nothing of it is stored.
func (k *storing) answer(x *flows.Exchange, t *ticket, most int64) ([]byte, query.Reason, error) {
	switch r := &x.Response; {
	case x.Trace.Cluster != t.cluster:
		return nil, reasonCluster, nil
	case r.Status != 200:
		return nil, query.ReasonStatus, nil
	case r.Body.Len() > most:
		return nil, reasonTooLarge, nil
	}
	return k.shared.body(&x.Response.Body, most)
}

// keep makes the entry of w, whose complete answer consists of two parts, and stores it. It returns why it does not. r is the
// request of w, and part where the ticket's ask has the stamp of its indices.
func (k *storing) keep(x *flows.Exchange, t *ticket, w *wanted, part int, r *query.Request, front, end []byte) query.Reason {
	asked, epoch, stamp := t.asked, t.epoch, t.ask.Stamp(part)
	p := t.async.pending
	if p != nil { // another request has asked for it
		asked, epoch, stamp = p.asked, p.epoch, p.stamp
	}
	was := query.Age(&x.Response.Header)
	e := newEntry(x, front, end, asked.Add(-was))
	// What has changed while another cache kept it nobody knows.
	e.rule, e.moves, e.timed = k.rule, w.verdict.NowBound, w.verdict.TTLOnly != "" || was > 0
	e.stamp = stamp
	if w.verdict.Step > 0 {
		e.step(w.verdict.Step)
	}
	// What was stored together, when a dashboard was opened, is not to be asked for together again.
	e.spread = rand.N(2*maxSpread+1) - maxSpread
	w.entry = e
	if int64(len(e.body)) < max(k.least, t.least) {
		return reasonTooSmall
	}
	if p != nil {
		e.source = p.source
	} else {
		e.source = newSource(x, r, &w.verdict, k.tags, time.Since(asked))
	}
	if w.stored = k.store.put(&w.key, e, epoch); !w.stored {
		return reasonPurged
	}
	k.shared.metrics.stored.Inc()
	return ""
}
