package e2e

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/searchnode/searchtest"
)

// TestDiskFullUnderLoad fills the disk of the queues while records cannot be delivered: requests are answered as before, the
// state shows, and the records of requests that were answered before are delivered.
func TestDiskFullUnderLoad(t *testing.T) {
	c := estest.New(t, estest.Options{})
	fill(t, newClient(t), c.URL(), spread...)
	refused := c.Inject(estest.Fault{Path: "*_bulk*", Status: http.StatusServiceUnavailable})
	s := newSite(t, c.URL(), swap("sync_timeout_in_seconds: 10", "sync_timeout_in_seconds: 10\n  reserve: 0b"))
	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(data, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("weir-test", data, "tmpfs", 0, "size=4m"); err != nil {
		searchtest.Require(t, "a small file system cannot be mounted: "+err.Error())
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(data, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	g := s.start()
	request, mark := logged("disk-full")
	l := startLoad(t, s.addr, 16, 20*time.Millisecond, request)
	l.last(time.Second)

	filled := time.Now()
	hog, err := os.Create(filepath.Join(data, "hog"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = hog.Write(make([]byte, 1<<12))
	}
	if err := hog.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, 30*time.Second, func(context.Context) error {
		if g.metrics().sum("weir_queue_write_errors_total") == 0 {
			return errors.New("no write has failed")
		}
		return nil
	})
	l.last(time.Second)
	if err := os.Remove(hog.Name()); err != nil {
		t.Fatal(err)
	}
	refused.Remove()
	shots := l.stop()
	checkShots(t, shots, every)
	awaitRecords(t, c.URL(), shots, mark, filled.Add(-killWindow), g)
	g.stop()
}
