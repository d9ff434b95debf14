package conf

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Unit says what a Rate or an Amount counts.
type Unit uint8

// The units.
const (
	Count Unit = iota // things
	Data              // bytes
	Time              // milliseconds
)

var unitNames = [...]string{"a number", "an amount of data", "a length of time"}

// String returns what the unit is called in messages.
func (u Unit) String() string { return unitNames[u] }

// quantity writes n of the unit.
func (u Unit) quantity(n int64) string {
	switch u {
	case Data:
		return Bytes(n).String()
	case Time:
		return Duration(n * int64(time.Millisecond)).String()
	}
	return strconv.FormatInt(n, 10)
}

// parseQuantity reads a whole number, which may be arithmetic, an amount of data with its unit, or a length of time, of which the milliseconds
// count.
func parseQuantity(text string) (int64, Unit, error) {
	if n, err := evaluate(text); err == nil {
		return n, Count, nil
	}
	if strings.HasSuffix(strings.ToLower(text), "b") {
		amount, err := ParseBytes(text)
		return int64(amount), Data, err
	}
	if length, err := ParseDuration(text); err == nil {
		return length.Std().Milliseconds(), Time, nil
	}
	return 0, Count, fmt.Errorf("%q is not a whole number", text)
}

// A Rate is a number of events in a length of time, written 100/s, 6000/m, 1/10s, or, of data, 10mb/s, or, of time that
// something takes, 20s/s. The zero value is no rate.
type Rate struct {
	Events int64 // at least 1; bytes or milliseconds where Unit says so
	Per    time.Duration
	Unit   Unit
}

// ParseRate reads a rate.
func ParseRate(text string) (Rate, error) {
	count, per, slash := strings.Cut(text, "/")
	count, per = strings.TrimSpace(count), strings.TrimSpace(per)
	events, unit, err := parseQuantity(count)
	if !slash && err == nil {
		return Rate{}, fmt.Errorf("%q has no length of time; write %s/s, or another such as 6000/m", text, text)
	}
	if !slash {
		return Rate{}, fmt.Errorf("%q is not a rate such as 100/s, 6000/m or 1/10s", text)
	}
	if err != nil {
		if whole, ok := wholeRate(count, per); ok {
			return Rate{}, fmt.Errorf("%q is not a whole number in a length of time; write %s", text, whole)
		}
		return Rate{}, fmt.Errorf("%q is not a rate such as 100/s: %w", text, err)
	}
	if events < 1 {
		return Rate{}, fmt.Errorf("the rate %q allows nothing; it must be at least one in some length of time", text)
	}
	if per != "" && (per[0] < '0' || per[0] > '9') {
		per = "1" + per
	}
	length, err := ParseDuration(per)
	if err != nil || length <= 0 {
		short, known := shortened(per)
		if rest, one := strings.CutPrefix(short, "1"); one && strings.Trim(rest, "0123456789.") == rest {
			short = rest // 1/s, not 1/1s
		}
		return Rate{}, fmt.Errorf("%q is not a rate such as 100/s, 6000/m or 1/10s%s", text, instead(count+"/"+short, known))
	}
	return Rate{Events: events, Per: length.Std(), Unit: unit}, nil
}

// wholeRate returns the rate of a number with a fraction, such as 0.5 in s, as one of a whole number: 1/2s.
func wholeRate(count, per string) (string, bool) {
	whole, fraction, _ := strings.Cut(count, ".")
	if per != "" && (per[0] < '0' || per[0] > '9') {
		per = "1" + per
	}
	length, err := ParseDuration(per)
	if err != nil || length <= 0 || length > Duration(24*time.Hour) || len(fraction) > 3 {
		return "", false
	}
	n, err := strconv.ParseUint(whole+fraction, 10, 31)
	if err != nil || n == 0 {
		return "", false
	}
	times := uint64(1)
	for range fraction {
		times *= 10
	}
	for _, factor := range [...]uint64{2, 2, 2, 5, 5, 5} {
		if n%factor == 0 && times%factor == 0 {
			n, times = n/factor, times/factor
		}
	}
	return strconv.FormatUint(n, 10) + "/" + (length * Duration(times)).String(), true
}

// PerSecond returns how many events a second r is, and 0 for no rate.
func (r Rate) PerSecond() float64 {
	if r.Per == 0 {
		return 0
	}
	return float64(r.Events) / r.Per.Seconds()
}

// String returns r as a user would write it, and "" for no rate.
func (r Rate) String() string {
	if r.Per == 0 {
		return ""
	}
	per := Duration(r.Per).String()
	if unit, one := strings.CutPrefix(per, "1"); one {
		if _, known := durationUnit(unit); known {
			per = unit
		}
	}
	return r.Unit.quantity(r.Events) + "/" + per
}

// TypeDoc implements Documenter.
func (Rate) TypeDoc() (name, example string) { return "rate", "100/s" }

// DecodeConf implements Decoder.
func (r *Rate) DecodeConf(n *Node, p *Problems) { decodeText(n, p, r, ParseRate) }

// An Amount is how much of something: 100, 10mb or 5s. The zero value is none.
type Amount struct {
	N    int64 // bytes or milliseconds where Unit says so
	Unit Unit
}

// ParseAmount reads an amount, at least 1.
func ParseAmount(text string) (Amount, error) {
	n, unit, err := parseQuantity(text)
	if err == nil && n < 1 {
		err = fmt.Errorf("%q is nothing; want at least 1", text)
	}
	if err != nil {
		return Amount{}, err
	}
	return Amount{N: n, Unit: unit}, nil
}

// String returns a as a user would write it, and "" for none.
func (a Amount) String() string {
	if a == (Amount{}) {
		return ""
	}
	return a.Unit.quantity(a.N)
}

// TypeDoc implements Documenter.
func (Amount) TypeDoc() (name, example string) { return "amount", "100" }

// DecodeConf implements Decoder.
func (a *Amount) DecodeConf(n *Node, p *Problems) { decodeText(n, p, a, ParseAmount) }
