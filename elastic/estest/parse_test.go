package estest

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 3, 5, 12, 30, 15, 250e6, time.UTC)

func TestParseDate(t *testing.T) {
	berlin, err := parseZone("+01:00")
	if err != nil {
		t.Fatal(err)
	}
	f := func(text, format string, zone *time.Location, roundUp bool, want string) {
		t.Helper()
		ms, err := parseDate(text, format, noon, zone, roundUp)
		if got := time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z"); err != nil || got != want {
			t.Errorf("parseDate(%q, %q, %v): %s, %v; want %s", text, format, roundUp, got, err, want)
		}
	}
	f("2024-02-29", "", time.UTC, false, "2024-02-29T00:00:00.000Z")
	f("2024-02-29", "", time.UTC, true, "2024-02-29T23:59:59.999Z")
	f("2024", "", time.UTC, true, "2024-12-31T23:59:59.999Z")
	f("2024-02", "", time.UTC, true, "2024-02-29T23:59:59.999Z")
	f("2024-02-29T10:00:00.5Z", "", time.UTC, true, "2024-02-29T10:00:00.500Z")
	f("2024-02-29T10:00:00+02:00", "", time.UTC, false, "2024-02-29T08:00:00.000Z")
	f("2024-02-29", "", berlin, false, "2024-02-28T23:00:00.000Z")
	f("1709200000000", "", time.UTC, false, "2024-02-29T09:46:40.000Z")
	f("1709200000", "epoch_second", time.UTC, false, "2024-02-29T09:46:40.000Z")
	f("29/02/2024", "dd/MM/yyyy", time.UTC, false, "2024-02-29T00:00:00.000Z")
	f("now", "", time.UTC, false, "2026-03-05T12:30:15.250Z")
	f("now/d", "", time.UTC, false, "2026-03-05T00:00:00.000Z")
	f("now/d", "", time.UTC, true, "2026-03-05T23:59:59.999Z")
	f("now/w", "", time.UTC, false, "2026-03-02T00:00:00.000Z")
	f("now/d", "", berlin, false, "2026-03-04T23:00:00.000Z")
	f("now-1h+5m", "", time.UTC, false, "2026-03-05T11:35:15.250Z")
	f("2024-01-31||+1M", "", time.UTC, false, "2024-02-29T00:00:00.000Z")
	f("2024-01-31||/M", "", time.UTC, true, "2024-01-31T23:59:59.999Z")
	for _, text := range []string{"", "garbage", "now-", "now-1x", "now/2d", "2024-13-01", "now*1d", "now-99999999999999999999d"} {
		if ms, err := parseDate(text, "", noon, time.UTC, false); err == nil {
			t.Errorf("parseDate(%q): %d", text, ms)
		}
	}
}

func TestResolveDateMath(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		if got, err := resolveDateMath(name, noon); err != nil || got != want {
			t.Errorf("resolveDateMath(%q): %q, %v; want %q", name, got, err, want)
		}
	}
	f("logs", "logs")
	f("<logs-{now/d}>", "logs-2026.03.05")
	f("<logs-{now/M{yyyy.MM}}-x>", "logs-2026.03-x")
	f("<logs-{now/d{yyyy.MM.dd|+12:00}}>", "logs-2026.03.06")
	for _, name := range []string{"<logs-{now/d>", "<logs-{now/x}>", "<logs-{now/d{yyyy}>"} {
		if got, err := resolveDateMath(name, noon); err == nil {
			t.Errorf("resolveDateMath(%q): %q", name, got)
		}
	}
}

func TestJavaFloat(t *testing.T) {
	f := func(v float64, want string) {
		t.Helper()
		if got := javaFloat(v, 64); got != want {
			t.Errorf("javaFloat(%v): %s, want %s", v, got, want)
		}
	}
	f(0, "0.0")
	f(29, "29.0")
	f(-1.5, "-1.5")
	f(1.0/3, "0.3333333333333333")
	f(9999999, "9999999.0")
	f(1e7, "1.0E7")
	f(1704103200000, "1.7041032E12")
	f(0.001, "0.001")
	f(0.00099, "9.9E-4")
	f(math.MaxFloat64, "1.7976931348623157E308")
}

// The hashes decide the shard of a document; these are what Elasticsearch's own tests expect of its routing hash.
func TestMurmur3(t *testing.T) {
	f := func(s string, want uint32) {
		t.Helper()
		if got := murmur3(s); got != want {
			t.Errorf("murmur3(%q): %08x, want %08x", s, got, want)
		}
	}
	f("hell", 0x5a0cb7c3)
	f("hello", 0xd7c31989)
	f("hello w", 0x22ab2984)
	f("hello wo", 0xdf0ca123)
	f("hello wor", 0xe7744d61)
	f("The quick brown fox jumps over the lazy dog", 0xe07db09c)
}

func TestPaths(t *testing.T) {
	f := func(patterns, in, want string) {
		t.Helper()
		v, err := parseJSON([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(appendJSON(nil, filterAnswer(v.(object), patterns), -1)); got != want {
			t.Errorf("filter_path=%s of %s: %s, want %s", patterns, in, got, want)
		}
	}
	const in = `{"a":{"b":1,"c":[{"d":2,"e":3},{"e":4}]},"ab":5}`
	f("", in, in)
	f("a.b", in, `{"a":{"b":1}}`)
	f("a.c.d", in, `{"a":{"c":[{"d":2}]}}`)
	f("a*", in, in)
	f("**.e", in, `{"a":{"c":[{"e":3},{"e":4}]}}`)
	f("*.b,ab", in, `{"a":{"b":1},"ab":5}`)
	f("-a.c", in, `{"a":{"b":1},"ab":5}`)
	f("a,-a.b", in, `{"a":{"c":[{"d":2,"e":3},{"e":4}]}}`)
	f("none", in, `{}`)
}

func TestWildcardMatch(t *testing.T) {
	f := func(pattern, s string, want bool) {
		t.Helper()
		if got := wildcardMatch(pattern, s); got != want {
			t.Errorf("wildcardMatch(%q, %q): %v", pattern, s, got)
		}
	}
	f("*", "", true)
	f("a*c", "abc", true)
	f("a*c", "abcd", false)
	f("*b*", "abc", true)
	f("a?c", "abc", true)
	f("a?c", "ac", false)
	f("", "a", false)
	f("**a", "bca", true)
}

// What stands in front of a pattern's first star must stand in front of the text, whatever follows.
func TestWildcardMatchOfPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(rapid.StringMatching(`[ab]{0,3}`), 1, 4).Draw(t, "pieces")
		fill := rapid.SliceOfN(rapid.StringMatching(`[abc]{0,3}`), len(pieces)-1, len(pieces)-1).Draw(t, "fill")
		text := pieces[0]
		for i, s := range fill {
			text += s + pieces[i+1]
		}
		pattern := strings.Join(pieces, "*")
		if !wildcardMatch(pattern, text) {
			t.Fatalf("%q does not match %q", pattern, text)
		}
		if wildcardMatch(pattern, "c"+text) && pieces[0] != "" {
			t.Fatalf("%q matches %q", pattern, "c"+text)
		}
	})
}

func TestManualClock(t *testing.T) {
	c := NewManualClock(noon)
	soon, late := c.After(time.Second), c.After(time.Minute)
	c.Advance(time.Second)
	select {
	case at := <-soon:
		if !at.Equal(noon.Add(time.Second)) {
			t.Errorf("woken at %v", at)
		}
	default:
		t.Error("not woken")
	}
	select {
	case <-late:
		t.Error("woken too early")
	default:
	}
	if _, ok := <-c.After(0); !ok {
		t.Error("no wake-up without a wait")
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":[1,1.0,1e0,"x\u00e4",null,true]}`, `{"a":1,"a":2}`, `{bad`, `[] x`, `"\ud800"`, "{\"a\":1}\n", ``} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := parseJSON(data)
		if err != nil {
			if json.Valid(data) && !strings.Contains(err.Error(), "Duplicate field") && !strings.Contains(err.Error(), "nesting depth") {
				t.Fatalf("parseJSON(%q): %v", data, err)
			}
			return
		}
		if !json.Valid(data) {
			t.Fatalf("parseJSON(%q) takes what is no JSON", data)
		}
		for _, indent := range []int{-1, 0} {
			out := appendJSON(nil, v, indent)
			again, err := parseJSON(out)
			if err != nil || !equalJSON(v, again) {
				t.Fatalf("%q was written as %q: %v", data, out, err)
			}
		}
	})
}

func FuzzQueryString(f *testing.F) {
	for _, seed := range []string{
		"tag:a AND n:>3", "fox OR dog", `t:"brown fox" NOT x`, "n:[2 TO 5}", "tag:(a b)", "+a -b", "_exists_:t", "t:qui*", "(", "a:", `\`, "*:*",
		"AND", "n:>=", "a && b || !c", "d:[* TO 2024-01-01]",
	} {
		f.Add(seed)
	}
	m := newMapping()
	body, err := parseJSON([]byte(`{"properties":{"tag":{"type":"keyword"},"n":{"type":"long"},"d":{"type":"date"},"t":{"type":"text"}}}`))
	if err != nil {
		f.Fatal(err)
	}
	if err := m.merge(body.(object)); err != nil {
		f.Fatal(err)
	}
	source, err := parseJSON([]byte(`{"tag":"a","n":4,"d":"2024-01-01","t":"the quick brown fox"}`))
	if err != nil {
		f.Fatal(err)
	}
	values, err := m.index("1", source.(object), noon)
	if err != nil {
		f.Fatal(err)
	}
	d := &document{id: "1", values: values}
	f.Fuzz(func(t *testing.T, query string) {
		match, err := (compiler{m, noon}).parseQueryString(query, nil, false)
		if err != nil {
			return
		}
		if score, ok := match(d); ok && score < 0 {
			t.Fatalf("%q: score %v", query, score)
		}
	})
}

func FuzzParseDate(f *testing.F) {
	for _, seed := range []string{"now-1h/d", "2024-02-29||+1M/M", "1709200000000", "2024-02-29T10:00:00.5Z", "now/", "||"} {
		f.Add(seed, "", false)
	}
	f.Add("29.02.24", "dd.MM.yy||epoch_second", true)
	f.Fuzz(func(t *testing.T, text, format string, roundUp bool) {
		down, err := parseDate(text, format, noon, time.UTC, false)
		if err != nil {
			return
		}
		up, err := parseDate(text, format, noon, time.UTC, true)
		if err != nil || up < down {
			t.Fatalf("parseDate(%q, %q): %d rounded down, %d rounded up, %v", text, format, down, up, err)
		}
	})
}

func FuzzParseHead(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("GET /a b HTTP/1.1\n\n"))
	f.Add([]byte("POST /%zz?a=%zz HTTP/1.0\r\nno colon\r\n: empty\r\n\r\n"))
	f.Fuzz(func(t *testing.T, head []byte) {
		call, ok := parseHead(head)
		if !ok {
			return
		}
		if call.Path != "/" && call.Query == "" && !strings.HasSuffix(call.Target, "?") && call.Path != call.Target {
			t.Fatalf("target %q became path %q", call.Target, call.Path)
		}
	})
}
