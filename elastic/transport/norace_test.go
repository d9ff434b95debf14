//go:build !race

package transport

const raced = false
