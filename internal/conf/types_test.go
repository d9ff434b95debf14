package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	f := func(text string, want time.Duration) {
		t.Helper()
		if got, err := ParseDuration(text); err != nil || got.Std() != want {
			t.Errorf("%s: got %v, %v", text, got.Std(), err)
		}
	}
	f("0", 0)
	f("500ms", 500*time.Millisecond)
	f("1.5s", 1500*time.Millisecond)
	f("1h30m", 90*time.Minute)
	f("2d", 48*time.Hour)
	f("1w", 168*time.Hour)
	f("250micros", 250*time.Microsecond)
	f("3µs", 3*time.Microsecond)
	f("7nanos", 7)
	f("-1s", -time.Second)
	f("0.0000000001s", 0)
	f("106751d", 106751*24*time.Hour)

	bad := func(text, want string) {
		t.Helper()
		if got, err := ParseDuration(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	bad("30", "write 30s")
	bad("", "not a duration")
	bad("s", "not a duration")
	bad("1x", "not a duration")
	bad("30m1h", "not a duration")
	bad("1s1s", "not a duration")
	bad("1m30", "write 1m30s")
	bad("1 s", "not a duration")
	bad(".5s", "not a number")
	bad("1..5s", "not a number")
	bad("106752d", "longer than a duration can be")
	bad("106751d24h", "longer than a duration can be")
}

func TestParseBytes(t *testing.T) {
	f := func(text string, want int64) {
		t.Helper()
		if got, err := ParseBytes(text); err != nil || int64(got) != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	f("0", 0)
	f("-1", -1)
	f("100", 100)
	f("50*1024*1024*1024", 50<<30)
	f("10kb", 10<<10)
	f("10KiB", 10<<10)
	f("10 MB", 10<<20)
	f("1g", 1<<30)
	f("1.5tb", 3<<39)
	f("2pb", 2<<50)
	f("7b", 7)

	bad := func(text, want string) {
		t.Helper()
		if got, err := ParseBytes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	bad("", "not an amount of data")
	bad("kb", "not an amount of data")
	bad("many", "not an amount of data")
	bad("-1kb", "not an amount of data")
	bad("10parsec", "the units are")
	bad("9000pb", "too large")
	bad("1/0", "has no value")
}

func TestParseRate(t *testing.T) {
	f := func(text string, events int64, per time.Duration) {
		t.Helper()
		if got, err := ParseRate(text); err != nil || got.Events != events || got.Per != per {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	f("100/s", 100, time.Second)
	f("6000/m", 6000, time.Minute)
	f("1/10s", 1, 10*time.Second)
	f("10mb/s", 10<<20, time.Second)
	f("5 / 1h30m", 5, 90*time.Minute)
	f("20s/s", 20_000, time.Second)
	f("60*100/m", 6000, time.Minute)

	bad := func(text, want string) {
		t.Helper()
		if got, err := ParseRate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	bad("100", "write 100/s")
	bad("0/s", "allows nothing")
	bad("-1/s", "allows nothing")
	bad("1.5/s", "not a whole number in a length of time; write 3/2s")
	bad("0.5/s", "write 1/2s")
	bad(".25/m", "write 1/4m")
	bad("0.001/10s", "write 1/2h46m40s")
	bad("0.0001/s", "not a whole number")
	bad("0.0/s", "not a whole number")
	bad("1e-3/s", "not a whole number")
	bad("-0.5/s", "not a whole number")
	bad("100k/s", "not a whole number")
	bad("1/0s", "not a rate")
	bad("1/-1s", "not a rate")
	bad("1/", "not a rate")
	bad("/s", "not a rate")
}

func TestParseAmount(t *testing.T) {
	f := func(text string, n int64, unit Unit) {
		t.Helper()
		if got, err := ParseAmount(text); err != nil || got != (Amount{n, unit}) {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	f("7", 7, Count)
	f("2*50", 100, Count)
	f("10mb", 10<<20, Data)
	f("1.5s", 1500, Time)

	bad := func(text string) {
		t.Helper()
		if got, err := ParseAmount(text); err == nil {
			t.Errorf("%q: got %+v", text, got)
		}
	}
	bad("")
	bad("0")
	bad("0b")
	bad("1ns")
	bad("-3")
	bad("many")
}

// TestWrittenIsRead holds that what String writes is read as the same value.
func TestWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Duration(rapid.Int64Min(-1<<63+1).Draw(t, "duration"))
		if got, err := ParseDuration(d.String()); err != nil || got != d {
			t.Fatalf("%d: written %s, read %d, %v", d, d, got, err)
		}
		b := Bytes(rapid.Int64().Draw(t, "bytes"))
		if got, err := ParseBytes(b.String()); err != nil || got != b {
			t.Fatalf("%d: written %s, read %d, %v", b, b, got, err)
		}
		r := Rate{Events: rapid.Int64Min(1).Draw(t, "events"), Per: time.Duration(rapid.Int64Min(1).Draw(t, "per"))}
		r.Unit = rapid.SampledFrom([]Unit{Count, Data, Time}).Draw(t, "unit")
		if r.Unit == Time {
			r.Events = 1 + r.Events%1e12
		}
		if got, err := ParseRate(r.String()); err != nil || got != r {
			t.Fatalf("%+v: written %s, read %+v, %v", r, r, got, err)
		}
		a := Amount{N: r.Events, Unit: r.Unit}
		if got, err := ParseAmount(a.String()); err != nil || got != a {
			t.Fatalf("%+v: written %s, read %+v, %v", a, a, got, err)
		}
		c := Percent(rapid.Float64Range(0, 100).Draw(t, "percent"))
		if got, err := ParsePercent(c.String()); err != nil || got != c {
			t.Fatalf("%g: written %s, read %g, %v", float64(c), c, float64(got), err)
		}
	})
}

func TestStringIsWhatPeopleWrite(t *testing.T) {
	f := func(value fmt.Stringer, want string) {
		t.Helper()
		if got := value.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f(Duration(90*time.Second), "1m30s")
	f(Duration(48*time.Hour), "2d")
	f(Duration(-1500*time.Millisecond), "-1s500ms")
	f(Duration(0), "0s")
	f(Bytes(10<<20), "10mb")
	f(Bytes(1536), "1536b")
	f(Rate{Events: 100, Per: time.Second}, "100/s")
	f(Rate{Events: 1, Per: 10 * time.Second}, "1/10s")
	f(Rate{Events: 10 << 20, Per: time.Second, Unit: Data}, "10mb/s")
	f(Rate{Events: 20_000, Per: time.Second, Unit: Time}, "20s/s")
	f(Amount{N: 1500, Unit: Time}, "1s500ms")
	f(Amount{N: 3}, "3")
	f(Rate{}, "")
	f(Percent(12.5), "12.5%")
}

func TestExamplesOfTypesAreRead(t *testing.T) {
	for _, into := range []Decoder{new(Duration), new(Bytes), new(Rate), new(Amount), new(Percent), new(Strings), new(Secret), new(Regexp)} {
		_, example := into.(Documenter).TypeDoc()
		n, p := Parse("example", example, func(string) (string, bool) { return "x", true })
		into.DecodeConf(n, p)
		if got := p.Sorted(); len(got) != 0 {
			t.Errorf("%T: %v", into, got)
		}
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	type outer struct{ inner Secret }
	s := NewSecret("hunter2")
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", s)
	js, err := json.Marshal(map[string]any{"a": s, "b": &s, "c": []Secret{s}})
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%v %+v %#v %s %q %v %+v %#v %x", s, s, s, s, s, outer{s}, &outer{s}, outer{s}, s) + log.String() + string(js)
	if strings.Contains(printed, "hunter2") || strings.Contains(printed, "68756e74657232") {
		t.Errorf("printed: %s", printed)
	}
	if s.Reveal() != "hunter2" {
		t.Errorf("Reveal: %q", s.Reveal())
	}
}

func TestSecretInFile(t *testing.T) {
	readFile := func(name string) ([]byte, error) {
		switch name {
		case "/run/pw":
			return []byte("hunter2\n"), nil
		case "/run/empty":
			return []byte("\n"), nil
		}
		return nil, errors.New("no such file")
	}
	f := func(written, want string, ok bool) {
		t.Helper()
		if got, err := NewSecret(written).Resolve(readFile); got != want || (err == nil) != ok {
			t.Errorf("%s: got %q, %v", written, got, err)
		}
	}
	f("file:/run/pw", "hunter2", true)
	f("text", "text", true)
	f("", "", true)
	f("file:/run/empty", "", false)
	f("file:/gone", "", false)
	if s := NewSecret("file:/run/pw"); s.Reveal() != "" || s.File() != "/run/pw" {
		t.Errorf("the path of the file is not the secret: %q, %q", s.Reveal(), s.File())
	}
	if !NewSecret("a").Equal(NewSecret("a")) || NewSecret("a").Equal(NewSecret("b")) || NewSecret("a").Equal(Secret{}) {
		t.Error("Equal compares the texts")
	}
}

func TestNearest(t *testing.T) {
	among := []string{"burst", "max_qps", "max_age", "group", "if", "pattern"}
	f := func(word, want string) {
		t.Helper()
		if got, ok := Nearest(word, among); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, want %q", word, got, want)
		}
	}
	f("brust", "burst")
	f("maxqps", "max_qps")
	f("max-qps", "max_qps")
	f("MAX_QPS", "max_qps")
	f("max_qsp", "max_qps")
	f("max_ag", "max_age")
	f("ptatren", "pattern")
	f("groups", "group")
	f("banana", "")
	f("x", "")
	f("ix", "if")
	f("f", "")
	f("xy", "")
	f("", "")
	f(strings.Repeat("burst", 1000), "")
}

func TestParseNetwork(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got, err := ParseNetwork(text); err != nil || got.String() != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	f("10.0.0.0/8", "10.0.0.0/8")
	f("192.0.2.1", "192.0.2.1/32")
	f("::1", "::1/128")
	f("::ffff:192.0.2.1", "192.0.2.1/32")
	f("2001:db8::/32", "2001:db8::/32")

	bad := func(text, want string) {
		t.Helper()
		if got, err := ParseNetwork(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	bad("10.0.0.1/8", "did you mean \"10.0.0.0/8\"")
	bad("localhost", "neither")
	bad("", "neither")
	bad("fe80::1%eth0", "neither")
}
