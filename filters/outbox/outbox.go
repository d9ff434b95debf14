// Package outbox gives filters the queue that they put something into: what they share of opening it, counting, telling
// the log and closing.
//
// It is no queue (package queue is) and does not know what is put into it. It trades a place in the middle for that: a filter
// still calls the queue itself, and then Count.
package outbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"weir/flows"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
)

// Words are the lines of the log about what is put into an outbox.
type Words struct {
	Refused   string // while the queue is full
	Failed    string // while it takes none for another reason
	Unwritten string // when the last ones did not reach the disk
}

// An Outbox is a queue that a filter puts something into. A filter that has one inside is stopped by it.
type Outbox struct {
	// Name of the queue.
	Name string
	// Queue is open from Open to Stop.
	Queue queue.Queue
	// Life ends when what the filter does is to be given up.
	Life context.Context
	// Throttle takes further lines for the log.
	Throttle *obs.Throttle

	words  *Words
	opener queue.Opener
	logger *slog.Logger

	queued, refused, failed obs.Counter
}

// Build makes o one for the queue that the field queue_name names. It returns false after it has told b why there can be none.
func (o *Outbox) Build(b *flows.Builder, name string, words *Words) bool {
	if err := disk.ValidName(name); err != nil {
		b.Errorf("queue_name", "%s", err)
		return false
	}
	opener, ok := flows.Resource[queue.Opener](b, "queues", "default")
	*o = Outbox{Name: name, words: words, opener: opener}
	return ok
}

// Open opens the queue. outcomes is a counter by queue and outcome.
func (o *Outbox) Open(rt *flows.Runtime, outcomes *obs.CounterVec) error {
	q, err := o.opener.Open(o.Name)
	if err != nil {
		return err
	}
	o.queued, o.refused, o.failed = outcomes.With(o.Name, "queued"), outcomes.With(o.Name, "refused"), outcomes.With(o.Name, "failed")
	o.Queue, o.logger, o.Life = q, rt.Logger.With("queue", o.Name), rt.Life()
	o.Throttle = obs.NewThrottle(o.logger, time.Minute)
	return nil
}

// Stop implements flows.Stopper.
func (o *Outbox) Stop() {
	if o.Queue == nil {
		return
	}
	o.Throttle.Close()
	if err := o.Queue.Close(); err != nil {
		o.logger.Error(o.words.Unwritten, "error", err)
	}
	o.Queue = nil
}

// Count counts what came of putting something into the queue, and tells the log of errors.
func (o *Outbox) Count(err error) {
	switch {
	case err == nil:
		o.queued.Inc()
	case errors.Is(err, queue.ErrFull):
		o.refused.Inc()
		o.Throttle.Log(slog.LevelWarn, "refused", o.words.Refused, "error", err)
	default:
		o.failed.Inc()
		o.Throttle.Log(slog.LevelWarn, "failed", o.words.Failed, "error", err)
	}
}
