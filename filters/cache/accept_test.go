package cache

import (
	"testing"

	"weir/internal/wire"
)

func TestCodingsOf(t *testing.T) {
	f := func(plain, gzip bool, values ...string) {
		t.Helper()
		var h wire.Header
		for _, v := range values {
			h.AddString("accept-Encoding", v)
		}
		if got := codingsOf(&h); got != (codings{plain, gzip}) {
			t.Errorf("%q: got %+v", values, got)
		}
	}
	f(true, false)
	f(true, false, "")
	f(true, true, "gzip")
	f(true, true, "GZIP")
	f(true, true, "x-gzip")
	f(true, true, "gzip, deflate, br")
	f(true, true, "deflate;q=0.9, gzip;q=0.001")
	f(true, true, "*")
	f(true, true, "br, *;q=0.1")
	f(true, true, "gzip;q=0.5, identity;q=0.5")
	f(true, true, "deflate", "gzip")
	f(true, false, "deflate, br")
	f(true, false, "snappy")
	f(true, false, "gzip;q=0")
	f(true, false, "gzip;q=0.000")
	f(true, false, "gzip;q=0, *")
	f(true, false, "gzip;q=0.5, identity;q=0.8")
	f(true, false, "gzip;q=0.5, identity")
	f(true, false, "identity;q=0.001")
	f(true, false, "identity;q=1, *;q=0")
	f(true, false, "*;q=0, identity")
	f(true, false, "identity;p=0")
	f(false, false, "identity;q=0")
	f(false, true, "gzip, identity; q=0")
	f(false, true, "gzip,IDENTITY ; Q=0.000")
	f(false, false, "*;q=0")
	f(false, true, "gzip, *;q=0.0")
	f(false, true, "identity;q=0, *")
	f(false, true, "gzip", "identity;q=0")
	// What cannot be read is welcome least, but not refused.
	f(true, true, "gzip;q=nonsense")
	f(true, false, "gzip;q=2, identity")
	f(true, false, "gzip;q=0.0000000, identity")
}

func FuzzCodingsOf(f *testing.F) {
	for _, s := range []string{"", "gzip", "identity;q=0", "*;q=0", "a;q=0,*;q=0.0,identity", ";;,=,q", "identity;q=", "gzip;q=0.5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		var h wire.Header
		h.AddString("Accept-Encoding", value)
		first := codingsOf(&h)
		h.AddString("Accept-Encoding", "br;q=0.5")
		if codingsOf(&h) != first {
			t.Errorf("%q: another coding changed the verdict", value)
		}
		h.AddString("Accept-Encoding", "gzip;q=0, identity")
		if codingsOf(&h) != (codings{plain: true}) {
			t.Errorf("%q: refused or compressed though plain is named last", value)
		}
	})
}
