//go:build race

package limit

// raced tells that the race detector runs: sync.Pool then forgets on purpose.
const raced = true
