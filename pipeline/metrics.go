package pipeline

import (
	"sync/atomic"
	"time"

	"weir/internal/obs"
)

// metrics are the numbers of one pipeline.
type metrics struct {
	stored, duplicate, rejected, dropped obs.Counter // records
	whole, partial, refused, failed      obs.Counter // bulk requests
	retries                              obs.Counter
	since                                atomic.Int64 // milliseconds of the oldest record in hand, 0 for none
	remove                               []func()
}

func newMetrics(m *obs.Metrics, pipeline string) *metrics {
	records := m.Counter("weir_pipeline_records_total",
		"Records settled: stored, duplicate (stored before), rejected (put aside in the queue for dead letters), dropped (rejected, and that queue had no room).",
		"pipeline", "outcome")
	batches := m.Counter("weir_pipeline_batches_total",
		"Bulk requests by how they ended: whole (all records settled), partial (some to be sent again), refused (answered with an error), failed (no usable answer).",
		"pipeline", "outcome")
	out := &metrics{
		stored: records.With(pipeline, "stored"), duplicate: records.With(pipeline, "duplicate"),
		rejected: records.With(pipeline, "rejected"), dropped: records.With(pipeline, "dropped"),
		whole: batches.With(pipeline, "whole"), partial: batches.With(pipeline, "partial"),
		refused: batches.With(pipeline, "refused"), failed: batches.With(pipeline, "failed"),
		retries: m.Counter("weir_pipeline_retries_total", "Records that have to be sent again.", "pipeline").With(pipeline),
	}
	lag := m.GaugeFunc("weir_pipeline_lag_seconds",
		"Age of the oldest record of the block in hand, by its @timestamp; 0 when there is none.", "pipeline")
	out.remove = append(out.remove, lag.Set(out.lag, pipeline))
	return out
}

// inHand notes the time of the oldest record in hand; zero for none.
func (m *metrics) inHand(at time.Time) {
	if at.IsZero() {
		m.since.Store(0)
		return
	}
	m.since.Store(at.UnixMilli())
}

func (m *metrics) lag() float64 {
	since := m.since.Load()
	if since == 0 {
		return 0
	}
	return max(0, time.Since(time.UnixMilli(since)).Seconds())
}

// close takes the computed numbers away.
func (m *metrics) close() {
	for _, remove := range m.remove {
		remove()
	}
}
