package disk

import (
	"bytes"
	"testing"
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
