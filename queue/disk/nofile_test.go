package disk

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir/queue"
)

// otherwise are things that may be in the place of a file, by name.
var otherwise = map[string]func(t *testing.T, name string) error{
	"folder": func(_ *testing.T, name string) error {
		return errors.Join(os.Mkdir(name, 0o750), os.WriteFile(filepath.Join(name, "kept"), []byte("kept"), 0o600))
	},
	"dangling link": func(_ *testing.T, name string) error { return os.Symlink("nowhere", name) },
	"link to a file": func(t *testing.T, name string) error {
		target := filepath.Join(t.TempDir(), "kept")
		t.Cleanup(func() {
			if text, err := os.ReadFile(target); err != nil || string(text) != "kept" {
				t.Errorf("the file that the link leads to is %q, %v", text, err)
			}
		})
		return errors.Join(os.WriteFile(target, []byte("kept"), 0o600), os.Symlink(target, name))
	},
	"pipe": func(_ *testing.T, name string) error { return syscall.Mkfifo(name, 0o600) },
	"socket": func(t *testing.T, name string) error {
		t.Chdir(filepath.Dir(name)) // the path of a socket has little room
		l, err := net.Listen("unix", filepath.Base(name))
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	},
}

// forEachOther runs a test for each thing that may be in the place of a file. put puts it there.
func forEachOther(t *testing.T, f func(t *testing.T, dir string, put func(name string))) {
	for kind, make := range otherwise {
		t.Run(kind, func(t *testing.T) {
			path := t.TempDir()
			dir := filepath.Join(path, queuesDir, "q")
			f(t, path, func(name string) {
				t.Helper()
				name = filepath.Join(dir, name)
				if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				if err := make(t, name); err != nil {
					t.Fatal(err)
				}
				before, err := os.Lstat(name)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if filepath.Base(name) == headName {
						return // moved
					}
					if after, err := os.Lstat(name); err != nil || after.Mode() != before.Mode() {
						t.Errorf("%s is not what it was: %v, %v", name, after, err)
					}
				})
			})
		})
	}
}

// threeEach makes files of three blocks: a block is 4+28+13 bytes here.
var threeEach = Options{BlockAge: never, MaxBytesPerFile: 3 * 45}

// What is in the place of a data file costs that file, is told and left alone, now and at the next start.
func TestNoFileInThePlaceOfData(t *testing.T) {
	forEachOther(t, func(t *testing.T, path string, put func(string)) {
		q := open(t, path, threeEach)
		q.blocks(0, 12)
		put("000001.diskqueue.000000.dat")
		wantRecords(t, q.take(1), recs(3, 4))
		if s := q.Stats(); s.Unreadable != 1 || s.Bad != 0 {
			t.Errorf("while it is open: %+v", s)
		}
		q.shut()
		put("000001.diskqueue.000002.dat")

		f := Folder{Name: "q", instance: path}
		var seen []string
		left, err := f.Walk(func(b queue.Block) bool {
			for r := range b.Records() {
				seen = append(seen, string(r))
			}
			return true
		})
		if err != nil || left != 1 {
			t.Errorf("from outside %d are left out, %v", left, err)
		}
		wantRecords(t, seen, slices.Concat(recs(4, 6), recs(9, 12)))
		if sum, err := f.Summary(); err != nil || sum.Unreadable != 1 || sum.Records != 5 || sum.Damaged != 0 {
			t.Errorf("%+v, %v", sum, err)
		}

		q = open(t, path, threeEach)
		if s := q.Stats(); s.Unreadable != 1 || s.Depth != 5 {
			t.Errorf("at the next start: %+v", s)
		}
		q.blocks(12, 13)
		wantRecords(t, q.take(3), slices.Concat(recs(4, 6), recs(9, 10)))
		q.shut()
		q = open(t, path, threeEach)
		wantRecords(t, q.drain(), recs(10, 13))
		if s := q.Stats(); s.Unreadable != 0 || s.Depth != 0 {
			t.Errorf("when it lies behind: %+v", s)
		}
	})
}

// Nothing else in the folder makes a queue wait, or stop.
func TestNoFileInThePlaceOfOthers(t *testing.T) {
	forEachOther(t, func(t *testing.T, path string, put func(string)) {
		q := open(t, path, threeEach)
		q.blocks(0, 4)
		wantRecords(t, q.take(1), recs(0, 1))
		q.shut()
		put("000001.000000.000000000000.bad")
		put("000009.diskqueue.000000.dat.bad")
		put(headName)
		f := Folder{Name: "q", instance: path}
		if sum, err := f.Summary(); err != nil || sum.Records != 4 || sum.BadFiles != 0 || sum.Unreadable != 1 {
			t.Errorf("%+v, %v", sum, err)
		}
		if paths, err := f.BadFiles(); err != nil || len(paths) != 0 {
			t.Errorf("%q, %v", paths, err)
		}
		if r, err := RepairFolder(t.Context(), f, true, silent); err != nil || r.Records != 4 || r.Salvaged != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		q = open(t, path, threeEach)
		wantRecords(t, q.drain(), recs(0, 4)) // where the reader was is not known any more
		q.shut()
		if kept := names(t, path, headName+".*"); len(kept) != 1 {
			t.Errorf("%q is put aside", kept)
		}
	})
}

func TestFolderInThePlaceOfPositions(t *testing.T) {
	path := t.TempDir()
	q := open(t, path, threeEach)
	q.blocks(0, 1)
	q.shut()
	name := filepath.Join(path, queuesDir, "q", "000002.diskqueue.meta.dat")
	if err := otherwise["folder"](t, name); err != nil {
		t.Fatal(err)
	}
	q = open(t, path, threeEach)
	q.blocks(1, 9)
	wantRecords(t, q.drain(), recs(0, 9))
}

// A lock that is no file does not make those wait who look whether it is held.
func TestPipeInThePlaceOfALock(t *testing.T) {
	path := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(path, lockName), 0o600); err != nil {
		t.Fatal(err)
	}
	if used, err := (Folder{Name: "q", instance: path}).InUse(); used || err != nil {
		t.Errorf("%v, %v", used, err)
	}
}

// A file that vanished while no process had the queue is told of, and delivered files are not.
func TestVanishedFiles(t *testing.T) {
	f := func(taken int, clean bool, want int64, vanished ...string) {
		t.Helper()
		path := t.TempDir()
		q := open(t, path, threeEach)
		q.blocks(0, 12)
		q.take(taken)
		q.shut()
		dir := filepath.Join(path, queuesDir, "q")
		if !clean {
			h, err := readHead(dir)
			if err != nil {
				t.Fatal(err)
			}
			file, err := os.OpenFile(filepath.Join(dir, headName), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			h.clean, h.left = false, -1
			if err := errors.Join(h.write(file), file.Close()); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range vanished {
			name, emptied := strings.CutPrefix(name, "emptied ")
			name = filepath.Join(dir, "000001.diskqueue.00000"+name+".dat")
			err := os.Truncate(name, 0)
			if !emptied {
				err = os.Remove(name)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		sum, err := (Folder{Name: "q", instance: path}).Summary()
		if err != nil || sum.Unreadable != want {
			t.Errorf("%d taken, clean %v, %q vanished: the summary tells of %d, %v, want %d", taken, clean, vanished, sum.Unreadable, err, want)
		}
		q = open(t, path, threeEach)
		if s := q.Stats(); s.Unreadable != want {
			t.Errorf("%d taken, clean %v, %q vanished: %d are told of, want %d", taken, clean, vanished, s.Unreadable, want)
		}
		q.blocks(12, 13)
		if got := q.drain(); got[len(got)-1] != rec(12) {
			t.Errorf("the last record is %s", got[len(got)-1])
		}
		q.shut()
		q = open(t, path, threeEach)
		if s := q.Stats(); s.Unreadable != 0 {
			t.Errorf("it is told again: %+v", s)
		}
	}
	f(0, true, 0)
	f(3, true, 0)
	f(12, true, 0)
	f(4, false, 0)
	f(3, false, 0)
	f(0, true, 1, "0")
	f(0, true, 1, "emptied 0")
	f(4, true, 1, "emptied 2")
	f(4, false, 1, "emptied 2")
	f(4, true, 1, "1")
	f(4, true, 1, "3")
	f(4, true, 3, "1", "2", "3")
	f(4, false, 1, "1")      // the reader was in it
	f(4, false, 2, "1", "2") // the second is not in the row of the numbers either
	f(0, false, 1, "2")
}

// A file that is found again is put alone into the folder of a queue that no process has.
func TestFoundFileIsAdopted(t *testing.T) {
	path := t.TempDir()
	q := open(t, filepath.Join(path, nodesDir, "0"), threeEach)
	q.blocks(0, 9)
	q.take(5)
	name := "000001.diskqueue.000002.dat"
	orphan := filepath.Join(path, nodesDir, "9", queuesDir, "q")
	if err := errors.Join(os.MkdirAll(orphan, 0o750), os.Rename(filepath.Join(q.store().dir, name), filepath.Join(orphan, name))); err != nil {
		t.Fatal(err)
	}
	if n, err := Adopt(t.Context(), path, func(_ context.Context, _ string, b queue.Block) error {
		for r := range b.Records() {
			if err := q.Put(r); err != nil {
				return err
			}
		}
		return q.Flush(t.Context())
	}, silent); n != 3 || err != nil {
		t.Errorf("%d blocks were adopted, %v", n, err)
	}
	wantRecords(t, q.drain(), recs(5, 9))
}
