//go:build race

package log

// raced tells that the race detector runs: sync.Pool then forgets on purpose.
const raced = true
