//go:build !race

package filters_test

const raced = false
