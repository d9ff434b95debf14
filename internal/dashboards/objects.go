package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// A Program is one that shows dashboards.
type Program string

// The programs. OpenSearch Dashboards was Kibana until 7.10, whose objects both read: newer Kibanas bring them up to date
// when they import them, by the versions that the objects carry.
const (
	Kibana               Program = "kibana"                // 7.17 and 8
	OpenSearchDashboards Program = "opensearch-dashboards" // 2 and 3
)

// Programs are all programs.
var Programs = []Program{Kibana, OpenSearchDashboards}

// dataView is the id of the data view, which OpenSearch Dashboards and older Kibanas call an index pattern.
const dataView = "weir-records"

// DefaultPattern are the indices that records go to in the example configuration.
const DefaultPattern = "gateway_requests*"

// reference is how an object names another.
type reference struct {
	Name string `json:"name"`
	Type string `json:"type"`
	ID   string `json:"id"`
}

// saved is a saved object, as the import API of both programs takes it, one a line.
type saved struct {
	ID               string            `json:"id"`
	Type             string            `json:"type"`
	Attributes       object            `json:"attributes"`
	References       []reference       `json:"references"`
	MigrationVersion map[string]string `json:"migrationVersion"`
}

// SavedObjects returns the dashboards, their panels and a data view for the indices that pattern names, as lines of JSON for
// the import of saved objects (Stack Management, or POST /api/saved_objects/_import).
func SavedObjects(program Program, pattern string) []byte {
	list := []saved{view(program, pattern)}
	for _, d := range All {
		for _, p := range d.Panels {
			list = append(list, p.saved())
		}
		list = append(list, d.saved())
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	for _, o := range list {
		if err := e.Encode(o); err != nil {
			panic(fmt.Sprintf("BUG: saved object %s: %v", o.ID, err)) // maps of strings and numbers
		}
	}
	return out.Bytes()
}

// text returns v as JSON in a string, as saved objects hold what the browser alone reads.
func text(v any) string {
	t, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("BUG: saved object: %v", err))
	}
	return string(t)
}

func view(program Program, pattern string) saved {
	formats := object{}
	for _, u := range units {
		for _, f := range u.fields {
			formats[f] = u.format
		}
	}
	attributes := object{"title": pattern, "timeFieldName": timeField, "fieldFormatMap": text(formats)}
	if program == Kibana {
		attributes["name"] = "Weir: records" // OpenSearch Dashboards has no name beside the title
	}
	return saved{
		ID: dataView, Type: "index-pattern", References: []reference{}, Attributes: attributes,
		MigrationVersion: map[string]string{"index-pattern": "7.6.0"},
	}
}

// unit says how the numbers of some fields are shown.
type unit struct {
	format object
	fields []string
}

// units are those of fields that have one: times are in nanoseconds.
var units = []unit{
	{
		object{"id": "duration", "params": object{"inputFormat": "nanoseconds", "outputFormat": "asMilliseconds", "outputPrecision": 2}},
		[]string{fieldDuration, fieldUpstream, "weir.write", fieldQueued, "weir.upstream.connect", "weir.upstream.first_byte"},
	},
	{object{"id": "bytes"}, []string{"http.request.bytes", "http.request.body.bytes", "http.response.bytes"}},
	{object{"id": "percent"}, []string{fieldHit}},
}

// saved returns the panel as a visualisation.
func (p *Panel) saved() saved {
	source := object{
		"query": object{"language": "kuery", "query": p.Filter.kuery()}, "filter": []any{},
		"indexRefName": "kibanaSavedObjectMeta.searchSourceJSON.index",
	}
	title := "Weir: " + p.Title
	state := object{"title": title, "type": p.Kind.kind(), "aggs": p.configs(), "params": p.params()}
	return saved{
		ID: "weir-" + p.ID, Type: "visualization",
		Attributes: object{
			"title": title, "description": "", "version": 1, "uiStateJSON": "{}", "visState": text(state),
			"kibanaSavedObjectMeta": object{"searchSourceJSON": text(source)},
		},
		References:       []reference{{"kibanaSavedObjectMeta.searchSourceJSON.index", "index-pattern", dataView}},
		MigrationVersion: map[string]string{"visualization": "7.10.0"},
	}
}

// kuery returns the filter in the query language of both programs.
func (f Filter) kuery() string {
	var parts []string
	for _, v := range f.Values {
		parts = append(parts, f.Field+" : "+strconv.Quote(v))
	}
	return strings.Join(parts, " or ")
}

func (k Kind) kind() string {
	return [...]string{Number: "metric", Table: "table", Bars: "histogram", Lines: "line"}[k]
}

// configs returns the aggregations as the editor of visualisations keeps them.
func (p *Panel) configs() []object {
	var list []object
	for i, m := range p.Metrics {
		params := object{"customLabel": m.Label}
		agg := m.Agg
		switch m.Agg {
		case "count":
		case "percentiles":
			params["field"], params["percents"] = m.Field, percents
		default:
			params["field"] = m.Field
		}
		list = append(list, object{"id": strconv.Itoa(i + 1), "enabled": true, "type": agg, "schema": "metric", "params": params})
	}
	for i, s := range p.Splits {
		c := object{"id": strconv.Itoa(len(p.Metrics) + i + 1), "enabled": true, "schema": p.schema(i)}
		if s.Field == timeField {
			c["type"] = "date_histogram"
			c["params"] = object{
				"field": timeField, "interval": "auto", "min_doc_count": 1, "drop_partials": false, "extended_bounds": object{},
				"useNormalizedEsInterval": true, "scaleMetricValues": false,
			}
		} else {
			c["type"] = "terms"
			c["params"] = object{
				"field": s.Field, "size": s.Size, "order": "desc", "orderBy": "1", "customLabel": s.Label,
				"otherBucket": false, "otherBucketLabel": "Other", "missingBucket": false, "missingBucketLabel": "Missing",
			}
		}
		list = append(list, c)
	}
	return list
}

// schema returns the place of a split in a drawing.
func (p *Panel) schema(split int) string {
	switch {
	case p.Kind == Table:
		return "bucket"
	case split == 0:
		return "segment"
	}
	return "group"
}

// params returns how a drawing looks.
func (p *Panel) params() object {
	switch p.Kind {
	case Table:
		return object{
			"perPage": 10, "showPartialRows": false, "showMetricsAtAllLevels": false, "showTotal": false, "totalFunc": "sum",
			"percentageCol": "",
		}
	case Number:
		return object{
			"addTooltip": true, "addLegend": false, "type": "metric",
			"metric": object{
				"percentageMode": false, "useRanges": false, "colorSchema": "Green to Red", "metricColorMode": "None",
				"colorsRange": []object{{"from": 0, "to": 10000}}, "labels": object{"show": true}, "invertColors": false,
				"style": object{"bgFill": "#000", "bgColor": false, "labelColor": false, "subText": "", "fontSize": 40},
			},
		}
	}
	shape, mode := "histogram", "stacked"
	if p.Kind == Lines {
		shape, mode = "line", "normal"
	}
	var series []object
	for i, m := range p.Metrics {
		series = append(series, object{
			"show": true, "type": shape, "mode": mode, "data": object{"label": m.Label, "id": strconv.Itoa(i + 1)},
			"valueAxis": "ValueAxis-1", "drawLinesBetweenPoints": true, "lineWidth": 2, "interpolate": "linear", "showCircles": true,
		})
	}
	return object{
		"type": shape, "grid": object{"categoryLines": false}, "addTooltip": true, "addLegend": true, "legendPosition": "right",
		"times": []any{}, "addTimeMarker": false, "labels": object{"show": false},
		"thresholdLine": object{"show": false, "value": 10, "width": 1, "style": "full", "color": "#E7664C"},
		"categoryAxes": []object{{
			"id": "CategoryAxis-1", "type": "category", "position": "bottom", "show": true, "style": object{}, "title": object{},
			"scale": object{"type": "linear"}, "labels": object{"show": true, "filter": true, "truncate": 100},
		}},
		"valueAxes": []object{{
			"id": "ValueAxis-1", "name": "LeftAxis-1", "type": "value", "position": "left", "show": true, "style": object{},
			"scale": object{"type": "linear", "mode": "normal"}, "title": object{"text": p.Metrics[0].Label},
			"labels": object{"show": true, "rotate": 0, "filter": false, "truncate": 100},
		}},
		"seriesParams": series,
	}
}

// width is that of a dashboard, in the programs' units.
const width = 48

// saved returns the dashboard with its panels in rows.
func (d *Dashboard) saved() saved {
	var panels []object
	var references []reference
	x, y, height := 0, 0, 0
	for i, p := range d.Panels {
		if x+p.W > width {
			x, y, height = 0, y+height, 0
		}
		n := strconv.Itoa(i + 1)
		panels = append(panels, object{
			"version": "7.9.3", "panelIndex": n, "panelRefName": "panel_" + n, "embeddableConfig": object{"title": p.Title}, "title": p.Title,
			"gridData": object{"x": x, "y": y, "w": p.W, "h": p.H, "i": n},
		})
		references = append(references, reference{"panel_" + n, "visualization", "weir-" + p.ID})
		x, height = x+p.W, max(height, p.H)
	}
	return saved{
		ID: d.ID, Type: "dashboard",
		Attributes: object{
			"title": d.Title, "description": d.Description, "version": 1, "hits": 0, "panelsJSON": text(panels),
			"optionsJSON": text(object{"hidePanelTitles": false, "useMargins": true}),
			"timeRestore": true, "timeFrom": "now-24h", "timeTo": "now",
			"kibanaSavedObjectMeta": object{"searchSourceJSON": text(object{"query": object{"language": "kuery", "query": ""}, "filter": []any{}})},
		},
		References:       references,
		MigrationVersion: map[string]string{"dashboard": "7.9.3"},
	}
}

// Files returns the files that are shipped, by their names under dist.
func Files() map[string][]byte {
	files := map[string][]byte{"grafana/weir.json": Grafana()}
	for _, p := range Programs {
		files[string(p)+"/weir.ndjson"] = SavedObjects(p, DefaultPattern)
	}
	return files
}
