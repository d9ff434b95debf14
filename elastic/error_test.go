package elastic

import "testing"

func TestPreparedErrorMakesItsBodyOnce(t *testing.T) {
	e := Errorf(429, "rate_limit_exceeded_exception", "[a] 1/s \"exceeded\"")
	p := e.Prepared()
	if got, want := string(p.Body()), string(e.AppendBody(nil)); got != want || string(e.Body()) != want {
		t.Errorf("body %s, want %s", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { _ = p.Body() }); n != 0 {
		t.Errorf("%v allocations for a prepared body", n)
	}
}
