package estest_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
)

var noon = time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)

// visible returns how many documents a search finds.
func visible(t testing.TB, cl *client) float64 {
	t.Helper()
	n, _ := cl.do("GET", "/i/_count", "").get(t, "count").(float64)
	return n
}

func refreshes(t testing.TB, cl *client) float64 {
	t.Helper()
	n, _ := cl.do("GET", "/i/_stats/refresh", "").get(t, "indices", "i", "primaries", "refresh", "external_total").(float64)
	return n
}

func TestDocumentsAreVisibleAfterTheInterval(t *testing.T) {
	clock := estest.NewManualClock(noon)
	_, cl := start(t, estest.Options{Clock: clock})
	cl.do("PUT", "/i/_doc/1", `{"a":1}`)
	clock.Advance(999 * time.Millisecond)
	if n := visible(t, cl); n != 0 {
		t.Errorf("%v documents before the interval", n)
	}
	if r := cl.do("GET", "/i/_doc/1", ""); r.status != 200 {
		t.Errorf("realtime get: status %d", r.status)
	}
	clock.Advance(time.Millisecond)
	if n := visible(t, cl); n != 1 {
		t.Errorf("%v documents after the interval", n)
	}
}

func TestDocumentsAreVisibleWhenAskedFor(t *testing.T) {
	f := func(target string, want float64) {
		t.Helper()
		_, cl := start(t, estest.Options{RefreshInterval: -1})
		cl.do("PUT", target, `{"a":1}`)
		if n := visible(t, cl); n != want {
			t.Errorf("%s: %v documents, want %v", target, n, want)
		}
		cl.do("POST", "/i/_refresh", "")
		if n := visible(t, cl); n != 1 {
			t.Errorf("%s: %v documents after _refresh", target, n)
		}
	}
	f("/i/_doc/1", 0)
	f("/i/_doc/1?refresh=false", 0)
	f("/i/_doc/1?refresh", 1)
	f("/i/_doc/1?refresh=true", 1)
	f("/i/_doc/1?refresh=wait_for", 1)
}

func TestRefreshIntervalOfAnIndex(t *testing.T) {
	clock := estest.NewManualClock(noon)
	_, cl := start(t, estest.Options{Clock: clock})
	cl.do("PUT", "/i", `{"settings":{"refresh_interval":"10s"}}`)
	cl.do("PUT", "/i/_doc/1", `{"a":1}`)
	clock.Advance(9 * time.Second)
	if n := visible(t, cl); n != 0 {
		t.Errorf("%v documents before the interval", n)
	}
	cl.do("PUT", "/i/_settings", `{"index.refresh_interval":"-1"}`)
	clock.Advance(time.Hour)
	if n := visible(t, cl); n != 0 {
		t.Errorf("%v documents without refreshes", n)
	}
}

// An index that nobody searches stops to refresh, so that the counter stands still although documents come
// (index.search.idle.after); the sequence number moves, and the search that wakes the index sees everything.
func TestIdleIndexDoesNotRefresh(t *testing.T) {
	clock := estest.NewManualClock(noon)
	_, cl := start(t, estest.Options{Clock: clock})
	cl.do("PUT", "/i", "")
	visible(t, cl)
	clock.Advance(time.Minute)
	before := refreshes(t, cl)
	cl.do("PUT", "/i/_doc/1", `{"a":1}`)
	clock.Advance(time.Minute)
	if got := refreshes(t, cl); got != before {
		t.Errorf("refreshes went from %v to %v without a search", before, got)
	}
	if r := cl.do("GET", "/i/_stats?level=shards", ""); !strings.Contains(r.body, `"max_seq_no":0`) {
		t.Errorf("statistics %s", r.body)
	}
	if n := visible(t, cl); n != 1 {
		t.Errorf("%v documents", n)
	}
	if got := refreshes(t, cl); got != before+1 {
		t.Errorf("refreshes went from %v to %v with a search", before, got)
	}
}

func TestRefreshThatIsAskedForCountsWithoutChanges(t *testing.T) {
	_, cl := start(t, estest.Options{})
	cl.do("PUT", "/i", "")
	before := refreshes(t, cl)
	cl.do("POST", "/i/_refresh", "")
	if got := refreshes(t, cl); got != before+1 {
		t.Errorf("refreshes went from %v to %v", before, got)
	}
}

func TestStatsListCopiesOnNodes(t *testing.T) {
	c, cl := start(t, estest.Options{Nodes: 2})
	cl.do("PUT", "/i", `{"settings":{"number_of_shards":2,"number_of_replicas":1}}`)
	shards := cl.do("GET", "/i/_stats?level=shards", "").get(t, "indices", "i", "shards").(map[string]any)
	copies := shards["0"].([]any)
	nodes := map[any]bool{}
	for _, one := range copies {
		nodes[one.(map[string]any)["routing"].(map[string]any)["node"]] = true
	}
	if len(shards) != 2 || len(copies) != 2 || !nodes[c.Node(0).ID()] || !nodes[c.Node(1).ID()] {
		t.Errorf("shards %v", shards)
	}
	c.Node(1).Stop()
	if r := cl.do("GET", "/_cluster/health", ""); r.get(t, "status") != "yellow" || r.get(t, "unassigned_shards") != 2.0 {
		t.Errorf("health %s", r.body)
	}
}

func TestScrollGivesEachDocumentOnce(t *testing.T) {
	clock := estest.NewManualClock(noon)
	_, cl := start(t, estest.Options{Clock: clock})
	for body := range estest.Sample("i", 25, 1, noon) {
		cl.do("POST", "/_bulk?refresh=true", string(body))
	}
	r := cl.do("POST", "/i/_search?scroll=1m&size=10", `{"sort":["_doc"]}`)
	seen := map[string]bool{}
	id := ""
	for page := range 10 {
		hits := r.get(t, "hits", "hits").([]any)
		for _, h := range hits {
			seen[h.(map[string]any)["_id"].(string)] = true
		}
		id = r.get(t, "_scroll_id").(string)
		if len(hits) == 0 {
			break
		}
		if page == 0 { // what is written now is not in the cursor
			cl.do("PUT", "/i/_doc/late?refresh=true", `{"service":"cart"}`)
		}
		clock.Advance(59 * time.Second)
		r = cl.do("POST", "/_search/scroll", `{"scroll":"1m","scroll_id":"`+id+`"}`)
	}
	if len(seen) != 25 {
		t.Errorf("%d documents", len(seen))
	}
	clock.Advance(61 * time.Second)
	if r := cl.do("POST", "/_search/scroll", `{"scroll":"1m","scroll_id":"`+id+`"}`); r.status != 404 || !strings.Contains(r.body, "search_context_missing_exception") {
		t.Errorf("after the time-out: %d %s", r.status, r.body)
	}
}

func TestUsers(t *testing.T) {
	c, anonymous := start(t, estest.Options{Users: []estest.User{
		{Name: "root", Password: "secret", Roles: []string{"superuser"}},
		{Name: "de", Password: "secret", Filter: `{"term":{"country":"DE"}}`},
	}})
	as := func(name string) *client {
		return &client{t: t, http: anonymous.http, url: c.URL(), user: [2]string{name, "secret"}}
	}
	root, de := as("root"), as("de")
	if r := anonymous.do("GET", "/", ""); r.status != 401 || r.header.Get("Www-Authenticate") == "" {
		t.Errorf("without a name: %d, %v", r.status, r.header)
	}
	if r := as("nobody").do("GET", "/", ""); r.status != 401 || !strings.Contains(r.body, "unable to authenticate user [nobody]") {
		t.Errorf("unknown name: %d %s", r.status, r.body)
	}
	if r := de.do("GET", "/_security/_authenticate", ""); r.get(t, "username") != "de" {
		t.Errorf("who am I: %s", r.body)
	}
	root.do("PUT", "/i", `{"mappings":{"properties":{"country":{"type":"keyword"}}}}`)
	root.do("PUT", "/i/_doc/1?refresh=true", `{"country":"DE"}`)
	root.do("PUT", "/i/_doc/2?refresh=true", `{"country":"FR"}`)
	if all, some := visible(t, root), visible(t, de); all != 2 || some != 1 {
		t.Errorf("root sees %v, the other %v", all, some)
	}
	if r := de.do("GET", "/i/_doc/2", ""); r.status != 404 {
		t.Errorf("the filtered document: %d", r.status)
	}
}

func TestDateMathGoesByTheClock(t *testing.T) {
	clock := estest.NewManualClock(noon)
	_, cl := start(t, estest.Options{Clock: clock})
	cl.do("PUT", "/i/_doc/1?refresh=true", `{"at":"2026-03-05T11:30:00Z"}`)
	f := func(gte, lt string, want float64) {
		t.Helper()
		r := cl.do("POST", "/i/_count", `{"query":{"range":{"at":{"gte":"`+gte+`","lt":"`+lt+`"}}}}`)
		if got := r.get(t, "count"); got != want {
			t.Errorf("[%s, %s): %v, want %v", gte, lt, got, want)
		}
	}
	f("now-1h", "now", 1)
	f("now-15m", "now", 0)
	f("now/d", "now/h", 1)
	f("now-1d/d", "now/d", 0)
	f("now-1M/M", "now+1M/M", 1)
	clock.Advance(2 * time.Hour)
	f("now-1h", "now", 0)
}

// OpenSearch 3.9 says terminated_early for complete answers of aggregations over all documents; the others do not.
func TestTerminatedEarlyOfOpenSearch3(t *testing.T) {
	f := func(flavor estest.Flavor, body string, want any) {
		t.Helper()
		_, cl := start(t, estest.Options{Flavor: flavor})
		cl.do("PUT", "/i/_doc/1?refresh=true", `{"n":1}`)
		if got := cl.do("POST", "/i/_search", body).get(t, "terminated_early"); got != want {
			t.Errorf("%s, %s: %v, want %v", flavor, body, got, want)
		}
	}
	const aggs = `"aggs":{"s":{"sum":{"field":"n"}}}`
	f(estest.OpenSearch3, `{"size":0,`+aggs+`}`, true)
	f(estest.OpenSearch3, `{"size":1,`+aggs+`}`, nil)
	f(estest.OpenSearch3, `{"size":0,"query":{"exists":{"field":"n"}},`+aggs+`}`, nil)
	f(estest.OpenSearch2, `{"size":0,`+aggs+`}`, nil)
	f(estest.Elasticsearch7, `{"size":0,`+aggs+`}`, nil)
}

func TestClusterStateVersionMovesWithMetadata(t *testing.T) {
	_, cl := start(t, estest.Options{})
	version := func() any { return cl.do("GET", "/_cluster/state/version", "").get(t, "version") }
	cl.do("PUT", "/i/_doc/1", `{"a":1}`)
	before := version()
	cl.do("PUT", "/i/_doc/2", `{"a":2}`)
	if got := version(); got != before {
		t.Errorf("version went from %v to %v by a document", before, got)
	}
	cl.do("PUT", "/i/_doc/3", `{"b":2}`)
	if got := version(); got == before {
		t.Error("version stood still at a new field")
	}
}

func TestTemplatesApplyByPriority(t *testing.T) {
	_, cl := start(t, estest.Options{})
	cl.do("PUT", "/_template/old", `{"index_patterns":["log*"],"settings":{"number_of_shards":5}}`)
	cl.do("PUT", "/_index_template/low", `{"index_patterns":["*"],"priority":1,"template":{"settings":{"number_of_shards":2}}}`)
	cl.do("PUT", "/_index_template/high", `{"index_patterns":["log-*"],"priority":9,"template":{"settings":{"index.number_of_shards":3},"mappings":{"properties":{"a":{"type":"keyword"}}},"aliases":{"logs":{}}}}`)
	cl.do("PUT", "/log-1/_doc/1?refresh=true", `{"a":5}`)
	r := cl.do("GET", "/logs", "")
	if got := r.get(t, "log-1", "settings", "index", "number_of_shards"); got != "3" {
		t.Errorf("shards %v", got)
	}
	if got := r.get(t, "log-1", "mappings", "properties", "a", "type"); got != "keyword" {
		t.Errorf("type %v", got)
	}
}

func TestSampleIsTheSameEachTime(t *testing.T) {
	var first, second bytes.Buffer
	n := 0
	for body := range estest.Sample("shop", 1200, 7, noon) {
		first.Write(body)
		n++
	}
	for body := range estest.Sample("shop", 1200, 7, noon) {
		second.Write(body)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) || n != 3 {
		t.Errorf("%d bodies, equal: %v", n, bytes.Equal(first.Bytes(), second.Bytes()))
	}
	for line := range bytes.Lines(first.Bytes()) {
		if !json.Valid(line) {
			t.Fatalf("line %q", line)
		}
	}
}

func TestSampleFillsAnIndex(t *testing.T) {
	_, cl := start(t, estest.Options{})
	load(t, cl, 1000)
	r := cl.do("POST", "/shop/_search", `{"size":0,"aggs":{"h":{"date_histogram":{"field":"@timestamp","fixed_interval":"1h"}},"s":{"terms":{"field":"service"}}}}`)
	if total := r.get(t, "hits", "total", "value"); total != 1000.0 {
		t.Errorf("total %v", total)
	}
	if n := len(r.get(t, "aggregations", "h", "buckets").([]any)); n < 24 || n > 25 {
		t.Errorf("%d hours", n)
	}
	if n := len(r.get(t, "aggregations", "s", "buckets").([]any)); n != 6 {
		t.Errorf("%d services", n)
	}
}

func load(t testing.TB, cl *client, n int) {
	t.Helper()
	if r := cl.do("PUT", "/shop", estest.SampleIndex); r.status != 200 {
		t.Fatal(r.body)
	}
	for body := range estest.Sample("shop", n, 1, noon) {
		if r := cl.do("POST", "/_bulk?refresh=true", string(body)); r.get(t, "errors") != false {
			t.Fatal(r.body)
		}
	}
}

// A demonstration is to feel quick: both should take less than 10 ms on a machine with nothing else to do.
func BenchmarkSearch5000(b *testing.B) {
	_, cl := start(b, estest.Options{})
	load(b, cl, 5000)
	for name, body := range map[string]string{
		"dashboard": `{"size":0,"query":{"bool":{"filter":{"range":{"@timestamp":{"gte":"2026-03-04T12:00:00Z"}}}}},
			"aggs":{"h":{"date_histogram":{"field":"@timestamp","fixed_interval":"1h"},"aggs":{"l":{"avg":{"field":"latency_ms"}}}}}}`,
		"words": `{"size":10,"query":{"query_string":{"query":"product OR order"}},"sort":[{"latency_ms":"desc"}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if r := cl.do("POST", "/shop/_search", body); r.status != 200 {
					b.Fatal(r.body)
				}
			}
		})
	}
}
