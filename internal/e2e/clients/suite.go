//go:build clients

// Command clients runs go-elasticsearch's 8.x clients through the calls that applications make most, and checks each
// answer.
//
//	suite-go elasticsearch BASE_URL
//
// It is for go-elasticsearch what suite.py and suite.js are for the others: it prints one line of JSON with what was
// seen, and ends with 1 and the reason on standard error at the first mismatch. It stands behind a build tag, and is a
// program of its own, because it brings the typed API with it, which takes minutes and 1.5 GB to compile under the race
// detector. go-elasticsearch refuses OpenSearch by the product header, so it runs against Elasticsearch alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elastic/go-elasticsearch/v8"
	"github.com/elastic/go-elasticsearch/v8/esapi"
	"github.com/elastic/go-elasticsearch/v8/esutil"
)

const (
	bulkDocuments = 500
	// oddID has characters that break when a path is decoded or encoded once too often; no slash and no percent sign,
	// which this client itself does not encode.
	oddID = "b c+d=é"
)

// report is the line that is printed.
type report struct {
	Client   string `json:"client"`
	Version  string `json:"version"`
	Indexed  int    `json:"indexed"`
	Bulk     int    `json:"bulk"`
	Count    int    `json:"count"`
	Hits     int    `json:"hits"`
	Scrolled int    `json:"scrolled"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "go-elasticsearch: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 || os.Args[1] != "elasticsearch" {
		return errors.New("usage: suite-go elasticsearch BASE_URL")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config := elasticsearch.Config{
		Addresses:    []string{os.Args[2]},
		DisableRetry: true, // what goes wrong once must show
		Transport:    plainMediaTypes{http.DefaultTransport},
	}
	client, err := elasticsearch.NewClient(config)
	if err != nil {
		return err
	}
	typed, err := elasticsearch.NewTypedClient(config)
	if err != nil {
		return err
	}
	s := &suite{ctx: ctx, client: client, typed: typed, index: fmt.Sprintf("clients-go-elasticsearch-%d", os.Getpid())}
	defer s.cleanUp()
	r, err := s.run()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// plainMediaTypes sends application/json where the 8.x clients send Elastic's own media type with a version, which
// Elasticsearch 7.17 does not take.
type plainMediaTypes struct{ next http.RoundTripper }

func (p plainMediaTypes) RoundTrip(req *http.Request) (*http.Response, error) {
	for _, name := range []string{"Accept", "Content-Type"} {
		if strings.HasPrefix(req.Header.Get(name), "application/vnd.elasticsearch+json") {
			req.Header.Set(name, "application/json")
		}
	}
	return p.next.RoundTrip(req)
}

// suite is one run. After the first mismatch, which err keeps, its methods do nothing.
type suite struct {
	ctx    context.Context
	client *elasticsearch.Client
	typed  *elasticsearch.TypedClient
	index  string
	err    error
}

func (s *suite) run() (report, error) {
	s.documents()
	r := report{
		Client: "go/elasticsearch", Version: elasticsearch.Version,
		Indexed: 1, Bulk: s.bulk(), Count: s.count(), Hits: s.search(), Scrolled: s.scroll(),
	}
	s.typedSearch()
	s.faults()
	return r, s.err
}

// documents creates the index, and writes and reads one document.
func (s *suite) documents() {
	s.want("create the index", 200, esapi.IndicesCreateRequest{Index: s.index, Body: strings.NewReader(`{
		"settings":{"number_of_shards":1,"number_of_replicas":0},
		"mappings":{"properties":{"kind":{"type":"keyword"},"n":{"type":"integer"}}}}`)}, nil)
	var written struct{ Result string }
	s.want("index", 201, esapi.IndexRequest{Index: s.index, DocumentID: oddID, Body: strings.NewReader(`{"kind":"single","n":-1}`), Refresh: "true"}, &written)
	s.same("index: result", written.Result, "created")
	var got struct {
		ID     string         `json:"_id"`
		Source map[string]any `json:"_source"`
	}
	s.want("get", 200, esapi.GetRequest{Index: s.index, DocumentID: oddID}, &got)
	s.same("get: id", got.ID, oddID)
	s.same("get: source", got.Source, map[string]any{"kind": "single", "n": -1.0})
	s.want("exists", 200, esapi.ExistsRequest{Index: s.index, DocumentID: oddID}, nil)
	s.want("exists of nothing", 404, esapi.ExistsRequest{Index: s.index, DocumentID: "nothing"}, nil)
}

// bulk writes documents with the client's bulk helper and returns how many were taken.
func (s *suite) bulk() int {
	if s.err != nil {
		return 0
	}
	var failed atomic.Pointer[error]
	indexer, err := esutil.NewBulkIndexer(esutil.BulkIndexerConfig{
		Client: s.client, Index: s.index, NumWorkers: 2, FlushBytes: 10000, Refresh: "true",
		OnError: func(_ context.Context, err error) { failed.Store(&err) },
	})
	if err != nil {
		s.err = err
		return 0
	}
	for n := range bulkDocuments {
		err := indexer.Add(s.ctx, esutil.BulkIndexerItem{
			Action: "index", DocumentID: strconv.Itoa(n),
			Body: strings.NewReader(fmt.Sprintf(`{"kind":"k%d","n":%d}`, n%5, n)),
		})
		if err != nil {
			s.err = fmt.Errorf("bulk: %w", err)
			return 0
		}
	}
	if err := indexer.Close(s.ctx); err != nil {
		s.err = fmt.Errorf("bulk: %w", err)
	}
	if err := failed.Load(); err != nil {
		s.err = fmt.Errorf("bulk: %w", *err)
	}
	stats := indexer.Stats()
	s.same("bulk: failed", stats.NumFailed, uint64(0))
	s.same("bulk: written", stats.NumFlushed, uint64(bulkDocuments))
	return int(stats.NumFlushed)
}

func (s *suite) count() int {
	var answer struct{ Count int }
	s.want("count", 200, esapi.CountRequest{Index: []string{s.index}}, &answer)
	s.same("count", answer.Count, bulkDocuments+1)
	return answer.Count
}

// searchAnswer is what the suite reads of an answer to a search or a scroll.
type searchAnswer struct {
	ScrollID string `json:"_scroll_id"`
	Hits     struct {
		Total struct{ Value int }
		Hits  []struct {
			Source struct{ N int } `json:"_source"`
		}
	}
}

func (a searchAnswer) numbers() []int {
	var ns []int
	for _, h := range a.Hits.Hits {
		ns = append(ns, h.Source.N)
	}
	return ns
}

// search returns the number of hits of a sorted search.
func (s *suite) search() int {
	var found searchAnswer
	s.want("search", 200, esapi.SearchRequest{Index: []string{s.index}, Body: strings.NewReader(
		`{"query":{"term":{"kind":"k3"}},"sort":[{"n":"desc"}],"size":3,"track_total_hits":true}`)}, &found)
	s.same("search: total", found.Hits.Total.Value, bulkDocuments/5)
	s.same("search: hits", found.numbers(), []int{498, 493, 488})
	return len(found.Hits.Hits)
}

// scroll reads the index with a scroll and returns the number of documents, each of which must come once.
func (s *suite) scroll() int {
	size := 150
	var page searchAnswer
	s.want("scroll: search", 200, esapi.SearchRequest{Index: []string{s.index}, Scroll: time.Minute, Size: &size}, &page)
	var all []int
	for s.err == nil && len(page.Hits.Hits) > 0 {
		all = append(all, page.numbers()...)
		next := esapi.ScrollRequest{Body: esutil.NewJSONReader(map[string]string{"scroll_id": page.ScrollID, "scroll": "1m"})}
		page = searchAnswer{}
		s.want("scroll", 200, next, &page)
	}
	s.want("scroll: clear", 200, esapi.ClearScrollRequest{Body: esutil.NewJSONReader(map[string]string{"scroll_id": page.ScrollID})}, nil)
	slices.Sort(all)
	want := make([]int, bulkDocuments+1)
	for i := range want {
		want[i] = i - 1
	}
	s.same("scroll", all, want)
	return len(all)
}

// typedSearch searches with the typed client, which is the one that sends Elastic's own media types.
func (s *suite) typedSearch() {
	if s.err != nil {
		return
	}
	answer, err := s.typed.Search().Index(s.index).Size(2).Do(s.ctx)
	if err != nil {
		s.err = fmt.Errorf("typed search: %w", err)
		return
	}
	s.same("typed search: hits", len(answer.Hits.Hits), 2)
}

// faults deletes the document and asks for what is not there.
func (s *suite) faults() {
	var written struct{ Result string }
	s.want("delete", 200, esapi.DeleteRequest{Index: s.index, DocumentID: oddID, Refresh: "true"}, &written)
	s.same("delete: result", written.Result, "deleted")
	s.want("get of what was deleted", 404, esapi.GetRequest{Index: s.index, DocumentID: oddID}, nil)
	s.wantError("search in a missing index", 404, "index_not_found_exception",
		esapi.SearchRequest{Index: []string{s.index + "-missing"}, Body: strings.NewReader(`{}`)})
	s.wantError("search that cannot be parsed", 400, "parsing_exception",
		esapi.SearchRequest{Index: []string{s.index}, Body: strings.NewReader(`{"query":{"no_such_query":{}}}`)})
}

// same notes a mismatch unless got and want are equal.
func (s *suite) same(what string, got, want any) {
	if s.err == nil && !reflect.DeepEqual(got, want) {
		s.err = fmt.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// want sends r, checks the status, and reads the answer into v unless that is nil.
func (s *suite) want(what string, status int, r esapi.Request, v any) {
	if s.err != nil {
		return
	}
	resp, err := r.Do(s.ctx, s.client)
	if err != nil {
		s.err = fmt.Errorf("%s: %w", what, err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != status {
		s.err = fmt.Errorf("%s: got %s, want status %d", what, resp, status)
		return
	}
	if v == nil {
		return
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		s.err = fmt.Errorf("%s: read the answer: %w", what, err)
	}
}

func (s *suite) wantError(what string, status int, errorType string, r esapi.Request) {
	var e struct {
		Error  struct{ Type string }
		Status int
	}
	s.want(what, status, r, &e)
	s.same(what+": type", e.Error.Type, errorType)
	s.same(what+": status in the body", e.Status, status)
}

// cleanUp deletes the index, whether it is there or not.
func (s *suite) cleanUp() {
	if resp, err := (esapi.IndicesDeleteRequest{Index: []string{s.index}}).Do(s.ctx, s.client); err == nil {
		resp.Body.Close()
	}
}
