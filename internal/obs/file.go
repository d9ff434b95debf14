package obs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds of the log file where nothing else is configured: a day of a busy gateway's warnings, half a gigabyte in all.
const (
	DefaultFileSize = 100 << 20 // bytes
	DefaultFileKeep = 5         // files
)

// File is a log file of bounded size: when a line would make it longer it is renamed to NAME.TIME-PID and a new one
// begun, and only the newest of the renamed ones are kept. Several processes may write to one file: lines are appended
// whole, each line looks whether another process, or logrotate, has renamed the file, and names with time and process
// never meet. A line longer than the bound stands alone in its file. When rotating fails the line is refused rather than
// the bound broken; the log goes to standard error as well. It is not synced: a crash of the machine loses the last lines.
type File struct {
	path string
	size int64
	keep int

	mu     sync.Mutex // guards the fields below
	f      *os.File   // nil while it could not be opened, and after Close
	id     os.FileInfo
	closed bool
}

// OpenFile opens or creates the log file, readable for its owner and group, in a folder that it creates if need be. size
// in bytes and keep must be positive.
func OpenFile(path string, size int64, keep int) (*File, error) {
	if size <= 0 || keep <= 0 {
		return nil, fmt.Errorf("log file %s: size %d and number of files %d must be positive", path, size, keep)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("create the folder of the log file: %w", err)
	}
	l := &File{path: path, size: size, keep: keep}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// Write appends a line.
func (l *File) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, fmt.Errorf("write log file %s: %w", l.path, fs.ErrClosed)
	}
	now, err := os.Stat(l.path)
	if l.f == nil || err != nil || !os.SameFile(now, l.id) {
		if err := l.open(); err != nil {
			return 0, err
		}
		now = l.id
	}
	if now.Size() > 0 && now.Size()+int64(len(line)) > l.size {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	return l.f.Write(line)
}

// Sync brings what was last written to the disk.
func (l *File) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return fmt.Errorf("sync log file %s: %w", l.path, fs.ErrClosed)
	}
	if err := l.f.Sync(); !errors.Is(err, syscall.EINVAL) { // which is what pipes and devices say, for there is nothing to sync
		return err
	}
	return nil
}

// Close closes the file; it may be called twice.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.drop()
}

func (l *File) drop() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}

func (l *File) open() error {
	_ = l.drop()
	// A named pipe that nobody reads would make it wait, maybe for ever.
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, 0o640)
	if errors.Is(err, syscall.ENXIO) {
		return fmt.Errorf("open the log file: %s is a named pipe that nobody reads", l.path)
	}
	if err != nil {
		return fmt.Errorf("open the log file: %w", err)
	}
	id, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("open the log file: %w", err)
	}
	l.f, l.id = f, id
	return nil
}

func (l *File) rotate() error {
	// The time is padded so that names sort by age.
	old := fmt.Sprintf("%s.%s-%d", l.path, time.Now().UTC().Format("20060102T150405.000000000"), os.Getpid())
	if err := os.Rename(l.path, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rotate the log file: %w", err)
	}
	if err := l.open(); err != nil {
		return err
	}
	return l.prune()
}

// prune removes all but the newest renamed files. Another process may do the same at the same time.
func (l *File) prune() error {
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if err != nil {
		return fmt.Errorf("remove old log files: %w", err)
	}
	var old []string
	for _, e := range entries {
		suffix, ok := strings.CutPrefix(e.Name(), filepath.Base(l.path)+".")
		if stamp, _, dashed := strings.Cut(suffix, "-"); ok && dashed && isStamp(stamp) {
			old = append(old, e.Name())
		}
	}
	slices.Sort(old)
	for len(old) > l.keep {
		if err := os.Remove(filepath.Join(filepath.Dir(l.path), old[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old log files: %w", err)
		}
		old = old[1:]
	}
	return nil
}

func isStamp(s string) bool {
	_, err := time.Parse("20060102T150405.000000000", s)
	return err == nil
}
