package query

import (
	"bytes"
	"time"
)

// Steps by which answers change with the clock that count from a rounded now. Days begin at another time in each time zone, but
// all over the world at a full quarter of an hour.
const (
	stepMinute = time.Minute
	stepHour   = 15 * time.Minute
)

// stepOf returns the step of a moment that is now, changed as the date math in s says, or 0 if it moves all the time, or if that is
// not sure. What stands behind the first rounding moves with it; what stands before it puts it off.
func stepOf(s []byte) time.Duration {
	off := time.Duration(0)
	for len(s) > 0 && s[0] != '/' {
		n := skipDigits(s, 1)
		if s[0] != '+' && s[0] != '-' || n == len(s) || n > len("-9999999") {
			return 0
		}
		count := time.Duration(0)
		for _, c := range s[1:n] {
			count = 10*count + time.Duration(c-'0')
		}
		if n == 1 {
			count = 1
		}
		if s[0] == '-' {
			count = -count
		}
		switch s[n] {
		case 's':
			off += count * time.Second
		case 'm':
			off += count * time.Minute
		case 'h', 'H', 'd', 'w', 'M', 'y': // full hours, or half ones where clocks are put forward
		default:
			return 0
		}
		s = s[n+1:]
	}
	if len(s) < 2 {
		return 0
	}
	step := time.Duration(0)
	switch s[1] {
	case 'm':
		step = stepMinute
	case 'h', 'H', 'd', 'w', 'M', 'y':
		step = stepHour
	}
	if step == 0 || off%step != 0 {
		return 0
	}
	return step
}

var timeZone = []byte(`"time_zone":"`)

// oddZone tells whether a canonical body may name a time zone in which hours begin at something else than a quarter of one. No
// place on earth has such a zone, but an offset may be written that is one.
func oddZone(body []byte) bool {
	for {
		i := bytes.Index(body, timeZone)
		if i < 0 {
			return false
		}
		body = body[i+len(timeZone):]
		zone, _, _ := bytes.Cut(body, []byte{'"'})
		hours, minutes, exact := bytes.Cut(zone[max(0, bytes.LastIndexAny(zone, "+-")):], []byte{':'})
		switch string(minutes) {
		case "", "00", "15", "30", "45":
		default:
			return true
		}
		if len(hours) > len("+00") && !exact && bytes.ContainsAny(hours, "0123456789") {
			return true
		}
	}
}
