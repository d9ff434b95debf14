package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
	"weir/queue"
	"weir/queue/message"
)

// QueueConsumerConfig is the configuration of queue_consumer.
type QueueConsumerConfig struct {
	// Flow that the requests go through, most often the one that has put them into the queue: there they pass the filter queue.
	Flow string `conf:"flow,required"`
	// Queue that requests are taken from. Those that are refused for good go to the queue <input_queue>.dead. Within a dag it is
	// left out.
	InputQueue string `conf:"input_queue"`
	// Requests that a consumer has under way at the same time. More than one gives up their order.
	WorkerSize int `conf:"worker_size" min:"1" max:"256"`
	// Longest time for a request's way through the flow. After it the request is made again.
	Timeout conf.Duration `conf:"timeout" min:"1s"`
}

// QueueConsumer declares the processor queue_consumer.
func QueueConsumer() Factory[QueueConsumerConfig] {
	return Factory[QueueConsumerConfig]{
		Name: "queue_consumer",
		Summary: "Takes requests off a queue, as the filter queue puts them there, and makes them by a flow until each has gone well or is refused for good. " +
			"A request may be made twice, after a crash or when an answer was lost.",
		Default: func() QueueConsumerConfig {
			return QueueConsumerConfig{WorkerSize: 1, Timeout: conf.Duration(time.Minute)}
		},
		Build: func(b *Builder, c QueueConsumerConfig) Processor {
			if !b.Flow("flow", c.Flow) {
				return nil
			}
			return b.drain(c.InputQueue, false, &replayOutlet{config: c, backoff: defaultBackoff})
		},
		Examples: []Example{{
			Title: "Make the writes that the filter queue has taken",
			YAML:  "- {name: writes, queue_consumer: {input_queue: writes, flow: to_cluster}}",
		}},
	}
}

// replayOutlet makes the requests that records are.
type replayOutlet struct {
	config  QueueConsumerConfig
	backoff backoff
}

// open implements outlet.
func (o *replayOutlet) open(env Env, f feed) (opened, error) {
	dead, err := env.Queues.Open(f.queue + deadSuffix)
	if err != nil {
		return opened{}, err
	}
	r := &replaying{
		config: o.config, backoff: o.backoff, queue: f.queue, flows: env.Flows, logger: f.logger, waiting: f.waiting,
		metrics: newMetrics(env.Metrics, f.name), throttle: obs.NewThrottle(f.logger, time.Minute),
	}
	sinks := make([]sink, f.consumers)
	for i := range sinks {
		sinks[i] = &replaySink{replaying: r, letters: letters{
			dead: dead, backoff: o.backoff, waiting: f.waiting, throttle: r.throttle, metrics: r.metrics,
		}}
	}
	return opened{sinks, func() error {
		r.throttle.Close()
		return dead.Close()
	}}, nil
}

// replaying is what the sinks of a replayOutlet share.
type replaying struct {
	config   QueueConsumerConfig
	backoff  backoff
	queue    string
	flows    func() *flows.Generation
	logger   *slog.Logger
	throttle *obs.Throttle
	metrics  *metrics
	waiting  *atomic.Int64
}

// replaySink makes the requests of one consumer.
type replaySink struct {
	*replaying
	letters letters
}

// settle implements sink.
func (k *replaySink) settle(take, finish context.Context, block queue.Block) bool {
	// When one is stopped the rest of the block comes again with it.
	done := share(k.config.WorkerSize, slices.Collect(block.Records()), func(_ int, record []byte) bool {
		return k.deliver(take, finish, record)
	})
	return done && k.letters.bury(take, finish)
}

// deliver makes a request until it has gone well, is refused for good or was put aside. It returns false when it was stopped
// before: while it waits for a better time it stops with take, otherwise with finish.
func (k *replaySink) deliver(take, finish context.Context, record []byte) bool {
	m, err := message.Parse(record)
	if err != nil {
		k.letters.reject(record, bulk.Outcome{Status: http.StatusBadRequest, ErrorType: "malformed_request", Reason: err.Error()})
		return true
	}
	if path, query, ok := strings.Cut(m.Target, "?"); ok { // they could hide what became of a bulk's actions
		raw := []byte(query)
		for _, name := range []string{"filter_path", "format"} {
			raw = api.RemoveParam(nil, raw, name)
		}
		m.Target = path + "?" + string(raw)
	}
	// Of a bulk only what is left is made again, so there may be several requests to make, in order.
	todo := []*attempt{{message: m, record: record}}
	pause := k.backoff
	for len(todo) > 0 {
		a := todo[0]
		outcome := k.make(finish, a)
		switch {
		case outcome.kind == settled:
			todo, pause = todo[1:], k.backoff
			continue
		case outcome.kind == divided:
			todo = append(outcome.halves, todo[1:]...)
			continue
		case finish.Err() != nil:
			return false
		}
		if outcome.progress {
			pause = k.backoff
		}
		k.metrics.retries.Inc()
		k.throttle.Log(slog.LevelWarn, "again "+outcome.why, "a request of the queue is made again", "flow", k.config.Flow, "attempts", a.made,
			"cause", outcome.why, "error", outcome.err)
		if !pause.waitIn(take, outcome.retryAfter, k.waiting) {
			return false
		}
	}
	return true
}

// An attempt is a request to be made, or what is left of one.
type attempt struct {
	message message.Message
	record  []byte // of the message, nil when it is a part
	made    int
}

// line returns the attempt as a record.
func (a *attempt) line() []byte {
	if a.record != nil {
		return a.record
	}
	record, err := a.message.AppendTo(nil)
	if err != nil {
		return []byte(a.message.Target) // cannot be: it was read from a record
	}
	return record
}

// A bulkAction is one of the actions of a bulk.
type bulkAction struct {
	verb       bulk.Verb
	start, end int // where it stands in the body
}

// actions returns those of a bulk. The error says why they cannot be told apart.
func (a *attempt) actions() ([]bulkAction, error) {
	var out []bulkAction
	var s bulk.Scanner
	for s.Reset(a.message.Body); s.Next(); {
		at := s.Action()
		if at.Verb == bulk.Other {
			return nil, fmt.Errorf("bulk action line at byte %d: none of index, create, update and delete", at.Start)
		}
		out = append(out, bulkAction{at.Verb, at.Start, at.End})
	}
	return out, s.Err()
}

// part returns the attempt at some actions of a bulk, in their order.
func (a *attempt) part(actions []bulkAction) *attempt {
	part := &attempt{message: a.message, made: a.made}
	part.message.Body = nil
	for _, at := range actions {
		part.message.Body = append(part.message.Body, a.message.Body[at.start:at.end]...)
	}
	return part
}

// result is what came of an attempt.
type result struct {
	kind       resultKind
	halves     []*attempt // of what was divided
	progress   bool       // a part of it is settled
	retryAfter time.Duration
	why        string // from a closed set, for the log
	err        error
}

type resultKind uint8

const (
	again   resultKind = iota
	settled            // it has gone well, or is among the letters
	divided            // it is too large as a whole
)

// make makes the request once.
func (k *replaySink) make(finish context.Context, a *attempt) result {
	g := k.flows()
	if g == nil {
		return result{why: "no configuration is in force"}
	}
	m := &a.message
	x := flows.NewReplay(flows.Replay{Queue: k.queue, Time: m.Time, Attempts: a.made}, m.Method, m.Target, m.Host, m.ClientIP, m.User)
	addFields(&x.Request.Header, m.Fields)
	x.Request.Body.Replace(m.Body)
	ctx, cancel := context.WithTimeout(finish, k.config.Timeout.Std())
	defer cancel()
	defer context.AfterFunc(ctx, x.Cancel().Fire)()
	ok, err := g.Run(x, k.config.Flow)
	if !ok {
		return result{why: "the flow is not in force"}
	}
	a.made++
	defer x.End()
	switch {
	case x.Replay.Aside:
		k.metrics.rejected.Inc()
		return result{kind: settled}
	case err != nil:
		e := elastic.AsError(err)
		return k.judge(a, x, bulk.Outcome{Status: e.Status, ErrorType: e.Type, Reason: e.Reason}, e.RetryAfter, obs.RedactError(err))
	}
	if x.Call().Name == "bulk" && x.Response.Status == http.StatusOK {
		return k.judgeBulk(a, x)
	}
	var failure bulk.Outcome
	if x.Response.Status >= 300 {
		failure = failureOf(x)
	}
	failure.Status = x.Response.Status
	return k.judge(a, x, failure, retryAfter(string(x.Response.Header.Get("retry-after"))), nil)
}

// addFields adds the header fields of a message. What an answer looks like is not theirs to say: it is read here, as JSON.
func addFields(h *wire.Header, fields []message.Field) {
	version := ""
	for _, f := range fields {
		name := []byte(f.Name)
		if wire.EqualFold(name, "accept") || wire.EqualFold(name, "accept-encoding") {
			continue
		}
		if wire.EqualFold(name, "content-type") {
			_, params, _ := mime.ParseMediaType(f.Value)
			version = params["compatible-with"]
		}
		h.AddString(f.Name, f.Value)
	}
	if version != "" { // Elasticsearch 8 refuses bodies for a version where an answer for it is not asked for
		h.AddString("Accept", "application/vnd.elasticsearch+json;compatible-with="+version)
	}
}

// judge says what an answer to the whole request means.
func (k *replaySink) judge(a *attempt, x *flows.Exchange, o bulk.Outcome, wait time.Duration, err error) result {
	switch kindOf(&o, bulk.VerbOfCall(x.Call().Name, x.Request.Query)) {
	case bulk.Stored:
		k.metrics.stored.Inc()
		return result{kind: settled}
	case bulk.Duplicate:
		k.metrics.duplicate.Inc()
		return result{kind: settled}
	case bulk.Retry:
		return result{retryAfter: wait, why: "status " + strconv.Itoa(o.Status), err: err}
	}
	if o.Status == http.StatusRequestEntityTooLarge && x.Call().Name == "bulk" {
		if actions, err := a.actions(); err == nil && len(actions) > 1 {
			middle := len(actions) / 2
			return result{kind: divided, halves: []*attempt{a.part(actions[:middle]), a.part(actions[middle:])}}
		}
	}
	k.letters.reject(a.line(), o)
	return result{kind: settled}
}

// judgeBulk looks at the items of an answer: those that failed for a time are what is left to do, in their order.
func (k *replaySink) judgeBulk(a *attempt, x *flows.Exchange) result {
	actions, err := a.actions()
	if err != nil { // a cluster that skips what it does not know leaves no way to tell which item is whose
		k.letters.reject(a.line(), bulk.Outcome{Status: http.StatusBadRequest, ErrorType: "malformed_action", Reason: err.Error()})
		return result{kind: settled}
	}
	var outcomes []bulk.Outcome
	answer, err := x.Response.Body.Bytes(maxAnswer)
	if err == nil {
		outcomes, err = bulk.Outcomes(answer, len(actions))
	}
	if err != nil {
		return result{why: "an answer that does not say what became of the actions", err: obs.RedactError(err)}
	}
	var left []bulkAction
	var reason *bulk.Outcome
	for i, at := range actions {
		o := &outcomes[i]
		switch kindOf(o, at.verb) {
		case bulk.Stored:
			k.metrics.stored.Inc()
		case bulk.Duplicate:
			k.metrics.duplicate.Inc()
		case bulk.Retry:
			left, reason = append(left, at), o
		case bulk.Rejected:
			k.letters.reject(a.part(actions[i:i+1]).line(), *o)
		}
	}
	if len(left) == 0 {
		return result{kind: settled}
	}
	if len(left) < len(actions) {
		*a = *a.part(left)
	}
	return result{progress: len(left) < len(actions), why: "items of status " + strconv.Itoa(reason.Status), err: errors.New(clip(reason.Reason))}
}

// failureOf reads an error out of an answer.
func failureOf(x *flows.Exchange) bulk.Outcome {
	body, err := x.Response.Body.Bytes(maxAnswer)
	var answer struct {
		Error struct{ Type, Reason string }
	}
	if err != nil || json.Unmarshal(body, &answer) != nil {
		return bulk.Outcome{ErrorType: "exception", Reason: clip(string(body))}
	}
	return bulk.Outcome{ErrorType: answer.Error.Type, Reason: answer.Error.Reason}
}
