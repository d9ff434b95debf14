package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"weir/elastic"
	"weir/elastic/bulk"
	"weir/internal/conf"
	"weir/internal/obs"
)

// BulkConfig is what processors share that send bulk requests.
type BulkConfig struct {
	// Cluster that the records go to.
	Elasticsearch string `conf:"elasticsearch,required"`
	// Queue that records are taken from. Those that the cluster refuses for good go to the queue <input_queue>.dead. Within a
	// dag it is left out.
	InputQueue string `conf:"input_queue"`
	// Bulk requests that a consumer has under way at the same time. Fewer are, for a while, when the cluster answers 429.
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

func defaultBulk() BulkConfig {
	return BulkConfig{WorkerSize: 1, BulkSize: 5000, MaxBytes: 10 << 20, Timeout: conf.Duration(time.Minute), NumOfMessages: 1}
}

// deadSuffix is behind the name of a queue in the name of the queue for what is refused for good.
const deadSuffix = ".dead"

// A form says how records become actions of a bulk request. It is used by one goroutine.
type form interface {
	// action appends the action of a record to body and returns its verb. It returns false, and body as it was, when the
	// record is none.
	action(body, record []byte) ([]byte, bulk.Verb, bool)
	// overhead is about how many bytes an action is longer than its record.
	overhead() int
	// index is the name of the index where it is the same for all records, or "".
	index() string
}

// An orderedForm is one of records whose order matters.
type orderedForm interface {
	form
	// key returns a number that is the same for actions upon the same document.
	key(record []byte) uint64
}

// bulk returns the processor that sends records to a cluster in a form.
func (b *Builder) bulk(c BulkConfig, newForm func() form) Processor {
	if !b.Cluster("elasticsearch", c.Elasticsearch) {
		return nil
	}
	_, ordered := newForm().(orderedForm)
	return b.drain(c.InputQueue, ordered, &bulkOutlet{config: c, backoff: defaultBackoff, form: newForm})
}

// bulkOutlet sends records to a cluster.
type bulkOutlet struct {
	config  BulkConfig
	form    func() form
	backoff backoff
}

// open implements outlet.
func (o *bulkOutlet) open(env Env, f feed) (opened, error) {
	w := &indexing{config: o.config, backoff: o.backoff, logger: f.logger, waiting: f.waiting, metrics: newMetrics(env.Metrics, f.name)}
	w.limit.Store(int64(o.config.MaxBytes))
	var err error
	if w.cluster, err = env.Cluster(o.config.Elasticsearch); err != nil {
		return opened{}, err
	}
	dead, err := env.Queues.Open(f.queue + deadSuffix)
	if err != nil {
		return opened{}, err
	}
	w.pace = newPace(o.config.WorkerSize * f.consumers)
	removePace := env.Metrics.GaugeFunc("weir_pipeline_requests_allowed",
		"Bulk requests that may be under way; lowered by 429s of the cluster.", "pipeline").Set(w.pace.now, f.name)
	w.throttle = obs.NewThrottle(w.logger, time.Minute)
	sinks := make([]sink, f.consumers)
	for i := range sinks {
		s := &indexSink{indexing: w, form: o.form(), senders: make([]*sender, o.config.WorkerSize)}
		s.letters = letters{dead: dead, index: s.form.index(), backoff: o.backoff, waiting: f.waiting, throttle: w.throttle, metrics: w.metrics}
		for j := range s.senders {
			s.senders[j] = &sender{indexSink: s, form: o.form()}
		}
		sinks[i] = s
	}
	return opened{sinks, func() error {
		removePace()
		w.throttle.Close()
		return dead.Close()
	}}, nil
}

// indexing is what the sinks of a bulkOutlet share.
type indexing struct {
	config   BulkConfig
	backoff  backoff
	cluster  *elastic.Cluster
	logger   *slog.Logger
	throttle *obs.Throttle
	metrics  *metrics
	waiting  *atomic.Int64
	pace     *pace
	limit    atomic.Int64 // most bytes of a request, lowered by a 413
}

// indexSink sends the blocks of one consumer.
type indexSink struct {
	*indexing
	form    form
	senders []*sender
	records [][]byte   // of the block in hand
	batches [][][]byte // of the block, for whichever sender is free
	letters letters
}

// pause waits between two attempts and counts as waiting for a better time.
func (w *indexing) pause(b *backoff, take context.Context, atLeast time.Duration) bool {
	return b.waitIn(take, atLeast, w.waiting)
}

// errStopped says that a request was not sent because the pipeline is cut off.
var errStopped = errors.New("the pipeline was stopped")
