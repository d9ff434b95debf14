package flows

import "testing"

func TestForwardedAllocatesNothing(t *testing.T) {
	c := DefaultEntry()
	c.Via = "weir"
	x := Explaining("GET", "/", "Host", "a", "Via", "1.0 b")
	k := newCallers(&c)
	x.callers = &k
	dst := x.Forwarded(nil)
	if n := testing.AllocsPerRun(100, func() { dst = x.Forwarded(dst[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
