package disk

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/obs"
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
