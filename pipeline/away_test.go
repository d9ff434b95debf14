package pipeline

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/simtime"
	"weir/queue/disk"
)

// TestClusterAwayForTenMinutes lets a hundred records a second come for ten minutes of simulated time in which the cluster is away,
// and on and on until the queue is empty again: it grows on the disk and not in memory, costs little CPU and few attempts, and
// drains faster than records come.
func TestClusterAwayForTenMinutes(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, estest.Options{InMemory: true})
		r.queues.Options = disk.Options{BlockAge: time.Second, Sync: disk.SyncNever}
		r.open("requests") // the options hold for all who have it open
		p := r.planOf("consumers: 2, json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests, worker_size: 2}")
		p.processor.(*drain).outlet.(*bulkOutlet).backoff = defaultBackoff
		put := 0
		load := func(during time.Duration) { // a hundred records a second
			t.Helper()
			for end := time.Now().Add(during); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
				for range 10 {
					if err := r.in.PutWait(t.Context(), []byte(record(put))); err != nil {
						t.Fatal(err)
					}
					put++
				}
			}
		}
		r.es.Node(0).Stop()
		running := r.run(p)
		before, began, most := heap(), cpu(t), int64(0)
		for minute := range 10 {
			load(time.Minute)
			most = max(most, heap()-before)
			// What came in the last second may be in memory still.
			if s := r.in.Stats(); s.Records < int64(put-200) || s.Records+s.OpenRecords != int64(put) || s.Refused+s.Dropped > 0 {
				t.Fatalf("after %d minutes and %d records: %+v", minute+1, put, s)
			}
			if minute == 0 {
				most = 0 // what is made once
				before = heap()
			}
		}
		s := r.in.Stats()
		if most > s.Bytes/5 {
			t.Errorf("the heap grew by up to %d bytes for a queue of %d on disk", most, s.Bytes)
		}
		used := cpu(t) - began
		if used > 6*time.Second { // a hundredth of a core
			t.Errorf("ten minutes took %s of CPU while the cluster was away", used)
		}
		failed := r.metric("weir_pipeline_batches_total", "main", "failed")
		if most := 2. * (10*60/5 + 10); failed < 2 || failed > most { // pauses of 5 to 10 seconds
			t.Errorf("%v attempts of two consumers in ten minutes, want at most %v", failed, most)
		}
		t.Logf("away: %d records, %d bytes on disk, at most %d bytes more in memory, %s of CPU, %v attempts", s.Records, s.Bytes, most, used, failed)

		// Each of two consumers has one bulk of a block, a hundred records, under way at a time.
		r.es.Inject(bulkOnly(estest.Fault{Delay: 200 * time.Millisecond}))
		if err := r.es.Node(0).Start(); err != nil {
			t.Fatal(err)
		}
		back, began := time.Now(), cpu(t)
		load(defaultBackoff.most + time.Second) // the longest that nothing is tried
		for last := r.in.Stats().Records; last > 200; last = r.in.Stats().Records {
			load(5 * time.Second)
			if now := r.in.Stats().Records; now > last-3*500 && now > 200 {
				t.Fatalf("%s after the cluster is back the queue has %d records, 5 seconds before it had %d", time.Since(back), now, last)
			}
		}
		took := time.Since(back)
		if took > 2*time.Minute {
			t.Errorf("the queue was empty %s after the cluster was back", took)
		}
		t.Logf("back: empty after %s, while %d records came, %s of CPU", took, put-int(s.Records+s.OpenRecords), cpu(t)-began)
		r.drained()
		r.stop(running)
		r.wantStored(put)
		r.letters(0)
	})
}

// heap returns the bytes in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cpu returns what this process has used so far.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
