package pipeline

import (
	"sync"
	"sync/atomic"
)

// share gives each item to one of at most n workers, who work at the same time; worker is the number of one, from 0. When work
// returns false it was stopped: then share returns false as well, and what no worker has begun is left.
func share[T any](n int, items []T, work func(worker int, item T) bool) bool {
	var next atomic.Int64
	var stopped atomic.Bool
	var workers sync.WaitGroup
	for worker := range min(n, len(items)) {
		workers.Go(func() {
			for !stopped.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(items) {
					return
				}
				if !work(worker, items[i]) {
					stopped.Store(true)
				}
			}
		})
	}
	workers.Wait()
	return !stopped.Load()
}
