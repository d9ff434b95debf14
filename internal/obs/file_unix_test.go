//go:build unix

package obs

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A named pipe in the place of the file does not hold up the start when nobody reads it.
func TestOpenFileDoesNotWaitForAReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path, 1<<20, 1); err == nil || !strings.Contains(err.Error(), "nobody reads") {
		t.Errorf("got %v", err)
	}
}
