package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"weir/flows"
	"weir/internal/simtime"
)

// A busyCluster serves so many searches at once and lets the others wait, first come, first served, as a node's thread pool
// does.
type busyCluster struct{ slots chan struct{} }

func (c *busyCluster) Serve(x *flows.Exchange) error {
	c.slots <- struct{}{}
	work, err := time.ParseDuration(string(x.Request.Header.Get("x-work")))
	<-time.After(work)
	<-c.slots
	x.Response.Status = 200
	return err
}

// neighbours runs, for ten seconds, ten callers of five searches a second and, if noisy, one with two hundred connections in a
// loop, and returns the p99 of what the ten saw.
func neighbours(t *testing.T, filters string, noisy bool) (p99 time.Duration) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, filters)
		cluster := &busyCluster{slots: make(chan struct{}, 16)}
		filter, _ := g.seats()[0].(*concurrency)
		serve := func(user string, random *rand.Rand) (time.Duration, error) {
			// A search takes 20 ms in the median, with a long tail.
			work := time.Duration(20e6 * math.Exp(0.5*random.NormFloat64()))
			x := working(user, work)
			start := time.Now()
			err := filter.Serve(x, cluster)
			x.Conclude()
			return time.Since(start), err
		}
		end := time.Now().Add(10 * time.Second)
		var wg sync.WaitGroup
		var mu sync.Mutex // guards seen
		var seen []time.Duration
		for caller := range 10 {
			random := rand.New(rand.NewPCG(7, uint64(caller)))
			wg.Go(func() {
				<-time.After(time.Duration(caller) * 20 * time.Millisecond)
				var own sync.WaitGroup
				for time.Now().Before(end) {
					one := rand.New(rand.NewPCG(random.Uint64(), 1))
					own.Go(func() {
						took, err := serve(fmt.Sprint("caller-", caller), one)
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							t.Errorf("a quiet caller is refused: %v", err)
						}
						seen = append(seen, took)
					})
					<-time.After(200 * time.Millisecond)
				}
				own.Wait()
			})
		}
		for loop := range 200 {
			if !noisy {
				break
			}
			random := rand.New(rand.NewPCG(8, uint64(loop)))
			wg.Go(func() {
				for time.Now().Before(end) {
					if _, err := serve("noisy", random); err != nil {
						<-time.After(100 * time.Millisecond) // it does not even wait as it is told
					}
				}
			})
		}
		wg.Wait()
		slices.Sort(seen)
		p99 = seen[len(seen)*99/100]
	})
	return p99
}

// TestNoisyNeighbour holds that a caller with two hundred connections in a loop does not slow others down by more than three
// tenths at their p99, as it does without the filter.
func TestNoisyNeighbour(t *testing.T) {
	const filter = `- concurrency: {max: 16, queue: {size: 64, max_wait: 2s}}`
	quiet := neighbours(t, filter, false)
	beside := neighbours(t, filter, true)
	without := neighbours(t, `- concurrency: {max: 16, mode: off}`, true)
	t.Logf("p99 of the quiet callers: %s alone, %s beside the noisy one, %s without the filter", quiet, beside, without)
	if limit := quiet * 13 / 10; beside > limit {
		t.Errorf("p99 of %s beside a noisy neighbour, %s alone: want at most %s", beside, quiet, limit)
	}
	if without < 2*quiet {
		t.Errorf("p99 of %s without the filter, %s alone: the neighbour is not noisy", without, quiet)
	}
}
