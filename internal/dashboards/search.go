package dashboards

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

type object = map[string]any

// percents are the percentiles that panels show.
var percents = []float64{50, 95, 99}

// Search returns the search that the panel makes, for records since a time, or of all times for the zero time. Curves have a
// point a minute. Its aggregations have the names by which Rows reads the answer.
func (p *Panel) Search(since time.Time) []byte {
	filters := []any{object{"match_all": object{}}}
	if !since.IsZero() {
		filters = append(filters, object{"range": object{timeField: object{"gte": since.UTC().Format(time.RFC3339Nano)}}})
	}
	if p.Filter.Field != "" {
		filters = append(filters, object{"terms": object{p.Filter.Field: p.Filter.Values}})
	}
	body := object{
		"size": 0, "track_total_hits": true,
		"query": object{"bool": object{"filter": filters}},
	}
	if aggs := p.aggs(0); len(aggs) > 0 {
		body["aggs"] = aggs
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("BUG: panel %s: %v", p.ID, err)) // maps of strings and numbers
	}
	return text
}

// aggs returns the aggregations within the first depth splits.
func (p *Panel) aggs(depth int) object {
	metrics := object{}
	for i, m := range p.Metrics {
		switch m.Agg {
		case "count":
		case "percentiles":
			metrics[metricName(i)] = object{m.Agg: object{"field": m.Field, "percents": percents}}
		default:
			metrics[metricName(i)] = object{m.Agg: object{"field": m.Field}}
		}
	}
	if depth == len(p.Splits) {
		return metrics
	}
	s := p.Splits[depth]
	agg := object{}
	inner := p.aggs(depth + 1)
	if s.Field == timeField {
		agg["date_histogram"] = object{"field": s.Field, "fixed_interval": "1m", "min_doc_count": 1}
	} else {
		order := "_count"
		if p.Metrics[0].Agg != "count" {
			order = metricName(0)
			inner[order] = metrics[order] // what buckets are ordered by must be within them
		}
		agg["terms"] = object{"field": s.Field, "size": s.Size, "order": object{order: "desc"}}
	}
	if len(inner) > 0 {
		agg["aggs"] = inner
	}
	return object{splitName: agg}
}

const splitName = "split"

func metricName(i int) string { return "m" + strconv.Itoa(i) }

// A Row is a bucket of the innermost split.
type Row struct {
	Keys   []string // one a split
	Values [][]float64
}

// Rows reads the answer to Search: a row for each innermost bucket, in which each metric has its value, percentiles several,
// and a metric that nothing was known of none.
func (p *Panel) Rows(answer []byte) ([]Row, error) {
	var a struct {
		Hits struct {
			Total struct{ Value float64 }
		}
		Aggregations bucket
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("read the answer to panel %s: %w", p.ID, err)
	}
	count, err := json.Marshal(a.Hits.Total.Value)
	if err != nil {
		return nil, err
	}
	if a.Aggregations == nil {
		a.Aggregations = bucket{}
	}
	a.Aggregations["doc_count"] = count
	return p.rows(nil, nil, a.Aggregations, 0)
}

// bucket is one with its metrics and further buckets.
type bucket map[string]json.RawMessage

func (p *Panel) rows(rows []Row, keys []string, b bucket, depth int) ([]Row, error) {
	if depth == len(p.Splits) {
		row := Row{Keys: append([]string(nil), keys...)}
		for i, m := range p.Metrics {
			values, err := b.values(i, m)
			if err != nil {
				return nil, fmt.Errorf("read the answer to panel %s: %w", p.ID, err)
			}
			row.Values = append(row.Values, values)
		}
		return append(rows, row), nil
	}
	var split struct{ Buckets []bucket }
	if err := json.Unmarshal(b[splitName], &split); err != nil {
		return nil, fmt.Errorf("read the buckets of panel %s: %w", p.ID, err)
	}
	for _, inner := range split.Buckets {
		text := inner["key"]
		if s := inner["key_as_string"]; s != nil {
			text = s
		}
		key := string(text)
		if len(text) > 0 && text[0] == '"' {
			if err := json.Unmarshal(text, &key); err != nil {
				return nil, err
			}
		}
		var err error
		if rows, err = p.rows(rows, append(keys, key), inner, depth+1); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// values returns the values of metric i in a bucket.
func (b bucket) values(i int, m Metric) ([]float64, error) {
	if m.Agg == "count" {
		var n float64
		err := json.Unmarshal(b["doc_count"], &n)
		return []float64{n}, err
	}
	var v struct {
		Value  *float64
		Values map[string]*float64
	}
	if err := json.Unmarshal(b[metricName(i)], &v); err != nil {
		return nil, err
	}
	if m.Agg != "percentiles" {
		v.Values = map[string]*float64{"": v.Value}
	}
	var out []float64
	for _, percent := range percents {
		key := ""
		if m.Agg == "percentiles" {
			key = strconv.FormatFloat(percent, 'f', 1, 64)
		}
		if n := v.Values[key]; n != nil {
			out = append(out, *n)
		}
		if key == "" {
			break
		}
	}
	return out, nil
}
