// Package enqueue holds filters that put requests into queues, from where the processor queue_consumer makes them.
//
// It does not deliver anything, and nothing about the log is here. It trades an answer that knows what the cluster did for one
// that comes although the cluster is away: what a client is told is that its write is on disk and will be made.
package enqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/filters/outbox"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
	"weir/queue"
	"weir/queue/message"
)

// QueueConfig is the configuration of queue.
type QueueConfig struct {
	// Queue that requests are put into. A pipeline with the processor queue_consumer takes them from there.
	QueueName string `conf:"queue_name,required"`
	// Only writes to indices that match one of these patterns are put into the queue. Of a bulk each line counts: one that writes to
	// other indices too passes as a whole. A condition on index would not see those lines.
	Index conf.Strings `conf:"index"`
	// What clients are told. done: what a cluster says that has done it, which is what they expect; accepted: the same with
	// status 202 and result accepted, for those that know about it.
	Answer string `conf:"answer" enum:"done,accepted"`
	// Most bytes of a message. Longer bulks become several, of whole actions.
	MaxBytes conf.Bytes `conf:"max_bytes" min:"1kb" max:"100mb"`
	// Longest wait for the disk; then 503.
	Wait conf.Duration `conf:"wait" min:"1ms" max:"10m"`
	// Header fields that go with a request, besides Content-Type, X-Opaque-Id, User-Agent and those of traces. Fields that carry
	// credentials are refused: they are never put into a queue.
	RequestHeaders conf.Strings `conf:"request_headers"`
}

// keptFields are the header fields that go with a request in any case.
var keptFields = []string{"content-type", "content-encoding", "x-opaque-id", "user-agent", "traceparent", "tracestate"}

// enqueuer puts requests into a queue.
type enqueuer struct {
	config       QueueConfig
	fields       []string // in small letters
	mostInflated int64
	messages
}

var (
	_ flows.Starter  = (*enqueuer)(nil)
	_ flows.Stopper  = (*enqueuer)(nil)
	_ flows.Enqueuer = (*enqueuer)(nil)
)

// Queue declares the filter queue.
func Queue() flows.Factory[QueueConfig] {
	return flows.Factory[QueueConfig]{
		Name: "queue", Family: "queue",
		Summary: "Puts writes of documents (_bulk, index, create, update, delete) into a queue and answers them when they are on disk. " +
			"All other requests pass, and so do those that come from that queue.",
		Default: func() QueueConfig {
			return QueueConfig{Answer: "done", MaxBytes: 1 << 20, Wait: conf.Duration(5 * time.Second)}
		},
		Build: func(b *flows.Builder, c QueueConfig) flows.Filter {
			f := &enqueuer{config: c, fields: keptFields, mostInflated: mostInflated}
			for _, name := range c.RequestHeaders {
				switch {
				case !wire.ValidToken([]byte(name)):
					b.Errorf("request_headers", "%q is not the name of a header field", name)
				case obs.RedactHeader(name, "x") != "x":
					b.Errorf("request_headers", "the field %s carries credentials, which are never put into a queue", name)
				case !message.Carries([]byte(name)):
					b.Errorf("request_headers", "the field %s is about a connection, or follows from the body, and goes no further", name)
				default:
					f.fields = append(f.fields[:len(f.fields):len(f.fields)], strings.ToLower(name))
				}
			}
			if slices.Contains(c.Index, "") {
				b.Errorf("index", "an empty pattern matches no index")
			}
			if !f.Build(b, c.QueueName, &words) {
				return nil
			}
			return f
		},
		Examples: []flows.Example{
			{Title: "Writes are taken although the cluster is away", YAML: "- queue: {queue_name: writes}"},
			{Title: "Only those to indices of logs", YAML: "- queue: {queue_name: logs, index: \"logs-*\"}"},
		},
	}
}

// Enqueues implements flows.Enqueuer.
func (f *enqueuer) Enqueues() {}

// Serve implements flows.Filter.
func (f *enqueuer) Serve(x *flows.Exchange, next flows.Handler) error {
	if x.Replay != nil && x.Replay.Queue == f.Name {
		return next.Serve(x)
	}
	call := x.Call()
	switch call.Name {
	case "bulk", "index", "create", "update", "delete":
	default:
		return next.Serve(x)
	}
	body, err := x.Request.Body.Bytes(math.MaxInt64)
	text := body
	switch {
	case err != nil:
	case call.Name == "bulk":
		text, err = f.plain(x, body)
	default:
		text, err = f.unpacked(x, body)
	}
	if err != nil {
		return err
	}
	index := indexOf(x)
	if !f.isFor(call, index, text) {
		return next.Serve(x)
	}
	query, err := queryOf(x)
	if err != nil {
		return err
	}
	if err := checkMedia(x, body); err != nil {
		return err
	}
	m := f.message(x, query)
	if !utf8.ValidString(m.Target) {
		return elastic.Errorf(http.StatusBadRequest, "illegal_argument_exception",
			"the gateway's queue takes no URL of bytes that are not UTF-8: write them percent-encoded")
	}
	ctx, cancel := context.WithTimeoutCause(f.Life, f.config.Wait.Std(), errWait)
	defer cancel()
	if call.Name == "bulk" {
		return f.bulk(ctx, x, m, index, text)
	}
	return f.document(ctx, x, m, index, body, text)
}

// indexOf returns the index that the path names or, for a bulk whose path names none, the parameter index.
func indexOf(x *flows.Exchange) []byte {
	call := x.Call()
	if value, ok := api.QueryValue(x.Request.Query, "index"); ok && call.Index == nil && call.Name == "bulk" {
		return api.DecodeQuery(nil, value)
	}
	return api.DecodeSegment(nil, call.Index)
}

// isFor tells whether all that a request writes goes to indices that the filter is for. index is the one outside of its body. A
// bulk that nodes refuse as a whole is theirs.
func (f *enqueuer) isFor(call *api.Call, index, body []byte) bool {
	switch {
	case len(f.config.Index) == 0:
		return true
	case call.Name != "bulk":
		return f.matches(index)
	}
	actions := 0
	var s bulk.Scanner
	for s.Reset(body); s.Next(); actions++ {
		name := s.Action().Index
		if len(name) == 0 {
			name = index
		}
		if !f.matches(name) {
			return false
		}
	}
	return actions > 0 && s.Err() == nil
}

func (f *enqueuer) matches(index []byte) bool {
	return slices.ContainsFunc(f.config.Index, func(pattern string) bool { return api.MatchIndex(pattern, string(index)) })
}

var errWait = errors.New("the request did not reach the disk in time")

// message returns the message of x, without its body. The user parts of URLs in header fields, such as User-Agent, are hidden.
func (f *enqueuer) message(x *flows.Exchange, query []byte) message.Message {
	r := &x.Request
	m := message.Message{
		Time: x.Start, Method: string(r.Method), Target: string(r.Path), Host: string(r.Host), ClientIP: r.ClientIP, User: string(r.User),
	}
	if len(query) > 0 {
		m.Target += "?" + string(query)
	}
	for _, field := range r.Header.Fields() {
		if slices.ContainsFunc(f.fields, func(name string) bool { return wire.EqualFold(field.Name, name) }) {
			m.Fields = append(m.Fields, message.Field{Name: string(field.Name), Value: obs.RedactText(string(field.Value))})
		}
	}
	return m
}

// document puts the write of one document into the queue and answers it. text is its body without a coding.
func (f *enqueuer) document(ctx context.Context, x *flows.Exchange, m message.Message, index, body, text []byte) error {
	call := x.Call()
	verb := bulk.VerbOfCall(call.Name, x.Request.Query)
	id := api.DecodeSegment(nil, call.Param("id"))
	if err := checkDocument(x, verb, id, text); err != nil {
		return err
	}
	done := item{verb: verb, index: string(index), id: string(id)}
	if id == nil {
		// The node would make an id, and another one if the request is made again. The query names the type of operation for the
		// same reason: a second time is to be a conflict.
		done.id, done.verb = rand.Text(), bulk.Create
		path, query, _ := strings.Cut(m.Target, "?")
		m.Target = strings.TrimRight(path, "/") + "/" + done.id + "?op_type=create"
		if query = string(api.RemoveParam(nil, []byte(query), "op_type")); query != "" {
			m.Target += "&" + query
		}
	}
	m.Body = body
	if err := f.keep(ctx, &m); err != nil {
		return refusal(err)
	}
	f.reply(x, done.status(f.config.Answer), done.appendDocument(nil, f.config.Answer))
	return nil
}

// reply answers as a node does. Clients of Elasticsearch look for the product's name on answers that tell of success.
func (f *enqueuer) reply(x *flows.Exchange, status int, body []byte) {
	x.Reply(status, "application/json", body)
	x.Response.Header.Add(productName, productValue)
}

var productName, productValue = []byte("X-elastic-product"), []byte("Elasticsearch")

// refusal returns the answer to a client whose request did not get into the queue, or not certainly.
func refusal(err error) *elastic.Error {
	switch {
	case errors.Is(err, queue.ErrFull):
		return &elastic.Error{
			Status: http.StatusTooManyRequests, Type: "es_rejected_execution_exception", Reason: "the gateway's queue for writes is full",
			RetryAfter: time.Second, Cause: err,
		}
	case errors.Is(err, queue.ErrTooLarge):
		return &elastic.Error{
			Status: http.StatusRequestEntityTooLarge, Type: "content_too_long_exception", Reason: "the request is larger than the gateway's queue takes",
			Cause: err,
		}
	}
	return &elastic.Error{
		Status: http.StatusServiceUnavailable, Type: "queue_exception", Reason: "it is not known whether the request is in the gateway's queue",
		Cause: err,
	}
}

// messages is the queue that a filter puts messages into.
type messages struct{ outbox.Outbox }

// words are those of the log about messages.
var words = outbox.Words{
	Refused:   "requests are refused",
	Failed:    "requests are not put into the queue",
	Unwritten: "the last requests that were put into a queue were not written",
}

// Start implements flows.Starter.
func (o *messages) Start(rt *flows.Runtime) error {
	return o.Open(rt, rt.Metrics.Counter("weir_queue_messages_total",
		"Requests to be put into a queue: queued, refused because it was full, failed because it takes none of the size or the disk did not answer.",
		"queue", "outcome"))
}

// try puts m into the queue. What came of it is not counted, and it is not on disk before flush.
func (o *messages) try(m *message.Message) error {
	record, err := m.AppendTo(nil)
	if err != nil {
		return err
	}
	return o.Queue.Put(record)
}

// flush waits until what was put is on disk.
func (o *messages) flush(ctx context.Context) error {
	err := o.Queue.Flush(ctx)
	if err != nil {
		o.Throttle.Log(slog.LevelError, "flush", "requests did not reach the disk in time, and their clients are told so", "error", err)
	}
	return err
}

// keep puts m into the queue and waits until it is on disk.
func (o *messages) keep(ctx context.Context, m *message.Message) error {
	err := o.try(m)
	o.Count(err)
	if err != nil {
		return err
	}
	return o.flush(ctx)
}
