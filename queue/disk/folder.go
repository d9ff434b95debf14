package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"weir/queue"
)

// A Folder is a queue of an instance folder as it is seen from outside of the process that has it. Reading it takes no lock
// and changes nothing; what the process writes or removes meanwhile may be missed.
type Folder struct {
	// Instance is the number of the instance folder.
	Instance int
	// Name is the queue's.
	Name string

	instance string // path of the instance folder
}

// Folders returns the queues of all instance folders under dataPath, by name and instance.
func Folders(dataPath string) ([]Folder, error) {
	nodes := filepath.Join(dataPath, nodesDir)
	entries, err := os.ReadDir(nodes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	var all []Folder
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		path := filepath.Join(nodes, e.Name())
		names, err := queueNames(path)
		if err != nil {
			return nil, fmt.Errorf("list queues: %w", err)
		}
		for _, name := range names {
			all = append(all, Folder{n, name, path})
		}
	}
	slices.SortFunc(all, func(a, b Folder) int {
		if a.Name != b.Name {
			return slices.Compare([]string{a.Name}, []string{b.Name})
		}
		return a.Instance - b.Instance
	})
	return all, nil
}

// Path returns the folder of the queue.
func (f Folder) Path() string { return filepath.Join(f.instance, queuesDir, f.Name) }

// InUse tells whether a process has the instance folder.
func (f Folder) InUse() (bool, error) {
	lock, _, err := openRegular(filepath.Join(f.instance, lockName))
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.Close()
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// Lock takes the instance folder that the queue is in, or returns ErrLocked.
func (f Folder) Lock() (*Instance, error) { return OpenInstance(f.instance) }

// A Summary counts what a folder holds.
type Summary struct {
	Partitions int       `json:"partitions"`
	Files      int       `json:"files"`
	Bytes      int64     `json:"bytes"`   // of those files
	Blocks     int64     `json:"blocks"`  // that were not delivered
	Records    int64     `json:"records"` // in those blocks
	Damaged    int64     `json:"damaged"` // stretches of files that are no blocks
	BadFiles   int64     `json:"bad_files"`
	Unreadable int64     `json:"unreadable_files"` // gone, emptied, or in whose place is no regular file
	Oldest     time.Time `json:"oldest,omitzero"`  // of those blocks
	Newest     time.Time `json:"newest,omitzero"`
}

// Summary reads the whole folder and counts.
func (f Folder) Summary() (Summary, error) {
	numbers, err := partitionNumbers(f.Path())
	if err != nil {
		return Summary{}, err
	}
	sum := Summary{Partitions: len(numbers)}
	for _, n := range numbers {
		bad, err := badFiles(partitionDir(f.Path(), n))
		if err != nil {
			return sum, err
		}
		sum.BadFiles += int64(len(bad))
	}
	err = f.walk(func(b queue.Block) bool {
		sum.Blocks++
		sum.Records += int64(b.Count)
		if sum.Oldest.IsZero() || b.Time.Before(sum.Oldest) {
			sum.Oldest = b.Time
		}
		if b.Time.After(sum.Newest) {
			sum.Newest = b.Time
		}
		return true
	}, &sum)
	return sum, err
}

// Walk calls found with each block that was not delivered, partition by partition and there oldest first, until it returns false. A
// block is valid until found returns. left is what it could not read: damaged stretches, and files that are gone, or in whose place is no
// regular file.
func (f Folder) Walk(found func(b queue.Block) (more bool)) (left int64, err error) {
	var sum Summary
	err = f.walk(found, &sum)
	return sum.Damaged + sum.Unreadable, err
}

// walk calls found with each block until that returns false, and counts files and damage.
func (f Folder) walk(found func(queue.Block) bool, sum *Summary) error {
	numbers, err := partitionNumbers(f.Path())
	if err != nil {
		return err
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		dir := partitionDir(f.Path(), n)
		h, err := readHead(dir)
		if err != nil {
			return err
		}
		keys, others, err := listData(dir)
		if err != nil {
			return err
		}
		full := slices.Clone(others)
		for _, k := range others {
			if k.compare(h.key) >= 0 {
				sum.Unreadable++
			}
		}
		for _, k := range keys {
			from := int64(0)
			switch k.compare(h.key) {
			case -1:
				continue // delivered
			case 0:
				from = h.off
			}
			before := sum.Bytes
			if more, err := walkFile(dir, k, from, found, sum); err != nil || !more {
				return err
			}
			if sum.Bytes > before {
				full = append(full, k)
			}
		}
		if now, err := readHead(dir); err != nil || now == h { // otherwise files are delivered meanwhile
			sum.Unreadable += int64(missingFiles(h, full))
		}
	}
	return nil
}

func walkFile(dir string, k fileKey, from int64, found func(queue.Block) bool, sum *Summary) (more bool, err error) {
	file, size, err := openData(dir, k)
	if gone(err) {
		return true, nil // delivered meanwhile
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	sum.Files++
	sum.Bytes += size
	sc := scanner{r: file, size: size}
	return sc.each(from, found, func() { sum.Damaged++ })
}

// BadFiles returns the paths of the files of the queue that keep damaged stretches.
func (f Folder) BadFiles() ([]string, error) {
	numbers, err := partitionNumbers(f.Path())
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, n := range numbers {
		dir := partitionDir(f.Path(), n)
		bad, err := badFiles(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range bad {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}
