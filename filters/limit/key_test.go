package limit

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"weir/elastic/api"
	"weir/elastic/query"
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
		if n.read(&call) == query.InTime {
			n.time(nil)
		}
		n.spread(new(roll))
		if len(n.named) == 0 || len(n.named) > maxIndices+1 {
			t.Fatalf("%d names to charge", len(n.named))
		}
		for i, name := range n.named {
			if slices.ContainsFunc(n.named[:i], func(o named) bool { return bytes.Equal(o.index, name.index) }) {
				t.Errorf("names %v are not distinct", n.named)
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
			charged := slices.ContainsFunc(n.named, func(o named) bool { return string(o.index) == name })
			if plain := !strings.ContainsAny(name, "*<:") && name[0] != '-' && name != "_all"; plain && !charged {
				t.Errorf("index %q is not charged, only %v are", name, n.named)
			}
		}
	})
}
