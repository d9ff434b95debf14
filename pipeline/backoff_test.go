package pipeline

import (
	"context"
	"testing"
	"time"

	"weir/internal/simtime"
)

func TestBackoff(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		b := defaultBackoff
		for want := b.next; want < time.Minute; want *= 2 {
			limit := min(want, 10*time.Second)
			start := time.Now()
			if !b.wait(t.Context(), 0) {
				t.Fatal("the wait was cut off")
			}
			if d := time.Since(start); d < limit/2 || d > limit {
				t.Errorf("waited %s, want %s to %s", d, limit/2, limit)
			}
		}
	})
}

func TestBackoffWaitsAsLongAsTheClusterAsks(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		f := func(ask, want time.Duration) {
			t.Helper()
			b := defaultBackoff
			start := time.Now()
			b.wait(t.Context(), ask)
			if d := time.Since(start); d != want {
				t.Errorf("asked for %s, waited %s, want %s", ask, d, want)
			}
		}
		f(3*time.Second, 3*time.Second)
		f(time.Hour, time.Minute)
	})
}

func TestBackoffEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := backoff{time.Hour, time.Hour}
	if b.wait(ctx, 0) {
		t.Error("waited with a context that had ended")
	}
}
