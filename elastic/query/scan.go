package query

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"time"
	"unicode/utf8"

	"weir/internal/wire"
)

// plain marks the bytes that stand for themselves inside a JSON string: printable ASCII but the quote and the backslash.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// skipPlain returns the first position from i on at which a byte is not plain. It takes eight bytes at a step: in each of
// the terms a byte's highest bit is set if it is a control character, a quote, a backslash or not ASCII, and wrongly set
// only above one that is rightly.
func skipPlain(b []byte, i int) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^ones*'"', x^ones*'\\'
		odd := (x | (x - ones*' ') | (quote-ones)&^quote | (slash-ones)&^slash) & high
		if odd != 0 {
			return i + bits.TrailingZeros64(odd)>>3
		}
		i += 8
	}
	for i < len(b) && plain[b[i]] {
		i++
	}
	return i
}

// skipSpace returns the first position from i on at which no white space stands.
func skipSpace(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' {
		return i // the common case, and short enough to be inlined
	}
	return skipSpaces(b, i)
}

func skipSpaces(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipScalar returns the end of the number or literal at i.
func skipScalar(b []byte, i int) (int, bool) {
	var word string
	switch b[i] {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	case 'n':
		word = "null"
	default:
		return skipNumber(b, i)
	}
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return i, false
	}
	return i + len(word), true
}

func skipNumber(b []byte, i int) (int, bool) {
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch {
	case i == len(b):
		return i, false
	case b[i] == '0':
		i++
	default:
		end := skipDigits(b, i)
		if end == i {
			return i, false
		}
		i = end
	}
	if i < len(b) && b[i] == '.' {
		end := skipDigits(b, i+1)
		if end == i+1 {
			return i, false
		}
		i = end
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		end := skipDigits(b, i)
		if end == i {
			return i, false
		}
		i = end
	}
	return i, true
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i
}

// skipString returns the end of the string at i. It checks the grammar, not the encoding: a node sends documents as they
// were indexed.
func skipString(b []byte, i int) (int, bool) {
	for i++; i < len(b); {
		if i = skipPlain(b, i); i == len(b) {
			break
		}
		switch c := b[i]; {
		case c >= utf8.RuneSelf:
			i++
		case c == '"':
			return i + 1, true
		case c != '\\' || i+1 == len(b):
			return i, false
		case b[i+1] == 'u':
			if _, ok := hex4(b, i+2); !ok {
				return i, false
			}
			i += 6
		case bytes.IndexByte([]byte(`"\/bfnrt`), b[i+1]) < 0:
			return i, false
		default:
			i += 2
		}
	}
	return i, false
}

// hex4 reads the four hexadecimal digits at i.
func hex4(b []byte, i int) (rune, bool) {
	if len(b) < i+4 {
		return 0, false
	}
	var r rune
	for _, c := range b[i : i+4] {
		d := wire.HexDigit(c)
		if d == wire.NoHexDigit {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// maxAnswerDepth is how deep the JSON of an answer may be nested. Elasticsearch indexes documents of at most 1000 levels.
const maxAnswerDepth = 1024

// skipValue returns the end of the JSON value at i, which it checks strictly, in a loop and without memory of its own.
func skipValue(b []byte, i int) (int, bool) {
	var objects [maxAnswerDepth / 64]uint64 // bit d: the container open at depth d is an object
	depth := 0
	ok := true
	for {
		i = skipSpace(b, i)
		if i == len(b) {
			return i, false
		}
		opened := false
		switch b[i] {
		case '{', '[':
			if depth == maxAnswerDepth {
				return i, false
			}
			bit := uint64(1) << (depth & 63)
			objects[depth>>6] &^= bit
			if b[i] == '{' {
				objects[depth>>6] |= bit
			}
			depth++
			i++
			opened = true
		case '"':
			i, ok = skipString(b, i)
		default:
			i, ok = skipScalar(b, i)
		}
		if !ok {
			return i, false
		}
		for { // closes what ends here and goes to the next value
			if depth == 0 {
				return i, true
			}
			object := objects[(depth-1)>>6]>>((depth-1)&63)&1 == 1
			i = skipSpace(b, i)
			if i == len(b) {
				return i, false
			}
			if object && b[i] == '}' || !object && b[i] == ']' {
				depth--
				i++
				opened = false
				continue
			}
			if !opened {
				if b[i] != ',' {
					return i, false
				}
				i = skipSpace(b, i+1)
			}
			if object {
				if i, ok = skipName(b, i); !ok {
					return i, false
				}
			}
			break
		}
	}
}

// skipName returns the end of the name and the colon at i.
func skipName(b []byte, i int) (int, bool) {
	if i == len(b) || b[i] != '"' {
		return i, false
	}
	i, ok := skipString(b, i)
	if !ok {
		return i, false
	}
	i = skipSpace(b, i)
	if i == len(b) || b[i] != ':' {
		return i, false
	}
	return i + 1, true
}

// timeUnits are the units of time values, as Elasticsearch names them.
var timeUnits = [...]struct {
	name string
	unit time.Duration
}{
	{"ms", time.Millisecond},
	{"s", time.Second},
	{"m", time.Minute},
	{"h", time.Hour},
	{"d", 24 * time.Hour},
	{"micros", time.Microsecond},
	{"nanos", time.Nanosecond},
}

// durationOf reads a time value as Elasticsearch does: digits and a unit, or -1, which is none, or 0. It returns false for
// anything else, and for times beyond those of Go.
func durationOf(b []byte) (time.Duration, bool) {
	switch string(b) {
	case "-1":
		return -1, true
	case "0":
		return 0, true
	}
	digits := skipDigits(b, 0)
	if digits == 0 || digits > 9 {
		return 0, false
	}
	n := time.Duration(0)
	for _, c := range b[:digits] {
		n = n*10 + time.Duration(c-'0')
	}
	for i := range timeUnits {
		if u := &timeUnits[i]; string(b[digits:]) == u.name {
			return n * u.unit, n <= math.MaxInt64/u.unit
		}
	}
	return 0, false
}

// isDuration tells whether b is a time value.
func isDuration(b []byte) bool {
	_, ok := durationOf(b)
	return ok
}
