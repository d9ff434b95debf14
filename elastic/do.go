package elastic

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"weir/elastic/api"
	"weir/elastic/balance"
	"weir/elastic/transport"
	"weir/internal/obs"
	"weir/internal/wire"
)

// maxAttempts bounds the nodes that an exchange is tried on, those included to which nothing could be sent.
const maxAttempts = 8

// A Call is one exchange with a cluster. The embedded request's Target is without the cluster's base path.
type Call struct {
	transport.Request
	Idempotency api.Idempotency
	Class       balance.Class // what its latency is compared with
	ClientHost  []byte        // the Host that the client sent, for clusters that want it
	Caller      uint64        // who takes turns with others while all nodes are full
	OwnAuth     bool          // send the gateway's own credentials in place of the caller's

	// What became of it.
	Node      string // address of the node that answered, or that was tried last
	Attempts  int
	Queued    time.Duration // waiting for a node with room, or for a connection
	Connected time.Duration // dialling
	FirstByte time.Duration

	scratch []byte // target with base path, kept from call to call
	tried   [maxAttempts]*member
	spent   int64 // of the retry budget
	moved   bool  // away from a node that died

	nextPending, prevPending *Call // in a list of pending

	kept     transport.Response // what a node said, while another one is tried
	keptNode string
}

// Reset makes r ready for another call and keeps its memory.
func (r *Call) Reset() {
	extra := r.Extra[:0]
	r.kept.Reset()
	*r = Call{scratch: r.scratch[:0], kept: r.kept}
	r.Extra = extra
}

// Do sends r to a node and reads its answer into resp. It returns nil for every answer of a node, be it good or bad
// news. The error is an *Error for the client: 503 when no node is left, 504 when the answer did not begin in time, 502
// when it broke off, and 429 when too many exchanges wait already.
//
// Another node is tried when nothing of the request was sent. What else is repeated follows from what the API does, never
// from the method: clients send bulk requests with PUT (ruflin/Elastica#501). Reads are repeated after a reset and after
// 502 and 504, which come from proxies in between; what was refused with 429 is repeated after a pause. A retry is
// bounded in number, by a budget, and by the deadline.
func (k *Cluster) Do(r *Call, resp *transport.Response) error {
	if r.OwnAuth {
		r.lendAuth(k.auth.Load())
	}
	target := r.Target
	defer func() { r.Target = target }()
	k.budget.inFlight.Add(1)
	defer func() { k.budget.leave(r.spent) }()
	if r.Stream != nil && r.StreamLength != 0 {
		if err := k.uploads.begin(k, r); err != nil {
			return k.failure(r, err)
		}
		defer k.uploads.end(k)
	}
	m, err := k.first(r)
	if err != nil {
		return k.failure(r, err)
	}
	for {
		r.tried[r.Attempts] = m
		r.Attempts++
		if r.Attempts > 1 {
			k.metrics.retries.Inc()
		}
		if resp.Status != 0 {
			r.kept, *resp, r.keptNode = *resp, r.kept, r.Node
		}
		var v verdict
		v, err = k.try(m, r, target, resp)
		if v == stop && err == nil {
			sayWhenBlockedEnds(r, resp)
			return nil
		}
		if v == stop && r.Cancel != nil && r.Cancel.Fired() {
			return k.failure(r, err)
		}
		if m = k.next(r, v, resp); m == nil {
			break
		}
	}
	if resp.Status == 0 && r.kept.Status != 0 {
		r.kept, *resp, r.Node = *resp, r.kept, r.keptNode
	}
	if resp.Status != 0 {
		sayWhenBlockedEnds(r, resp)
		return nil // what a node said goes before what we would say of another one
	}
	return k.failure(r, err)
}

// first chooses the node of the first attempt, and waits for one while all are full.
func (k *Cluster) first(r *Call) (*member, error) {
	a := balance.Ask{Class: r.Class, Caller: r.Caller, Wait: k.patience(r)}
	if r.Cancel != nil {
		a.Cancel = r.Cancel
	}
	m, queued, err := k.picker.Acquire(a)
	r.Queued += queued
	return m, err
}

// patience is how long r may wait from now on for a place.
func (k *Cluster) patience(r *Call) time.Duration {
	if r.Deadline.IsZero() {
		return k.options.WaitTimeout
	}
	return min(k.options.WaitTimeout, r.Deadline.Sub(k.deps.Now()))
}

// try sends r to m. It tells how the exchange goes on, and what went wrong if no answer came.
func (k *Cluster) try(m *member, r *Call, target []byte, resp *transport.Response) (verdict, error) {
	n := m.Node
	r.Node = n.name
	r.Host = n.host
	if k.clientHost && len(r.ClientHost) > 0 {
		r.Host = r.ClientHost
	}
	r.Target = target
	if len(n.base) > 0 && string(target) != "*" { // OPTIONS * is about the node itself
		path, _, _ := bytes.Cut(target, question)
		r.scratch = api.DecodeSegment(r.scratch[:0], path)
		if leavesBase(r.scratch) {
			m.Done(r.Class, balance.Ignored, 0, "")
			return stop, errLeavesBase
		}
		r.scratch = append(append(r.scratch[:0], n.base...), target...)
		r.Target = r.scratch
	}
	switch r.Idempotency {
	case api.Read, api.Idempotent:
		r.Reuse = transport.RetryFresh
	default:
		r.Reuse = transport.RetryUnsent
	}
	// A read that can be sent elsewhere does not wait for a node that hangs.
	movable := r.Idempotency == api.Read && r.replayable() && r.Cancel != nil
	if movable {
		r.Cancel.Renew()
		n.pending.add(r)
	}
	err := n.pool.Do(&r.Request, resp)
	if movable {
		n.pending.remove(r)
	}
	r.Queued += resp.Queued
	r.Connected += resp.Connected
	if err == nil {
		r.FirstByte = resp.FirstByte
		n.answers.Add(1)
		n.metrics.answered(resp.Status)
		return k.answered(m, r, resp), nil
	}
	var te *transport.Error
	if !errors.As(err, &te) {
		m.Done(r.Class, balance.Ignored, 0, "")
		return stop, err
	}
	return k.failed(m, r, te), err
}

// A flowing body belongs to an exchange that stays in flight until the body has ended: a node that sends large answers
// is busy although their heads came soon.
type flowing struct {
	io.ReadCloser
	m         *member // nil when the exchange has ended
	class     balance.Class
	outcome   balance.Outcome // if the body is whole
	firstByte time.Duration
	cause     string
	closed    bool
}

// Read reads from the body.
func (f *flowing) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if err == nil || f.m == nil {
		return n, err
	}
	m, outcome, cause := f.m, f.outcome, f.cause
	f.m = nil
	var te *transport.Error
	switch {
	case !errors.As(err, &te): // the end
	case te.Cancelled:
		outcome = balance.Ignored
	default:
		outcome, cause = balance.Failed, obs.RedactError(te).Error()
	}
	m.Done(f.class, outcome, f.firstByte, cause)
	return n, err
}

// Close ends the exchange, wherever the body is: whoever has enough of it has no complaint of the node. Further calls do
// nothing: the Response that the body is a part of may be another exchange's by then.
func (f *flowing) Close() error {
	if f.m != nil {
		f.m.Done(f.class, f.outcome, f.firstByte, f.cause)
		f.m = nil
	}
	if f.closed {
		return nil
	}
	f.closed = true
	return f.ReadCloser.Close()
}

// replayable tells whether the request can be sent again as it was.
func (r *Call) replayable() bool { return r.Stream == nil }

// unsent tells whether a request of which nothing was written can be sent elsewhere: nobody has read from its stream.
func (r *Call) unsent() bool {
	s, ok := r.Stream.(interface{ Untouched() bool })
	return r.Stream == nil || ok && s.Untouched()
}

// look asks for discovery before its time.
func (k *Cluster) look() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// failure makes the error that the client gets.
func (k *Cluster) failure(r *Call, err error) error {
	var te *transport.Error
	errors.As(err, &te)
	e := &Error{Status: 502, Type: "bad_gateway_exception", Cause: err}
	switch {
	case errors.Is(err, balance.ErrNoMember) && k.drained():
		e.Status, e.Type, e.RetryAfter = 503, "no_node_available_exception", time.Second
		e.Reason = fmt.Sprintf("all nodes of cluster [%s] are drained: their weight is 0", k.config.Name)
	case errors.Is(err, balance.ErrNoMember), te != nil && te.Written == 0 && (te.Phase == transport.Dial || te.Phase == transport.Handshake):
		e.Status, e.Type, e.RetryAfter = 503, "no_node_available_exception", time.Second
		e.Reason = fmt.Sprintf("no node of cluster [%s] can be reached", k.config.Name)
	case errors.Is(err, balance.ErrQueueFull), errors.Is(err, balance.ErrTooLate):
		e.Status, e.Type, e.RetryAfter = 429, "es_rejected_execution_exception", time.Second
		e.Reason = fmt.Sprintf("all nodes of cluster [%s] are busy: %v", k.config.Name, err)
	case err == errLeavesBase:
		e.Status, e.Type, e.Reason, e.Cause = 400, "illegal_argument_exception", err.Error(), nil
	case te == nil:
		e.Reason = fmt.Sprintf("cluster [%s] failed to answer", k.config.Name)
	case errors.Is(err, transport.ErrPoolFull), errors.Is(err, transport.ErrWaitTimeout):
		e.Status, e.Type, e.RetryAfter = 429, "es_rejected_execution_exception", time.Second
		e.Reason = fmt.Sprintf("all connections to cluster [%s] are in use and too many requests wait for one", k.config.Name)
	case errors.Is(err, transport.ErrRequest):
		e.Status, e.Type = 400, "illegal_argument_exception"
		e.Reason = "the request cannot be sent on: " + transport.ErrRequest.Error()
	case te.Source:
		e.Status, e.Type, e.Reason = 400, "illegal_argument_exception", "the request's body broke off"
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			return te.Err // what reading the body failed with: over the limit, the client left
		}
	case te.Timeout:
		e.Status, e.Type = 504, "gateway_timeout_exception"
		e.Reason = fmt.Sprintf("node [%s] did not answer in time; what was asked may still run", r.Node)
	case errors.Is(err, wire.ErrStatusLine):
		e.Reason = fmt.Sprintf("what node [%s] answered is not HTTP/1.1", r.Node)
	case te.Answered:
		e.Reason = fmt.Sprintf("the answer of node [%s] broke off or was malformed", r.Node)
	default:
		e.Reason = fmt.Sprintf("node [%s] closed the connection before it answered", r.Node)
	}
	return e
}

var authorizationName = []byte("Authorization")

// lendAuth makes the gateway's own credentials, if there are any, replace those of the caller.
func (r *Call) lendAuth(value *string) {
	if value != nil && *value != "" {
		r.Extra = append(r.Extra, wire.Field{Name: authorizationName, Value: []byte(*value)})
	}
}

// ClassOf returns the class of a call, with its query as it came, for the balancer. Nodes run each class in thread pools of its
// own.
func ClassOf(call *api.Call, query []byte) balance.Class {
	switch call.Name {
	case "get", "mget", "get_source", "exists", "exists_source", "termvectors", "mtermvectors":
		return balance.Get
	}
	switch call.Class {
	case api.ClassSearch, api.ClassCursor:
		return balance.Search
	case api.ClassWrite:
		if name, ok := api.QueryValue(query, "pipeline"); ok && len(name) > 0 && string(name) != "_none" {
			return balance.Ingest
		}
		return balance.Write
	}
	return balance.Manage
}
