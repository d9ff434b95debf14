//go:build race

package e2e

// raceEnabled tells that the tests run under the race detector: so does the gateway then.
const raceEnabled = true
