package query

import "bytes"

// Facts is what a body contains that decides whether and for how long its answer may be kept. They are found by
// position, so that a field called "script" is not taken for a script; where the position is not known for sure, they
// err towards being true.
type Facts struct {
	Now            bool // the answer moves with the clock
	Hourly         bool // it changes with the clock, but only when an hour, a day or more begins somewhere
	Minutely       bool // likewise when a minute begins
	Size0          bool // "size":0, no hits are asked for
	Aggs           bool // "aggs" at the top
	TerminateAfter bool // "terminate_after" other than 0: an answer may end early and is then not the only right one
	Explain        bool // "explain"
	Profile        bool // "profile", whose answer tells how this one execution went
	Slice          bool // "slice", one of several parts of a scroll or point in time
	PIT            bool // "pit", a point in time that the caller opened
	Script         bool // a script somewhere
	ScriptedMetric bool // a scripted_metric aggregation
	Sampler        bool // an aggregation over a sample
	Random         bool // random_score without seed and field: differs each time
	Wrapped        bool // a wrapper query, whose inside is not looked at
	Foreign        bool // documents of an index that the path may not name: terms lookup, indexed shape, more like this, percolate
	External       bool // something outside the indices: a model, a rule set, a plug-in's extension
	Pipeline       bool // "search_pipeline"
	Uneven         bool // what copies of a shard may differ in although they hold the same: the order of equals, statistics of terms, what is near
}

// Steady tells whether a query with these facts finds the same in indices that do not change.
func (f *Facts) Steady() bool {
	return !f.Now && !f.Hourly && !f.Minutely && !f.Script && !f.Random && !f.Wrapped && !f.Foreign && !f.External
}

// A fact is one of Facts.
type fact uint8

const (
	saysNothing fact = iota
	saysNow
	saysSize0
	saysAggs
	saysTerminateAfter
	saysExplain
	saysProfile
	saysSlice
	saysPIT
	saysScript
	saysScriptedMetric
	saysSampler
	saysRandom
	saysWrapped
	saysForeign
	saysExternal
	saysPipeline
	saysUneven
	saysHourly
	saysMinutely
	saysAnalyzed
)

// A factSet is a set of facts, a bit each.
type factSet uint32

func (f fact) set() factSet { return 1 << f }

func (s factSet) has(f fact) bool { return s&f.set() != 0 }

func (s factSet) named() Facts {
	return Facts{
		Now: s.has(saysNow), Size0: s.has(saysSize0), Aggs: s.has(saysAggs), TerminateAfter: s.has(saysTerminateAfter),
		Explain: s.has(saysExplain), Profile: s.has(saysProfile), Slice: s.has(saysSlice), PIT: s.has(saysPIT),
		Script: s.has(saysScript), ScriptedMetric: s.has(saysScriptedMetric), Sampler: s.has(saysSampler),
		Random: s.has(saysRandom), Wrapped: s.has(saysWrapped), Foreign: s.has(saysForeign), External: s.has(saysExternal),
		Pipeline: s.has(saysPipeline), Uneven: s.has(saysUneven),
		Hourly: s.has(saysHourly), Minutely: s.has(saysMinutely),
	}
}

// required are the members that a place asks for.
type required uint8

const (
	sawSeed required = 1 << iota
	sawField
	sawOrigin
)

// judged are the places where more than the name of a member counts.
var judged = [places]bool{placeTop: true, placeRandom: true, placeDecayField: true}

// judge notes what the value of a member says, once it is written, and returns which of the members that p asks for it is.
func (c *Canon) judge(p place, key, value []byte) required {
	switch p {
	case placeTop:
		switch string(key) {
		case "size":
			c.facts |= saysIf(saysSize0, string(value) == "0")
		case "terminate_after":
			c.facts |= saysIf(saysTerminateAfter, string(value) != "0")
		case "script_fields":
			c.facts |= saysIf(saysScript, string(value) != "{}")
		case "explain":
			c.facts |= saysIf(saysExplain, !isFalse(value))
		case "profile":
			c.facts |= saysIf(saysProfile, !isFalse(value))
		}
	case placeRandom:
		if string(value) == "null" {
			return 0
		}
		switch string(key) {
		case "seed":
			return sawSeed
		case "field":
			return sawField
		}
	case placeDecayField:
		if string(key) == "origin" {
			return sawOrigin
		}
	}
	return 0
}

func saysIf(f fact, holds bool) factSet {
	if holds {
		return f.set()
	}
	return 0
}

func isFalse(value []byte) bool { return string(value) == "false" || string(value) == `"false"` }

// missing returns what the end of an object says in which only these members were seen.
func missing(p place, seen required) factSet {
	switch {
	case p == placeRandom && seen != sawSeed|sawField:
		return saysRandom.set()
	case p == placeDecayField && seen != sawOrigin:
		return saysNow.set() // on a date field the origin is now unless given
	}
	return 0
}

// unknownFacts returns what a name says at place p that is no word.
func unknownFacts(p place, key []byte) factSet {
	switch {
	case p == placeBoost:
		return indexFacts(key)
	case keywords[p] && (bytes.HasPrefix(key, textScript) || bytes.HasSuffix(key, textUnderscoreScript)):
		return saysScript.set()
	}
	return 0
}

var (
	textScript           = []byte("script")
	textUnderscoreScript = []byte("_script")
)

// textFacts returns what the string s, in canonical spelling without quotes, says at place p.
func textFacts(p place, s []byte) factSet {
	switch p {
	case placePlain:
		return 0
	case placeQueryString:
		return saysIf(saysNow, hasNowToken(s, true))
	}
	// Full text queries take dates on date fields, and "now" is no mere millisecond: on a date_range field it finds the
	// ranges that hold the present.
	return dateFacts(s) | indexFacts(s)
}

// dateFacts returns what a string says where a date may stand.
func dateFacts(s []byte) factSet {
	if !isDateMath(s) {
		return 0
	}
	switch stepOf(s[len("now"):]) {
	case stepHour:
		return saysHourly.set()
	case stepMinute:
		return saysMinutely.set()
	}
	return saysNow.set()
}

// indexFacts returns what date math in the name of an index says, such as <logs-{now/d}>.
func indexFacts(s []byte) factSet { return saysIf(saysNow, hasDateMathName(s)) }

// isDateMath tells whether s, where a date may stand, is counted from the present.
func isDateMath(s []byte) bool {
	if len(s) < 3 || s[0] != 'n' || s[1] != 'o' || s[2] != 'w' {
		return false
	}
	if len(s) == 3 {
		return true
	}
	switch s[3] {
	case '+', '-', '/', '|':
		return true
	}
	return false
}

// hasDateMathName tells whether s may hold an index name with date math.
func hasDateMathName(s []byte) bool {
	open := bytes.IndexByte(s, '<')
	return open >= 0 && bytes.IndexByte(s[open:], '{') >= 0
}

// hasNowToken tells whether the query string s may hold "now" as a word by itself, as in ts:[now-1h TO now]. escaped says
// that s is in the canonical spelling of JSON.
func hasNowToken(s []byte, escaped bool) bool {
	const word = "now"
	if bytes.IndexByte(s, '\\') < 0 && !hasNow(s) {
		return false
	}
	matched := 0 // letters of the word seen; -1 inside another word
	for i := 0; i < len(s); i++ {
		b := s[i]
		if escaped && b == '\\' {
			i++
			if b = s[i]; b == 'u' { // a control character
				i += 4
				b = ' '
			}
		}
		if b == '\\' { // Lucene's own escape: the next character stands for itself
			i++
			if escaped && i < len(s) && s[i] == '\\' {
				i++
			}
			if i >= len(s) {
				break
			}
			if b = s[i]; b == 'u' {
				return true // any character, spelled in hexadecimal
			}
		}
		switch {
		case !wordByte(b):
			if matched == len(word) {
				return true
			}
			matched = 0
		case matched >= 0 && matched < len(word) && b == word[matched]:
			matched++
		default:
			matched = -1
		}
	}
	return matched == len(word)
}

// hasNow tells whether "now" stands anywhere in b. It looks for the letter of it that is rare in searches.
func hasNow(b []byte) bool {
	for i := 0; ; i++ {
		n := bytes.IndexByte(b[i:], 'w')
		if n < 0 {
			return false
		}
		if i += n; i >= 2 && b[i-1] == 'o' && b[i-2] == 'n' {
			return true
		}
	}
}

// hasAnyNow tells whether "now" stands anywhere in b, in any case. An analyzer may make that a word by itself, also on a date
// field, where OpenSearch and Elasticsearch have no analyzer otherwise: NOW with "simple".
func hasAnyNow(b []byte) bool {
	for i := 2; i < len(b); i++ {
		if b[i]|0x20 == 'w' && b[i-1]|0x20 == 'o' && b[i-2]|0x20 == 'n' {
			return true
		}
	}
	return false
}

func wordByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '_' || b >= 0x80
}
