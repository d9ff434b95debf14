// Package log holds filters that write down what went through the gateway.
//
// A record goes into a queue and is delivered from there by a pipeline, so that a client never waits for the cluster that
// keeps the logs. That trades completeness for the client: when the queue has no room, the record is dropped and counted.
// The gateway's own log lines are not made here.
package log

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
)

// RequestLoggingConfig is the configuration of request_logging.
type RequestLoggingConfig struct {
	// Queue that records are put into. A pipeline takes them from there.
	QueueName string `conf:"queue_name,required"`
	// Most bytes of a request's body that its record holds. By default none: bodies hold what users search for.
	RequestBody conf.Bytes `conf:"request_body,alias=max_request_body_size" max:"1mb"`
	// Most bytes of an answer's body that its record holds. By default none.
	ResponseBody conf.Bytes `conf:"response_body,alias=max_response_body_size" max:"1mb"`
}

// requestLogging writes a record of each exchange into a queue.
type requestLogging struct {
	config RequestLoggingConfig
	opener queue.Opener

	queue    queue.Queue
	ids      ids
	throttle *obs.Throttle
	logger   *slog.Logger

	queued, refused, failed obs.Counter
}

var (
	_ flows.Starter = (*requestLogging)(nil)
	_ flows.Stopper = (*requestLogging)(nil)
)

// RequestLogging declares the filter request_logging.
func RequestLogging() flows.Factory[RequestLoggingConfig] {
	return flows.Factory[RequestLoggingConfig]{
		Name: "request_logging", Family: "log",
		Summary: "Puts a record of the exchange, with fields of the Elastic Common Schema, into a queue. It belongs into a tracing flow, where it costs no client any time.",
		Default: func() RequestLoggingConfig { return RequestLoggingConfig{} },
		Build: func(b *flows.Builder, c RequestLoggingConfig) flows.Filter {
			if err := disk.ValidName(c.QueueName); err != nil {
				b.Errorf("queue_name", "%s", err)
				return nil
			}
			opener, ok := flows.Resource[queue.Opener](b, "queues", "default")
			if !ok {
				return nil
			}
			return &requestLogging{config: c, opener: opener}
		},
		Examples: []flows.Example{
			{Title: "Log every exchange", YAML: "- request_logging: {queue_name: request_logging}"},
			{Title: "With the first 4 KB of searches", YAML: "- request_logging: {queue_name: request_logging, request_body: 4kb}"},
		},
	}
}

// Start implements flows.Starter.
func (f *requestLogging) Start(rt *flows.Runtime) error {
	f.logger = rt.Logger.With("queue", f.config.QueueName)
	records := rt.Metrics.Counter("weir_log_records_total",
		"Records of exchanges: queued, refused because the queue was full, or failed because it takes no such record.",
		"queue", "outcome")
	f.queued = records.With(f.config.QueueName, "queued")
	f.refused = records.With(f.config.QueueName, "refused")
	f.failed = records.With(f.config.QueueName, "failed")
	f.ids.begin()
	q, err := f.opener.Open(f.config.QueueName)
	if err != nil {
		return err
	}
	f.queue, f.throttle = q, obs.NewThrottle(f.logger, time.Minute)
	return nil
}

// Stop implements flows.Stopper.
func (f *requestLogging) Stop() {
	if f.queue == nil {
		return
	}
	f.throttle.Close()
	if err := f.queue.Close(); err != nil {
		f.logger.Error("the last records of exchanges were not written", "error", err)
	}
	f.queue = nil
}

// Serve implements flows.Filter.
func (f *requestLogging) Serve(x *flows.Exchange, next flows.Handler) error {
	err := next.Serve(x)
	e, _ := encoders.Get().(*encoder)
	f.put(e.record(x, faultOf(x, err), &f.ids, &f.config))
	e.release()
	return err
}

// put puts a record on the queue, or counts that it could not.
func (f *requestLogging) put(record []byte) {
	err := f.queue.Put(record)
	switch {
	case err == nil:
		f.queued.Inc()
	case errors.Is(err, queue.ErrFull):
		f.refused.Inc()
		f.throttle.Log(slog.LevelWarn, "refused", "records of exchanges are dropped", "error", err)
	default:
		f.failed.Inc()
		f.throttle.Log(slog.LevelWarn, "failed", "records of exchanges are dropped", "error", err)
	}
}

// faultOf returns what went wrong with x, or nil. err is what the filters behind this one returned; in a tracing flow it is
// not about the exchange.
func faultOf(x *flows.Exchange, err error) *elastic.Error {
	if x.Tracing || err == nil {
		return x.Trace.Err
	}
	return elastic.AsError(err)
}

// ids makes names for records that no other record has, so that a record that is delivered twice is stored once. They are
// ULIDs: 48 bits of time, 40 random bits of this filter, 40 bits of a counter.
type ids struct {
	random uint64
	last   atomic.Uint64
}

func (i *ids) begin() {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // it never fails
	i.random = binary.BigEndian.Uint64(seed[:]) & (1<<40 - 1)
}

// append appends a new id for a record of that time.
func (i *ids) append(dst []byte, at time.Time) []byte {
	const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	hi := uint64(at.UnixMilli())<<16 | i.random>>24
	lo := i.random<<40 | i.last.Add(1)&(1<<40-1)
	var id [26]byte
	for at := len(id) - 1; at >= 0; at-- {
		id[at] = crockford[lo&31]
		lo, hi = lo>>5|hi<<59, hi>>5
	}
	return append(dst, id[:]...)
}

// encoders keep their memory from record to record.
var encoders = sync.Pool{New: func() any { return new(encoder) }}
