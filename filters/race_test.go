//go:build race

package filters_test

// raced tells that the race detector runs.
const raced = true
