package query

import (
	"strings"
	"testing"
)

func TestFacts(t *testing.T) {
	f := func(body string, want Facts) {
		t.Helper()
		var c Canon
		_, got, err := c.Body(nil, []byte(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		want.Aggs = got.Aggs     // told by what TestCompletePrecomputed sees
		want.Uneven = got.Uneven // told by what TestPreferenceWithoutHits sees
		if got != want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", body, got, want)
		}
	}
	f(grafanaBody, Facts{Size0: true})
	f(`{"size":0}`, Facts{Size0: true})
	f(`{"size":1}`, Facts{})
	f(`{"query":{"term":{"size":0}}}`, Facts{})
	f(`{"terminate_after":0}`, Facts{})
	f(`{"terminate_after":10}`, Facts{TerminateAfter: true})
	f(`{"explain":true}`, Facts{Explain: true})
	f(`{"explain":false,"profile":false}`, Facts{})
	f(`{"profile":true}`, Facts{Profile: true})
	f(`{"profile":"true"}`, Facts{Profile: true})
	f(`{"pr\u006ffile":true}`, Facts{Profile: true})
	f(`{"slice":{"id":0,"max":2}}`, Facts{Slice: true})
	f(`{"pit":{"id":"x"}}`, Facts{PIT: true})
	// Fields may have these names.
	f(`{"query":{"bool":{"must":[{"term":{"profile":true}},{"term":{"script":"x"}},{"match":{"sampler":"now then"}}],"filter":{"range":{"random_score":{"gte":1}}}}}}`, Facts{})
	f(`{"query":{"constant_score":{"filter":{"terms":{"index":["a"]}}}}}`, Facts{})
	f(`{"query":{"nested":{"path":"p","query":{"exists":{"field":"script"}}}}}`, Facts{})
	f(`{"_source":["script","now"],"fields":["now"]}`, Facts{})
	// Aggregations too.
	f(`{"aggs":{"script":{"terms":{"field":"a"},"aggs":{"sampler":{"avg":{"field":"b"}}},"meta":{"script":"now"}}}}`, Facts{})

	script := Facts{Script: true}
	f(`{"query":{"script":{"script":"true"}}}`, script)
	f(`{"query":{"bool":{"filter":[{"script":{"script":{"source":"true"}}}]}}}`, script)
	f(`{"query":{"function_score":{"functions":[{"script_score":{"script":"1"}}]}}}`, script)
	f(`{"query":{"script_score":{"query":{"match_all":{}},"script":{"source":"1"}}}}`, script)
	f(`{"query":{"terms_set":{"a":{"terms":["b"],"minimum_should_match_script":{"source":"1"}}}}}`, script)
	f(`{"script_fields":{"a":{"script":"1"}}}`, script)
	f(`{"sort":{"_script":{"type":"number","script":"1"}}}`, script)
	f(`{"sort":[{"_scr\u0069pt":{"type":"number"}}]}`, script)
	f(`{"runtime_mappings":{"a":{"type":"long","script":"emit(1)"}}}`, script)
	f(`{"runtime_mappings":{"script":{"type":"long"}}}`, Facts{})
	f(`{"aggs":{"a":{"terms":{"script":"1"}}}}`, script)
	f(`{"aggs":{"a":{"bucket_script":{"buckets_path":"x","script":"1"}}}}`, script)
	f(`{"aggs":{"a":{"aggs":{"b":{"aggregations":{"c":{"avg":{"script":"1"}}}}}}}}`, script)
	f(`{"aggs":{"a":{"filter":{"script":{"script":"1"}}}}}`, script)
	f(`{"aggs":{"term":{"filters":{"filters":{"term":{"script":{"script":"1"}}}}}}}`, script)
	f(`{"aggs":{"match":{"terms":{"script":"1"}}}}`, script)
	f(`{"post_filter":{"bool":{"must_not":{"script":{"script":"1"}}}}}`, script)
	f(`{"highlight":{"highlight_query":{"script":{"script":"1"}}}}`, script)
	f(`{"rescore":{"query":{"rescore_query":{"script_score":{}}}}}`, script)
	f(`{"collapse":{"field":"a","inner_hits":{"script_fields":{}}}}`, script)
	f(`{"knn":{"filter":{"script":{"script":"1"}}}}`, script)
	f(`{"query":{"some_new_clause":{"term":{"script":"1"}}}}`, script)

	f(`{"aggs":{"a":{"scripted_metric":{}}}}`, Facts{ScriptedMetric: true})
	f(`{"aggs":{"a":{"aggs":{"b":{"diversified_sampler":{}}}}}}`, Facts{Sampler: true})
	f(`{"aggs":{"a":{"random_sampler":{"probability":0.1}}}}`, Facts{Sampler: true})
	f(`{"query":{"wrapper":{"query":"eyJzY3JpcHQiOnt9fQ=="}}}`, Facts{Wrapped: true})
	f(`{"aggs":{"x":{"filters":{"filters":{"aggs":{"wrapper":{"query":"e30="}}}}}}}`, Facts{Wrapped: true})

	f(`{"query":{"function_score":{"random_score":{}}}}`, Facts{Random: true})
	f(`{"query":{"function_score":{"functions":[{"random_score":{"seed":1}}]}}}`, Facts{Random: true})
	f(`{"query":{"function_score":{"random_score":{"field":"_seq_no"}}}}`, Facts{Random: true})
	f(`{"query":{"function_score":{"random_score":{"field":"_seq_no","seed":null}}}}`, Facts{Random: true})
	f(`{"query":{"function_score":{"random_score":{"field":"_seq_no","seed":7}}}}`, Facts{})

	f(`{"script_fields":{ }}`, Facts{})
	f(`{"script_fields":{"a":{}}}`, Facts{Script: true})
	f(`{"script_fields":[]}`, Facts{Script: true})
	f(`{"aggs":{"x":{"top_hits":{"script_fields":{}}}}}`, Facts{Script: true})

	foreign := Facts{Foreign: true}
	f(`{"query":{"terms":{"user":{"index":"users","id":"1","path":"friends"}}}}`, foreign)
	f(`{"query":{"terms":{"user":["a","b"],"boost":1}}}`, Facts{})
	f(`{"query":{"geo_shape":{"g":{"indexed_shape":{"id":"1"}}}}}`, foreign)
	f(`{"query":{"more_like_this":{"like":[{"_index":"a","_id":"1"}]}}}`, foreign)
	f(`{"query":{"percolate":{"field":"q","document":{}}}}`, foreign)
	f(`{"runtime_mappings":{"a":{"type":"lookup","target_index":"b"}}}`, foreign)
	f(`{"ext":{"plugin":{}}}`, Facts{External: true})
	f(`{"knn":{"query_vector_builder":{"text_embedding":{"model_id":"m"}}}}`, Facts{External: true})
	f(`{"search_pipeline":"p"}`, Facts{Pipeline: true})
}

func TestHasNow(t *testing.T) {
	for _, s := range []string{"", "w", "ow", "now", "no", "wnow", "nownow", "know", "nwo w", "n o w", "snowy", "www", "nowhere", "onow"} {
		if got := hasNow([]byte(s)); got != strings.Contains(s, "now") {
			t.Errorf("%q: %t", s, got)
		}
	}
}

func TestFactsNow(t *testing.T) {
	f := func(body string, want bool) {
		t.Helper()
		var c Canon
		_, facts, err := c.Body(nil, []byte(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if now := facts.Now || facts.Hourly || facts.Minutely; now != want {
			t.Errorf("%s: depends on now: %v, want %v", body, now, want)
		}
	}
	f(`{"query":{"range":{"t":{"gte":"now-15m"}}}}`, true)
	f(`{"query":{"range":{"t":{"gte":"now"}}}}`, true)
	f(`{"query":{"range":{"t":{"lt":"now/d"}}}}`, true)
	f(`{"query":{"range":{"t":{"lt":"\u006eow+1h"}}}}`, true)
	f(`{"query":{"range":{"t":{"lt":"now||-1d"}}}}`, true)
	f(`{"query":{"range":{"t":{"lt":"nowhere"}}}}`, false)
	f(`{"query":{"range":{"t":{"lt":"2024-01-01||/d"}}}}`, false)
	f(`{"query":{"range":{"now":{"lt":1}}}}`, false)
	f(`{"query":{"term":{"t":"now/d"}}}`, true)
	f(`{"query":{"terms":{"t":["a","now-1d"]}}}`, true)
	f(`{"aggs":{"x":{"date_range":{"field":"t","ranges":[{"from":"now-1d"}]}}}}`, true)
	f(`{"aggs":{"x":{"date_histogram":{"extended_bounds":{"min":"now-1d","max":"now"}}}}}`, true)
	f(`{"aggs":{"x":{"date_histogram":{"missing":"now"}}}}`, true)
	f(`{"aggs":{"now":{"avg":{"field":"a"}}}}`, false)
	f(`{"search_after":["now"]}`, true)
	f(`{"knn":{"filter":{"range":{"t":{"gte":"now-1h"}}}}}`, true)
	// On a date_range field a full text query asks which ranges hold the present, however often the clock ticks.
	for _, clause := range []string{"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix", "term", "span_term", "some_new_clause"} {
		for _, text := range []string{"now", "now-1d", "now+1h/d", `n\u006fw`} {
			f(`{"query":{"`+clause+`":{"period":"`+text+`"}}}`, true)
			f(`{"query":{"bool":{"filter":[{"`+clause+`":{"period":{"query":"`+text+`"}}}]}}}`, true)
		}
		f(`{"query":{"`+clause+`":{"title":"now playing"}}}`, false)
		f(`{"query":{"`+clause+`":{"title":{"query":"Now playing now"}}}}`, false)
		f(`{"query":{"`+clause+`":{"now":"x"}}}`, false)
	}
	for _, clause := range []string{"multi_match", "combined_fields", "query_string", "simple_query_string"} {
		f(`{"query":{"`+clause+`":{"query":"now","fields":["period"]}}}`, true)
	}
	f(`{"query":{"terms":{"period":["2024-01-01","now"]}}}`, true)
	// An analyzer finds it in a text.
	for _, text := range []string{"NOW", " now ", "Right now!", `n\u006fw playing`} {
		f(`{"query":{"match":{"period":{"query":"`+text+`","analyzer":"simple"}}}}`, true)
		f(`{"query":{"match_phrase":{"period":{"analyzer":"simple","query":"`+text+`"}}}}`, true)
		f(`{"query":{"some_new_clause":{"match":{"period":{"query":"`+text+`","analyzer":"simple"}}}}}`, true)
		f(`{"query":{"multi_match":{"query":"`+text+`","fields":["period"],"analyzer":"simple","lenient":true}}}`, true)
		f(`{"query":{"query_string":{"query":"`+text+`","quote_analyzer":"simple"}}}`, true)
		f(`{"aggs":{"a":{"filter":{"simple_query_string":{"query":"`+text+`","analyzer":"simple"}}}}}`, true)
	}
	f(`{"query":{"match":{"title":{"query":"Right no w","analyzer":"simple"}}}}`, false)
	f(`{"query":{"match":{"title":"Right now!"}}}`, false)
	f(`{"query":{"match":{"analyzer":"now"}}}`, true)
	// Lucene's query syntax.
	f(`{"query":{"query_string":{"query":"t:[now-1h TO now]"}}}`, true)
	f(`{"query":{"query_string":{"query":"t:>now-1h"}}}`, true)
	f(`{"query":{"query_string":{"query":"now"}}}`, true)
	f(`{"query":{"query_string":{"query":"t:\"now\""}}}`, true)
	f(`{"query":{"query_string":{"query":"a\nnow"}}}`, true)
	f(`{"query":{"query_string":{"query":"t:n\\ow"}}}`, true)
	f(`{"query":{"query_string":{"query":"t:\\u006eow"}}}`, true)
	f(`{"query":{"query_string":{"query":"known snow nowhere now_1 1now nów"}}}`, false)
	f(`{"query":{"query_string":{"query":"a\\:b \\\\ \\\" nowt\\"}}}`, false)
	f(`{"query":{"bool":{"must":{"simple_query_string":{"query":"t:now"}}}}}`, true)
	f(`{"aggs":{"x":{"filters":{"filters":{"a":{"query_string":{"query":"t:<now"}}}}}}}`, true)
	// A decay function without an origin counts from now.
	f(`{"query":{"function_score":{"gauss":{"t":{"scale":"10d"}}}}}`, true)
	f(`{"query":{"function_score":{"functions":[{"exp":{"t":{"scale":"10d","origin":"now"}}}]}}}`, true)
	f(`{"query":{"function_score":{"linear":{"t":{"scale":"10d","origin":"2024-01-01"},"multi_value_mode":"avg"}}}}`, false)
	f(`{"query":{"rank_feature":{"field":"a","linear":{}}}}`, false)
	// Names of indices.
	f(`{"indices_boost":[{"<logs-{now/d}>":2}]}`, true)
	f(`{"indices_boost":{"logs":2}}`, false)
	f(`{"query":{"terms":{"u":{"index":"<users-{now/d}>","id":"1","path":"p"}}}}`, true)
}
