package conf

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Duration is a length of time, written with its unit: 500ms, 1.5s, 1h30m, 2d, 1w. The units of Elasticsearch (d, h,
// m, s, ms, micros, nanos) and of Go are understood. A number without a unit is an error, except 0.
type Duration time.Duration

// durationUnits are in the order in which they must follow each other. The first name of a length is the one written.
var durationUnits = []struct {
	name string
	unit time.Duration
}{
	{"w", 7 * 24 * time.Hour},
	{"d", 24 * time.Hour},
	{"h", time.Hour},
	{"m", time.Minute},
	{"s", time.Second},
	{"ms", time.Millisecond},
	{"us", time.Microsecond},
	{"µs", time.Microsecond},
	{"micros", time.Microsecond},
	{"ns", time.Nanosecond},
	{"nanos", time.Nanosecond},
}

func durationUnit(name string) (time.Duration, bool) {
	for _, u := range durationUnits {
		if u.name == name {
			return u.unit, true
		}
	}
	return 0, false
}

// ParseDuration reads a duration. Larger units come first: 1h30m, not 30m1h.
func ParseDuration(text string) (Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	if rest == "0" {
		return 0, nil
	}
	var total int64
	last := time.Duration(1<<63 - 1)
	for first := true; first || rest != ""; first = false {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789."))]
		rest = rest[len(digits):]
		name := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyzµ"))]
		rest = rest[len(name):]
		if digits != "" && name == "" && rest == "" {
			return 0, fmt.Errorf("%q has no unit; write %ss, or another of w, d, h, m, s, ms", text, text)
		}
		unit, known := durationUnit(name)
		if !known || digits == "" || unit >= last {
			return 0, fmt.Errorf(`%q is not a duration such as 500ms, 1.5s, 1h30m or 2d%s`, text, instead(shortened(text)))
		}
		last = unit
		n, err := scaled(digits, int64(unit))
		if err == nil {
			total, err = calculate(total, '+', n)
		}
		if err != nil {
			return 0, fmt.Errorf("%q is longer than a duration can be (292 years), or not a number", text)
		}
	}
	if negative {
		total = -total
	}
	return Duration(total), nil
}

// spelledUnits are units of durations as people write them who know other programs.
var spelledUnits = map[string][]string{
	"w": {"week", "weeks"}, "d": {"day", "days"}, "h": {"hr", "hrs", "hour", "hours"}, "m": {"min", "mins", "minute", "minutes"},
	"s": {"sec", "secs", "second", "seconds"}, "ms": {"msec", "msecs", "millis", "millisecond", "milliseconds"},
}

var letters = regexp.MustCompile(`[a-z]+`)

// shortened returns a duration whose units are spelled out, or set apart by spaces, as it is to be written.
func shortened(text string) (string, bool) {
	short := letters.ReplaceAllStringFunc(strings.ToLower(strings.ReplaceAll(text, " ", "")), func(word string) string {
		for unit, spelled := range spelledUnits {
			if slices.Contains(spelled, word) {
				return unit
			}
		}
		return word
	})
	if short == text {
		return "", false
	}
	_, err := ParseDuration(short)
	return short, err == nil
}

// instead is the end of a message that knows what was meant.
func instead(meant string, known bool) string {
	if !known {
		return ""
	}
	return "; write " + meant
}

// Std returns d as the type of package time.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns d as a user would write it: 90s as 1m30s, 48h as 2d.
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	var b strings.Builder
	rest := uint64(d)
	if d < 0 {
		b.WriteByte('-')
		rest = -rest
	}
	for _, u := range durationUnits {
		if n := rest / uint64(u.unit); n > 0 {
			b.WriteString(strconv.FormatUint(n, 10))
			b.WriteString(u.name)
			rest %= uint64(u.unit)
		}
	}
	return b.String()
}

// TypeDoc implements Documenter.
func (Duration) TypeDoc() (name, example string) { return "duration", "1.5s" }

// DecodeConf implements Decoder.
func (d *Duration) DecodeConf(n *Node, p *Problems) { decodeText(n, p, d, ParseDuration) }
