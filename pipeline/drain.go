package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
)

// An outlet is where the blocks of a queue go, configured.
type outlet interface {
	// open takes what delivering needs. When it fails, nothing stays taken.
	open(env Env, f feed) (opened, error)
}

// feed tells an outlet about the queue that it serves.
type feed struct {
	name      string // of the pipeline, and of the outlet in it if there are several
	queue     string
	consumers int
	logger    *slog.Logger
	waiting   *atomic.Int64 // how many wait for a better time
}

// opened is an outlet at work.
type opened struct {
	sinks []sink // one for each consumer
	close func() error
}

// A sink settles the blocks of one consumer, one after the other.
type sink interface {
	// settle delivers all records of a block, or puts aside what is refused for good. It returns false when it was stopped
	// before that was done: while it waits for a better time it stops with take, otherwise with finish.
	settle(take, finish context.Context, block queue.Block) bool
}

// drain is a processor that takes blocks off a queue and gives them to an outlet.
type drain struct {
	input    string
	pipeline string
	settings Settings
	outlet   outlet
}

// drain returns the processor that takes blocks off the queue input, which the parameter input_queue gives, for an outlet.
// Within a dag the queue is that of the dag, and input must be empty. ordered outlets have one consumer.
func (b *Builder) drain(input string, ordered bool, o outlet) Processor {
	if ordered && b.settings.Consumers > 1 {
		b.Errorf("", "the order of actions upon a document needs one consumer; worker_size is how many requests it sends at a time")
	}
	if b.inner {
		if input != "" {
			b.Errorf("input_queue", "within a dag the queue is that of the dag: leave it out")
		}
		return &drain{outlet: o}
	}
	if input == "" {
		b.Errorf("input_queue", "the queue that records are taken from is missing")
	} else if err := disk.ValidName(input + deadSuffix); err != nil {
		b.Errorf("input_queue", "%s", err)
	}
	return &drain{input: input, pipeline: b.pipeline, settings: b.settings, outlet: o}
}

// Input implements Processor.
func (d *drain) Input() string { return d.input }

// Start implements Processor.
func (d *drain) Start(env Env) (Work, error) {
	in, err := env.Queues.Open(d.input)
	if err != nil {
		return nil, err
	}
	consumers, err := in.Consumers(d.settings.Consumers)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	w := &draining{
		in: in, consumers: consumers, ready: env.Ready, pause: d.settings.Pause.Std(),
		logger: env.Logger.With("pipeline", d.pipeline, "queue", d.input),
	}
	f := feed{name: d.pipeline, queue: d.input, consumers: len(consumers), logger: w.logger, waiting: &w.waiting}
	if w.outlet, err = d.outlet.open(env, f); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	w.throttle = obs.NewThrottle(w.logger, time.Minute)
	return w, nil
}

// draining is a drain at work.
type draining struct {
	in        queue.Queue
	consumers []queue.Consumer
	outlet    opened
	ready     <-chan struct{}
	pause     time.Duration // after each block
	logger    *slog.Logger
	throttle  *obs.Throttle
	waiting   atomic.Int64
}

// Idle implements Work.
func (w *draining) Idle() bool {
	s := w.in.Stats()
	return w.waiting.Load() > 0 || s.Depth == 0 && s.OpenRecords == 0
}

// Run implements Work: each consumer takes one block after the other, and takes each off the queue when all of its records
// are settled.
func (w *draining) Run(take, finish context.Context) error {
	errs := make([]error, len(w.consumers))
	if w.begin(take) {
		var running sync.WaitGroup
		for i := range w.consumers {
			running.Go(func() { errs[i] = w.consume(take, finish, w.consumers[i], w.outlet.sinks[i]) })
		}
		running.Wait()
	}
	w.throttle.Close()
	return errors.Join(append(errs, w.outlet.close(), w.in.Close())...)
}

// begin waits until the templates are installed. It returns false when it was stopped before.
func (w *draining) begin(take context.Context) bool {
	if w.ready == nil {
		return true
	}
	w.waiting.Add(1)
	defer w.waiting.Add(-1)
	select {
	case <-w.ready:
		return true
	case <-take.Done():
		return false
	}
}

func (w *draining) consume(take, finish context.Context, in queue.Consumer, to sink) error {
	pause := defaultBackoff
	for {
		block, err := in.Peek(take)
		switch {
		case take.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrClosed):
			w.logger.Error("the pipeline ends, its queue was closed", "error", err)
			return err
		case err != nil:
			w.throttle.Log(slog.LevelError, "peek", "the queue cannot be read, trying again", "error", err)
			if !pause.waitIn(take, 0, &w.waiting) {
				return nil
			}
			continue
		}
		pause = defaultBackoff
		if !to.settle(take, finish, block) {
			return nil // the block stays on the queue
		}
		if err := in.Advance(); err != nil {
			// The records are settled: if the block comes again, the cluster knows their ids.
			w.throttle.Log(slog.LevelError, "advance", "the place in the queue cannot be written", "error", err)
		}
		if w.pause > 0 {
			select {
			case <-time.After(w.pause):
			case <-take.Done():
			}
		}
	}
}

// waitIn is wait that is counted as waiting for a better time.
func (b *backoff) waitIn(ctx context.Context, atLeast time.Duration, waiting *atomic.Int64) bool {
	waiting.Add(1)
	defer waiting.Add(-1)
	return b.wait(ctx, atLeast)
}

// Settings are what a pipeline has beside its processor.
type Settings struct {
	// How many consumers work at the same time, each on its own partition of the queue. More than one gives up the order of
	// records between partitions.
	Consumers int `conf:"consumers" min:"1" max:"64"`
	// How long a consumer pauses after each block.
	Pause conf.Duration `conf:"pause" min:"0s" max:"1h"`
}

// String returns the settings as part of a plan's key.
func (s Settings) String() string { return fmt.Sprintf("%d %s", s.Consumers, s.Pause) }
