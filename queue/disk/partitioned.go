package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"weir/queue"
)

// partitioned is a queue: its partitions, of which the first lies in the queue's folder and each further one in a folder in
// it that is named by its number.
type partitioned struct {
	name    string
	dir     string
	log     *slog.Logger
	changed signal        // of any partition
	turn    atomic.Uint64 // which partition the next block goes to; raised with each block that is closed

	parts   atomic.Pointer[[]*store]
	writing atomic.Int64 // the first so many partitions get records

	mu   sync.Mutex // guards opts and the growth of parts
	opts Options
}

// openPartitioned opens the queue in dir with all partitions that are there. Until it is split the first one gets records.
func openPartitioned(dir, name string, o Options, log *slog.Logger) (*partitioned, error) {
	q := &partitioned{name: name, dir: dir, log: log, opts: o}
	q.parts.Store(new([]*store))
	q.writing.Store(1)
	numbers, err := partitionNumbers(dir)
	if err != nil {
		return nil, fmt.Errorf("open queue %s in %s: %w", name, dir, err)
	}
	if err := q.grow(slices.Max(numbers) + 1); err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

// partitionNumbers returns the numbers of the partitions in the folder of a queue; 0 is always among them.
func partitionNumbers(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	numbers := []int{0}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() && n > 0 && n < queue.MaxConsumers && strconv.Itoa(n) == e.Name() {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// partitionDir is the folder of a partition.
func partitionDir(dir string, n int) string {
	if n == 0 {
		return dir
	}
	return filepath.Join(dir, strconv.Itoa(n))
}

func (q *partitioned) all() []*store { return *q.parts.Load() }

// grow opens partitions until there are n. The caller holds mu, or is the only one who has q.
func (q *partitioned) grow(n int) error {
	parts := slices.Clone(q.all())
	for len(parts) < n {
		s, err := openStore(partitionDir(q.dir, len(parts)), q.name, q.opts, &q.changed, &q.turn, q.log)
		if err != nil {
			return err
		}
		parts = append(parts, s)
		q.parts.Store(&parts)
		parts = slices.Clone(parts)
	}
	return nil
}

// split makes n partitions get the records from now on and deals all partitions out to n consumers. What is read first comes
// first; the last one of each share is that which gets records.
func (q *partitioned) split(n int) ([][]*store, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	part, err := share(q.opts, n)
	if err != nil {
		return nil, fmt.Errorf("split queue %s among %d consumers: %w", q.name, n, err)
	}
	if err := q.grow(n); err != nil {
		return nil, err
	}
	if err := q.apply(part); err != nil {
		return nil, err
	}
	q.writing.Store(int64(n))
	shares := make([][]*store, n)
	for i, s := range q.all() {
		shares[i%n] = slices.Insert(shares[i%n], 0, s)
	}
	return shares, nil
}

// reconfigure gives an open queue other options. Where they leave too little for each of its partitions, the partitions keep
// theirs until it is split anew, which whoever lowers the bound of a queue with its consumers does next.
func (q *partitioned) reconfigure(o Options) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := o.Check(1); err != nil {
		return fmt.Errorf("reconfigure queue %s: %w", q.name, err)
	}
	q.opts = o
	part, err := share(o, int(q.writing.Load()))
	if err != nil {
		return nil
	}
	return q.apply(part)
}

// share returns the options of each of n partitions, which share the bound of the queue.
func share(o Options, n int) (Options, error) {
	o, err := o.normalize()
	if err != nil || n == 1 {
		return o, err
	}
	o.MaxBytes /= int64(n)
	part, err := o.normalize()
	if err != nil {
		return part, fmt.Errorf("each of %d partitions has %d bytes of the queue: %w", n, o.MaxBytes, err)
	}
	return part, nil
}

// Check returns why a queue of these options cannot be opened, or cannot be split among a number of consumers. It does no I/O.
func (o Options) Check(consumers int) error {
	_, err := share(o, consumers)
	return err
}

func (q *partitioned) apply(o Options) error {
	for _, s := range q.all() {
		if err := s.reconfigure(o); err != nil {
			return err
		}
	}
	return nil
}

// place is where a record was put.
type place struct {
	store  *store
	number uint64 // of the block
}

// put copies record into the open block of the partition whose turn it is, or of the next one that has room.
func (q *partitioned) put(record []byte) (place, error) {
	parts := q.all()
	n := uint64(q.writing.Load())
	turn := q.turn.Load()
	var firstErr error
	for i := range n {
		s := parts[(turn+i)%n]
		number, err := s.put(record)
		if err == nil {
			return place{s, number}, nil
		}
		if firstErr == nil {
			firstErr = err
		}
		if !errors.Is(err, queue.ErrFull) {
			break
		}
	}
	return place{}, firstErr
}

// waitPut is put that waits for room until ctx or stop ends.
func (q *partitioned) waitPut(ctx context.Context, stop <-chan struct{}, record []byte) (place, error) {
	at, err := q.put(record)
	for errors.Is(err, queue.ErrFull) {
		room := q.changed.next() // before the next attempt, so that no change in between is missed
		if at, err = q.put(record); !errors.Is(err, queue.ErrFull) {
			break
		}
		select {
		case <-room:
		case <-stop:
			return place{}, queue.ErrClosed
		case <-ctx.Done():
			return place{}, context.Cause(ctx)
		}
	}
	return at, err
}

// refused counts a record that was not taken.
func (q *partitioned) refused() {
	s := q.all()[0]
	s.mu.Lock()
	s.stats.Refused++
	s.mu.Unlock()
}

func (q *partitioned) stats() queue.Stats {
	var sum queue.Stats
	for _, s := range q.all() {
		sum.Add(s.snapshot())
	}
	return sum
}

// drain waits until no record is in memory only, or ctx ends.
func (q *partitioned) drain(ctx context.Context) {
	for {
		change := q.changed.next() // before the look, so that no change in between is missed
		left := false
		for _, s := range q.all() {
			left = s.hurry() || left
		}
		if !left {
			return
		}
		select {
		case <-change:
		case <-ctx.Done():
			return
		}
	}
}

func (q *partitioned) close() error {
	var err error
	for _, s := range q.all() {
		err = errors.Join(err, s.close())
	}
	return err
}
