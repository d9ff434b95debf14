package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"weir/queue"
)

// Manager hands out the named queues of one instance folder. All who open a name share one queue, so that a new generation
// of the configuration can open its queues before the old one has closed them.
type Manager struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	closed bool
	queues map[string]*shared
}

type shared struct {
	store *store
	users int
}

// NewManager returns the manager of the instance's queues, which live in its folder "queue". The instance must stay open
// until the manager is closed. log hears of damage, of recovery and of a disk that refuses; it must not be nil.
func NewManager(in *Instance, log *slog.Logger) *Manager {
	return &Manager{path: in.Path(), log: log, queues: make(map[string]*shared)}
}

// Open opens the queue name, made if need be, and counts its backlog, which reads it once. If the queue is open already, o
// applies to it from now on, for all its users.
func (m *Manager) Open(name string, o Options) (queue.Queue, error) {
	if err := ValidName(name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("open queue %s: %w", name, queue.ErrClosed)
	}
	q := m.queues[name]
	if q == nil {
		s, err := openStore(filepath.Join(m.path, queuesDir, name), name, o, m.log)
		if err != nil {
			return nil, err
		}
		q = &shared{store: s}
		m.queues[name] = q
	} else if err := q.store.reconfigure(o); err != nil {
		return nil, err
	}
	q.users++
	return &handle{store: q.store, manager: m, done: make(chan struct{})}, nil
}

// Names returns the names of the open queues and of those that have a folder, sorted.
func (m *Manager) Names() ([]string, error) {
	names, err := queueNames(m.path)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	names = slices.AppendSeq(names, maps.Keys(m.queues))
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Stats returns the numbers of the open queues by name.
func (m *Manager) Stats() map[string]queue.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	stats := make(map[string]queue.Stats, len(m.queues))
	for name, q := range m.queues {
		stats[name] = q.store.snapshot()
	}
	return stats
}

// Close closes all queues, whoever still has a handle. Their open blocks are written and synced.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	var err error
	for _, q := range m.queues {
		err = errors.Join(err, q.store.close())
	}
	clear(m.queues)
	return err
}

// release takes one user off a queue and closes it after the last.
func (m *Manager) release(s *store) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[s.name]
	if q == nil || q.store != s {
		return nil // Close was first
	}
	q.users--
	if q.users > 0 {
		return nil
	}
	delete(m.queues, s.name)
	return s.close()
}

// handle is one user's view of a queue.
type handle struct {
	store   *store
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

func (h *handle) Name() string { return h.store.name }

func (h *handle) Stats() queue.Stats { return h.store.snapshot() }

func (h *handle) Put(record []byte) error {
	if h.closed() {
		return queue.ErrClosed
	}
	return h.store.tryPut(record)
}

func (h *handle) PutWait(ctx context.Context, record []byte) error {
	if h.closed() {
		return queue.ErrClosed
	}
	_, err := h.store.waitPut(ctx, h.done, record)
	return err
}

func (h *handle) PutSync(ctx context.Context, record []byte) error {
	if h.closed() {
		return queue.ErrClosed
	}
	number, err := h.store.waitPut(ctx, h.done, record)
	if err != nil {
		return err
	}
	return h.store.flush(ctx, h.done, number)
}

func (h *handle) Flush(ctx context.Context) error {
	if h.closed() {
		return queue.ErrClosed
	}
	return h.store.flush(ctx, h.done, h.store.taken())
}

func (h *handle) Peek(ctx context.Context) (queue.Block, error) {
	if h.closed() {
		return queue.Block{}, queue.ErrClosed
	}
	return h.store.peek(ctx, h.done)
}

func (h *handle) Advance() error {
	if h.closed() {
		return queue.ErrClosed
	}
	return h.store.advance()
}

func (h *handle) Close() error {
	var err error
	h.once.Do(func() {
		close(h.done)
		err = h.manager.release(h.store)
	})
	return err
}
