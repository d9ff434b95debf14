package pipeline

import (
	"context"
	"sync"
	"testing"
	"time"

	"weir/internal/simtime"
)

func TestPaceHalvesAndGrows(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		p := newPace(8)
		round := func(n int, throttled bool) {
			for range n {
				p.begin(t.Context())
				p.end(throttled, !throttled)
			}
		}
		f := func(want float64) {
			t.Helper()
			if got := p.now(); got != want {
				t.Errorf("%v requests, want %v", got, want)
			}
		}
		f(8)
		<-time.After(time.Minute)
		round(4, true) // they say it of the same moment
		f(4)
		<-time.After(time.Second)
		round(1, true)
		f(2)
		for range 10 {
			<-time.After(time.Second)
			round(1, true)
		}
		f(1)
		round(1, false)
		f(2)
		round(100, false)
		f(8)
	})
}

func TestPaceBoundsWhatIsUnderWay(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		p := newPace(4)
		<-time.After(time.Minute)
		p.begin(t.Context())
		p.end(true, false)
		var running, most int
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				if !p.begin(t.Context()) {
					t.Error("the turn did not come")
				}
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				<-time.After(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				p.end(false, false)
			})
		}
		all.Wait()
		if most != 2 {
			t.Errorf("%d at the same time, want 2", most)
		}
	})
}

func TestPaceEndsWithItsContext(t *testing.T) {
	p := newPace(1)
	p.begin(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p.begin(ctx) {
		t.Error("began beside the only one")
	}
}
