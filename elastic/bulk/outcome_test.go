package bulk

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOutcomes(t *testing.T) {
	// As Elasticsearch 7.17 answers, with pretty.
	const answer = `{
  "took" : 2,
  "errors" : true,
  "items" : [
    { "create" : { "_index" : "b", "_type" : "_doc", "_id" : "1", "status" : 409, "error" : {
      "type" : "version_conflict_engine_exception", "reason" : "[1]: version conflict", "index" : "b" } } },
    { "index" : { "_index" : "B", "_id" : null, "status" : 400, "error" : {
      "type" : "invalid_index_name_exception", "reason" : "Invalid index name [B]", "caused_by" : { "type" : "x" } } } },
    { "delete" : { "_index" : "b", "_id" : "9", "result" : "not_found", "status" : 404 } },
    { "update" : { "_index" : "b", "_id" : "2", "status" : 429, "error" : "rejected" } }
  ]
}`
	got, err := Outcomes([]byte(answer), 4)
	if err != nil {
		t.Fatal(err)
	}
	want := []Outcome{
		{409, "b", "1", "version_conflict_engine_exception", "[1]: version conflict"},
		{400, "B", "", "invalid_index_name_exception", "Invalid index name [B]"},
		{404, "b", "9", "", ""},
		{429, "b", "2", "exception", "rejected"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestOutcomesWithoutErrorsFlag(t *testing.T) {
	got, err := Outcomes([]byte(`{"items":[{"index":{"status":429}}]}`), 1)
	if err != nil || len(got) != 1 || got[0].Status != 429 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestOutcomesRefusesWhatDoesNotTell(t *testing.T) {
	f := func(answer string, n int) {
		t.Helper()
		if got, err := Outcomes([]byte(answer), n); err == nil || got != nil {
			t.Errorf("%q: %v, %v, want an error", answer, got, err)
		}
	}
	f(``, 0)
	f("\x1f\x8b\x08", 1) // gzip
	f(`{"took":1,"errors":false,"items":[{"index":{"status":201}}`, 1)
	f(`{"took":1}`, 1)
	f(`{"error":{"type":"x"},"status":503}`, 2)
	f(`{"items":[{"index":{"status":201}}]}`, 2)
	f(`{"items":[{"index":{"status":201}},{"index":{"status":201}}]}`, 1)
	f(`{"items":[{"index":{"_id":"1"}}]}`, 1)
	f(`{"items":[{}]}`, 1)
	f(`{"items":[{"index":{"status":201},"create":{"status":201}}]}`, 1)
	f(`{"items":[7]}`, 1)
}

func TestKind(t *testing.T) {
	f := func(v Verb, status int, errorType string, want Kind) {
		t.Helper()
		o := Outcome{Status: status, ErrorType: errorType}
		if got := o.Kind(v); got != want {
			t.Errorf("%s %d %s is %s, want %s", v, status, errorType, got, want)
		}
	}
	f(Index, 200, "", Stored)
	f(Index, 201, "", Stored)
	f(Delete, 404, "", Stored)
	f(Delete, 404, "index_not_found_exception", Rejected)
	f(Update, 404, "", Rejected)
	f(Create, 409, "version_conflict_engine_exception", Duplicate)
	f(Index, 409, "version_conflict_engine_exception", Rejected)
	f(Delete, 409, "version_conflict_engine_exception", Rejected)
	f(Index, 429, "es_rejected_execution_exception", Retry)
	f(Create, 503, "unavailable_shards_exception", Retry)
	f(Index, 500, "", Retry)
	f(Index, 400, "mapper_parsing_exception", Rejected)
	f(Index, 403, "cluster_block_exception", Rejected)
	f(Index, 302, "", Rejected)
}

func FuzzOutcomes(f *testing.F) {
	f.Add([]byte(`{"items":[{"index":{"_index":"b","_id":"1","status":201}}]}`), 1)
	f.Add([]byte(`{"items":[{"create":{"status":409,"error":"x"}}]}`), 1)
	f.Add([]byte(`{"items":null}`), 0)
	f.Fuzz(func(t *testing.T, answer []byte, n int) {
		got, err := Outcomes(answer, n)
		if err == nil && len(got) != n {
			t.Errorf("%d outcomes for %d actions", len(got), n)
		}
		for _, o := range got {
			if o.Status == 0 {
				t.Errorf("no status in %+v", o)
			}
		}
	})
}
