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

	"weir/internal/obs"
	"weir/queue"
)

// Manager hands out the named queues of one instance folder. All who open a name share one queue, so that a new generation
// of the configuration can open its queues before the old one has closed them.
type Manager struct {
	path    string
	log     *slog.Logger
	metrics *obs.Metrics

	mu      sync.Mutex
	closed  bool
	lingers bool // queues stay open without users
	queues  map[string]*shared
}

// shared is an open queue with what belongs to it.
type shared struct {
	*partitioned
	users   int
	metrics []func() // take the queue's numbers away
}

// NewManager returns the manager of the instance's queues, which live in its folder "queue". The instance must stay open
// until the manager is closed. m gets the numbers of the open queues. log hears of damage, of recovery and of a disk that
// refuses. Neither may be nil.
func NewManager(in *Instance, m *obs.Metrics, log *slog.Logger) *Manager {
	return &Manager{path: in.Path(), log: log, metrics: m, queues: make(map[string]*shared)}
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
		p, err := openPartitioned(filepath.Join(m.path, queuesDir, name), name, o, m.log)
		if err != nil {
			return nil, err
		}
		q = &shared{partitioned: p, metrics: watch(m.metrics, name, p.stats)}
		m.queues[name] = q
	} else if err := q.reconfigure(o); err != nil {
		return nil, err
	}
	q.users++
	return &handle{queue: q.partitioned, manager: m, done: make(chan struct{})}, nil
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
		stats[name] = q.stats()
	}
	return stats
}

// Linger keeps queues open from now on when their last user has closed them, until Close: a process that ends has the time
// that it gives Drain to write what the disk refuses now.
func (m *Manager) Linger() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lingers = true
}

// Drain waits until the records of all open queues are on disk, which is tried again and again, or ctx ends.
func (m *Manager) Drain(ctx context.Context) {
	m.mu.Lock()
	open := slices.Collect(maps.Values(m.queues))
	m.mu.Unlock()
	for _, q := range open {
		q.drain(ctx)
	}
}

// Close closes all queues, whoever still has a handle. Their open blocks are written and synced.
// The error is queue.ErrLost if the disk did not take them.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	var err error
	for _, q := range m.queues {
		err = errors.Join(err, q.shut())
	}
	clear(m.queues)
	return err
}

func (q *shared) shut() error {
	for _, remove := range q.metrics {
		remove()
	}
	return q.close()
}

// release takes one user off a queue and closes it after the last.
func (m *Manager) release(p *partitioned) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[p.name]
	if q == nil || q.partitioned != p {
		return nil // Close was first
	}
	q.users--
	if q.users > 0 || m.lingers {
		return nil
	}
	delete(m.queues, p.name)
	return q.shut()
}
