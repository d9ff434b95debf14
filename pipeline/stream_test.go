package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/conf"
	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

const day = conf.Duration(24 * time.Hour)

func (r *rig) setupStream(s Stream) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	if err := Setup(ctx, r.cluster, Template{Cluster: "default", Stream: s}, slog.New(slog.NewTextHandler(r.logs, nil))); err != nil {
		r.t.Fatal(err)
	}
}

// puts returns how often the cluster was told to keep something.
func (r *rig) puts(path string) int {
	n := 0
	for _, c := range r.es.Calls() {
		if c.Method == "PUT" && c.Path == path {
			n++
		}
	}
	return n
}

func TestStreamOnElasticsearch(t *testing.T) {
	for _, flavor := range []estest.Flavor{estest.Elasticsearch7, estest.Elasticsearch8} {
		r := newRig(t, estest.Options{Flavor: flavor})
		s := Stream{Name: "requests", Retention: 30 * day, RolloverAge: day, RolloverSize: 1 << 30}
		for range 2 {
			r.setupStream(s)
		}
		const path = "/_ilm/policy/weir-requests"
		if n, m := r.puts(path), r.puts("/_index_template/weir-requests"); n != 1 || m != 1 {
			t.Errorf("the policy was put %d times and the template %d times, want once", n, m)
		}
		got := string(r.get(path))
		for _, want := range []string{`"max_age":"1d"`, `"max_size":"1073741824b"`, `"min_age":"30d"`, `"delete":{}`} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
		template := string(r.get("/_index_template/weir-requests"))
		for _, want := range []string{`"data_stream":{}`, `"lifecycle":{"name":"weir-requests"}`, `"index_patterns":["requests"]`} {
			if !strings.Contains(template, want) {
				t.Errorf("no %s in %s", want, template)
			}
		}
		s.Retention = 0
		r.setupStream(s)
		if got := string(r.get(path)); r.puts(path) != 2 || strings.Contains(got, `"delete"`) {
			t.Errorf("records are still deleted: %s", got)
		}
	}
}

func TestStreamOnOpenSearch(t *testing.T) {
	for _, flavor := range []estest.Flavor{estest.OpenSearch2, estest.OpenSearch3} {
		r := newRig(t, estest.Options{Flavor: flavor})
		s := Stream{Name: "requests", Retention: 30 * day, RolloverAge: 36 * conf.Duration(time.Hour), RolloverSize: 1 << 30}
		for range 2 {
			r.setupStream(s)
		}
		const path = "/_plugins/_ism/policies/weir-requests"
		if n, m := r.puts(path), r.puts("/_index_template/weir-requests"); n != 1 || m != 1 {
			t.Errorf("the policy was put %d times and the template %d times, want once", n, m)
		}
		got := string(r.get(path))
		for _, want := range []string{`"rollover":{"min_index_age":"36h","min_size":"1073741824b"}`, `"conditions":{"min_index_age":"30d"}`, `"index_patterns":["requests"]`} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
		s.Retention = 7 * day
		r.setupStream(s)
		if got := string(r.get(path)); r.puts(path) != 2 || !strings.Contains(got, `{"min_index_age":"7d"}`) {
			t.Errorf("the policy did not follow: %s", got)
		}
	}
}

// TestStreamWithoutAPIs holds that what a cluster does not have is left out, and said.
func TestStreamWithoutAPIs(t *testing.T) {
	f := func(flavor estest.Flavor, path string, puts int, said string) {
		t.Helper()
		r := newRig(t, estest.Options{Flavor: flavor})
		r.es.Inject(estest.Fault{Path: path, Status: 400, Times: puts, Method: "PUT"})
		r.es.Inject(estest.Fault{Path: "/_ilm/*", Status: 400})
		r.setupStream(Stream{Name: "requests", RolloverAge: day, RolloverSize: 1 << 30})
		if !strings.Contains(r.logs.String(), said) {
			t.Errorf("%q was not said: %s", said, r.logs)
		}
		r.do("PUT", "/requests", "{}")
		if got := string(r.get("/requests/_mapping")); !strings.Contains(got, `"type":"ip"`) {
			t.Errorf("the template was not used: %s", got)
		}
	}
	f(estest.Elasticsearch7, "/_ilm/*", 1, "has no lifecycle policies")
	f(estest.OpenSearch2, "/_plugins/*", 1, "has no lifecycle policies")
	f(estest.Elasticsearch7, "/_index_template/weir-requests", 1, "has no data streams")
}

// TestStreamOnRealEngines delivers records to a data stream where the engine has them. The test engines have neither ILM nor
// ISM, and that of Elasticsearch no data streams: there the records go into an index, and a line of the log says so.
func TestStreamOnRealEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("real engines take their time")
	}
	for _, engine := range []string{searchnode.Elasticsearch7, searchnode.OpenSearch2, searchnode.OpenSearch3} {
		t.Run(engine, func(t *testing.T) {
			r := newRigAt(t, searchtest.ForTest(t, engine, 1).URLs()[0], nil)
			r.setupStream(Stream{Name: "requests-stream", Retention: 30 * day, RolloverAge: day, RolloverSize: 1 << 30})
			running := r.run(r.planOf("json_indexing: {index_name: requests-stream, elasticsearch: default, input_queue: requests}"))
			for n := range 20 {
				r.put(fmt.Sprintf(`{"@timestamp":"2024-02-29T23:59:59.007Z","event":{"id":"id-%d"},"source":{"ip":"192.0.2.7"}}`, n))
			}
			r.drained()
			r.stop(running)
			r.get("/requests-stream/_refresh")
			if body := string(r.get("/requests-stream/_count")); !strings.Contains(body, `"count":20,`) {
				t.Errorf("want 20 documents: %s", body)
			}
			if body := string(r.get("/requests-stream/_mapping")); !strings.Contains(body, `"type":"ip"`) {
				t.Errorf("the template was not used: %s", body)
			}
			streams := engine != searchnode.Elasticsearch7
			var list struct {
				Streams []struct{ Name string } `json:"data_streams"`
			}
			if streams {
				if err := json.Unmarshal(r.get("/_data_stream/requests-stream"), &list); err != nil || len(list.Streams) != 1 {
					t.Errorf("no data stream: %v", err)
				}
				r.do("DELETE", "/_data_stream/requests-stream", "")
			}
			for warning, want := range map[string]bool{"has no lifecycle policies": true, "has no data streams": !streams} {
				if strings.Contains(r.logs.String(), warning) != want {
					t.Errorf("that the cluster %s: want it said: %v", warning, want)
				}
			}
		})
	}
}
