package dashboards

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// mapped returns the types of the fields that the index template for records has.
func mapped(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.ReadFile("../../pipeline/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	type field struct {
		Type       string
		Properties map[string]json.RawMessage
	}
	var template struct{ Mappings field }
	if err := json.Unmarshal(file, &template); err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	var walk func(prefix string, f field)
	walk = func(prefix string, f field) {
		for name, text := range f.Properties {
			var inner field
			if err := json.Unmarshal(text, &inner); err != nil {
				t.Fatal(err)
			}
			types[prefix+name] = inner.Type
			walk(prefix+name+".", inner)
		}
	}
	walk("", template.Mappings)
	return types
}

// TestFieldsAreInTheTemplate holds that panels read fields that records have, with aggregations that their types take.
func TestFieldsAreInTheTemplate(t *testing.T) {
	types := mapped(t)
	numeric := func(field string) bool { return types[field] == "long" || types[field] == "double" }
	for _, d := range All {
		for _, p := range d.Panels {
			for _, f := range p.Fields() {
				if types[f] == "" {
					t.Errorf("%s: the template has no field %s", p.ID, f)
				}
			}
			for _, m := range p.Metrics {
				if m.Agg != "count" && m.Agg != "cardinality" && !numeric(m.Field) {
					t.Errorf("%s: %s of %s, which is a %s", p.ID, m.Agg, m.Field, types[m.Field])
				}
			}
			for _, s := range p.Splits {
				if typ := types[s.Field]; typ != "keyword" && typ != "long" && s.Field != timeField {
					t.Errorf("%s: split by %s, which is a %s", p.ID, s.Field, typ)
				}
			}
		}
	}
	for _, u := range units {
		for _, f := range u.fields {
			if !numeric(f) {
				t.Errorf("the format of %s, which is a %q", f, types[f])
			}
		}
	}
}

// TestFilesAreGenerated holds that what is shipped is what the description says.
func TestFilesAreGenerated(t *testing.T) {
	for name, want := range Files() {
		got, err := os.ReadFile("../../dist/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("dist/%s is not what the description says: go generate ./internal/dashboards", name)
		}
	}
}

// TestObjects holds what an import checks: each object is there once, and whatever refers to another finds it.
func TestObjects(t *testing.T) {
	for _, program := range Programs {
		list := map[string]saved{}
		for line := range bytes.Lines(SavedObjects(program, "x-*")) {
			var o saved
			if err := json.Unmarshal(line, &o); err != nil {
				t.Fatal(err)
			}
			if _, twice := list[o.Type+" "+o.ID]; twice {
				t.Errorf("%s is there twice", o.ID)
			}
			list[o.Type+" "+o.ID] = o
		}
		dashboards := 0
		for _, o := range list {
			inner := map[string]bool{}
			for _, r := range o.References {
				if _, found := list[r.Type+" "+r.ID]; !found {
					t.Errorf("%s refers to %s %s, which is not there", o.ID, r.Type, r.ID)
				}
				inner[r.Name] = true
			}
			switch o.Type {
			case "visualization":
				var source struct{ IndexRefName string }
				meta, _ := o.Attributes["kibanaSavedObjectMeta"].(map[string]any)
				decode(t, meta["searchSourceJSON"], &source)
				if !inner[source.IndexRefName] {
					t.Errorf("%s has no data view", o.ID)
				}
				var state struct {
					Aggs []struct {
						ID     string
						Type   string
						Params struct{ OrderBy string }
					}
				}
				decode(t, o.Attributes["visState"], &state)
				ids := map[string]bool{}
				for _, a := range state.Aggs {
					ids[a.ID] = true
				}
				for _, a := range state.Aggs {
					if id, _, _ := strings.Cut(a.Params.OrderBy, "."); a.Type == "terms" && !ids[id] {
						t.Errorf("%s orders by %q", o.ID, a.Params.OrderBy)
					}
				}
			case "dashboard":
				dashboards++
				var panels []struct {
					PanelRefName string
					GridData     struct{ X, Y, W, H int }
				}
				decode(t, o.Attributes["panelsJSON"], &panels)
				for i, p := range panels {
					if !inner[p.PanelRefName] {
						t.Errorf("%s: no reference %s", o.ID, p.PanelRefName)
					}
					if p.GridData.X+p.GridData.W > width {
						t.Errorf("%s: a panel stands out to the right", o.ID)
					}
					for _, q := range panels[:i] {
						a, b := p.GridData, q.GridData
						if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
							t.Errorf("%s: two panels overlap", o.ID)
						}
					}
				}
			}
		}
		if dashboards != len(All) || list["index-pattern "+dataView].Attributes["title"] != "x-*" {
			t.Errorf("%s: %d dashboards, %v", program, dashboards, list["index-pattern "+dataView])
		}
	}
}

func decode(t *testing.T, text, into any) {
	t.Helper()
	s, _ := text.(string)
	if err := json.Unmarshal([]byte(s), into); err != nil {
		t.Fatalf("%v in %q", err, s)
	}
}

func TestSearch(t *testing.T) {
	p := Panel{
		ID: "x", Metrics: []Metric{taken, requests}, Filter: limited,
		Splits: []Split{{Field: "a", Size: 3}, Time},
	}
	var got any
	if err := json.Unmarshal(p.Search(time.Unix(0, 0)), &got); err != nil {
		t.Fatal(err)
	}
	sum := object{"sum": object{"field": fieldDuration}}
	want := object{
		"size": 0.0, "track_total_hits": true,
		"query": object{"bool": object{"filter": []any{
			object{"match_all": object{}},
			object{"range": object{timeField: object{"gte": "1970-01-01T00:00:00Z"}}},
			object{"terms": object{fieldOutcome: []any{"limited"}}},
		}}},
		"aggs": object{"split": object{
			"terms": object{"field": "a", "size": 3.0, "order": object{"m0": "desc"}},
			"aggs": object{
				"m0": sum,
				"split": object{
					"date_histogram": object{"field": timeField, "fixed_interval": "1m", "min_doc_count": 1.0},
					"aggs":           object{"m0": sum},
				},
			},
		}},
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("search (-want +got):\n%s", diff)
	}
}

func TestRows(t *testing.T) {
	p := Panel{Metrics: []Metric{requests, quantiles, hitRatio}, Splits: []Split{{Field: "a", Size: 3}}}
	got, err := p.Rows([]byte(`{"hits":{"total":{"value":9}},"aggregations":{"split":{"buckets":[
		{"key":"x\"y","doc_count":2,"m1":{"values":{"50.0":1,"95.0":null,"99.0":3}},"m2":{"value":null}},
		{"key":200,"doc_count":1,"m1":{"values":{}},"m2":{"value":0.5}}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{
		{Keys: []string{`x"y`}, Values: [][]float64{{2}, {1, 3}, nil}},
		{Keys: []string{"200"}, Values: [][]float64{{1}, nil, {0.5}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	number := Panel{Metrics: []Metric{requests}}
	if got, err := number.Rows([]byte(`{"hits":{"total":{"value":9}}}`)); err != nil || len(got) != 1 || got[0].Values[0][0] != 9 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := p.Rows([]byte(`{"error":{}}`)); err == nil {
		t.Error("an error is an answer")
	}
}

func TestFind(t *testing.T) {
	if Find("top-callers") == nil || Find("nothing") != nil {
		t.Error("found what is not there, or not what is")
	}
}
