package filters_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/filters"
	"weir/flows/flowstest"
)

// TestAnswersOfOneClusterAreNotGivenForAnother has a cache above several clusters: an answer is kept for the cluster that
// gave it, wherever in the flows the filter stands that chooses.
func TestAnswersOfOneClusterAreNotGivenForAnother(t *testing.T) {
	const to = "elasticsearch: {clusters: {first: [near, far], hold_down: 1ms}}"
	for name, text := range map[string]string{
		"get and set": flowstest.Main("{get_cache: {}}, {" + to + "}, {set_cache: {cache_ttl: 1h}}"),
		"flow in a flow": "flow: [{name: main, filter: [{cache: {ttl: 1h}}, {elasticsearch: {elasticsearch: far, when: {header: {x: y}}}}, {flow: {flows: [to]}}]}, " +
			"{name: to, filter: [{" + to + "}]}]\nrouter: [{name: default, default_flow: main}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := estest.New(t, estest.Options{Name: "near"}), estest.New(t, estest.Options{Name: "far"})
			for _, es := range []*estest.Cluster{near, far} {
				name := "near"
				if es == far {
					name = "far"
				}
				es.Inject(estest.Fault{Path: "/*/_search", Status: 200, Body: fmt.Appendf(nil, `{"took":1,"timed_out":false,"_shards":`+
					`{"total":1,"successful":1,"skipped":0,"failed":0},"hits":{"total":{"value":1,"relation":"eq"},"max_score":1,"hits":[{"_index":"i","_id":"%s"}]}}`, name)})
			}
			clusters := fmt.Sprintf("elasticsearch: [{name: near, endpoint: %s}, {name: far, endpoint: %s}]\n", near.URL(), far.URL())
			addr := flowstest.New(t, filters.Registry(), clusters+text, flowstest.Options{}).Addr()
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			ask := func() (cluster string, hit bool) {
				t.Helper()
				resp, err := client.Post("http://"+addr+"/i/_search", "application/json", strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				_, rest, _ := strings.Cut(string(body), `"_id":"`)
				cluster, _, _ = strings.Cut(rest, `"`)
				if err != nil || cluster == "" {
					t.Fatalf("%d %s, %v", resp.StatusCode, body, err)
				}
				return cluster, strings.Contains(resp.Header.Get("Cache-Status"), "hit")
			}
			until := func(want string) {
				t.Helper()
				deadline := time.After(20 * time.Second)
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					if got, hit := ask(); got == want && hit {
						return
					}
					select {
					case <-tick.C:
					case <-deadline:
						t.Fatalf("no answer of %s is kept", want)
					}
				}
			}
			if got, hit := ask(); got != "near" || hit {
				t.Errorf("%s, a hit: %v", got, hit)
			}
			until("near")
			near.Node(0).Stop()
			until("far")
			if err := near.Node(0).Start(); err != nil {
				t.Fatal(err)
			}
			until("near")
		})
	}
}
