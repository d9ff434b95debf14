// Package dashboards describes what people look at who want to know what went through the gateway: panels of aggregations
// over its records. From the one description come the saved objects for Kibana and for OpenSearch Dashboards, and each
// panel's search, by which tests, tools and the demo ask what a dashboard shows.
//
// It is not a drawing library: panels are tables, numbers and curves over time, of the kinds that both programs have known
// since they were one. That trades the looks of newer editors for objects that every version in use can read.
package dashboards

//go:generate go run ./gen ../../dist

// A Metric is a number of a bucket.
type Metric struct {
	Agg   string // count, avg, sum, max, cardinality, percentiles
	Field string // empty for count
	Label string
}

// A Split makes buckets: of time, or of the values of a field that have most of the panel's first metric.
type Split struct {
	Field string // @timestamp for time, anything else by its values
	Size  int    // most values; 0 for time
	Label string
}

// Time splits by time.
var Time = Split{Field: timeField}

const timeField = "@timestamp"

// A Filter restricts a panel to records whose field has one of some values.
type Filter struct {
	Field  string
	Values []string
}

// A Kind says how a panel is drawn.
type Kind uint8

// The kinds.
const (
	Number Kind = iota // the metrics alone
	Table              // a row for each bucket
	Bars               // over time, one bar a value of the second split
	Lines
)

// A Panel is one drawing.
type Panel struct {
	ID, Title string
	Kind      Kind
	Filter    Filter // no field: all records
	Metrics   []Metric
	Splits    []Split // outermost first; of Bars and Lines the first is time
	W, H      int     // in units of which a dashboard is 48 wide
}

// A Dashboard is a page of panels, filled row by row.
type Dashboard struct {
	ID, Title, Description string
	Panels                 []Panel
}

// Fields of records that several panels use.
const (
	fieldAPI      = "elasticsearch.api"
	fieldCaller   = "weir.caller.id"
	fieldContext  = "weir.caller.context"
	fieldDuration = "event.duration"
	fieldHit      = "weir.hit"
	fieldIndex    = "elasticsearch.index"
	fieldLimit    = "weir.limit"
	fieldNode     = "weir.upstream.node"
	fieldOutcome  = "weir.outcome"
	fieldPlatform = "user_agent.name"
	fieldPrint    = "weir.query.fingerprint"
	fieldQueued   = "weir.upstream.queue"
	fieldShape    = "weir.query.shape"
	fieldStatus   = "http.response.status_code"
	fieldUpstream = "weir.upstream.total"
)

var (
	requests  = Metric{Agg: "count", Label: "Requests"}
	duration  = Metric{Agg: "avg", Field: fieldDuration, Label: "Mean time"}
	taken     = Metric{Agg: "sum", Field: fieldDuration, Label: "Time, all together"}
	quantiles = Metric{Agg: "percentiles", Field: fieldDuration, Label: "Time"}
	hitRatio  = Metric{Agg: "avg", Field: fieldHit, Label: "Hit ratio"}

	failed  = Filter{"event.outcome", []string{"failure"}}
	limited = Filter{fieldOutcome, []string{"limited"}}
)

func by(field string, size int, label string) Split {
	return Split{Field: field, Size: size, Label: label}
}

// All are the dashboards.
var All = []Dashboard{
	{
		ID: "weir-overview", Title: "Weir: overview", Description: "How many requests, how fast, and how they ended",
		Panels: []Panel{
			{ID: "requests", Title: "Requests", Kind: Number, Metrics: []Metric{requests}, W: 12, H: 7},
			{ID: "callers", Title: "Callers", Kind: Number, Metrics: []Metric{{"cardinality", fieldCaller, "Callers"}}, W: 12, H: 7},
			{ID: "failures", Title: "Failures", Kind: Number, Filter: failed, Metrics: []Metric{requests}, W: 12, H: 7},
			{ID: "hit-ratio", Title: "Hit ratio of the cache", Kind: Number, Metrics: []Metric{hitRatio}, W: 12, H: 7},
			{ID: "outcomes", Title: "Requests by outcome", Kind: Bars, Metrics: []Metric{requests}, Splits: []Split{Time, by(fieldOutcome, 8, "Outcome")}, W: 24, H: 12},
			{ID: "latency", Title: "Time of requests", Kind: Lines, Metrics: []Metric{quantiles}, Splits: []Split{Time}, W: 24, H: 12},
			{ID: "apis", Title: "APIs", Kind: Table, Metrics: []Metric{requests, duration, quantiles}, Splits: []Split{by(fieldAPI, 20, "API")}, W: 24, H: 14},
			{ID: "statuses", Title: "Requests by status", Kind: Bars, Metrics: []Metric{requests}, Splits: []Split{Time, by(fieldStatus, 10, "Status")}, W: 24, H: 14},
		},
	},
	{
		ID: "weir-cache", Title: "Weir: cache", Description: "What the cache answers, and where it does not",
		Panels: []Panel{
			{ID: "hit-ratio-time", Title: "Hit ratio", Kind: Lines, Metrics: []Metric{hitRatio}, Splits: []Split{Time}, W: 24, H: 12},
			{ID: "cache-outcomes", Title: "What the cache did", Kind: Table, Metrics: []Metric{requests, duration}, Splits: []Split{by("weir.cache", 20, "Cache-Status")}, W: 24, H: 12},
			{ID: "hit-ratio-index", Title: "Hit ratio by index", Kind: Table, Metrics: []Metric{requests, hitRatio}, Splits: []Split{by(fieldIndex, 20, "Index")}, W: 24, H: 14},
			{ID: "hit-ratio-api", Title: "Hit ratio by API", Kind: Table, Metrics: []Metric{requests, hitRatio}, Splits: []Split{by(fieldAPI, 20, "API")}, W: 24, H: 14},
		},
	},
	{
		ID: "weir-limits", Title: "Weir: limits", Description: "Who was refused, by which limit, and for what",
		Panels: []Panel{
			{ID: "limited-time", Title: "Refused requests by limit", Kind: Bars, Filter: limited, Metrics: []Metric{requests}, Splits: []Split{Time, by(fieldLimit, 10, "Limit")}, W: 48, H: 12},
			{ID: "limited-callers", Title: "Limited callers", Kind: Table, Filter: limited, Metrics: []Metric{requests}, Splits: []Split{by(fieldCaller, 20, "Caller"), by(fieldLimit, 5, "Limit")}, W: 24, H: 14},
			{ID: "limited-indices", Title: "Limited indices", Kind: Table, Filter: limited, Metrics: []Metric{requests}, Splits: []Split{by(fieldIndex, 20, "Index")}, W: 24, H: 14},
		},
	},
	{
		ID: "weir-nodes", Title: "Weir: nodes", Description: "Where requests went, and how the nodes did",
		Panels: []Panel{
			{ID: "node-requests", Title: "Requests by node", Kind: Bars, Metrics: []Metric{requests}, Splits: []Split{Time, by(fieldNode, 12, "Node")}, W: 24, H: 12},
			{ID: "node-latency", Title: "Mean time of nodes", Kind: Lines, Metrics: []Metric{{"avg", fieldUpstream, "Mean time"}}, Splits: []Split{Time, by(fieldNode, 12, "Node")}, W: 24, H: 12},
			{ID: "nodes", Title: "Nodes", Kind: Table, Metrics: []Metric{requests, {"percentiles", fieldUpstream, "Time"}, {"max", fieldQueued, "Longest wait for a connection"}, {"max", "weir.upstream.attempts", "Most attempts"}}, Splits: []Split{by("weir.upstream.cluster", 5, "Cluster"), by(fieldNode, 20, "Node")}, W: 24, H: 14},
			{ID: "node-failures", Title: "Failures by node", Kind: Table, Filter: failed, Metrics: []Metric{requests}, Splits: []Split{by(fieldNode, 20, "Node"), by(fieldStatus, 5, "Status")}, W: 24, H: 14},
		},
	},
	{
		ID: "weir-callers", Title: "Weir: who calls what", Description: "Which platform calls which API, how often and how slowly",
		Panels: []Panel{
			{ID: "top-callers", Title: "Top callers", Kind: Table, Metrics: []Metric{requests, duration, taken}, Splits: []Split{by(fieldCaller, 20, "Caller")}, W: 24, H: 14},
			{ID: "callers-time", Title: "Requests by caller", Kind: Bars, Metrics: []Metric{requests}, Splits: []Split{Time, by(fieldCaller, 10, "Caller")}, W: 24, H: 14},
			{ID: "caller-apis", Title: "APIs of callers", Kind: Table, Metrics: []Metric{requests, duration}, Splits: []Split{by(fieldCaller, 10, "Caller"), by(fieldAPI, 10, "API")}, W: 24, H: 14},
			{ID: "platforms", Title: "APIs of platforms", Kind: Table, Metrics: []Metric{requests, quantiles}, Splits: []Split{by(fieldPlatform, 10, "Platform"), by(fieldAPI, 10, "API")}, W: 24, H: 14},
			{ID: "caller-indices", Title: "Indices of callers", Kind: Table, Metrics: []Metric{requests}, Splits: []Split{by(fieldCaller, 10, "Caller"), by(fieldIndex, 10, "Index")}, W: 24, H: 14},
			{ID: "contexts", Title: "Kibana's dashboards and panels", Kind: Table, Metrics: []Metric{requests, taken}, Splits: []Split{by(fieldContext, 20, "Context")}, W: 24, H: 14},
		},
	},
	{
		ID: "weir-shapes", Title: "Weir: slow shapes", Description: "Searches that do the same, by the time they take",
		Panels: []Panel{
			{ID: "slow-shapes", Title: "Shapes by time", Kind: Table, Metrics: []Metric{taken, requests, quantiles}, Splits: []Split{by(fieldPrint, 20, "Fingerprint"), by(fieldShape, 1, "Shape")}, W: 48, H: 16},
			{ID: "shapes-time", Title: "Mean time of shapes", Kind: Lines, Metrics: []Metric{duration}, Splits: []Split{Time, by(fieldPrint, 10, "Fingerprint")}, W: 24, H: 14},
			{ID: "shape-callers", Title: "Callers of shapes", Kind: Table, Metrics: []Metric{taken, requests}, Splits: []Split{by(fieldPrint, 10, "Fingerprint"), by(fieldCaller, 5, "Caller")}, W: 24, H: 14},
		},
	},
}

// Find returns the panel with an id, or nil.
func Find(id string) *Panel {
	for _, d := range All {
		for i := range d.Panels {
			if d.Panels[i].ID == id {
				return &d.Panels[i]
			}
		}
	}
	return nil
}

// Fields returns the fields of records that a panel reads.
func (p *Panel) Fields() []string {
	fields := []string{timeField}
	if p.Filter.Field != "" {
		fields = append(fields, p.Filter.Field)
	}
	for _, m := range p.Metrics {
		if m.Field != "" {
			fields = append(fields, m.Field)
		}
	}
	for _, s := range p.Splits {
		fields = append(fields, s.Field)
	}
	return fields
}
