package query

import (
	"bytes"
	"slices"

	"weir/internal/wire"
)

// maxParams is how many URL parameters a search may have. The REST specification knows under fifty.
const maxParams = 64

// A rule says what a URL parameter does to the key.
type rule uint8

const (
	ruleKey   rule = iota // in the key; so is every name not in the table
	ruleShape             // in the key: same search, different rendering
	ruleDrop              // not in the key: changes no complete answer
	ruleScroll
	ruleProfile
	ruleSwitch     // the gateway's own switch, which no node sees
	ruleCache      // asks the node for its cache, or for none
	ruleSource     // is the body
	ruleSourceType // is the type of that body
	ruleFormat
	ruleFilterPath
	ruleSearchType
	rulePreference
	ruleQueryString // in the key; may hold now
	ruleAnalyzer    // in the key; takes that apart
	ruleSize        // in the key; overrides the body's
	ruleTerminate   // in the key; answers may end early
	ruleExplain     // in the key; lives for its time only
	rulePipeline    // in the key; lives for its time only
	ruleUneven      // in the key; copies of a shard may differ in it
	ruleHides       // filter_path where nobody knows what it must leave
)

// A kind is the type of a parameter's value.
type kind uint8

const (
	kindText  kind = iota
	kindBool       // true or false; what nodes make of an empty value differs from one parameter to the next
	kindFlag       // true or false; an empty value means true
	kindCount      // a whole number, at least the row's least
	kindTime       // a number and a unit
)

// A param is a row of the table. A parameter is dropped only if its value is well formed, because a node answers a
// malformed one with 400.
type param struct {
	rule       rule
	kind       kind
	least      int
	searchOnly bool // _count answers it with 400
}

// params says what each URL parameter of _search and _count does to the key, and why.
var params = map[string]param{
	// Only complete answers are stored, and a complete answer is the same however long it might have taken.
	"timeout":                      {rule: ruleDrop, kind: kindTime, searchOnly: true},
	"cancel_after_time_interval":   {rule: ruleDrop, kind: kindTime, searchOnly: true},
	"allow_partial_search_results": {rule: ruleDrop, kind: kindBool, searchOnly: true},
	// How the work is spread over shards, not what is found.
	"batched_reduce_size":           {rule: ruleDrop, kind: kindCount, least: 2, searchOnly: true},
	"max_concurrent_shard_requests": {rule: ruleDrop, kind: kindCount, least: 1, searchOnly: true},
	"pre_filter_shard_size":         {rule: ruleDrop, kind: kindCount, least: 1, searchOnly: true},
	// A label for the node's statistics.
	"stats": {rule: ruleDrop, searchOnly: true},
	// Renders errors, and errors are not stored.
	"error_trace": {rule: ruleDrop, kind: kindFlag},

	"no_cache":      {rule: ruleSwitch},
	"request_cache": {rule: ruleCache, kind: kindBool, searchOnly: true},

	// A cursor: another call for the same page gives the next one.
	"scroll":    {rule: ruleScroll},
	"scroll_id": {rule: ruleScroll},
	// Nodes refuse to cache it themselves: term statistics are gathered anew.
	"search_type": {rule: ruleSearchType},
	// Tells how this one execution went.
	"profile": {rule: ruleProfile},

	"source":              {rule: ruleSource},
	"source_content_type": {rule: ruleSourceType},

	"pretty":                      {rule: ruleShape, kind: kindFlag},
	"human":                       {rule: ruleShape, kind: kindFlag},
	"typed_keys":                  {rule: ruleShape, kind: kindFlag},
	"rest_total_hits_as_int":      {rule: ruleShape, kind: kindFlag},
	"include_named_queries_score": {rule: ruleShape, kind: kindFlag},
	"phase_took":                  {rule: ruleShape, kind: kindFlag},
	"format":                      {rule: ruleFormat},
	"filter_path":                 {rule: ruleFilterPath},
	"preference":                  {rule: rulePreference},
	"q":                           {rule: ruleQueryString},
	"analyzer":                    {rule: ruleAnalyzer},
	"size":                        {rule: ruleSize},
	"terminate_after":             {rule: ruleTerminate},
	"explain":                     {rule: ruleExplain, kind: kindBool},
	"search_pipeline":             {rule: rulePipeline},
	"min_score":                   {rule: ruleUneven},
	"suggest_field":               {rule: ruleUneven},
	"allow_no_indices":            {kind: kindBool},
	"ignore_unavailable":          {kind: kindBool},
	"ignore_throttled":            {kind: kindBool},
	"ccs_minimize_roundtrips":     {kind: kindBool},
	"analyze_wildcard":            {kind: kindBool},
	"lenient":                     {kind: kindBool},
	"track_scores":                {kind: kindBool},
	"version":                     {kind: kindBool},
	"seq_no_primary_term":         {kind: kindBool},
}

// An arg is one URL parameter of a request, decoded.
type arg struct {
	name, value []byte
	raw         bool // a half of it cannot be decoded and stands as it came
	dropped     bool // it is not in the key
	row         param
}

// parseArgs reads a raw query as Elasticsearch does: "&" and ";" part, "+" is a space, escapes are decoded once.
// It returns the parameters sorted by name; they point into raw and arena, which comes back grown.
func parseArgs(args []arg, arena, raw []byte) ([]arg, []byte, Reason) {
	args, arena = args[:0], slices.Grow(arena[:0], len(raw)) // decoding never lengthens, so arena stays where it is
	for len(raw) > 0 {
		end := 0
		for end < len(raw) && raw[end] != '&' && raw[end] != ';' {
			end++
		}
		pair := raw[:end]
		raw = raw[min(end+1, len(raw)):]
		if len(pair) == 0 {
			continue
		}
		if len(args) == maxParams {
			return args, arena, ReasonArguments
		}
		name, value, _ := bytes.Cut(pair, []byte{'='})
		var a arg
		var nameOK, valueOK bool
		a.name, arena, nameOK = unescape(arena, name, true)
		a.value, arena, valueOK = unescape(arena, value, true)
		a.raw = !nameOK || !valueOK
		if row, ok := params[string(a.name)]; ok && nameOK {
			a.row = row
		}
		at := len(args)
		for ; at > 0; at-- {
			order := bytes.Compare(args[at-1].name, a.name)
			if order == 0 {
				return args, arena, ReasonRepeated
			}
			if order < 0 {
				break
			}
		}
		args = append(args, a)
		if at < len(args)-1 {
			copy(args[at+1:], args[at:])
			args[at] = a
		}
	}
	return args, arena, ""
}

// unescape decodes the percent escapes of s once and appends the result to arena, which must have room for it. If s
// cannot be decoded, it stands as it came. What needs no decoding comes back as s itself.
func unescape(arena, s []byte, plusIsSpace bool) (text, grown []byte, ok bool) {
	if bytes.IndexByte(s, '%') < 0 && (!plusIsSpace || bytes.IndexByte(s, '+') < 0) {
		return s, arena, true
	}
	start := len(arena)
	for i := 0; i < len(s); i++ {
		b := s[i]
		switch {
		case b == '+' && plusIsSpace:
			b = ' '
		case b == '%':
			if i+2 >= len(s) {
				arena = append(arena[:start], s...)
				return arena[start:], arena, false
			}
			hi, lo := wire.HexDigit(s[i+1]), wire.HexDigit(s[i+2])
			if hi == wire.NoHexDigit || lo == wire.NoHexDigit {
				arena = append(arena[:start], s...)
				return arena[start:], arena, false
			}
			b = hi<<4 | lo
			i += 2
		}
		arena = append(arena, b)
	}
	return arena[start:], arena, true
}

// wellFormed tells whether a node accepts the value as one of the parameter's kind.
func (a *arg) wellFormed() bool {
	if a.raw {
		return false
	}
	switch a.row.kind {
	case kindFlag, kindBool:
		return string(a.value) == "true" || string(a.value) == "false" || len(a.value) == 0 && a.row.kind == kindFlag
	case kindCount:
		if len(a.value) == 0 || len(a.value) > 9 || skipDigits(a.value, 0) != len(a.value) {
			return false
		}
		n := 0
		for _, c := range a.value {
			n = n*10 + int(c-'0')
		}
		return n >= a.row.least
	case kindTime:
		return isDuration(a.value)
	}
	return true
}

var textTrue = []byte("true")

// keyValue is the value as it stands in the key: an empty flag is true.
func (a *arg) keyValue() []byte {
	if a.row.kind == kindFlag && len(a.value) == 0 {
		return textTrue
	}
	return a.value
}

// Known tells whether a URL parameter, decoded, is one of the APIs that have keys. Others may be an operator's own, such as the
// one from which a plug-in takes a token.
func Known(name []byte) bool {
	_, ok := params[string(name)]
	return ok || slices.Contains(plainParams[:], string(name))
}

// plainParams are parameters of searches, async ones included, counts and the APIs of Others, that params leaves to its rule for
// all others.
var plainParams = [...]string{
	"_source", "_source_includes", "_source_excludes", "allow_partial_results", "cluster_manager_timeout", "default_operator",
	"delimiter", "df", "docvalue_fields", "drop_null_columns", "expand_wildcards", "fields", "filters", "force_synthetic_source", "from",
	"include_empty_fields", "include_type_name", "include_unmapped", "local", "master_timeout", "min_compatible_shard_node", "routing",
	"sort", "stored_fields", "suggest_mode", "suggest_size", "suggest_text", "track_total_hits", "types", "verbose_pipeline",
}
