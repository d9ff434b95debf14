package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weir/elastic"
	"weir/elastic/bulk"
	"weir/internal/obs"
	"weir/queue"
)

// A letter is a record that the cluster refuses for good, with its reason.
type letter struct {
	record  []byte // memory of the block in hand
	outcome bulk.Outcome
}

// letters collects what could not be delivered of one block.
type letters struct {
	dead     queue.Queue
	index    string // that records were to go to, if the cluster's answer does not tell
	backoff  backoff
	waiting  *atomic.Int64
	throttle *obs.Throttle
	metrics  *metrics

	mu   sync.Mutex // guards the field below
	list []letter
}

func (l *letters) reject(record []byte, o bulk.Outcome) {
	l.throttle.Log(slog.LevelWarn, "rejected "+o.ErrorType, "records are refused by the cluster and put aside", "status", o.Status,
		"type", o.ErrorType, "reason", clip(o.Reason), "dead_letters", l.dead.Name())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, letter{record, o})
}

// roomWait is how long the queue for dead letters may take to make room before a letter is dropped: one poisoned stream
// must not stop all others.
const roomWait = 5 * time.Second

// bury puts the letters of the block onto their queue and waits until they are on disk. It returns false when it was
// stopped before.
func (l *letters) bury(take, finish context.Context) bool {
	defer func() {
		clear(l.list)
		l.list = l.list[:0]
	}()
	if len(l.list) == 0 {
		return true
	}
	var line []byte
	now := time.Now()
	for i := range l.list {
		line = l.list[i].appendTo(line[:0], l.index, now)
		switch err := l.putAside(finish, line); {
		case err == nil:
			l.metrics.rejected.Inc()
		case finish.Err() != nil:
			return false
		default:
			l.metrics.dropped.Inc()
			l.throttle.Log(slog.LevelError, "dropped", "records that the cluster refuses are lost, the queue for them does not take them",
				"dead_letters", l.dead.Name(), "error", err)
		}
	}
	for pause := l.backoff; ; {
		err := l.dead.Flush(finish)
		if err == nil {
			return true
		}
		l.throttle.Log(slog.LevelError, "flush", "the queue for dead letters cannot be written, trying again", "error", err)
		if errors.Is(err, queue.ErrClosed) || !pause.waitIn(take, 0, l.waiting) {
			return false
		}
	}
}

func (l *letters) putAside(ctx context.Context, line []byte) error {
	err := l.dead.Put(line)
	if !errors.Is(err, queue.ErrFull) {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, roomWait, err)
	defer cancel()
	return l.dead.PutWait(ctx, line)
}

// appendTo appends the letter as a line of JSON. A record that is no JSON is kept as text. index is where the record was to
// go, if the answer does not tell.
func (l *letter) appendTo(dst []byte, index string, now time.Time) []byte {
	if l.outcome.Index != "" {
		index = l.outcome.Index
	}
	dst = now.UTC().AppendFormat(append(dst, `{"@timestamp":"`...), "2006-01-02T15:04:05.000Z")
	dst = append(dst, `","error":{"status":`...)
	dst = strconv.AppendInt(dst, int64(l.outcome.Status), 10)
	dst = elastic.AppendString(append(dst, `,"type":`...), l.outcome.ErrorType)
	dst = elastic.AppendString(append(dst, `,"reason":`...), l.outcome.Reason)
	dst = elastic.AppendString(append(dst, `},"index":`...), index)
	dst = append(dst, `,"record":`...)
	if json.Valid(l.record) {
		dst = append(dst, l.record...)
	} else {
		dst = elastic.AppendString(dst, string(l.record))
	}
	return append(dst, '}')
}
