package filters_test

import (
	"encoding/json"
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

// What the submitter of an async search has fetched at its end is given to the next one, also where one of several clusters
// has to be found by the search's id.
func TestAsyncSearchThroughTheGateway(t *testing.T) {
	for name, text := range map[string]string{
		"one cluster": flowstest.Main("{get_cache: {}}, {elasticsearch: {elasticsearch: near}}, {set_cache: {}}"),
		"several":     flowstest.Main("{cache: {}}, {elasticsearch: {clusters: {first: [far, near]}}}"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := estest.New(t, estest.Options{Name: "near"}), estest.New(t, estest.Options{Name: "far"})
			asked := near
			if name == "several" {
				asked = far
			}
			clusters := fmt.Sprintf("elasticsearch: [{name: near, endpoint: %s}, {name: far, endpoint: %s}]\n", near.URL(), far.URL())
			addr := flowstest.New(t, filters.Registry(), clusters+text, flowstest.Options{}).Addr()
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			send := func(method, target, body string) (status string, answer struct {
				ID        string
				IsRunning bool `json:"is_running"`
				Response  json.RawMessage
			},
			) {
				t.Helper()
				req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+target, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode > 299 {
					t.Fatalf("%s %s: %d %s %v", method, target, resp.StatusCode, text, err)
				}
				if err := json.Unmarshal(text, &answer); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				return resp.Header.Get("Cache-Status"), answer
			}
			send("PUT", "/i/_doc/1?refresh=true", `{"a":1}`)
			running := asked.Inject(estest.Fault{Path: "/i/_async_search", Running: 100 * time.Millisecond})
			_, submitted := send("POST", "/i/_async_search?wait_for_completion_timeout=0", `{}`)
			running.Remove()
			if !submitted.IsRunning {
				t.Fatalf("%+v", submitted)
			}
			status, fetched := send("GET", "/_async_search/"+submitted.ID+"?wait_for_completion_timeout=10s", "")
			if fetched.IsRunning || status != "weir; fwd=miss; stored" {
				t.Fatalf("%s %+v", status, fetched)
			}
			status, next := send("POST", "/i/_async_search", `{}`)
			if !strings.HasPrefix(status, "weir; hit") || string(next.Response) != string(fetched.Response) || next.ID != "" || next.IsRunning {
				t.Errorf("%s %+v, want the response %s", status, next, fetched.Response)
			}
			if n := near.Count("/i/_async_search") + far.Count("/i/_async_search"); n != 1 {
				t.Errorf("the clusters were asked %d times", n)
			}
		})
	}
}
