package elastic

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"weir/elastic/transport"
)

// A node that hangs (it is paused, its disk does not answer, it collects garbage) keeps its connections open, and nothing
// fails: exchanges just do not end. What tells it from a node with long searches is that it does not even answer GET /.
const (
	stallTick  = 250 * time.Millisecond
	stallTicks = 3                       // without any answer, while exchanges wait, until the node is asked
	stallLimit = 1250 * time.Millisecond // for the answer to that
)

// pending are the reads that wait for a node's answer: they can be sent elsewhere when it hangs.
type pending struct {
	mu   sync.Mutex // guards the list
	head *Call
}

// add puts r into the list. A call waits for one node at a time.
func (p *pending) add(r *Call) {
	p.mu.Lock()
	r.nextPending, r.prevPending = p.head, nil
	if p.head != nil {
		p.head.prevPending = r
	}
	p.head = r
	p.mu.Unlock()
}

func (p *pending) remove(r *Call) {
	p.mu.Lock()
	if r.prevPending != nil {
		r.prevPending.nextPending = r.nextPending
	} else {
		p.head = r.nextPending
	}
	if r.nextPending != nil {
		r.nextPending.prevPending = r.prevPending
	}
	r.nextPending, r.prevPending = nil, nil
	p.mu.Unlock()
}

// cut closes the connections of all calls in the list, which then fail as if the node had closed them.
func (p *pending) cut() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := p.head; r != nil; r = r.nextPending {
		r.Cancel.Cut()
		n++
	}
	return n
}

// watchStalls looks for nodes that hang.
func (k *Cluster) watchStalls() {
	defer k.tasks.Done()
	tick := time.NewTicker(stallTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-k.ctx.Done():
			return
		}
		for _, m := range k.picker.Members() {
			n := m.Node
			heard := n.answers.Load()
			if m.InFlight() == 0 || heard != n.lastAnswers {
				n.lastAnswers, n.silent = heard, 0
				continue
			}
			if n.silent++; n.silent < stallTicks || !n.asked.CompareAndSwap(false, true) {
				continue
			}
			n.silent = 0
			k.tasks.Go(func() {
				k.askSilent(m)
				n.asked.Store(false)
			})
		}
	}
}

// askSilent asks a node that has been silent for GET /. If it does not answer that either, it is taken out and reads that
// wait for it go elsewhere, if there is another node; writes wait on, since they may be under way.
func (k *Cluster) askSilent(m *member) {
	ctx, cancel := context.WithTimeout(k.ctx, stallLimit)
	defer cancel()
	before := m.Node.answers.Load()
	_, err := k.probe(ctx, m.Node)
	var te *transport.Error
	if !errors.As(err, &te) || !te.Timeout && ctx.Err() == nil || k.ctx.Err() != nil || m.Node.answers.Load() != before {
		return
	}
	m.Node.metrics.heard(false)
	m.Stalled("it hangs: exchanges wait and GET / is not answered within " + stallLimit.String())
	if !slices.ContainsFunc(k.picker.Members(), func(o *member) bool { return o != m && !o.Out() }) {
		return // there is no elsewhere: better late than never
	}
	if n := m.Node.pending.cut(); n > 0 {
		k.logger.Warn("reads that wait for a node that hangs are sent elsewhere", "node", m.Name, "reads", n)
	}
}
