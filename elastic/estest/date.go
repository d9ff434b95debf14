package estest

import (
	"strconv"
	"strings"
	"time"
)

// isoLayouts are the forms of strict_date_optional_time, with the unit that a missing rest leaves open.
var isoLayouts = []struct {
	layout string
	unit   byte // of date math: y M d h m s
}{
	{"2006-01-02T15:04:05Z07:00", 's'},
	{"2006-01-02T15:04:05", 's'},
	{"2006-01-02T15:04Z07:00", 'm'},
	{"2006-01-02T15:04", 'm'},
	{"2006-01-02T15Z07:00", 'h'},
	{"2006-01-02T15", 'h'},
	{"2006-01-02", 'd'},
	{"2006-01", 'M'},
	{"2006", 'y'},
}

const defaultDateFormat = "strict_date_optional_time||epoch_millis"

// parseDate reads a date in one of the formats, or date math: now, or a date and ||, followed by +1h, -1d, /d and so on.
// roundUp takes the last millisecond of what is left open or rounded to. The result is in milliseconds since 1970.
func parseDate(text, format string, now time.Time, zone *time.Location, roundUp bool) (int64, error) {
	if format == "" {
		format = defaultDateFormat
	}
	var t time.Time
	math := ""
	if rest, ok := strings.CutPrefix(text, "now"); ok {
		t, math = now, rest
	} else {
		base, after, found := strings.Cut(text, "||")
		var ok bool
		if t, ok = parseFormats(base, format, zone, roundUp && !found); !ok {
			e := illegalArgument("failed to parse date field [%s] with format [%s]", base, format)
			e.cause = badRequest("date_time_parse_exception", "Failed to parse with all enclosed parsers")
			return 0, e
		}
		math = after
	}
	t, err := applyMath(t.In(zone), math, roundUp)
	if err != nil {
		return 0, err
	}
	return t.UnixMilli(), nil
}

// dateError is how the parser of date math tells that it could not read a date.
func dateError(err error) *apiError {
	e := badRequest("parse_exception", "%[1]s: [%[1]s]", asAPIError(err).reason)
	e.cause = asAPIError(err)
	return e
}

func parseFormats(text, formats string, zone *time.Location, roundUp bool) (t time.Time, ok bool) {
	for format := range strings.SplitSeq(formats, "||") {
		switch format {
		case "epoch_millis", "epoch_second":
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				continue
			}
			if format == "epoch_second" {
				return time.Unix(n, 0), true
			}
			return time.UnixMilli(n), true
		case "strict_date_optional_time", "date_optional_time", "strict_date_optional_time_nanos", "date", "strict_date":
			for _, l := range isoLayouts {
				if t, err := time.ParseInLocation(l.layout, text, zone); err == nil {
					if roundUp && !strings.Contains(text, ".") { // Go takes a fraction where the layout has none
						t = endOf(t, l.unit)
					}
					return t, true
				}
			}
		default:
			if t, err := time.ParseInLocation(goLayout(format), text, zone); err == nil {
				return t, true
			}
		}
	}
	return time.Time{}, false
}

// looksLikeDate tells whether dynamic mapping takes a string for a date: year first, and at least a day.
func looksLikeDate(s string) bool {
	for _, l := range isoLayouts {
		if l.unit == 'M' || l.unit == 'y' {
			return false
		}
		if _, err := time.Parse(l.layout, s); err == nil {
			return true
		}
	}
	return false
}

func applyMath(t time.Time, math string, roundUp bool) (time.Time, error) {
	for math != "" {
		op := math[0]
		rest := strings.TrimLeft(math[1:], "0123456789")
		count := math[1 : len(math)-len(rest)]
		n := 1
		if count != "" {
			var err error
			if n, err = strconv.Atoi(count); err != nil {
				return t, badRequest("parse_exception", "number too large in date math [%s]", math)
			}
		}
		if rest == "" || !strings.ContainsRune("yMwdhHms", rune(rest[0])) || !strings.ContainsRune("+-/", rune(op)) || op == '/' && count != "" {
			return t, badRequest("parse_exception", "operator not supported for date math [%s]", math)
		}
		unit := rest[0]
		math = rest[1:]
		switch op {
		case '/':
			if roundUp {
				t = endOf(t, unit)
			} else {
				t = startOf(t, unit)
			}
		case '-':
			t = addUnits(t, unit, -n)
		default:
			t = addUnits(t, unit, n)
		}
	}
	return t, nil
}

func addUnits(t time.Time, unit byte, n int) time.Time {
	switch unit {
	case 'y':
		return addMonths(t, 12*n)
	case 'M':
		return addMonths(t, n)
	case 'w':
		return t.AddDate(0, 0, 7*n)
	case 'd':
		return t.AddDate(0, 0, n)
	case 'h', 'H':
		return t.Add(time.Duration(n) * time.Hour)
	case 'm':
		return t.Add(time.Duration(n) * time.Minute)
	}
	return t.Add(time.Duration(n) * time.Second)
}

// addMonths keeps the day within the month that it reaches: a month after 31 January is the last of February.
func addMonths(t time.Time, n int) time.Time {
	first := time.Date(t.Year(), t.Month(), 1, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), t.Location()).AddDate(0, n, 0)
	last := first.AddDate(0, 1, -1).Day()
	return first.AddDate(0, 0, min(t.Day(), last)-1)
}

func startOf(t time.Time, unit byte) time.Time {
	y, mo, d := t.Date()
	h, mi, s := t.Clock()
	switch unit {
	case 'y':
		mo, d, h, mi, s = 1, 1, 0, 0, 0
	case 'q':
		mo, d, h, mi, s = (mo-1)/3*3+1, 1, 0, 0, 0
	case 'M':
		d, h, mi, s = 1, 0, 0, 0
	case 'w':
		d, h, mi, s = d-(int(t.Weekday())+6)%7, 0, 0, 0
	case 'd':
		h, mi, s = 0, 0, 0
	case 'h', 'H':
		mi, s = 0, 0
	case 'm':
		s = 0
	}
	return time.Date(y, mo, d, h, mi, s, 0, t.Location())
}

// endOf is the last millisecond of the unit that t lies in.
func endOf(t time.Time, unit byte) time.Time {
	return addUnits(startOf(t, unit), unit, 1).Add(-time.Millisecond)
}

// goLayout translates a date pattern such as yyyy-MM-dd'T'HH:mm:ss.SSSXXX.
func goLayout(pattern string) string {
	return strings.NewReplacer(
		"yyyy", "2006", "uuuu", "2006", "yy", "06", "MM", "01", "dd", "02", "HH", "15", "mm", "04", "ss", "05",
		"SSS", "000", "XXX", "Z07:00", "Z", "Z0700", "'", "",
	).Replace(pattern)
}

// formatDate writes a date in the first of the formats.
func formatDate(ms int64, format string, zone *time.Location) string {
	t := time.UnixMilli(ms).In(zone)
	first, _, _ := strings.Cut(format, "||")
	switch first {
	case "epoch_millis":
		return strconv.FormatInt(ms, 10)
	case "epoch_second":
		return strconv.FormatInt(ms/1000, 10)
	case "", "strict_date_optional_time", "date_optional_time", "strict_date_optional_time_nanos":
		return t.Format("2006-01-02T15:04:05.000Z07:00")
	}
	return t.Format(goLayout(first))
}

// parseZone reads a time zone: an offset or a name.
func parseZone(s string) (*time.Location, error) {
	if s == "" || s == "Z" || s == "UTC" {
		return time.UTC, nil
	}
	if t, err := time.Parse("-07:00", s); err == nil {
		_, offset := t.Zone()
		return time.FixedZone(s, offset), nil
	}
	zone, err := time.LoadLocation(s)
	if err != nil {
		return nil, illegalArgument("Unknown time-zone ID: %s", s)
	}
	return zone, nil
}

// resolveDateMath turns <logs-{now/d{yyyy.MM.dd}}> into logs-2026.11.30 and leaves other names alone.
func resolveDateMath(name string, now time.Time) (string, error) {
	if !strings.HasPrefix(name, "<") || !strings.HasSuffix(name, ">") {
		return name, nil
	}
	out := ""
	rest := name[1 : len(name)-1]
	for {
		before, after, found := strings.Cut(rest, "{")
		out += before
		if !found {
			return out, nil
		}
		expr, format := after, "yyyy.MM.dd"
		end := strings.IndexAny(after, "{}")
		if end < 0 {
			return "", badRequest("parse_exception", "invalid dynamic name expression [%s]. missing closing [}]", name)
		}
		expr, rest = after[:end], after[end+1:]
		if after[end] == '{' {
			var ok bool
			if format, rest, ok = strings.Cut(rest, "}}"); !ok {
				return "", badRequest("parse_exception", "invalid dynamic name expression [%s]. missing closing [}]", name)
			}
		}
		format, zoneName, _ := strings.Cut(format, "|")
		zone, err := parseZone(zoneName)
		if err != nil {
			return "", err
		}
		ms, err := parseDate(expr, format, now, zone, false)
		if err != nil {
			return "", dateError(err)
		}
		out += formatDate(ms, format, zone)
	}
}
