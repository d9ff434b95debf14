package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esutil"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
	"weir/queue/disk"
)

// plainTransport sends requests to one node, without the product check that keeps go-elasticsearch's client from OpenSearch.
type plainTransport struct {
	node *url.URL
	http http.Transport
}

func (p *plainTransport) Perform(r *http.Request) (*http.Response, error) {
	r.URL.Scheme, r.URL.Host = p.node.Scheme, p.node.Host
	return p.http.RoundTrip(r)
}

// BenchmarkDrainAgainstBulkIndexer drains a queue into a real OpenSearch and lets go-elasticsearch's BulkIndexer send the same
// documents with as many workers, one after the other. The metric drain/indexer is how the rates compare.
func BenchmarkDrainAgainstBulkIndexer(b *testing.B) {
	const documents, workers, flushBytes = 20000, 4, 1 << 20
	raw, err := os.ReadFile("../filters/log/testdata/record.json")
	if err != nil {
		b.Fatal(err)
	}
	everything := strings.TrimSpace(string(raw))
	c := searchtest.ForTest(b, searchnode.OpenSearch2, 1)
	node, err := url.Parse(c.URLs()[0])
	if err != nil {
		b.Fatal(err)
	}
	transport := &plainTransport{node: node}
	defer transport.http.CloseIdleConnections()
	var drained, indexed time.Duration
	round := 0
	for b.Loop() {
		round++
		id := func(kind string, n int) string { return fmt.Sprintf("%s-%d-%d", kind, round, n) }
		r := newRigAt(b, c.URLs()[0], nil)
		r.env.Logger = slog.New(slog.DiscardHandler)
		r.queues.Options = disk.Options{} // blocks as in a gateway
		r.open("requests")
		old := idIn(b, raw)
		for n := range documents {
			if err := r.in.PutWait(b.Context(), []byte(strings.Replace(everything, old, id("drain", n), 1))); err != nil {
				b.Fatal(err)
			}
		}
		if err := r.in.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		running := r.run(r.planOf(fmt.Sprintf("json_indexing: {index_name: drained, elasticsearch: default, input_queue: requests, worker_size: %d, max_bytes: %db}", workers, flushBytes)))
		r.drained()
		drained += time.Since(start)
		r.stop(running)
		r.wantRecords("stored", documents)

		bodies := make([]string, documents) // made in advance, as the queue's records are
		for n := range bodies {
			bodies[n] = strings.Replace(everything, old, id("index", n), 1)
		}
		start = time.Now()
		indexer, err := esutil.NewBulkIndexer(esutil.BulkIndexerConfig{Client: transport, NumWorkers: workers, FlushBytes: flushBytes, Index: "indexed"})
		if err != nil {
			b.Fatal(err)
		}
		for n, body := range bodies {
			err := indexer.Add(context.Background(), esutil.BulkIndexerItem{
				Action: "create", DocumentID: id("index", n), Body: strings.NewReader(body),
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		if err := indexer.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		indexed += time.Since(start)
		if s := indexer.Stats(); s.NumFailed > 0 || s.NumCreated+s.NumAdded == 0 {
			b.Fatalf("%+v", s)
		}
	}
	b.ReportMetric(float64(b.N*documents)/drained.Seconds(), "drained/s")
	b.ReportMetric(indexed.Seconds()/drained.Seconds(), "drain/indexer")
}
