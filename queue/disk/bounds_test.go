package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/simtime"
	"weir/queue"
)

func TestRecordsAreGivenUpWhenTheyAreTooOld(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		path := t.TempDir()
		o := Options{BlockAge: never, BlockRecords: 1, MaxBytesPerFile: 2 * 45, MaxAge: time.Hour}
		q := open(t, path, o)
		q.blocks(0, 4)
		<-time.After(50 * time.Minute)
		q.blocks(4, 5)
		<-time.After(11 * time.Minute)
		synctest.Wait()
		if s := q.Stats(); s.Expired != 4 || s.Depth != 1 || time.Since(s.Oldest) > time.Hour {
			t.Errorf("%+v", s)
		}
		// The file that is being written ages as well.
		<-time.After(time.Hour)
		synctest.Wait()
		if s := q.Stats(); s.Expired != 5 || s.Depth != 0 || s.Bytes != 0 || !s.Oldest.IsZero() {
			t.Errorf("%+v", s)
		}
		q.block("new")
		wantRecords(t, q.take(1), []string{"new"})
		q.block("old", "old as well")
		q.shut()

		// Ages are those of the records, not of the files or the process.
		<-time.After(2 * time.Hour)
		q = open(t, path, o)
		synctest.Wait()
		if s := q.Stats(); s.Expired != 2 || s.Depth != 0 {
			t.Errorf("after opening: %+v", s)
		}
		q.shut()
	})
}

func TestBlockInHandSurvivesItsAge(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: never, MaxAge: time.Hour})
		q.block("in hand")
		got := q.peek()
		<-time.After(2 * time.Hour)
		synctest.Wait()
		wantRecords(t, got, []string{"in hand"})
		if err := q.Advance(); err != nil {
			t.Error(err)
		}
		if s := q.Stats(); s.Expired != 0 || s.Depth != 0 {
			t.Errorf("%+v", s)
		}
		q.shut()
	})
}

// disk is a disk with so many bytes free.
func (q *testQueue) disk(free *atomic.Int64) {
	q.store().free = func(string) (int64, error) { return free.Load(), nil }
}

func TestReserveOfTheDiskIsKept(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: never, Reserve: 1000})
		var free atomic.Int64
		free.Store(1100)
		synctest.Wait()
		q.disk(&free)
		q.block("fits")
		if q.Stats().Full {
			t.Error("full with enough room")
		}
		free.Store(1010)
		q.block("was taken") // and so is written
		synctest.Wait()
		if err := q.Put([]byte("refused")); !errors.Is(err, queue.ErrFull) || !strings.Contains(err.Error(), "reserve") {
			t.Errorf("Put: %v", err)
		}
		if s := q.Stats(); !s.Full || s.Refused != 1 || s.Depth != 2 {
			t.Errorf("%+v", s)
		}
		waited := make(chan error)
		go func() { waited <- q.PutWait(t.Context(), []byte("waited")) }()
		<-time.After(5 * time.Second)
		free.Store(5000)
		if err := <-waited; err != nil {
			t.Error(err)
		}
		wantRecords(t, q.take(2), []string{"fits", "was taken"})
		q.shut()
	})
}

func TestDropOldestMakesRoomForTheReserve(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: never, BlockRecords: 1, Reserve: 1000, MaxBytesPerFile: 45, Full: DropOldest})
		q.blocks(0, 4)
		synctest.Wait()
		s := q.store()
		s.free = func(string) (int64, error) { return 1200 - q.Stats().Bytes, nil }
		q.blocks(4, 6)
		if st := q.Stats(); st.Dropped != 2 || st.Full {
			t.Errorf("%+v", st)
		}
		wantRecords(t, q.take(4), recs(2, 6))
		q.shut()
	})
}

func TestFullQueueThatWaits(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		o := Options{BlockAge: never, MaxBytes: 4000, BlockSize: 400, MaxRecord: 400, MaxBytesPerFile: 1000, Full: Wait, FullWait: 3 * time.Second}
		q := open(t, t.TempDir(), o)
		record := strings.Repeat("r", 300)
		start := time.Now()
		n := 0
		for ; ; n++ {
			if err := q.Put([]byte(record)); errors.Is(err, queue.ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != 3*time.Second || q.Stats().Refused != 1 {
			t.Errorf("refused after %s, %d counted", d, q.Stats().Refused)
		}
		put := make(chan error)
		go func() { put <- q.Put([]byte(record)) }()
		synctest.Wait()
		q.drain()
		if err := <-put; err != nil {
			t.Errorf("Put that waited: %v", err)
		}
		q.shut()
	})
}

func TestCompressedQueue(t *testing.T) {
	path := t.TempDir()
	o := Options{BlockAge: never, Codec: queue.CodecZstd}
	record := `{"message":"` + strings.Repeat("the same again and again ", 40) + `"}`
	q := open(t, path, o)
	var records []string
	for range 50 {
		records = append(records, record)
	}
	q.block(records...)
	if s := q.Stats(); s.Bytes > int64(len(record)) {
		t.Errorf("%d bytes for 50 times %d", s.Bytes, len(record))
	}
	// Codecs may change; each block says which it has.
	if _, err := q.m.Open("q", Options{BlockAge: never}); err != nil {
		t.Fatal(err)
	}
	q.block(record)
	if s := q.Stats(); s.Bytes < int64(len(record)) {
		t.Errorf("%d bytes, the second block is plain", s.Bytes)
	}
	q.shut()
	q = open(t, path, o)
	if s := q.Stats(); s.Depth != 2 || s.Records != 51 {
		t.Errorf("%+v", s)
	}
	wantRecords(t, q.drain(), append(records, record))
}

// A byte flipped anywhere in a file costs at most the block that it is in, whatever the byte was: length, magic, checksum,
// payload.
func TestAnyFlippedByteCostsAtMostItsBlock(t *testing.T) {
	for _, codec := range []queue.Codec{queue.CodecNone, queue.CodecZstd} {
		path := t.TempDir()
		q := open(t, path, Options{BlockAge: never, Codec: codec})
		var blocks []string
		for i := range 4 {
			blocks = append(blocks, strings.Repeat(rec(i), 8))
			q.block(blocks[i])
		}
		q.shut()
		file := theFile(t, path)
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "q")
		for at := range whole {
			if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o750)); err != nil {
				t.Fatal(err)
			}
			flipped := append([]byte(nil), whole...)
			flipped[at] ^= 1 << (at % 8)
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), flipped, 0o640); err != nil {
				t.Fatal(err)
			}
			s, err := openStore(dir, "q", Options{}, new(signal), new(atomic.Uint64), silent)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for {
				b, ok, err := s.readNext()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				for r := range b.Records() {
					got = append(got, string(r))
				}
				if err := s.advance(); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
			lost := at * len(blocks) / len(whole)
			want := append(append([]string(nil), blocks[:lost]...), blocks[lost+1:]...)
			// The four bytes of go-diskqueue's length are not looked at.
			if !equalOrWhole(got, want, blocks) {
				t.Errorf("codec %s, byte %d flipped: got %d blocks %q", codec, at, len(got), got)
			}
		}
	}
}

func equalOrWhole(got, want, whole []string) bool {
	same := func(a, b []string) bool { return strings.Join(a, "\n") == strings.Join(b, "\n") }
	return same(got, want) || same(got, whole)
}

// TestDiskFull fills a small file system: what was acknowledged stays, the rest is refused, the state shows, and it goes on
// when there is room again.
func TestDiskFull(t *testing.T) {
	path := t.TempDir()
	if err := syscall.Mount("weir-test", path, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	})
	hog := filepath.Join(path, "hog")
	if err := os.WriteFile(hog, make([]byte, 700<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	q := open(t, path, Options{BlockAge: 5 * time.Millisecond, BlockSize: 16 << 10, MaxRecord: 16 << 10, MaxBytes: 64 << 20})
	acknowledged := 0
	pad := strings.Repeat("x", 4000)
	put := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return q.PutSync(ctx, []byte(rec(acknowledged)+pad))
	}
	for put(time.Second) == nil {
		acknowledged++
	}
	s := q.Stats()
	if s.WriteErrors == 0 || acknowledged < 30 || s.Records < int64(acknowledged) {
		t.Errorf("%d acknowledged, %+v", acknowledged, s)
	}
	// Records are taken as long as memory for them is bounded, and then refused: Put never blocks on the disk.
	var err error
	for n := 0; err == nil && n < 10000; n++ {
		err = q.Put([]byte("taken in memory" + pad))
	}
	if !errors.Is(err, queue.ErrFull) {
		t.Errorf("with the disk full, Put: %v", err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	if err := q.Flush(t.Context()); err != nil {
		// The flush that meets the last failed attempt says so; the next one waits for the writing.
		if err := q.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := q.drain()
	seen := map[string]bool{}
	for _, r := range got {
		seen[r] = true
	}
	for i := range acknowledged {
		if !seen[rec(i)+pad] {
			t.Errorf("record %d was acknowledged and is lost", i)
		}
	}
	q.shut()
}
