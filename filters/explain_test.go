package filters_test

import (
	"net/http"
	"strings"
	"testing"

	"weir/elastic/estest"
	"weir/filters"
	"weir/flows"
	"weir/flows/flowstest"
)

// A client that asks is told which node answered and how many were tried; one that does not ask, or finds the answer in a cache, is
// told nothing, and an entry that does not explain tells nobody.
func TestClientsAreToldWhichNodeAnswered(t *testing.T) {
	es := estest.New(t, estest.Options{Nodes: 2})
	text := "elasticsearch: [{name: up, discovery: {enabled: false}, balance: {policy: first}, endpoints: [" + strings.Join(es.URLs(), ", ") + "]}]\n" +
		flowstest.Main("{cache: {}}, {elasticsearch: {elasticsearch: up}}")
	start := func(explain bool) *flowstest.Gateway {
		return flowstest.New(t, filters.Registry(), text, flowstest.Options{Entry: func(c *flows.EntryConfig) { c.Explain = explain }})
	}
	explains, silent := start(true), start(false)
	f := func(g *flowstest.Gateway, request, field string, status int, node, attempts string) {
		t.Helper()
		resp, _ := g.Dial().Send(request + " HTTP/1.1\nHost: a\n" + field + "\n").Answer()
		if resp.StatusCode != status {
			t.Errorf("%s: status %d", request, resp.StatusCode)
		}
		cluster := ""
		if node != "" {
			cluster = "up"
		}
		for name, want := range map[string]string{"X-Weir-Cluster": cluster, "X-Weir-Node": node, "X-Weir-Attempts": attempts} {
			if got := strings.Join(resp.Header[http.CanonicalHeaderKey(name)], "|"); got != want {
				t.Errorf("%s with %q: %s is %q, want %q", request, field, name, got, want)
			}
		}
	}
	const asks = "X-Weir-Explain: 1\n"
	f(explains, "PUT /i", asks, 200, es.Node(0).Addr(), "1")
	f(explains, "GET /_cat/nodes", "", 200, "", "")
	f(silent, "GET /_cat/nodes", asks, 200, "", "")
	f(explains, "GET /i/_search", asks, 200, es.Node(0).Addr(), "1")
	f(explains, "GET /i/_search", asks, 200, "", "")
	f(explains, "GET /i/_search", "", 200, "", "") // whoever asks meets the same entry
	if n := es.Count("/i/_search"); n != 1 {
		t.Errorf("%d searches reached the cluster, want 1", n)
	}
	es.Node(0).Inject(estest.Fault{Path: "/_cat/indices", Status: 502})
	f(explains, "GET /_cat/indices", asks, 200, es.Node(1).Addr(), "2")
	es.Node(1).Inject(estest.Fault{Path: "/_cat/indices", Status: 502})
	f(explains, "GET /_cat/indices", asks, 502, es.Node(1).Addr(), "2")
}
