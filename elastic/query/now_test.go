package query

import (
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSteps(t *testing.T) {
	f := func(math string, want time.Duration) {
		t.Helper()
		if got := stepOf([]byte(math)); got != want {
			t.Errorf("now%s: %s, want %s", math, got, want)
		}
	}
	const quarter = 15 * time.Minute
	for _, math := range []string{"/d", "/h", "/H", "/w", "/M", "/y", "-1d/d", "-d/d", "-7d/h", "-1M/M", "-15m/h", "-90m/d", "+1d/d-3s", "/d/s", "/d-1s/m", "-5m-10m/h", "-900s/h"} {
		f(math, quarter)
	}
	for _, math := range []string{"/m", "-1h/m", "-5m/m", "-60s/m", "-30s-30s/m"} {
		f(math, time.Minute)
	}
	for _, math := range []string{"", "-15m", "/s", "-5m/h", "-1s/m", "-1s/d", "-1d", "||/d", "/", "-/d", "-1/d", "-1x/d", "/x", "-99999999m/d", "+", "-1m/h"} {
		f(math, 0)
	}
}

func TestOddZones(t *testing.T) {
	f := func(zone string, want bool) {
		t.Helper()
		body := `{"aggs":{"a":{"date_histogram":{"time_zone":"UTC"}}},"query":{"range":{"t":{"gte":"now/d","time_zone":"` + zone + `"}}}}`
		if oddZone([]byte(body)) != want {
			t.Errorf("%s: odd %t, want %t", zone, !want, want)
		}
	}
	for _, zone := range []string{"", "Z", "UTC", "Europe/Berlin", "Asia/Kathmandu", "+05:45", "-03:30", "+01:00", "UTC+5", "GMT-03:00", "Etc/GMT+12", "+5", "+05"} {
		f(zone, false)
	}
	for _, zone := range []string{"+01:07", "-00:01", "+0107", "UTC+01:07", "+01:00:30"} {
		f(zone, true)
	}
}

func TestVerdictsOnRoundedNow(t *testing.T) {
	f := func(o Options, line string, want Verdict) {
		t.Helper()
		want.MaxAge = -1
		if _, v := newTestKeyer(t, o).Key(ask(line)); v != want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", line, v, want)
		}
	}
	const quarter = 15 * time.Minute
	bound := func(step time.Duration) Verdict { return Verdict{NowBound: true, TTLOnly: ReasonNow, Step: step} }
	still, moving := Options{RoundedNow: true}, Options{}
	day := `POST search logs {"query":{"range":{"t":{"gte":"now-7d/d","lt":"now/h"}}}}`
	f(still, day, Verdict{Step: quarter})
	f(moving, day, bound(quarter))
	f(still, `POST search logs {"query":{"range":{"t":{"gte":"now-7d/d","lt":"now/m"}}}}`, Verdict{Step: time.Minute})
	f(still, `POST search logs {"query":{"range":{"t":{"gte":"now-7d/d","lt":"now"}}}}`, bound(quarter))
	f(still, `POST search logs {"query":{"range":{"t":{"gte":"now-7d/d","time_zone":"+01:07"}}}}`, bound(quarter))
	f(still, `POST search logs {"query":{"match":{"t":"now/d"}}}`, Verdict{Step: quarter})
	f(still, `POST search logs {"query":{"query_string":{"query":"t:[now/d TO *]"}}}`, bound(0))
	f(still, `POST search <logs-{now/d}>`, bound(0))
}

// Between two multiples of its step a moment does not change.
func TestStepsAreThoseOfDateMath(t *testing.T) {
	units := map[string]func(t time.Time, n int) time.Time{
		"s": func(t time.Time, n int) time.Time { return t.Add(time.Duration(n) * time.Second) },
		"m": func(t time.Time, n int) time.Time { return t.Add(time.Duration(n) * time.Minute) },
		"h": func(t time.Time, n int) time.Time { return t.Add(time.Duration(n) * time.Hour) },
		"d": func(t time.Time, n int) time.Time { return t.AddDate(0, 0, n) },
		"M": func(t time.Time, n int) time.Time { return t.AddDate(0, n, 0) },
	}
	round := func(t time.Time, unit string) time.Time {
		y, mo, d := t.Date()
		switch unit {
		case "m":
			return time.Date(y, mo, d, t.Hour(), t.Minute(), 0, 0, t.Location())
		case "h":
			return time.Date(y, mo, d, t.Hour(), 0, 0, 0, t.Location())
		case "d":
			return time.Date(y, mo, d, 0, 0, 0, 0, t.Location())
		}
		return time.Date(y, mo, 1, 0, 0, 0, 0, t.Location())
	}
	var zones []*time.Location
	for _, name := range []string{"UTC", "Pacific/Auckland", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Skipf("no time zones here: %v", err)
		}
		zones = append(zones, zone)
	}
	rapid.Check(t, func(t *rapid.T) {
		unit, by := rapid.SampledFrom([]string{"s", "m", "h", "d"}), rapid.IntRange(0, 90)
		offUnit, off, rounding := unit.Draw(t, "unit"), by.Draw(t, "off"), rapid.SampledFrom([]string{"m", "h", "d", "M"}).Draw(t, "rounding")
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		math := "-" + strconv.Itoa(off) + offUnit + "/" + rounding
		step := stepOf([]byte(math))
		if step == 0 {
			return
		}
		at := time.Unix(rapid.Int64Range(1_700_000_000, 1_800_000_000).Draw(t, "at"), 0).In(zone)
		value := func(at time.Time) time.Time { return round(units[offUnit](at, -off), rounding) }
		from := at.Truncate(step)
		if !value(from).Equal(value(at)) {
			t.Fatalf("now%s in %s is %s at %s, and %s at %s", math, zone, value(from), from, value(at), at)
		}
	})
}
