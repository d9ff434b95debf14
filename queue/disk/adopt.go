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
	"time"

	"weir/queue"
)

// Deliver takes over a block of an orphaned queue. When it returns nil the block is taken off the orphan, so what it holds
// must be durable by then. The block's memory is valid until Deliver returns.
type Deliver func(ctx context.Context, queueName string, b queue.Block) error

// Adopt goes once through the instance folders under dataPath, locks each that no process has, and hands the blocks of its
// queues to deliver, in order. If deliver fails, that queue is left as it is for the next time. A crash in between delivers
// the block in hand again and loses none. It returns the number of blocks that were adopted.
func Adopt(ctx context.Context, dataPath string, deliver Deliver, log *slog.Logger) (int, error) {
	nodes := filepath.Join(dataPath, nodesDir)
	entries, err := os.ReadDir(nodes)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for orphaned queues: %w", err)
	}
	adopted := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil || !e.IsDir() {
			continue
		}
		n, adoptErr := adoptInstance(ctx, filepath.Join(nodes, e.Name()), deliver, log)
		adopted += n
		err = errors.Join(err, adoptErr)
	}
	return adopted, err
}

func adoptInstance(ctx context.Context, path string, deliver Deliver, log *slog.Logger) (adopted int, err error) {
	in, err := OpenInstance(path)
	if errors.Is(err, ErrLocked) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	names, err := queueNames(path)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		n, queueErr := adoptQueue(ctx, filepath.Join(path, queuesDir, name), name, deliver, log)
		adopted += n
		if queueErr != nil {
			err = errors.Join(err, fmt.Errorf("adopt queue %s of %s: %w", name, path, queueErr))
		}
	}
	return adopted, err
}

// adoptQueue hands over the blocks of all partitions of a queue.
func adoptQueue(ctx context.Context, dir, name string, deliver Deliver, log *slog.Logger) (adopted int, err error) {
	numbers, err := partitionNumbers(dir)
	if err != nil {
		return 0, err
	}
	slices.Sort(numbers)
	for _, n := range slices.Backward(numbers) { // the first one's folder holds the others
		taken, partErr := adoptPartition(ctx, partitionDir(dir, n), name, deliver, log)
		adopted += taken
		err = errors.Join(err, partErr)
	}
	return adopted, err
}

func adoptPartition(ctx context.Context, dir, name string, deliver Deliver, log *slog.Logger) (adopted int, err error) {
	if keys, _, err := listData(dir); err != nil || len(keys) == 0 {
		return 0, errors.Join(err, removeEmpty(dir))
	}
	s, err := openStore(dir, name, Options{}, new(signal), new(atomic.Uint64), log)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, s.close())
		if err == nil {
			err = removeEmpty(dir)
		}
	}()
	for {
		// Peek would wait for a next block; nobody writes here.
		b, ok, err := s.readNext()
		if err != nil || !ok {
			return adopted, err
		}
		if err := deliver(ctx, name, b); err != nil {
			return adopted, err
		}
		if err := s.advance(); err != nil {
			return adopted, err
		}
		adopted++
	}
}

// removeEmpty removes the folder of a queue that holds nothing. A folder with data or .bad files stays, and so does its
// head, which keeps the numbers of later files from beginning again.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != headName {
			return nil
		}
	}
	return os.RemoveAll(dir)
}

// Adopter takes over the queues of processes that have ended, so that five processes followed by one strand nothing. Blocks
// go into this process's queue of the same name.
type Adopter struct {
	dataPath string
	interval time.Duration
	open     func(name string) (queue.Queue, error)
	log      *slog.Logger

	cancel context.CancelFunc
	done   sync.WaitGroup
	blocks atomic.Int64
}

// StartAdopter adopts at once and then each interval, until Close. open returns this process's queue of a name; if it fails,
// the orphan is left as it is, and tried again. The queue is closed after each orphan.
func StartAdopter(dataPath string, interval time.Duration, open func(name string) (queue.Queue, error), log *slog.Logger) *Adopter {
	ctx, cancel := context.WithCancel(context.Background())
	a := &Adopter{dataPath: dataPath, interval: interval, open: open, log: log, cancel: cancel}
	a.done.Go(func() { a.run(ctx) })
	return a
}

func (a *Adopter) run(ctx context.Context) {
	ticker := time.NewTicker(a.interval)
	defer ticker.Stop()
	for {
		n, err := Adopt(ctx, a.dataPath, a.deliver, a.log)
		a.blocks.Add(int64(n))
		if n > 0 {
			a.log.Info("adopted the queues of processes that have ended", "blocks", n)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("some orphaned queues were not adopted; trying again", "interval", a.interval, "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// deliver moves a block into the own queue. It waits while that is full, with the orphan locked: its blocks are safe where
// they are.
func (a *Adopter) deliver(ctx context.Context, name string, b queue.Block) (err error) {
	q, err := a.open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	for record := range b.Records() {
		err := q.PutWait(ctx, record)
		if errors.Is(err, queue.ErrTooLarge) || errors.Is(err, queue.ErrInvalid) {
			// The limits are lower than they were. One such record must not keep the others from being delivered.
			a.log.Error("a record of an orphaned queue is given up", "queue", name, "error", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return q.Flush(ctx)
}

// Blocks returns the number of blocks that were adopted.
func (a *Adopter) Blocks() int64 { return a.blocks.Load() }

// Close ends the adopter and waits until it has ended.
func (a *Adopter) Close() {
	a.cancel()
	a.done.Wait()
}
