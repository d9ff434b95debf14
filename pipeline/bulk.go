package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
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

// settle delivers all records of a block and puts aside what the cluster refuses for good. It returns false when it was
// stopped before that was done.
func (w *indexing) settle(take, finish context.Context, block queue.Block) bool {
	w.records = w.records[:0]
	for r := range block.Records() {
		w.records = append(w.records, r)
	}
	defer clear(w.records)
	w.batches = w.batches[:0]
	for rest := w.records; len(rest) > 0; {
		n := w.cut(rest, len(w.records))
		w.batches = append(w.batches, rest[:n])
		rest = rest[n:]
	}
	var next atomic.Int64
	var stopped atomic.Bool
	var workers sync.WaitGroup
	for i := range min(len(w.senders), len(w.batches)) {
		workers.Go(func() {
			for n := next.Add(1); n <= int64(len(w.batches)); n = next.Add(1) {
				if !w.senders[i].deliver(take, finish, w.batches[n-1]) {
					stopped.Store(true)
					return
				}
			}
		})
	}
	workers.Wait()
	return !stopped.Load() && w.bury(take, finish)
}

// cut returns how many of the records make the next request. A block is spread over all workers.
func (w *indexing) cut(records [][]byte, all int) int {
	most := min(w.config.BulkSize, max(leastBatch, (all+len(w.senders)-1)/len(w.senders)))
	size := int64(0)
	for n, r := range records {
		size += int64(len(r) + w.overhead())
		if n == most || n > 0 && size > w.limit.Load() {
			return n
		}
	}
	return len(records)
}

// overhead is the length of an action line with an id of usual length.
func (w *indexing) overhead() int { return len(`{"create":{"_index":,"_id":""}}`) + len(w.index) + 30 }

// A sender sends one bulk request after the other.
type sender struct {
	*indexing
	body []byte
}

// deliver sends records until each is stored or known to be refused for good. It returns false when it was stopped before:
// while it waits for a better time it stops with take, otherwise with finish.
func (s *sender) deliver(take, finish context.Context, records [][]byte) bool {
	pause := s.backoff
	for len(records) > 0 {
		outcomes, err := s.send(finish, records)
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
				s.reject(records[0], bulk.Outcome{Status: failed.status, ErrorType: "bulk_request_refused", Reason: failed.reason})
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
		if !pause.wait(take, retryAfter) {
			return false
		}
	}
	return true
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

// send makes one bulk request and returns what became of each record. The error is a *failure for an answer that does not
// say.
//
// Records with an id are created, not indexed: of those that an earlier request stored, whose answer was lost, the cluster
// says that they are there already. Records without an id get one from the cluster, and a lost answer stores them twice.
func (s *sender) send(ctx context.Context, records [][]byte) ([]bulk.Outcome, error) {
	s.body = s.body[:0]
	for _, r := range records {
		s.body = append(append(s.body, `{"create":{"_index":`...), s.index...)
		if id := idOf(r); id != nil {
			s.body = append(append(s.body, `,"_id":`...), id...)
		}
		s.body = append(append(append(s.body, "}}\n"...), r...), '\n')
	}
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
		return nil, &failure{res.StatusCode, clip(string(answer)), retryAfter(res.Header), member(answer, "error") != nil}
	}
	return bulk.Outcomes(answer, len(records))
}

func readAnswer(res *esapi.Response) ([]byte, error) {
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return answer, errors.Join(err, res.Body.Close())
}

// retryAfter returns what the field Retry-After asks for in seconds; dates are not understood.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 3600)) * time.Second
}

func clip(reason string) string { return reason[:min(len(reason), maxReason)] }

// judge settles records by their outcomes and returns those to be sent again, in the memory of records.
func (s *sender) judge(records [][]byte, outcomes []bulk.Outcome) [][]byte {
	left := records[:0]
	for i, r := range records {
		o := &outcomes[i]
		switch o.Kind(bulk.Create) {
		case bulk.Stored:
			s.metrics.stored.Inc()
		case bulk.Duplicate:
			s.metrics.duplicate.Inc()
		case bulk.Retry:
			left = append(left, r)
		case bulk.Rejected:
			if o.Status == http.StatusUnauthorized || o.Status == http.StatusForbidden {
				// Rights, or an index that a full disk has made read-only: the record is not to blame.
				s.throttle.Log(slog.LevelWarn, "item "+o.ErrorType, "the index takes no records, trying again", "status", o.Status,
					"type", o.ErrorType, "reason", clip(o.Reason))
				left = append(left, r)
				continue
			}
			s.reject(r, *o)
		}
	}
	return left
}
