package api

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestIndices(t *testing.T) {
	f := func(segment string, want ...string) {
		t.Helper()
		got, err := classify("GET", "/"+segment+"/_search").Indices(nil)
		if err != nil {
			t.Errorf("%s: %v", segment, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", segment, d)
		}
	}
	f("a", "a")
	f("a,b", "a", "b")
	f("a%2Cb", "a", "b")
	f("a%252Cb", "a%2Cb")
	f("logs-*,-logs-1", "logs-*", "-logs-1")
	f("r%3Ai-%2A", "r:i-*")
	f("_all", "_all")
	f("%3Clogs-%7Bnow%2Fd%7D%3E,x", "<logs-{now/d}>", "x")
	f("%3Ci-%7Bnow%7Byyyy,MM%7D%7D%3E", "<i-{now{yyyy", "MM}}>") // the nodes look for these two
	f("a+b", "a+b")
	f(",")   // every index
	f("%2C") // every index
	f(",a,,b,", "a", "b")
}

func TestIndicesOfNoIndex(t *testing.T) {
	got, err := classify("GET", "/_search").Indices([]string{"kept"})
	if err != nil || len(got) != 1 {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestIndicesRefusesBrokenEscapes(t *testing.T) {
	for _, segment := range []string{"%zz", "a%", "a%4"} {
		if got, err := classify("GET", "/"+segment+"/_search").Indices(nil); err == nil {
			t.Errorf("%s: got %q, want an error", segment, got)
		}
	}
}

func TestCompareIndex(t *testing.T) {
	f := func(pattern, index string, match, overlap bool) {
		t.Helper()
		if got := MatchIndex(pattern, index); got != match {
			t.Errorf("MatchIndex(%q, %q) = %v", pattern, index, got)
		}
		if got := OverlapsIndex(pattern, index); got != overlap {
			t.Errorf("OverlapsIndex(%q, %q) = %v", pattern, index, got)
		}
	}
	f("logs", "logs", true, true)
	f("logs", "logs-1", false, false)
	f("logs-*", "logs-1", true, true)
	f("logs-*", "logs-", true, true)
	f("logs-*", "log", false, false)
	f("*-1", "logs-1", true, true)
	f("a*b*c", "axbxbc", true, true)
	f("ab*ba", "aba", false, false)

	// Expressions that name several indices.
	f("logs-*", "logs-1*", true, true)
	f("logs-*", "logs*", false, true)
	f("logs-1", "logs-*", false, true)
	f("logs-*", "*-2024", false, true)
	f("logs-*", "*", false, true)
	f("logs-*", "_all", false, true)
	f("*", "_all", true, true)
	f("*", "**", true, true)
	f("logs-*", "pay*", false, false)
	f("a*x", "a*y", false, false)
	f("logs-*", "-logs-1", false, false)

	// Date math.
	f("logs-*", "<logs-{now/d}>", true, true)
	f("logs-2024", "<logs-{now/d}>", false, true)
	f("logs-*", "<pay-{now/d{yyyy.MM|+01:00}}>", false, false)
	f("logs-*", "<logs-{now/d{yyyy.MM|+01:00}}-x>", true, true)
	f("i{dx", `<i\{dx>`, true, true)
	f("idx", "<idx>", true, true)

	// Other clusters have rules of their own.
	f("logs-*", "r:logs-1", false, false)
	f("*", "*:*", false, false)
	f("r:logs-*", "r:logs-1", true, true)
	f("r*:logs-*", "r1:logs-1", true, true)
	f("r:logs-*", "*:logs-1", false, true)
	f("r:logs-*", "logs-1", false, false)
	f("r:logs-*", "r:<logs-{now/d}>", true, true)
	f("logs", "logs::failures", true, true)
}

// TestCompareIndexByExample compares both answers with all the words that could decide them.
func TestCompareIndexByExample(t *testing.T) {
	words := []string{""}
	for i := 0; len(words[i]) < 8; i++ { // two patterns of four characters meet in eight
		words = append(words, words[i]+"a", words[i]+"b")
	}
	glob := func(p string) *regexp.Regexp {
		return regexp.MustCompile(`^` + strings.ReplaceAll(p, "*", ".*") + `$`)
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab*]{0,4}`)
		p, e := word.Draw(t, "pattern"), word.Draw(t, "expression")
		inP, inE := glob(p), glob(e)
		both, onlyE := "-", "-"
		for _, w := range words {
			if inE.MatchString(w) {
				if inP.MatchString(w) {
					both = w
				} else {
					onlyE = w
				}
			}
		}
		if got, want := overlaps(p, e), both != "-"; got != want {
			t.Fatalf("overlaps(%q, %q) = %v, in both is %q", p, e, got, both)
		}
		if got := covers(p, e); got && onlyE != "-" {
			t.Fatalf("covers(%q, %q), but %q is only in the second", p, e, onlyE)
		}
		// What a star stands for may hold a letter that no pattern has.
		if got, want := covers(p, e), inP.MatchString(strings.ReplaceAll(e, "*", "z")); got != want {
			t.Fatalf("covers(%q, %q) = %v", p, e, got)
		}
	})
}
