package api

import (
	"bytes"
	"strings"
	"testing"
)

func TestDecodePath(t *testing.T) {
	f := func(raw, want string) {
		t.Helper()
		if got := string(DecodePath([]byte("x"), []byte(raw))); got != "x"+want {
			t.Errorf("DecodePath(%q) = %q, want %q", raw, got[1:], want)
		}
	}
	f("", "")
	f("/", "/")
	f("///", "/")
	f("//_bulk", "/_bulk")
	f("/i//_search///", "/i/_search")
	f("/i/%5Fsearch", "/i/_search")
	f("/a%2Cb/_search", "/a,b/_search")
	f("/a%252Cb/_search", "/a%2Cb/_search")
	f("/%3Clogs-%7Bnow%2Fd%7D%3E/_search", "/<logs-{now/d}>/_search")
	f("/i/_doc/orders%2F%2F17", "/i/_doc/orders//17") // these slashes separate nothing
	f("/i%2F", "/i/")
	f("/i%2F/_doc", "/i//_doc")
	f("/i/_doc/..", "/i/_doc/..")
	f("/i/_doc/a+b", "/i/_doc/a+b")
	f("/%zz/%4/%", "/%zz/%4/%")
	f("/%c3%a9/", "/é")
}

func TestDecodePathDoesNotAllocate(t *testing.T) {
	raw, dst := []byte("//logs%2Cmetrics/_search/"), make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() { DecodePath(dst[:0], raw) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestDecodeSegment(t *testing.T) {
	if got := string(DecodeSegment(nil, []byte("a%2Fb+%zz%"))); got != "a/b+%zz%" {
		t.Errorf("got %q", got)
	}
}

func FuzzDecodePath(f *testing.F) {
	for _, s := range []string{"/i//_search/", "/%2F%2f/", "/%252F", "/%zz%4%", "//", "a/%00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := string(DecodePath(nil, []byte(raw)))
		if len(got) > len(raw) {
			t.Errorf("%q grew to %q", raw, got)
		}
		// What needs no decoding is only tidied, and tidy paths come out as they are.
		if !strings.Contains(raw, "%") {
			if strings.Contains(got, "//") || len(got) > 1 && strings.HasSuffix(got, "/") {
				t.Errorf("%q became %q", raw, got)
			}
			if again := string(DecodePath(nil, []byte(got))); again != got {
				t.Errorf("%q became %q", got, again)
			}
		}
		// Slashes and escapes do not mix: tidying first, or escaping every byte but the slashes, changes nothing.
		var escaped strings.Builder
		for i := range len(raw) {
			if raw[i] == '/' {
				escaped.WriteByte('/')
			} else {
				escaped.WriteByte('%')
				escaped.WriteByte("0123456789abcdef"[raw[i]>>4])
				escaped.WriteByte("0123456789ABCDEF"[raw[i]&15])
			}
		}
		if !strings.Contains(raw, "%") && string(DecodePath(nil, []byte(escaped.String()))) != got {
			t.Errorf("%q and %q differ", raw, escaped.String())
		}
		if !bytes.Equal(DecodePath([]byte("p/"), []byte(raw)), append([]byte("p/"), got...)) {
			t.Errorf("%q depends on what stands before it", raw)
		}
	})
}

func BenchmarkDecodePath(b *testing.B) {
	raw, dst := []byte("/logs-2024.05%2Cmetrics/_search"), make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		dst = DecodePath(dst[:0], raw)
	}
}
