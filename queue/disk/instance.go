package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrLocked says that another process, or another part of this one, has the folder.
var ErrLocked = errors.New("folder is locked")

const (
	nodesDir  = "nodes"
	queuesDir = "queue"
	lockName  = "lock"

	// maxInstances bounds the search for a free folder. A machine does not run more gateways from one folder.
	maxInstances = 1024
)

// Instance is a folder that this process has for itself, until it is closed or the process ends however it ends. The lock
// file is never removed: a lock on a removed file would be no lock.
type Instance struct {
	path string
	lock *os.File
}

// AcquireInstance locks the first folder <dataPath>/nodes/<n>, n counting from 0, that no other process has, and makes it if
// need be. It may hold the files of a process that has ended.
func AcquireInstance(dataPath string) (*Instance, error) {
	for n := range maxInstances {
		in, err := OpenInstance(filepath.Join(dataPath, nodesDir, strconv.Itoa(n)))
		if !errors.Is(err, ErrLocked) {
			return in, err
		}
	}
	return nil, fmt.Errorf("acquire an instance folder in %s: the first %d are in use: %w", dataPath, maxInstances, ErrLocked)
}

// OpenInstance locks the folder path, made if need be. It returns ErrLocked if somebody else has it.
func OpenInstance(path string) (*Instance, error) {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, fmt.Errorf("make instance folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	// flock and not fcntl: fcntl locks belong to the process, so a second open of the same file would not be refused and
	// its close would give the lock away.
	if err := flock(lock); err != nil {
		return nil, errors.Join(fmt.Errorf("lock instance folder %s: %w", path, err), lock.Close())
	}
	return &Instance{path: path, lock: lock}, nil
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		default:
			return err
		}
	}
}

// Path is the folder.
func (in *Instance) Path() string { return in.path }

// Close gives the folder back. The queues in it must be closed before.
func (in *Instance) Close() error { return in.lock.Close() }

// queueNames returns the names of the queues that have a folder in the instance folder path.
func queueNames(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(path, queuesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && ValidName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
