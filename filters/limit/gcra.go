package limit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// maxSpan bounds all spans of time here, in nanoseconds (36 years), so that sums of them and the clock cannot overflow.
const maxSpan = 1 << 60

// maxInterval is the longest emission interval: beyond it a limit is a prohibition.
const maxInterval = 366 * 24 * time.Hour

// A Limit is the shape of a rate limit: one unit each interval, and a burst that may come at once after rest. It is the
// generic cell rate algorithm (ITU-T I.371) over a theoretical arrival time, TAT, a key: the time at which the key will have
// its whole burst again. The zero value is not usable; see NewLimit.
type Limit struct {
	interval  int64 // emission interval T in nanoseconds
	burst     int64 // B
	tolerance int64 // B·T
}

// NewLimit returns the limit of one unit each interval with a burst of so many units. An error names what is out of range.
func NewLimit(interval time.Duration, burst int64) (Limit, error) {
	switch {
	case interval < 1:
		return Limit{}, errors.New("more than 1000000000 a second cannot be told from no limit")
	case interval > maxInterval:
		return Limit{}, fmt.Errorf("one in %s is less than one a year", interval)
	case burst < 1:
		return Limit{}, fmt.Errorf("a burst of %d lets nothing pass", burst)
	case burst > maxSpan/int64(interval):
		return Limit{}, fmt.Errorf("a burst of %d takes more than 36 years to come back", burst)
	}
	return Limit{interval: int64(interval), burst: burst, tolerance: burst * int64(interval)}, nil
}

// IntervalOf returns the emission interval of a number of units in a length of time, rounded up to a nanosecond: a limit
// may be a trace stricter than its rate, never laxer. It is 0 for more than one unit a nanosecond.
func IntervalOf(units float64, per time.Duration) time.Duration {
	if units > float64(per) {
		return 0
	}
	interval := math.Ceil(float64(per) / units)
	if !(interval < maxSpan) { // units may be 0 or no number
		return maxSpan
	}
	return time.Duration(interval)
}

// A Decision is the answer of a limit.
type Decision struct {
	OK bool
	// Wait is the time after which, if nothing else comes in between, a refused request passes or, behind one that left nothing
	// remaining, one more unit.
	Wait      time.Duration
	Remaining int64 // units that would still pass at once
}

// span returns the time that cost units take.
func (l *Limit) span(cost int64) int64 {
	if cost > maxSpan/l.interval {
		return maxSpan
	}
	return cost * l.interval
}

// decide tells whether cost units pass at now, for a key whose TAT is tat, and the TAT after that. A cost above the burst
// passes a rested key and leaves a debt, since it could never pass otherwise. A cost of 0 is one that is known only when the
// answer is there: it passes while the burst is not used up, and bill charges it.
func (l *Limit) decide(tat, now, cost int64) (next int64, d Decision) {
	rest := max(tat-now, 0)
	if cost == 0 {
		if rest < l.tolerance {
			return tat, Decision{OK: true, Remaining: (l.tolerance - rest) / l.interval}
		}
		return tat, Decision{Wait: time.Duration(rest - l.tolerance + 1)}
	}
	used := rest + l.span(cost)
	switch {
	case used <= l.tolerance, cost > l.burst && rest == 0:
		d = Decision{OK: true, Remaining: max(l.tolerance-used, 0) / l.interval}
		if d.Remaining == 0 {
			d.Wait = time.Duration(used + l.interval - l.tolerance)
		}
		return now + used, d
	case cost > l.burst:
		return tat, Decision{Wait: time.Duration(rest), Remaining: max(l.tolerance-rest, 0) / l.interval}
	}
	return tat, Decision{Wait: time.Duration(used - l.tolerance), Remaining: max(l.tolerance-rest, 0) / l.interval}
}

// bill returns the TAT of a key after cost units that nobody asked about, however far in debt that leaves it.
func (l *Limit) bill(tat, now, cost int64) int64 {
	return now + min(max(tat-now, 0)+l.span(cost), maxSpan)
}

// rested returns after how long a key of which so many units remain has its whole burst again.
func (l *Limit) rested(remaining int64) time.Duration {
	return time.Duration(l.tolerance - min(remaining, l.burst)*l.interval)
}
