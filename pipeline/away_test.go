package pipeline

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/queue/disk"
)

// TestClusterAwayForTenMinutes puts what ten minutes bring at a hundred records a second while the cluster is away: the
// queue grows on the disk and not in memory, and costs little CPU. When the cluster is back everything is delivered
// once, with new records coming.
func TestClusterAwayForTenMinutes(t *testing.T) {
	r := newRig(t, estest.Options{})
	const away, more = 600 * 100, 3000
	r.queues.options = disk.Options{BlockSize: 64 << 10, Sync: disk.SyncNever}
	r.env.Queues = r.queues
	r.open("requests") // the options hold for all who have it open
	r.es.Node(0).Stop()
	running := r.run(r.planOf("consumers: 2, json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests, worker_size: 2}"))
	before, began := heap(), cpu(t)
	for second := range 600 {
		for n := range 100 {
			if err := r.in.PutWait(t.Context(), []byte(record(second*100+n))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.in.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := r.in.Stats()
	if s.Records != away || s.Bytes < away*60 || s.Refused+s.Dropped > 0 {
		t.Errorf("%+v", s)
	}
	grown, filling := heap()-before, cpu(t)-began
	if grown > s.Bytes {
		t.Errorf("the heap grew by %d bytes for a queue of %d on disk", grown, s.Bytes)
	}
	// A hundredth of a core for the ten minutes that this stands for.
	if filling > 6*time.Second {
		t.Errorf("the records of ten minutes took %s of CPU while the cluster was away", filling)
	}
	t.Logf("away: %d records, %d bytes on disk, %d bytes more in memory, %s of CPU", away, s.Bytes, grown, filling)
	if err := r.es.Node(0).Start(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	var load sync.WaitGroup
	load.Go(func() {
		for n := range more {
			if err := r.in.PutWait(t.Context(), []byte(record(away+n))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	load.Wait()
	r.drained()
	t.Logf("back: %.0f records a second, with new ones coming", (away+more)/time.Since(back).Seconds())
	r.stop(running)
	r.wantStored(away + more)
	r.letters(0)
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
