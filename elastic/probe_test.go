package elastic

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/elastic/transport"
)

// The list of nodes carries no scheme: what it lists is spoken to as the configured node is (jaegertracing/jaeger#2263).
func TestListedNodesAreSpokenToInTheSchemeOfTheConfiguredOne(t *testing.T) {
	cert, key := newIssuer(t).issue(t, "node", false)
	es := estest.New(t, estest.Options{Nodes: 3, TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}})
	k, logs := open(t, ", tls: {insecure_skip_verify: true}", es.URL())
	waitFor(t, "three nodes", func() bool { return len(nodeNames(k)) == 3 })
	for _, n := range es.Nodes() { // a node that speaks TLS alone hears nothing else
		if len(n.Calls()) == 0 {
			t.Errorf("%s was not asked before it joined", n.Name())
		}
	}
	if status, err := send(k, "POST", "/_search", "{}"); err != nil || status != 200 {
		t.Errorf("%d, %v\n%s", status, err, logs)
	}
}

// A node lives if it answers GET /. What it says of its cluster, and a wait that ran out (408), take no node out
// (elastic/cloud-on-k8s#2248).
func TestColourOfTheClusterTakesNoNodeOut(t *testing.T) {
	bubble(t, 2, "", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer) {
		es.Inject(estest.Fault{Path: "/_cluster/health", Status: 408, Body: []byte(`{"status":"yellow","timed_out":true}`)})
		for range 100 {
			if status, err := send(k, "GET", "/_cluster/health?wait_for_status=green", ""); err != nil || status != 408 {
				t.Fatalf("%d, %v", status, err)
			}
			<-time.After(time.Second)
		}
		if n := es.Count("/_cluster/health"); n != 100 || strings.Contains(logs.String(), "node is out") {
			t.Errorf("%d calls for 100 waits\n%s", n, logs)
		}
	})
}

// A gateway that may look at nothing still knows that its nodes live, and warns once
// (logstash-plugins/logstash-output-elasticsearch#507).
func TestNodesThatLetNobodyLook(t *testing.T) {
	for _, fault := range []estest.Fault{{Status: 401}, {Status: 403}, {Body: []byte(`{"error":"not an object"}`)}, {Body: []byte(`[]`)}} {
		bubble(t, 2, "", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer) {
			fault.Path = "/_nodes*"
			es.Inject(fault)
			if fault.Status != 0 {
				fault.Path = "/"
				es.Inject(fault)
			}
			<-time.After(5 * time.Minute)
			for range 20 {
				if status, err := send(k, "POST", "/_search", "{}"); err != nil || status != 200 {
					t.Fatalf("%+v: %d, %v", fault, status, err)
				}
			}
			if len(nodeNames(k)) != 2 || strings.Contains(logs.String(), "node is out") ||
				fault.Status != 0 && strings.Count(logs.String(), "refuses the gateway's own calls") != 1 || strings.Count(logs.String(), "nodes cannot be listed") != 1 {
				t.Errorf("%+v: nodes %v, log:\n%s", fault, nodeNames(k), logs)
			}
		})
	}
}

// While no master is known each node answers 503. A write is sent to one of them, a read to two; the client gets what the node
// said, and learns when to ask again (elastic/elasticsearch#34427).
func TestNodesWithoutMaster(t *testing.T) {
	const (
		blocked = `{"error":{"type":"cluster_block_exception","reason":"blocked by: [SERVICE_UNAVAILABLE/1/state not recovered / initialized];"},"status":503}`
		other   = `{"error":{"type":"no_shard_available_action_exception","reason":"all shards failed"},"status":503}`
	)
	f := func(request, body, answer, field, want string, calls int) {
		t.Helper()
		bubble(t, 3, "", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer) {
			fault := estest.Fault{Status: 503, Body: []byte(answer)}
			if field != "" {
				fault.Header = []string{field}
			}
			es.Inject(fault)
			method, target, _ := strings.Cut(request, " ")
			for range 20 {
				var resp transport.Response
				if err := k.Do(call(method, target, body), &resp); err != nil || resp.Status != 503 || string(resp.Body) != answer {
					t.Fatalf("%s: %d %s, %v", request, resp.Status, resp.Body, err)
				}
				if got := string(resp.Header.Get("retry-after")); got != want {
					t.Errorf("%s, %s: Retry-After %q, want %q", request, answer, got, want)
				}
				resp.Reset()
			}
			if n := es.Count(target); n != calls || strings.Contains(logs.String(), "node is out") {
				t.Errorf("%s: 20 requests were sent %d times, want %d\n%s", request, n, calls, logs)
			}
		})
	}
	const lines = "{\"index\":{\"_index\":\"i\"}}\n{}\n"
	f("POST /_bulk", lines, blocked, "", "1", 20)
	f("POST /_bulk", lines, strings.Replace(blocked, "cluster_block", "master_not_discovered", 1), "", "1", 20)
	f("POST /_search", "{}", blocked, "", "1", 40)
	f("POST /_bulk", lines, blocked, "Retry-After: 7", "7", 20) // of a proxy in between
	f("POST /_bulk", lines, other, "", "", 20)
}

// While a cluster is upgraded its nodes are of two versions. Both serve, what they say of themselves is passed on as it is, and
// who looks at the gateway sees which node is of which (opensearch-project/OpenSearch#3559).
func TestNodesOfTwoVersionsAreOneCluster(t *testing.T) {
	bubble(t, 2, "", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer) {
		versions := []string{"7.17.28", "8.11.4"}
		for i, v := range versions {
			es.Node(i).Inject(estest.Fault{Path: "/", Status: 200, Body: fmt.Appendf(nil, `{"cluster_uuid":%q,"version":{"number":%q}}`, es.UUID(), v)})
		}
		<-time.After(time.Minute)
		got := map[string]int{}
		for range 200 {
			r := call("GET", "/", "")
			var resp transport.Response
			if err := k.Do(r, &resp); err != nil || resp.Status != 200 {
				t.Fatal(resp.Status, err)
			}
			for i, v := range versions {
				if bytes.Contains(resp.Body, []byte(v)) && r.Node == es.Node(i).Addr() {
					got[v]++
				}
			}
			resp.Reset()
		}
		if got[versions[0]]+got[versions[1]] != 200 || got[versions[0]] < 50 || got[versions[1]] < 50 {
			t.Errorf("answers by version: %v", got)
		}
		s := k.Status()
		for i, n := range s.Nodes {
			if n.Version != versions[i] || n.Out || n.Weight != 1 {
				t.Errorf("node %+v", n)
			}
		}
		if s.Version == "" || strings.Contains(logs.String(), "level=WARN") {
			t.Errorf("version %q, log:\n%s", s.Version, logs)
		}
	})
}
