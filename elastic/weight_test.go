package elastic

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
)

func TestWeightsThroughTheAdminListener(t *testing.T) {
	bubble(t, 3, ", weights: {\"10.0.0.1:9200\": 2}", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
		mux := http.NewServeMux()
		mux.Handle("PUT /clusters/{cluster}/nodes/{node}", WeightHandler(func() []*Cluster { return []*Cluster{k} }))
		f := func(path, body string, want int, part string) {
			t.Helper()
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodPut, path, strings.NewReader(body)))
			if w.Code != want || !strings.Contains(w.Body.String(), part) || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
			}
		}
		weights := func(want ...int) {
			t.Helper()
			for i, n := range k.Status().Nodes {
				if n.Weight != want[i] {
					t.Errorf("%s has the weight %d, want %d", n.Node, n.Weight, want[i])
				}
			}
		}
		weights(2, 1, 1)
		f("/clusters/test/nodes/10.0.0.1:9200", `{"weight": 0}`, 200, `{"acknowledged":true}`)
		f("/clusters/test/nodes/n2", `{"weight": 7}`, 200, "")
		<-time.After(time.Minute) // checks and discovery leave it alone
		weights(0, 7, 1)
		es.Forget()
		for range 50 {
			if status, err := send(k, "GET", "/_search", ""); err != nil || status != 200 {
				t.Fatal(status, err)
			}
		}
		for _, c := range es.Node(0).Calls() {
			if c.Path == "/_search" {
				t.Fatal("a drained node gets searches")
			}
		}
		f("/clusters/test/nodes/n1", `{"weight": null}`, 200, "")
		weights(2, 7, 1)
		for _, bad := range []string{``, `{}`, `[1]`, `{"weight": -1}`, `{"weight": 1.5}`, `{"weight": "1"}`, `{"weight": 1000001}`} {
			f("/clusters/test/nodes/n1", bad, 400, `"status":400`)
		}
		for _, bad := range []string{`{"weight": 1} {"weight": 0}`, `{"weight": 1}]`, `{"weight": 1, "wait": true}`, `{"wait": true}`, `{"weight": 1}x`} {
			f("/clusters/test/nodes/n1", bad, 400, "and hold nothing else")
		}
		f("/clusters/other/nodes/n1", `{"weight": 1}`, 404, "no cluster [other]")
		f("/clusters/test/nodes/n9", `{"weight": 1}`, 404, "no node [n9]")
		weights(2, 7, 1)
		for _, n := range []string{"n1", "n2", "n3"} {
			f("/clusters/test/nodes/"+n, `{"weight": 0}`, 200, "")
		}
		if _, err := send(k, "GET", "/_search", ""); err == nil || !strings.Contains(err.Error(), "all nodes of cluster [test] are drained") {
			t.Errorf("got %v", err)
		}
		f("/clusters/test/nodes/n3", `{"weight": 1}`, 200, "")
		if status, err := send(k, "GET", "/_search", ""); err != nil || status != 200 {
			t.Error(status, err)
		}
	})
}
