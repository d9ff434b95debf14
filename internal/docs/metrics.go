package docs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"weir/internal/obs"
)

//go:embed metrics.json
var metricsJSON []byte

// mustMetrics returns all metrics of the program. They are registered, so that they are described by the same code as at
// work.
func mustMetrics() []obs.MetricDoc {
	var list []struct {
		Name, Type, Help string
		Labels           []string
	}
	if err := json.Unmarshal(metricsJSON, &list); err != nil {
		panic(err)
	}
	m := obs.NewMetrics()
	for _, d := range list {
		switch d.Type {
		case "Counter":
			m.Counter(d.Name, d.Help, d.Labels...)
		case "Gauge":
			m.Gauge(d.Name, d.Help, d.Labels...)
		case "GaugeFunc":
			m.GaugeFunc(d.Name, d.Help, d.Labels...)
		case "CounterFunc":
			m.CounterFunc(d.Name, d.Help, d.Labels...)
		case "Histogram":
			m.Histogram(d.Name, d.Help, obs.DurationBuckets, d.Labels...)
		}
	}
	if err := m.Err(); err != nil {
		panic(err)
	}
	return m.Describe()
}

// MetricsPage returns the reference page of the metrics.
func (r *Reference) MetricsPage() string {
	var b strings.Builder
	b.WriteString(generated)
	b.WriteString("# Metrics\n\nAt `/metrics` of the admin listener for Prometheus and, when `statsd` is on, sent to StatsD under " +
		"the namespace. Those of the Go runtime and the process (`go_`, `process_`) come besides. How names and values are " +
		"made is told in [operations](../operations.md#metrics).\n\n| Prometheus | Type | Labels | StatsD | Meaning |\n" +
		"| --- | --- | --- | --- | --- |\n")
	for _, d := range mustMetrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", d.Name, d.Type, strings.Join(d.Labels, ", "),
			strings.Join(d.StatsD, "` `"), cell(d.Help))
	}
	return b.String()
}
