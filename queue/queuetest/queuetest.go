// Package queuetest opens queues on disk for tests of those who fill and empty them.
//
// It is for tests only, and holds no queue of its own: what it opens are the queues of a gateway, in a folder that goes with the
// test. It trades speed for likeness.
package queuetest

import (
	"errors"
	"log/slog"
	"testing"

	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
)

// Queues opens queues with options that a test chooses. The zero value opens none.
type Queues struct {
	// Manager has the queues.
	Manager *disk.Manager
	// Options of queues that are opened from now on.
	Options disk.Options
}

// New returns queues in a folder of the test, which are closed when it ends. m and logger are theirs; they may be nil.
func New(tb testing.TB, m *obs.Metrics, logger *slog.Logger, o disk.Options) *Queues {
	tb.Helper()
	if m == nil {
		m = obs.NewMetrics()
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	in, err := disk.AcquireInstance(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	q := &Queues{disk.NewManager(in, m, logger), o}
	tb.Cleanup(func() {
		if err := errors.Join(q.Manager.Close(), in.Close()); err != nil {
			tb.Error(err)
		}
	})
	return q
}

// Open implements queue.Opener.
func (q *Queues) Open(name string) (queue.Queue, error) { return q.Manager.Open(name, q.Options) }

var _ queue.Opener = (*Queues)(nil)
