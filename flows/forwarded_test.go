package flows

import "testing"

func TestForwardedAllocatesNothing(t *testing.T) {
	c := DefaultEntry()
	c.Via = "weir"
	x := Explaining("GET", "/", "Host", "a", "Via", "1.0 b")
	x.conn = &conn{entry: &Entry{callers: newCallers(&c)}}
	dst := x.Forwarded(nil)
	if n := testing.AllocsPerRun(100, func() { dst = x.Forwarded(dst[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
