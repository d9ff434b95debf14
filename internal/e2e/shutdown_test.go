package e2e

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"weir/elastic/estest"
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

// soakEnv asks for longer runs.
const soakEnv = "WEIR_SOAK"

func TestKillUnderLoadLosesNothing(t *testing.T) {
	rounds := 3
	if os.Getenv(soakEnv) == "1" {
		rounds = 50
	}
	c := estest.New(t, estest.Options{})
	client := newClient(t)
	fill(t, client, c.URL(), spread...)
	s := newSite(t, c.URL())
	for round := range rounds {
		deleteRecords(t, client, c.URL())
		// Records pile up in every second round, and are on their way in the others.
		var refused *estest.Injection
		if round%2 == 1 {
			refused = c.Inject(estest.Fault{Path: "*_bulk*", Status: http.StatusServiceUnavailable})
		}
		g := s.start()
		request, mark := logged(fmt.Sprint("killed-", round))
		l := startLoad(t, s.addr, 16, 50*time.Millisecond, request)
		l.last(2 * time.Second)
		killed := time.Now()
		g.kill()
		shots := l.stop()
		if refused != nil {
			refused.Remove()
		}
		g = s.start()
		awaitRecords(t, c.URL(), shots, mark, killed.Add(-500*time.Millisecond), g)
		g.stop()
		checkShots(t, shots, func(s shot) bool { return s.ended.Before(killed) })
	}
}
