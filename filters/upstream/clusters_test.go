package upstream_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/flows/flowstest"
	"weir/internal/obs"
)

// logLines keeps what is logged.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logLines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// several runs an entry over a filter with these clusters, which are called by their names.
func several(t *testing.T, filter string, list ...*estest.Cluster) (addr string, metrics *obs.Metrics, logs *logLines) {
	t.Helper()
	var sections []string
	for i, es := range list {
		sections = append(sections, fmt.Sprintf("{name: %c, endpoints: [%s]}", 'a'+i, strings.Join(es.URLs(), ", ")))
	}
	logs = new(logLines)
	g := flowstest.New(t, registry(), overClusters(strings.Join(sections, ", "), filter),
		flowstest.Options{Logger: slog.New(slog.NewTextHandler(logs, nil))})
	return g.Addr(), g.Metrics, logs
}

// named starts clusters of one node whose ids differ.
func named(t *testing.T, names ...string) []*estest.Cluster {
	t.Helper()
	var list []*estest.Cluster
	for _, name := range names {
		list = append(list, estest.New(t, estest.Options{Name: name}))
	}
	return list
}

// answered returns the name of the cluster that answers GET /, or the status.
func answered(t *testing.T, addr string, lines ...string) string {
	t.Helper()
	resp, body := ask(t, addr, request("GET", "/", "", lines...))
	var root struct {
		Cluster string `json:"cluster_name"`
	}
	if err := json.Unmarshal([]byte(body), &root); err != nil || resp.StatusCode != 200 {
		return fmt.Sprint(resp.StatusCode)
	}
	return root.Cluster
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// value returns the value of a counter of a cluster.
func value(t *testing.T, m *obs.Metrics, name, cluster, state string) (sum float64) {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range s.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == name && labels["cluster"] == cluster && labels["state"] == state {
				sum += s.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// TestFirstClusterThatIsThere stops clusters and starts them again: no read fails while one is left, writes go to the first
// alone, and the first gets reads again only when it has been back for a while.
func TestFirstClusterThatIsThere(t *testing.T) {
	es := named(t, "near", "far")
	addr, metrics, logs := several(t, "clusters: {first: [a, b], hold_down: 3s}", es...)
	for range 20 {
		if got := answered(t, addr); got != "near" {
			t.Fatalf("%s answers while both are there", got)
		}
	}
	es[0].Node(0).Stop()
	for range 20 {
		if got := answered(t, addr); got != "far" {
			t.Fatalf("%s answers while the first is away", got)
		}
	}
	if resp, body := ask(t, addr, request("POST", "/i/_doc", "{}")); resp.StatusCode != 503 || es[1].Count("/i/_doc") != 0 {
		t.Errorf("a write while the first is away: status %d %s, %d at the other", resp.StatusCode, body, es[1].Count("/i/_doc"))
	}
	if err := es[0].Node(0).Start(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	eventually(t, "writes to go on", func() bool {
		resp, _ := ask(t, addr, request("POST", "/i/_doc", "{}"))
		return resp.StatusCode == 201
	})
	writable := time.Now()
	if got := answered(t, addr); got != "far" {
		t.Errorf("%s answers before the time is over", got)
	}
	eventually(t, "the first", func() bool { return answered(t, addr) == "near" })
	if d := time.Since(back); d < 3*time.Second {
		t.Errorf("the first got reads again after %v, writes after %v", d, writable.Sub(back))
	}
	if logs.count("cluster cannot be reached") != 1 || logs.count("cluster is back") != 1 ||
		value(t, metrics, "weir_upstream_cluster_changes_total", "a", "away") != 1 ||
		value(t, metrics, "weir_upstream_cluster_changes_total", "a", "back") != 1 ||
		value(t, metrics, "weir_upstream_diverted_total", "b", "") < 21 {
		t.Errorf("log:\n%s", logs.b.String())
	}
	es[0].Node(0).Stop()
	es[1].Node(0).Stop()
	resp, body := ask(t, addr, request("GET", "/i/_search", ""))
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || !strings.Contains(body, "no_node_available_exception") || !strings.Contains(body, `[\"a\" \"b\"]`) {
		t.Errorf("both away: %d %v %s", resp.StatusCode, resp.Header, body)
	}
}

// TestIDsStayWithTheirCluster opens cursors on one cluster and goes on while the filter sends everything else to another
// one. A cluster that does not know an id is never believed (elastic/elasticsearch-js-legacy#29).
func TestIDsStayWithTheirCluster(t *testing.T) {
	f := func(known bool) {
		t.Helper()
		es := named(t, "near", "far")
		if !known { // by who may not list nodes
			for _, each := range es {
				each.Inject(estest.Fault{Path: "/_nodes*", Status: 403})
			}
		}
		for i := range 3 {
			for _, each := range es {
				ask(t, strings.TrimPrefix(each.URL(), "http://"), request("PUT", fmt.Sprintf("/i/_doc/%d?refresh=true", i), "{}"))
			}
		}
		near := strings.TrimPrefix(es[0].URL(), "http://")
		addr, _, logs := several(t, "clusters: {first: [b, a]}", es...)
		if known {
			eventually(t, "nodes to be known", func() bool { return es[0].Count("/_nodes/http") > 0 && es[1].Count("/_nodes/http") > 0 })
		} else {
			eventually(t, "listing to fail", func() bool { return logs.count("nodes cannot be listed") == 2 })
		}
		open := func() string {
			_, body := ask(t, near, request("POST", "/i/_search?scroll=1m&size=1", "{}"))
			var answer struct {
				ID string `json:"_scroll_id"`
			}
			if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.ID == "" {
				t.Fatal(body)
			}
			return answer.ID
		}
		id := open()
		step := func(method, target, body string, want int) string {
			t.Helper()
			resp, got := ask(t, addr, request(method, target, body))
			if resp.StatusCode != want {
				t.Errorf("known %v: %s %s: %d %s, want %d", known, method, target, resp.StatusCode, got, want)
			}
			return got
		}
		es[0].Forget()
		es[1].Forget()
		step("POST", "/_search/scroll", `{"scroll":"1m","scroll_id":"`+id+`"}`, 200)
		step("GET", "/_search/scroll?scroll_id="+strings.ReplaceAll(id, "=", "%3D"), "", 200)
		if n := es[0].Count("/_search/scroll"); n != 2 {
			t.Errorf("known %v: %d calls reached the cluster", known, n)
		}
		if n := es[1].Count("/_search/scroll"); known && n != 0 {
			t.Errorf("%d calls reached the other cluster", n)
		}
		step("DELETE", "/_search/scroll", `{"scroll_id":["`+id+`"]}`, 200)
		step("POST", "/_search/scroll", `{"scroll_id":"`+id+`"}`, 404) // now it is a fact
		id = open()
		es[0].Node(0).Stop()
		if got := step("POST", "/_search/scroll", `{"scroll_id":"`+id+`"}`, 503); !known && !strings.Contains(got, "unknown_cluster_exception") {
			t.Error(got)
		}
	}
	f(true)
	f(false)
}

// TestWhereIDsStand sends what is about something that one cluster keeps, by the id of one of its nodes.
func TestWhereIDsStand(t *testing.T) {
	es := named(t, "near", "far")
	addr, _, _ := several(t, "clusters: {first: [b, a]}", es...)
	eventually(t, "nodes to be known", func() bool { return es[0].Count("/_nodes/http") > 0 && es[1].Count("/_nodes/http") > 0 })
	node, other := es[0].Node(0).ID(), es[1].Node(0).ID()
	id := base64.RawURLEncoding.EncodeToString([]byte("\x01\xfe?" + node + "\x00i"))
	f := func(method, target, body string) {
		t.Helper()
		es[0].Forget()
		es[1].Forget()
		ask(t, addr, request(method, target, body))
		path, _, _ := strings.Cut(target, "?")
		if es[0].Count(path) != 1 || es[1].Count(path) != 0 {
			t.Errorf("%s %s %s: %d and %d calls", method, target, body, es[0].Count(path), es[1].Count(path))
		}
	}
	f("POST", "/_search", `{"query":{"match_all":{}},"pit":{"id":"`+id+`","keep_alive":"1m"}}`)
	f("POST", "/_msearch", "{}\n"+`{"pit":{"id":"`+id+`"}}`+"\n")
	f("DELETE", "/_pit", `{"id":"`+id+`"}`)
	f("DELETE", "/_search/point_in_time", `{"pit_id":["`+id+`"]}`)
	f("GET", "/_async_search/"+id, "")
	f("GET", "/_async_search/status/"+id, "")
	f("DELETE", "/_async_search/"+id, "")
	f("GET", "/_plugins/_asynchronous_search/"+id, "")
	f("GET", "/_eql/search/"+id, "")
	f("GET", "/_query/async/"+id, "")
	f("POST", "/_sql", `{"cursor":"`+id+`"}`)
	f("POST", "/_sql/close", `{"cursor":"`+id+`"}`)
	f("GET", "/_tasks/"+node+":123", "")
	f("POST", "/_tasks/"+node+":123/_cancel", "")
	f("POST", "/_reindex/"+node+":123/_rethrottle?requests_per_second=1", "")
	f("DELETE", "/_search/scroll/"+id+","+id+"%3D%3D", "")

	both := `{"scroll_id":["` + id + `","` + base64.StdEncoding.EncodeToString([]byte(other)) + `"]}`
	if resp, body := ask(t, addr, request("DELETE", "/_search/scroll", both)); resp.StatusCode != 400 || !strings.Contains(body, "ids of the clusters") {
		t.Errorf("ids of two clusters: %d %s", resp.StatusCode, body)
	}
}

// TestCallersByWeight has callers shared out: each always meets the same cluster, and another one while that is away.
func TestCallersByWeight(t *testing.T) {
	es := named(t, "heavy", "light")
	addr, _, _ := several(t, "clusters: {weighted: {a: 3, b: 1}}", es...)
	const callers = 200
	of := map[string]string{}
	count := map[string]int{}
	for range 2 {
		for i := range callers {
			line := "Authorization: Basic " + base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "user%d:x", i))
			got := answered(t, addr, line)
			if before, ok := of[line]; ok && before != got {
				t.Fatalf("%s got %s and then %s", line, before, got)
			}
			of[line] = got
			count[got]++
		}
	}
	if share := float64(count["heavy"]) / (2 * callers); share < 0.65 || share > 0.85 || len(count) != 2 {
		t.Errorf("%v", count)
	}
	es[1].Node(0).Stop()
	for line := range of {
		if got := answered(t, addr, line); got != "heavy" {
			t.Fatalf("%s got %s while the other is away", line, got)
		}
	}
}

// TestClustersByIndex sends requests to the cluster that has the indices which they name, and to none if there are several.
func TestClustersByIndex(t *testing.T) {
	es := named(t, "logs", "rest")
	addr, _, _ := several(t, `clusters: {by_index: [{elasticsearch: a, index: ["logs-*", audit]}, {elasticsearch: b}]}`, es...)
	f := func(method, target, body string, want string) {
		t.Helper()
		es[0].Forget()
		es[1].Forget()
		resp, text := ask(t, addr, request(method, target, body))
		path, _, _ := strings.Cut(target, "?")
		got := fmt.Sprintf("%d %d", es[0].Count(path), es[1].Count(path))
		if resp.StatusCode == 400 && (strings.Contains(text, "clusters") || strings.Contains(text, "escapes")) || strings.Contains(text, "of cluster [a] and of others") {
			got = "refused"
		}
		if got != want {
			t.Errorf("%s %s %q: %s (%d %s), want %s", method, target, body, got, resp.StatusCode, text, want)
		}
	}
	const logs, rest, refused = "1 0", "0 1", "refused"
	f("POST", "/logs-1/_search", "{}", logs)
	f("POST", "/logs-1,audit,-logs-2/_search", "{}", logs)
	f("POST", "/%6Cogs-1/_search", "{}", logs)
	f("PUT", "/audit/_doc/1", "{}", logs)
	f("POST", "/users/_search", "{}", rest)
	f("GET", "/", "", rest)
	f("GET", "/_cluster/health", "", rest)
	f("POST", "/logs-1,users/_search", "{}", refused)
	f("POST", "/*/_search", "{}", refused)
	f("POST", "/_all/_search", "{}", refused)
	f("POST", "/_search", "{}", refused)
	f("POST", "/_bulk", `{"index":{"_index":"logs-1"}}`+"\n{}\n", logs)
	f("POST", "/logs-1/_bulk", `{"index":{}}`+"\n{}\n", logs)
	f("POST", "/logs-1/_bulk", `{"index":{"_index":"users"}}`+"\n{}\n", refused)
	f("POST", "/_bulk", `{"index":{"_index":"logs-1"}}`+"\n"+`{"index":"users"}`+"\n", logs)
	f("POST", "/_msearch", `{"index":"logs-1"}`+"\n{}\n"+`{"index":["audit"]}`+"\n{}\n", logs)
	f("POST", "/_msearch", `{"index":"logs-1"}`+"\n{}\n"+`{"index":"users"}`+"\n{}\n", refused)
	f("POST", "/_mget", `{"docs":[{"_index":"users","_id":"1"}]}`, rest)
	f("POST", "/_mget", `{"docs":[{"_index":"users","_id":"1"},{"_index":"audit","_id":"1"}]}`, refused)
	for _, target := range []string{"/_bulk", "/logs-1/_bulk", "/_msearch", "/logs-1/_msearch", "/_search", "/_sql", "/_mget"} {
		if resp, _ := ask(t, addr, request("POST", target, "\x1f\x8b", "Content-Encoding: gzip")); resp.StatusCode != 415 {
			t.Errorf("%s that cannot be read: status %d", target, resp.StatusCode)
		}
	}
	f("POST", "/_reindex", `{"source":{"index":["users"]},"dest":{"index":"logs-1"}}`, refused)

	// The same in other words: to nodes they all name the index.
	f("POST", "/_search?index=logs-1", "{}", logs)
	f("POST", "/_search?ind%65x=users&index=%6Cogs-1,audit", "{}", logs)
	f("POST", "/users/_search?index=logs-1", "{}", rest)
	f("POST", "//_search?index=logs-1", "{}", refused)
	f("POST", "/_bulk?index=logs-1", `{"index":{}}`+"\n{}\n", logs)
	f("POST", "/_bulk?index=logs-1", `{"index":{"_index":"users"}}`+"\n{}\n", refused)
	f("POST", "/_bulk/stream", `{"index":{"_index":"logs-1"}}`+"\n{}\n", logs)
	f("PUT", "/users/_bulk/stream", `{"index":{"_index":"logs-1"}}`+"\n{}\n", refused)
	f("POST", "/_bulk", `{"index":{"_index":"users"}}`+"\n{}\n[]\n", refused)
	f("POST", "/_bulk", `{"index":{"\u005findex":"logs-1"}}`+"\n{}\n", logs)
	f("POST", "/_msearch", `{"indices":"logs-1"}`+"\n{}\n", logs)
	f("POST", "/users/_msearch", `{"indices":["logs-1"]}`+"\n{}\n", refused)
	f("POST", "/users/_msearch", `{"inde\u0078":"logs-1"}`+"\n{}\n", refused)
	f("POST", "/_msearch", `{"index":"lo\u0067s-1"}`+"\n{}\n", logs)
	f("POST", "/users/_msearch", "\n"+`{"index":"logs-1"}`+"\n{}\n", refused)
	f("POST", "/users/_msearch", "\n{}\n"+`{"index":"logs-1"}`+"\n{}\n", refused)
	f("POST", "/logs-1/_msearch", "{}\n"+`{"query":{"match":{"a\u0062":"users"}}}`+"\n", logs)
	f("GET", "/_msearch?source_content_type=application/json&source=%7B%22index%22:%22logs-1%22%7D%0A%7B%7D%0A", "", logs)
	f("POST", "/users/_mget", `{"docs":[{"_index":"logs-1","_id":"1"}]}`, refused)
	f("POST", "/users/_mget", `{"docs":[{"\u005findex":"logs-1","_id":"1"}]}`, refused)
	f("POST", "/logs-1/_mtermvectors?ids=1,2", "", logs)
	f("POST", "/_reindex", `{"source":{"inde\u0078":"logs-1"},"dest":{"index":"users"}}`, refused)
	f("POST", "/_reindex", `{"source":{"index":"users","query":{"term":{"a\u0062":"logs-1"}}},"dest":{"index":"users"}}`, rest)
	if resp, _ := ask(t, addr, strings.Replace(request("POST", "/logs-1/_bulk", ":)\n"), "application/json", "application/smile", 1)); resp.StatusCode != 415 {
		t.Errorf("_bulk in SMILE: status %d", resp.StatusCode)
	}
}

func TestClustersThatMakeNoSense(t *testing.T) {
	f := func(filter, want string) {
		t.Helper()
		err := problems(overClusters("{name: a, endpoint: 'http://127.0.0.1:1'}, {name: b, endpoint: 'http://127.0.0.1:2'}", filter))
		if got := fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("%s: %s", filter, got)
		}
	}
	f("timeout: 1s", "elasticsearch names the cluster, or clusters names several")
	f("elasticsearch: a, clusters: {first: [a, b]}", "one of elasticsearch,")
	f("clusters: {first: [a, b], weighted: {a: 1}}", "one of elasticsearch,")
	f("clusters: {first: [a, a]}", "a is named twice")
	f("clusters: {first: [a, c]}", `no elasticsearch called "c"`)
	f("clusters: {weighted: {a: 0, b: 1}}", "a weight is a number from 1 on")
	f("clusters: {by_index: [{elasticsearch: a}, {elasticsearch: b}]}", "the last cluster gets everything else")
	f("clusters: {by_index: [{elasticsearch: a, index: x}]}", "the last cluster gets everything else")
	f("clusters: {hold_down: 1s}", "elasticsearch names the cluster")
}
