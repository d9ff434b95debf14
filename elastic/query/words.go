package query

import "encoding/binary"

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
	placeQueryString              // strings are in the syntax of Lucene's query parser
	placeAggs                     // names are names of aggregations
	placeAgg                      // one aggregation: names are types
	placeRuntime                  // names are names of runtime fields
	placeBoost                    // names are index expressions
	placeRandom                   // inside random_score
	placeDecay                    // inside a decay function: names are fields
	placeDecayField               // one field of a decay function
	places           = iota
)

// A step is where a name leads, and what it says of the body.
type step struct {
	to   place
	says fact
}

// A word is a name that means something somewhere in a body. The zero word stands for all other names.
type word struct {
	name    string
	head    uint64 // headOf(name)
	ordered bool   // the order of members matters everywhere inside the member of this name
	rival   rivals // names that set the same thing
	steps   [places]step
}

// keywords are the places where a name that has no other meaning may be a word of the query language, wherever that
// stands.
var keywords = [places]bool{
	placeAny: true, placeTop: true, placeQuery: true, placeBool: true, placeWrap: true, placeAgg: true, placeRandom: true,
	placeDecayField: true,
}

// unknown are the steps of a name that is no word.
var unknown = [places]step{
	placePlain: {to: placePlain}, placeQueryString: {to: placeQueryString},
	placeField: {to: placeValue}, placeValue: {to: placeValue}, placeTermsField: {to: placeValue},
	placeTerms: {to: placeTermsField}, placeAggs: {to: placeAgg}, placeBoost: {to: placePlain}, placeDecay: {to: placeDecayField},
}

// A lexicon says where its names lead.
type lexicon struct {
	step
	names []string
}

// analyzers are options of full text queries, by which they take their text apart whatever the field.
var analyzers = []string{"analyzer", "quote_analyzer"}

// language holds the words that have a meaning at every place of keywords.
var language = []lexicon{
	{step{to: placeRandom}, []string{"random_score"}},
	{step{to: placeDecay}, []string{"gauss", "exp", "linear"}},
	{step{to: placeQueryString}, []string{"query_string", "simple_query_string"}},
	{step{says: saysScriptedMetric}, []string{"scripted_metric"}},
	{step{says: saysSampler}, []string{"sampler", "diversified_sampler", "random_sampler"}},
	{step{says: saysWrapped}, []string{"wrapper"}},
	{step{says: saysForeign}, []string{"index", "_index", "target_index", "indexed_shape", "percolate"}},
	{step{says: saysExternal}, []string{
		"ext", "model_id", "model_text", "inference_id", "inference", "inference_config", "query_vector_builder", "text_expansion",
		"sparse_vector", "semantic", "neural", "neural_sparse", "learning_to_rank", "sltr", "rule", "rule_query", "ruleset_id",
		"ruleset_ids", "text_similarity_reranker", "agentic",
	}},
	{step{says: saysPipeline}, []string{"search_pipeline"}},
	{step{says: saysScript}, []string{"script_fields"}},
	{step{says: saysAnalyzed}, analyzers},
	{step{says: saysUneven}, []string{
		"top_hits", "top_metrics", "inner_hits", "geo_line", // which of equal documents come first
		"min_score", "significant_terms", "significant_text", // statistics, in which deleted documents of a copy count
		"knn", "variable_width_histogram", "categorize_text", // what is near, as a copy has it
	}},
}

// local holds what words mean at one place only, where that goes before language.
var local = map[place][]lexicon{
	placeTop: {
		{step{to: placeQuery}, []string{"query", "post_filter"}},
		{step{to: placeAggs, says: saysAggs}, []string{"aggs", "aggregations"}},
		{step{to: placeRuntime}, []string{"runtime_mappings"}},
		{step{to: placeBoost}, []string{"indices_boost"}},
		{step{to: placeValue}, []string{"search_after"}},
		{step{to: placePlain, says: saysSlice}, []string{"slice"}},
		{step{to: placePlain, says: saysPIT}, []string{"pit"}},
		{step{says: saysUneven}, []string{"suggest"}},
		{step{to: placePlain, says: saysUneven}, []string{"min_score"}},
		{step{}, []string{"script_fields"}}, // Kibana always sends it, mostly empty: its value counts
		{step{to: placePlain}, []string{
			"size", "from", "timeout", "stats", "terminate_after", "profile", "explain", "_source", "fields", "stored_fields",
			"docvalue_fields", "track_total_hits", "track_scores", "version", "seq_no_primary_term",
		}},
	},
	// Only here is it sure that what stands below is a field.
	placeQuery: {
		{step{to: placeBool}, []string{"bool"}},
		{step{to: placeWrap}, []string{
			"constant_score", "nested", "has_child", "has_parent", "boosting", "dis_max", "function_score", "pinned",
		}},
		{step{to: placeField}, []string{
			"term", "range", "prefix", "wildcard", "regexp", "fuzzy", "span_term",
			"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix", "multi_match", "combined_fields",
		}},
		{step{to: placeTerms}, []string{"terms"}},
		{step{to: placePlain}, []string{"exists", "ids", "match_all", "match_none"}},
	},
	placeField:       {{step{to: placeValue, says: saysAnalyzed}, analyzers}},
	placeValue:       {{step{to: placeValue, says: saysAnalyzed}, analyzers}},
	placeQueryString: {{step{to: placeQueryString, says: saysAnalyzed}, analyzers}},
	placeBool:        {{step{to: placeQuery}, []string{"must", "filter", "should", "must_not", "mustNot"}}},
	placeWrap:        {{step{to: placeQuery}, []string{"query", "filter", "positive", "negative", "queries", "organic"}}},
	placeAgg: {
		{step{to: placeAggs}, []string{"aggs", "aggregations"}},
		{step{to: placeQuery}, []string{"filter"}},
		{step{to: placePlain}, []string{"meta"}},
	},
}

// rivals are names of which Elasticsearch takes the one that comes last, so that an object with two of them means
// something else when they change places.
type rivals uint16

const (
	rivalLower rivals = 1 << iota
	rivalUpper
	rivalAggs
	rivalIncludes
	rivalExcludes
	rivalValue
)

// rivalNames are those names.
var rivalNames = map[rivals][]string{
	rivalLower:    {"from", "gt", "gte", "include_lower"}, // of a range query
	rivalUpper:    {"to", "lt", "lte", "include_upper"},
	rivalAggs:     {"aggs", "aggregations"},
	rivalIncludes: {"include", "includes"}, // of _source
	rivalExcludes: {"exclude", "excludes"},
	rivalValue:    {"value", "term", "prefix", "wildcard"}, // of a term-level query on one field
}

// orderedNames are those inside which the order of members matters. JSON says that it has no meaning; Elasticsearch's
// parsers give it one in these places.
var orderedNames = []string{
	"sort",          // {"a":"asc","b":"desc"} sorts by a, then by b
	"indices_boost", // the first name that matches an index counts
	"order",         // of an aggregation: the last member counts
	// A point has several spellings; the last one counts.
	"geo_distance", "geo_bounding_box", "geo_polygon", "_geo_distance",
}

// wordSlots is several times the number of words, so that most names are looked up in one step.
const wordSlots = 1 << 10

// words holds the words, and wordAt where to find them by their hash: an index into words, 0 where there is none.
var words, wordAt = indexWords()

func indexWords() ([]word, [wordSlots]uint16) {
	list := []word{{steps: unknown}}
	at := [wordSlots]uint16{}
	find := func(name string) *word {
		head := headOf([]byte(name))
		slot := wordHash(head, len(name))
		for ; at[slot] != 0; slot = (slot + 1) % wordSlots {
			if list[at[slot]].name == name {
				return &list[at[slot]]
			}
		}
		at[slot] = uint16(len(list))
		list = append(list, word{name: name, head: head, steps: unknown})
		return &list[len(list)-1]
	}
	for _, l := range language {
		for _, name := range l.names {
			w := find(name)
			for p, is := range keywords {
				if is {
					w.steps[p] = l.step
				}
			}
		}
	}
	for p, lexicons := range local {
		for _, l := range lexicons {
			for _, name := range l.names {
				find(name).steps[p] = l.step
			}
		}
	}
	for group, names := range rivalNames {
		for _, name := range names {
			find(name).rival = group
		}
	}
	for _, name := range orderedNames {
		find(name).ordered = true
	}
	return list, at
}

// headOf returns the first eight bytes of a name as a number that is greater the later the name stands in order. Names have
// no zero bytes in canonical spelling, so that of short ones it tells all.
func headOf(name []byte) uint64 {
	if len(name) >= headLen {
		return binary.BigEndian.Uint64(name)
	}
	var head uint64
	for i, b := range name {
		head |= uint64(b) << (56 - 8*i)
	}
	return head
}

const headLen = 8

// wordHash tells the words apart well enough.
func wordHash(head uint64, length int) uint64 {
	return (head ^ uint64(length)) * 0x9e3779b97f4a7c15 >> 54
}

// wordOf returns what a name means, in canonical spelling without quotes. head is headOf(name).
func wordOf(name []byte, head uint64) *word {
	for slot := wordHash(head, len(name)); ; slot = (slot + 1) % wordSlots {
		w := &words[wordAt[slot]]
		if w.name == "" || w.head == head && len(w.name) == len(name) && (len(name) <= headLen || w.name == string(name)) {
			return w
		}
	}
}
