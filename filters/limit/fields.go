package limit

import (
	"strconv"
	"strings"
	"time"

	"weir/flows"
	"weir/internal/wire"
)

// The fields of answers that tell callers of limits.
var (
	policyName          = []byte("RateLimit-Policy")
	rateLimitName       = []byte("RateLimit")
	legacyLimitName     = []byte("X-RateLimit-Limit")
	legacyRemainingName = []byte("X-RateLimit-Remaining")
	legacyResetName     = []byte("X-RateLimit-Reset")
)

// A fieldStyle says which of them answers have.
type fieldStyle struct{ draft, legacy bool }

var fieldStyles = map[string]fieldStyle{"draft": {draft: true}, "legacy": {legacy: true}, "both": {true, true}, "off": {}}

func (s fieldStyle) any() bool { return s.draft || s.legacy }

// quoted returns a limit's name as a string of structured fields (RFC 9651 section 3.3.3), in which only printable ASCII may
// stand.
func quoted(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(name) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			b.WriteByte('?')
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}

// policyOf returns the value of RateLimit-Policy: so many units in so many seconds.
func policyOf(quotedName string, quota int64, window time.Duration, unit string) []byte {
	out := quotedName + ";q=" + strconv.FormatInt(quota, 10)
	if window > 0 {
		// Intervals are rounded up to nanoseconds: three thirds of a second are not two seconds.
		out += ";w=" + strconv.FormatInt(max(1, seconds(window-time.Millisecond)), 10)
	}
	if unit != "" {
		out += `;qu="` + unit + `"`
	}
	return []byte(out)
}

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// appendRateLimit appends the value of RateLimit: how many units remain, and after how many seconds there are more.
func (l *limit) appendRateLimit(dst []byte, remaining, reset int64) []byte {
	dst = append(append(dst, l.quoted...), ";r="...)
	dst = append(strconv.AppendInt(dst, remaining, 10), ";t="...)
	return strconv.AppendInt(dst, reset, 10)
}

// describe returns what is told of a request that passed: how many units remain, and in how many seconds the whole burst is there
// again or, without any left, one more unit passes.
func (b *budget) describe(d Decision) (remaining, reset int64) {
	if d.Remaining == 0 {
		return 0, max(1, seconds(d.Wait))
	}
	return d.Remaining, seconds(b.rested(d.Remaining))
}

// addFields adds to the response what it tells of the limit that x is nearest to.
func (f *rateLimit) addFields(x *flows.Exchange, s *scratch) {
	nearest, least, wait := -1, 2.0, time.Duration(0)
	for i := range s.charges {
		c := &s.charges[i]
		if c.Advisory {
			continue
		}
		share := float64(c.Decision.Remaining) / float64(c.Limit.burst)
		if share < least || share == least && c.Decision.Wait > wait {
			nearest, least, wait = i, share, c.Decision.Wait
		}
	}
	if nearest < 0 {
		return
	}
	l, b, c := s.taken[nearest].limit, s.taken[nearest].budget, &s.charges[nearest]
	remaining, reset := b.describe(c.Decision)
	h := &x.Response.Header
	s.field = s.field[:0]
	if f.style.draft {
		s.field = l.appendRateLimit(s.field, remaining, reset)
		h.Add(policyName, b.policy)
		h.Add(rateLimitName, s.field)
	}
	if f.style.legacy {
		from := len(s.field)
		s.field = strconv.AppendInt(s.field, b.burst, 10)
		mid := len(s.field)
		s.field = strconv.AppendInt(s.field, remaining, 10)
		last := len(s.field)
		s.field = strconv.AppendInt(s.field, reset, 10)
		h.Add(legacyLimitName, s.field[from:mid])
		h.Add(legacyRemainingName, s.field[mid:last])
		h.Add(legacyResetName, s.field[last:])
	}
}

// refusalFields returns what a refusal tells of its limit, of which nothing is left for so many seconds.
func (f *rateLimit) refusalFields(l *limit, b *budget, reset int64) []wire.Field {
	var out []wire.Field
	if f.style.draft {
		out = append(out, wire.Field{Name: policyName, Value: b.policy},
			wire.Field{Name: rateLimitName, Value: l.appendRateLimit(nil, 0, reset)})
	}
	if f.style.legacy {
		number := func(n int64) []byte { return strconv.AppendInt(nil, n, 10) }
		out = append(out, wire.Field{Name: legacyLimitName, Value: number(b.burst)},
			wire.Field{Name: legacyRemainingName, Value: number(0)}, wire.Field{Name: legacyResetName, Value: number(reset)})
	}
	return out
}
