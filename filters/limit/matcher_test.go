package limit

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// patternsOf compiles expressions whose groups all matter.
func patternsOf(exprs []string) []pattern {
	out := make([]pattern, len(exprs))
	for i, expr := range exprs {
		out[i].re = regexp.MustCompile(expr)
		for g := range out[i].re.NumSubexp() {
			out[i].groups = append(out[i].groups, g+1)
		}
	}
	return out
}

// slowHit is what one expression finds.
func slowHit(p pattern, path string) hit {
	at := p.re.FindStringSubmatchIndex(path)
	if at == nil {
		return hit{}
	}
	h := hit{found: true, groups: []span{}}
	for i := 2; i < len(at); i += 2 {
		h.groups = append(h.groups, span{max(at[i], 0), max(at[i+1], 0)})
	}
	return h
}

// slow is what a matcher must find: every expression in turn.
func slow(rules, own []pattern, path string) *match {
	m := &match{path: path, rule: -1, own: make([]hit, len(own))}
	for i := range rules {
		if h := slowHit(rules[i], path); h.found {
			m.rule, m.hit = i, h
			break
		}
	}
	for i := range own {
		m.own[i] = slowHit(own[i], path)
	}
	return m
}

func diff(got, want *match) string {
	return cmp.Diff(want, got, cmp.AllowUnexported(match{}, hit{}, span{}))
}

// someExpr draws a regular expression of the kinds that people write for paths, and of kinds that they do not.
func someExpr() *rapid.Generator[string] {
	atom := rapid.SampledFrom([]string{
		"/", "medcl", "logs", "_search", "/_search", "_", "a", "(?P<index>medcl)", "(?P<index>.*?)", "(/)", "([^/]+)", "(?:medcl|medusa)",
		"(?i:Logs)", "logs-[0-9]*", "(logs)+", "(logs)?", "(?:ab){2,3}", "^", "$", `\b`, ".", "\ufffd", "(?:)", "x*", "(?s:.+)", "é", "|",
	})
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(atom, 1, 6).Draw(t, "atoms"), "")
	})
}

func somePath() *rapid.Generator[string] {
	atom := rapid.SampledFrom([]string{
		"/", "medcl", "medusa", "logs", "LOGS", "logs-1", "_search", "/_search", "a", "ab", "abab", "x", "é", "\xff", "\ufffd", "\n", "-", "%",
	})
	return rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(atom, 0, 8).Draw(t, "atoms"), "")
	})
}

// TestMatcherAgainstExpressions holds the matcher, with its prefilter and its memory, against the expressions alone.
func TestMatcherAgainstExpressions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := patternsOf(rapid.SliceOfN(someExpr(), 0, 70).Draw(t, "rules"))
		own := patternsOf(rapid.SliceOfN(someExpr(), 0, 4).Draw(t, "own"))
		m := newMatcher(rules, own)
		m.memo = newMemo(64 * memoShards * memoEntry) // forgets often
		for _, path := range rapid.SliceOfN(somePath(), 1, 40).Draw(t, "paths") {
			want := slow(rules, own, path)
			for range 2 {
				if d := diff(m.match([]byte(path)), want); d != "" {
					t.Fatalf("path %q (-want +got):\n%s", path, d)
				}
			}
		}
	})
}

func FuzzMatcher(f *testing.F) {
	f.Add("/(?P<index_name>medcl)/_search", "/(?P<index_name>.*?)/_search", "/medcl/_search")
	f.Add("^/logs-[0-9]{4}", "(?i)/LOGS", "/logs-2024/_search")
	f.Add("a\ufffdbcd", "(abcd)+|", "/a\xffbcd")
	f.Add("(", "x{1000}", "")
	f.Fuzz(func(t *testing.T, rule, other, path string) {
		var exprs []string
		for _, expr := range []string{rule, other} {
			if _, err := regexp.Compile(expr); err == nil {
				exprs = append(exprs, expr)
			}
		}
		patterns := patternsOf(exprs)
		m := newMatcher(patterns, patterns)
		want := slow(patterns, patterns, path)
		for range 2 {
			if d := diff(m.match([]byte(path)), want); d != "" {
				t.Fatalf("path %q (-want +got):\n%s", path, d)
			}
		}
	})
}

func TestRequiredLiterals(t *testing.T) {
	f := func(expr string, want ...string) {
		t.Helper()
		if got := requiredLiterals(expr); !slices.Equal(got, want) {
			t.Errorf("requiredLiterals(%q) = %q, want %q", expr, got, want)
		}
	}
	f("/(?P<index_name>medcl)/_search", "/medcl/_search")
	f("/(?P<index_name>.*?)/_search", "/", "/_search")
	f("^/logs-[0-9]+/_count$", "/logs-", "/_count")
	f("med(cl|usa)", "med")
	f("(?i)/medcl")
	f("/(?i:medcl)/_search", "/", "/_search")
	f("a|b")
	f("(abcd)*x", "x")
	f("(abcd)+", "abcd")
	f("x(abcd)+y", "xabcd", "y")
	f("(ab){2}c", "ababc")
	f("a\ufffdb", "a", "b")
	f("(", []string(nil)...)
}

// TestPrefilterSpares holds that of many rules only those run whose own text stands in the path.
func TestPrefilterSpares(t *testing.T) {
	var exprs []string
	for i := range 1000 {
		exprs = append(exprs, fmt.Sprintf("/(?P<index>index-%04d)/_search", i))
	}
	exprs = append(exprs, "/(?P<index>.*?)/_search", "x")
	p := newPrefilter(exprs)
	for g, list := range p.grams {
		if len(list) > 20 { // each is compared wherever the gram stands in a path
			t.Errorf("%d expressions are looked up by gram %#x, which others tell apart better", len(list), g)
		}
	}
	mask := make([]uint64, len(p.always))
	p.candidates(mask, []byte("/index-0123/_search"))
	var got []int
	for i := range exprs {
		if mask[i/64]>>(i%64)&1 != 0 {
			got = append(got, i)
		}
	}
	if want := []int{123, 1000, 1001}; !slices.Equal(got, want) {
		t.Errorf("expressions %v may match, want %v", got, want)
	}
}

func TestMemoIsBounded(t *testing.T) {
	const limit = 200 * memoShards * memoEntry
	m := newMemo(limit)
	used := &match{path: "/in/use"}
	m.put(used)
	bytes := 0
	for i := range 100_000 {
		path := "/index/_doc/" + strconv.Itoa(i)
		bytes += memoEntry + len(path)
		m.put(&match{path: path})
		if i%10 == 0 && m.get([]byte("/in/use")) != used {
			t.Fatalf("a path in use was forgotten after %d others", i)
		}
	}
	if n := m.len(); n*memoEntry > limit || n < 100 {
		t.Errorf("%d paths remembered in %d bytes", n, limit)
	}
	if m.get([]byte("/index/_doc/0")) != nil {
		t.Error("a path that nobody asked for again was kept")
	}
	before := m.len()
	m.put(&match{path: strings.Repeat("x", memoPath+1)})
	if m.len() != before {
		t.Error("a path beyond all measure is remembered")
	}
}

func BenchmarkMatcher(b *testing.B) {
	for _, n := range []int{10, 1000} {
		var exprs []string
		for i := range n - 1 {
			exprs = append(exprs, fmt.Sprintf("/(?P<index>index-%04d)/_search", i))
		}
		exprs = append(exprs, "/(?P<index>.*?)/_search")
		m := newMatcher(patternsOf(exprs), nil)
		path := []byte(fmt.Sprintf("/index-%04d/_search", n/2))
		b.Run(fmt.Sprintf("seen/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.match(path)
			}
		})
		b.Run(fmt.Sprintf("new/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.find(path)
			}
		})
		b.Run(fmt.Sprintf("slow/%d", n), func(b *testing.B) {
			for b.Loop() {
				slow(m.rules, nil, "/index-9999/_search")
			}
		})
	}
}
