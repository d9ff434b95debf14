package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"weir/elastic/estest"
)

// logged returns a load's requests that ask for a record, and the marks of these records.
func logged(prefix string) (request, mark func(n int) string) {
	mark = func(n int) string { return fmt.Sprintf("%s-%d", prefix, n) }
	return func(n int) string {
		return fmt.Sprintf("GET /%s/_doc/%d?preference=%s HTTP/1.1\r\nHost: weir.test\r\nCACHE: true\r\n\r\n", spread[n%len(spread)], n%20, mark(n))
	}, mark
}

// startFive starts five gateways of one folder.
func startFive(s *site) (five [5]*gateway) {
	s.tb.Helper()
	host, port, err := net.SplitHostPort(s.admin)
	if err != nil {
		s.tb.Fatal(err)
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		s.tb.Fatal(err)
	}
	for i := range five {
		five[i] = s.startAs(net.JoinHostPort(host, strconv.Itoa(first+i)))
	}
	return five
}

func TestFiveProcessesShareOnePort(t *testing.T) {
	c := estest.New(t, estest.Options{})
	fill(t, newClient(t), c.URL(), spread...)
	s := newSite(t, c.URL())
	five := startFive(s)

	// The kernel spreads connections, so each request comes over one of its own.
	request, mark := logged("five")
	var shots []shot
	for n := range 300 {
		sh := shot{n: n}
		conn, err := dialWire(s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if conn = conn.shoot(&sh, request(n)); conn != nil {
			conn.Close()
		}
		sh.ended = time.Now()
		shots = append(shots, sh)
	}
	checkShots(t, shots, every)
	for i, g := range five {
		if n := g.metrics().sum("weir_http_requests_total"); n == 0 {
			t.Errorf("process %d has answered nothing", i)
		}
	}
	awaitRecords(t, c.URL(), shots, mark, time.Now(), five[:]...)
}

func TestQueuesOfKilledProcessesAreAdopted(t *testing.T) {
	c := estest.New(t, estest.Options{})
	fill(t, newClient(t), c.URL(), spread...)
	s := newSite(t, c.URL())
	five := startFive(s)
	refused := c.Inject(estest.Fault{Path: "*_bulk*", Status: http.StatusServiceUnavailable})
	request, mark := logged("adopted")
	// Many connections, so that each process has some.
	l := startLoad(t, s.addr, 32, 100*time.Millisecond, request)
	l.last(2500 * time.Millisecond)
	for i, g := range five {
		if n := g.metrics().sum("weir_queue_put_records_total", `queue="request_logging"`); n == 0 {
			t.Errorf("process %d has no records", i)
		}
	}
	killed := time.Now()
	for _, g := range five[:4] {
		g.kill()
	}
	shots := l.stop()
	refused.Remove()
	// One folder is taken by the new process, three are nobody's.
	awaitRecords(t, c.URL(), shots, mark, killed.Add(-time.Second), s.start(), five[4])
	checkShots(t, shots, func(s shot) bool { return s.ended.Before(killed) })
}
