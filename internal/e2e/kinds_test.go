package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
)

// ownCalls returns the calls of a cluster that tests have marked: the gateway makes others of its own.
func ownCalls(c *estest.Cluster) (calls []*estest.Call) {
	for _, call := range c.Calls() {
		if call.Header.Get("X-Mark") != "" {
			calls = append(calls, call)
		}
	}
	return calls
}

// A rule and the node read the same path: no spelling leads around it (traefik/traefik#12360, ruflin/Elastica#501).
func TestRulesReadPathsAsNodesDo(t *testing.T) {
	c := estest.New(t, estest.Options{})
	const rules = `  - name: main
    default_flow: refused
    rules:
      - {index: [allowed], flow: main}
`
	const refused = `  - name: refused
    filter:
      - echo: {message: refused}
`
	g := newPlainSite(t, c.URL(), "", swap("  - {name: main, default_flow: main}\n", rules), swap("flow:\n", "flow:\n"+refused)).start()
	awaitNodes(t, g, 1)
	conn := dial(t, g.addr)
	f := func(target string, passes bool) {
		t.Helper()
		c.Forget()
		conn.send(t, "GET "+target+" HTTP/1.1\r\nHost: weir.test\r\nX-Mark: 1\r\n\r\n")
		_, body, _, err := conn.read(false)
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		calls := ownCalls(c)
		switch {
		case !passes && (len(calls) > 0 || body != "refused"):
			t.Errorf("%s came to the node %d times, was answered with %s; want it refused", target, len(calls), body)
		case passes && (len(calls) != 1 || calls[0].Target != target):
			t.Errorf("%s came to the node as %v, want it once", target, calls)
		}
	}
	f("/allowed/_search", true)
	f("/allowed/_doc/..%2Fx", true) // a document called ../x
	f("/allowed/_doc/orders%2F17", true)
	f("/%61llowed/_search", true)
	f("/allowed,allowed/_search", true)
	f("/other/_search", false)
	f("/allowed,other/_search", false)
	f("/allowed%2Cother/_search", false)
	f("/allowed%2cother/_search", false)
	// Nodes do not resolve dots, so these are about the index that is allowed; the node has no handler for them.
	f("/allowed/../other/_search", true)
	f("/allowed/../_cluster/settings", true)
	f("/allowed/%2e%2e/other/_search", true)
	f("//allowed/_search", false) // every index, for Elasticsearch 7
	f("//other/_search", false)
	f("/_search", false)
	f("/_all/_search", false)
	f("/*/_search", false)
	f("/allowed*/_search", false)
	f("/_cluster/settings", false)
	f("/_bulk", false)
	f("//_bulk", false)
	f("/r:allowed/_search", false)
	f("/allowed%00/_search", false)
}

// What fails at the gateway is no fact about the cluster: never 404, 410 or 401, on which clients act
// (elastic/kibana#135542); JSON in the node's shape, without its product header (elastic/elasticsearch-js#701).
func TestFailuresOfTheGatewayAreNoFactsOfTheCluster(t *testing.T) {
	dead := "http://" + freeAddress(t)
	live := estest.New(t, estest.Options{}).URL()
	f := func(name string, status int, s *site) {
		t.Run(name, func(t *testing.T) {
			g := s.start()
			g.get("/first") // which a limit lets through
			for _, request := range []string{
				request("GET", "/.kibana", ""), request("HEAD", "/i", ""), request("GET", "/i/_doc/1", ""), request("GET", "/", ""), request("GET", "/i/_search", matchAll), request("POST", "/_bulk", bulkLines),
				request("POST", "/_msearch", "{}\n{}\n"), request("GET", "/_cat/indices", "", "Accept: text/plain"), request("DELETE", "/i", ""), request("POST", "/_search/scroll", `{"scroll_id":"x"}`),
			} {
				line, _, _ := strings.Cut(request, "\r\n")
				conn := dial(t, g.addr)
				conn.send(t, request)
				r, err := conn.readReply(strings.HasPrefix(request, "HEAD"))
				if err != nil {
					t.Errorf("%s: %v", line, err)
					continue
				}
				if want := fmt.Sprintf("HTTP/1.1 %d ", status); !strings.HasPrefix(r.line, want) {
					t.Errorf("%s: %s, want %s", line, r.line, want)
				}
				if got := r.field("x-elastic-product"); got != "" {
					t.Errorf("%s: the gateway's own answer says that it comes from %s", line, got)
				}
				if r.field("x-weir-error") == "" || !strings.HasPrefix(r.field("content-type"), "application/json") {
					t.Errorf("%s: fields are %q, want JSON and a field that names the gateway", line, r.fields)
				}
				if strings.HasPrefix(request, "HEAD") {
					continue
				}
				var failed struct {
					Status int
					Error  struct {
						RootCause []struct{ Type, Reason string } `json:"root_cause"`
						Type      string
						Reason    string
					}
				}
				if err := json.Unmarshal([]byte(r.body), &failed); err != nil || failed.Status != status || failed.Error.Type == "" || failed.Error.Reason == "" || len(failed.Error.RootCause) != 1 {
					t.Errorf("%s: body %s (%v) is not a node's error with status %d", line, r.body, err, status)
				}
			}
		})
	}
	f("no node", http.StatusServiceUnavailable, newPlainSite(t, dead, ""))
	f("no route", http.StatusServiceUnavailable, newPlainSite(t, live, "      - mount: {path: /elsewhere}\n"))
	f("switched off", http.StatusServiceUnavailable, newPlainSite(t, live, "", swap("{name: default, endpoint", "{name: default, enabled: false, endpoint")))
	f("denied", http.StatusForbidden, newPlainSite(t, live, "      - request_header_filter: {include: {X-Never: sent}}\n"))
	f("limited", http.StatusTooManyRequests, newPlainSite(t, live, "      - rate_limit: {rules: [{pattern: \".*\", max_qps: 0.001, burst: 1}]}\n"))
}

// Official clients read what the gateway answers in place of a node as they read a node's errors (elastic/elasticsearch-js#701).
func TestClientsUnderstandFailuresOfTheGateway(t *testing.T) {
	dead := "http://" + freeAddress(t)
	f := func(name string, status int, errorType, filters string) {
		t.Run(name, func(t *testing.T) {
			g := newPlainSite(t, dead, filters).start()
			g.get("/first") // which a limit lets through
			RunFailures(t, g.url, status, errorType)
		})
	}
	f("no node", http.StatusServiceUnavailable, "no_node_available_exception", "")
	f("denied", http.StatusForbidden, "forbidden_exception", "      - request_header_filter: {include: {X-Never: sent}}\n")
	f("limited", http.StatusTooManyRequests, "rate_limit_exceeded_exception", "      - rate_limit: {limits: [{key: [global], rate: 1/h, burst: 1}]}\n")
}

// The product header that official clients look for comes from the node alone, on hits as on misses
// (elastic/elasticsearch-py#1677).
func TestProductHeaderIsTheNodesOwn(t *testing.T) {
	f := func(flavor estest.Flavor, want string) {
		t.Helper()
		c := estest.New(t, estest.Options{Flavor: flavor})
		fill(t, newClient(t), c.URL(), "i")
		g := newPlainSite(t, c.URL(), "      - cache: {ttl: 1h}\n").start()
		awaitNodes(t, g, 1)
		until(t, 30*time.Second, func(ctx context.Context) error {
			a, err := g.ask(ctx, http.MethodGet, g.url+"/i/_search?q=n:1", "")
			if err != nil {
				return err
			}
			cached := a.header.Get("Cache-Status")
			if got := a.header.Get("X-Elastic-Product"); got != want {
				t.Errorf("%s: X-elastic-product is %q, want %q", cached, got, want)
			}
			if !strings.HasPrefix(cached, "weir; hit") {
				return fmt.Errorf("no hit yet: %s", cached)
			}
			return nil
		})
		if got := g.get("/").header.Get("X-Elastic-Product"); got != want {
			t.Errorf("GET /: X-elastic-product is %q, want %q", got, want)
		}
	}
	f(estest.Elasticsearch8, "Elasticsearch")
	f(estest.OpenSearch3, "")
}

// What moves or opens something on the nodes is asked each time, with all of its parameters: scrolls, points in time, other
// cursors, and the root by which clients learn the version (elastic/elasticsearch-hadoop#657, elastic/beats#29683).
func TestCursorsAndTheRootAreNeverAnsweredTwice(t *testing.T) {
	c := estest.New(t, estest.Options{})
	fill(t, newClient(t), c.URL(), "i")
	g := newPlainSite(t, c.URL(), "      - cache: {ttl: 1h}\n").start()
	awaitNodes(t, g, 1)
	conn := dial(t, g.addr)
	f := func(method, target, body string) {
		t.Helper()
		c.Forget()
		for range 3 {
			conn.send(t, request(method, target, body, "X-Mark: 1"))
			if _, _, _, err := conn.read(false); err != nil {
				t.Fatalf("%s %s: %v", method, target, err)
			}
		}
		var got []string
		for _, call := range ownCalls(c) {
			got = append(got, call.Method+" "+call.Target+" "+string(call.Body))
		}
		if want := slices.Repeat([]string{method + " " + target + " " + body}, 3); !slices.Equal(got, want) {
			t.Errorf("the node got %q, want %q", got, want)
		}
	}
	f("GET", "/", "")
	f("POST", "/i/_search?scroll=5m&size=50&preference=_shards:0%7C_only_nodes:abc&_source=n", `{"sort":["_doc"]}`)
	f("GET", "/i/_search?scroll=5m", "")
	f("POST", "/_search/scroll", `{"scroll":"1m","scroll_id":"c2Nyb2xs"}`)
	f("GET", "/_search/scroll?scroll_id=c2Nyb2xs", "")
	f("GET", "/_search/scroll/c2Nyb2xs?scroll=1m", "")
	f("POST", "/i/_pit?keep_alive=1m", "")
	f("POST", "/i/_search/point_in_time?keep_alive=1m", "")
	f("POST", "/_search", `{"pit":{"id":"abc","keep_alive":"1m"},"sort":["n"]}`)
	f("GET", "/_search", `{"size":2,"pit":{"id":"abc"}}`)
	f("GET", "/_search?source=%7B%22pit%22%3A%7B%22id%22%3A%22abc%22%7D%7D&source_content_type=application/json", "")
	f("POST", "/i/_async_search?keep_on_completion=true", `{}`)
	f("GET", "/_async_search/abc", "")
	f("POST", "/_sql", `{"cursor":"abc"}`)
	f("POST", "/_sql", `{"query":"SELECT n FROM i","fetch_size":2}`)
	f("GET", "/_search_shards", "")
}

// Nodes learn of callers by the callers' own words, and the gateway's rights stay its own (elastic/kibana#17804).
func TestCredentialsAreTheCallersOwn(t *testing.T) {
	c := estest.New(t, estest.Options{Users: []estest.User{{Name: "gw", Password: "of-weir"}, {Name: "alice", Password: "a"}, {Name: "bob", Password: "b"}}})
	basic := func(user, password string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	g := newPlainSite(t, c.URL(), "", swap("{name: default, ", "{name: default, basic_auth: {username: gw, password: \"${WEIR_E2E}\"}, "))
	t.Setenv("WEIR_E2E", "of-weir")
	running := g.start()
	awaitNodes(t, running, 1)
	conn := dial(t, running.addr)
	callers := []struct {
		field  string
		status string
	}{
		{basic("alice", "a"), "200"}, {"", "401"}, {basic("bob", "b"), "200"}, {basic("bob", "wrong"), "401"}, {"", "401"}, {"Authorization: ApiKey eA==", "401"}, {basic("alice", "a"), "200"},
	}
	for round := range 3 {
		for i, caller := range callers {
			c.Forget()
			fields := []string{"X-Mark: 1"}
			if caller.field != "" {
				fields = append(fields, caller.field)
			}
			conn.send(t, request("GET", "/_cat/indices", "", fields...))
			r, err := conn.readReply(false)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(r.line, "HTTP/1.1 "+caller.status) {
				t.Errorf("round %d, caller %d (%s): %s, want %s: %s", round, i, caller.field, r.line, caller.status, r.body)
			}
			if caller.status == "401" && r.field("www-authenticate") == "" {
				t.Errorf("round %d, caller %d: the node's 401 came without its challenge: %q", round, i, r.fields)
			}
			for _, call := range ownCalls(c) {
				if got, want := call.Header.Get("Authorization"), strings.TrimPrefix(caller.field, "Authorization: "); got != want {
					t.Errorf("round %d, caller %d: the node got the credentials %q, want %q", round, i, got, want)
				}
			}
		}
	}
}

// Clients that look for nodes through the gateway find the gateway, coded answers or not (olivere/elastic#57).
func TestSniffedAddressesAreTheGateways(t *testing.T) {
	c := estest.New(t, estest.Options{Nodes: 2, Gzip: true})
	g := newPlainSite(t, c.URL(), "      - rewrite_addresses: {}\n").start()
	awaitNodes(t, g, 2)
	plain := newPlainSite(t, c.URL(), "").start()
	f := func(path, name string) {
		t.Helper()
		for _, via := range []*gateway{g, plain} {
			a := via.get(path, "Accept-Encoding: gzip;q=0.5, identity")
			if want := must(t, via.client, http.MethodGet, c.URL()+path, "").header.Get("X-Elastic-Product"); a.header.Get("X-Elastic-Product") != want {
				t.Errorf("%s: the answer comes from %q, want %q", path, a.header.Get("X-Elastic-Product"), want)
			}
			n := strings.Count(string(a.body), `"`+name+`":"`+via.addr+`"`)
			if via == g && n != 2 || via == plain && n != 0 {
				t.Errorf("%s: the gateway's own address is there %d times: %s", path, n, a.body)
			}
		}
	}
	f("/_nodes/http", "publish_address")
	f("/_nodes/_all/http", "publish_address")
	f("/_nodes", "publish_address")
	f("/_nodes/http?pretty=false&filter_path=nodes.*.http.publish_address", "publish_address")
	f("/_cluster/state", "transport_address")
	f("/_cluster/state/nodes", "transport_address")
}

// Who comes from which page is for nodes to judge, unless the configuration says otherwise: then nodes do not learn it, or are
// not asked before a browser sends its request (grafana/grafana#13328).
func TestOriginsAreForNodesUnlessToldOtherwise(t *testing.T) {
	c := estest.New(t, estest.Options{})
	const allowed = "http://dash.test"
	plain := newPlainSite(t, c.URL(), "").start()
	told := newPlainSite(t, c.URL(), "      - set_request_header: {remove: [Origin]}\n",
		swap("  - {name: main, default_flow: main}\n", "  - {name: main, default_flow: main, rules: [{method: [OPTIONS], flow: preflight}]}\n"),
		swap("flow:\n", `flow:
  - name: preflight
    filter:
      - set_response_header:
          headers: {Access-Control-Allow-Origin: "`+allowed+`", Access-Control-Allow-Methods: "GET, POST", Access-Control-Allow-Headers: Content-Type}
      - echo: {status: 204}
`)).start()
	awaitNodes(t, plain, 1)
	awaitNodes(t, told, 1)
	f := func(g *gateway, raw, line, origin string, calls int) {
		t.Helper()
		c.Forget()
		conn := dial(t, g.addr)
		conn.send(t, raw)
		r, err := conn.readReply(false)
		if err != nil {
			t.Fatal(err)
		}
		own := ownCalls(c)
		if len(own) != calls {
			t.Fatalf("%.40q came to the node %d times, want %d", raw, len(own), calls)
		}
		if calls == 1 && own[0].Header.Get("Origin") != origin {
			t.Errorf("%.40q: the node was told of the origin %q, want %q", raw, own[0].Header.Get("Origin"), origin)
		}
		if line != "" && (!strings.HasPrefix(r.line, line) || r.field("access-control-allow-origin") != allowed || r.body != "") {
			t.Errorf("%.40q: %s %q %s", raw, r.line, r.fields, r.body)
		}
	}
	ask := request("POST", "/i/_search", matchAll, "X-Mark: 1", "Origin: "+allowed)
	preflight := request("OPTIONS", "/i/_search", "", "X-Mark: 1", "origin: "+allowed, "Access-Control-Request-Method: POST")
	f(plain, ask, "", allowed, 1)
	f(plain, preflight, "", allowed, 1)
	f(told, ask, "", "", 1)
	f(told, preflight, "HTTP/1.1 204 ", "", 0)
}

// testConnectionsThatNodesLeaveSilent sends what nodes refuse without ever answering on that connection again: too many bytes
// of fields, and on Elasticsearch 7.17 two X-Opaque-Ids. Whoever comes next must not get such a connection.
func testConnectionsThatNodesLeaveSilent(t *testing.T, cluster string) {
	g := newPlainSite(t, cluster, "").start()
	awaitNodes(t, g, 1)
	for _, fields := range [][]string{{"X-Long: " + strings.Repeat("a", 9000)}, {"X-Opaque-Id: a", "X-Opaque-Id: b"}} {
		for range 3 {
			conn := dial(t, g.addr)
			conn.send(t, request("GET", "/_cluster/health", "", fields...))
			r, err := conn.readReply(false)
			if err != nil {
				t.Errorf("fields %.40q: %v", fields, err)
			}
			t.Logf("fields %.40q: %s", fields, r.line)
			for range 3 {
				next := dial(t, g.addr)
				next.send(t, request("GET", "/_cluster/health", ""))
				if r, err := next.readReply(false); err != nil || !strings.HasPrefix(r.line, "HTTP/1.1 200 ") {
					t.Errorf("after fields %.40q the next caller gets %s, %v", fields, r.line, err)
				}
			}
		}
	}
}
