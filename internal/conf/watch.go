package conf

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	settleTime    = 200 * time.Millisecond // without a change, before the files are read
	longestSettle = 2 * time.Second        // in which a folder that never rests is read all the same
	maxLinks      = 40                     // that are followed to one file, as the kernel does
)

// A Watcher calls a function when files have changed. It watches their folders, since editors and ConfigMaps replace files
// instead of writing them, and compares checksums, since folders change for other reasons too.
type Watcher struct {
	files   func() []string
	changed func()
	notify  *fsnotify.Watcher
	done    chan struct{}
}

// Watch calls changed, from a goroutine of its own and never twice at a time, when the contents of any of the files have
// changed, 200 ms after the last change. files is asked again, from that goroutine, after each change, since a reload may
// have found other includes; the entries are as for Checksum. What changes while changed runs leads to another call. Changes before
// Watch returns are not seen, so files that must not be missed are read after.
func Watch(files func() []string, changed func()) (*Watcher, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the configuration: %w", err)
	}
	w := &Watcher{files: files, changed: changed, notify: notify, done: make(chan struct{})}
	names := files()
	if err := w.follow(names); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the configuration: %w", err), notify.Close())
	}
	go w.run(w.sums(names, nil))
	return w, nil
}

// Close stops watching and waits until changed, if it runs, has returned. changed must not call it.
func (w *Watcher) Close() error {
	err := w.notify.Close()
	<-w.done
	return err
}

func (w *Watcher) run(sums map[string][sha256.Size]byte) {
	defer close(w.done)
	var (
		settled <-chan time.Time // nil while nothing happens
		since   time.Time        // of the first event that is waiting
	)
	for {
		select {
		case _, open := <-w.notify.Events:
			if !open {
				return
			}
		case _, open := <-w.notify.Errors: // events were lost, so anything may have happened
			if !open {
				return
			}
		case <-settled:
			settled = nil
			names := w.files()
			w.refollow(names)
			now := w.sums(names, nil)
			different := false
			for name, sum := range now {
				before, known := sums[name]
				different = different || known && before != sum
			}
			sums = now
			if different {
				w.changed()
				names = w.files()
				w.refollow(names)
				sums = w.sums(names, sums)
			}
			continue
		}
		now := time.Now()
		if settled == nil {
			since = now
		}
		settled = time.After(max(0, min(settleTime, longestSettle-now.Sub(since))))
	}
}

// sums returns the checksum of each file; those in known are taken from there, so that what changed since is noticed.
func (w *Watcher) sums(names []string, known map[string][sha256.Size]byte) map[string][sha256.Size]byte {
	sums := make(map[string][sha256.Size]byte, len(names))
	for _, name := range names {
		sum, ok := known[name]
		if !ok {
			sum = checksumOf(name)
		}
		sums[name] = sum
	}
	return sums
}

// refollow does what follow does. Folders must be watched before checksums are taken, or what changes in between is lost.
func (w *Watcher) refollow(names []string) {
	// A folder that cannot be watched now is tried again at the next event; nobody could act on the error here.
	_ = w.follow(names)
}

// follow watches the folders that the names depend on, and no others.
func (w *Watcher) follow(names []string) error {
	var dirs []string
	for _, name := range names {
		full, err := filepath.Abs(name)
		if err != nil {
			return err
		}
		dirs = append(dirs, foldersOf(full)...)
		if matches, err := filepath.Glob(full); isPattern(full) && err == nil {
			for _, match := range matches {
				dirs = append(dirs, foldersOf(match)...)
			}
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	watched := w.notify.WatchList()
	for _, dir := range watched {
		if !slices.Contains(dirs, dir) {
			if err := w.notify.Remove(dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
				return err
			}
		}
	}
	for _, dir := range dirs {
		// Adding one that is watched already is no mistake, and needed where the folder was replaced by another.
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	return nil
}

// foldersOf returns the folders in which something must change for path to lead to another file: that of the file, those
// of all symbolic links on the way, and, where a part is missing or a pattern, the last one that is there.
func foldersOf(path string) []string {
	var dirs []string
	links := 0
	current := string(filepath.Separator)
	rest := strings.Split(strings.Trim(path, string(filepath.Separator)), string(filepath.Separator))
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			current = filepath.Dir(current)
			continue
		}
		if part == "." || part == "" {
			continue
		}
		next := filepath.Join(current, part)
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			return append(dirs, current)
		case info.Mode()&os.ModeSymlink != 0:
			dirs = append(dirs, current)
			target, err := os.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return dirs
			}
			rest = append(strings.Split(target, string(filepath.Separator)), rest...)
			if filepath.IsAbs(target) {
				current = string(filepath.Separator)
			}
			continue
		case len(rest) == 0:
			dirs = append(dirs, current)
		}
		current = next
	}
	return dirs
}
