package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/elastic/estest"
)

// setupFile is a configuration whose records go into a data stream.
const setupFile = `
entry: [{name: es, router: r, network: {binding: "127.0.0.1:0"}}]
router: [{name: r, default_flow: f, tracing_flow: log}]
flow:
  - {name: f, filter: [{elasticsearch: {elasticsearch: default}}]}
  - {name: log, filter: [{request_logging: {queue_name: q}}]}
elasticsearch: [{name: default, endpoint: %s}]
pipeline: [{name: p, json_indexing: {input_queue: q, elasticsearch: default, index_name: requests}}]
modules: [{name: elastic, elasticsearch: default, init_template: true, data_stream: requests, retention: 7d}]
`

func TestSetup(t *testing.T) {
	es := estest.New(t, estest.Options{Flavor: estest.OpenSearch3})
	var imported string
	kibana := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, _, err := r.FormFile("file")
		if err != nil {
			t.Error(err)
			return
		}
		text, _ := io.ReadAll(file)
		imported = string(text)
		_, _ = io.WriteString(w, `{"success":true,"successCount":37}`)
	}))
	defer kibana.Close()
	path := filepath.Join(t.TempDir(), "gateway.yml")
	if err := os.WriteFile(path, fmt.Appendf(nil, setupFile, es.URL()), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	code := run([]string{"setup", "-c", path, "--kibana", "http://ann:s3cret@127.0.0.1:1", "--dashboards", kibana.URL}, env{&stdout, &stderr})
	if code != exitFailed || !strings.Contains(stderr.String(), "import into kibana: ") {
		t.Errorf("exit code %d with a Kibana that is not there: %s", code, stderr.String())
	}
	if strings.Contains(stdout.String()+stderr.String(), "s3cret") {
		t.Errorf("the password is told: %s", stderr.String())
	}
	if want := "37 saved objects are in opensearch-dashboards\n"; stdout.String() != want {
		t.Errorf("said %q, want %q", stdout.String(), want)
	}
	if !strings.Contains(imported, `"title":"gateway_requests*,requests"`) {
		t.Errorf("the data view leaves the data stream out: %.300s", imported)
	}
	for _, path := range []string{"/_index_template/weir-requests", "/_plugins/_ism/policies/weir-requests", "/_index_template/weir-gateway_requests"} {
		put := false
		for _, c := range es.Calls() {
			put = put || c.Method == http.MethodPut && c.Path == path
		}
		if !put {
			t.Errorf("%s was not installed", path)
		}
	}
	if code := run([]string{"setup", "-c", path}, env{&stdout, &stderr}); code != exitOK {
		t.Errorf("exit code %d, want 0: %s", code, stderr.String())
	}
}
