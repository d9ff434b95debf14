package cache

import (
	"math/rand/v2"
	"time"

	"weir/elastic"
	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
)

// storing is the part of a cache that stands below the upstream filter: it judges answers and stores them.
type storing struct {
	ttl    time.Duration
	nowTTL time.Duration // of answers that move with the clock
	least  int64         // bytes of an answer that is stored
	most   int64
	limits limits
	tags   []string

	shared *shared
	store  *store
	budget *flows.Budget
}

// start readies k for answers.
func (k *storing) start(rt *flows.Runtime) error {
	var err error
	if k.shared, err = sharedOf(rt); err != nil {
		return err
	}
	k.budget = rt.Budget
	k.store, err = k.shared.store(rt, k.limits)
	return err
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
		return k.offerMulti(x, t)
	}
	if t.why, err = k.judge(x, t); t.why == "" {
		t.entry.source = newSource(x, &t.request, &t.verdict, k.tags, time.Since(t.asked))
		if t.stored = k.store.put(&t.key, t.entry, t.epoch); !t.stored {
			t.why = reasonPurged
		}
	}
	return err
}

// limit returns the longest answer to the ticket's request that is stored.
func (k *storing) limit(t *ticket) int64 {
	if t.most >= 0 {
		return min(k.most, t.most)
	}
	return k.most
}

// judge makes the entry of the ticket, or returns why the answer is not stored. A complete answer has an entry although it
// is too small to be stored.
func (k *storing) judge(x *flows.Exchange, t *ticket) (query.Reason, error) {
	r, most := &x.Response, k.limit(t)
	switch {
	case x.Trace.Cluster != t.cluster:
		return reasonCluster, nil
	case r.Status != 200:
		return query.ReasonStatus, nil
	case r.Body.Len() > most:
		return reasonTooLarge, nil
	}
	body, why, err := k.body(&r.Body, most)
	if why != "" || err != nil {
		return why, err
	}
	if ok, why := query.Complete(t.request.API, &t.verdict, r.Status, &r.Header, body); !ok {
		return why, nil
	}
	t.entry = newEntry(x, body, t.asked)
	k.date(t.entry, &t.verdict, t.ask.Stamp(0))
	if int64(len(body)) < max(k.least, t.least) {
		return reasonTooSmall, nil
	}
	return "", nil
}

// date says for how long e may be given.
func (k *storing) date(e *Entry, v *query.Verdict, stamp generation.Stamp) {
	e.stamp, e.timed = stamp, v.TTLOnly != ""
	e.fresh = time.Now().Add(k.life(v, &stamp))
}

// body returns the whole body of an answer, or why it is passed on as a stream.
func (k *storing) body(b *flows.Body, most int64) ([]byte, query.Reason, error) {
	var body []byte
	var err error
	whole := true
	switch {
	case b.Len() >= 0:
		if body, err = b.Bytes(most); err == flows.ErrBudget {
			return nil, reasonMemory, nil
		}
	case k.budget.Used()+2*most > k.budget.Limit():
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

// longest returns how long an answer is given, as configured.
func (k *storing) longest(v *query.Verdict) time.Duration {
	if v.NowBound {
		return min(k.ttl, k.nowTTL)
	}
	return k.ttl
}

// life returns how long an answer may be given. It differs by up to a tenth, so that what was stored together, when a
// dashboard was opened, is not asked for together again.
func (k *storing) life(v *query.Verdict, stamp *generation.Stamp) time.Duration {
	ttl := k.longest(v)
	if stamp.Dirty() {
		return min(ttl, generation.Settle)
	}
	return ttl - ttl/10 + rand.N(ttl/5+1)
}
