package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

// severalFile has a flow for each way to choose among two clusters, and one whose cluster names nodes of both.
const severalFile = `entry:
  - {name: main, router: main, network: {binding: ADDRESS}}
router:
  - name: main
    default_flow: first
    rules:
      - {index: "shared-*", flow: weighted}
      - {index: "split-*", flow: by_index}
      - {api: [bulk, msearch], flow: by_index}
      - {when: {header: {x-flow: mixed}}, flow: mixed}
flow:
  - {name: first, filter: [{elasticsearch: {clusters: {first: [near, far], hold_down: 2s}, timeout: 2s}}]}
  - {name: weighted, filter: [{elasticsearch: {clusters: {weighted: {near: 1, far: 1}}}}]}
  - {name: by_index, filter: [{elasticsearch: {clusters: {by_index: [{elasticsearch: far, index: split-far}, {elasticsearch: near}]}}}]}
  - {name: mixed, filter: [{elasticsearch: {elasticsearch: mixed}}]}
elasticsearch:
  - {name: near, endpoint: NEAR}
  - {name: far, endpoint: FAR}
  - {name: mixed, endpoints: [NEAR, FAR]}
`

// Two clusters of different engines stand behind one gateway, in each of the ways that there are.
func TestTwoEnginesBehindOneGateway(t *testing.T) {
	engines := [2]string{searchnode.OpenSearch3, searchnode.Elasticsearch7}
	var clusters [2]*searchnode.Cluster
	var urls [2]string
	client := newClient(t)
	names := [2]string{"near", "far"}
	for i, engine := range engines {
		clusters[i] = searchtest.ForTest(t, engine, 1)
		urls[i] = clusters[i].URLs()[0]
		for _, index := range []string{"standby", "shared-1", "split-near", "split-far"} {
			must(t, client, http.MethodPut, urls[i]+"/"+index, `{"settings":{"number_of_shards":1,"number_of_replicas":0}}`)
			must(t, client, http.MethodPost, urls[i]+"/"+index+"/_bulk?refresh=true",
				strings.Repeat(fmt.Sprintf("{\"index\":{}}\n{\"cluster\":%q}\n", names[i]), 4))
		}
	}
	s := newPlainSite(t, urls[0], "")
	s.write("gateway.yml", strings.NewReplacer("ADDRESS", s.addr, "NEAR", urls[0], "FAR", urls[1]).Replace(severalFile))
	g := s.start()

	// search tells which cluster answers, in the words of its documents.
	search := func(ctx context.Context, method, path, body string, fields ...string) (found string, id string, err error) {
		a, err := g.ask(ctx, method, g.url+path, body, fields...)
		if err != nil {
			return "", "", err
		}
		var answer struct {
			ID        string `json:"_scroll_id"`
			Responses []json.RawMessage
			Hits      struct {
				Hits []struct {
					Source struct{ Cluster string } `json:"_source"`
				}
			}
		}
		if a.status != http.StatusOK {
			return "", "", fmt.Errorf("%s %s: status %d %s", method, path, a.status, a.body)
		}
		if err := json.Unmarshal(a.body, &answer); err != nil {
			return "", "", err
		}
		if len(answer.Responses) > 0 {
			if err := json.Unmarshal(answer.Responses[0], &answer); err != nil {
				return "", "", err
			}
		}
		if len(answer.Hits.Hits) == 0 {
			return "", "", fmt.Errorf("%s %s: no documents in %s", method, path, a.body)
		}
		return answer.Hits.Hits[0].Source.Cluster, answer.ID, nil
	}
	want := func(cluster, method, path, body string, fields ...string) (id string) {
		t.Helper()
		got, id, err := search(t.Context(), method, path, body, fields...)
		if err != nil || got != cluster {
			t.Errorf("%s %s %s: answered by %q, want %q: %v", method, path, body, got, cluster, err)
		}
		return id
	}

	// By index: the path, the lines of bodies, and what would be in both.
	want("near", "GET", "/split-near/_search", "")
	want("far", "GET", "/split-far/_search", "")
	want("far", "POST", "/_msearch", "{\"index\":\"split-far\"}\n{}\n")
	if a := g.get("/split-near,split-far/_search"); a.status != http.StatusBadRequest {
		t.Errorf("a search in indices of two clusters: %d %s", a.status, a.body)
	}
	for i, url := range urls {
		must(t, client, http.MethodPost, g.url+"/_bulk?refresh=true", fmt.Sprintf("{\"create\":{\"_index\":\"split-%s\"}}\n{\"x\":1}\n", names[i]))
		for j, other := range urls {
			a := must(t, client, http.MethodGet, other+"/split-"+names[i]+"/_count", "")
			if written := strings.Contains(string(a.body), `"count":5`); written != (i == j) {
				t.Errorf("a bulk for %s: %s of %s has %s, written there should be %v", url, names[i], other, a.body, i == j)
			}
		}
	}

	// By weight: each caller always meets the same cluster, and both are met.
	met := map[string]int{}
	for caller := range 20 {
		auth := "Authorization: Basic " + base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "caller-%d:x", caller))
		first, _, err := search(t.Context(), "GET", "/shared-1/_search", "", auth)
		if err != nil {
			t.Fatal(err)
		}
		met[first]++
		want(first, "GET", "/shared-1/_search?size=1", "", auth)
	}
	if met["near"] < 2 || met["far"] < 2 {
		t.Errorf("20 callers met %v", met)
	}

	// Nodes of two clusters in one list: the one that answered first is the cluster, and clients see one version.
	versions := map[string]int{}
	until(t, 20*time.Second, func(ctx context.Context) error {
		if !strings.Contains(g.log.String(), "node belongs to another cluster than the others") {
			return errors.New("the mix was not noticed")
		}
		return nil
	})
	for range 50 {
		a, err := g.ask(t.Context(), http.MethodGet, g.url+"/", "", "X-Flow: mixed")
		var root struct{ Version struct{ Number string } }
		if err == nil {
			err = json.Unmarshal(a.body, &root)
		}
		if err != nil {
			t.Fatal(err)
		}
		versions[root.Version.Number]++
	}
	if len(versions) != 1 || versions[""] > 0 {
		t.Errorf("50 clients saw the versions %v", versions)
	}

	// The first that is there: cursors stay, reads move and come back after a while, writes fail in between.
	const open = "/standby/_search?scroll=1m&size=1"
	near := want("near", "GET", open, "")
	node := clusters[0].Node(0)
	if err := node.Pause(); err != nil {
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			if err := node.Resume(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(resume)
	until(t, 20*time.Second, func(ctx context.Context) error {
		got, _, err := search(ctx, "GET", "/standby/_search", "")
		if err == nil && got != "far" {
			err = fmt.Errorf("%s answers", got)
		}
		return err
	})
	far := want("far", "GET", open, "")
	if a, err := g.ask(t.Context(), http.MethodPost, g.url+"/standby/_doc", `{"cluster":"lost"}`); err != nil || a.status < 500 {
		t.Errorf("a write while its cluster is away: %d %s, %v", a.status, a.body, err)
	}
	resume()
	back := time.Now()
	until(t, 20*time.Second, func(ctx context.Context) error {
		got, _, err := search(ctx, "GET", "/standby/_search", "")
		if err == nil && got != "near" {
			err = fmt.Errorf("%s answers", got)
		}
		return err
	})
	if held := time.Since(back); held < 2*time.Second {
		t.Errorf("reads came back after %v, want at least the two seconds of hold_down", held)
	}
	next := func(id string) string { return fmt.Sprintf(`{"scroll":"1m","scroll_id":%q}`, id) }
	want("near", "POST", "/_search/scroll", next(near))
	want("far", "POST", "/_search/scroll", next(far))
	must(t, client, http.MethodPost, urls[1]+"/standby/_refresh", "")
	if a := must(t, client, http.MethodGet, urls[1]+"/standby/_count?q=cluster:lost", ""); !strings.Contains(string(a.body), `"count":0`) {
		t.Errorf("the write went to the other cluster: %s", a.body)
	}
	if n := g.metrics().sum("weir_upstream_diverted_total"); n == 0 {
		t.Error("nothing was counted as diverted")
	}
}
