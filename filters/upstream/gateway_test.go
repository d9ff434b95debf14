package upstream_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/elastic/estest"
	"weir/filters/upstream"
	"weir/flows"
	"weir/flows/flowstest"
	"weir/internal/obs"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// registry has the filter elasticsearch.
func registry() *flows.Registry {
	reg := flows.NewRegistry()
	flows.Register(reg, upstream.Elasticsearch())
	return reg
}

// one is a configuration of one elasticsearch filter over one cluster; both texts are members of their sections in YAML.
func one(cluster, filter string) string {
	return overClusters("{name: up"+cluster+"}", "elasticsearch: up"+filter)
}

// overClusters is a configuration of one elasticsearch filter over these clusters.
func overClusters(clusters, filter string) string {
	return "elasticsearch: [" + clusters + "]\n" + flowstest.Main("{elasticsearch: {"+filter+"}}")
}

// problems returns what is wrong with a configuration, nil if nothing is.
func problems(text string) error {
	_, _, p := flowstest.Build(registry(), text)
	return p.Err()
}

// gateway runs an entry over such a flow and returns its address and its metrics.
func gateway(t testing.TB, cluster, filter string) (string, *obs.Metrics) {
	t.Helper()
	g := flowstest.New(t, registry(), one(cluster, filter), flowstest.Options{})
	return g.Addr(), g.Metrics
}

// endpoints is the member of a cluster's section that names its nodes, which are all there are.
func endpoints(urls ...string) string {
	return ", discovery: {enabled: false}, endpoints: [" + strings.Join(urls, ", ") + "]"
}

// ask sends raw on a connection of its own and returns the answer and its body; a status of 0 means that none came whole.
func ask(t testing.TB, addr, raw string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(raw, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		return &http.Response{}, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return &http.Response{}, string(body)
	}
	return resp, string(body)
}

// request makes a request in JSON with further header lines.
func request(method, target, body string, lines ...string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: gw.test:8000\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", method, target, len(body))
	for _, line := range lines {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return b.String()
}

// TestTimeByClass lets nodes take their time. What runs long by nature is not cut off by the limits of the others, an
// answer that does not begin in time is a 504 that says that the work may still run, and nothing is repeated
// (elastic/elasticsearch#84577).
func TestTimeByClass(t *testing.T) {
	const limits = ", timeout: 100ms, timeouts: {first_byte: {cursor: 0, inspect: 30s}, total: 2m}"
	f := func(filter, method, target, body string, wantStatus int) {
		t.Helper()
		es := estest.New(t, estest.Options{Nodes: 2})
		addr, _ := gateway(t, endpoints(es.URLs()...), filter)
		path, _, _ := strings.Cut(target, "?")
		es.Inject(estest.Fault{Path: path, Delay: 300 * time.Millisecond, Body: []byte(`{"took":1}`)})
		resp, got := ask(t, addr, request(method, target, body))
		if resp.StatusCode != wantStatus || es.Count(path) != 1 {
			t.Errorf("%s %s: status %d after %d calls, want %d after 1; %s", method, target, resp.StatusCode, es.Count(path), wantStatus, got)
		}
		if wantStatus == 504 && !strings.Contains(got, "may still run") {
			t.Errorf("%s %s: %s", method, target, got)
		}
	}
	f(limits, "POST", "/i/_search", "{}", 504)
	f(limits, "POST", "/_bulk", "{\"index\":{\"_index\":\"i\"}}\n{}\n", 504)
	f(limits, "PUT", "/i", "", 504)
	f(limits, "GET", "/no/such/thing/anywhere", "", 504)
	f(limits, "POST", "/i/_search?scroll=1m", "{}", 504)
	f(limits, "POST", "/_search/scroll", `{"scroll_id":"x"}`, 200)
	f(limits, "GET", "/_cluster/state", "", 200)
	f(limits, "POST", "/i/_forcemerge", "", 200)
	f(limits, "POST", "/_reindex", "{}", 200)
	f(limits, "POST", "/i/_update_by_query", "{}", 200)
	f(limits, "PUT", "/_snapshot/r/s?wait_for_completion=true", "", 200)
	f(limits, "GET", "/_cluster/health?wait_for_status=green", "", 200)
	f(", timeouts: {first_byte: {long: 100ms}}", "POST", "/i/_forcemerge", "", 504)
	f(", timeouts: {total: 100ms}", "POST", "/i/_search", "{}", 504)
	f(", timeouts: {total: 100ms}", "POST", "/i/_forcemerge", "", 200)
	f("", "POST", "/i/_search", "{}", 200)
}

// TestAnswerThatStops has a node stop in the middle of an answer, or send it so slowly that it would never end.
func TestAnswerThatStops(t *testing.T) {
	f := func(filter, pause string, wantStatus int) {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		gap, _ := time.ParseDuration(pause)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				r := bufio.NewReader(c)
				req, err := http.ReadRequest(r)
				if err == nil && req.URL.Path == "/" { // the health check
					_, _ = io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				} else if err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n")
					tick := time.NewTicker(gap)
					for range 40 {
						<-tick.C
						if _, err := c.Write([]byte("x")); err != nil {
							break
						}
					}
					tick.Stop()
				}
				c.Close()
			}
		}()
		addr, _ := gateway(t, endpoints("http://"+l.Addr().String()), filter)
		resp, got := ask(t, addr, request("POST", "/i/_search", "{}"))
		l.Close()
		<-done
		if resp.StatusCode != wantStatus {
			t.Errorf("%s, a byte every %s: status %d %s, want %d", filter, pause, resp.StatusCode, got, wantStatus)
		}
	}
	f(", timeouts: {idle: 50ms}", "200ms", 504)
	f(", timeouts: {idle: 50ms}", "5ms", 200)
	f(", timeouts: {min_rate: 1kb/s, min_rate_window: 100ms}", "10ms", 504)
	f(", timeouts: {min_rate: 20b/s, min_rate_window: 100ms}", "5ms", 200)
}

func TestTimeoutsThatMakeNoSense(t *testing.T) {
	f := func(filter, want string) {
		t.Helper()
		if err := problems(one(endpoints("http://127.0.0.1:1"), filter)); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", filter, err)
		}
	}
	f(", timeouts: {min_rate: 100/s}", "100/s is not an amount of data in a time, such as 10kb/s")
	f(", timeouts: {min_rate: 20s/s}", "20s/s is not an amount of data in a time")
	f(", timeouts: {first_byte: {reindex: 1h}}", `unknown field "reindex"`)
	f(", timeouts: {connect: -1s}", "-1s")
}

// TestLongestAnswer has nodes send 2,000 bytes, with a length or without one.
func TestLongestAnswer(t *testing.T) {
	body := []byte(`{"took":1,"hits":"` + strings.Repeat("x", 2000) + `"}`)
	es := estest.New(t, estest.Options{})
	es.Inject(estest.Fault{Path: "/i/_search", Body: body})
	es.Inject(estest.Fault{Path: "/j/_search", Body: body, Chunk: 100})
	f := func(filter, index string, wantStatus int) {
		t.Helper()
		addr, _ := gateway(t, endpoints(es.URL()), filter)
		resp, got := ask(t, addr, request("POST", "/"+index+"/_search", "{}"))
		if resp.StatusCode != wantStatus || wantStatus == 200 && got != string(body) || wantStatus == 502 && !strings.Contains(got, "over the limit of 1024") {
			t.Errorf("%s: status %d, want %d: %s", filter, resp.StatusCode, wantStatus, got)
		}
	}
	for _, index := range []string{"i", "j"} {
		f("", index, 200)
		f(", max_response_size: -1", index, 200)
		f(", max_response_size: 0", index, 200)
		f(", max_response_size: 1mb", index, 200)
	}
	f(", max_response_size: 1kb", "i", 502)
	f(", max_response_size: 1kb", "j", 502)
}

// TestStatementsThatWriteAreNotRepeated has nodes fail while they run statements: those that change something run once.
func TestStatementsThatWriteAreNotRepeated(t *testing.T) {
	f := func(fault estest.Fault, path, body string, again bool) {
		t.Helper()
		es := estest.New(t, estest.Options{Nodes: 2})
		addr, _ := gateway(t, endpoints(es.URLs()...), "")
		fault.Path = path
		es.Inject(fault)
		ask(t, addr, request("POST", path, body))
		if n := es.Count(path); n == 0 || n > 1 != again {
			t.Errorf("%s %s ran %d times, again should be %v", path, body, n, again)
		}
	}
	away, cut := estest.Fault{Status: 503, Body: []byte(`{"error":"x","status":503}`)}, estest.Fault{Cut: estest.ResetAfterRequest}
	f(away, "/_plugins/_sql", `{"query":"SELECT * FROM a"}`, true)
	f(away, "/_plugins/_sql", `{"query":"DELETE FROM a WHERE b = 1"}`, false)
	f(cut, "/_plugins/_sql", `{"query":"DELETE FROM a WHERE b = 1"}`, false)
	f(cut, "/_plugins/_ppl", `{"query":"source=a | head 1"}`, true)
	f(cut, "/_plugins/_ppl", `{"query":"source=a | ml action='train' algorithm='kmeans'"}`, false)
	f(cut, "/_query", `{"query":"FROM a | LIMIT 1"}`, true)
}

// TestNodeThatDoesNotRead has a node accept requests and read nothing of them, with and without an answer that it begins before.
func TestNodeThatDoesNotRead(t *testing.T) {
	f := func(says, method, target string, want int) {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		accepted := make(chan net.Conn, 16)
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, says)
				accepted <- c
			}
		}()
		t.Cleanup(func() {
			l.Close()
			<-done
			for len(accepted) > 0 {
				(<-accepted).Close()
			}
		})
		addr, _ := gateway(t, endpoints("http://"+l.Addr().String()), ", timeouts: {idle: 300ms}")
		resp, body := ask(t, addr, request(method, target, strings.Repeat("{\"index\":{\"_index\":\"i\"}}\n{}\n", 800_000)))
		if resp.StatusCode != want {
			t.Errorf("%s %s after %q: status %d %s", method, target, says, resp.StatusCode, body)
		}
	}
	f("", "POST", "/_bulk", 504)
	f("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "POST", "/_bulk", 504)
}
