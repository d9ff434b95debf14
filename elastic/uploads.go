package elastic

import (
	"container/list"
	"sync"
	"time"

	"weir/elastic/balance"
)

// uploads bounds the exchanges whose requests are still coming while they are sent on. These last as long as their senders like:
// they may take three quarters of the places at the nodes that are well, so that they never keep the others out. They wait before
// they take a place at a node, in the order in which they came.
type uploads struct {
	mu      sync.Mutex // guards the fields below
	running int
	waiting list.List // of chan struct{}, closed when its turn has come
}

// begin waits until one more may run.
func (u *uploads) begin(k *Cluster, r *Call) error {
	limit := k.maxUploads()
	u.mu.Lock()
	if u.waiting.Len() == 0 && u.running < limit {
		u.running++
		u.mu.Unlock()
		return nil
	}
	if u.waiting.Len() >= k.options.MaxWaiting {
		u.mu.Unlock()
		return balance.ErrQueueFull
	}
	turn := make(chan struct{})
	place := u.waiting.PushBack(turn)
	u.dispatch(limit) // more nodes may be well than when the others began to wait
	u.mu.Unlock()

	start := k.deps.Now()
	defer func() { r.Queued += k.deps.Now().Sub(start) }()
	timer := time.NewTimer(k.patience(r))
	defer timer.Stop()
	var cancelled <-chan struct{}
	if r.Cancel != nil {
		cancelled = r.Cancel.Done()
	}
	var err error
	select {
	case <-turn:
		return nil
	case <-timer.C:
		err = balance.ErrTooLate
	case <-cancelled:
		err = balance.ErrCancelled
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case <-turn: // it came meanwhile, and goes to the next
		u.running--
		u.dispatch(limit)
	default:
		u.waiting.Remove(place)
	}
	return err
}

// end gives the place of one that was sent, or failed, to the next.
func (u *uploads) end(k *Cluster) {
	limit := k.maxUploads()
	u.mu.Lock()
	u.running--
	u.dispatch(limit)
	u.mu.Unlock()
}

// dispatch lets those run whose turn it is. The caller holds mu.
func (u *uploads) dispatch(limit int) {
	for e := u.waiting.Front(); e != nil && u.running < limit; e = u.waiting.Front() {
		turn, _ := u.waiting.Remove(e).(chan struct{})
		close(turn)
		u.running++
	}
}

// maxUploads is how many may run at the same time.
func (k *Cluster) maxUploads() int {
	well := 0
	for _, m := range k.picker.Members() {
		if m.Well() {
			well++
		}
	}
	return max(1, max(1, well)*k.options.MaxConns*3/4)
}

// queued returns how many exchanges wait for a place at a node.
func (k *Cluster) queued() int {
	k.uploads.mu.Lock()
	defer k.uploads.mu.Unlock()
	return k.picker.Waiting() + k.uploads.waiting.Len()
}
