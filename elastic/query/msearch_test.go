package query

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	// f gives a first line and the query of the URL, and wants the index and the parameters of the search.
	f := func(line, query, index, params string) {
		t.Helper()
		var s Searches
		if why := s.Split([]byte(line+"\n{}\n"), []byte(query)); why != "" {
			t.Fatalf("%s: %s", line, why)
		}
		one := s.List[0]
		if one.Unknown || string(one.Index) != index || string(one.RawQuery) != params {
			t.Errorf("%s with %q: index %q and %q (unknown: %v), want %q and %q", line, query, one.Index, one.RawQuery, one.Unknown, index, params)
		}
	}
	f(`{}`, ``, ``, ``)
	f(` { } `, `a=b&&c=`, ``, `a=b&c=`)
	f("{\"index\":\"logs-*\"}\r", ``, `logs-%2A`, ``)
	f(`{"index":"logs-*,-x"}`, ``, `logs-%2A%2C-x`, ``)
	f(`{"index":["a" , "<b-{now/d}>"]}`, ``, `a%2C%3Cb-%7Bnow%2Fd%7D%3E`, ``)
	f(`{"preference":"a b&c","index":"i","ignore_unavailable":true}`, `x=y`, `i`, `preference=a+b%26c&ignore_unavailable=true&x=y`)
	f(`{"expand_wildcards":["open","hidden"]}`, `expand_wildcards=none&typed_keys`, ``, `expand_wildcards=open%2Chidden&typed_keys`)
	f(`{"search_type":"query_then_fetch"}`, `search_type=dfs_query_then_fetch`, ``, ``)
	f(`{"search_type":"dfs_query_then_fetch"}`, ``, ``, `search_type=dfs_query_then_fetch`)
	f(`{}`, `max_concurrent_searches=5&max_concurrent_shard_requests=3`, ``, `max_concurrent_shard_requests=3`)
	f(`{}`, `max_concurrent_searches=0;x=1`, ``, `max_concurrent_searches=0&x=1`)

	unknown := func(line string) {
		t.Helper()
		var s Searches
		if why := s.Split([]byte(line+"\n{}\n"), nil); why != "" || !s.List[0].Unknown {
			t.Errorf("%s is understood (%s)", line, why)
		}
	}
	for _, line := range []string{
		`{"index":1}`, `{"index":null}`, `{"index":""}`, `{"index":[]}`, `{"index":["a",null]}`, `{"index":["a\u0062"]}`, `{"index":"a","index":"a"}`,
		`{"routing":"a","routing":"b"}`, `{"type":"t"}`, `{"searchType":"x"}`, `{"index":"a"} x`, `["a"]`, `x`, `{"ignore_unavailable":{}}`,
		`{"index":"a\"b"}`, `{"index":["a,b"]}`, `{"index":["a",""]}`, `{"expand_wildcards":["open,hidden"]}`,
	} {
		unknown(line)
	}
}

// Nodes skip an empty line that is the first of a body, and take later ones for lines without parameters.
func TestSplitEmptyLines(t *testing.T) {
	f := func(body string, want Reason, searches ...string) {
		t.Helper()
		var s Searches
		why := s.Split([]byte(body), nil)
		var got []string
		for i := range s.List {
			got = append(got, string(s.List[i].Body))
		}
		if why != want || why == "" && !slices.Equal(got, searches) {
			t.Errorf("%q: %q (%s), want %q (%s)", body, got, why, searches, want)
		}
	}
	f("{}\n{}\n\n{\"size\":1}\n", "", `{}`, `{"size":1}`)
	for _, body := range []string{
		"\n{}\n", "\n{}\n{}\n", "\n\n{}\n", "{}\n\n", "{}\n \n", " \n{}\n", "{}\n{}\n\r\n{}\n", "\n", "{}\n{}\n\n", "{}", "",
	} {
		f(body, ReasonBody)
	}
	f("{}\n\v{}\n", "", "\v{}") // which is no JSON

	var s Searches
	if why := s.Split([]byte("{}\n{}\n\n{\"size\":1}\n"), nil); why != "" {
		t.Fatal(why)
	}
	if got := string(s.List[1].Append(nil)); got != "{}\n{\"size\":1}\n" {
		t.Errorf("by itself it is sent as %q", got)
	}
	if got := string(s.List[1].Append(s.List[0].Append(nil))); got != "{}\n{}\n\n{\"size\":1}\n" {
		t.Errorf("behind another it is sent as %q", got)
	}
}

func TestResponses(t *testing.T) {
	f := func(answer string, want ...string) {
		t.Helper()
		items, ok := Responses([]byte(answer))
		var got []string
		for _, i := range items {
			got = append(got, string(i))
		}
		if diff := cmp.Diff(want, got); ok && diff != "" || ok != (want != nil) {
			t.Errorf("%s: %v %s", answer, ok, diff)
		}
	}
	f(`{"took":1,"responses":[{"a":1},{"b":[2]}]}`, `{"a":1}`, `{"b":[2]}`)
	f("{ \"responses\" : [ {\"a\" : 1.0 } ,\n{} ] , \"took\" : 1 }\n", `{"a" : 1.0 }`, `{}`)
	f(`{"took":1,"responses":[{}],"x":1}`)
	f(`{"took":1,"responses":[{}],"responses":[{}]}`)
	f(`{"took":1,"responses":[{},]}`)
	f(`{"took":1,"responses":[{}]`)
	f(`{"took":1,"responses":[{}]}x`)
	f(`{"took":1}`)
	f(``)
}

func TestCutItem(t *testing.T) {
	f := func(item, want string) {
		t.Helper()
		front, end, ok := CutItem([]byte(item))
		if got := string(front) + string(end); ok != (want != "") || got != want {
			t.Errorf("%s: got %q %v, want %q", item, got, ok, want)
		}
	}
	f(`{"a":1,"status":200}`, `{"a":1}`)
	f(" {\"a\":{\"status\":404} ,\n\"status\" : 200 } ", " {\"a\":{\"status\":404} }")
	f(`{"a":1,"status":404}`, "")
	f(`{"a":1,"status":2e2}`, "")
	f(`{"status":200}`, "")
	f(`{"status":200,"a":1}`, "")
	f(`{"status":404,"a":1,"status":200}`, "")
	f(`{"status":200,"a":1,"status":200}`, "")
	f(`{"st\u0061tus":404,"status":200}`, "")
	f(`{"a":1,"status":200}x`, "")
	f(`[1,"status":200}`, "")
	f(``, "")
}

// What is taken apart is what encoding/json reads, and put together again it is a search's own answer.
func FuzzResponses(f *testing.F) {
	for _, seed := range []string{
		`{"took":1,"responses":[{"hits":{},"status":200},{"error":"x","status":404}]}`, `{"took":1,"responses":[]}`, `{"responses":[1],"took":0}`, `{`,
		`{"took":1,"responses":[ { "a":[{}] , "status":200} ]} `,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		items, ok := Responses(answer)
		if !ok {
			return
		}
		var want struct{ Responses []json.RawMessage }
		if err := json.Unmarshal(answer, &want); err != nil {
			t.Fatalf("%q: %v", answer, err)
		}
		if len(want.Responses) != len(items) {
			t.Fatalf("%q: %d items, want %d", answer, len(items), len(want.Responses))
		}
		for i, item := range items {
			if !bytes.Equal(item, want.Responses[i]) {
				t.Errorf("%q: item %d is %q, want %q", answer, i, item, want.Responses[i])
			}
			front, end, ok := CutItem(item)
			if !ok {
				continue
			}
			whole := append(bytes.Clone(front), end...)
			if again, ok := AppendItem(nil, whole); ok && !bytes.Equal(compact(t, again), compact(t, item)) {
				t.Errorf("%q comes back as %q", item, again)
			}
		}
	})
}

func compact(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return b.Bytes()
}

// The lines of the searches are the body.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("{\"index\":\"a\"}\n{}\n\n{}\n"), []byte("a=b&c"))
	f.Add([]byte("{\"index\":[\"a\"],\"routing\":\"%\"}\r\n{}\r\n"), []byte("routing=x;max_concurrent_searches=1"))
	f.Add([]byte("{}\n{}"), []byte("pretty"))
	f.Fuzz(func(t *testing.T, body, query []byte) {
		var s Searches
		if s.Split(body, query) != "" {
			return
		}
		var joined []byte
		for _, one := range s.List {
			joined = one.Append(joined)
			if bytes.IndexByte(one.Index, '/') >= 0 || bytes.IndexByte(one.Index, '?') >= 0 {
				t.Errorf("index %q is no part of a path", one.Index)
			}
			if !one.Unknown && strings.HasSuffix(string(one.RawQuery), "&") {
				t.Errorf("parameters %q", one.RawQuery)
			}
		}
		if !bytes.Equal(joined, body) {
			t.Errorf("the lines are %q of %q", joined, body)
		}
	})
}

func TestItemStatus(t *testing.T) {
	f := func(item string, want int) {
		t.Helper()
		if got := ItemStatus([]byte(item)); got != want {
			t.Errorf("%s: %d, want %d", item, got, want)
		}
	}
	f(`{"error":{"type":"index_not_found_exception","status":400},"status":404}`, 404)
	f(` { "status" : 403 , "error" : "no" } `, 403)
	f(`{"took":1,"status":200}`, 200)
	f(`{"status":403,"status":200}`, 0)
	f(`{"error":{"status":404}}`, 0)
	f(`{"status":"404"}`, 0)
	f(`{"status":404`, 0)
	f(`[404]`, 0)
	f(``, 0)
}
