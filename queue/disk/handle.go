package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"weir/queue"
)

// handle is one user's view of a queue.
type handle struct {
	queue   *partitioned
	manager *Manager
	once    sync.Once
	done    chan struct{} // closed by Close
}

var _ queue.Queue = (*handle)(nil)

func (h *handle) closed() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

func (h *handle) Name() string { return h.queue.name }

func (h *handle) Stats() queue.Stats { return h.queue.stats() }

func (h *handle) Put(record []byte) error {
	if h.closed() {
		return queue.ErrClosed
	}
	_, err := h.queue.put(record)
	if !errors.Is(err, queue.ErrFull) {
		return err
	}
	if patience := h.queue.patience(); patience > 0 {
		ctx, cancel := context.WithTimeoutCause(context.Background(), patience, err)
		defer cancel()
		_, err = h.queue.waitPut(ctx, h.done, record)
	}
	if errors.Is(err, queue.ErrFull) {
		h.queue.refused()
	}
	return err
}

func (h *handle) PutWait(ctx context.Context, record []byte) error {
	if h.closed() {
		return queue.ErrClosed
	}
	_, err := h.queue.waitPut(ctx, h.done, record)
	return err
}

func (h *handle) PutSync(ctx context.Context, record []byte) error {
	if h.closed() {
		return queue.ErrClosed
	}
	at, err := h.queue.waitPut(ctx, h.done, record)
	if err != nil {
		return err
	}
	return at.store.flush(ctx, h.done, at.number)
}

func (h *handle) Flush(ctx context.Context) error {
	if h.closed() {
		return queue.ErrClosed
	}
	var err error
	for _, s := range h.queue.all() {
		err = errors.Join(err, s.flush(ctx, h.done, s.taken()))
	}
	return err
}

func (h *handle) Consumers(n int) ([]queue.Consumer, error) {
	if h.closed() {
		return nil, queue.ErrClosed
	}
	if n < 1 || n > queue.MaxConsumers {
		return nil, fmt.Errorf("split queue %s among %d consumers: want 1 to %d", h.queue.name, n, queue.MaxConsumers)
	}
	shares, err := h.queue.split(n)
	if err != nil {
		return nil, err
	}
	out := make([]queue.Consumer, n)
	for i := range out {
		out[i] = &consumer{handle: h, stores: shares[i]}
	}
	return out, nil
}

func (h *handle) Close() error {
	var err error
	h.once.Do(func() {
		close(h.done)
		err = h.manager.release(h.queue)
	})
	return err
}

// consumer takes blocks off the partitions that fell to it.
type consumer struct {
	handle *handle

	mu     sync.Mutex // guards the fields below, and is not held while it waits
	stores []*store   // the last one is its own; those before belonged to a wider split and get no more records
	inHand *store
}

var _ queue.Consumer = (*consumer)(nil)

// Peek implements queue.Consumer.
func (c *consumer) Peek(ctx context.Context) (queue.Block, error) {
	for {
		if err := ctx.Err(); err != nil {
			return queue.Block{}, context.Cause(ctx)
		}
		arrival := c.handle.queue.changed.next() // before the attempt, so that no arrival in between is missed
		if c.handle.closed() {
			return queue.Block{}, queue.ErrClosed
		}
		b, ok, err := c.take()
		if err != nil {
			return queue.Block{}, err
		}
		if ok {
			return b, nil
		}
		select {
		case <-arrival:
		case <-c.handle.done:
		case <-ctx.Done():
		}
	}
}

// take takes the oldest block in hand, if there is one.
func (c *consumer) take() (queue.Block, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 0; i < len(c.stores); i++ {
		s := c.stores[i]
		own := i == len(c.stores)-1
		done := !own && s.empty() // looked at first: what arrives after it is read below
		if own && s.ending() {
			return queue.Block{}, false, queue.ErrClosed
		}
		b, ok, err := s.readNext()
		if err != nil && !errors.Is(err, queue.ErrClosed) {
			err = fmt.Errorf("read queue %s: %w", s.name, err)
		}
		if ok || err != nil {
			c.inHand = s
			return b, ok, err
		}
		if done {
			c.stores = append(c.stores[:i:i], c.stores[i+1:]...)
			i--
		}
	}
	return queue.Block{}, false, nil
}

// Advance implements queue.Consumer.
func (c *consumer) Advance() error {
	if c.handle.closed() {
		return queue.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inHand == nil && c.stores[len(c.stores)-1].ending() {
		return queue.ErrClosed
	}
	if c.inHand == nil {
		return queue.ErrNotPeeked
	}
	return c.inHand.advance()
}

// patience returns how long Put waits for room.
func (q *partitioned) patience() time.Duration {
	s := q.all()[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opts.Full != Wait {
		return 0
	}
	return s.opts.FullWait
}
