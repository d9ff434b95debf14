package query

import "testing"

func TestHiddenMembersAreAskedForAndCut(t *testing.T) {
	f := func(rawQuery, want string) {
		t.Helper()
		_, v := newTestKeyer(t, Options{}).Key(ask(`GET search logs?` + rawQuery))
		if v.Bypass != "" {
			t.Fatalf("%s: %s", rawQuery, v.Bypass)
		}
		got := rawQuery
		if v.Hidden != 0 {
			got = string(v.Widen(nil, []byte(rawQuery)))
		}
		if got != want {
			t.Errorf("%s: sent as %s, want %s", rawQuery, got, want)
		}
	}
	f("filter_path=hits.hits._id", "filter_path=hits.hits._id,timed_out,_shards,terminated_early,_clusters")
	f("a=b&filter_path=hits&c=d", "a=b&c=d&filter_path=hits,timed_out,_shards,terminated_early,_clusters")
	f("filter%5Fpath=aggregations.a*.b%2Chits", "filter_path=aggregations.a*.b%2Chits,timed_out,_shards,terminated_early,_clusters")
	f("filter_path=hits,_shards,-hits.hits._source", "filter_path=hits,_shards,-hits.hits._source,timed_out,terminated_early,_clusters")
	f("filter_path=timed_out,_shards,terminated_early,_clusters", "filter_path=timed_out,_shards,terminated_early,_clusters")
	f("filter_path=-hits.hits._source", "filter_path=-hits.hits._source")
	f("filter_path=*,hits", "filter_path=*,hits")
	f("filter_path=,", "filter_path=,")
}

func TestNarrow(t *testing.T) {
	f := func(hidden Members, in, want string) {
		t.Helper()
		v := Verdict{Hidden: hidden}
		if got := string(v.Narrow([]byte(in))); got != want {
			t.Errorf("%s without %b: got %s, want %s", in, hidden, got, want)
		}
	}
	f(allMembers, `{"took":1,"timed_out":false,"_shards":{"total":1},"hits":{"timed_out":1},"terminated_early":true}`, `{"took":1,"hits":{"timed_out":1}}`)
	f(allMembers, `{"timed_out":false,"_shards":{}}`, `{}`)
	f(memberTimedOut, `{"timed_out":false,"_shards":{"a":[1,{}]}}`, `{"_shards":{"a":[1,{}]}}`)
	f(allMembers, `{}`, `{}`)
	f(allMembers, `{"a":"\\\"x","b":1.0}`, `{"a":"\\\"x","b":1.0}`)
	f(allMembers, `<html>timed_out</html>`, `<html>timed_out</html>`)
	f(allMembers, `{"timed_out":false`, `{"timed_out":false`)
	f(allMembers, `{"timed_out":false} x`, `{"timed_out":false} x`)
}
