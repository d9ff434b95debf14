package balance

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"weir/internal/simtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a Cancel.
type gate chan struct{}

func (g gate) Done() <-chan struct{} { return g }

func full(waiting int) (*Picker[int], *Member[int]) {
	p := NewPicker[int](Options{MaxInFlight: 1, MaxWaiting: waiting})
	p.Set([]*Member[int]{p.NewMember("0", 0, 1)})
	return p, p.Pick(Search, nil)
}

func TestCallersTakeTurns(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		p, m := full(100)
		var order []uint64
		var wg sync.WaitGroup
		ask := func(caller uint64) {
			wg.Go(func() {
				got, queued, err := p.Acquire(Ask{Caller: caller, Wait: time.Minute})
				if err != nil || got != m || queued < time.Second {
					t.Errorf("got %v after %v, %v", got, queued, err)
				}
				order = append(order, caller) // one at a time has the place
				got.Release()
			})
			synctest.Wait()
		}
		for range 5 {
			ask(1)
		}
		ask(2)
		ask(3)
		ask(2)
		<-time.After(time.Second)
		m.Release()
		wg.Wait()
		if want := []uint64{1, 2, 3, 1, 2, 1, 1, 1}; !slices.Equal(order, want) {
			t.Errorf("got %v, want %v", order, want)
		}
		if m.InFlight() != 0 || p.Waiting() != 0 || len(p.queue.lines) != 0 || p.queue.turns.Len() != 0 {
			t.Errorf("left behind: %d in flight, %d waiting", m.InFlight(), p.Waiting())
		}
	})
}

func TestQueueRefuses(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		p, m := full(1)
		var wg sync.WaitGroup
		f := func(a Ask, want error) {
			wg.Go(func() {
				if _, _, err := p.Acquire(a); !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			})
			synctest.Wait()
		}
		f(Ask{Wait: time.Second}, ErrTooLate)
		f(Ask{Wait: time.Second}, ErrQueueFull)
		wg.Wait()
		g := make(gate)
		f(Ask{Wait: time.Minute, Cancel: g}, ErrCancelled)
		close(g)
		wg.Wait()
		if p.Waiting() != 0 {
			t.Errorf("%d wait", p.Waiting())
		}
		m.SetWeight(0)
		f(Ask{Wait: time.Minute}, ErrNoMember)
		wg.Wait()
	})
}

// A place that becomes free by a new member, a weight or a check is given to those that wait.
func TestNewRoomIsGiven(t *testing.T) {
	f := func(what string, make func(p *Picker[int], m *Member[int])) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			p, m := full(1)
			drained := p.NewMember("1", 1, 0)
			p.Set([]*Member[int]{m, drained})
			done := false
			go func() {
				_, _, err := p.Acquire(Ask{Wait: time.Minute})
				done = err == nil
			}()
			synctest.Wait()
			make(p, drained)
			synctest.Wait()
			if !done {
				t.Errorf("%s: still waiting", what)
			}
		})
	}
	f("a member joins", func(p *Picker[int], _ *Member[int]) {
		p.Set(append(p.Members(), p.NewMember("2", 2, 1)))
	})
	f("a weight", func(_ *Picker[int], m *Member[int]) { m.SetWeight(1) })
}

// Nobody is lost in a storm of cancels, and nobody gets a place that another has.
func TestQueueUnderAStorm(t *testing.T) {
	p := NewPicker[int](Options{MaxInFlight: 2, MaxWaiting: 1000})
	var ms []*Member[int]
	for i := range 3 {
		ms = append(ms, p.NewMember("", i, 1))
	}
	p.Set(ms)
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(i), 1))
			for range 60 {
				g := make(gate)
				if dice.IntN(2) == 0 {
					go close(g)
				}
				wait := time.Minute
				if dice.IntN(4) == 0 {
					wait = time.Microsecond
				}
				m, _, err := p.Acquire(Ask{Class: Class(dice.IntN(classes)), Caller: uint64(i % 7), Wait: wait, Cancel: g})
				if err != nil {
					continue
				}
				if n := m.InFlight(); n > 3 { // one more for the moment in which another tries to take the place
					t.Errorf("%d in flight", n)
				}
				m.Done(Search, Good, time.Millisecond, "")
			}
		})
	}
	wg.Wait()
	for _, m := range ms {
		if m.InFlight() != 0 {
			t.Errorf("%d are still in flight", m.InFlight())
		}
	}
	if p.Waiting() != 0 || len(p.queue.lines) != 0 {
		t.Errorf("%d wait", p.Waiting())
	}
}
