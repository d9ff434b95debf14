//go:build race

package cache

// raceEnabled tells that sync.Pool drops things at random, as it does under the race detector.
const raceEnabled = true
