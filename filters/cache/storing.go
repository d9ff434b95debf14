package cache

import (
	"math/rand/v2"
	"time"

	"weir/elastic"
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

	shared *shared
	store  *store
}

// start readies k for answers.
func (k *storing) start(rt *flows.Runtime) error {
	var err error
	if k.shared, err = sharedOf(rt); err != nil {
		return err
	}
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
	if t.why, err = k.judge(x, t); t.why == "" {
		k.store.put(&t.key, t.entry)
		t.stored = true
	}
	return err
}

// judge makes the entry of the ticket, or returns why the answer is not stored. A complete answer has an entry although it
// is too small to be stored.
func (k *storing) judge(x *flows.Exchange, t *ticket) (query.Reason, error) {
	r := &x.Response
	most := k.most
	if t.most >= 0 {
		most = min(most, t.most)
	}
	switch n := r.Body.Len(); {
	case r.Status != 200:
		return query.ReasonStatus, nil
	case n > most:
		return reasonTooLarge, nil
	case n < 0:
		return reasonStreamed, nil
	}
	body, err := r.Body.Bytes(most)
	switch {
	case err == flows.ErrBudget:
		return reasonMemory, nil // nothing was read: it goes on as a stream
	case err != nil:
		return reasonUnanswered, elastic.Errorf(502, "answer_exception", "the answer of the node broke off").Because(err)
	}
	ok, why := query.Complete(t.request.API, t.verdict.TerminateAfter, r.Status, &r.Header, body)
	if !ok {
		return why, nil
	}
	t.entry = newEntry(x, body, t.asked)
	t.entry.fresh = time.Now().Add(k.life(&t.verdict))
	if int64(len(body)) < max(k.least, t.least) {
		return reasonTooSmall, nil
	}
	return "", nil
}

// life returns how long an answer may be given. It differs by up to a tenth, so that what was stored together, when a
// dashboard was opened, is not asked for together again.
func (k *storing) life(v *query.Verdict) time.Duration {
	ttl := k.ttl
	if v.NowBound {
		ttl = min(ttl, k.nowTTL)
	}
	return ttl - ttl/10 + rand.N(ttl/5+1)
}
