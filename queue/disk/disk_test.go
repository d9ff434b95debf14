package disk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"weir/internal/obs"
	"weir/internal/simtime"
	"weir/queue"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("QUEUE_TEST_CHILD"); role != "" {
		if err := child(role, os.Getenv("QUEUE_TEST_PATH")); err != nil {
			fmt.Println("child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var silent = slog.New(slog.DiscardHandler)

// never keeps blocks from closing by age, so that tests decide when they close.
const never = 24 * 365 * time.Hour

// open opens queue "q" in the instance folder path and closes everything when the test ends.
func open(t testing.TB, path string, o Options) *testQueue {
	t.Helper()
	in, err := OpenInstance(path)
	if err != nil {
		t.Fatal(err)
	}
	m := NewManager(in, obs.NewMetrics(), silent)
	q, err := openSingle(m, "q", o)
	if err != nil {
		in.Close()
		t.Fatal(err)
	}
	tq := &testQueue{single: q, t: t, m: m, in: in}
	t.Cleanup(tq.shut)
	return tq
}

// single is a queue with its only consumer.
type single struct {
	queue.Queue
	queue.Consumer
}

func openSingle(m *Manager, name string, o Options) (single, error) {
	q, err := m.Open(name, o)
	if err != nil {
		return single{}, err
	}
	consumers, err := q.Consumers(1)
	if err != nil {
		return single{}, err
	}
	return single{q, consumers[0]}, nil
}

type testQueue struct {
	single
	t  testing.TB
	m  *Manager
	in *Instance
}

func (q *testQueue) shut() {
	q.t.Helper()
	if err := errors.Join(q.m.Close(), q.in.lock.Close()); err != nil && !errors.Is(err, os.ErrClosed) {
		q.t.Error(err)
	}
}

// block puts records and flushes them, which makes one block of them.
func (q *testQueue) block(records ...string) {
	q.t.Helper()
	for _, r := range records {
		if err := q.Put([]byte(r)); err != nil {
			q.t.Fatal(err)
		}
	}
	if err := q.Flush(q.t.Context()); err != nil {
		q.t.Fatal(err)
	}
}

func (q *testQueue) blocks(from, to int) {
	q.t.Helper()
	for i := from; i < to; i++ {
		q.block(rec(i))
	}
}

func rec(i int) string { return fmt.Sprintf(`{"number":%d}`, i) }

func recs(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, rec(i))
	}
	return out
}

// peek returns the records of the oldest block.
func (q *testQueue) peek() []string {
	q.t.Helper()
	b, err := q.Peek(q.t.Context())
	if err != nil {
		q.t.Fatal(err)
	}
	var out []string
	for r := range b.Records() {
		out = append(out, string(r))
	}
	if len(out) != b.Count {
		q.t.Fatalf("%d records, the block says %d", len(out), b.Count)
	}
	return out
}

// take peeks and advances over n blocks.
func (q *testQueue) take(n int) []string {
	q.t.Helper()
	var out []string
	for range n {
		out = append(out, q.peek()...)
		if err := q.Advance(); err != nil {
			q.t.Fatal(err)
		}
	}
	return out
}

// drain takes blocks until the queue says that it is empty, and checks that it is.
func (q *testQueue) drain() []string {
	q.t.Helper()
	var out []string
	for q.Stats().Depth > 0 {
		// Blocks that are counted and cannot be read leave the count when the reader gets there.
		s := q.store()
		_, ok, err := s.readNext()
		if err != nil {
			q.t.Fatal(err)
		}
		if ok {
			out = append(out, q.take(1)...)
		}
	}
	if s := q.Stats(); s.Records != 0 {
		q.t.Errorf("drained, but %d records in the count", s.Records)
	}
	return out
}

func (q *testQueue) store() *store { return q.Queue.(*handle).queue.all()[0] }

func wantRecords(t testing.TB, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// names lists the files of queue "q" that match the pattern.
func names(t testing.TB, path, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(path, queuesDir, "q", pattern))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// theFile returns the only data file.
func theFile(t testing.TB, path string) string {
	t.Helper()
	found := names(t, path, "*.dat")
	if len(found) != 1 {
		t.Fatalf("data files %v, want one", found)
	}
	return found[0]
}

// changeByte inverts a byte of block number n (from 0) of the file. off counts from go-diskqueue's length field.
func changeByte(t testing.TB, file string, n int, off int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	sc := scanner{r: f, size: info.Size()}
	pos := int64(0)
	for range n {
		if _, pos, err = sc.at(pos); err != nil {
			t.Fatal(err)
		}
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], pos+off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b[:], pos+off); err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition that another goroutine or process brings about.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestOrderAcrossBlocksFilesAndOpens(t *testing.T) {
	path := t.TempDir()
	o := Options{BlockAge: never, MaxBytes: 8000, BlockSize: 200, MaxBytesPerFile: 300, MaxRecord: 100}
	q := open(t, path, o)
	q.block(recs(0, 40)...)
	got := q.take(2)
	q.shut()
	q = open(t, path, o)
	q.block(recs(40, 80)...)
	got = append(got, q.drain()...)
	wantRecords(t, got, recs(0, 80))
}

func TestPutCopies(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never})
	buf := []byte("first")
	q.block(string(buf))
	if err := q.Put(buf); err != nil {
		t.Fatal(err)
	}
	copy(buf, "other")
	if err := q.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, q.take(2), []string{"first", "first"})
}

func TestPutRefusesByLength(t *testing.T) {
	q := open(t, t.TempDir(), Options{MinRecord: 3, MaxRecord: 5})
	f := func(record string, want error) {
		t.Helper()
		if err := q.Put([]byte(record)); !errors.Is(err, want) {
			t.Errorf("Put(%q): %v, want %v", record, err, want)
		}
		if err := q.PutSync(t.Context(), []byte(record)); !errors.Is(err, want) {
			t.Errorf("PutSync(%q): %v, want %v", record, err, want)
		}
	}
	f("", queue.ErrInvalid)
	f("ab", queue.ErrInvalid)
	f("a\nb", queue.ErrInvalid)
	f("abc", nil)
	f("abcde", nil)
	f("abcdef", queue.ErrTooLarge)
}

func TestRecordLargerThanABlock(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never, BlockSize: 100})
	large := strings.Repeat("l", 5000)
	q.block("small", large, "small again")
	s := q.store()
	s.mu.Lock()
	for _, b := range append(s.spare, s.open) {
		if b.Cap() > 1000 {
			t.Errorf("a builder keeps %d bytes for blocks of 100", b.Cap())
		}
	}
	s.mu.Unlock()
	wantRecords(t, q.drain(), []string{"small", large, "small again"})
}

func TestBlockClosesBySizeCountAndAge(t *testing.T) {
	f := func(name string, o Options, puts int, want ...string) {
		t.Helper()
		q := open(t, t.TempDir(), o)
		for i := range puts {
			if err := q.Put([]byte(rec(i))); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, q.peek()); diff != "" {
			t.Errorf("%s: first block (-want +got):\n%s", name, diff)
		}
	}
	f("count", Options{BlockAge: never, BlockRecords: 2}, 3, recs(0, 2)...)
	f("size", Options{BlockAge: never, BlockSize: queue.HeaderSize + 3*(len(rec(0))+1)}, 3, recs(0, 3)...)
	f("next would be too long", Options{BlockAge: never, BlockSize: queue.HeaderSize + 4*len(rec(0))}, 4, recs(0, 3)...)
}

func TestBlockClosesByAge(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: 300 * time.Millisecond})
		start := time.Now()
		if err := q.Put([]byte("a")); err != nil {
			t.Fatal(err)
		}
		<-time.After(200 * time.Millisecond)
		if err := q.Put([]byte("b")); err != nil {
			t.Fatal(err)
		}
		wantRecords(t, q.take(1), []string{"a", "b"})
		if age := time.Since(start); age != 300*time.Millisecond {
			t.Errorf("closed after %v", age)
		}
		q.shut()
	})
}

func TestPutSyncDoesNotWaitForTheAge(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never})
	if err := q.PutSync(t.Context(), []byte("a")); err != nil {
		t.Fatal(err)
	}
	if s := q.Stats(); s.Depth != 1 || s.OpenRecords != 0 {
		t.Errorf("after PutSync: %+v", s)
	}
}

func TestPutAllocatesNothingWhenWarm(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never, BlockSize: 1 << 20})
	record := bytes.Repeat([]byte("r"), 500)
	fill := func(n int) {
		for range n {
			if err := q.Put(record); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Two blocks, because the builders take turns.
	for range 2 {
		fill(2000)
		if err := q.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(1000, func() { fill(1) }); n != 0 {
		t.Errorf("%v allocations a put", n)
	}
}

func TestPeekWaitsAndReturnsTheSameUntilAdvance(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never})
	got := make(chan []string)
	go func() { got <- q.peek() }()
	q.block("a")
	wantRecords(t, <-got, []string{"a"})
	q.block("b")
	wantRecords(t, q.peek(), []string{"a"})
	wantRecords(t, q.take(2), []string{"a", "b"})
	if err := q.Advance(); !errors.Is(err, queue.ErrNotPeeked) {
		t.Errorf("Advance with nothing in hand: %v", err)
	}
}

func TestPeekEndsWithItsContextAndWithTheQueue(t *testing.T) {
	q := open(t, t.TempDir(), Options{})
	left := errors.New("left")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error)
	peek := func(ctx context.Context) { _, err := q.Peek(ctx); result <- err }
	go peek(ctx)
	cancel(left)
	if err := <-result; !errors.Is(err, left) {
		t.Errorf("context ended: %v", err)
	}
	go peek(t.Context())
	q.shut()
	if err := <-result; !errors.Is(err, queue.ErrClosed) {
		t.Errorf("queue closed: %v", err)
	}
}

func TestRefuseWhenFull(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never, MaxBytes: 4000})
	put := 0
	for ; put < 10000; put++ {
		if err := q.Put([]byte(rec(put))); err != nil {
			if !errors.Is(err, queue.ErrFull) {
				t.Fatal(err)
			}
			break
		}
	}
	if err := q.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := q.Stats()
	if s.Bytes > 4000 || s.Bytes < 3500 || s.Refused != 1 || s.Put != int64(put) {
		t.Errorf("full at %+v after %d puts", s, put)
	}
	wantRecords(t, q.drain(), recs(0, put))
	if err := q.Put([]byte("a")); err != nil {
		t.Errorf("drained, still refuses: %v", err)
	}
}

func TestPutWaitGoesOnWhenThereIsRoom(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: 10 * time.Millisecond, MaxBytes: 2000})
	const n = 500
	result := make(chan error)
	go func() {
		for i := range n {
			if err := q.PutWait(t.Context(), []byte(rec(i))); err != nil {
				result <- err
				return
			}
		}
		result <- nil
	}()
	var got []string
	for len(got) < n {
		got = append(got, q.take(1)...)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	wantRecords(t, got, recs(0, n))
	if s := q.Stats(); s.Refused != 0 {
		t.Errorf("waiting counted as %d refusals", s.Refused)
	}
}

func TestPutWaitIsWokenByTheRemovalOfAFile(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: never, MaxBytes: 2000})
		for q.Put([]byte("record")) == nil {
		}
		if err := q.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		result := make(chan error)
		go func() { result <- q.PutWait(t.Context(), []byte("record")) }()
		synctest.Wait()
		q.drain()
		if err := <-result; err != nil {
			t.Error(err)
		}
		q.shut()
	})
}

func TestFilesRollWhenTheNextBlockDoesNotFit(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never, MaxBytesPerFile: 3 * 45}) // a block is 4+28+13 bytes here
	q.blocks(0, 9)
	if files := names(t, path, "*.dat"); len(files) != 3+1 { // the position file is the fourth
		t.Errorf("files %v", files)
	}
	if s := q.Stats(); s.WriteErrors != 0 {
		t.Errorf("%d write errors", s.WriteErrors)
	}
	wantRecords(t, q.drain(), recs(0, 9))
}

func TestPutWaitEndsWithItsContext(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never, MaxBytes: 2000})
	for q.Put([]byte("record")) == nil {
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- q.PutWait(ctx, []byte("record")) }()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDropOldestKeepsTheNewest(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never, MaxBytes: 4000, MaxBytesPerFile: 500, Full: DropOldest})
	const n = 300
	q.blocks(0, n)
	s := q.Stats()
	if s.Bytes > 4000 || s.Bytes < 3000 {
		t.Errorf("%d bytes on disk, the bound is 4000 and a file has 500", s.Bytes)
	}
	if s.Dropped == 0 || s.Dropped+s.Records != n {
		t.Errorf("%d dropped, %d left of %d", s.Dropped, s.Records, n)
	}
	wantRecords(t, q.drain(), recs(int(s.Dropped), n))
}

func TestDropOldestWhileABlockIsInHand(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never, MaxBytes: 4000, MaxBytesPerFile: 500, Full: DropOldest})
	q.block(rec(0))
	wantRecords(t, q.peek(), recs(0, 1))
	const n = 300
	q.blocks(1, n)
	wantRecords(t, q.take(1), recs(0, 1))
	s := q.Stats()
	if s.Dropped+s.Records+1 != n {
		t.Errorf("%d dropped, %d left and 1 delivered of %d", s.Dropped, s.Records, n)
	}
	wantRecords(t, q.drain(), recs(int(s.Dropped)+1, n))
}

// The committer is busy while the ninth block fills up: it must be closed when there is room, although nobody puts any more.
func TestFullBlockClosesWhenTheDiskHasCaughtUp(t *testing.T) {
	q := open(t, t.TempDir(), Options{BlockAge: never, BlockRecords: 1})
	s := q.store()
	s.readMu.Lock() // keeps the committer in makeRoom
	s.mu.Lock()
	s.opts.Full = DropOldest
	s.mu.Unlock()
	for i := range maxPending + 1 {
		if err := q.Put([]byte(rec(i))); err != nil {
			t.Fatal(err)
		}
	}
	s.readMu.Unlock()
	wantRecords(t, q.take(maxPending+1), recs(0, maxPending+1))
}

// A reader that keeps up makes go-diskqueue call each file bad that it rolls (nsqio/go-diskqueue#42).
func TestReaderThatKeepsUpLeavesNoFiles(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never, MaxBytesPerFile: 500})
	for i := range 100 {
		q.block(rec(i))
		wantRecords(t, q.take(1), recs(i, i+1))
	}
	if bad := names(t, path, "*bad*"); len(bad) > 0 {
		t.Errorf("bad files: %v", bad)
	}
	q.shut()
	if left := names(t, path, "*dat*"); len(left) > 0 {
		t.Errorf("files of a drained queue: %v", left)
	}
}

func TestFileRenamedByGoDiskqueueIsRead(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 5)
	file := theFile(t, path)
	if err := os.Rename(file, file+".bad"); err != nil {
		t.Fatal(err)
	}
	got := q.take(2)
	q.shut()
	q = open(t, path, Options{BlockAge: never})
	wantRecords(t, append(got, q.drain()...), recs(0, 5))
	if left := names(t, path, "*bad*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestPositionFilesMayBeGone(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 20)
	q.shut()
	for _, f := range slices.Concat(names(t, path, headName), names(t, path, "*meta*")) {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	q = open(t, path, Options{BlockAge: never})
	wantRecords(t, q.drain(), recs(0, 20))
}

func TestDeliveredFileThatWasNotRemovedIsNotDeliveredAgain(t *testing.T) {
	path := t.TempDir()
	o := Options{BlockAge: never, MaxBytesPerFile: 60} // one block a file
	q := open(t, path, o)
	q.blocks(0, 4)
	first := names(t, path, "*.dat")[0]
	data, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	got := q.take(2)
	q.shut()
	if err := os.WriteFile(first, data, 0o600); err != nil {
		t.Fatal(err)
	}
	q = open(t, path, o)
	wantRecords(t, append(got, q.drain()...), recs(0, 4))
}

func TestDamagedHeadDeliversAgain(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 20)
	q.take(5)
	q.shut()
	data, err := os.ReadFile(names(t, path, headName)[0])
	if err != nil {
		t.Fatal(err)
	}
	data[27]++ // the offset: believing it would lose the blocks before
	if err := os.WriteFile(names(t, path, headName)[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	q = open(t, path, Options{BlockAge: never})
	wantRecords(t, q.drain(), recs(0, 20))
}

func TestOneBadByteCostsOneBlock(t *testing.T) {
	f := func(name string, off int64, want []string, bad int64) {
		t.Helper()
		path := t.TempDir()
		q := open(t, path, Options{BlockAge: never})
		q.blocks(0, 20)
		q.shut()
		changeByte(t, theFile(t, path), 5, off)
		q = open(t, path, Options{BlockAge: never})
		if depth := q.Stats().Depth; depth != int64(len(want)) {
			t.Errorf("%s: depth %d at open, want %d", name, depth, len(want))
		}
		wantRecords(t, q.drain(), want)
		kept := names(t, path, "*.bad")
		if s := q.Stats(); s.Bad != bad || len(kept) != int(bad) || s.Torn != 0 {
			t.Errorf("%s: %d bad, %d torn, kept %v; want %d bad", name, s.Bad, s.Torn, kept, bad)
		}
	}
	without5 := slices.Concat(recs(0, 5), recs(6, 20))
	f("go-diskqueue's length", 1, recs(0, 20), 0)
	f("magic", prefixSize, without5, 1)
	f("count", prefixSize+8, without5, 1)
	f("length, now huge", prefixSize+12, without5, 1)
	f("length, now a little longer", prefixSize+15, without5, 1)
	f("payload", prefixSize+queue.HeaderSize, without5, 1)
}

func TestDamageWhileTheQueueIsOpen(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 20)
	file := theFile(t, path)
	changeByte(t, file, 19, prefixSize)
	changeByte(t, file, 5, prefixSize)
	wantRecords(t, q.drain(), slices.Concat(recs(0, 5), recs(6, 19)))
	q.blocks(20, 22)
	wantRecords(t, q.drain(), recs(20, 22))
	if s := q.Stats(); s.Bad != 2 || s.Depth != 0 {
		t.Errorf("%+v", s)
	}
}

func TestBadFilesAreBounded(t *testing.T) {
	f := func(size int, least int64) {
		t.Helper()
		path := t.TempDir()
		o := Options{BlockAge: never, MaxBytes: 16000} // an eighth of it for bad files
		for i := range 10 {
			q := open(t, path, o)
			q.block(rec(i) + strings.Repeat("x", size))
			q.shut()
			changeByte(t, theFile(t, path), 0, prefixSize)
			q = open(t, path, o)
			q.shut()
		}
		var total int64
		kept := names(t, path, "*.bad")
		for _, name := range kept {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			total += info.Size()
		}
		if total > 2000 || total < least {
			t.Errorf("%d bytes in %v, want %d to 2000", total, kept, least)
		}
		last, err := os.ReadFile(kept[len(kept)-1])
		if err != nil || !bytes.Contains(last, []byte(rec(9))) {
			t.Errorf("the newest is not kept: %q, %v", last, err)
		}
	}
	f(800, 1600)
	f(1988, 2000) // one stretch alone is longer
}

func TestTornLastBlockIsDropped(t *testing.T) {
	for _, cut := range []int64{1, 3, 20, 30, 36} { // a block is 4+20+13 bytes here
		path := t.TempDir()
		q := open(t, path, Options{BlockAge: never})
		q.blocks(0, 10)
		q.shut()
		file := theFile(t, path)
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, info.Size()-cut); err != nil {
			t.Fatal(err)
		}
		q = open(t, path, Options{BlockAge: never})
		if depth := q.Stats().Depth; depth != 9 {
			t.Errorf("cut %d: depth %d at open, want 9", cut, depth)
		}
		q.blocks(10, 12)
		wantRecords(t, q.drain(), slices.Concat(recs(0, 9), recs(10, 12)))
		if s := q.Stats(); s.Torn != 1 || s.Bad != 0 {
			t.Errorf("cut %d: %d torn, %d bad", cut, s.Torn, s.Bad)
		}
	}
}

func TestDataFileTakenAway(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 3)
	q.shut()
	q = open(t, path, Options{BlockAge: never})
	if err := os.Remove(theFile(t, path)); err != nil {
		t.Fatal(err)
	}
	q.block("after")
	wantRecords(t, q.drain(), []string{"after"})
	if s := q.Stats(); s.Unreadable != 1 || s.Bad != 0 {
		t.Errorf("%+v", s)
	}
}

// The folder is taken away, so that no new file can be made, and put back.
func TestBlocksAreKeptWhileTheDiskRefuses(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		path := t.TempDir()
		q := open(t, path, Options{BlockAge: time.Second, BlockRecords: 1})
		dir := filepath.Join(path, queuesDir, "q")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := q.PutSync(t.Context(), []byte(rec(0))); err == nil {
			t.Fatal("PutSync says that it wrote")
		}
		put := 1
		for ; put < 100; put++ {
			if err := q.Put([]byte(rec(put))); err != nil {
				if !errors.Is(err, queue.ErrFull) {
					t.Fatal(err)
				}
				break
			}
		}
		if put != maxPending+1 {
			t.Errorf("%d blocks taken while the disk refuses, want %d", put, maxPending+1)
		}
		<-time.After(10 * retryDelay)
		if s := q.Stats(); s.WriteErrors < 5 || s.WriteErrors > 12 {
			t.Errorf("%d attempts in 10 retry delays", s.WriteErrors)
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * retryDelay)
		if err := q.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantRecords(t, q.drain(), recs(0, put))
		q.shut()
	})
}

func TestCloseSaysWhatItCouldNotWrite(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	if err := os.RemoveAll(filepath.Join(path, queuesDir, "q")); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := q.Put([]byte(rec(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Close(); err == nil || !strings.Contains(err.Error(), "3 records could not be written") {
		t.Errorf("Close: %v", err)
	}
}

func TestSyncPolicies(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockRecords: 1, Sync: SyncInterval, SyncInterval: 5 * time.Second})
		synced := func() uint64 {
			synctest.Wait()
			s := q.store()
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.synced
		}
		put := func(from, to int) {
			for i := from; i < to; i++ {
				if err := q.PutWait(t.Context(), []byte(rec(i))); err != nil {
					t.Fatal(err)
				}
			}
		}
		put(0, 3)
		if n := synced(); n != 0 {
			t.Errorf("synced %d of 3 at once", n)
		}
		<-time.After(6 * time.Second)
		if n := synced(); n != 3 {
			t.Errorf("synced %d of 3 after the interval", n)
		}
		if _, err := q.m.Open("q", Options{BlockRecords: 1, Sync: SyncNever}); err != nil {
			t.Fatal(err)
		}
		put(3, 14)
		<-time.After(time.Hour)
		if n := synced(); n != 3 {
			t.Errorf("synced %d of 14, never", n)
		}
		if err := q.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := synced(); n != 14 {
			t.Errorf("synced %d of 14 after Flush", n)
		}
		if err := q.PutSync(t.Context(), []byte(rec(14))); err != nil {
			t.Fatal(err)
		}
		if n := synced(); n != 15 {
			t.Errorf("synced %d of 15 after PutSync", n)
		}
		wantRecords(t, q.drain(), recs(0, 15))
		q.shut()
	})
}

// An idle queue must not wake: in a year of fake time even a wake-up a minute would be half a million turns of the CPU.
func TestIdleQueuesCostNoCPU(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		in, err := OpenInstance(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		m := NewManager(in, obs.NewMetrics(), silent)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		const n = 50
		for i := range n {
			q, err := openSingle(m, fmt.Sprintf("q%d", i), Options{})
			if err != nil {
				t.Fatal(err)
			}
			// Half of them have been used, so that their files are open.
			if i%2 == 0 {
				if err := q.PutSync(ctx, []byte("record")); err != nil {
					t.Fatal(err)
				}
				if _, err := q.Peek(ctx); err != nil {
					t.Fatal(err)
				}
				if err := q.Advance(); err != nil {
					t.Fatal(err)
				}
			}
			go func() { _, err := q.Peek(ctx); ended <- err }()
		}
		synctest.Wait()
		before := cpuTime(t)
		<-time.After(365 * 24 * time.Hour)
		if used := cpuTime(t) - before; used > 500*time.Millisecond {
			t.Errorf("50 idle queues used %v of CPU in a year", used)
		}
		cancel()
		for range n {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestPathThatGoDiskqueueWouldFormat(t *testing.T) {
	in, err := OpenInstance(filepath.Join(t.TempDir(), "100%d"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := NewManager(in, obs.NewMetrics(), silent).Open("q", Options{}); err == nil || !strings.Contains(err.Error(), "%") {
		t.Errorf("Open: %v", err)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	f := func(o Options, want string) {
		t.Helper()
		if _, err := o.normalize(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("normalize(%+v): %v, want %q", o, err, want)
		}
	}
	f(Options{BlockSize: -1}, "negative")
	f(Options{MinRecord: 10, MaxRecord: 5}, "smallest record")
	f(Options{MaxBytes: 1 << 20, MaxRecord: 1 << 20}, "quarter")
	f(Options{MaxBytes: 1 << 20, BlockSize: 1 << 19}, "quarter")
	f(Options{MaxBytes: 1 << 40, MaxRecord: 1 << 32}, "quarter")
	f(Options{Full: 7}, "policy")
}

func TestValidName(t *testing.T) {
	f := func(name string, want bool) {
		t.Helper()
		if err := ValidName(name); (err == nil) != want {
			t.Errorf("ValidName(%q): %v", name, err)
		}
	}
	f("request_logging", true)
	f("a", true)
	f("es-logs.2", true)
	f("_x", true)
	f(strings.Repeat("n", 128), true)
	f("", false)
	f(strings.Repeat("n", 129), false)
	f(".", false)
	f("..", false)
	f("-rf", false)
	f("a/b", false)
	f("a%d", false)
	f("a b", false)
	f("größe", false)
	f("a\x00", false)
}

// child is what the process does that a test kills.
func child(role, path string) error {
	in, err := OpenInstance(path)
	for errors.Is(err, ErrLocked) { // by an adopter, for a moment
		runtime.Gosched()
		in, err = OpenInstance(path)
	}
	if err != nil {
		return err
	}
	o := Options{BlockAge: never, BlockRecords: 1}
	if role == "unsynced" {
		o.Sync = SyncNever
	}
	q, err := openSingle(NewManager(in, obs.NewMetrics(), silent), "q", o)
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch role {
	case "unsynced", "put":
		var n int
		if _, err := fmt.Sscan(os.Getenv("QUEUE_TEST_COUNT"), &n); err != nil {
			return err
		}
		for i := range n {
			if err := q.PutWait(ctx, []byte(rec(i))); err != nil {
				return err
			}
		}
		// Peek needs the last block to be written, but not synced.
		for q.Stats().OpenRecords > 0 {
			runtime.Gosched()
		}
	case "take":
		for range 5 {
			if _, err := q.Peek(ctx); err != nil {
				return err
			}
			if err := q.Advance(); err != nil {
				return err
			}
		}
		if _, err := q.Peek(ctx); err != nil {
			return err
		}
	case "busy":
		for i := 0; ; i++ {
			if err := q.PutSync(ctx, []byte(rec(i))); err != nil {
				return err
			}
			fmt.Println(i)
		}
	}
	fmt.Println("ready")
	select {}
}

// killed runs a child until it has printed the line and kills it with SIGKILL.
func killed(t *testing.T, role, path, line string, count int) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), "QUEUE_TEST_CHILD="+role, "QUEUE_TEST_PATH="+path, fmt.Sprintf("QUEUE_TEST_COUNT=%d", count))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	// A child that does not say the line must not outlive the test.
	deadline := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	defer deadline.Stop()
	in := bufio.NewScanner(out)
	found := false
	for in.Scan() {
		lines = append(lines, in.Text())
		if !found && in.Text() == line {
			found = true
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	if !found {
		t.Fatalf("child %s ended (%v) and said %q", role, err, lines)
	}
	return lines
}

// nsqio/go-diskqueue#28, #31: killed before the first sync, all is forgotten.
func TestKilledBeforeTheFirstSync(t *testing.T) {
	path := t.TempDir()
	killed(t, "unsynced", path, "ready", 10)
	q := open(t, path, Options{BlockAge: never})
	if s := q.Stats(); s.Depth != 10 || s.Recovered != 10 {
		t.Errorf("depth %d, recovered %d, want 10", s.Depth, s.Recovered)
	}
	wantRecords(t, q.drain(), recs(0, 10))
}

// nsqio/go-diskqueue#29: a message that was handed out is lost with the process.
func TestKilledWithABlockInHand(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 20)
	q.shut()
	killed(t, "take", path, "ready", 0)
	q = open(t, path, Options{BlockAge: never})
	wantRecords(t, q.drain(), recs(5, 20))
}

func TestDepthIsCountedAtOpen(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 100)
	q.shut()
	killed(t, "unsynced", path, "ready", 50)
	q = open(t, path, Options{BlockAge: never})
	if s := q.Stats(); s.Depth != 150 || s.Recovered != 150 || s.Records != 150 {
		t.Errorf("at open: %+v", s)
	}
	q.blocks(0, 5)
	if depth := q.Stats().Depth; depth != 155 {
		t.Errorf("depth %d, want 155", depth)
	}
	if n := len(q.drain()); n != 155 {
		t.Errorf("%d delivered", n)
	}
}

func TestNothingIsRecoveredAfterAClose(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(0, 3)
	q.shut()
	q = open(t, path, Options{BlockAge: never})
	if s := q.Stats(); s.Depth != 3 || s.Recovered != 0 {
		t.Errorf("at open: %+v", s)
	}
}

// What PutSync has acknowledged is there after SIGKILL, at whatever moment it comes.
func TestKilledWhileItWrites(t *testing.T) {
	path := t.TempDir()
	for round := range 3 {
		acknowledged := killed(t, "busy", path, fmt.Sprint(20*(round+1)), 0)
		q := open(t, path, Options{BlockAge: never})
		got := q.drain()
		if len(got) < len(acknowledged) {
			t.Fatalf("%d acknowledged, %d found", len(acknowledged), len(got))
		}
		wantRecords(t, got, recs(0, len(got)))
		q.shut()
	}
}

// failSync makes the next sync of the queue's file fail. The committer must be at rest.
func (q *testQueue) failSync() {
	q.t.Helper()
	synctest.Wait()
	w := q.store().w
	w.file = unsyncable{w.file}
}

type unsyncable struct{ syncFile }

func (unsyncable) Sync() error { return syscall.EIO }

func TestFailedSyncIsReportedAndTheBlockWrittenAgain(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: never})
		q.block(rec(0))
		q.failSync()
		if err := q.PutSync(t.Context(), []byte(rec(1))); err == nil {
			t.Error("PutSync says that it synced")
		}
		<-time.After(2 * retryDelay)
		if err := q.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		// The first attempt was written, if not synced: at least once.
		wantRecords(t, q.drain(), []string{rec(0), rec(1), rec(1)})
		q.shut()
	})
}

func TestFailedSyncOfEarlierBlocksIsReported(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: never, BlockRecords: 1, Sync: SyncNever})
		for i := range 3 {
			if err := q.Put([]byte(rec(i))); err != nil {
				t.Fatal(err)
			}
		}
		q.failSync()
		if err := q.Flush(t.Context()); err == nil {
			t.Error("Flush says that it synced")
		}
		q.block(rec(3))
		wantRecords(t, q.drain(), recs(0, 4))
		q.shut()
	})
}

// go-diskqueue holds the first file of a run open, so its removal alone would not give the space back.
func TestRemovedFileGivesItsSpaceBack(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, Options{BlockAge: never, MaxBytesPerFile: 500})
	q.block(rec(0))
	held, err := os.Open(theFile(t, path))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	q.blocks(1, 50)
	q.drain()
	info, err := held.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != 0 {
		t.Errorf("%d bytes are still held", info.Size())
	}
}

// A block that waits for its sync must not be forgotten when the file rolls.
func TestFailedSyncOfARolledFileIsReported(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		q := open(t, t.TempDir(), Options{BlockAge: never, BlockRecords: 1, MaxBytesPerFile: 60, Sync: SyncNever})
		if err := q.Put([]byte(rec(0))); err != nil {
			t.Fatal(err)
		}
		q.failSync()
		if err := q.PutSync(t.Context(), []byte(rec(1))); err == nil {
			t.Error("PutSync says that all is well")
		}
		if err := q.store().flush(t.Context(), nil, 1); err == nil {
			t.Error("the first block is said to be safe")
		}
		<-time.After(2 * retryDelay)
		q.drain()
		q.shut()
	})
}
