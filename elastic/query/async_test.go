package query

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

func TestReadOfAsyncRequests(t *testing.T) {
	var a Async // its memory is used again
	f := func(api, index, rawQuery, body string, want Async, why Reason) {
		t.Helper()
		got := a.Read(api, []byte(index), []byte(rawQuery), []byte(body))
		if got != why {
			t.Errorf("%s?%s %s: %q, want %q", index, rawQuery, body, got, why)
		}
		if why != "" {
			return
		}
		if string(a.Index) != string(want.Index) || string(a.RawQuery) != string(want.RawQuery) || a.Wait != want.Wait ||
			a.KeepAlive != want.KeepAlive || a.Keep != want.Keep || a.Typed != want.Typed || a.Rendered != want.Rendered {
			t.Errorf("%s?%s: index %q, query %q, %+v, want index %q, query %q, %+v", index, rawQuery, a.Index, a.RawQuery, a, want.Index, want.RawQuery, want)
		}
	}
	const elastic, open = "async_search.submit", "asynchronous_search.search"
	day := 24 * time.Hour
	of := func(index, rawQuery string) Async {
		return Async{Index: []byte(index), RawQuery: []byte(rawQuery), Wait: time.Second, KeepAlive: 5 * day}
	}
	f(elastic, "i", "", "", of("i", ""), "")
	f(elastic, "", "", "{}", of("", ""), "")
	kibana := of("i", "ignore_unavailable=true&batched_reduce_size=64&preference=1")
	kibana.Wait, kibana.KeepAlive = 200*time.Millisecond, time.Minute
	f(elastic, "i", "ignore_unavailable=true&batched_reduce_size=64&keep_alive=60000ms&wait_for_completion_timeout=200ms&keep_on_completion=false&preference=1", "{}", kibana, "")
	typed := of("i", "typed_keys=true&a=b")
	typed.Typed, typed.Keep = true, true
	f(elastic, "i", "typed_keys=true;a=b&&keep_on_completion", "{}", typed, "")
	whole := of("i", "rest_total_hits_as_int=true")
	whole.Rendered = true
	f(elastic, "i", "rest_total_hits_as_int=true", "{}", whole, "")
	f(elastic, "i", "rest_total_hits_as_int=false", "{}", of("i", "rest_total_hits_as_int=false"), "")
	// A _search asks remote clusters in another way unless told otherwise.
	f(elastic, "c:i", "size=1", "{}", of("c:i", "size=1&ccs_minimize_roundtrips=false"), "")
	f(elastic, "c%3Ai", "", "{}", of("c%3Ai", "ccs_minimize_roundtrips=false"), "")
	f(elastic, "c:i", "ccs_minimize_roundtrips=false", "{}", of("c:i", "ccs_minimize_roundtrips=false"), "")
	f(elastic, "i", "index=j", "{}", of("i", "index=j"), "")

	opened := of("a%2Fb%2Cc", "size=0")
	opened.KeepAlive = day
	f(open, "", "index=a%2Fb,c&size=0", "{}", opened, "")
	opened = of("", "")
	opened.KeepAlive = 2 * day
	f(open, "", "keep_alive=2d", "", opened, "")
	f(open, "", "index=%zz", "", Async{}, ReasonAsyncArguments)
	f(open, "", "index=a&index=b", "", Async{}, ReasonAsyncArguments)
	f(open, "", "keep_alive=6d", "", Async{}, ReasonAsyncArguments)
	f(open, "", "wait_for_completion_timeout=2m", "", Async{}, ReasonAsyncArguments)

	for _, q := range []string{
		"keep_alive=59s", "keep_alive=1", "keep_alive=-1", "keep_alive=", "keep_alive=999999999d", "wait_for_completion_timeout=-1", "wait_for_completion_timeout=1x",
		"keep_on_completion=1", "typed_keys=no", "pre_filter_shard_size=5", "ccs_minimize_roundtrips", "ccs_minimize_roundtrips=true", "%73ize=1",
	} {
		f(elastic, "i", q, "{}", Async{}, ReasonAsyncArguments)
	}
	f(elastic, "i", "keep_alive=1m&keep_alive=1m", "{}", Async{}, ReasonRepeated)
	f(elastic, "i", "filter_path=*", "{}", Async{}, ReasonFilterPath)
	f(elastic, "i", "pretty", "{}", Async{}, ReasonFormat)
	f(elastic, "i", "format=yaml", "{}", Async{}, ReasonFormat)
	f(elastic, "i", "human", "{}", Async{}, ReasonFormat)
	f(elastic, "i", "source={}", "", Async{}, ReasonSource)
	f(elastic, "i", "", `{"size":0,"suggest":{}}`, Async{}, ReasonAsyncArguments)
	f(elastic, "i", "", `{"\u0073uggest":{}}`, Async{}, ReasonAsyncArguments)
	f(elastic, "i", "", `[]`, Async{}, ReasonBody)
	f(elastic, "i", "", `{"a":`, Async{}, ReasonBody)
}

func TestReadFetch(t *testing.T) {
	f := func(rawQuery string, typed, ok bool) {
		t.Helper()
		if gotTyped, gotOK := ReadFetch([]byte(rawQuery)); gotOK != ok || ok && gotTyped != typed {
			t.Errorf("%q: %v, %v", rawQuery, gotTyped, gotOK)
		}
	}
	f("", false, true)
	f("wait_for_completion_timeout=1s&keep_alive=1m", false, true)
	f("typed_keys", true, true)
	f("typed_keys=false", false, true)
	f("typed_keys=x", false, false)
	f("pretty", false, false)
	f("filter_path=response", false, false)
}

func TestJudgeOfAsyncAnswers(t *testing.T) {
	f := func(answer string, inTime bool, want Reason) {
		t.Helper()
		a, ok := ReadAsync([]byte(answer))
		if !ok {
			t.Errorf("%s cannot be read", answer)
			return
		}
		if got := a.Judge(inTime); got != want {
			t.Errorf("%s: %q, want %q", answer, got, want)
		}
	}
	const times, response = `"start_time_in_millis":1,"expiration_time_in_millis":2`, `,"response":{}`
	elastic := func(partial, running, rest string) string {
		return `{"is_partial":` + partial + `,"is_running":` + running + `,` + times + rest + `}`
	}
	open := func(state, rest string) string { return `{"id":"x","state":"` + state + `",` + times + rest + `}` }
	f(elastic("false", "false", response), false, "")
	f(elastic("true", "true", response), true, ReasonRunning)
	f(elastic("false", "true", response), true, ReasonRunning)
	f(elastic("true", "false", response), true, ReasonShards)
	f(elastic("false", "false", response+`,"error":{}`), true, ReasonError)
	f(elastic("false", "false", ""), true, ReasonMalformed)
	f(elastic(`"false"`, `false`, response), true, ReasonShards)
	f(open("SUCCEEDED", response), false, "")
	f(open("STORE_RESIDENT", response), false, "")
	f(open("CLOSED", response), true, "")
	f(open("CLOSED", response), false, ReasonShards)
	f(open("RUNNING", response), true, ReasonRunning)
	f(open("INIT", ""), true, ReasonRunning)
	f(open("FAILED", `,"error":{}`), true, ReasonError)
	f(open("NEWS", response), true, ReasonError)
	f(open("SUCCEEDED", ""), true, ReasonMalformed)

	for _, answer := range []string{
		``, `{}`, `[]`, `{"took":1,"timed_out":false}`, elastic("false", "false", response) + "{}", elastic("false", "false", `,"more":1`+response),
		`{"is_partial":false,` + times + response + `}`, `{"is_partial":false,"is_running":false` + response + `}`,
		`{"is_partial":false,"is_partial":false,"is_running":false,` + times + response + `}`,
		`{"state":"SUCCEEDED","is_partial":false,"is_running":false,` + times + response + `}`,
		`{"id":1,"is_partial":false,"is_running":false,` + times + response + `}`,
		`{"is_partial":false,"is_running":false,"start_time_in_millis":"1"` + response + `}`,
	} {
		if _, ok := ReadAsync([]byte(answer)); ok {
			t.Errorf("%s is taken for an answer about an async search", answer)
		}
	}
}

// What a node has said with one response is said again with another.
func TestAsyncForm(t *testing.T) {
	f := func(answer, want string) {
		t.Helper()
		a, ok := ReadAsync([]byte(answer))
		if !ok {
			t.Fatalf("%s cannot be read", answer)
		}
		if got := string(a.Form.Append(nil, []byte(`{"took":2}`), time.UnixMilli(1000), 5*time.Second)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f(`{"is_partial":false,"is_running":false,"start_time_in_millis":1,"expiration_time_in_millis":2,"response":{"took":1}}`,
		`{"is_partial":false,"is_running":false,"start_time_in_millis":1000,"expiration_time_in_millis":6000,"response":{"took":2}}`)
	f(`{"id":"x","is_partial":false,"is_running":false,"start_time_in_millis":1,"expiration_time_in_millis":2,"completion_time_in_millis":3,"response":{}}`,
		`{"is_partial":false,"is_running":false,"start_time_in_millis":1000,"expiration_time_in_millis":6000,"completion_time_in_millis":1000,"response":{"took":2}}`)
	f(`{"id":"x","state":"CLOSED","start_time_in_millis":1,"expiration_time_in_millis":2,"response":{}}`,
		`{"state":"CLOSED","start_time_in_millis":1000,"expiration_time_in_millis":6000,"response":{"took":2}}`)
}

func FuzzReadAsync(f *testing.F) {
	for _, seed := range []string{
		`{"id":"x","is_partial":false,"is_running":false,"start_time_in_millis":1,"expiration_time_in_millis":2,"completion_time_in_millis":3,"response":{"a":[1]}}`,
		` { "state" : "CLOSED" , "start_time_in_millis" : 1 , "response" : {} } `, `{"id":"","error":{}}`, `{`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		a, ok := ReadAsync(answer)
		if !ok {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(answer, &want); err != nil {
			t.Fatalf("%q: %v", answer, err)
		}
		if !bytes.Equal(a.Response, want["response"]) {
			t.Errorf("%q: response %q", answer, a.Response)
		}
		if a.Judge(true) != "" {
			return
		}
		again := a.Form.Append(nil, a.Response, time.UnixMilli(1), time.Second)
		b, ok := ReadAsync(again)
		if !ok || b.Judge(true) != "" || b.ID != nil || b.Form != a.Form || !bytes.Equal(b.Response, a.Response) {
			t.Errorf("%q is written as %q", answer, again)
		}
	})
}
