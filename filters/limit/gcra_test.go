package limit

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// shape returns a limit that must be one.
func shape(t interface {
	Helper()
	Fatal(args ...any)
}, interval time.Duration, burst int64,
) Limit {
	t.Helper()
	l, err := NewLimit(interval, burst)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestDecide(t *testing.T) {
	const ms = int64(time.Millisecond)
	three := shape(t, 100*time.Millisecond, 3)
	f := func(tat, now, cost, next int64, want Decision) {
		t.Helper()
		gotNext, got := three.decide(tat, now, cost)
		if got != want || gotNext != next {
			t.Errorf("decide(%d, %d, %d) = %d, %+v, want %d, %+v", tat, now, cost, gotNext, got, next, want)
		}
	}
	// Rested: three at once, the fourth waits for one interval.
	f(0, 500*ms, 1, 600*ms, Decision{OK: true, Remaining: 2})
	f(600*ms, 500*ms, 1, 700*ms, Decision{OK: true, Remaining: 1})
	f(700*ms, 500*ms, 1, 800*ms, Decision{OK: true, Wait: 100 * time.Millisecond})
	f(800*ms, 500*ms, 1, 800*ms, Decision{Wait: 100 * time.Millisecond})
	f(800*ms, 599*ms, 1, 800*ms, Decision{Wait: time.Millisecond})
	f(800*ms, 600*ms, 1, 900*ms, Decision{OK: true, Wait: 100 * time.Millisecond})
	// A unit that is half back is not there yet.
	f(750*ms, 500*ms, 1, 750*ms, Decision{Wait: 50 * time.Millisecond})
	f(650*ms, 500*ms, 2, 650*ms, Decision{Wait: 50 * time.Millisecond, Remaining: 1})
	// Costs.
	f(0, 500*ms, 3, 800*ms, Decision{OK: true, Wait: 100 * time.Millisecond})
	f(600*ms, 500*ms, 3, 600*ms, Decision{Wait: 100 * time.Millisecond, Remaining: 2})
	// A cost above the burst passes at rest and leaves a debt.
	f(0, 500*ms, 5, 1000*ms, Decision{OK: true, Wait: 300 * time.Millisecond})
	f(501*ms, 500*ms, 5, 501*ms, Decision{Wait: time.Millisecond, Remaining: 2})
	f(1000*ms, 500*ms, 1, 1000*ms, Decision{Wait: 300 * time.Millisecond})
	// A cost beyond all measure.
	f(0, 500*ms, math.MaxInt64, 500*ms+maxSpan, Decision{OK: true, Wait: maxSpan - 200*time.Millisecond})
}

func TestNewLimit(t *testing.T) {
	f := func(interval time.Duration, burst int64, want string) {
		t.Helper()
		_, err := NewLimit(interval, burst)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("NewLimit(%s, %d): error %v, want %q", interval, burst, err, want)
		}
	}
	f(1, 1, "")
	f(maxInterval, 1, "")
	f(1, maxSpan, "")
	f(0, 1, "cannot be told from no limit")
	f(maxInterval+1, 1, "less than one a year")
	f(time.Second, 0, "lets nothing pass")
	f(2, maxSpan/2+1, "more than 36 years")
}

func TestIntervalOf(t *testing.T) {
	f := func(units float64, per, want time.Duration) {
		t.Helper()
		if got := IntervalOf(units, per); got != want {
			t.Errorf("IntervalOf(%v, %s) = %d, want %d", units, per, got, want)
		}
	}
	f(1, time.Second, time.Second)
	f(3, time.Second, 333333334)
	f(2.5, time.Second, 400*time.Millisecond)
	f(600, time.Minute, 100*time.Millisecond)
	f(1e9, time.Second, 1)
	f(1e9+1, time.Second, 0)
	f(0, time.Second, maxSpan)
	f(math.NaN(), time.Second, maxSpan)
	f(1e-300, time.Second, maxSpan)
}

// TestWindows holds the decisions against a log of all that was admitted: in no window is there more than the burst and
// the rate times its length, and who waits as told is admitted.
func TestWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.Int64Range(1, int64(2*time.Second)).Draw(t, "interval"))
		burst := rapid.Int64Range(1, 50).Draw(t, "burst")
		l := shape(t, interval, burst)
		type entry struct{ at, cost int64 }
		var log []entry
		var now, tat int64
		step := rapid.Int64Range(0, 3*int64(interval))
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			cost := rapid.Int64Range(1, burst).Draw(t, "cost")
			var d Decision
			if tat, d = l.decide(tat, now, cost); d.OK {
				log = append(log, entry{now, cost})
			} else {
				if d.Wait <= 0 {
					t.Fatalf("refused with a wait of %s", d.Wait)
				}
				if _, early := l.decide(tat, now+int64(d.Wait)-1, cost); early.OK {
					t.Fatalf("admitted before the wait of %s is over", d.Wait)
				}
				if _, after := l.decide(tat, now+int64(d.Wait), cost); !after.OK {
					t.Fatalf("refused after the wait of %s", d.Wait)
				}
			}
			if d.Remaining > 0 {
				if _, rest := l.decide(tat, now, d.Remaining); !rest.OK {
					t.Fatalf("%d remained, and are refused", d.Remaining)
				}
			}
			if _, more := l.decide(tat, now, d.Remaining+1); d.Remaining < burst && more.OK {
				t.Fatalf("%d remained, and more passes", d.Remaining)
			}
			now += step.Draw(t, "pause")
		}
		for i := range log {
			var sum int64
			for _, e := range log[i:] {
				sum += e.cost
				length := e.at - log[i].at
				if allowed := burst + length/int64(interval); sum > allowed {
					t.Fatalf("%d units admitted in %s, at most %d are allowed", sum, time.Duration(length), allowed)
				}
			}
		}
	})
}

// TestDebt holds that costs above the burst come no faster than the rate either, from the first one on.
func TestDebt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := shape(t, time.Millisecond, 10)
		var now, tat, sum, biggest int64
		for range 60 {
			cost := rapid.Int64Range(1, 100).Draw(t, "cost")
			var d Decision
			if tat, d = l.decide(tat, now, cost); d.OK {
				sum, biggest = sum+cost, max(biggest, cost)
			} else if _, after := l.decide(tat, now+int64(d.Wait), cost); !after.OK {
				t.Fatalf("a cost of %d is refused after the wait of %s", cost, d.Wait)
			}
			if allowed := 10 + biggest + now/int64(time.Millisecond); sum > allowed {
				t.Fatalf("%d units admitted by %s, at most %d are allowed", sum, time.Duration(now), allowed)
			}
			now += rapid.Int64Range(0, int64(20*time.Millisecond)).Draw(t, "pause")
		}
	})
}

// TestBilled holds the same of what is charged afterwards: a key that is in debt gets nothing until it has paid it off.
func TestBilled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := shape(t, time.Millisecond, 10)
		var now, tat, sum, biggest int64
		for range 60 {
			next, d := l.decide(tat, now, 0)
			switch {
			case next != tat:
				t.Fatal("asking was charged")
			case d.OK:
				cost := rapid.Int64Range(0, 100).Draw(t, "cost")
				tat = l.bill(tat, now, cost)
				sum, biggest = sum+cost, max(biggest, cost)
			default:
				if _, early := l.decide(tat, now+int64(d.Wait)-1, 0); early.OK {
					t.Fatalf("admitted before the wait of %s is over", d.Wait)
				}
				if _, after := l.decide(tat, now+int64(d.Wait), 0); !after.OK {
					t.Fatalf("refused after the wait of %s", d.Wait)
				}
			}
			if allowed := 10 + biggest + now/int64(time.Millisecond); sum > allowed {
				t.Fatalf("%d units used by %s, at most %d are allowed", sum, time.Duration(now), allowed)
			}
			now += rapid.Int64Range(0, int64(20*time.Millisecond)).Draw(t, "pause")
		}
	})
}
