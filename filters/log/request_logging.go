// Package log holds filters that write down what went through the gateway.
//
// A record goes into a queue and is delivered from there by a pipeline, so that a client never waits for the cluster that
// keeps the logs. That trades completeness for the client: when the queue has no room, the record is dropped and counted.
// The gateway's own log lines are not made here.
package log

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/elastic"
	"weir/filters/outbox"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
)

// RequestLoggingConfig is the configuration of request_logging.
type RequestLoggingConfig struct {
	// Queue that records are put into. A pipeline takes them from there.
	QueueName string `conf:"queue_name,required"`
	// Most bytes of a request's body that its record holds. By default none: bodies hold what users search for.
	RequestBody conf.Bytes `conf:"request_body,alias=max_request_body_size" max:"1mb"`
	// Most bytes of an answer's body that its record holds. By default none.
	ResponseBody conf.Bytes `conf:"response_body,alias=max_response_body_size" max:"1mb"`
	// Members of bodies whose values are hidden, besides those with names of secrets: paths of names from the top such as
	// query.match.email, with * for any name, and **. in front for any depth. Arrays add nothing to a path.
	Redact conf.Strings `conf:"redact"`
	// Header fields of requests that records hold, by name. Those that carry credentials are refused.
	RequestHeaders conf.Strings `conf:"request_headers"`
	// Write what searches look like without their values, and a fingerprint of it, by which they are grouped.
	Shapes bool `conf:"shapes"`
	// Share of the exchanges that have a record. Those that failed, from status 400 on or without an answer, always have one. Of
	// a trace (the field traceparent) all exchanges are picked or none is.
	Sample conf.Percent `conf:"sample" min:"0%" max:"100%"`
	// Exchanges that take longer than this have a record whatever sample says. 0 makes no difference by time.
	Slow conf.Duration `conf:"slow" min:"0s"`
	// Hold the answer back until its record is on disk, and answer 503 if it does not get there. It works where the answer has
	// not been written yet: in a flow, above the upstream filter, and not in a tracing flow.
	Audit bool `conf:"audit"`
	// Longest wait of audit.
	AuditWait conf.Duration `conf:"audit_wait" min:"1ms" max:"10m"`
}

// settings are a configuration that was understood.
type settings struct {
	RequestLoggingConfig
	hide    []fieldPath
	headers []string // RequestHeaders in small letters
}

// requestLogging writes a record of each exchange into a queue.
type requestLogging struct {
	config settings
	outbox.Outbox
	ids     ids
	sampler sampler
	skipped obs.Counter
}

// words are those of the log about records.
var words = outbox.Words{
	Refused:   "records of exchanges are dropped",
	Failed:    "records of exchanges are dropped",
	Unwritten: "the last records of exchanges were not written",
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
		Default: func() RequestLoggingConfig {
			return RequestLoggingConfig{Shapes: true, Sample: 100, AuditWait: conf.Duration(5 * time.Second)}
		},
		Build: func(b *flows.Builder, c RequestLoggingConfig) flows.Filter {
			f := new(requestLogging)
			if !f.Build(b, c.QueueName, &words) {
				return nil
			}
			set := settings{RequestLoggingConfig: c}
			for _, text := range c.Redact {
				path, err := parseFieldPath(text)
				if err != nil {
					b.Errorf("redact", "%s", err)
				}
				set.hide = append(set.hide, path)
			}
			set.headers = strings.Fields(strings.ToLower(strings.Join(c.RequestHeaders, " ")))
			for _, name := range c.RequestHeaders {
				switch {
				case !wire.ValidToken([]byte(name)):
					b.Errorf("request_headers", "%q is not the name of a header field", name)
				case obs.RedactHeader(name, "x") != "x":
					b.Errorf("request_headers", "the field %s carries credentials, which are never recorded", name)
				}
			}
			f.config = set
			return f
		},
		Examples: []flows.Example{
			{Title: "Log every exchange", YAML: "- request_logging: {queue_name: request_logging}"},
			{Title: "With the first 4 KB of searches", YAML: "- request_logging: {queue_name: request_logging, request_body: 4kb}"},
			{Title: "A tenth of the exchanges, and all that failed or were slow", YAML: "- request_logging: {queue_name: request_logging, sample: 10%, slow: 1s}"},
			{Title: "No answer to a write without a record of it on disk", YAML: "- request_logging: {queue_name: audit, audit: true, request_body: 64kb, redact: [\"**.email\"], when: {class: write}}"},
		},
	}
}

// Start implements flows.Starter.
func (f *requestLogging) Start(rt *flows.Runtime) error {
	records := rt.Metrics.Counter("weir_log_records_total",
		"Records of exchanges: queued, refused because the queue was full, failed because it takes no such record or was too slow for an audit, or skipped by sampling.",
		"queue", "outcome")
	f.skipped = records.With(f.Name, "skipped")
	f.sampler = newSampler(f.config.Sample.Fraction())
	f.ids.begin()
	return f.Open(rt, records)
}

// Audits tells whether answers are held back until their record is on disk.
func (f *requestLogging) Audits() bool { return f.config.Audit }

// Serve implements flows.Filter.
func (f *requestLogging) Serve(x *flows.Exchange, next flows.Handler) error {
	err := next.Serve(x)
	fault := faultOf(x, err)
	share, worth := f.sampler.share, f.sampler.picks(x)
	if share < 1 && (statusOf(x, fault) >= 400 || !x.Response.Answered() || f.config.Slow > 0 && time.Since(x.Start) > f.config.Slow.Std()) {
		share, worth = 1, true
	}
	if !worth {
		f.skipped.Inc()
		return err
	}
	e, _ := encoders.Get().(*encoder)
	lost := f.put(e.record(x, fault, &f.ids, &f.config, share))
	e.release()
	if lost != nil && f.config.Audit && !x.Tracing {
		return &elastic.Error{Status: 503, Type: "audit_exception", Reason: "no record of the exchange could be kept", Cause: errors.Join(lost, err)}
	}
	return err
}

// put puts a record on the queue, or counts that it could not and returns why.
func (f *requestLogging) put(record []byte) error {
	err := f.enqueue(record)
	f.Count(err)
	return err
}

func (f *requestLogging) enqueue(record []byte) error {
	if !f.config.Audit {
		return f.Queue.Put(record)
	}
	ctx, cancel := context.WithTimeoutCause(f.Life, f.config.AuditWait.Std(), errAuditWait)
	defer cancel()
	return f.Queue.PutSync(ctx, record)
}

var errAuditWait = errors.New("the record did not reach the disk within audit_wait")

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
