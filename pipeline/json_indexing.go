package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"weir/elastic"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
)

// JSONIndexingConfig is the configuration of json_indexing.
type JSONIndexingConfig struct {
	// Index that records are put into: a name, or date math such as <gateway_requests-{now/d}>, which is resolved when a
	// record is delivered.
	IndexName string `conf:"index_name,required"`
	// Cluster that has the index.
	Elasticsearch string `conf:"elasticsearch,required"`
	// Queue that records are taken from. Those that the cluster refuses for good go to the queue <input_queue>.dead.
	InputQueue string `conf:"input_queue,required"`
	// Bulk requests under way at the same time.
	WorkerSize int `conf:"worker_size" min:"1" max:"256"`
	// Most records of one bulk request.
	BulkSize int `conf:"bulk_size" min:"1" max:"100000"`
	// Most bytes of one bulk request. It is lowered when the cluster says that a request was too large.
	MaxBytes conf.Bytes `conf:"max_bytes" min:"1kb" max:"100mb"`
	// Longest wait for the answer to a bulk request. After it the request is sent again.
	Timeout conf.Duration `conf:"timeout" min:"1s"`
	// Classic: number of messages taken at a time. Records come in blocks; see bulk_size.
	NumOfMessages int `conf:"num_of_messages" deprecated:"records come in blocks, as many as there are; bulk_size bounds a request"`
}

// deadSuffix is behind the name of a queue in the name of the queue for what is refused for good.
const deadSuffix = ".dead"

// JSONIndexing declares the processor json_indexing.
func JSONIndexing() Factory[JSONIndexingConfig] {
	return Factory[JSONIndexingConfig]{
		Name:    "json_indexing",
		Summary: "Takes records, each one line of JSON, off a queue and stores them in an index with bulk requests.",
		Default: func() JSONIndexingConfig {
			return JSONIndexingConfig{
				WorkerSize: 1, BulkSize: 5000, MaxBytes: 10 << 20, Timeout: conf.Duration(time.Minute), NumOfMessages: 1,
			}
		},
		Build: func(b *Builder, c JSONIndexingConfig) Processor {
			if err := disk.ValidName(c.InputQueue + deadSuffix); err != nil {
				b.Errorf("input_queue", "%s", err)
			}
			if reason := badIndexName(c.IndexName); reason != "" {
				b.Errorf("index_name", "index name %q %s", c.IndexName, reason)
			}
			if !b.Cluster("elasticsearch", c.Elasticsearch) {
				return nil
			}
			return &jsonIndexing{config: c, pipeline: b.Pipeline(), backoff: defaultBackoff}
		},
		Examples: []Example{{
			Title: "Store the records of request_logging",
			YAML:  "- {name: request_logging_index, json_indexing: {index_name: gateway_requests, elasticsearch: default, input_queue: request_logging}}",
		}},
	}
}

// badIndexName returns why a cluster would refuse an index name, or "" (as in the documentation of the create index API of
// Elasticsearch and OpenSearch).
func badIndexName(name string) string {
	switch {
	case strings.HasPrefix(name, "<") && strings.HasSuffix(name, ">") && len(name) > 2:
		return "" // date math
	case name == "." || name == "..", strings.IndexAny(name, "-_+") == 0:
		return "begins with -, _ or +, or is nothing but dots"
	case strings.ToLower(name) != name:
		return "has capital letters"
	case strings.ContainsAny(name, "\\/*?\"<>| ,#:"):
		return "has one of the characters \\ / * ? \" < > | , # : or a space"
	case len(name) > 255:
		return "is longer than 255 bytes"
	}
	return ""
}

// jsonIndexing is json_indexing, configured.
type jsonIndexing struct {
	config   JSONIndexingConfig
	pipeline string
	backoff  backoff
}

// Input implements Processor.
func (j *jsonIndexing) Input() string { return j.config.InputQueue }

// Start implements Processor.
func (j *jsonIndexing) Start(env Env) (Work, error) {
	w := &indexing{
		config: j.config, backoff: j.backoff, index: appendQuoted(nil, j.config.IndexName), ready: env.Ready,
		logger: env.Logger.With("pipeline", j.pipeline, "queue", j.config.InputQueue),
	}
	w.limit.Store(int64(j.config.MaxBytes))
	w.metrics = newMetrics(env.Metrics, j.pipeline)
	var err error
	if w.cluster, err = env.Cluster(j.config.Elasticsearch); err != nil {
		return nil, err
	}
	if w.in, err = env.Queues.Open(j.config.InputQueue); err != nil {
		return nil, err
	}
	if w.dead, err = env.Queues.Open(j.config.InputQueue + deadSuffix); err != nil {
		return nil, errors.Join(err, w.in.Close())
	}
	consumers, err := w.in.Consumers(1)
	if err != nil {
		return nil, errors.Join(err, w.in.Close(), w.dead.Close())
	}
	w.blocks = consumers[0]
	w.throttle = obs.NewThrottle(w.logger, time.Minute)
	w.senders = make([]sender, j.config.WorkerSize)
	for i := range w.senders {
		w.senders[i].indexing = w
	}
	return w, nil
}

// indexing is json_indexing at work.
type indexing struct {
	config   JSONIndexingConfig
	backoff  backoff
	index    []byte // the name as a JSON string
	ready    <-chan struct{}
	cluster  *elastic.Cluster
	in, dead queue.Queue
	blocks   queue.Consumer
	logger   *slog.Logger
	throttle *obs.Throttle
	metrics  *metrics
	limit    atomic.Int64 // most bytes of a request, lowered by a 413
	senders  []sender
	records  [][]byte // of the block in hand
	batches  [][][]byte
	letters  letters
}

// Run implements Work: it takes one block after the other, and takes each off the queue when all of its records are settled.
func (w *indexing) Run(take, finish context.Context) error {
	err := w.run(take, finish)
	w.metrics.close()
	w.throttle.Close()
	return errors.Join(err, w.in.Close(), w.dead.Close())
}

func (w *indexing) run(take, finish context.Context) error {
	if w.ready != nil {
		select {
		case <-w.ready:
		case <-take.Done():
			return nil
		}
	}
	pause := w.backoff
	for {
		block, err := w.blocks.Peek(take)
		switch {
		case take.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrClosed):
			w.logger.Error("the pipeline ends, its queue was closed", "error", err)
			return err
		case err != nil:
			w.throttle.Log(slog.LevelError, "peek", "the queue cannot be read, trying again", "error", err)
			if !pause.wait(take, 0) {
				return nil
			}
			continue
		}
		pause = w.backoff
		w.metrics.inHand(oldest(block))
		if !w.settle(take, finish, block) {
			return nil // the block stays on the queue
		}
		w.metrics.inHand(time.Time{})
		if err := w.blocks.Advance(); err != nil {
			// The records are settled: if the block comes again, the cluster knows their ids.
			w.throttle.Log(slog.LevelError, "advance", "the place in the queue cannot be written", "error", err)
		}
	}
}

// oldest returns the time of the first record of a block, or zero.
func oldest(b queue.Block) time.Time {
	for r := range b.Records() {
		if raw := member(r, "@timestamp"); len(raw) > 2 {
			at, _ := time.Parse(time.RFC3339, string(raw[1:len(raw)-1])) // zero if it is something else
			return at
		}
		break
	}
	return time.Time{}
}
