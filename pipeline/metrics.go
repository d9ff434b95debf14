package pipeline

import "weir/internal/obs"

// metrics are the numbers of one pipeline.
type metrics struct {
	stored, duplicate, rejected, dropped obs.Counter // records
	whole, partial, refused, failed      obs.Counter // bulk requests
	retries                              obs.Counter
}

func newMetrics(m *obs.Metrics, pipeline string) *metrics {
	records := m.Counter("weir_pipeline_records_total",
		"Records settled: stored, duplicate (stored before), rejected (put aside in the queue for dead letters), dropped (rejected, and that queue had no room).",
		"pipeline", "outcome")
	batches := m.Counter("weir_pipeline_batches_total",
		"Bulk requests by how they ended: whole (all records settled), partial (some to be sent again), refused (answered with an error), failed (no usable answer).",
		"pipeline", "outcome")
	return &metrics{
		stored: records.With(pipeline, "stored"), duplicate: records.With(pipeline, "duplicate"),
		rejected: records.With(pipeline, "rejected"), dropped: records.With(pipeline, "dropped"),
		whole: batches.With(pipeline, "whole"), partial: batches.With(pipeline, "partial"),
		refused: batches.With(pipeline, "refused"), failed: batches.With(pipeline, "failed"),
		retries: m.Counter("weir_pipeline_retries_total", "Records that have to be sent again.", "pipeline").With(pipeline),
	}
}
