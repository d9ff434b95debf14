package query

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir/internal/wire"
)

const (
	goodSearch = `{"took":1,"timed_out":false,"_shards":{"total":2,"successful":2,"skipped":1,"failed":0},"hits":{"total":{"value":1,"relation":"eq"},"max_score":1.0,"hits":[{"_id":"1","_source":{"error":"x","timed_out":true,"id":9223372036854775807,"a":1,"a":2}}]}}`
	goodCount  = `{"count":7,"_shards":{"total":2,"successful":2,"skipped":0,"failed":0}}`
)

func answerHeader(lines ...string) *wire.Header {
	h := &wire.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.AddString(name, value)
	}
	return h
}

func TestCompleteBody(t *testing.T) {
	h := answerHeader("content-type: application/json; charset=UTF-8", "content-length: 7")
	f := func(api string, terminateAfter bool, body string, want Reason) {
		t.Helper()
		if ok, why := Complete(api, &Verdict{TerminateAfter: terminateAfter}, 200, h, []byte(body)); why != want || ok != (want == "") {
			t.Errorf("%.200s: got %v %q, want %q", body, ok, why, want)
		}
	}
	search := func(members string, want Reason) {
		t.Helper()
		f("search", false, "{"+members+"}", want)
	}
	const shards = `"_shards":{"total":2,"successful":2,"skipped":0,"failed":0}`
	const fine = `"timed_out":false,` + shards

	f("search", false, goodSearch, "")
	f("search", false, " \n"+goodSearch+"\r\n", "")
	f("count", false, goodCount, "")
	search(fine, "")
	search(`"timed_out" : false , `+shards+` , "hits" : { } `, "")
	search(`"timed_out":false,"_shards":{"total":0,"successful":0,"skipped":0,"failed":0}`, "")
	search(`"timed_out":true,`+shards, ReasonTimedOut)
	search(`"timed_out":"false",`+shards, ReasonTimedOut)
	search(shards, ReasonTimedOut)
	search(`"timed_out":false`, ReasonShards)
	search(`"timed_out":false,"_shards":{"total":2,"successful":1,"skipped":0,"failed":1}`, ReasonShards)
	search(`"timed_out":false,"_shards":{"total":2,"successful":1,"skipped":0,"failed":0}`, ReasonShards)
	search(`"timed_out":false,"_shards":{"total":2,"successful":2}`, ReasonShards)
	search(`"timed_out":false,"_shards":{"failed":0}`, ReasonShards)
	search(`"timed_out":false,"_shards":{"total":2,"successful":2,"failed":0,"failed":1}`, ReasonShards)
	search(`"timed_out":false,"_shards":{"total":2,"successful":2,"failed":0,"failures":[{}]}`, ReasonShards)
	search(`"timed_out":false,"_shards":{"total":-1,"successful":-1,"failed":0}`, ReasonShards)
	search(`"timed_out":false,"_shards":null`, ReasonShards)
	search(fine+`,"terminated_early":true`, ReasonEndedEarly)
	search(fine+`,"terminated_early":false`, "")
	f("search", true, `{`+fine+`,"terminated_early":true}`, "")
	f("search", true, `{`+fine+`,"terminated_early":null}`, ReasonEndedEarly)
	search(fine+`,"error":{}`, ReasonError)
	search(fine+`,"_scroll_id":"a"`, ReasonCursor)
	search(fine+`,"pit_id":"a"`, ReasonCursor)
	search(fine+`,"profile":{}`, ReasonProfile)
	search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0}`, "")
	search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0,"running":0,"partial":0,"failed":0,"details":{"a":{"status":"successful"}}}`, "")
	search(fine+`,"_clusters":{"total":2,"successful":1,"skipped":1}`, ReasonClusters)
	search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0,"partial":1}`, ReasonClusters)
	search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0,"running":1}`, ReasonClusters)
	search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0,"failed":1}`, ReasonClusters)
	search(fine+`,"_clusters":{"total":2,"successful":1}`, ReasonClusters)
	search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0,"unheard_of":1}`, ReasonClusters)
	search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0,"details":[]}`, ReasonClusters)
	details := func(one string, want Reason) {
		t.Helper()
		search(fine+`,"_clusters":{"total":2,"successful":2,"skipped":0,"running":0,"partial":0,"failed":0,"details":{"(local)":{"status":"successful"},"a":`+one+`}}`, want)
	}
	const three = `"_shards":{"total":3,"successful":3,"skipped":1,"failed":0}`
	details(`{"status":"successful","indices":"i*","took":7,"timed_out":false,`+three+`}`, "")
	details(`{"status":"successful","indices":"i*","took":7,"timed_out":false,"failures":[],`+three+`}`, "")
	details(`{"status":"successful","timed_out":true,`+three+`}`, ReasonClusters)
	details(`{"status":"successful","timed_out":false,"_shards":{"total":3,"successful":2,"skipped":0,"failed":1}}`, ReasonClusters)
	details(`{"status":"successful","timed_out":false,"_shards":{"total":3,"successful":2,"skipped":0,"failed":0}}`, ReasonClusters)
	details(`{"status":"successful","failures":[{"shard":0}],`+three+`}`, ReasonClusters)
	details(`{"status":"successful","is_partial":true,`+three+`}`, ReasonClusters)
	for _, status := range []string{"partial", "skipped", "failed", "running", ""} {
		details(`{"status":"`+status+`","timed_out":false,`+three+`}`, ReasonClusters)
	}
	details(`{"timed_out":false,`+three+`}`, ReasonClusters)
	details(`{"status":"successful","status":"partial"}`, ReasonClusters)
	details(`{"status":"successful","timed\u005fout":true}`, ReasonClusters)
	details(`"successful"`, ReasonClusters)
	search(fine+`,"timed_out":false`, ReasonMalformed)
	search(fine+`,"timed\u005fout":true`, ReasonMalformed)
	f("search", false, `{"error":{"type":"x"},"status":404}`, ReasonError)

	f("count", false, `{"_shards":{"total":1,"successful":1,"failed":0}}`, ReasonMalformed)
	f("count", false, `{"count":"7","_shards":{"total":1,"successful":1,"failed":0}}`, ReasonMalformed)
	f("count", false, `{"count":7}`, ReasonShards)
	f("count", false, `{"count":7,"terminated_early":true,"_shards":{"total":1,"successful":1,"failed":0}}`, ReasonEndedEarly)

	f("search", false, ``, ReasonMalformed)
	f("search", false, `<html></html>`, ReasonMalformed)
	f("search", false, `[]`, ReasonMalformed)
	f("search", false, goodSearch+"{}", ReasonMalformed)
	f("search", false, goodSearch+"\x00", ReasonMalformed)
	f("search", false, strings.Replace(goodSearch, `"a":1`, `"a":NaN`, 1), ReasonMalformed)
	f("search", false, `{`+fine+`,"a":`+strings.Repeat("[", 2000)+strings.Repeat("]", 2000)+`}`, ReasonMalformed)
	f("search", false, `{`+fine+`,"a":`+strings.Repeat("[", 900)+strings.Repeat("]", 900)+`}`, "")
	for i := range goodSearch {
		if ok, _ := Complete("search", &Verdict{}, 200, h, []byte(goodSearch[:i])); ok {
			t.Fatalf("broken off after %d bytes: complete", i)
		}
	}
}

func TestCompleteHeader(t *testing.T) {
	f := func(status int, want Reason, lines ...string) {
		t.Helper()
		if ok, why := Complete("search", &Verdict{}, status, answerHeader(lines...), []byte(goodSearch)); why != want || ok != (want == "") {
			t.Errorf("%d %q: got %v %q, want %q", status, lines, ok, why, want)
		}
	}
	const json = "Content-Type: application/json"
	f(200, "", json)
	f(200, "", "content-type: application/vnd.elasticsearch+json;compatible-with=8")
	f(200, "", json, "Vary: Accept-Encoding", "Warning: 299 x", "Cache-Control: max-age=5", "X-Opaque-Id: 1")
	for _, status := range []int{0, 201, 206, 301, 304, 400, 401, 404, 429, 500, 503} {
		f(status, ReasonStatus, json)
	}
	f(200, ReasonContentType)
	f(200, ReasonContentType, "Content-Type: text/html")
	f(200, ReasonContentType, "Content-Type: application/yaml")
	f(200, ReasonContentType, json, json)
	f(200, ReasonContentCoding, json, "Content-Encoding: gzip")
	f(200, ReasonSetCookie, json, "Set-Cookie: a=b")
	f(200, ReasonCacheControl, json, "Cache-Control: max-age=1, No-Store")
	f(200, ReasonCacheControl, json, `Cache-Control: private="x"`)
	f(200, ReasonCacheControl, json, `Cache-Control: no-cache`)
	f(200, ReasonVary, json, "Vary: Accept-Encoding, *")
	f(200, ReasonVary, json, "Vary: User-Agent")

	// What is no longer fresh when it comes is not kept.
	for _, line := range []string{"max-age=0", "public, MAX-AGE=\"0\"", "max-age = 0", "s-maxage=0", "max-age=60, s-maxage=0", "max-age=5, max-age=0", "max-age", "max-age=-1", "max-age=soon"} {
		f(200, ReasonCacheControl, json, "Cache-Control: "+line)
	}
	f(200, ReasonCacheControl, json, "Cache-Control: max-age=5", "Cache-Control: max-age=0")
	f(200, "", json, "Cache-Control: max-age=0", "Cache-Control: s-maxage=5")
	f(200, "", json, "Cache-Control: must-revalidate, max-age=1")
	const date = "Date: Mon, 01 Jan 2024 00:00:00 GMT"
	f(200, ReasonCacheControl, json, "Expires: 0")
	f(200, ReasonCacheControl, json, date, "Expires: Mon, 01 Jan 2024 00:00:00 GMT")
	f(200, ReasonCacheControl, json, date, "Expires: Thu, 01 Jan 1970 00:00:01 GMT")
	f(200, "", json, date, "Expires: Mon, 01 Jan 2024 00:00:05 GMT")
	f(200, "", json, date, "Expires: 0", "Cache-Control: max-age=5")
}

func TestAge(t *testing.T) {
	f := func(want time.Duration, lines ...string) {
		t.Helper()
		if got := Age(answerHeader(lines...)); got != want {
			t.Errorf("%q: %s, want %s", lines, got, want)
		}
	}
	f(0)
	f(0, "Age: 0")
	f(1000*time.Second, "AGE: 1000")
	f(0, "Age: -5")
	f(0, "Age: old")
}

// OpenSearch 3 says terminated_early of aggregations that it took from the structure of the index.
func TestCompletePrecomputed(t *testing.T) {
	f := func(request, header string, want Reason) {
		t.Helper()
		_, v := newTestKeyer(t, Options{}).Key(ask(request))
		if v.Bypass != "" {
			t.Fatal(v.Bypass)
		}
		body := strings.Replace(goodSearch, `"timed_out":false`, `"timed_out":false,"terminated_early":true`, 1)
		if _, why := Complete("search", &v, 200, answerHeader("Content-Type: application/json", header), []byte(body)); why != want {
			t.Errorf("%s from %s: %q, want %q", request, header, why, want)
		}
	}
	const three, two = "X-OpenSearch-Version: OpenSearch/3.9.0 (opensearch)", "X-elastic-product: Elasticsearch"
	f(`POST search logs {"size":0,"aggs":{"a":{"terms":{"field":"k"}}}}`, three, "")
	f(`POST search logs?size=0 {"aggregations":{"a":{"terms":{"field":"k"}}}}`, three, "")
	f(`POST search logs {"size":0,"aggs":{"a":{"terms":{"field":"k"}}}}`, two, ReasonEndedEarly)
	f(`POST search logs {"size":1,"aggs":{"a":{"terms":{"field":"k"}}}}`, three, ReasonEndedEarly)
	f(`POST search logs?size=1 {"size":0,"aggs":{"a":{"terms":{"field":"k"}}}}`, three, ReasonEndedEarly)
	f(`POST search logs {"size":0,"query":{"term":{"aggs":1}}}`, three, ReasonEndedEarly)
	f(`POST search logs {"size":0}`, three, ReasonEndedEarly)
	// Here it may end early because that was asked for: kept, for its time only.
	f(`POST search logs?terminate_after=9 {"size":0,"aggs":{"a":{"terms":{"field":"k"}}}}`, two, "")
}

func TestCompleteAllocs(t *testing.T) {
	h := answerHeader("Content-Type: application/json; charset=UTF-8", "Vary: Accept-Encoding", "Cache-Control: max-age=5")
	body := []byte(goodSearch)
	if n := testing.AllocsPerRun(100, func() { Complete("search", &Verdict{}, 200, h, body) }); n != 0 {
		t.Errorf("%v allocations an answer", n)
	}
}

func BenchmarkComplete(b *testing.B) {
	h := answerHeader("Content-Type: application/json; charset=UTF-8")
	hit := `{"_index":"logs","_id":"abcdefgh","_score":1.0,"_source":{"@timestamp":"2024-01-01T00:00:00Z","message":"` + strings.Repeat("GET /index.html 200 ", 20) + `","n":[1,2,3]}},`
	body := []byte(strings.Replace(goodSearch, `"hits":[`, `"hits":[`+strings.Repeat(hit, 200), 1))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if ok, why := Complete("search", &Verdict{}, 200, h, body); !ok {
			b.Fatal(why)
		}
	}
}

// Whatever passes the gate is whole JSON in which encoding/json reads the same as the gate did.
func FuzzComplete(f *testing.F) {
	for _, seed := range []string{
		goodSearch, goodCount, goodSearch[:len(goodSearch)-1], goodSearch + "{}", `{}`, `{"timed_out":false,"_shards":{"total":1,"successful":0,"failed":1}}`,
		`{"timed_out":true,"_shards":{"total":0,"successful":0,"failed":0}}`, `{"_clusters":{"total":1,"skipped":1}}`, "\xef\xbb\xbf{}",
	} {
		f.Add([]byte(seed))
	}
	h := answerHeader("Content-Type: application/json")
	f.Fuzz(func(t *testing.T, body []byte) {
		ok, why := Complete("search", &Verdict{}, 200, h, body)
		if ok != (why == "") {
			t.Fatalf("%v %q", ok, why)
		}
		if !ok {
			return
		}
		exact := map[string]json.RawMessage{}
		if err := json.Unmarshal(body, &exact); err != nil {
			t.Fatalf("passed, but %v", err)
		}
		shards := map[string]json.RawMessage{}
		if err := json.Unmarshal(exact["_shards"], &shards); err != nil {
			t.Fatalf("passed, but _shards: %v", err)
		}
		if exact["error"] != nil || string(exact["timed_out"]) != "false" ||
			string(shards["failed"]) != "0" || string(shards["total"]) != string(shards["successful"]) {
			t.Fatalf("passed: %s", body)
		}
	})
}
