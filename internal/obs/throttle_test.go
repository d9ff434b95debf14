package obs

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/simtime"
)

// lockedBuffer is a bytes.Buffer that loggers and tests share.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// plain returns a logger without times and the lines that it wrote.
func plain(level slog.Level) (*slog.Logger, func() []string) {
	var buf lockedBuffer
	noTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: level, ReplaceAttr: noTime}))
	return logger, func() []string {
		text := strings.TrimSuffix(buf.String(), "\n")
		if text == "" {
			return nil
		}
		return strings.Split(text, "\n")
	}
}

func TestThrottleHidesAndCounts(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		logger, lines := plain(slog.LevelInfo)
		th := NewThrottle(logger, time.Minute)
		for i := range 813 {
			th.Log(slog.LevelWarn, "k", "node failed", "n", i)
		}
		th.Log(slog.LevelWarn, "other", "other")
		want := []string{`level=WARN msg="node failed" n=0`, `level=WARN msg=other`}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Error(diff)
		}
		<-time.After(61 * time.Second)
		synctest.Wait()
		want = append(want, `level=WARN msg="node failed" n=812 repeated=812`)
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Error(diff)
		}
		th.Close()
		if th.Hidden() != 812 {
			t.Errorf("hidden %d, want 812", th.Hidden())
		}
	})
}

func TestThrottleSummaryBeginsAnInterval(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		logger, lines := plain(slog.LevelInfo)
		th := NewThrottle(logger, time.Minute)
		defer th.Close()
		for range 300 { // one a second for five minutes
			th.Log(slog.LevelWarn, "k", "m")
			<-time.After(time.Second)
			synctest.Wait()
		}
		if n := len(lines()); n < 5 || n > 6 {
			t.Errorf("%d lines in five minutes, want one a minute:\n%s", n, strings.Join(lines(), "\n"))
		}
	})
}

func TestThrottleForgetsSilentKeys(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		logger, lines := plain(slog.LevelInfo)
		th := NewThrottle(logger, time.Minute)
		defer th.Close()
		th.Log(slog.LevelWarn, "k", "m")
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if len(th.lines) != 0 {
			t.Errorf("%d keys kept", len(th.lines))
		}
		th.Log(slog.LevelWarn, "k", "m")
		if n := len(lines()); n != 2 {
			t.Errorf("%d lines, want 2", n)
		}
	})
}

func TestThrottleKeysAreBounded(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		logger, lines := plain(slog.LevelInfo)
		th := NewThrottle(logger, time.Minute)
		defer th.Close()
		for i := range maxThrottleKeys + 500 {
			th.Log(slog.LevelWarn, fmt.Sprint(i), "m")
		}
		if n := len(lines()); n != maxThrottleKeys+1 {
			t.Errorf("%d lines, want %d", n, maxThrottleKeys+1)
		}
	})
}

func TestThrottleCloseWritesWhatIsDue(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		logger, lines := plain(slog.LevelInfo)
		th := NewThrottle(logger, time.Minute)
		for range 3 {
			th.Log(slog.LevelWarn, "k", "m")
		}
		th.Close()
		th.Close()
		th.Log(slog.LevelWarn, "k", "m")
		want := []string{"level=WARN msg=m", "level=WARN msg=m repeated=2"}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestThrottleIgnoresDisabledLevels(t *testing.T) {
	logger, lines := plain(slog.LevelError)
	th := NewThrottle(logger, time.Minute)
	defer th.Close()
	th.Log(slog.LevelWarn, "k", "m")
	th.Log(slog.LevelError, "k", "m")
	if n := len(lines()); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
}

// slowHandler blocks in Handle until release is closed.
type slowHandler struct {
	slog.Handler
	entered chan struct{}
	release chan struct{}
}

func (h *slowHandler) Handle(ctx context.Context, r slog.Record) error {
	h.entered <- struct{}{}
	<-h.release
	return h.Handler.Handle(ctx, r)
}

func TestThrottleCloseWaitsForALineBeingWritten(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		h := &slowHandler{slog.DiscardHandler, make(chan struct{}, 8), make(chan struct{})}
		h.Handler = slog.NewTextHandler(&bytes.Buffer{}, nil)
		th := NewThrottle(slog.New(h), time.Minute)
		go th.Log(slog.LevelWarn, "k", "m")
		<-h.entered
		th.Log(slog.LevelWarn, "k", "m")
		<-h.entered // the summary, a minute later
		closed := make(chan struct{})
		go func() { th.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close returned while a line was being written")
		default:
		}
		close(h.release)
		<-closed
	})
}

func TestThrottleFromManyGoroutines(t *testing.T) {
	logger, _ := plain(slog.LevelInfo)
	th := NewThrottle(logger, time.Microsecond)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				th.Log(slog.LevelWarn, fmt.Sprint((g+i)%5), "m")
			}
		})
	}
	wg.Wait()
	th.Close()
}
