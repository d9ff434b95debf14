package disk

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/queue"
)

// drainAll takes what consumers get until the queue says that it is empty, each on its own.
func drainAll(t *testing.T, q queue.Queue, consumers []queue.Consumer) [][]string {
	t.Helper()
	got := make([][]string, len(consumers))
	for s := q.Stats(); s.Depth+s.OpenRecords > 0; s = q.Stats() {
		for i, c := range consumers {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			b, err := c.Peek(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for r := range b.Records() {
				got[i] = append(got[i], string(r))
			}
			if err := c.Advance(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return got
}

func split(t *testing.T, q queue.Queue, n int) []queue.Consumer {
	t.Helper()
	consumers, err := q.Consumers(n)
	if err != nil {
		t.Fatal(err)
	}
	return consumers
}

func TestConsumersShareTheBlocks(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never, BlockRecords: 1})
	consumers := split(t, q, 3)
	q.blocks(0, 30)
	if dirs := names(t, path, "[0-9]/*.dat"); len(dirs) == 0 {
		t.Error("no partition has a folder of its own")
	}
	got := drainAll(t, q, consumers)
	for i, records := range got {
		if len(records) != 10 {
			t.Errorf("consumer %d got %d of 30 records", i, len(records))
		}
		if !inOrder(records) {
			t.Errorf("consumer %d: out of order: %v", i, records)
		}
	}
	wantSet(t, slices.Concat(got...), recs(0, 30))
}

func inOrder(records []string) bool {
	last := -1
	for _, r := range records {
		var n int
		if _, err := fmt.Sscanf(r, `{"number":%d}`, &n); err != nil || n < last {
			return false
		}
		last = n
	}
	return true
}

func wantSet(t *testing.T, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// What lies in partitions that get no more records, in a block that is still open too, comes out first.
func TestNarrowerSplitDeliversAllPartitions(t *testing.T) {
	path := t.TempDir()
	o := Options{BlockAge: 50 * time.Millisecond, BlockRecords: 2}
	q := open(t, path, o)
	split(t, q, 4)
	for i := range 21 {
		if err := q.PutWait(t.Context(), []byte(rec(i))); err != nil {
			t.Fatal(err)
		}
	}
	consumers := split(t, q, 2)
	for i := 21; i < 25; i++ {
		if err := q.PutWait(t.Context(), []byte(rec(i))); err != nil {
			t.Fatal(err)
		}
	}
	got := drainAll(t, q, consumers)
	wantSet(t, slices.Concat(got...), recs(0, 25))
	q.block("in the first two")
	if s := q.Queue.(*handle).queue.all(); s[2].snapshot().Put+s[3].snapshot().Put == 0 || s[2].snapshot().Depth+s[3].snapshot().Depth > 0 {
		t.Errorf("%+v %+v", s[2].snapshot(), s[3].snapshot())
	}
	q.shut()

	// A queue that nobody has split yet knows its partitions.
	q = open(t, path, o)
	wantSet(t, slices.Concat(drainAll(t, q, []queue.Consumer{q})...), []string{"in the first two"})
}

func TestKilledWithSeveralPartitions(t *testing.T) {
	path := t.TempDir()
	o := Options{BlockAge: never, BlockRecords: 1}
	q := open(t, path, o)
	split(t, q, 3)
	q.blocks(0, 9)
	q.shut()
	in, err := OpenInstance(filepath.Join(t.TempDir(), nodesDir, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var got []string
	deliver := func(_ context.Context, name string, b queue.Block) error {
		for r := range b.Records() {
			got = append(got, name+string(r))
		}
		return nil
	}
	n, err := adoptInstance(t.Context(), path, deliver, silent)
	if err != nil || n != 9 {
		t.Errorf("adopted %d blocks, %v", n, err)
	}
	var want []string
	for _, r := range recs(0, 9) {
		want = append(want, "q"+r)
	}
	wantSet(t, got, want)
	if left, err := queueNames(path); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestSplitIsBounded(t *testing.T) {
	q := open(t, t.TempDir(), Options{MaxBytes: 1 << 20, MaxRecord: 1 << 16, BlockSize: 1 << 16})
	f := func(n int, want string) {
		t.Helper()
		consumers, err := q.Consumers(n)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", n, err, want)
		}
		if err == nil && len(consumers) != n {
			t.Errorf("%d: %d consumers", n, len(consumers))
		}
	}
	f(0, "want 1 to 64")
	f(65, "want 1 to 64")
	f(8, "a quarter of 131072 bytes is the most")
	f(2, "")
	// Both partitions together keep to the bound of the queue.
	record := []byte(strings.Repeat("r", 1<<14))
	for err := error(nil); err == nil; err = q.Put(record) {
		if s := q.Stats(); s.Bytes > 1<<20 {
			t.Fatalf("%d bytes", s.Bytes)
		}
		if err := q.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s := q.Stats(); s.Refused != 1 || s.Bytes < 3<<18 || !s.Full {
		t.Errorf("%+v", s)
	}
}

func TestAdvanceNeedsABlockInHand(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never})
	for _, c := range split(t, q, 2) {
		if err := c.Advance(); !errors.Is(err, queue.ErrNotPeeked) {
			t.Error(err)
		}
	}
}

// A reload opens the queues of the new configuration while the consumers of the old one are still there.
func TestLessRoomForFewerConsumers(t *testing.T) {
	path := t.TempDir()
	m := newManager(t, path)
	o := Options{MaxBytes: 8 << 20, MaxRecord: 1 << 16, BlockSize: 1 << 16}
	q := openIn(t, m, "q", o)
	split(t, q, 8)
	o.MaxBytes = 1 << 20
	smaller := openIn(t, m, "q", o)
	split(t, smaller, 2)
	record := []byte(strings.Repeat("r", 1<<14))
	for err := error(nil); err == nil; err = smaller.Put(record) {
		if err := smaller.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s := smaller.Stats(); s.Bytes > 1<<20 {
		t.Errorf("%d bytes, want at most 1 MiB", s.Bytes)
	}
	o.BlockSize = 1 << 20
	if _, err := m.Open("q", o); err == nil {
		t.Error("options that no queue can have were taken")
	}
}
