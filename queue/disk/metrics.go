package disk

import (
	"time"

	"weir/internal/obs"
	"weir/queue"
)

// watch shows the numbers of a queue, whether or not somebody consumes it, until the functions that it returns are called.
func watch(m *obs.Metrics, name string, stats func() queue.Stats) (remove []func()) {
	gauge := func(g *obs.FuncVec, of func(queue.Stats) float64) {
		remove = append(remove, g.Set(func() float64 { return of(stats()) }, name))
	}
	counter := func(c *obs.FuncVec, of func(queue.Stats) int64) {
		remove = append(remove, c.Set(func() float64 { return float64(of(stats())) }, name))
	}
	gauge(m.GaugeFunc("weir_queue_blocks", "Blocks on disk that were not delivered.", "queue"), func(s queue.Stats) float64 { return float64(s.Depth) })
	gauge(m.GaugeFunc("weir_queue_records", "Records in those blocks.", "queue"), func(s queue.Stats) float64 { return float64(s.Records) })
	gauge(m.GaugeFunc("weir_queue_open_records", "Records that wait in memory for the disk.", "queue"), func(s queue.Stats) float64 { return float64(s.OpenRecords) })
	gauge(m.GaugeFunc("weir_queue_bytes", "Size of the queue's files.", "queue"), func(s queue.Stats) float64 { return float64(s.Bytes) })
	gauge(m.GaugeFunc("weir_queue_bad_files", "Files that keep damaged stretches.", "queue"), func(s queue.Stats) float64 { return float64(s.BadFiles) })
	gauge(m.GaugeFunc("weir_queue_unreadable_files", "Files, not delivered, that are gone or in whose place is no regular file, since the queue was opened.", "queue"), func(s queue.Stats) float64 { return float64(s.Unreadable) })
	gauge(m.GaugeFunc("weir_queue_lag_seconds", "Age of the oldest block that was not delivered; 0 when there is none.", "queue"), func(s queue.Stats) float64 {
		if s.Oldest.IsZero() {
			return 0
		}
		return max(0, time.Since(s.Oldest).Seconds())
	})
	gauge(m.GaugeFunc("weir_queue_full", "1 while the queue has no room for another block, or its disk less than the reserve.", "queue"), func(s queue.Stats) float64 {
		if s.Full {
			return 1
		}
		return 0
	})
	counter(m.CounterFunc("weir_queue_put_records_total", "Records taken.", "queue"), func(s queue.Stats) int64 { return s.Put })
	counter(m.CounterFunc("weir_queue_refused_records_total", "Records not taken because the queue was full.", "queue"), func(s queue.Stats) int64 { return s.Refused })
	counter(m.CounterFunc("weir_queue_dropped_records_total", "Records given up to make room for newer ones.", "queue"), func(s queue.Stats) int64 { return s.Dropped })
	counter(m.CounterFunc("weir_queue_expired_records_total", "Records given up because of their age.", "queue"), func(s queue.Stats) int64 { return s.Expired })
	counter(m.CounterFunc("weir_queue_damaged_blocks_total", "Damaged stretches of files that were stepped over and kept as .bad files.", "queue"), func(s queue.Stats) int64 { return s.Bad })
	counter(m.CounterFunc("weir_queue_recovered_blocks_total", "Blocks found on disk after a process that did not close the queue.", "queue"), func(s queue.Stats) int64 { return s.Recovered })
	counter(m.CounterFunc("weir_queue_write_errors_total", "Failed attempts to write a block; each is tried again.", "queue"), func(s queue.Stats) int64 { return s.WriteErrors })
	return remove
}
