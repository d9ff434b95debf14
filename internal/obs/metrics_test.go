package obs

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// page returns the lines of /metrics that begin with weir_.
func page(t *testing.T, m *Metrics) []string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body, err := io.ReadAll(rec.Result().Body)
	if err != nil || rec.Code != http.StatusOK {
		t.Fatalf("GET /metrics: status %d, %v", rec.Code, err)
	}
	var lines []string
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "weir_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func wantLine(t *testing.T, m *Metrics, want string) {
	t.Helper()
	if lines := page(t, m); !slices.Contains(lines, want) {
		t.Errorf("/metrics lacks %q, its end:\n%s", want, strings.Join(lines[max(0, len(lines)-10):], "\n"))
	}
}

func TestKindsAreShown(t *testing.T) {
	m := NewMetrics()
	m.Counter("weir_http_requests_total", "Requests.", "entry", "status").With("es", "2xx").Add(3)
	m.Gauge("weir_http_connections", "Connections.").With().Set(-2)
	m.Histogram("weir_http_duration_seconds", "Time.", []float64{1, 5}).With().Observe(2)
	m.GaugeFunc("weir_queue_bytes", "Size.", "queue").Set(func() float64 { return 7 }, "logs")
	m.CounterFunc("weir_cache_evictions_total", "Evictions.").Set(func() float64 { return 8 })

	wantLine(t, m, `weir_http_requests_total{entry="es",status="2xx"} 3`)
	wantLine(t, m, `weir_http_connections -2`)
	wantLine(t, m, `weir_http_duration_seconds_bucket{le="1"} 0`)
	wantLine(t, m, `weir_http_duration_seconds_bucket{le="5"} 1`)
	wantLine(t, m, `weir_queue_bytes{queue="logs"} 7`)
	wantLine(t, m, `weir_cache_evictions_total 8`)
	if err := m.Err(); err != nil {
		t.Error(err)
	}
}

func TestRuntimeAndProcessAreIncluded(t *testing.T) {
	families, err := NewMetrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"go_goroutines", "process_cpu_seconds_total"} {
		found := false
		for _, f := range families {
			found = found || f.GetName() == want
		}
		if !found {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestRegisteringAgainReturnsTheSame(t *testing.T) {
	m := NewMetrics()
	for range 2 { // the second round stands for a reload
		m.Counter("weir_a_requests_total", "A.", "flow").With("f").Inc()
		m.Histogram("weir_a_duration_seconds", "A.", DurationBuckets).With().Observe(1)
		m.GaugeFunc("weir_a_bytes", "A.")
	}
	wantLine(t, m, `weir_a_requests_total{flow="f"} 2`)
	wantLine(t, m, `weir_a_duration_seconds_count 2`)
	if err := m.Err(); err != nil {
		t.Error(err)
	}
}

func TestMistakesOfTheProgramAreReported(t *testing.T) {
	f := func(mistake func(m *Metrics), want string) {
		t.Helper()
		m := NewMetrics()
		m.Counter("weir_a_requests_total", "A.", "flow")
		m.Histogram("weir_a_duration_seconds", "A.", []float64{1, 2})
		mistake(m)
		mistake(m) // a reload makes it again
		err := m.Err()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		} else if n := strings.Count(err.Error(), "\n"); n != 0 {
			t.Errorf("reported %d times: %v", n+1, err)
		}
	}
	f(func(m *Metrics) { m.Counter("weir_a_requests_total", "A.", "node").With("n").Inc() }, "counter[node] (A.): it is registered as counter[flow]")
	f(func(m *Metrics) { m.Gauge("weir_a_requests_total", "A.", "flow").With("n").Inc() }, "gauge[flow]")
	f(func(m *Metrics) { m.CounterFunc("weir_a_requests_total", "A.", "flow") }, "computed counter[flow]")
	f(func(m *Metrics) { m.Counter("weir_a_requests_total", "B.", "flow") }, "(B.)")
	f(func(m *Metrics) { m.Histogram("weir_a_duration_seconds", "A.", []float64{1, 3}).With().Observe(1) }, "[1 3]")
	f(func(m *Metrics) { m.Histogram("weir_b_duration_seconds", "B.", []float64{2, 1}).With().Observe(1) }, "ascend")
	f(func(m *Metrics) { m.Histogram("weir_b_duration_seconds", "B.", nil).With().Observe(1) }, "ascend")
	f(func(m *Metrics) {
		m.Histogram("weir_b_duration_seconds", "B.", DurationBuckets, "le").With().Observe(1)
	}, "is for buckets")
	f(func(m *Metrics) { m.Counter("weir_a_requests_total", "A.", "flow").With("f", "g").Inc() }, "2 label values")
	f(func(m *Metrics) { m.Gauge("weir_c_nodes", "C.", "x").With().Inc() }, "0 label values")
	f(func(m *Metrics) { m.Histogram("weir_a_duration_seconds", "A.", []float64{1, 2}).With("x").Observe(1) }, "1 label values")
	f(func(m *Metrics) { m.GaugeFunc("weir_d_bytes", "D.").Set(func() float64 { return 1 }, "x")() }, "1 label values")
	f(func(m *Metrics) { m.Counter("weir_e_requests_total", "E.", "x", "x").With("1", "1").Inc() }, "duplicate label")
}

func TestForgetRemovesEverywhere(t *testing.T) {
	m := NewMetrics()
	c := m.Counter("weir_a_requests_total", "A.", "flow", "node")
	c.With("f", "n1").Inc()
	c.With("f", "n2").Inc()
	c.With("n1", "n3").Inc()
	m.Gauge("weir_a_connections", "A.", "node").With("n1").Set(1)
	m.GaugeFunc("weir_a_weights", "A.", "node").Set(func() float64 { return 1 }, "n1")

	if n := m.Forget("node", "n1"); n != 3 {
		t.Errorf("forgot %d series, want 3", n)
	}
	want := []string{
		`weir_a_requests_total{flow="f",node="n2"} 1`,
		`weir_a_requests_total{flow="n1",node="n3"} 1`,
		`weir_metrics_overflows_total 0`,
	}
	if diff := cmp.Diff(want, page(t, m)); diff != "" {
		t.Error(diff)
	}
}

func TestDeleteRemovesOne(t *testing.T) {
	c := NewMetrics().Counter("weir_a_requests_total", "A.", "flow")
	c.With("f").Inc()
	if !c.Delete("f") || c.Delete("f") {
		t.Error("want true the first time and false the second")
	}
}

func TestSeriesAreBounded(t *testing.T) {
	m := NewMetrics()
	c := m.Counter("weir_a_requests_total", "A.", "index")
	g := m.GaugeFunc("weir_a_bytes", "A.", "index")
	for i := range MaxSeries + 10 {
		c.With(fmt.Sprint(i)).Inc()
		g.Set(func() float64 { return 1 }, fmt.Sprint(i))
	}
	wantLine(t, m, `weir_a_requests_total{index="other"} 10`)
	wantLine(t, m, `weir_metrics_overflows_total 20`)
	if n := len(page(t, m)); n != 2*MaxSeries+2 {
		t.Errorf("%d lines, want %d", n, 2*MaxSeries+2)
	}

	c.Delete("5")
	c.With("new").Inc()
	wantLine(t, m, `weir_a_requests_total{index="new"} 1`)
}

func TestReplacedFunctionSurvivesTheRemovalOfTheOld(t *testing.T) {
	m := NewMetrics()
	v := m.GaugeFunc("weir_queue_bytes", "Size.", "queue")
	removeOld := v.Set(func() float64 { return 1 }, "logs")
	removeNew := v.Set(func() float64 { return 2 }, "logs")
	removeOld()
	wantLine(t, m, `weir_queue_bytes{queue="logs"} 2`)
	removeNew()
	if lines := page(t, m); len(lines) != 1 {
		t.Errorf("still there: %v", lines)
	}
}

func TestLabelValuesNeedNotBeText(t *testing.T) {
	m := NewMetrics()
	m.Counter("weir_a_requests_total", "A.", "flow").With("a\xffb").Inc()
	wantLine(t, m, `weir_a_requests_total{flow="a_b"} 1`)
}

func TestDescribe(t *testing.T) {
	m := NewMetrics()
	m.Histogram("weir_http_duration_seconds", "Time.", DurationBuckets, "entry", "api")
	m.Counter("weir_http_requests_total", "Requests.", "status", "entry")
	want := []MetricDoc{
		{"weir_http_duration_seconds", "Time.", "histogram", []string{"entry", "api"}, []string{"http_duration_ms.<entry>.<api>.count", "http_duration_ms.<entry>.<api>.sum"}},
		{"weir_http_requests_total", "Requests.", "counter", []string{"status", "entry"}, []string{"http_requests.<status>.<entry>"}},
	}
	if diff := cmp.Diff(want, m.Describe()[:2]); diff != "" {
		t.Error(diff)
	}
}

func TestUseFromManyGoroutines(t *testing.T) {
	m := NewMetrics()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				m.Counter("weir_a_requests_total", "A.", "flow").With(fmt.Sprint(i % 3)).Inc()
				m.GaugeFunc("weir_a_bytes", "A.", "flow").Set(func() float64 { return 1 }, fmt.Sprint(i%3))
				if i%50 == 0 {
					m.Forget("flow", "2")
					if _, err := m.Gather(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestCountingAllocatesNothing(t *testing.T) {
	m := NewMetrics()
	c := m.Counter("weir_a_requests_total", "A.", "flow").With("f")
	g := m.Gauge("weir_a_connections", "A.", "flow").With("f")
	h := m.Histogram("weir_a_duration_seconds", "A.", DurationBuckets, "flow").With("f")
	if n := testing.AllocsPerRun(1000, func() { c.Inc(); c.Add(2); g.Inc(); g.Dec(); h.Observe(.003) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCounter(b *testing.B) {
	c := NewMetrics().Counter("weir_a_requests_total", "A.", "flow").With("f")
	b.ReportAllocs()
	for b.Loop() {
		c.Inc()
	}
}

func BenchmarkHistogram(b *testing.B) {
	h := NewMetrics().Histogram("weir_a_duration_seconds", "A.", DurationBuckets, "flow").With("f")
	b.ReportAllocs()
	for b.Loop() {
		h.Observe(.003)
	}
}

func TestCheckNames(t *testing.T) {
	good := func(d MetricDoc) {
		t.Helper()
		d.Help = "H."
		if err := CheckNames([]MetricDoc{d}); err != nil {
			t.Error(err)
		}
	}
	good(MetricDoc{Name: "weir_http_requests_total", Type: "counter", Labels: []string{"entry", "status_class"}})
	good(MetricDoc{Name: "weir_cache_bytes", Type: "gauge"})
	good(MetricDoc{Name: "weir_upstream_duration_seconds", Type: "histogram"})

	bad := func(d MetricDoc, want string) {
		t.Helper()
		if d.Help == "" {
			d.Help = "H."
		}
		if err := CheckNames([]MetricDoc{d}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", d.Name, err, want)
		}
	}
	bad(MetricDoc{Name: "weir_http_requests", Type: "counter"}, "counters end in _total")
	bad(MetricDoc{Name: "weir_http_connections_total", Type: "gauge"}, "counters end in _total")
	bad(MetricDoc{Name: "http_requests_total", Type: "counter"}, "not of the form")
	bad(MetricDoc{Name: "weir_requests_total", Type: "counter"}, "not of the form")
	bad(MetricDoc{Name: "weir_HTTP_requests_total", Type: "counter"}, "not of the form")
	bad(MetricDoc{Name: "weir_http_wait_ms", Type: "histogram"}, "not a base unit")
	bad(MetricDoc{Name: "weir_http_wait", Type: "histogram"}, "ends in its unit")
	bad(MetricDoc{Name: "weir_http_requests_total", Type: "counter", Help: " "}, "no help")
	bad(MetricDoc{Name: "weir_http_requests_total", Type: "counter", Labels: []string{"statusClass"}}, "snake case")
	bad(MetricDoc{Name: "weir_http_requests_total", Type: "counter", Labels: []string{"path"}}, "without end")
}

func TestOwnMetricsAreWellNamed(t *testing.T) {
	m := NewMetrics()
	if _, err := NewStatsD(m, DefaultStatsD(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := CheckNames(m.Describe()); err != nil {
		t.Error(err)
	}
}
