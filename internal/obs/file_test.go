package obs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func openLog(t *testing.T, path string, size int64, keep int) *File {
	t.Helper()
	f, err := OpenFile(path, size, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(t *testing.T, f *File, line string) {
	t.Helper()
	if n, err := f.Write([]byte(line)); err != nil || n != len(line) {
		t.Fatalf("write: %d, %v", n, err)
	}
}

// contents returns the texts of the log file and of the renamed ones, oldest first.
func contents(t *testing.T, path string) (live string, old []string) {
	t.Helper()
	names, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		old = append(old, string(b))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), old
}

func TestFileRotatesBySize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "weir.log")
	f := openLog(t, path, 10, 2)
	for i := range 9 {
		write(t, f, fmt.Sprintf("%04d\n", i))
	}
	live, old := contents(t, path)
	if live != "0008\n" || fmt.Sprint(old) != "[0004\n0005\n 0006\n0007\n]" {
		t.Errorf("live %q, old %q", live, old)
	}
}

func TestFileAppendsAfterRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.log")
	f := openLog(t, path, 10, 2)
	write(t, f, "one\n")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = openLog(t, path, 10, 2)
	write(t, f, "two\n")
	write(t, f, "three\n")
	if live, old := contents(t, path); live != "three\n" || fmt.Sprint(old) != "[one\ntwo\n]" {
		t.Errorf("live %q, old %q", live, old)
	}
}

func TestFileFollowsARenameByOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.log")
	f := openLog(t, path, 100, 2)
	write(t, f, "one\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, f, "two\n") // the file is missing
	if err := os.Rename(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	write(t, openLog(t, path, 100, 2), "three\n")
	write(t, f, "four\n") // the file is another one
	if live, old := contents(t, path); live != "three\nfour\n" || fmt.Sprint(old) != "[one\n two\n]" {
		t.Errorf("live %q, old %q", live, old)
	}
}

func TestFileLeavesOtherFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.log")
	other := path + ".1-mine"
	if err := os.WriteFile(other, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := openLog(t, path, 1, 1)
	for range 5 {
		write(t, f, "a\n")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func TestFileLongLineStandsAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.log")
	f := openLog(t, path, 4, 5)
	for _, line := range []string{"a long line\n", "a\n", "another long one\n", "b\n"} {
		write(t, f, line)
	}
	if live, old := contents(t, path); live != "b\n" || fmt.Sprint(old) != "[a long line\n a\n another long one\n]" {
		t.Errorf("live %q, old %q", live, old)
	}
}

func TestFileSharedByTwoWritersLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.log")
	var wg sync.WaitGroup
	const each = 300
	for w := range 2 {
		f := openLog(t, path, 500, 1000)
		wg.Go(func() {
			for i := range each {
				if _, err := fmt.Fprintf(f, "%d-%04d\n", w, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	live, old := contents(t, path)
	all := []byte(live)
	for _, o := range old {
		all = append(all, o...)
	}
	if n := bytes.Count(all, []byte("\n")); n != 2*each {
		t.Errorf("%d lines, want %d", n, 2*each)
	}
	if len(old) < 5 {
		t.Errorf("only %d files rotated", len(old))
	}
}

func TestFileRefusesWhatItCannotBound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	path := filepath.Join(dir, "weir.log")
	f := openLog(t, path, 4, 1)
	write(t, f, "abc\n")
	if err := os.Rename(dir, dir+"2"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("d\n")); err == nil {
		t.Error("written to a folder that is gone")
	}
	if err := os.Rename(dir+"2", dir); err != nil {
		t.Fatal(err)
	}
	write(t, f, "e\n")
}

func TestFileClosed(t *testing.T) {
	f := openLog(t, filepath.Join(t.TempDir(), "weir.log"), 10, 1)
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Error(err)
	}
	if _, err := f.Write([]byte("a\n")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestOpenFileRefuses(t *testing.T) {
	dir := t.TempDir()
	f := func(path string, size int64, keep int) {
		t.Helper()
		if l, err := OpenFile(path, size, keep); err == nil {
			_ = l.Close()
			t.Errorf("%s, %d, %d: no error", path, size, keep)
		}
	}
	f(filepath.Join(dir, "a"), 0, 1)
	f(filepath.Join(dir, "a"), 1, 0)
	f(dir, 1, 1)
}
