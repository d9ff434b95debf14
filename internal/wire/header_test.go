package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func headerOf(pairs ...string) *Header {
	h := &Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.AddString(pairs[i], pairs[i+1])
	}
	return h
}

func pairsOf(h *Header) []string {
	out := []string{}
	for _, f := range h.Fields() {
		out = append(out, string(f.Name), string(f.Value))
	}
	return out
}

func TestHeaderSet(t *testing.T) {
	f := func(h *Header, name, value string, want ...string) {
		t.Helper()
		h.Set(name, value)
		if diff := cmp.Diff(want, pairsOf(h)); diff != "" {
			t.Errorf("Set(%q, %q): -want +got\n%s", name, value, diff)
		}
	}
	f(headerOf(), "A", "1", "A", "1")
	f(headerOf("A", "1", "B", "2"), "C", "3", "A", "1", "B", "2", "C", "3")
	// The field keeps its place among the others and takes the new spelling.
	f(headerOf("A", "1", "x-y", "2", "B", "3"), "X-Y", "4", "A", "1", "X-Y", "4", "B", "3")
	f(headerOf("a", "1", "B", "2", "A", "3", "C", "4"), "A", "5", "A", "5", "B", "2", "C", "4")
}

func TestHeaderLookup(t *testing.T) {
	h := headerOf("x-opaque-id", "1", "X-Opaque-Id", "2", "Accept", "*/*")
	if got := string(h.Get("x-opaque-id")); got != "1" {
		t.Errorf("Get returned %q, want the first value", got)
	}
	if got := h.Count("x-opaque-id"); got != 2 {
		t.Errorf("Count returned %d, want 2", got)
	}
	if h.Has("x-opaque") || !h.Has("accept") {
		t.Error("Has compares something else than whole names")
	}
	h.Del("x-opaque-id")
	if diff := cmp.Diff([]string{"Accept", "*/*"}, pairsOf(h)); diff != "" {
		t.Errorf("after Del: -want +got\n%s", diff)
	}
	h.Reset()
	if h.Len() != 0 || h.Get("accept") != nil {
		t.Error("Reset left fields")
	}
}

func TestHasToken(t *testing.T) {
	f := func(value string, want bool) {
		t.Helper()
		if got := HasToken([]byte(value), "close"); got != want {
			t.Errorf("HasToken(%q) = %v", value, got)
		}
	}
	f("close", true)
	f("Keep-Alive, CLOSE", true)
	f("\tclose ,x", true)
	f("", false)
	f("closed", false)
	f("x close", false)
}

func TestDropHopByHop(t *testing.T) {
	f := func(h *Header, want ...string) {
		t.Helper()
		h.DropHopByHop()
		if diff := cmp.Diff(append([]string{}, want...), pairsOf(h)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	f(headerOf())
	f(headerOf("Accept", "a", "TE", "trailers", "Keep-Alive", "5", "B", "b"), "Accept", "a", "B", "b")
	f(headerOf("X-Hop", "1", "Connection", "close, x-hop", "X-End", "2", "x-HOP", "3"), "X-End", "2")
	// A name behind the Connection field, and one of two Connection fields, count as well.
	f(headerOf("Connection", "a", "B", "1", "connection", "b", "A", "2", "C", "3"), "C", "3")
	// Naming Connection itself must not shield what else it names.
	f(headerOf("Connection", "connection, a", "A", "1", "B", "2"), "B", "2")
	f(headerOf("Connection", ",", "B", "2"), "B", "2")
}

func TestValid(t *testing.T) {
	f := func(got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("got %v", got)
		}
	}
	f(ValidToken([]byte("X-Opaque-Id")), true)
	f(ValidToken(nil), false)
	f(ValidToken([]byte("a b")), false)
	f(ValidToken([]byte("a:")), false)
	f(ValidValue([]byte("Bearer \xc3\xa9\t!")), true)
	f(ValidValue(nil), true)
	f(ValidValue([]byte("a\rb")), false)
	f(ValidValue([]byte("a\nb")), false)
	f(ValidValue([]byte("a\x00b")), false)
}

func TestLookupsDoNotAllocate(t *testing.T) {
	h := &Header{}
	raw := []byte("Host: a\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nContent-Length: 12\r\n\r\n")
	if n := testing.AllocsPerRun(100, func() {
		h.Reset()
		if err := ParseFields(h, raw); err != nil {
			t.Fatal(err)
		}
		if f, err := FramingOf(h); err != nil || f.Length != 12 {
			t.Fatal(f, err)
		}
		h.DropHopByHop()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
