package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testSniffingClient shows that a client which looks for nodes leaves the gateway for those that the cluster names, and that
// it stays where the gateway names itself (elastic/elasticsearch-ruby#179).
func testSniffingClient(t *testing.T, cluster string) {
	if nodes := RunJavaClient(t, newPlainSite(t, cluster, "").start().url); !slices.Equal(nodes, []string{strings.TrimPrefix(cluster, "http://")}) {
		t.Errorf("without rewrite_addresses the client sends to %q, want the node %s", nodes, cluster)
	}
	g := newPlainSite(t, cluster, "      - rewrite_addresses: {}\n").start()
	if nodes := RunJavaClient(t, g.url); !slices.Equal(nodes, []string{g.addr}) {
		t.Errorf("with rewrite_addresses the client sends to %q, want the gateway at %s", nodes, g.addr)
	}
}

// testElasticdump copies an index with elasticdump, once out of the gateway and once into it.
func testElasticdump(t *testing.T, cluster string) {
	const documents = 3000
	client := newClient(t)
	g := newPlainSite(t, cluster, "").start()
	deleteAll(t, client, cluster, "dump-*")
	must(t, client, http.MethodPut, cluster+"/dump-source", `{"settings":{"number_of_shards":2,"number_of_replicas":0},
		"mappings":{"properties":{"n":{"type":"integer"},"kind":{"type":"keyword"},"text":{"type":"text","analyzer":"whitespace"}}}}`)
	var bulk strings.Builder
	for n := range documents {
		fmt.Fprintf(&bulk, "{\"index\":{\"_id\":\"%d/é+%%25\"}}\n{\"n\":%d,\"kind\":\"k%d\",\"text\":\"%s\",\"nested\":{\"list\":[%d,null],\"sign\":\"\\u20ac\"}}\n",
			n, n, n%7, strings.Repeat("wörd ", n%50), n)
	}
	if a := must(t, client, http.MethodPost, cluster+"/dump-source/_bulk?refresh=true", bulk.String()); bytes.Contains(a.body, []byte(`"errors":true`)) {
		t.Fatalf("some documents were not stored: %.500s", a.body)
	}

	elasticdump(t, g.url+"/dump-source", cluster+"/dump-read", "mapping")
	elasticdump(t, g.url+"/dump-source", cluster+"/dump-read", "data")
	elasticdump(t, cluster+"/dump-read", g.url+"/dump-written", "mapping")
	elasticdump(t, cluster+"/dump-read", g.url+"/dump-written", "data")
	must(t, client, http.MethodPost, cluster+"/dump-*/_refresh", "")
	want := indexSum(t, client, cluster, "dump-source", documents)
	for _, copied := range []string{"dump-read", "dump-written"} {
		if got := indexSum(t, client, cluster, copied, documents); got != want {
			t.Errorf("%s is not what was copied: checksum %s, want %s", copied, got, want)
		}
		mapping := must(t, client, http.MethodGet, cluster+"/"+copied+"/_mapping/field/text?filter_path=**.analyzer", "").body
		if !bytes.Contains(mapping, []byte("whitespace")) {
			t.Errorf("%s has the mapping %s", copied, mapping)
		}
	}
}

// elasticdump copies mapping or data of an index.
func elasticdump(t *testing.T, from, to, what string) {
	t.Helper()
	dir := clientsDir(t, "package-lock.json", packageLock)
	program := filepath.Join(dir, "node", "node_modules", "elasticdump", "bin", "elasticdump")
	out := runClient(t, "", "node", program, "--input="+from, "--output="+to, "--type="+what, "--limit=500", "--noRefresh")
	if !bytes.Contains(out, []byte("dump complete")) {
		t.Errorf("elasticdump of %s from %s to %s says\n%s", what, from, to, tail(string(out), 2000))
	}
}

// indexSum checks the number of an index's documents and returns a checksum over their ids and sources.
func indexSum(t *testing.T, client *http.Client, cluster, index string, documents int) string {
	t.Helper()
	a := must(t, client, http.MethodPost, cluster+"/"+index+"/_search", `{"size":10000,"sort":["n"],"track_total_hits":true}`)
	var found struct {
		Hits struct {
			Total struct{ Value int }
			Hits  []struct {
				ID     string          `json:"_id"`
				Source json.RawMessage `json:"_source"`
			}
		}
	}
	if err := json.Unmarshal(a.body, &found); err != nil {
		t.Fatal(err)
	}
	if found.Hits.Total.Value != documents || len(found.Hits.Hits) != documents {
		t.Errorf("%s has %d documents, want %d", index, found.Hits.Total.Value, documents)
	}
	sum := sha256.New()
	for _, h := range found.Hits.Hits {
		var source any // its members in one order, whatever the tool makes of it
		if err := json.Unmarshal(h.Source, &source); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(source)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%q %s\n", h.ID, text)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}
