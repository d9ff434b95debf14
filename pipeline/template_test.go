package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/estest"
)

func (r *rig) setup(prefix string) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	return Setup(ctx, r.cluster, Template{Cluster: "default", Prefix: prefix}, slog.New(slog.NewTextHandler(r.logs, nil)))
}

// mapping returns the mapping of the index gateway_requests.
func (r *rig) mapping() map[string]any {
	r.t.Helper()
	var o map[string]any
	if err := json.Unmarshal(r.get("/gateway_requests/_mapping"), &o); err != nil {
		r.t.Fatal(err)
	}
	return o
}

// TestMappingHasEveryField puts the record of everything, which the filter request_logging holds itself to, into an index
// that the template made: no field may be left to guessing.
func TestMappingHasEveryField(t *testing.T) {
	everything, err := os.ReadFile("../filters/log/testdata/record.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, flavor := range []estest.Flavor{estest.Elasticsearch7, estest.Elasticsearch8, estest.OpenSearch2, estest.OpenSearch3} {
		t.Run(flavor.String(), func(t *testing.T) {
			r := newRig(t, estest.Options{Flavor: flavor})
			if err := r.setup("gateway"); err != nil {
				t.Fatal(err)
			}
			r.do("PUT", "/gateway_requests", "{}")
			before := r.mapping()
			if text, _ := json.Marshal(before); !strings.Contains(string(text), `"type":"ip"`) {
				t.Fatalf("the template was not used: %s", text)
			}
			r.do("POST", "/_bulk?refresh=true", `{"create":{"_index":"gateway_requests","_id":"1"}}`+"\n"+string(everything))
			if body := string(r.get("/gateway_requests/_count")); !strings.Contains(body, `"count":1`) {
				t.Fatalf("the record was not stored: %s", body)
			}
			if diff := cmp.Diff(before, r.mapping()); diff != "" {
				t.Errorf("fields that are not in the template:\n%s", diff)
			}
		})
	}
}

func TestPatterns(t *testing.T) {
	f := func(prefix string, want ...string) {
		t.Helper()
		if got := (Template{Prefix: prefix}).patterns(); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
	f("", "gateway_requests*")
	f("gateway", "gateway_*")
	f("gateway_", "gateway_*")
	f("weir", "weir_*", "gateway_requests*")
	f("weir-", "weir-*", "gateway_requests*")
	f("gateway_requests", "gateway_requests*")
}

func TestSetupTwice(t *testing.T) {
	r := newRig(t, estest.Options{})
	for range 2 {
		if err := r.setup("weir"); err != nil {
			t.Fatal(err)
		}
	}
	puts := map[string]int{}
	for _, c := range r.es.Calls() {
		if c.Method == "PUT" {
			puts[c.Path]++
		}
	}
	want := map[string]int{"/_index_template/weir-weir": 1, "/_index_template/weir-gateway_requests": 1}
	if diff := cmp.Diff(want, puts); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestOwnTemplateStays(t *testing.T) {
	f := func(version string, kept bool) {
		t.Helper()
		r := newRig(t, estest.Options{})
		r.do("PUT", "/_index_template/weir-gateway", `{"index_patterns":["mine-*"]`+version+`}`)
		if err := r.setup("gateway"); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(r.get("/_index_template/weir-gateway")), "mine-*"); got != kept {
			t.Errorf("with %q kept is %v, want %v", version, got, kept)
		}
	}
	f(`,"version":99`, true)
	f(`,"version":0`, false)
	f(``, false)
}

func TestLegacyTemplate(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.es.Inject(estest.Fault{Path: "/", Body: []byte(`{"version":{"number":"7.6.2"},"tagline":"You Know, for Search"}`)})
	for range 2 {
		if err := r.setup("gateway"); err != nil {
			t.Fatal(err)
		}
		r.setupStream(Stream{Name: "requests", RolloverAge: day, RolloverSize: 1 << 30})
	}
	if n, m := r.puts("/_template/weir-gateway"), r.puts("/_template/weir-requests"); n != 1 || m != 1 {
		t.Errorf("the templates were put %d and %d times, want once", n, m)
	}
	if n := r.es.Count("/_index_template*"); n != 0 {
		t.Errorf("%d calls of an API that 7.6 does not have", n)
	}
	r.do("PUT", "/gateway_requests", "{}")
	if text, _ := json.Marshal(r.mapping()); !strings.Contains(string(text), `"type":"ip"`) {
		t.Errorf("the template was not used: %s", text)
	}
}

func TestSetupWaitsForTheCluster(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.es.Inject(estest.Fault{Method: "PUT", Status: 503, Times: 1})
	r.es.Inject(estest.Fault{Path: "/_index_template/*", Method: "GET", Cut: estest.ResetAfterRequest, Times: 1})
	if err := r.setup("gateway"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.logs.String(), "cannot be installed yet") {
		t.Error("nothing was logged")
	}
}

func TestSetupGivesUp(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.es.Inject(estest.Fault{Method: "PUT", Status: 403})
	err := r.setup("gateway")
	if err == nil || !strings.Contains(err.Error(), "status 403") {
		t.Errorf("a gateway without the right: %v", err)
	}
}

func TestSetupEndsWithItsContext(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.es.Node(0).Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := Setup(ctx, r.cluster, Template{Cluster: "default"}, slog.New(slog.DiscardHandler))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("setup said %v", err)
	}
}
