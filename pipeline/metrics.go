package pipeline

import (
	"sync/atomic"
	"time"

	"weir/internal/obs"
	"weir/queue"
)

// metrics are the numbers of one pipeline and of its queues.
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

// watch shows the numbers of a queue.
func (m *metrics) watch(all *obs.Metrics, q queue.Queue) {
	gauge := func(name, help string, of func(queue.Stats) int64) {
		m.remove = append(m.remove, all.GaugeFunc(name, help, "queue").Set(func() float64 { return float64(of(q.Stats())) }, q.Name()))
	}
	counter := func(name, help string, of func(queue.Stats) int64) {
		m.remove = append(m.remove, all.CounterFunc(name, help, "queue").Set(func() float64 { return float64(of(q.Stats())) }, q.Name()))
	}
	gauge("weir_queue_blocks", "Blocks on disk that were not delivered.", func(s queue.Stats) int64 { return s.Depth })
	gauge("weir_queue_records", "Records in those blocks.", func(s queue.Stats) int64 { return s.Records })
	gauge("weir_queue_open_records", "Records that wait in memory for the disk.", func(s queue.Stats) int64 { return s.OpenRecords })
	gauge("weir_queue_bytes", "Size of the queue's files.", func(s queue.Stats) int64 { return s.Bytes })
	counter("weir_queue_put_records_total", "Records taken.", func(s queue.Stats) int64 { return s.Put })
	counter("weir_queue_refused_records_total", "Records not taken because the queue was full.", func(s queue.Stats) int64 { return s.Refused })
	counter("weir_queue_dropped_records_total", "Records given up to make room for newer ones.", func(s queue.Stats) int64 { return s.Dropped })
	counter("weir_queue_damaged_blocks_total", "Damaged stretches of files that were stepped over and kept as .bad files.", func(s queue.Stats) int64 { return s.Bad })
	counter("weir_queue_write_errors_total", "Failed attempts to write a block; each is tried again.", func(s queue.Stats) int64 { return s.WriteErrors })
}

// close takes the computed numbers away.
func (m *metrics) close() {
	for _, remove := range m.remove {
		remove()
	}
}
