package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

func TestTermUnderLoadDrains(t *testing.T) {
	c := estest.New(t, estest.Options{})
	fill(t, newClient(t), c.URL(), spread...)
	c.Inject(estest.Fault{Path: "*/_doc/*", Delay: 100 * time.Millisecond})
	refused := c.Inject(estest.Fault{Path: "*_bulk*", Status: http.StatusServiceUnavailable})
	s := newSite(t, c.URL())
	g := s.start()
	request, mark := logged("drained")
	l := startLoad(t, s.addr, 16, 20*time.Millisecond, request)
	l.last(2 * time.Second)
	told := time.Now()
	g.term()
	g.wait()
	shots := l.stop()
	checkShots(t, shots, func(s shot) bool { return s.sent.Before(told) })
	running := 0
	for _, s := range shots {
		if s.sent.Before(told) && s.ended.After(told) {
			running++
		}
	}
	if running == 0 {
		t.Error("no request was running when the gateway was told to end: the test shows nothing")
	}
	refused.Remove()
	g = s.start()
	answered := shots[:0]
	for _, s := range shots {
		if s.status != 0 {
			answered = append(answered, s)
		}
	}
	awaitRecords(t, c.URL(), answered, mark, time.Now(), g)
}

// soak returns how much is done of something: as usual, or the longer form that WEIR_SOAK=1 asks for.
func soak(usual, long int) int {
	if os.Getenv("WEIR_SOAK") == "1" {
		return long
	}
	return usual
}

// standsForAll tells whether tests that take minutes and find engines alike run on this one: on OpenSearch 3, whose shards begin their
// counters anew with a restart, and on all if WEIR_SOAK=1 asks for it.
func standsForAll(engine string) bool { return engine == searchnode.OpenSearch3 || soak(0, 1) == 1 }

// killWindow is what a kill may cost: the records of the requests that were answered last. Records are written when their
// block is 100 ms old (queue.block_age).
const killWindow = 200 * time.Millisecond

func TestKillUnderLoadLosesNothing(t *testing.T) {
	rounds := soak(2, 20)
	c := estest.New(t, estest.Options{})
	killRounds(t, newSite(t, c.URL()), c.URL(), true, rounds, func(round int) (undo func()) {
		// Records pile up in every second round, and are on their way in the others.
		if round%2 == 0 {
			return nil
		}
		refused := c.Inject(estest.Fault{Path: "*_bulk*", Status: http.StatusServiceUnavailable})
		return refused.Remove
	})
}

// TestKillUnderLoadWithAnEngine does it with a real cluster, which is killed as well in the second round of each four, a
// moment before the gateway.
func TestKillUnderLoadWithAnEngine(t *testing.T) {
	rounds := soak(3, 20)
	c := searchtest.Own(t, searchnode.Options{Engine: searchnode.OpenSearch2})
	killRounds(t, newSite(t, c.URLs()[0]), c.URLs()[0], true, rounds, func(round int) (undo func()) {
		if round%4 != 1 {
			return nil
		}
		if err := c.Node(0).Kill(); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := errors.Join(c.Node(0).Start(t.Context()), c.WaitGreen(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestKillUnderLoadLosesNoAuditedRecord holds that with audit there is no window: whoever had an answer has a record.
func TestKillUnderLoadLosesNoAuditedRecord(t *testing.T) {
	rounds := soak(2, 20)
	c := estest.New(t, estest.Options{})
	s := newPlainSite(t, c.URL(), "      - request_logging: {queue_name: audit, audit: true}\n", add(`pipeline: [{name: audit, json_indexing: {input_queue: audit, elasticsearch: default, index_name: gateway_requests}}]
queue: {reserve: 0}
`))
	killRounds(t, s, c.URL(), false, rounds, func(round int) (undo func()) {
		if round%2 == 1 {
			return nil
		}
		refused := c.Inject(estest.Fault{Path: "*_bulk*", Status: http.StatusServiceUnavailable})
		return refused.Remove
	})
}

// killRounds kills a gateway under load, again and again, starts it anew, and looks whether each request that was answered
// has its record in the index, and none has two. A window says that those may be without one that were answered within it.
// disturb does something to the cluster in the middle of a round's load, or nothing; what it returns undoes that when the
// gateway has been killed.
func killRounds(t *testing.T, s *site, cluster string, window bool, rounds int, disturb func(round int) (undo func())) {
	client := newClient(t)
	fill(t, client, cluster, spread...)
	for round := range rounds {
		deleteRecords(t, client, cluster)
		g := s.start()
		request, mark := logged(fmt.Sprint("killed-", round))
		l := startLoad(t, s.addr, 16, 50*time.Millisecond, request)
		l.last(time.Second)
		undo := disturb(round)
		late := lateness(t)
		l.last(time.Second + time.Duration(rand.IntN(200))*time.Millisecond)
		lost := killWindow + late()
		killed := time.Now()
		g.kill()
		shots := l.stop()
		due := time.Now()
		if window {
			due = killed.Add(-lost)
		}
		if undo != nil {
			undo()
		}
		g = s.start()
		awaitRecords(t, cluster, shots, mark, due, g)
		g.stop()
		if undo == nil {
			checkShots(t, shots, func(s shot) bool { return s.ended.Before(killed) })
		}
	}
}

// lateness begins to look how late a process wakes up here that wants to every millisecond, and returns what tells how late it
// was at worst: a machine on which others work does not let a gateway write when it is time either.
func lateness(tb testing.TB) (worst func() time.Duration) {
	ctx, cancel := context.WithCancel(tb.Context())
	result := make(chan time.Duration, 1)
	go func() {
		most := time.Duration(0)
		for {
			asked := time.Now()
			select {
			case <-time.After(time.Millisecond):
				most = max(most, time.Since(asked)-time.Millisecond)
			case <-ctx.Done():
				result <- most
				return
			}
		}
	}()
	tb.Cleanup(cancel)
	return func() time.Duration {
		cancel()
		late := <-result
		tb.Logf("the machine was late by %s at worst", late)
		return late
	}
}
