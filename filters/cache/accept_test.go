package cache

import (
	"testing"

	"weir/internal/wire"
)

func TestRefusesPlain(t *testing.T) {
	f := func(want bool, values ...string) {
		t.Helper()
		var h wire.Header
		for _, v := range values {
			h.AddString("accept-Encoding", v)
		}
		if got := refusesPlain(&h); got != want {
			t.Errorf("%q: got %v", values, got)
		}
	}
	f(false)
	f(false, "")
	f(false, "gzip")
	f(false, "gzip, deflate, br")
	f(false, "gzip;q=0")
	f(false, "*")
	f(false, "identity;q=0.001")
	f(false, "identity;q=1, *;q=0")
	f(false, "*;q=0, identity")
	f(false, "identity;p=0")
	f(true, "identity;q=0")
	f(true, "gzip, identity; q=0")
	f(true, "gzip,IDENTITY ; Q=0.000")
	f(true, "*;q=0")
	f(true, "gzip, *;q=0.0")
	f(true, "identity;q=0, *")
	f(true, "gzip", "identity;q=0")
}

func FuzzRefusesPlain(f *testing.F) {
	for _, s := range []string{"", "gzip", "identity;q=0", "*;q=0", "a;q=0,*;q=0.0,identity", ";;,=,q", "identity;q="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		var h wire.Header
		h.AddString("Accept-Encoding", value)
		first := refusesPlain(&h)
		h.AddString("Accept-Encoding", "gzip;q=0.5")
		if refusesPlain(&h) != first {
			t.Errorf("%q: another coding changed the verdict", value)
		}
		h.AddString("Accept-Encoding", "identity")
		if refusesPlain(&h) {
			t.Errorf("%q: refused though identity is named last", value)
		}
	})
}
