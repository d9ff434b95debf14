package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"weir/elastic"
	"weir/elastic/bulk"
	"weir/internal/obs"
	"weir/queue"
)

const (
	// leastBatch is the number of records below which a request of its own costs more than sending in parallel gains.
	leastBatch = 200
	// maxAnswer bounds the answer to a bulk request: about 200 bytes an item, more where items fail.
	maxAnswer = 64 << 20
	// maxReason bounds what is logged of an answer.
	maxReason = 500
)

// settle implements sink.
func (k *indexSink) settle(take, finish context.Context, block queue.Block) bool {
	defer func() {
		clear(k.records)
		k.records = k.records[:0]
	}()
	for r := range block.Records() {
		k.records = append(k.records, r)
	}
	if f, ordered := k.form.(orderedForm); ordered {
		return k.inLanes(take, finish, f) && k.letters.bury(take, finish)
	}
	k.batches = k.batches[:0]
	for rest := k.records; len(rest) > 0; {
		n := k.cut(rest, len(k.records))
		k.batches = append(k.batches, rest[:n])
		rest = rest[n:]
	}
	done := share(len(k.senders), k.batches, func(worker int, records [][]byte) bool {
		return k.senders[worker].deliver(take, finish, records)
	})
	return done && k.letters.bury(take, finish)
}

// inLanes gives each sender the actions of some documents, so that those upon one document keep their order: a sender
// settles one request before it sends the next, and a request has at most one action upon a document, since one that is sent
// again would overtake those behind it.
func (k *indexSink) inLanes(take, finish context.Context, f orderedForm) bool {
	for _, s := range k.senders {
		s.lane, s.keys = s.lane[:0], s.keys[:0]
	}
	for _, r := range k.records {
		key := f.key(r)
		s := k.senders[key%uint64(len(k.senders))]
		s.lane, s.keys = append(s.lane, r), append(s.keys, key)
	}
	return share(len(k.senders), k.senders, func(_ int, s *sender) bool {
		defer clear(s.lane)
		seen := map[uint64]bool{}
		for rest, keys := s.lane, s.keys; len(rest) > 0; {
			clear(seen)
			n := 0
			for most := k.cut(rest, len(k.records)); n < most && !seen[keys[n]]; n++ {
				seen[keys[n]] = true
			}
			if !s.deliver(take, finish, rest[:n:n]) {
				return false
			}
			rest, keys = rest[n:], keys[n:]
		}
		return true
	})
}

// cut returns how many of the records make the next request. A block is spread over all workers.
func (k *indexSink) cut(records [][]byte, all int) int {
	most := min(k.config.BulkSize, max(leastBatch, (all+len(k.senders)-1)/len(k.senders)))
	size := int64(0)
	for n, r := range records {
		size += int64(len(r) + k.form.overhead())
		if n == most || n > 0 && size > k.limit.Load() {
			return n
		}
	}
	return len(records)
}

// A sender sends one bulk request after the other.
type sender struct {
	*indexSink
	form  form
	body  []byte
	verbs []bulk.Verb // of the actions in body
	lane  [][]byte    // records that are its own, with the keys of their documents
	keys  []uint64
}

// deliver sends records until each is stored or known to be refused for good. It returns false when it was stopped before:
// while it waits for a better time it stops with take, otherwise with finish.
func (s *sender) deliver(take, finish context.Context, records [][]byte) bool {
	pause := s.backoff
	for len(records) > 0 {
		if records = s.encode(records); len(records) == 0 {
			return true
		}
		outcomes, err := s.send(finish, len(records))
		if finish.Err() != nil && err != nil {
			return false
		}
		var failed *failure
		var retryAfter time.Duration
		switch {
		case err == nil:
			before := len(records)
			if records = s.judge(records, outcomes); len(records) == 0 {
				s.metrics.whole.Inc()
				return true
			}
			s.metrics.partial.Inc()
			if len(records) < before {
				pause = s.backoff
			}
		case errors.As(err, &failed) && failed.divides():
			s.metrics.refused.Inc()
			if len(records) == 1 {
				s.letters.reject(records[0], bulk.Outcome{Status: failed.status, ErrorType: "bulk_request_refused", Reason: failed.reason})
				return true
			}
			if failed.status == http.StatusRequestEntityTooLarge {
				s.lower(int64(len(s.body)) / 2)
			}
			half := len(records) / 2
			if !s.deliver(take, finish, records[:half]) {
				return false
			}
			records = records[half:]
			continue
		case failed != nil:
			s.metrics.refused.Inc()
			retryAfter = failed.retryAfter
			s.throttle.Log(slog.LevelWarn, "refused "+strconv.Itoa(failed.status), "bulk request was refused, trying again",
				"status", failed.status, "records", len(records), "reason", failed.reason)
		default:
			s.metrics.failed.Inc()
			if e := (*elastic.Error)(nil); errors.As(err, &e) {
				retryAfter = e.RetryAfter
			}
			s.throttle.Log(slog.LevelWarn, "failed", "bulk request failed, trying again", "records", len(records), "error", obs.RedactError(err))
		}
		s.metrics.retries.Add(float64(len(records)))
		if !s.pause(&pause, take, retryAfter) {
			return false
		}
	}
	return true
}

// encode makes the body of a bulk request of records and puts those aside that are no actions. It returns the others.
func (s *sender) encode(records [][]byte) [][]byte {
	s.body, s.verbs = s.body[:0], s.verbs[:0]
	good := records[:0]
	for _, r := range records {
		body, verb, ok := s.form.action(s.body, r)
		if !ok {
			s.letters.reject(r, bulk.Outcome{Status: http.StatusBadRequest, ErrorType: "malformed_action", Reason: "the record is no action of a bulk request"})
			continue
		}
		s.body, s.verbs = body, append(s.verbs, verb)
		good = append(good, r)
	}
	return good
}

// A failure is an answer that is no answer to each record.
type failure struct {
	status     int
	reason     string
	retryAfter time.Duration
	own        bool // a node said it, not a proxy in front of it
}

func (f *failure) Error() string { return fmt.Sprintf("status %d: %s", f.status, f.reason) }

// divides tells whether a smaller request may fare better: one over the limit of the node or of a proxy in front of it
// (elastic/beats#29368), or one that a malformed record spoils as a whole. Any other refusal is about the cluster, the way
// to it or the gateway's rights, and nothing that records could change.
func (f *failure) divides() bool {
	return f.status == http.StatusRequestEntityTooLarge || f.status == http.StatusBadRequest && f.own
}

// lower makes further requests smaller.
func (w *indexing) lower(limit int64) {
	for {
		now := w.limit.Load()
		if limit >= now {
			return
		}
		if w.limit.CompareAndSwap(now, limit) {
			w.logger.Info("bulk requests become smaller, the cluster takes none of this size", "most_bytes", limit)
			return
		}
	}
}

// send makes one bulk request of what encode made of n records and returns what became of each. The error is a *failure for
// an answer that does not say.
func (s *sender) send(ctx context.Context, n int) (outcomes []bulk.Outcome, err error) {
	if !s.pace.begin(ctx) {
		return nil, errStopped
	}
	defer func() {
		var failed *failure
		throttled := errors.As(err, &failed) && failed.status == http.StatusTooManyRequests ||
			slices.ContainsFunc(outcomes, func(o bulk.Outcome) bool { return o.Status == http.StatusTooManyRequests })
		s.pace.end(throttled, err == nil)
	}()
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout.Std())
	defer cancel()
	// Compressed answers would have to be unpacked before failed items could be seen in them (vectordotdev/vector#15478).
	res, err := esapi.BulkRequest{
		Body:   bytes.NewReader(s.body),
		Header: http.Header{"Content-Type": {"application/x-ndjson"}, "Accept-Encoding": {"identity"}},
	}.Do(ctx, s.cluster)
	if err != nil {
		return nil, err
	}
	answer, err := readAnswer(res)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, &failure{res.StatusCode, clip(string(answer)), retryAfter(res.Header.Get("Retry-After")), member(answer, "error") != nil}
	}
	return bulk.Outcomes(answer, n)
}

func readAnswer(res *esapi.Response) ([]byte, error) {
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return answer, errors.Join(err, res.Body.Close())
}

// retryAfter returns what a value of the field Retry-After asks for in seconds; dates are not understood.
func retryAfter(value string) time.Duration {
	seconds, err := strconv.Atoi(value)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 3600)) * time.Second
}

func clip(reason string) string { return reason[:min(len(reason), maxReason)] }

// judge settles records by their outcomes and returns those to be sent again, in the memory of records.
func (s *sender) judge(records [][]byte, outcomes []bulk.Outcome) [][]byte {
	left := records[:0]
	var reason *bulk.Outcome
	for i, r := range records {
		o := &outcomes[i]
		switch kindOf(o, s.verbs[i]) {
		case bulk.Stored:
			s.metrics.stored.Inc()
		case bulk.Duplicate:
			s.metrics.duplicate.Inc()
		case bulk.Retry:
			left, reason = append(left, r), o
		case bulk.Rejected:
			s.letters.reject(r, *o)
		}
	}
	if reason != nil {
		s.throttle.Log(slog.LevelWarn, "item "+strconv.Itoa(reason.Status), "records are not taken now, trying again", "records", len(left),
			"status", reason.Status, "type", reason.ErrorType, "reason", clip(reason.Reason))
	}
	return left
}

// kindOf judges an outcome as bulk does, save that the gateway's rights, an index that a full disk has made read-only, and the
// time limit of a node or proxy are nothing that a record could be blamed for.
func kindOf(o *bulk.Outcome, v bulk.Verb) bulk.Kind {
	switch o.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout:
		return bulk.Retry
	}
	return o.Kind(v)
}
