package obs

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cactus/go-statsd-client/v5/statsd"
	"github.com/google/go-cmp/cmp"

	"weir/internal/simtime"
)

// packets is a StatsD server in memory.
type packets struct {
	mu   sync.Mutex
	got  []string
	err  error
	open int
}

func (p *packets) Send(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	p.got = append(p.got, string(b))
	return len(b), nil
}

func (p *packets) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	return nil
}

func (p *packets) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// take returns the packets since the last call.
func (p *packets) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

// lines returns the lines of Weir's metrics since the last call, except those of the sender itself.
func (p *packets) lines() []string {
	var lines []string
	for _, packet := range p.take() {
		for line := range strings.SplitSeq(packet, "\n") {
			name := strings.TrimPrefix(line, "gateway.")
			if !strings.HasPrefix(name, "statsd_") && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func startStatsD(t *testing.T, m *Metrics, change func(*StatsDOptions), logger *slog.Logger) (*StatsD, *packets) {
	t.Helper()
	opts := DefaultStatsD()
	if change != nil {
		change(&opts)
	}
	s, err := NewStatsD(m, opts, logger)
	if err != nil {
		t.Fatal(err)
	}
	server := &packets{}
	s.dial = func() (statsd.Sender, error) {
		server.mu.Lock()
		defer server.mu.Unlock()
		server.open++
		return server, nil
	}
	s.Start()
	return s, server
}

var discard = slog.New(slog.DiscardHandler)

// inBubble runs a test with a running sender in simulated time.
func inBubble(t *testing.T, m *Metrics, change func(*StatsDOptions), test func(server *packets)) {
	simtime.Test(t, func(t *testing.T) {
		s, server := startStatsD(t, m, change, discard)
		synctest.Wait()
		test(server)
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if server.open != 0 {
			t.Errorf("%d sockets left open", server.open)
		}
	})
}

func nextRound() {
	<-time.After(10 * time.Second)
	synctest.Wait()
}

func TestStatsDNamesAndTypes(t *testing.T) {
	f := func(count func(m *Metrics), want ...string) {
		t.Helper()
		m := NewMetrics()
		inBubble(t, m, nil, func(server *packets) {
			server.take()
			count(m)
			nextRound()
			if diff := cmp.Diff(want, server.lines()); diff != "" {
				t.Error(diff)
			}
		})
	}
	f(func(m *Metrics) {
		m.Counter("weir_http_requests_total", "H.", "entry", "status").With("es", "2xx").Add(3)
	},
		"gateway.http_requests.es.2xx:3|c")
	f(func(m *Metrics) {
		m.Counter("weir_http_requests_total", "H.", "status", "entry").With("2xx", "es").Add(3)
	},
		"gateway.http_requests.2xx.es:3|c")
	f(func(m *Metrics) {
		m.Counter("weir_node_requests_total", "H.", "node", "zone").With("10.0.0.1:9200|g\n", "").Inc()
	}, "gateway.node_requests.10_0_0_1_9200_g_.none:1|c")
	f(func(m *Metrics) { m.Gauge("weir_http_connections", "H.").With().Set(12) }, "gateway.http_connections:12|g")
	f(func(m *Metrics) { m.Gauge("weir_cache_ratio", "H.").With().Set(.25) }, "gateway.cache_ratio:0.25|g")
	f(func(m *Metrics) { m.Gauge("weir_clock_skew_seconds", "H.").With().Set(-1.5) },
		"gateway.clock_skew_ms:0|g", "gateway.clock_skew_ms:-1500|g")
	f(func(m *Metrics) { m.Counter("weir_queue_wait_seconds_total", "H.").With().Add(.25) }, "gateway.queue_wait_ms:250|c")
	f(func(m *Metrics) {
		h := m.Histogram("weir_http_duration_seconds", "H.", DurationBuckets, "entry").With("es")
		h.Observe(.5)
		h.Observe(1)
	}, "gateway.http_duration_ms.es.count:2|c", "gateway.http_duration_ms.es.sum:1500|c")
	f(func(m *Metrics) { m.Histogram("weir_http_body_bytes", "H.", ByteBuckets).With().Observe(1000) },
		"gateway.http_body_bytes.count:1|c", "gateway.http_body_bytes.sum:1000|c")
}

func TestStatsDNamespaceWithAndWithoutDot(t *testing.T) {
	f := func(namespace, want string) {
		t.Helper()
		m := NewMetrics()
		c := m.Counter("weir_a_requests_total", "A.").With()
		inBubble(t, m, func(o *StatsDOptions) { o.Namespace = namespace }, func(server *packets) {
			c.Inc()
			nextRound()
			if got := server.lines(); !slices.Contains(got, want) {
				t.Errorf("%q is not among %q", want, got)
			}
		})
	}
	f("gateway.", "gateway.a_requests:1|c")
	f("gateway", "gateway.a_requests:1|c")
	f("site.eu.", "site.eu.a_requests:1|c")
	f("", "a_requests:1|c")
}

func TestStatsDSendsOnlyWhatWasAdded(t *testing.T) {
	m := NewMetrics()
	vec := m.Counter("weir_a_requests_total", "A.", "flow")
	vec.With("f").Add(100) // before the start: another sender has sent it
	g := m.Gauge("weir_a_connections", "A.").With()
	inBubble(t, m, nil, func(server *packets) {
		if diff := cmp.Diff([]string{"gateway.a_connections:0|g"}, server.lines()); diff != "" {
			t.Errorf("at the start: %s", diff)
		}
		step := func(act func(), want ...string) {
			t.Helper()
			act()
			nextRound()
			if diff := cmp.Diff(want, server.lines()); diff != "" {
				t.Error(diff)
			}
		}
		step(func() { vec.With("f").Add(5); g.Set(4) }, "gateway.a_connections:4|g", "gateway.a_requests.f:5|c")
		step(func() {}, "gateway.a_connections:4|g")
		step(func() { vec.With("f").Inc(); vec.With("new").Add(2) },
			"gateway.a_connections:4|g", "gateway.a_requests.f:1|c", "gateway.a_requests.new:2|c")
		step(func() { vec.Delete("f"); vec.With("f").Add(3) }, "gateway.a_connections:4|g", "gateway.a_requests.f:3|c")
	})
}

func TestStatsDFractionsAddUp(t *testing.T) {
	m := NewMetrics()
	c := m.Counter("weir_a_wait_seconds_total", "A.").With()
	sum := 0
	inBubble(t, m, nil, func(server *packets) {
		for range 9 {
			c.Add(.0004)
			nextRound()
			for _, line := range server.lines() {
				if line == "gateway.a_wait_ms:1|c" {
					sum++
				}
			}
		}
	})
	if sum != 4 { // 3.6 ms, rounded
		t.Errorf("sent %d ms, want 4", sum)
	}
}

func TestStatsDSendsGaugesAtOnce(t *testing.T) {
	m := NewMetrics()
	m.Gauge("weir_a_connections", "A.").With().Set(1)
	inBubble(t, m, nil, func(server *packets) {
		if got := server.lines(); !slices.Contains(got, "gateway.a_connections:1|g") {
			t.Errorf("got %q", got)
		}
	})
}

func TestStatsDPacketsAreBounded(t *testing.T) {
	m := NewMetrics()
	vec := m.Counter("weir_a_requests_total", "A.", "flow")
	inBubble(t, m, func(o *StatsDOptions) { o.MaxPacket = 300 }, func(server *packets) {
		server.take()
		vec.With(strings.Repeat("x", 400)).Inc()
		for i := range 100 {
			vec.With(strings.Repeat("y", i)).Inc()
		}
		nextRound()
		lines := 0
		for _, p := range server.take() {
			if len(p) > 300 {
				t.Errorf("packet of %d bytes", len(p))
			}
			lines += strings.Count(p, "requests.y") + strings.Count(p, "requests.none")
		}
		if lines != 100 {
			t.Errorf("%d lines, want 100", lines)
		}
	})
	wantLine(t, m, "weir_statsd_dropped_lines_total 1")
}

func TestStatsDStopSendsTheRest(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		m := NewMetrics()
		c := m.Counter("weir_a_requests_total", "A.").With()
		s, server := startStatsD(t, m, nil, discard)
		synctest.Wait()
		server.take()
		c.Add(9)
		for range 2 {
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := server.lines(); !slices.Contains(got, "gateway.a_requests:9|c") {
			t.Errorf("got %q", got)
		}
	})
}

func TestStatsDStopWithoutStart(t *testing.T) {
	s, err := NewStatsD(NewMetrics(), DefaultStatsD(), discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	s.Start() // after Stop it does nothing
}

func TestStatsDErrorsAreCountedAndLoggedSeldom(t *testing.T) {
	m := NewMetrics()
	var log lockedBuffer
	simtime.Test(t, func(t *testing.T) {
		s, server := startStatsD(t, m, nil, slog.New(slog.NewTextHandler(&log, nil)))
		synctest.Wait()
		server.fail(errors.New("network is unreachable"))
		for range 5 {
			nextRound()
		}
		server.fail(nil)
		server.take()
		nextRound()
		if len(server.take()) == 0 {
			t.Error("nothing sent after the network came back")
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	var failed bool
	for _, line := range page(t, m) {
		failed = failed || strings.HasPrefix(line, `weir_statsd_packets_total{outcome="failed"}`) && !strings.HasSuffix(line, " 0")
	}
	if !failed {
		t.Error("failed packets were not counted")
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "repeated=") {
		t.Errorf("%d log lines, want one and one that sums up the rest:\n%s", n, log.String())
	}
}

func TestStatsDOverUDP(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	m := NewMetrics()
	c := m.Counter("weir_a_requests_total", "A.").With()
	opts := DefaultStatsD()
	opts.Port = server.LocalAddr().(*net.UDPAddr).Port
	s, err := NewStatsD(m, opts, discard)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	c.Add(2)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 65536)
	for {
		n, _, err := server.ReadFrom(buf)
		if err != nil {
			t.Fatalf("the counter did not arrive: %v", err)
		}
		if slices.Contains(strings.Split(string(buf[:n]), "\n"), "gateway.a_requests:2|c") {
			return
		}
	}
}

func TestStatsDServerThatComesLaterLosesNothingNew(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := server.LocalAddr().String()
	_ = server.Close()

	m := NewMetrics()
	packets := m.Counter("weir_statsd_packets_total", "P.", "outcome")
	throttle := NewThrottle(discard, time.Minute)
	defer throttle.Close()
	p := &packetCounter{throttle: throttle, sent: packets.With("sent"), failed: packets.With("failed")}
	p.begin(func() (statsd.Sender, error) { return dialUDP(address) })
	defer p.hangUp()
	if _, err := p.Send([]byte("refused")); err != nil {
		t.Fatal(err) // UDP learns of it only later
	}
	if server, err = net.ListenPacket("udp", address); err != nil {
		t.Skipf("the port was taken meanwhile: %v", err)
	}
	defer server.Close()
	if _, err := p.Send([]byte("taken")); err != nil {
		t.Error(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 100)
	if n, _, err := server.ReadFrom(buf); err != nil || string(buf[:n]) != "taken" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	wantLine(t, m, `weir_statsd_packets_total{outcome="failed"} 1`)
}

func TestStatsDOptions(t *testing.T) {
	f := func(change func(*StatsDOptions), want string) {
		t.Helper()
		opts := DefaultStatsD()
		change(&opts)
		if _, err := NewStatsD(NewMetrics(), opts, discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	f(func(o *StatsDOptions) { o.Host = "" }, "host is empty")
	f(func(o *StatsDOptions) { o.Port = 0 }, "port 0")
	f(func(o *StatsDOptions) { o.Port = 65536 }, "port 65536")
	f(func(o *StatsDOptions) { o.Protocol = "tcp" }, `protocol "tcp"`)
	f(func(o *StatsDOptions) { o.Namespace = "a:b" }, `namespace "a:b"`)
	f(func(o *StatsDOptions) { o.Interval = time.Millisecond }, "interval 1ms")
	f(func(o *StatsDOptions) { o.MaxPacket = 100 }, "packet size 100")
}

// The Go runtime has a gauge and a counter that differ in _total only, which StatsD names do not have.
func TestStatsDNamesHaveOneType(t *testing.T) {
	m := NewMetrics()
	m.Counter("weir_things_total", "H.").With().Inc()
	m.Gauge("weir_things", "H.").With().Set(1)
	s, err := NewStatsD(m, DefaultStatsD(), discard)
	if err != nil {
		t.Fatal(err)
	}
	counters, gauges := map[string]bool{}, map[string]bool{}
	s.pass(func(name string, _ int64) { counters[name] = true }, func(name string, _ float64) { gauges[name] = true })
	for name := range counters {
		if gauges[name] {
			t.Errorf("%s is a counter and a gauge", name)
		}
	}
	for name, set := range map[string]map[string]bool{
		"things_total": counters, "things": gauges, "go_memstats_alloc_bytes_total": counters, "go_memstats_alloc_bytes": gauges,
	} {
		if !set[name] {
			t.Errorf("%s is not sent", name)
		}
	}
}
