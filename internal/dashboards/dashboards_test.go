package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
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

// attributes are what objects may have, and of which JSON type: the mappings of OpenSearch Dashboards, whose index is strict
// (src/plugins/{data,visualizations,dashboard}/server/saved_objects), and the schema of dashboards of Kibana 8, which forbids
// all others (src/plugins/dashboard/server/dashboard_saved_object/schema/v1). Data views may have any.
var attributes = map[string]map[string]any{
	"visualization": {
		"title": "", "description": "", "version": 0.0, "visState": "", "uiStateJSON": "", "savedSearchRefName": "",
		"kibanaSavedObjectMeta": map[string]any{"searchSourceJSON": ""},
	},
	"dashboard": {
		"title": "", "description": "", "version": 0.0, "hits": 0.0, "panelsJSON": "", "optionsJSON": "", "timeRestore": true, "timeFrom": "", "timeTo": "",
		"kibanaSavedObjectMeta": map[string]any{"searchSourceJSON": ""},
	},
	"index-pattern": {"title": "", "name": "", "timeFieldName": "", "fieldFormatMap": ""},
}

// migrated are the newest versions that all programs know how to go on from: an object from a later one is refused.
var migrated = map[string]string{"visualization": "7.10.0", "dashboard": "7.9.3", "index-pattern": "7.6.0"}

// TestObjectsAreOfThePublishedSchemas stands for an import where no Kibana can be run.
func TestObjectsAreOfThePublishedSchemas(t *testing.T) {
	var check func(where string, known, got map[string]any)
	check = func(where string, known, got map[string]any) {
		for name, value := range got {
			want, found := known[name]
			switch inner, _ := want.(map[string]any); {
			case !found:
				t.Errorf("%s: no program knows the attribute %s", where, name)
			case reflect.TypeOf(value) != reflect.TypeOf(want):
				t.Errorf("%s: %s is a %T, want a %T", where, name, value, want)
			case inner != nil:
				check(where+" "+name, inner, value.(map[string]any))
			}
		}
	}
	for _, program := range Programs {
		for line := range bytes.Lines(SavedObjects(program, "x-*")) {
			var o struct {
				ID, Type         string
				Attributes       map[string]any
				MigrationVersion map[string]string
			}
			if err := json.Unmarshal(line, &o); err != nil {
				t.Fatal(err)
			}
			where := fmt.Sprintf("%v: %s %s", program, o.Type, o.ID)
			check(where, attributes[o.Type], o.Attributes)
			if want := map[string]string{o.Type: migrated[o.Type]}; !maps.Equal(o.MigrationVersion, want) {
				t.Errorf("%s is of the versions %v, want %v", where, o.MigrationVersion, want)
			}
			if o.Type == "dashboard" {
				var panels []map[string]any
				decode(t, o.Attributes["panelsJSON"], &panels)
				for _, p := range panels {
					check(where+" panel", map[string]any{
						"panelIndex": "", "panelRefName": "", "title": "", "version": "", "embeddableConfig": map[string]any{"title": ""},
						"gridData": map[string]any{"x": 0.0, "y": 0.0, "w": 0.0, "h": 0.0, "i": ""},
					}, p)
				}
			}
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
