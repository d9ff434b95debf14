package disk

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"weir/queue"
)

// BenchmarkPut is the cost of a record to the one who puts it, with a consumer that keeps up.
func BenchmarkPut(b *testing.B) {
	q := open(b, b.TempDir(), Options{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := q.Peek(b.Context()); err != nil {
				return
			}
			if err := q.Advance(); err != nil {
				return
			}
		}
	}()
	record := bytes.Repeat([]byte("r"), 600)
	b.SetBytes(int64(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		if err := q.PutWait(b.Context(), record); err != nil {
			b.Fatal(err)
		}
	}
	if err := q.Close(); err != nil {
		b.Fatal(err)
	}
	<-ended
}

// BenchmarkPutSync is the cost of a record that must be on disk: one write and one sync, shared by the goroutines.
func BenchmarkPutSync(b *testing.B) {
	q := open(b, b.TempDir(), Options{})
	record := bytes.Repeat([]byte("r"), 600)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := q.PutSync(b.Context(), record); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkWriteAgainstDD lets a queue and dd write as many blocks of a megabyte, each of them synced or none, one after the
// other so that both meet the same disk. The metric queue/dd is how the queue's rate compares.
func BenchmarkWriteAgainstDD(b *testing.B) {
	const blocks, size = 64, 1 << 20
	record := bytes.Repeat([]byte(`{"@timestamp":"2024-02-29T12:00:00.000Z","url":{"path":"/logs/_search"}}`), 8)
	f := func(name string, o Options, flags ...string) {
		b.Run(name, func(b *testing.B) {
			if _, err := exec.LookPath("dd"); err != nil {
				b.Skip(err)
			}
			o.BlockSize, o.BlockAge, o.MaxBytes = size, never, 4<<30
			var inQueue, inFile time.Duration
			b.SetBytes(blocks * size)
			for b.Loop() {
				q := open(b, b.TempDir(), o)
				start := time.Now()
				for n := 0; n < blocks*size; n += len(record) + 1 {
					if err := q.PutWait(b.Context(), record); err != nil {
						b.Fatal(err)
					}
				}
				q.Queue.(*handle).queue.drain(b.Context()) // all is written, and synced if that is the policy
				inQueue += time.Since(start)
				q.shut()

				dd := exec.CommandContext(b.Context(), "dd", append(flags, "if=/dev/zero", "of="+filepath.Join(b.TempDir(), "plain"), "bs=1M", fmt.Sprintf("count=%d", blocks))...)
				start = time.Now()
				if out, err := dd.CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				inFile += time.Since(start)
			}
			b.ReportMetric(inFile.Seconds()/inQueue.Seconds(), "queue/dd")
		})
	}
	f("block", Options{Sync: SyncBlock}, "oflag=sync")
	f("block,zstd", Options{Sync: SyncBlock, Codec: queue.CodecZstd}, "oflag=sync")
	f("never", Options{Sync: SyncNever})
}
