// Package simtime runs tests in simulated time.
package simtime

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// Test runs f as synctest.Test does, on one processor. The timers of a bubble share one context of the race detector, and
// where goroutines on two processors run such timers at once, the detector ends the process (golang/go#78156).
func Test(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, f)
}
