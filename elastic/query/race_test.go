//go:build race

package query

// raceEnabled tells that sync.Pool drops things at random, as it does under the race detector.
const raceEnabled = true
