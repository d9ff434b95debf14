package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/obs"
	"weir/internal/simtime"
	"weir/queue"
)

func newManager(t testing.TB, path string) *Manager {
	t.Helper()
	in, err := OpenInstance(path)
	if err != nil {
		t.Fatal(err)
	}
	m := NewManager(in, obs.NewMetrics(), silent)
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), in.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

func openIn(t testing.TB, m *Manager, name string, o Options) *testQueue {
	t.Helper()
	q, err := openSingle(m, name, o)
	if err != nil {
		t.Fatal(err)
	}
	return &testQueue{single: q, t: t, m: m}
}

func TestOpenSharesOneQueueUntilTheLastClose(t *testing.T) {
	m := newManager(t, t.TempDir())
	a := openIn(t, m, "q", Options{BlockAge: never})
	b := openIn(t, m, "q", Options{BlockAge: never})
	a.block("from a")
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, b.take(1), []string{"from a"})
	b.block("from b")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if open := m.Stats(); len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
	wantRecords(t, openIn(t, m, "q", Options{BlockAge: never}).take(1), []string{"from b"})
}

func TestClosedHandleDoesNothing(t *testing.T) {
	m := newManager(t, t.TempDir())
	kept := openIn(t, m, "q", Options{})
	q := openIn(t, m, "q", Options{})
	waiting := make(chan error)
	go func() { _, err := q.Peek(t.Context()); waiting <- err }()
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	f := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, queue.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	f("Peek that waited", <-waiting)
	f("Put", q.Put([]byte("a")))
	f("PutWait", q.PutWait(t.Context(), []byte("a")))
	f("PutSync", q.PutSync(t.Context(), []byte("a")))
	f("Flush", q.Flush(t.Context()))
	_, err := q.Peek(t.Context())
	f("Peek", err)
	f("Advance", q.Advance())
	if s := kept.Stats(); s.Put != 0 {
		t.Errorf("the closed handle put: %+v", s)
	}
}

func TestManagerCloseEndsAllHandles(t *testing.T) {
	path := t.TempDir()
	m := newManager(t, path)
	q := openIn(t, m, "q", Options{BlockAge: never})
	if err := q.Put([]byte("open")); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := q.Put([]byte("late")); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("Put: %v", err)
	}
	if err := q.Advance(); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("Advance: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := m.Open("q", Options{}); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("Open: %v", err)
	}
	if left := names(t, path, "*.dat"); len(left) != 1 {
		t.Errorf("the open block was not written: %v", left)
	}
}

func TestNamesAreThoseOnDiskAndThoseOpen(t *testing.T) {
	path := t.TempDir()
	m := newManager(t, path)
	for _, name := range []string{"b", "a"} {
		if err := openIn(t, m, name, Options{}).Close(); err != nil {
			t.Fatal(err)
		}
	}
	openIn(t, m, "c", Options{})
	got, err := m.Names()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestOpenRefusesBadNamesAndOptions(t *testing.T) {
	m := newManager(t, t.TempDir())
	if _, err := m.Open("../q", Options{}); err == nil {
		t.Error("a path as a name")
	}
	if _, err := m.Open("q", Options{BlockSize: -1}); err == nil {
		t.Error("a negative size")
	}
	openIn(t, m, "q", Options{})
	if _, err := m.Open("q", Options{BlockSize: -1}); err == nil {
		t.Error("a negative size for an open queue")
	}
}

func TestReopenedOptionsApply(t *testing.T) {
	m := newManager(t, t.TempDir())
	q := openIn(t, m, "q", Options{BlockAge: never, MaxRecord: 30})
	q.block(rec(0))
	large := string(make([]byte, 1000))
	if err := q.Put([]byte(large)); !errors.Is(err, queue.ErrTooLarge) {
		t.Fatalf("Put: %v", err)
	}
	// The writer below was opened for small messages and must be replaced.
	openIn(t, m, "q", Options{BlockAge: never, BlockSize: 1 << 20, MaxRecord: 3 << 20})
	large = string(make([]byte, 2<<20))
	q.block(large)
	wantRecords(t, q.take(2), []string{rec(0), large})
}

func TestReloadsLeaveTheNumberOfGoroutines(t *testing.T) {
	m := newManager(t, t.TempDir())
	q := openIn(t, m, "q", Options{BlockAge: never})
	q.block("a")
	before := runtime.NumGoroutine()
	for range 20 {
		next := openIn(t, m, "q", Options{BlockAge: never})
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		q = next
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, were %d", after, before)
	}
	wantRecords(t, q.take(1), []string{"a"})
}

// Distinct records from many goroutines, each from memory that is used again at once.
func TestPutsFromManyGoroutinesDoNotMix(t *testing.T) {
	m := newManager(t, t.TempDir())
	q := openIn(t, m, "q", Options{BlockAge: time.Millisecond, BlockSize: 2000})
	const workers, each = 8, 500
	result := make(chan error)
	for w := range workers {
		go func() {
			buf := make([]byte, 0, 100)
			for i := range each {
				buf = append(buf[:0], rec(w*each+i)...)
				if err := q.PutWait(t.Context(), buf); err != nil {
					result <- err
					return
				}
			}
			result <- nil
		}()
	}
	var got []string
	for len(got) < workers*each {
		got = append(got, q.take(1)...)
	}
	for range workers {
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
	want := recs(0, workers*each)
	slices.Sort(want)
	slices.Sort(got)
	wantRecords(t, got, want)
}

// away moves the folder of queue "q" away, so that nothing can be written, until the returned function is called.
func away(t *testing.T, path string) (back func()) {
	t.Helper()
	dir := filepath.Join(path, queuesDir, "q")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Error(err)
		}
	}
}

func TestDrainTriesUntilTheDiskTakesIt(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		path := t.TempDir()
		q := open(t, path, Options{BlockAge: never})
		back := away(t, path)
		for i := range 3 {
			if err := q.Put([]byte(rec(i))); err != nil {
				t.Fatal(err)
			}
		}
		q.m.Linger()
		if err := q.Close(); err != nil {
			t.Errorf("the queue was closed with its last user: %v", err)
		}
		time.AfterFunc(10*time.Second, back)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		q.m.Drain(ctx)
		if took := time.Since(begin); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("took %s, want as long as the disk took nothing", took)
		}
		if err := q.m.Close(); err != nil {
			t.Error(err)
		}
		q.shut()
		wantRecords(t, open(t, path, Options{}).drain(), recs(0, 3))
	})
}

func TestDrainEndsInTimeAndRecordsAreLost(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		path := t.TempDir()
		q := open(t, path, Options{BlockAge: never})
		defer away(t, path)()
		if err := q.Put([]byte(rec(0))); err != nil {
			t.Fatal(err)
		}
		q.m.Linger()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		q.m.Drain(ctx)
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("took %s, want 3s", took)
		}
		if err := q.m.Close(); !errors.Is(err, queue.ErrLost) || !strings.Contains(err.Error(), "1 records could not be written and are lost") {
			t.Errorf("got %v", err)
		}
	})
}
