// Package obs is how Weir shows what it does: one registry of metrics with two outputs (Prometheus pulls, StatsD is
// sent to), structured logs that hide secrets, and the log file.
//
// It is not a tracing library, it keeps no history, and it decides nothing: who counts what is the business of the
// packages that count. It trades freedom for bounds. Label values must come from closed sets (entry, flow, filter,
// cluster, node, API, status class, outcome); a metric keeps at most [MaxSeries] label combinations, what comes after
// is counted under the value "other" and in weir_metrics_overflows_total. StatsD gets numbers only, without quantiles
// or buckets, and loses what a lost datagram held, where Prometheus loses nothing. Secrets are hidden by their known
// places (the names of header fields and the user part of URLs), not by guessing at text. [Throttle] holds at most
// 1,024 keys, a log value 8 KiB, a [File] its size times one more than the number kept.
//
// The StatsD name of a metric is its Prometheus name without the prefix weir_ and the suffix _total, followed by the
// label values in the order in which the labels were declared, joined by dots under the namespace; each byte of a value
// outside A–Z a–z 0–9 _ - becomes an underscore, an empty value becomes "none". weir_http_requests_total with
// entry="es" and status="2xx" is gateway.http_requests.es.2xx. StatsD servers differ in whether they read fractions of
// counters, so seconds are sent as whole milliseconds and a trailing _seconds becomes _ms. A counter is sent as what was
// added since the last time (|c), a gauge as its value (|g), a histogram as the growth of its .count and .sum (|c).
package obs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Counter, Gauge and Histogram are single series. Adding to one costs an atomic operation (a histogram a few) and no
// allocation, so a filter resolves its series once, when it is built, and keeps them. Counter.Add panics on a negative
// number.
type (
	Counter   = prometheus.Counter
	Gauge     = prometheus.Gauge
	Histogram = prometheus.Observer
)

// MaxSeries is how many label combinations one metric keeps: far more than any closed set has, far fewer than a
// scanner can invent (linkerd/linkerd2#604).
const MaxSeries = 2000

// otherValue stands for every label of the combinations beyond MaxSeries.
const otherValue = "other"

// DurationBuckets are histogram bounds in seconds: from a cache hit (under 100 µs) to a search at its usual time limit.
var DurationBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// ByteBuckets are histogram bounds in bytes: from an empty answer to the 100 MB that Elasticsearch takes as a body.
var ByteBuckets = []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 100 << 20}

// Metrics is the registry. It outlives configurations: filters that a reload builds again get the series they had.
// All methods may be called from any goroutine.
type Metrics struct {
	reg       *prometheus.Registry
	overflows atomic.Uint64

	mu       sync.Mutex // guards the fields below
	families map[string]metric
	faults   map[string]error
}

// metric is what the registry needs of CounterVec, GaugeVec, HistogramVec and FuncVec.
type metric interface {
	fam() *family
}

// MetricDoc is what the generated reference says about a metric.
type MetricDoc struct {
	Name   string   // in Prometheus
	Help   string   // one sentence
	Type   string   // counter, gauge or histogram
	Labels []string // in the order of With
	StatsD []string // below the namespace, labels as <label>
}

// NewMetrics returns a registry with the metrics of the Go runtime and of the process.
func NewMetrics() *Metrics {
	m := &Metrics{
		reg:      prometheus.NewRegistry(),
		families: make(map[string]metric),
		faults:   make(map[string]error),
	}
	m.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.CounterFunc("weir_metrics_overflows_total", "Label combinations that were counted as \"other\" or not at all because a metric had too many.").
		Set(func() float64 { return float64(m.overflows.Load()) })
	return m
}

// Counter returns the counter of that name and registers it if it is new. The same name with another type, help or
// labels is a mistake of the program: Err reports it, and the counter returned counts but is not shown.
func (m *Metrics) Counter(name, help string, labels ...string) *CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	return register(m, &CounterVec{family: newFamily(m, name, help, "counter", labels, vec.DeleteLabelValues), vec: vec}, vec)
}

// Gauge returns the gauge of that name as Counter does.
func (m *Metrics) Gauge(name, help string, labels ...string) *GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	return register(m, &GaugeVec{family: newFamily(m, name, help, "gauge", labels, vec.DeleteLabelValues), vec: vec}, vec)
}

// Histogram returns the histogram of that name as Counter does; the bounds of its buckets, in the base unit of the
// name, must ascend and be the same each time.
func (m *Metrics) Histogram(name, help string, buckets []float64, labels ...string) *HistogramVec {
	ascending := len(buckets) > 0
	for i := 1; i < len(buckets); i++ {
		ascending = ascending && buckets[i] > buckets[i-1]
	}
	if !ascending {
		m.fail("register metric %s: buckets %v do not ascend", name, buckets)
		buckets = DurationBuckets
	}
	if slices.Contains(labels, "le") {
		m.fail("register metric %s: the label \"le\" is for buckets", name)
		labels = nil
	}
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	f := newFamily(m, name, help, "histogram", labels, vec.DeleteLabelValues)
	f.buckets = slices.Clone(buckets)
	return register(m, &HistogramVec{family: f, vec: vec}, vec)
}

// GaugeFunc returns the gauge of that name whose values are asked for at each output: the depth of a queue, the size of
// a cache.
func (m *Metrics) GaugeFunc(name, help string, labels ...string) *FuncVec {
	return m.funcVec(name, help, "gauge", prometheus.GaugeValue, labels)
}

// CounterFunc is GaugeFunc for numbers that only grow and are counted elsewhere, as libraries do.
func (m *Metrics) CounterFunc(name, help string, labels ...string) *FuncVec {
	return m.funcVec(name, help, "counter", prometheus.CounterValue, labels)
}

func (m *Metrics) funcVec(name, help, kind string, value prometheus.ValueType, labels []string) *FuncVec {
	v := &FuncVec{desc: prometheus.NewDesc(name, help, labels, nil), value: value, funcs: make(map[string]*series)}
	v.family = newFamily(m, name, help, kind, labels, v.drop)
	v.family.computed = true
	return register(m, v, v)
}

func register[V metric](m *Metrics, fresh V, c prometheus.Collector) V {
	f := fresh.fam()
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.families[f.doc.Name]; ok {
		if same, ok := known.(V); ok && same.fam().same(f) {
			return same
		}
		m.failLocked("register metric %s as %s: it is registered as %s", f.doc.Name, f, known.fam())
		return fresh
	}
	if err := m.reg.Register(c); err != nil {
		m.failLocked("register metric %s as %s: %w", f.doc.Name, f, err)
		return fresh
	}
	m.families[f.doc.Name] = fresh
	return fresh
}

func (m *Metrics) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(format, args...)
}

// failLocked keeps each text once, so that reloads do not add to it.
func (m *Metrics) failLocked(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	m.faults[err.Error()] = err
}

// Err returns all mistakes made with names, labels and buckets so far, or nil. They are mistakes of the program, not of
// a configuration: whoever builds the filters asks once at the end, and so do tests.
func (m *Metrics) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, text := range slices.Sorted(maps.Keys(m.faults)) {
		errs = append(errs, m.faults[text])
	}
	return errors.Join(errs...)
}

// Forget removes every series whose label has that value, in all metrics, and returns how many there were: for flows,
// nodes and queues that a reload or discovery took away. A series still held keeps counting unseen.
func (m *Metrics) Forget(label, value string) int {
	n := 0
	for _, f := range m.all() {
		n += f.forget(label, value)
	}
	return n
}

// Describe returns all metrics of Weir, sorted by name; those of the Go runtime and the process (go_, process_) are not
// in it.
func (m *Metrics) Describe() []MetricDoc {
	var docs []MetricDoc
	for _, f := range m.all() {
		d := f.doc
		d.Labels = slices.Clone(d.Labels)
		d.StatsD = slices.Clone(d.StatsD)
		docs = append(docs, d)
	}
	slices.SortFunc(docs, func(a, b MetricDoc) int { return cmp.Compare(a.Name, b.Name) })
	return docs
}

func (m *Metrics) all() []*family {
	m.mu.Lock()
	defer m.mu.Unlock()
	fs := make([]*family, 0, len(m.families))
	for _, v := range m.families {
		fs = append(fs, v.fam())
	}
	return fs
}

// labels returns the labels of a metric in the order of their declaration, or nil if it is not one of Weir's.
func (m *Metrics) labels(name string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.families[name]; ok {
		return v.fam().doc.Labels
	}
	return nil
}

// Gather returns all values now. With an error it still returns what could be had.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) {
	return m.reg.Gather()
}

// Handler returns what serves /metrics: at most four scrapes at a time, more are answered with 503. A metric that
// cannot be gathered is left out and logged.
func (m *Metrics) Handler(logger *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(logger.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
	})
}

// family is what all kinds of metrics share: the description and the bounded set of label combinations.
type family struct {
	m        *Metrics
	doc      MetricDoc
	buckets  []float64
	computed bool
	drop     func(values ...string) bool // takes a series out of the vec; called with mu held

	mu     sync.Mutex // guards series, and keeps it the same as what the vec holds
	series map[string][]string
}

func newFamily(m *Metrics, name, help, kind string, labels []string, drop func(...string) bool) *family {
	labels = slices.Clone(labels)
	return &family{
		m:      m,
		doc:    MetricDoc{Name: name, Help: help, Type: kind, Labels: labels, StatsD: statsdPatterns(name, kind, labels)},
		drop:   drop,
		series: make(map[string][]string),
	}
}

func (f *family) fam() *family { return f }

func (f *family) same(o *family) bool {
	return f.doc.Help == o.doc.Help && f.doc.Type == o.doc.Type &&
		slices.Equal(f.doc.Labels, o.doc.Labels) && slices.Equal(f.buckets, o.buckets)
}

// String describes the family as an error must, to show in what two differ.
func (f *family) String() string {
	kind := f.doc.Type
	if f.computed {
		kind = "computed " + kind
	}
	if f.buckets != nil {
		return fmt.Sprintf("%s%v with buckets %v (%s)", kind, f.doc.Labels, f.buckets, f.doc.Help)
	}
	return fmt.Sprintf("%s%v (%s)", kind, f.doc.Labels, f.doc.Help)
}

// seriesKey joins label values by a byte that no UTF-8 text holds.
func seriesKey(values []string) string { return strings.Join(values, "\xff") }

// admit returns the label values under which to count, and remembers them. f.mu is held. It returns false if
// the number of values is wrong.
func (f *family) admit(values []string) ([]string, bool) {
	if len(values) != len(f.doc.Labels) {
		f.m.fail("count in metric %s: %d label values %q for the labels %v", f.doc.Name, len(values), values, f.doc.Labels)
		return nil, false
	}
	clean := make([]string, len(values))
	for i, v := range values {
		clean[i] = strings.ToValidUTF8(strings.Clone(v), "_")
	}
	key := seriesKey(clean)
	if _, ok := f.series[key]; ok {
		return clean, true
	}
	if len(f.series) >= MaxSeries {
		f.m.overflows.Add(1)
		for i := range clean {
			clean[i] = otherValue
		}
		return clean, true
	}
	f.series[key] = clean
	return clean, true
}

// Delete removes one series and tells whether it was there. Whoever holds it may go on counting; nobody sees it.
func (f *family) Delete(values ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.series, seriesKey(values))
	return f.drop(values...)
}

func (f *family) forget(label, value string) int {
	at := slices.Index(f.doc.Labels, label)
	if at < 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for key, values := range f.series {
		if values[at] == value && f.drop(values...) {
			delete(f.series, key)
			n++
		}
	}
	return n
}

// CounterVec is a counter with labels.
type CounterVec struct {
	*family
	vec *prometheus.CounterVec
}

// With returns the series with these label values, one a label in the order of declaration, and creates it with 0. It
// takes a lock: call it when building, not for each request. A wrong number of values is reported by Metrics.Err.
func (v *CounterVec) With(values ...string) Counter {
	v.mu.Lock()
	defer v.mu.Unlock()
	if values, ok := v.admit(values); ok {
		if c, err := v.vec.GetMetricWithLabelValues(values...); err == nil {
			return c
		}
	}
	return prometheus.NewCounter(prometheus.CounterOpts{Name: v.doc.Name, Help: v.doc.Help})
}

// GaugeVec is a gauge with labels.
type GaugeVec struct {
	*family
	vec *prometheus.GaugeVec
}

// With returns the series with these label values as CounterVec.With does.
func (v *GaugeVec) With(values ...string) Gauge {
	v.mu.Lock()
	defer v.mu.Unlock()
	if values, ok := v.admit(values); ok {
		if g, err := v.vec.GetMetricWithLabelValues(values...); err == nil {
			return g
		}
	}
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: v.doc.Name, Help: v.doc.Help})
}

// HistogramVec is a histogram with labels.
type HistogramVec struct {
	*family
	vec *prometheus.HistogramVec
}

// With returns the series with these label values as CounterVec.With does.
func (v *HistogramVec) With(values ...string) Histogram {
	v.mu.Lock()
	defer v.mu.Unlock()
	if values, ok := v.admit(values); ok {
		if h, err := v.vec.GetMetricWithLabelValues(values...); err == nil {
			return h
		}
	}
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: v.doc.Name, Help: v.doc.Help, Buckets: v.buckets})
}

// FuncVec is a counter or gauge whose values are computed when they are asked for.
type FuncVec struct {
	*family
	desc  *prometheus.Desc
	value prometheus.ValueType
	funcs map[string]*series // guarded by family.mu
}

type series struct {
	values []string
	f      func() float64
}

// Set names the function for these label values; one set before gives way, as when a reload replaces its owner. The
// function is called from the goroutine of each output and must neither block nor panic. remove takes it away again
// unless it was replaced meanwhile. Above MaxSeries functions the new one is refused.
func (v *FuncVec) Set(f func() float64, values ...string) (remove func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := seriesKey(values)
	_, known := v.series[asked]
	if !known && len(v.series) >= MaxSeries {
		v.m.overflows.Add(1)
		return func() {}
	}
	clean, ok := v.admit(values)
	if !ok {
		return func() {}
	}
	key, s := seriesKey(clean), &series{values: clean, f: f}
	v.funcs[key] = s
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.funcs[key] == s {
			delete(v.funcs, key)
			delete(v.series, key)
		}
	}
}

// drop takes the function of these values out; family.mu is held.
func (v *FuncVec) drop(values ...string) bool {
	key := seriesKey(values)
	_, ok := v.funcs[key]
	delete(v.funcs, key)
	return ok
}

// Describe implements prometheus.Collector.
func (v *FuncVec) Describe(out chan<- *prometheus.Desc) { out <- v.desc }

// Collect implements prometheus.Collector.
func (v *FuncVec) Collect(out chan<- prometheus.Metric) {
	v.mu.Lock()
	now := make([]*series, 0, len(v.funcs))
	for _, s := range v.funcs {
		now = append(now, s)
	}
	v.mu.Unlock()
	for _, s := range now {
		c, err := prometheus.NewConstMetric(v.desc, v.value, s.f(), s.values...)
		if err != nil {
			c = prometheus.NewInvalidMetric(v.desc, err)
		}
		out <- c
	}
}
