package limit

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"weir/elastic/api"
)

func TestKeyIsBounded(t *testing.T) {
	f := func(value int, most int) {
		t.Helper()
		x := exchange("GET", "/", "x-team", strings.Repeat("a", value))
		key, _ := appendKey([]byte("before"), 7, []selector{{kind: byHeader, name: "x-team"}}, x, hit{}, nil)
		if n := len(key) - len("before"); n > most || string(key[:6]) != "before" {
			t.Errorf("the key of a value of %d bytes has %d, want at most %d", value, n, most)
		}
	}
	f(0, 10)
	f(100, 110)
	f(longestKey, longestKey)
	f(8192, longestKey)
}

// FuzzIndices holds what is charged against what the API table reads: something is charged whatever the path says, and
// a plain name by itself.
func FuzzIndices(f *testing.F) {
	f.Add("/a,b/_search")
	f.Add("/a%2C*,-b/_search")
	f.Add("/%3Clogs-%7Bnow%2Fd%7D%3E,a::data/_count")
	f.Add("//_search")
	f.Add("/a,a,%/_search")
	f.Fuzz(func(t *testing.T, path string) {
		var call api.Call
		api.Classify(&call, []byte("GET"), []byte(path), nil)
		var n indices
		n.read(&call)
		if len(n.names) == 0 || len(n.names) > maxIndices+1 {
			t.Fatalf("%d names to charge", len(n.names))
		}
		for i, name := range n.names {
			if len(name) == 0 || slices.ContainsFunc(n.names[:i], func(o []byte) bool { return bytes.Equal(o, name) }) {
				t.Errorf("names %q are not distinct", n.names)
			}
		}
		if !n.overlap([]string{"*", "*:*"}) {
			t.Error("a limit on every index is not for this path")
		}
		listed, err := call.Indices(nil)
		if err != nil || len(listed) > maxIndices {
			return
		}
		for _, name := range listed {
			charged := slices.ContainsFunc(n.names, func(o []byte) bool { return string(o) == name })
			if plain := !strings.ContainsAny(name, "*<:") && name[0] != '-' && name != "_all"; plain && !charged {
				t.Errorf("index %q is not charged, only %q are", name, n.names)
			}
		}
	})
}
