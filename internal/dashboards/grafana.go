package dashboards

import (
	"encoding/json"
	"fmt"
)

// A chart is a drawing of metrics in Grafana.
type chart struct {
	title, unit string // unit in Grafana's words
	curves      []curve
}

// A curve is an expression of PromQL and what its series are called.
type curve struct{ expr, legend string }

// charts are what the Grafana dashboard shows, in rows of two.
var charts = []chart{
	{"Requests by outcome", "reqps", []curve{{`sum by (outcome) (rate(weir_http_requests_total{job=~"$job"}[$__rate_interval]))`, "{{outcome}}"}}},
	{"Time of requests", "s", []curve{
		{`histogram_quantile(0.5, sum by (le) (rate(weir_http_request_duration_seconds_bucket{job=~"$job"}[$__rate_interval])))`, "median"},
		{`histogram_quantile(0.95, sum by (le) (rate(weir_http_request_duration_seconds_bucket{job=~"$job"}[$__rate_interval])))`, "95%"},
		{`histogram_quantile(0.99, sum by (le) (rate(weir_http_request_duration_seconds_bucket{job=~"$job"}[$__rate_interval])))`, "99%"},
	}},
	{"Requests by status", "reqps", []curve{{`sum by (status) (rate(weir_http_requests_total{job=~"$job"}[$__rate_interval]))`, "{{status}}"}}},
	{"Requests by class of API", "reqps", []curve{{`sum by (class) (rate(weir_http_api_requests_total{job=~"$job"}[$__rate_interval]))`, "{{class}}"}}},
	{"What the cache did", "reqps", []curve{{`sum by (outcome) (rate(weir_cache_requests_total{job=~"$job"}[$__rate_interval]))`, "{{outcome}}"}}},
	{"Hit ratio of the cache", "percentunit", []curve{{`sum(rate(weir_http_requests_total{job=~"$job",outcome=~"hit|shared"}[$__rate_interval])) / sum(rate(weir_cache_requests_total{job=~"$job"}[$__rate_interval]))`, "hit ratio"}}},
	{"Memory of the cache", "bytes", []curve{{`sum by (store, pool) (weir_cache_bytes{job=~"$job"})`, "{{store}} {{pool}}"}}},
	{"Time of nodes that the cache spares", "s", []curve{{`sum(rate(weir_cache_saved_upstream_seconds_total{job=~"$job"}[$__rate_interval]))`, "seconds a second"}}},
	{"Decisions of limits", "reqps", []curve{{`sum by (limit, outcome) (rate(weir_limit_decisions_total{job=~"$job",outcome!="passed"}[$__rate_interval]))`, "{{limit}} {{outcome}}"}}},
	{"Exchanges in front of concurrency limits", "short", []curve{{`sum by (filter) (weir_concurrency_waiting{job=~"$job"})`, "{{filter}}"}}},
	{"Attempts on nodes", "reqps", []curve{{`sum by (node, outcome) (rate(weir_upstream_requests_total{job=~"$job"}[$__rate_interval]))`, "{{node}} {{outcome}}"}}},
	{"Nodes by state", "short", []curve{{`sum by (cluster, state) (weir_upstream_nodes{job=~"$job"})`, "{{cluster}} {{state}}"}}},
	{"Connections to nodes", "short", []curve{{`sum by (node) (weir_upstream_connections_in_use{job=~"$job"})`, "{{node}}"}}},
	{"Retries", "reqps", []curve{
		{`sum by (cluster) (rate(weir_upstream_retries_total{job=~"$job"}[$__rate_interval]))`, "{{cluster}} made"},
		{`sum by (cluster) (rate(weir_upstream_retries_suppressed_total{job=~"$job"}[$__rate_interval]))`, "{{cluster}} not made"},
	}},
	{"Records of requests", "reqps", []curve{
		{`sum by (outcome) (rate(weir_log_records_total{job=~"$job"}[$__rate_interval]))`, "log: {{outcome}}"},
		{`sum by (outcome) (rate(weir_pipeline_records_total{job=~"$job"}[$__rate_interval]))`, "pipeline: {{outcome}}"},
	}},
	{"Age of the oldest record in a queue", "s", []curve{{`max by (queue) (weir_queue_lag_seconds{job=~"$job"})`, "{{queue}}"}}},
	{"Size of queues", "bytes", []curve{{`sum by (queue) (weir_queue_bytes{job=~"$job"})`, "{{queue}}"}}},
	{"Memory for bodies", "bytes", []curve{{`sum(weir_body_budget_used_bytes{job=~"$job"})`, "used"}}},
}

// Grafana returns a dashboard of the gateway's metrics in Prometheus, as Grafana 9 and later import it. Its variables are the
// data source and the scrape jobs.
func Grafana() []byte {
	const wide, high = 12, 8
	source := object{"type": "prometheus", "uid": "${source}"}
	var panels []object
	for i, c := range charts {
		var targets []object
		for j, e := range c.curves {
			targets = append(targets, object{"refId": string(rune('A' + j)), "datasource": source, "expr": e.expr, "legendFormat": e.legend})
		}
		panels = append(panels, object{
			"id": i + 1, "title": c.title, "type": "timeseries", "datasource": source, "targets": targets,
			"gridPos":     object{"x": i % 2 * wide, "y": i / 2 * high, "w": wide, "h": high},
			"fieldConfig": object{"defaults": object{"unit": c.unit, "min": 0}, "overrides": []any{}},
			"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
		})
	}
	text, err := json.MarshalIndent(object{
		"uid": "weir", "title": "Weir", "tags": []string{"weir"}, "schemaVersion": 37, "version": 1, "editable": true,
		"time": object{"from": "now-1h", "to": "now"}, "refresh": "30s", "panels": panels,
		"templating": object{"list": []object{
			{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
			{
				"name": "job", "label": "Job", "type": "query", "datasource": source, "query": "label_values(weir_config_generation, job)",
				"refresh": 2, "multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"},
			},
		}},
	}, "", " ")
	if err != nil {
		panic(fmt.Sprintf("BUG: Grafana dashboard: %v", err)) // maps of strings and numbers
	}
	return append(text, '\n')
}
