package simtime

import (
	"sync"
	"testing"
	"time"
)

// TestTimersOfManyGoroutines ends the process where two processors run it under the race detector.
func TestTimersOfManyGoroutines(t *testing.T) {
	Test(t, func(*testing.T) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 100_000 {
					<-time.After(0)
				}
			})
		}
		wg.Wait()
	})
}
