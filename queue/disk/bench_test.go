package disk

import (
	"bytes"
	"errors"
	"os"
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

// BenchmarkWriteAgainstFile writes the same bytes into a queue and, a megabyte at a time, into a plain file, each megabyte
// synced, one after the other so that both meet the same disk. The metric queue/file is how the queue's rate compares.
func BenchmarkWriteAgainstFile(b *testing.B) {
	const blocks, size = 32, 1 << 20
	for _, codec := range []queue.Codec{queue.CodecNone, queue.CodecZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			record := bytes.Repeat([]byte(`{"@timestamp":"2024-02-29T12:00:00.000Z","url":{"path":"/logs/_search"}}`), 8)
			var inQueue, inFile time.Duration
			b.SetBytes(blocks * size)
			for b.Loop() {
				q := open(b, b.TempDir(), Options{BlockSize: size, BlockAge: never, Codec: codec, MaxBytes: 4 << 30})
				start := time.Now()
				for n := 0; n < blocks*size; n += len(record) + 1 {
					if err := q.PutWait(b.Context(), record); err != nil {
						b.Fatal(err)
					}
				}
				if err := q.Flush(b.Context()); err != nil {
					b.Fatal(err)
				}
				inQueue += time.Since(start)
				q.shut()

				f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
				if err != nil {
					b.Fatal(err)
				}
				block := bytes.Repeat([]byte("r"), size)
				start = time.Now()
				for range blocks {
					_, err := f.Write(block)
					if err = errors.Join(err, f.Sync()); err != nil {
						b.Fatal(err)
					}
				}
				inFile += time.Since(start)
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(inFile.Seconds()/inQueue.Seconds(), "queue/file")
		})
	}
}
