package api

import (
	"bytes"
	"strings"
	"testing"
)

func TestQueryValue(t *testing.T) {
	f := func(query, name, want string, wantOK bool) {
		t.Helper()
		got, ok := QueryValue([]byte(query), name)
		if string(got) != want || ok != wantOK {
			t.Errorf("QueryValue(%q, %q) = %q, %v, want %q, %v", query, name, got, ok, want, wantOK)
		}
	}
	f("", "q", "", false)
	f("q=a", "q", "a", true)
	f("q", "q", "", true)
	f("q=", "q", "", true)
	f("x=1&q=a%3A1+b", "q", "a%3A1+b", true)
	f("q=a:1&q=a:9", "q", "a:9", true) // the nodes count a:9
	f("q=a;pretty", "q", "a", true)
	f("pretty;q=a", "q", "a", true)
	f("%71=a", "q", "a", true)
	f("a+b=1", "a b", "1", true)
	f("q=%zz", "q", "%zz", true)
	f("%zz=1", "%zz", "1", true)
	f("q=a=b", "q", "a=b", true)
	f("qq=1&=q", "q", "", false)
}

func TestEachParam(t *testing.T) {
	var got []string
	EachParam([]byte("&a=1&&b;c=%zz;a=+&"), func(n, v []byte) { got = append(got, string(n)+"→"+string(v)) })
	if s := strings.Join(got, " "); s != "a→1 b→ c→%zz a→+" {
		t.Errorf("got %s", s)
	}
}

func TestDecodeQuery(t *testing.T) {
	if got := string(DecodeQuery(nil, []byte("a+b%2Bc%zz%"))); got != "a b+c%zz%" {
		t.Errorf("got %q", got)
	}
}

func TestRemoveParam(t *testing.T) {
	f := func(query, want string) {
		t.Helper()
		if got := string(RemoveParam([]byte("?"), []byte(query), "no_cache")); got != "?"+want {
			t.Errorf("RemoveParam(%q) = %q, want %q", query, got[1:], want)
		}
	}
	f("", "")
	f("no_cache=true", "")
	f("no_cache", "")
	f("no_cache&no_cache=1;no_cache=2", "")
	f("no_cache=true&a=1", "a=1")
	f("a=1&no_cache=true", "a=1")
	f("a=1;no_cache=true&b=2", "a=1&b=2")
	f("a=1&no_cache=true;b=2", "a=1;b=2")
	f("a=1&&no_cache&", "a=1&&")
	f("x=no_cache&no_cachex=1&xno_cache&no_cache%3D=1", "x=no_cache&no_cachex=1&xno_cache&no_cache%3D=1")
	f("n%6F_cache=1&q=%zz+%2b", "q=%zz+%2b")
}

func FuzzQuery(f *testing.F) {
	f.Add("a=1&b;c=%zz", "b")
	f.Add("&&a=1;;", "a")
	f.Add("%61+=1", "a ")
	f.Fuzz(func(t *testing.T, query, name string) {
		without := RemoveParam(nil, []byte(query), name)
		if name != "" {
			if _, ok := QueryValue(without, name); ok {
				t.Errorf("%q still holds %q: %q", query, name, without)
			}
		}
		if _, ok := QueryValue([]byte(query), name); !ok && name != "" && string(without) != query {
			t.Errorf("%q without %q became %q", query, name, without)
		}
		// The other parameters are all there, in order and spelled as before.
		var want, got []string
		EachParam([]byte(query), func(n, v []byte) {
			if string(DecodeQuery(nil, n)) != name {
				want = append(want, string(n), string(v))
			}
		})
		EachParam(without, func(n, v []byte) { got = append(got, string(n), string(v)) })
		if strings.Join(got, "\x00") != strings.Join(want, "\x00") {
			t.Errorf("%q without %q: %q, want %q", query, name, got, want)
		}
	})
}

func TestQueryDoesNotAllocate(t *testing.T) {
	q, dst, buf := []byte("a=1&no_cache=true;q=a%20b"), make([]byte, 0, 64), make([]byte, 0, 64)
	n := testing.AllocsPerRun(100, func() {
		v, _ := QueryValue(q, "q")
		buf = DecodeQuery(buf[:0], v)
		dst = RemoveParam(dst[:0], q, "no_cache")
	})
	if n != 0 || !bytes.Equal(buf, []byte("a b")) {
		t.Errorf("%v allocations, %q", n, buf)
	}
}

func BenchmarkRemoveParam(b *testing.B) {
	q, dst := []byte("size=10&no_cache=true&q=a%20b"), make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		dst = RemoveParam(dst[:0], q, "no_cache")
	}
}
