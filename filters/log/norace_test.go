//go:build !race

package log

const raced = false
