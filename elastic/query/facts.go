package query

import "bytes"

// Facts is what a body contains that decides whether and for how long its answer may be kept. They are found by
// position, so that a field called "script" is not taken for a script; where the position is not known for sure, they
// err towards being true.
type Facts struct {
	Now            bool // the answer moves with the clock
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
}

// A place says what the names and strings at some point of a body mean.
type place uint8

const (
	placeAny         place = iota // names are the query language's; strings may be date math
	placePlain                    // nothing in here matters
	placeTop                      // the body itself
	placeQuery                    // names are query clauses
	placeBool                     // inside bool
	placeWrap                     // inside a clause that holds others
	placeField                    // names are fields, strings may be date math
	placeTerms                    // as placeField, inside terms
	placeTermsField               // one field of terms: an array, or a look-up
	placeValue                    // names are options of a field
	placeFullText                 // names are fields or options, strings are text to analyse
	placeQueryString              // strings are in the syntax of Lucene's query parser
	placeAggs                     // names are names of aggregations
	placeAgg                      // one aggregation: names are types
	placeRuntime                  // names are names of runtime fields
	placeBoost                    // names are index expressions
	placeRandom                   // inside random_score
	placeDecay                    // inside a decay function: names are fields
	placeDecayField               // one field of a decay function
)

// required are the members that a place asks for.
type required uint8

const (
	sawSeed required = 1 << iota
	sawField
	sawOrigin
)

// enter notes what the member called key at place p means, and returns the place of its value.
func (f *Facts) enter(p place, key []byte) place {
	switch p {
	case placePlain, placeQueryString, placeFullText:
		return p
	case placeTop:
		return f.top(key)
	case placeQuery:
		return f.clause(key)
	case placeBool:
		switch string(key) {
		case "must", "filter", "should", "must_not", "mustNot":
			return placeQuery
		}
		return f.keyword(key)
	case placeWrap:
		switch string(key) {
		case "query", "filter", "positive", "negative", "queries", "organic":
			return placeQuery
		}
		return f.keyword(key)
	case placeField, placeValue, placeTermsField:
		return placeValue
	case placeTerms:
		return placeTermsField
	case placeAggs:
		return placeAgg
	case placeAgg:
		switch string(key) {
		case "aggs", "aggregations":
			return placeAggs
		case "filter":
			return placeQuery
		case "meta":
			return placePlain
		}
		return f.keyword(key)
	case placeBoost:
		f.indices(key)
		return placePlain
	case placeRuntime:
		return placeAny
	case placeDecay:
		return placeDecayField
	}
	return f.keyword(key)
}

// top is enter for the members of the body itself.
func (f *Facts) top(key []byte) place {
	switch string(key) {
	case "query", "post_filter":
		return placeQuery
	case "aggs", "aggregations":
		f.Aggs = true
		return placeAggs
	case "runtime_mappings":
		return placeRuntime
	case "indices_boost":
		return placeBoost
	case "search_after":
		return placeValue
	case "slice":
		f.Slice = true
		return placePlain
	case "pit":
		f.PIT = true
		return placePlain
	case "size", "from", "timeout", "stats", "terminate_after", "profile", "explain", "_source", "fields",
		"stored_fields", "docvalue_fields", "track_total_hits", "track_scores", "min_score", "version",
		"seq_no_primary_term":
		return placePlain
	}
	return f.keyword(key)
}

// clause is enter for query clauses. Only here is it sure that what stands below is a field.
func (f *Facts) clause(key []byte) place {
	switch string(key) {
	case "bool":
		return placeBool
	case "constant_score", "nested", "has_child", "has_parent", "boosting", "dis_max", "function_score", "pinned":
		return placeWrap
	case "term", "range", "prefix", "wildcard", "regexp", "fuzzy", "span_term":
		return placeField
	case "terms":
		return placeTerms
	case "match", "match_phrase", "match_phrase_prefix", "match_bool_prefix", "multi_match", "combined_fields":
		return placeFullText
	case "exists", "ids", "match_all", "match_none":
		return placePlain
	}
	return f.keyword(key)
}

// keyword notes what a word of the query language means for caching, wherever it stands.
func (f *Facts) keyword(key []byte) place {
	switch string(key) {
	case "random_score":
		return placeRandom
	case "gauss", "exp", "linear":
		return placeDecay
	case "query_string", "simple_query_string":
		return placeQueryString
	case "scripted_metric":
		f.ScriptedMetric = true
	case "sampler", "diversified_sampler", "random_sampler":
		f.Sampler = true
	case "wrapper":
		f.Wrapped = true
	case "index", "_index", "target_index", "indexed_shape", "percolate":
		f.Foreign = true
	case "ext", "model_id", "model_text", "inference_id", "inference", "inference_config", "query_vector_builder",
		"text_expansion", "sparse_vector", "semantic", "neural", "neural_sparse", "learning_to_rank", "sltr", "rule", "rule_query",
		"ruleset_id", "ruleset_ids", "text_similarity_reranker", "agentic":
		f.External = true
	case "search_pipeline":
		f.Pipeline = true
	default:
		if bytes.HasPrefix(key, []byte("script")) || bytes.HasSuffix(key, []byte("_script")) {
			f.Script = true
		}
	}
	return placeAny
}

// leave notes what the value of a member says, once it is written, and returns which of the members that p asks for it is.
func (f *Facts) leave(p place, key, value []byte) required {
	switch p {
	case placeTop:
		switch string(key) {
		case "size":
			f.Size0 = string(value) == "0"
		case "terminate_after":
			f.TerminateAfter = string(value) != "0"
		case "explain":
			f.Explain = !isFalse(value)
		case "profile":
			f.Profile = !isFalse(value)
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

func isFalse(value []byte) bool { return string(value) == "false" || string(value) == `"false"` }

// close notes what is missing at the end of an object.
func (f *Facts) close(p place, seen required) {
	switch {
	case p == placeRandom && seen != sawSeed|sawField:
		f.Random = true
	case p == placeDecayField && seen != sawOrigin:
		f.Now = true // on a date field the origin is now unless given
	}
}

// text notes what the string s, in canonical spelling without quotes, means at place p.
func (f *Facts) text(p place, s []byte) {
	switch p {
	case placePlain:
	case placeQueryString:
		f.Now = f.Now || hasNowToken(s, true)
	case placeFullText:
		// On a date field even match takes date math; "now" alone is there a single millisecond, but a common word.
		f.Now = f.Now || len(s) > len("now") && isDateMath(s)
	default:
		f.Now = f.Now || isDateMath(s)
		f.indices(s)
	}
}

// indices notes date math in the name of an index, such as <logs-{now/d}>.
func (f *Facts) indices(s []byte) {
	f.Now = f.Now || hasDateMathName(s)
}

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

func wordByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '_' || b >= 0x80
}
