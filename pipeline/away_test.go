package pipeline

import (
	"runtime"
	"sync"
	"testing"

	"weir/elastic/estest"
	"weir/queue/disk"
)

// TestClusterAwayForTenMinutes puts what ten minutes bring at a hundred records a second while the cluster is away: the
// queue grows on the disk and not in memory. When the cluster is back everything is delivered once, with new records coming.
func TestClusterAwayForTenMinutes(t *testing.T) {
	r := newRig(t, estest.Options{})
	const away, more = 600 * 100, 3000
	r.queues.options = disk.Options{BlockSize: 64 << 10, Sync: disk.SyncNever}
	r.env.Queues = r.queues
	r.open("requests") // the options hold for all who have it open
	r.es.Node(0).Stop()
	running := r.run(r.planOf("consumers: 2, json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests, worker_size: 2}"))
	before := heap()
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
	if grown := heap() - before; grown > s.Bytes {
		t.Errorf("the heap grew by %d bytes for a queue of %d on disk", grown, s.Bytes)
	}
	if err := r.es.Node(0).Start(); err != nil {
		t.Fatal(err)
	}
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
