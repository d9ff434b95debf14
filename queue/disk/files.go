package disk

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"

	"weir/queue"
)

// fileKey names a data file: files are written, and read, in the order of their keys.
type fileKey struct{ run, num int64 }

func (k fileKey) compare(l fileKey) int {
	return cmp.Or(cmp.Compare(k.run, l.run), cmp.Compare(k.num, l.num))
}

// runName is the name that a run has for go-diskqueue.
func runName(run int64) string { return fmt.Sprintf("%06d", run) }

// name is the name that go-diskqueue gives to the file.
func (k fileKey) name() string { return fmt.Sprintf("%06d.diskqueue.%06d.dat", k.run, k.num) }

// errNoFile says that a folder, a symbolic link, a pipe or the like is in the place of a file.
var errNoFile = errors.New("no regular file")

// openRegular opens a file for reading. What is none is left alone: opening a pipe would wait for who writes to it, and a
// symbolic link leads to what is not ours.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link, a socket
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: errNoFile}
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errNoFile}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// openData opens a data file for reading and tells its size. go-diskqueue may have renamed it: its own read ahead of the first
// message of a run calls a file bad on any error. The error is fs.ErrNotExist or errNoFile where there is none.
func openData(dir string, k fileKey) (*os.File, int64, error) {
	path := filepath.Join(dir, k.name())
	f, info, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		if renamed, itsInfo, again := openRegular(path + ".bad"); again == nil {
			f, info, err = renamed, itsInfo, nil
		}
	}
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// removeData removes a data file. It is cut first, because go-diskqueue holds the first file of its run open, which would
// keep the space of a removed file until the queue is closed. What is no file in its place is not ours, and stays.
func removeData(dir string, k fileKey) error {
	path := filepath.Join(dir, k.name())
	for _, p := range []string{path, path + ".bad"} {
		info, err := os.Lstat(p)
		if err == nil && !info.Mode().IsRegular() {
			continue
		}
		if err == nil {
			err = errors.Join(os.Truncate(p, 0), os.Remove(p))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

var (
	dataName = regexp.MustCompile(`^(\d{6,18})\.diskqueue\.(\d{6,18})\.dat(\.bad)?$`)
	metaName = regexp.MustCompile(`^(\d{6,18})\.diskqueue\.meta\.dat`)
	badName  = regexp.MustCompile(`^\d{6,18}\.\d{6,18}\.\d{12,18}\.bad$`)
)

// listData returns the data files in dir, sorted, and apart from them what has such a name and is no file.
func listData(dir string) (files, others []fileKey, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		m := dataName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		run, errRun := strconv.ParseInt(m[1], 10, 64)
		num, errNum := strconv.ParseInt(m[2], 10, 64)
		switch k := (fileKey{run, num}); {
		case errRun != nil || errNum != nil:
		case !e.Type().IsRegular():
			others = append(others, k)
		case !slices.Contains(files, k):
			files = append(files, k)
		}
	}
	slices.SortFunc(files, fileKey.compare)
	return files, others, nil
}

// removeMeta removes go-diskqueue's position files, finished or not, which nothing reads. A folder with such a name stays; it
// returns the highest run that one takes the name from.
func removeMeta(dir string) (taken int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		m := metaName.FindStringSubmatch(e.Name())
		switch {
		case m == nil:
		case e.IsDir():
			if run, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				taken = max(taken, run)
			}
		default:
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return taken, err
			}
		}
	}
	return taken, nil
}

// badFiles returns the files in dir that keep damaged stretches, sorted by name, which is the order of the stretches.
func badFiles(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !e.Type().IsRegular() || !badName.MatchString(e.Name()) }), err
}

// keepBad copies the stretch [from, to) of a data file to a file of its own, or as much of it as limit bytes hold, and
// removes the oldest such files so that all of them together stay under limit. It returns how many there are.
func keepBad(dir string, k fileKey, r io.ReaderAt, from, to, limit int64) (int64, error) {
	bad, err := badFiles(dir)
	if err != nil {
		return 0, err
	}
	n := min(to-from, limit)
	var total int64
	sizes := make([]int64, len(bad))
	for i, e := range bad {
		if info, err := e.Info(); err == nil {
			sizes[i] = info.Size()
			total += info.Size()
		}
	}
	for ; len(bad) > 0 && total+n > limit; bad, sizes = bad[1:], sizes[1:] {
		if err := os.Remove(filepath.Join(dir, bad[0].Name())); err != nil {
			return int64(len(bad)), err
		}
		total -= sizes[0]
	}
	path := filepath.Join(dir, fmt.Sprintf("%06d.%06d.%012d.bad", k.run, k.num, from))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return int64(len(bad)), err
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return int64(len(bad)), err
	}
	_, err = io.Copy(out, io.NewSectionReader(r, from, n))
	return int64(len(bad) + 1), errors.Join(err, out.Close())
}

// freeSpace returns the bytes that a process without privileges can still write to the file system of dir.
func freeSpace(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// scanner reads blocks from one data file. Offsets are those of go-diskqueue's length fields, which are not looked at: the
// block's header says its length and its checksum says whether to believe it.
type scanner struct {
	r       io.ReaderAt
	size    int64
	buf     []byte
	decoder queue.Decoder
}

// at reads the block at off and returns it with the offset behind it. The block lives in the scanner's memory. The error
// is queue.ErrDamaged if no intact block is there, or that of the read.
func (s *scanner) at(off int64) (queue.Block, int64, error) {
	start := off + prefixSize
	if s.size-start < queue.HeaderSize {
		return queue.Block{}, 0, fmt.Errorf("%w: %d bytes before the end of the file", queue.ErrDamaged, s.size-off)
	}
	s.buf = slices.Grow(s.buf[:0], queue.HeaderSize)[:queue.HeaderSize]
	if err := readFull(s.r, s.buf, start); err != nil {
		return queue.Block{}, 0, err
	}
	n, err := queue.BlockLen(s.buf)
	if err != nil {
		return queue.Block{}, 0, err
	}
	if n > s.size-start {
		return queue.Block{}, 0, fmt.Errorf("%w: %d bytes, the file has %d", queue.ErrDamaged, n, s.size-start)
	}
	s.buf = slices.Grow(s.buf[:0], int(n))[:n]
	if err := readFull(s.r, s.buf, start); err != nil {
		return queue.Block{}, 0, err
	}
	b, err := s.decoder.Decode(s.buf)
	return b, start + n, err
}

// find returns the offset of the first intact block at or behind off, or the size of the file if there is none.
func (s *scanner) find(off int64) (int64, error) {
	const window = 64 << 10
	chunk := make([]byte, window)
	for pos := off + prefixSize; pos+queue.HeaderSize <= s.size; {
		part := chunk[:min(window, s.size-pos)]
		if err := readFull(s.r, part, pos); err != nil {
			return 0, err
		}
		i := bytes.Index(part, []byte(queue.Magic))
		if i < 0 {
			// The magic may straddle the border of two windows.
			pos += int64(len(part)) - int64(len(queue.Magic)) + 1
			continue
		}
		at := pos + int64(i) - prefixSize
		_, _, err := s.at(at)
		if err == nil {
			return at, nil
		}
		if !errors.Is(err, queue.ErrDamaged) {
			return 0, err
		}
		pos += int64(i) + 1
	}
	return s.size, nil
}

// each calls found with each block from off on, until that returns false, and damaged for each stretch that holds none, save the
// beginning of a block at the end. It tells whether it came to the end.
func (s *scanner) each(off int64, found func(b queue.Block) bool, damaged func()) (bool, error) {
	for off < s.size {
		b, end, err := s.at(off)
		if errors.Is(err, queue.ErrDamaged) {
			from := off
			if off, err = s.find(from + 1); err != nil {
				return false, err
			}
			if off < s.size || !s.torn(from) {
				damaged()
			}
			continue
		}
		if err != nil {
			return false, err
		}
		if !found(b) {
			return false, nil
		}
		off = end
	}
	return true, nil
}

// torn says whether the bytes from off to the end of the file are the beginning of a block, which a crash cut off.
func (s *scanner) torn(off int64) bool {
	start := off + prefixSize
	if s.size-start < queue.HeaderSize {
		return true
	}
	header := make([]byte, queue.HeaderSize)
	if readFull(s.r, header, start) != nil {
		return false
	}
	n, err := queue.BlockLen(header)
	return err == nil && n > s.size-start
}

// readFull reads exactly len(p) bytes. A file that is shorter than it was, because somebody cut it, reads as damaged.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the file ends at %d", queue.ErrDamaged, off+int64(n))
	}
	return err
}

// syncDir makes the entries of a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
