package query

import (
	"bytes"
	"cmp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWordOf(t *testing.T) {
	find := func(name string) *word { return wordOf([]byte(name), headOf([]byte(name))) }
	for i := range words[1:] {
		want := &words[i+1]
		if got := find(want.name); got != want {
			t.Errorf("%s is found as %q", want.name, got.name)
		}
		for _, other := range []string{want.name + "x", want.name[:len(want.name)-1] + "\x7f"} {
			if got := find(other); got.name != "" {
				t.Errorf("%s is found as %q", other, got.name)
			}
		}
	}
	for _, name := range []string{"", "x", "field", "a name that is longer than any word", strings.Repeat("query", 100)} {
		if got := find(name); got.name != "" {
			t.Errorf("%s is found as %q", name, got.name)
		}
	}
}

// Heads order names as their bytes do, as far as they reach.
func TestHeadOf(t *testing.T) {
	letters := rapid.StringOfN(rapid.SampledFrom([]rune("ab\x01\x7fé😀")), 0, 12, -1)
	rapid.Check(t, func(t *rapid.T) {
		a, b := []byte(letters.Draw(t, "a")), []byte(letters.Draw(t, "b"))
		want := bytes.Compare(a[:min(len(a), headLen)], b[:min(len(b), headLen)])
		if got := cmp.Compare(headOf(a), headOf(b)); got != want {
			t.Fatalf("heads of %q and %q compare as %d, the names as %d", a, b, got, want)
		}
	})
}
