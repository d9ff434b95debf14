package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic/go-elasticsearch/v8"
	"github.com/elastic/go-elasticsearch/v8/esutil"

	"weir/elastic/estest"
)

// newQueueSite makes a site that takes writes into a queue, and makes them from there.
func newQueueSite(tb testing.TB, cluster string) *site {
	tb.Helper()
	return newPlainSite(tb, cluster, "      - queue: {queue_name: writes}\n", add(`pipeline: [{name: writes, queue_consumer: {input_queue: writes, flow: main}}]
queue: {reserve: 0}
`))
}

// Whoever was told that its write is taken finds it in the cluster, once, although the gateway was killed and the cluster was
// away for a while.
func TestKillLosesNoQueuedWrite(t *testing.T) {
	rounds := soak(2, 20)
	c := estest.New(t, estest.Options{})
	s := newQueueSite(t, c.URL())
	client := newClient(t)
	for round := range rounds {
		index := fmt.Sprint("queued-", round)
		request := func(n int) string {
			body := fmt.Sprintf(`{"n":%d}`, n)
			target := fmt.Sprintf("POST /%s/_doc", index) // the id is the gateway's to give
			if n%2 == 1 {
				target, body = "POST /"+index+"/_bulk", "{\"index\":{}}\n"+body+"\n"
			}
			return fmt.Sprintf("%s HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", target, len(body), body)
		}
		g := s.start()
		l := startLoad(t, s.addr, 16, 20*time.Millisecond, request)
		l.last(300 * time.Millisecond)
		away := c.Inject(estest.Fault{Method: http.MethodPost, Match: func(c *estest.Call) bool { return c.Path != "/"+index+"/_search" }, Status: http.StatusServiceUnavailable})
		l.last(500 * time.Millisecond)
		if round%2 == 1 {
			away.Remove() // it is killed in the middle of delivering
		}
		l.last(100 * time.Millisecond)
		g.kill()
		shots := l.stop()
		away.Remove()
		g = s.start()
		g.awaitEmptyQueue()
		g.stop()

		stored := map[int]int{}
		must(t, client, http.MethodPost, c.URL()+"/"+index+"/_refresh", "")
		a := must(t, client, http.MethodPost, c.URL()+"/"+index+"/_search", `{"size":10000,"track_total_hits":true}`)
		var found struct {
			Hits struct {
				Hits []struct {
					Source struct{ N int } `json:"_source"`
				}
			}
		}
		if err := json.Unmarshal(a.body, &found); err != nil {
			t.Fatal(err)
		}
		for _, h := range found.Hits.Hits {
			stored[h.Source.N]++
		}
		taken := 0
		for _, shot := range shots {
			acknowledged := shot.err == nil && shot.status/100 == 2
			if n := stored[shot.n]; n > 1 || acknowledged && n == 0 {
				t.Errorf("round %d: write %d (status %d, %v) is stored %d times", round, shot.n, shot.status, shot.err, n)
			}
			if acknowledged {
				taken++
			}
		}
		if taken < 100 {
			t.Errorf("round %d: only %d writes were taken: the test shows little", round, taken)
		}
	}
}

// A client takes what the gateway answers for a queued bulk as it would take a node's answer: it neither fails nor sends again, which
// would store its documents twice, as they have no ids (fluent/fluent-bit#5123, rsyslog/rsyslog#4127). It asks in the way of
// version 8, for which Elasticsearch is particular.
func TestQueuedBulksOfAClient(t *testing.T) {
	const documents = 2000
	c := estest.New(t, estest.Options{Flavor: estest.Elasticsearch8})
	g := newQueueSite(t, c.URL()).start()
	client, err := elasticsearch.NewClient(elasticsearch.Config{
		Addresses: []string{g.url}, Transport: g.client.Transport, EnableCompatibilityMode: true, CompressRequestBody: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var failures atomic.Int64
	indexer, err := esutil.NewBulkIndexer(esutil.BulkIndexerConfig{
		Client: client, Index: "shipped", NumWorkers: 4, FlushBytes: 10_000, OnError: func(_ context.Context, err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for n := range documents {
		if err := indexer.Add(t.Context(), esutil.BulkIndexerItem{
			Action: "index", Body: strings.NewReader(fmt.Sprintf(`{"n":%d}`, n)),
			OnFailure: func(context.Context, esutil.BulkIndexerItem, esutil.BulkIndexerResponseItem, error) { failures.Add(1) },
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := indexer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := indexer.Stats(); s.NumFlushed != documents || s.NumFailed+uint64(failures.Load()) > 0 {
		t.Errorf("the client counts %+v", s)
	}
	g.awaitEmptyQueue()
	must(t, g.client, http.MethodPost, c.URL()+"/shipped/_refresh", "")
	if a := must(t, g.client, http.MethodGet, c.URL()+"/shipped/_count", ""); !strings.Contains(string(a.body), fmt.Sprintf(`"count":%d,`, documents)) {
		t.Errorf("stored: %s", a.body)
	}
}

// The memory of a request is used for others as soon as it is answered. Each of many bulks at once has a marker of its own and
// a length of its own, and what is stored has one marker only (valyala/fasthttp#325, #576).
func TestQueuedWritesDoNotMix(t *testing.T) {
	c := estest.New(t, estest.Options{})
	s := newQueueSite(t, c.URL())
	g := s.start()
	const clients, each = 20, 50
	text := func(n int) string { return strings.Repeat(fmt.Sprintf("m%04d", n), 1+n%400) }
	var work sync.WaitGroup
	for client := range clients {
		work.Go(func() {
			for i := range each {
				n := client*each + i
				body := fmt.Sprintf("{\"create\":{\"_id\":\"%d\"}}\n{\"n\":%d,\"text\":%q}\n", n, n, text(n))
				a, err := g.ask(t.Context(), http.MethodPost, g.url+"/mixed/_bulk", body)
				if err != nil || a.status != http.StatusOK || !strings.Contains(string(a.body), fmt.Sprintf(`"_id":"%d"`, n)) {
					t.Errorf("bulk %d: %v, status %d: %.200s", n, err, a.status, a.body)
				}
			}
		})
	}
	work.Wait()
	g.awaitEmptyQueue()
	client := newClient(t)
	must(t, client, http.MethodPost, c.URL()+"/mixed/_refresh", "")
	var found struct {
		Hits struct {
			Hits []struct {
				ID     string `json:"_id"`
				Source struct {
					N    int
					Text string
				} `json:"_source"`
			}
		}
	}
	a := must(t, client, http.MethodPost, c.URL()+"/mixed/_search", `{"size":10000}`)
	if err := json.Unmarshal(a.body, &found); err != nil {
		t.Fatal(err)
	}
	for _, h := range found.Hits.Hits {
		if h.ID != strconv.Itoa(h.Source.N) || h.Source.Text != text(h.Source.N) {
			t.Errorf("document %s is number %d with the text %.40q of %d bytes", h.ID, h.Source.N, h.Source.Text, len(h.Source.Text))
		}
	}
	if n := len(found.Hits.Hits); n != clients*each {
		t.Errorf("%d documents are stored, want %d", n, clients*each)
	}
}

// testQueueRefusals sends what nodes refuse as a whole, and what they take, to a node and to the gateway's queue: the queue says the
// same, so that no client is told of a write that cannot be made.
func testQueueRefusals(t *testing.T, cluster string) {
	g := newPlainSite(t, cluster, "      - queue: {queue_name: writes}\n", add("queue: {reserve: 0}\n")).start()
	deleteAll(t, g.client, cluster, "refusals*")
	send := func(base, method, target, media, body string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+target, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if media != "" {
			req.Header.Set("Content-Type", media)
		}
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	refused, taken := 0, 0
	f := func(method, target, media, body string) {
		t.Helper()
		node := send(cluster, method, target, media, body)
		queue := send(g.url, method, target, media, body)
		if node/100 == 2 {
			taken++
		} else {
			refused++
		}
		if node/100 == 2 && queue/100 == 2 || node == queue {
			return
		}
		t.Errorf("%s %s of %s: the node answers %d, the queue %d: %.200s", method, target, media, node, queue, body)
	}
	const ndjson = "application/x-ndjson"
	for _, media := range []string{"text/plain", "", "application/xml", "application/x-json", "application/json", ndjson, "application/JSON;charset=utf-8"} {
		f("POST", "/refusals/_bulk", media, "{\"index\":{\"_id\":\"1\"}}\n{\"x\":1}\n")
		f("PUT", "/refusals/_doc/1", media, `{"x":1}`)
	}
	for _, member := range []string{
		`"a":1`, `"_routing":"a"`, `"a":null`, `"routing":{}`, `"routing":[1]`, `"routing":5`, `"version":"a"`, `"version":7`, `"version_type":"a"`,
		`"if_seq_no":-7`, `"if_seq_no":5`, `"if_primary_term":5`, `"require_alias":"a"`, `"require_alias":"false"`, `"retry_on_conflict":"a"`,
		`"retry_on_conflict":1`, `"op_type":"a"`, `"_source":{}`, `"timeout":"1s"`, `"version":99999999,"version_type":"external"`,
	} {
		f("POST", "/refusals/_bulk", ndjson, "{\"index\":{\"_id\":\"2\","+member+"}}\n{\"x\":1}\n")
		f("POST", "/refusals/_bulk", ndjson, "{\"create\":{\"_id\":\"3\","+member+"}}\n{\"x\":1}\n")
		f("POST", "/refusals/_bulk", ndjson, "{\"update\":{\"_id\":\"1\","+member+"}}\n{\"doc\":{\"x\":2}}\n")
		f("POST", "/refusals/_bulk", ndjson, "{\"delete\":{\"_id\":\"4\","+member+"}}\n")
	}
	for _, body := range []string{`{}`, `{"a":1}`, `{"doc":`, `{"doc":null}`, `{"doc":{"x":3}}`, `{"doc":{},"script":"a"}`, `{"upsert":{}}`, `[]`, `{"script":null}`} {
		f("POST", "/refusals/_update/1", "application/json", body)
		f("POST", "/refusals/_bulk", ndjson, "{\"update\":{\"_id\":\"1\"}}\n"+body+"\n")
	}
	for _, query := range []string{
		"refresh=maybe", "refresh", "timeout=5", "timeout=1S", "timeout=1.5s", "wait_for_active_shards=a", "wait_for_active_shards=0", "require_alias=a",
		"require_alias=false", "pipeline=", "retry_on_conflict=a", "retry_on_conflict=1", "version=a", "version=5", "version_type=a", "if_seq_no=3",
		"if_seq_no=-3", "if_primary_term=3", "_source=true", "doc_as_upsert=true", "pretty=a", "human=true", "lang=a", "routing=1", "op_type=a", "op_type=index",
	} {
		f("POST", "/refusals/_bulk?"+query, ndjson, "{\"index\":{\"_id\":\"1\"}}\n{\"x\":1}\n")
		f("PUT", "/refusals/_doc/1?"+query, "application/json", `{"x":1}`)
		f("POST", "/refusals/_doc?"+query, "application/json", `{"x":1}`)
		if query != "routing=1" { // the document is in one shard only
			f("POST", "/refusals/_update/1?"+query, "application/json", `{"doc":{"x":1}}`)
		}
	}
	long := strings.Repeat("x", 513)
	f("PUT", "/refusals/_doc/"+long, "application/json", `{"x":1}`)
	f("POST", "/refusals/_bulk", ndjson, "{\"index\":{\"_id\":\""+long+"\"}}\n{\"x\":1}\n")
	f("POST", "/refusals/_doc", "application/json", "")
	f("POST", "/refusals/_bulk", ndjson, "")
	f("POST", "/refusals/_bulk", ndjson, "\n")
	if refused < 100 || taken < 50 {
		t.Errorf("the node refuses %d requests and takes %d: the test shows little", refused, taken)
	}
}
