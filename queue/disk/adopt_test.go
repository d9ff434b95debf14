package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/queue"
)

func acquire(t testing.TB, dataPath string) *Instance {
	t.Helper()
	in, err := AcquireInstance(dataPath)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.lock.Close() })
	return in
}

func TestAcquireInstanceTakesTheFirstFreeFolder(t *testing.T) {
	data := t.TempDir()
	f := func(in *Instance, want string) {
		t.Helper()
		if in.Path() != filepath.Join(data, "nodes", want) {
			t.Errorf("got %s, want nodes/%s", in.Path(), want)
		}
	}
	first, second := acquire(t, data), acquire(t, data)
	f(first, "0")
	f(second, "1")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	f(acquire(t, data), "0")
	f(acquire(t, data), "2")
}

func TestLockedFolderIsLeftAlone(t *testing.T) {
	path := t.TempDir()
	in, err := OpenInstance(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := OpenInstance(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second OpenInstance: %v", err)
	}
}

func TestKilledProcessLeavesNoLock(t *testing.T) {
	path := t.TempDir()
	killed(t, "put", path, "ready", 1)
	in, err := OpenInstance(path)
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
}

// orphan leaves an instance folder with n blocks in queue "q" behind.
func orphan(t *testing.T, path string, from, to int) {
	t.Helper()
	q := open(t, path, Options{BlockAge: never})
	q.blocks(from, to)
	q.shut()
}

func node(data, n string) string { return filepath.Join(data, nodesDir, n) }

// collect is a Deliver that keeps the records.
func collect(got *[]string) Deliver {
	return func(_ context.Context, name string, b queue.Block) error {
		for r := range b.Records() {
			*got = append(*got, name+string(r))
		}
		return nil
	}
}

func TestAdoptDrainsWhatNobodyHas(t *testing.T) {
	data := t.TempDir()
	orphan(t, node(data, "0"), 0, 10)
	orphan(t, node(data, "1"), 10, 20)
	self := open(t, node(data, "2"), Options{BlockAge: never})
	self.block("own")
	var got []string
	n, err := Adopt(t.Context(), data, collect(&got), silent)
	if err != nil || n != 20 {
		t.Fatalf("adopted %d, %v", n, err)
	}
	var want []string
	for _, r := range recs(0, 20) {
		want = append(want, "q"+r)
	}
	wantRecords(t, got, want)
	for _, name := range []string{"0", "1"} {
		if left := names(t, node(data, name), "*"); len(left) > 0 {
			t.Errorf("left in %s: %v", name, left)
		}
	}
	n, err = Adopt(t.Context(), data, collect(&got), silent)
	if err != nil || n != 0 {
		t.Errorf("a second time: adopted %d, %v", n, err)
	}
	wantRecords(t, self.drain(), []string{"own"})
}

func TestAdoptKeepsWhatWasNotDelivered(t *testing.T) {
	data := t.TempDir()
	orphan(t, node(data, "0"), 0, 10)
	var got []string
	away := errors.New("away")
	n, err := Adopt(t.Context(), data, func(ctx context.Context, name string, b queue.Block) error {
		if len(got) == 4 {
			return away
		}
		return collect(&got)(ctx, name, b)
	}, silent)
	if n != 4 || !errors.Is(err, away) {
		t.Errorf("adopted %d, %v", n, err)
	}
	wantRecords(t, open(t, node(data, "0"), Options{BlockAge: never}).drain(), recs(4, 10))
}

func TestAdoptWithoutAnyFolder(t *testing.T) {
	if n, err := Adopt(t.Context(), t.TempDir(), nil, silent); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestAdoptKeepsBadFilesForInspection(t *testing.T) {
	data := t.TempDir()
	orphan(t, node(data, "0"), 0, 3)
	changeByte(t, theFile(t, node(data, "0")), 1, prefixSize)
	var got []string
	for range 2 {
		if _, err := Adopt(t.Context(), data, collect(&got), silent); err != nil {
			t.Fatal(err)
		}
	}
	wantRecords(t, got, []string{"q" + rec(0), "q" + rec(2)})
	kept := names(t, node(data, "0"), "*.bad")
	if len(kept) != 1 {
		t.Fatalf("kept %v", kept)
	}
	if b, err := os.ReadFile(kept[0]); err != nil || !bytes.Contains(b, []byte(rec(1))) {
		t.Errorf("kept %q, %v", b, err)
	}
}

func TestAdopterMovesBlocksIntoTheOwnQueue(t *testing.T) {
	data := t.TempDir()
	killed(t, "put", node(data, "0"), "ready", 10)
	self := open(t, node(data, "1"), Options{BlockAge: never})
	a := StartAdopter(data, time.Millisecond, func(name string) (queue.Queue, error) {
		return self.m.Open(name, Options{BlockAge: never})
	}, silent)
	defer a.Close()
	wantRecords(t, self.take(10), recs(0, 10))

	// One more process ends while the adopter runs.
	killed(t, "put", node(data, "0"), "ready", 10)
	wantRecords(t, self.take(10), recs(0, 10))
	until(t, "all counted", func() bool { return a.Blocks() == 20 })
}

func TestAdopterPassesOverRecordsThatAreTooLargeNow(t *testing.T) {
	data := t.TempDir()
	q := open(t, node(data, "0"), Options{BlockAge: never})
	q.block("a", "a record that is too large", "b")
	q.shut()
	self := open(t, node(data, "1"), Options{BlockAge: never, MaxRecord: 10})
	a := StartAdopter(data, time.Hour, func(name string) (queue.Queue, error) {
		return self.m.Open(name, Options{BlockAge: never, MaxRecord: 10})
	}, silent)
	defer a.Close()
	wantRecords(t, self.take(1), []string{"a", "b"})
}

func TestAdopterLeavesWhatItCannotPlace(t *testing.T) {
	data := t.TempDir()
	orphan(t, node(data, "0"), 0, 5)
	asked := make(chan struct{})
	a := StartAdopter(data, time.Hour, func(string) (queue.Queue, error) {
		close(asked)
		return nil, errors.New("no such queue here")
	}, silent)
	<-asked
	a.Close()
	wantRecords(t, open(t, node(data, "0"), Options{BlockAge: never}).drain(), recs(0, 5))
}

// The own queue is full: the adopter waits, and Close must not.
func TestAdopterThatWaitsForRoomEnds(t *testing.T) {
	data := t.TempDir()
	orphan(t, node(data, "0"), 0, 5)
	o := Options{BlockAge: never, MaxBytes: 2000}
	self := open(t, node(data, "1"), o)
	for self.Put([]byte("record")) == nil {
	}
	asked := make(chan struct{}, 1)
	a := StartAdopter(data, time.Hour, func(name string) (queue.Queue, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		return self.m.Open(name, o)
	}, silent)
	<-asked
	a.Close()
	if n := a.Blocks(); n != 0 {
		t.Errorf("adopted %d blocks into a full queue", n)
	}
	wantRecords(t, open(t, node(data, "0"), o).drain(), recs(0, 5))
}
