package obs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// maxThrottleKeys bounds a Throttle. Keys beyond it share one line, so that keys made from input cannot fill memory.
const maxThrottleKeys = 1024

// Throttle writes at most one log line a key and interval. The first comes at once; those that follow within the
// interval are hidden, and at its end the last of them is written with their number as the attribute "repeated". A key
// that stays silent for an interval is forgotten. It is for warnings that a fault repeats for each request or packet.
type Throttle struct {
	logger  *slog.Logger
	every   time.Duration
	hidden  atomic.Uint64
	running sync.WaitGroup // armed timers and lines being written

	mu     sync.Mutex // guards the fields below
	lines  map[string]*throttledLine
	closed bool
}

type throttledLine struct {
	timer  *time.Timer
	hidden int
	level  slog.Level
	msg    string
	args   []any
}

func (l *throttledLine) write(logger *slog.Logger) {
	logger.Log(context.Background(), l.level, l.msg, append(l.args[:len(l.args):len(l.args)], "repeated", l.hidden)...)
}

// NewThrottle returns a Throttle with that interval, a minute if it is not positive. Close must be called.
func NewThrottle(logger *slog.Logger, every time.Duration) *Throttle {
	if every <= 0 {
		every = time.Minute
	}
	return &Throttle{logger: logger, every: every, lines: make(map[string]*throttledLine)}
}

// Log writes or hides a line; the arguments after msg are as in slog.Logger.Log. After Close it hides all.
func (t *Throttle) Log(level slog.Level, key, msg string, args ...any) {
	if !t.logger.Enabled(context.Background(), level) {
		return
	}
	if t.hide(level, key, msg, args) {
		t.hidden.Add(1)
		return
	}
	t.logger.Log(context.Background(), level, msg, args...)
}

func (t *Throttle) hide(level slog.Level, key, msg string, args []any) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return true
	}
	l, ok := t.lines[key]
	if !ok && len(t.lines) >= maxThrottleKeys {
		key = ""
		l, ok = t.lines[key]
	}
	if ok {
		l.hidden++
		l.level, l.msg, l.args = level, msg, args
		return true
	}
	l = &throttledLine{}
	t.lines[key] = l
	t.running.Add(1)
	l.timer = time.AfterFunc(t.every, func() { t.expire(key) })
	return false
}

// expire ends an interval of a key.
func (t *Throttle) expire(key string) {
	var due throttledLine
	t.mu.Lock()
	l := t.lines[key]
	switch {
	case t.closed: // Close writes what is due
		defer t.running.Done()
	case l.hidden == 0:
		delete(t.lines, key)
		defer t.running.Done()
	default:
		due = *l
		l.hidden, l.args = 0, nil
		l.timer.Reset(t.every)
		t.running.Add(1) // for this line, so that Close waits for it
		defer t.running.Done()
	}
	t.mu.Unlock()
	if due.hidden > 0 {
		due.write(t.logger)
	}
}

// Hidden returns how many lines were not written as they came.
func (t *Throttle) Hidden() uint64 { return t.hidden.Load() }

// Close writes what is still hidden and waits for lines being written. It may be called twice.
func (t *Throttle) Close() {
	var due []*throttledLine
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		for _, l := range t.lines {
			if l.timer.Stop() {
				t.running.Done()
			}
			if l.hidden > 0 {
				due = append(due, l)
			}
		}
	}
	t.mu.Unlock()
	for _, l := range due {
		l.write(t.logger)
	}
	t.running.Wait()
}
