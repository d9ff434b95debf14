package elastic

import (
	"bytes"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"weir/elastic/api"
	"weir/elastic/balance"
	"weir/elastic/transport"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
)

// RetryConfig says how often and how soon an exchange that failed is tried on another node. What may be repeated at all
// follows from what the API does, never from the method.
type RetryConfig struct {
	// Attempts after the first that reach a node. Attempts of which nothing was sent, as to a node that refuses connections,
	// do not count.
	Max int `conf:"max" min:"0" max:"5"`
	// Retries of exchanges in flight, as a share of all exchanges in flight: when everything fails, retries must not double
	// the load. Without budget the first failure is passed on. What a single node that died or hangs leaves behind moves to
	// the others without it.
	Budget conf.Percent `conf:"budget"`
	// Retries that are always allowed at the same time.
	MinConcurrent int `conf:"min_concurrent" min:"0"`
	// Pause before the first retry, doubled for each further one; a random part of it is waited.
	Backoff conf.Duration `conf:"backoff"`
	// Longest pause.
	MaxBackoff conf.Duration `conf:"max_backoff"`
	// Longest Retry-After of a node that is waited for. A longer one goes to the client with the refusal.
	MaxRetryAfter conf.Duration `conf:"max_retry_after"`
	// Repeat writes that leave the same state when they run twice, such as PUT of a document with an id, also after the
	// connection broke or a proxy answered 502 or 504. Their second answer may differ: another version, updated in place
	// of created, 404 after a delete. All other writes are never repeated when they may have run.
	Writes string `conf:"writes" enum:"never,idempotent"`
}

// SetDefaults makes c two retries within a fifth of what is in flight.
func (c *RetryConfig) SetDefaults() {
	*c = RetryConfig{
		Max: 2, Budget: 20, MinConcurrent: 3, Backoff: conf.Duration(25 * time.Millisecond), MaxBackoff: conf.Duration(time.Second),
		MaxRetryAfter: conf.Duration(2 * time.Second), Writes: "never",
	}
}

// A verdict says how an exchange goes on.
type verdict uint8

const (
	stop      verdict = iota // with what has come of it
	elsewhere                // at once on another node: nothing was sent, or the node hangs
	lost                     // the same if the trouble is that node's alone, otherwise again: the connection broke
	again                    // on another node after a pause, if the budget allows
)

// A budget bounds retries by what is in flight. An exchange keeps what it has spent until it ends.
type budget struct{ inFlight, spent atomic.Int64 }

// spend takes one retry out of the budget.
func (b *budget) spend(c *RetryConfig) bool {
	limit := max(int64(c.MinConcurrent), int64(c.Budget.Fraction()*float64(b.inFlight.Load())))
	if b.spent.Add(1) > limit {
		b.spent.Add(-1)
		return false
	}
	return true
}

// leave ends an exchange that has spent so much.
func (b *budget) leave(spent int64) {
	b.inFlight.Add(-1)
	if spent > 0 {
		b.spent.Add(-spent)
	}
}

// answered tells the picker of an answer and returns how the exchange goes on.
func (k *Cluster) answered(m *member, r *Call, resp *transport.Response) verdict {
	outcome, cause, firstByte := balance.Good, "", resp.FirstByte
	v := stop
	switch resp.Status {
	case 429:
		outcome = balance.Busy
		if r.replayable() && (r.Idempotency != api.Unsafe || whollyRejected(resp)) {
			v = again
		}
	case 502, 504: // of proxies in between
		outcome, cause = balance.Failed, "answered "+strconv.Itoa(resp.Status)
		if r.Idempotency == api.Read || r.Idempotency == api.Idempotent && k.config.Retry.Writes == "idempotent" {
			v = again
		}
	case 503:
		outcome, cause = unavailable(r, resp)
		firstByte = 0
		// Reads and what moves a cursor are tried once elsewhere. A write is not: it would wait in each node for a master in
		// turn (elastic/elasticsearch#34427).
		if r.Attempts == 1 && r.Idempotency >= api.Cursor {
			v = again
		}
	}
	if resp.Stream != nil {
		resp.Stream = &flowing{ReadCloser: resp.Stream, m: m, class: r.Class, outcome: outcome, firstByte: firstByte, cause: cause}
		return stop
	}
	m.Done(r.Class, outcome, firstByte, cause)
	if !r.replayable() {
		return stop
	}
	return v
}

// whollyRejected tells whether a 429 says that nothing of the request was done. The answer of an _update_by_query or a
// _reindex that was refused half-way has the same status, and failures in place of an error.
func whollyRejected(resp *transport.Response) bool {
	if resp.Stream != nil || !bytes.HasPrefix(bytes.TrimLeft(resp.Body, " \r\n\t"), []byte(`{"error":`)) {
		return false
	}
	return bytes.Contains(resp.Body, []byte(`rejected_execution_exception"`)) || bytes.Contains(resp.Body, []byte(`"circuit_breaking_exception"`))
}

// unavailable tells what a 503 says about the node that answered it: nothing if it is about the shards of an index, its
// own isolation or a state of the cluster if there is no master, and a failure if a node never writes such an answer.
func unavailable(r *Call, resp *transport.Response) (o balance.Outcome, cause string) {
	switch {
	case resp.Stream != nil, string(r.Method) == "HEAD", resp.Header.Has("content-encoding"):
		return balance.Ignored, ""
	case !bytes.Contains(resp.Body, []byte(`"error":`)):
		return balance.Failed, "answered 503"
	case bytes.Contains(resp.Body, []byte(`"master_not_discovered_exception"`)), bytes.Contains(resp.Body, []byte(`"cluster_manager_not_discovered_exception"`)),
		bytes.Contains(resp.Body, []byte(`"cluster_block_exception"`)):
		return balance.Blocked, "answered that it has no master or is blocked"
	}
	return balance.Ignored, ""
}

// sayWhenBlockedEnds adds Retry-After to the 503 of a cluster that has no master or is blocked, which lasts for seconds most
// often: the client repeats what it asked sooner or later, and the gateway does not repeat writes (elastic/elasticsearch#34427).
// Nodes do not say it themselves.
func sayWhenBlockedEnds(r *Call, resp *transport.Response) {
	if resp.Status != 503 || resp.Header.Has("retry-after") {
		return
	}
	if outcome, _ := unavailable(r, resp); outcome == balance.Blocked {
		resp.Header.AddString("Retry-After", "1")
	}
}

// failed tells the picker and the metrics of an exchange without an answer, and returns how it goes on.
func (k *Cluster) failed(m *member, r *Call, te *transport.Error) verdict {
	outcome := balance.Failed
	switch {
	case te.Cancelled, te.Source, te.Phase == transport.Wait, errors.Is(te, transport.ErrRequest):
		outcome = balance.Ignored
	case te.Phase == transport.Dial, te.Phase == transport.Handshake:
		outcome = balance.Refused
		k.look()
	}
	m.Node.metrics.failed(te)
	cause := ""
	if outcome != balance.Ignored {
		cause = obs.RedactError(te).Error()
	}
	m.Done(r.Class, outcome, 0, cause)
	switch {
	case te.Cancelled, te.Source, errors.Is(te, transport.ErrRequest):
		return stop
	case te.Written == 0 && r.unsent(), r.Idempotency == api.Read && r.replayable() && r.Cancel != nil && r.Cancel.WasCut():
		return elsewhere
	case te.Timeout || !r.replayable():
		return stop
	case r.Idempotency == api.Read, r.Idempotency == api.Idempotent && k.config.Retry.Writes == "idempotent":
		return lost
	}
	return stop
}

// next returns the node for the next attempt, or nil if there is none to be.
func (k *Cluster) next(r *Call, v verdict, resp *transport.Response) *member {
	c := &k.config.Retry
	tried := r.tried[:r.Attempts]
	if v == stop || r.Attempts == len(r.tried) {
		return nil
	}
	// When one of few nodes dies, more than a budget's share of all exchanges go with it, and the others have to carry them
	// anyway. When all fail, the budget holds.
	if v == lost && !r.moved && k.picker.MostlyWell() {
		r.moved = true
		v = elsewhere
	}
	if v == elsewhere {
		return k.picker.Pick(r.Class, tried)
	}
	if int(r.spent) >= c.Max {
		return nil
	}
	pause, ok := k.backoff(r, resp)
	if !ok {
		return nil
	}
	if !k.budget.spend(c) {
		k.metrics.suppressed.Inc()
		return nil
	}
	r.spent++
	if !wait(pause, r) {
		return nil
	}
	m := k.picker.Pick(r.Class, tried)
	if m == nil && resp.Status == 429 {
		m = k.picker.Pick(r.Class, nil) // there is no other, and it may have room now
	}
	return m
}

// backoff returns how long to wait before the next retry; false if that is too long.
func (k *Cluster) backoff(r *Call, resp *transport.Response) (time.Duration, bool) {
	c := &k.config.Retry
	longest := min(c.Backoff.Std()<<r.spent, c.MaxBackoff.Std())
	pause := time.Duration(0)
	if longest > 0 {
		pause = time.Duration(k.deps.Rand(int(longest))) // full jitter
	}
	if resp.Status == 429 || resp.Status == 503 {
		after := retryAfter(&resp.Header)
		if after > c.MaxRetryAfter.Std() {
			return 0, false
		}
		pause = max(pause, after)
	}
	if !r.Deadline.IsZero() && k.deps.Now().Add(pause).After(r.Deadline) {
		return 0, false
	}
	return pause, true
}

// retryAfter returns how long an answer asks to wait: Retry-After in seconds, or what RateLimit
// (draft-ietf-httpapi-ratelimit-headers) says as t.
func retryAfter(h *wire.Header) time.Duration {
	text := h.Get("retry-after")
	if len(text) == 0 {
		_, t, ok := bytes.Cut(h.Get("ratelimit"), []byte(";t="))
		if !ok {
			return 0
		}
		text, _, _ = bytes.Cut(t, []byte(";"))
	}
	const most = 1 << 31
	seconds, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil || seconds < 0 || seconds > most {
		return most * time.Second // a date, or nonsense: not for us
	}
	return time.Duration(seconds) * time.Second
}

// wait waits, and tells whether the client is still there.
func wait(d time.Duration, r *Call) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	if r.Cancel == nil {
		<-timer.C
		return true
	}
	select {
	case <-timer.C:
		return true
	case <-r.Cancel.Done():
		return false
	}
}
