package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/nsqio/go-diskqueue"

	"weir/queue"
)

// writer appends the blocks of one run. It is used by the committer goroutine alone. After an error it must be closed:
// what the file holds behind the last block is then unknown, so the next block goes into a new run.
type writer struct {
	dir     string
	key     fileKey // of the file being written
	pos     int64   // end of the last block in it
	maxFile int64
	dq      diskqueue.Interface
	file    syncFile // the same file, for syncing; nil before the first block and after a roll
	syncErr error    // of a sync that failed: a second one would succeed without having written anything
}

// syncFile is what the writer needs of an *os.File; tests put one in its place that cannot sync.
type syncFile interface {
	Stat() (fs.FileInfo, error)
	Sync() error
	Close() error
}

// newWriter starts a run. go-diskqueue's own syncing, which would write its position file each time and report errors only
// to its log, is off.
func newWriter(dir string, run int64, o Options, log *slog.Logger) *writer {
	logf := func(level diskqueue.LogLevel, format string, args ...any) {
		if level >= diskqueue.WARN {
			log.Log(context.Background(), slog.LevelWarn, fmt.Sprintf(format, args...))
		}
	}
	return &writer{
		dir:     dir,
		key:     fileKey{run: run},
		maxFile: o.MaxBytesPerFile,
		dq: diskqueue.New(runName(run), dir, o.MaxBytesPerFile, queue.HeaderSize, int32(o.largestMessage()-prefixSize),
			math.MaxInt64, time.Duration(math.MaxInt64), logf),
	}
}

// put appends a block. key and pos then say where it ends.
func (w *writer) put(block []byte) error {
	n := prefixSize + int64(len(block))
	rolls := w.pos > 0 && w.pos+n > w.maxFile
	if rolls && w.file != nil {
		// Blocks that wait for their sync must not be forgotten with the old file.
		w.syncErr = w.file.Sync()
		err := errors.Join(w.syncErr, w.file.Close())
		w.file = nil
		if err != nil {
			return err
		}
	}
	if err := w.dq.Put(block); err != nil {
		return err
	}
	if rolls {
		w.key.num++
		w.pos = 0
	}
	w.pos += n
	if w.file != nil {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(w.dir, w.key.name()), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("find the file that go-diskqueue writes: %w", err)
	}
	w.file = file
	return syncDir(w.dir)
}

// sync makes the blocks that were put durable.
func (w *writer) sync() error {
	if w.syncErr == nil && w.file != nil {
		w.syncErr = w.syncFile()
	}
	return w.syncErr
}

func (w *writer) syncFile() error {
	info, err := w.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < w.pos {
		return fmt.Errorf("%s has %d bytes, %d were written", w.key.name(), info.Size(), w.pos)
	}
	return w.file.Sync()
}

func (w *writer) close() error {
	err := w.dq.Close()
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
	}
	meta := filepath.Join(w.dir, runName(w.key.run)+".diskqueue.meta.dat")
	if rmErr := os.Remove(meta); !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	return err
}
