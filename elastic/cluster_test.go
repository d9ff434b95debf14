package elastic

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/elastic/api"
	"weir/elastic/estest"
	"weir/elastic/transport"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logBuffer keeps log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// open makes a cluster over endpoints; text is further configuration in YAML.
func open(t *testing.T, text string, endpoints ...string) (*Cluster, *logBuffer) {
	t.Helper()
	return openPool(t, text, DefaultPool().MaxBuffered, endpoints...)
}

// openPool is open with a limit above which answers are streamed.
func openPool(t *testing.T, text string, maxBuffered int64, endpoints ...string) (*Cluster, *logBuffer) {
	t.Helper()
	n, p := conf.Parse("test.yml", "[{name: test, endpoints: ["+strings.Join(endpoints, ", ")+"]"+text+"}]", nil)
	c := DecodeClusters(n, p)["test"]
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	logs := new(logBuffer)
	o := DefaultPool()
	o.Discovery, o.MaxBuffered = c.Discovery, maxBuffered
	k, err := NewCluster(c, o, Deps{Metrics: obs.NewMetrics(), Logger: slog.New(slog.NewTextHandler(logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	k.Start()
	t.Cleanup(k.Close)
	return k, logs
}

// Pools of one cluster share the registry: what one does is not counted as another's.
func TestSeriesTellPoolsApart(t *testing.T) {
	k, _ := open(t, "", estest.New(t, estest.Options{}).URL())
	families, err := k.deps.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "pool" && l.GetValue() != k.options.Name {
					t.Errorf("%s has the pool %q, want %q", f.GetName(), l.GetValue(), k.options.Name)
				}
			}
		}
	}
}

// send makes one call and returns the status.
func send(k *Cluster, method, target, body string) (int, error) {
	status, _, err := sendCall(k, method, target, body)
	return status, err
}

func sendCall(k *Cluster, method, target, body string) (int, *Call, error) {
	r := call(method, target, body)
	var resp transport.Response
	defer resp.Reset()
	err := k.Do(r, &resp)
	return resp.Status, r, err
}

// doCall makes a call and returns the status.
func doCall(t *testing.T, k *Cluster, r *Call) (int, error) {
	t.Helper()
	var resp transport.Response
	defer resp.Reset()
	err := k.Do(r, &resp)
	return resp.Status, err
}

// call makes a call as a caller of the gateway would.
func call(method, target, body string) *Call {
	var c api.Call
	path, query, _ := strings.Cut(target, "?")
	api.Classify(&c, []byte(method), []byte(path), []byte(query))
	r := &Call{Idempotency: c.Idempotency, Class: ClassOf(&c, []byte(query))}
	r.Method, r.Target, r.Body = []byte(method), []byte(target), []byte(body)
	r.Header = new(wire.Header)
	r.Header.AddString("Content-Type", "application/json")
	return r
}

func nodeNames(k *Cluster) []string {
	var out []string
	for _, m := range k.picker.Members() {
		out = append(out, m.Name)
	}
	slices.Sort(out)
	return out
}

func TestDiscovery(t *testing.T) {
	es := estest.New(t, estest.Options{Nodes: 3})
	k, _ := open(t, "", es.URL())
	waitFor(t, "three nodes", func() bool { return len(nodeNames(k)) == 3 })
	if v := k.Version(); v.Number == "" {
		t.Errorf("version is not known: %+v", v)
	}
	es.Node(2).SetListed(false)
	k.discoverOnce()
	if got := nodeNames(k); len(got) != 2 {
		t.Errorf("after a node left: %v", got)
	}
	es.Node(2).SetListed(true)
	waitFor(t, "the node to be found long before the next usual search", func() bool { return len(nodeNames(k)) == 3 })
}

func TestPublishedAddresses(t *testing.T) {
	f := func(text, addr, host string) {
		t.Helper()
		gotAddr, gotHost, ok := publishedAddress(text)
		if !ok || gotAddr != addr || gotHost != host {
			t.Errorf("%q: got %q, %q, %v", text, gotAddr, gotHost, ok)
		}
	}
	f("10.0.0.1:9200", "10.0.0.1:9200", "10.0.0.1:9200")
	f("es1.test/10.0.0.1:9200", "10.0.0.1:9200", "es1.test:9200")
	f("inet[/10.0.0.1:9200]", "10.0.0.1:9200", "10.0.0.1:9200")
	f("inet[es1.test/10.0.0.1:9200]", "10.0.0.1:9200", "es1.test:9200")
	f("[::1]:9200", "[::1]:9200", "[::1]:9200")
	f("es1.test/[2001:db8::1]:9200", "[2001:db8::1]:9200", "es1.test:9200")
	for _, bad := range []string{"", "x", "10.0.0.1", ":9200", "10.0.0.1:0", "0.0.0.0:9200", "[::]:9200"} {
		if addr, _, ok := publishedAddress(bad); ok {
			t.Errorf("%q was read as %q", bad, addr)
		}
	}
}

// FuzzPublishedAddress holds that what a node says of itself becomes an address that can be dialled and written into a
// request, or nothing.
func FuzzPublishedAddress(f *testing.F) {
	for _, text := range []string{
		"10.0.0.1:9200", "es1.test/10.0.0.1:9200", "inet[/10.0.0.1:9200]", "inet[es1.test/10.0.0.1:9200]", "[::1]:9200", "es1.test/[2001:db8::1]:9200",
		"a/b/1.2.3.4:5", "inet[", "x\r\ny:1", "[fe80::1%eth0]:9200", "1.2.3.4:99999", "/:9200",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr, host, ok := publishedAddress(text)
		if !ok {
			return
		}
		for _, a := range []string{addr, host} {
			name, port, err := net.SplitHostPort(a)
			if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 1 || n > 65535 || name == "" {
				t.Errorf("%q: %q is no address, %v", text, a, err)
			}
		}
		if !wire.ValidHost([]byte(host)) {
			t.Errorf("%q: host %q", text, host)
		}
	})
}

func TestUnreachablePublishedAddressLeavesTheSeed(t *testing.T) {
	es := estest.New(t, estest.Options{Nodes: 2})
	es.Node(1).Publish("127.0.0.1:1")
	k, logs := open(t, "", es.URL())
	waitFor(t, "a warning", func() bool { return strings.Contains(logs.String(), "127.0.0.1:1") })
	if got := nodeNames(k); len(got) != 1 || "http://"+got[0] != es.URL() {
		t.Errorf("nodes are %v, want the seed alone", got)
	}
	k.discoverOnce()
	if n := strings.Count(logs.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want one:\n%s", n, logs)
	}
}

func TestNamedAddressAndRewrite(t *testing.T) {
	es := estest.New(t, estest.Options{Nodes: 2})
	seed, other := es.Node(0).Addr(), es.Node(1).Addr()
	es.Node(1).Publish("es1.test/" + other)
	k, _ := open(t, "", "http://"+seed)
	waitFor(t, "two nodes", func() bool { return len(nodeNames(k)) == 2 })

	es.Node(1).Publish("10.9.9.9:9200")
	k2, _ := open(t, ", discovery: {rewrite: {\"10.9.9.9:9200\": \""+other+"\"}}", "http://"+seed)
	waitFor(t, "two nodes", func() bool { return len(nodeNames(k2)) == 2 })
}

func TestGarbageFromDiscoveryChangesNothing(t *testing.T) {
	es := estest.New(t, estest.Options{Nodes: 2})
	k, _ := open(t, "", es.URL())
	waitFor(t, "two nodes", func() bool { return len(nodeNames(k)) == 2 })
	before := nodeNames(k)
	f := func(fault estest.Fault) {
		t.Helper()
		fault.Path = "/_nodes*"
		in := es.Inject(fault)
		defer in.Remove()
		k.discoverOnce()
		if got := nodeNames(k); !slices.Equal(got, before) {
			t.Errorf("%+v: nodes are %v", fault, got)
		}
	}
	f(estest.Fault{Status: 200, Body: []byte(`{}`)})
	f(estest.Fault{Status: 200, Body: []byte(`{"nodes":{}}`)})
	f(estest.Fault{Status: 200, Body: []byte(`[1]`)})
	f(estest.Fault{Status: 200, Body: []byte(`<html>`)})
	f(estest.Fault{Status: 401})
	f(estest.Fault{Status: 503})
	f(estest.Fault{Raw: []byte("\x00\x00\x12\x04\x00")})
}

func TestRoles(t *testing.T) {
	f := func(want bool, roles ...string) {
		t.Helper()
		if got := (listed{roles: roles, hasRoles: true}).serves(); got != want {
			t.Errorf("%v: got %v", roles, got)
		}
	}
	f(true, "master", "data")
	f(false, "master")
	f(false, "cluster_manager", "remote_cluster_client")
	f(true)
	f(true, "data_hot", "ingest")
	f(false, "voting_only", "master")
	f(false, "ml")
	f(true, "search")

	es := estest.New(t, estest.Options{Nodes: 2})
	es.Node(0).SetRoles("master")
	es.Node(1).SetRoles("master")
	k, _ := open(t, "", es.URL())
	waitFor(t, "two nodes although both are masters only", func() bool { return len(nodeNames(k)) == 2 })
}

func TestStoppedNodeIsRoutedAround(t *testing.T) {
	es := estest.New(t, estest.Options{Nodes: 3})
	k, _ := open(t, "", es.URLs()...)
	waitFor(t, "three nodes", func() bool { return len(nodeNames(k)) == 3 })
	es.Node(1).Stop()
	for range 100 {
		if status, err := send(k, "POST", "/_search", "{}"); err != nil || status != 200 {
			t.Fatalf("%d, %v", status, err)
		}
	}
	for range 20 { // nothing of it was sent to the stopped node, so a write goes to another one as well
		if status, err := send(k, "POST", "/i/_doc", "{}"); err != nil || status != 201 {
			t.Fatalf("%d, %v", status, err)
		}
	}
	if err := es.Node(1).Start(); err != nil {
		t.Fatal(err)
	}
	k.checkAll()
	before := len(es.Node(1).Calls())
	waitFor(t, "the node to be used again", func() bool {
		_, _ = send(k, "POST", "/_search", "{}")
		return slices.ContainsFunc(es.Node(1).Calls()[before:], func(c *estest.Call) bool { return c.Target == "/_search" })
	})
}

func TestUnsafeCallsReachANodeOnce(t *testing.T) {
	for _, cut := range []estest.Cut{estest.ResetAfterRequest, estest.CloseAfterRequest} {
		f := func(method, target, body string, want int, status int) {
			t.Helper()
			es := estest.New(t, estest.Options{Nodes: 3})
			k, _ := open(t, "", es.URLs()...)
			waitFor(t, "three nodes", func() bool { return len(nodeNames(k)) == 3 })
			es.Forget()
			path, _, _ := strings.Cut(target, "?")
			es.Inject(estest.Fault{Method: method, Path: path, Times: 1, Cut: cut})
			got, err := send(k, method, target, body)
			if err != nil {
				var e *Error
				if !errors.As(err, &e) {
					t.Fatal(err)
				}
				got = e.Status
			}
			if n := es.Count(path); n != want || got != status {
				t.Errorf("%s %s: %d calls and status %d, want %d and %d", method, target, n, got, want, status)
			}
		}
		f("POST", "/i/_doc", `{"a":1}`, 1, 502)
		f("PUT", "/_bulk", "{\"index\":{\"_index\":\"i\"}}\n{}\n", 1, 502)
		f("POST", "/i/_search?scroll=1m", `{}`, 1, 502)
		f("POST", "/_search", `{}`, 2, 200)
		f("GET", "/_cat/nodes", ``, 2, 200)
	}
}

func TestGatewayErrorsInBetween(t *testing.T) {
	es := estest.New(t, estest.Options{Nodes: 2})
	k, _ := open(t, "", es.URLs()...)
	waitFor(t, "two nodes", func() bool { return len(nodeNames(k)) == 2 })
	es.Forget()
	in := es.Inject(estest.Fault{Path: "/_search", Status: 502})
	if status, err := send(k, "POST", "/_search", "{}"); err != nil || status != 502 || es.Count("/_search") != 2 {
		t.Errorf("502 everywhere: %d, %v, %d calls", status, err, es.Count("/_search"))
	}
	in.Remove()
	es.Inject(estest.Fault{Path: "/_search", Status: 504, Times: 1})
	if status, err := send(k, "POST", "/_search", "{}"); err != nil || status != 200 {
		t.Errorf("504 once: %d, %v", status, err)
	}
	es.Forget()
	es.Inject(estest.Fault{Path: "/i/_doc", Status: 504, Times: 1})
	if status, err := send(k, "POST", "/i/_doc", "{}"); err != nil || status != 504 || es.Count("/i/_doc") != 1 {
		t.Errorf("a write: %d, %v", status, err)
	}
}

func TestNoNodeLeft(t *testing.T) {
	es := estest.New(t, estest.Options{})
	k, _ := open(t, "", es.URL())
	es.Node(0).Stop()
	_, err := send(k, "GET", "/_search", "")
	var e *Error
	if !errors.As(err, &e) || e.Status != 503 || e.RetryAfter == 0 {
		t.Errorf("got %v", err)
	}
}

// The only node is never taken out, so that it must be said otherwise that it cannot be reached.
func TestOnlyNodeIsFailing(t *testing.T) {
	es := estest.New(t, estest.Options{})
	k, logs := open(t, "", es.URL())
	f := func(what string, failing, reachable bool, state string) {
		t.Helper()
		s := k.Status()
		if len(s.Nodes) != 1 || s.Nodes[0].Out || s.Nodes[0].Failing != failing || s.Reachable != reachable {
			t.Errorf("%s: %+v", what, s)
		}
		for _, each := range nodeStates {
			want := 0.0
			if each == state {
				want = 1
			}
			if got := gauge(t, k, "weir_upstream_nodes", each); got != want {
				t.Errorf("%s: %v nodes are %s, want %v", what, got, each, want)
			}
		}
	}
	waitFor(t, "the probe", func() bool { return es.Count("/") > 0 })
	f("a node that answers", false, true, "in")
	es.Node(0).Stop()
	for range failingAfter {
		if _, err := send(k, "GET", "/_search", ""); err == nil {
			t.Fatal("a stopped node answers")
		}
	}
	f("a stopped node", true, false, "failing")
	for range 9 {
		_, _ = send(k, "GET", "/_search", "")
	}
	if n := strings.Count(logs.String(), "node fails, and is not taken out"); n != 1 {
		t.Errorf("%d lines say that the node fails:\n%s", n, logs)
	}
	es.Node(0).Start()
	waitFor(t, "an answer", func() bool { status, err := send(k, "GET", "/_search", ""); return err == nil && status == 200 })
	f("a node that is back", false, true, "in")
	k.checkAll()
	f("a node that was looked at", false, true, "in")
	if n := strings.Count(logs.String(), "node is back"); n != 1 {
		t.Errorf("%d lines say that the node is back:\n%s", n, logs)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		n, p := conf.Parse("test.yml", "[{name: test, endpoint: 'https://127.0.0.1:1', "+text+"}]", nil)
		c := DecodeClusters(n, p)["test"]
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		missing := func(name string) ([]byte, error) {
			if name == "/bad" {
				return []byte("not PEM"), nil
			}
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		_, err := NewCluster(c, DefaultPool(), Deps{Metrics: obs.NewMetrics(), Logger: slog.New(slog.DiscardHandler), ReadFile: missing})
		if err == nil || err.Error() != "elasticsearch test: "+want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	f("tls: {ca_file: /nope}", "tls.ca_file: open /nope: file does not exist")
	f("tls: {cert_file: /nope}", "tls.cert_file: open /nope: file does not exist")
	f("tls: {key_file: /nope}", "tls.key_file: open /nope: file does not exist")
	f("tls: {ca_file: /bad}", "tls: CA holds no PEM certificate")
	f("api_key: 'file:/nope'", "api_key: read secret: open /nope: file does not exist")
	f("bearer: 'file:/nope'", "bearer: read secret: open /nope: file does not exist")
	f("basic_auth: {username: u, password: 'file:/nope'}", "basic_auth.password: read secret: open /nope: file does not exist")
}

// gauge returns the value of a gauge that has a label of that value.
func gauge(t *testing.T, k *Cluster, name, label string) float64 {
	t.Helper()
	families, err := k.deps.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					return m.GetGauge().GetValue()
				}
			}
		}
	}
	t.Fatalf("no series %s with %s", name, label)
	return 0
}

func TestCredentialsAreNotLent(t *testing.T) {
	es := estest.New(t, estest.Options{})
	k, logs := open(t, ", basic_auth: {username: admin, password: s3cret}", es.URL())
	waitFor(t, "the probe", func() bool { return es.Count("/") > 0 })
	if got := es.Calls()[0].Header.Get("Authorization"); !strings.HasPrefix(got, "Basic ") {
		t.Errorf("the gateway's own call has %q", got)
	}
	es.Forget()
	if _, err := send(k, "GET", "/_search", ""); err != nil {
		t.Fatal(err)
	}
	for _, c := range es.Calls() {
		if c.Path == "/_search" && c.Header.Get("Authorization") != "" {
			t.Error("a caller's request carries the gateway's credentials")
		}
	}
	if strings.Contains(logs.String(), "s3cret") {
		t.Error("the password is in the log")
	}
}

func TestTwoClustersInOneList(t *testing.T) {
	a, b := estest.New(t, estest.Options{}), estest.New(t, estest.Options{})
	b.Inject(estest.Fault{Path: "/", Status: 200, Body: []byte(`{"cluster_uuid":"another","version":{"number":"7.17.28"}}`)})
	k, logs := open(t, ", discovery: {enabled: false}", a.URL(), b.URL())
	waitFor(t, "a cluster", func() bool { return k.uuid.Load() != nil })
	k.checkAll()
	if !strings.Contains(logs.String(), "another cluster") {
		t.Error("no warning")
	}
	a.Forget()
	b.Forget()
	for range 20 {
		if _, err := send(k, "GET", "/_search", ""); err != nil {
			t.Fatal(err)
		}
	}
	if x, y := a.Count("/_search"), b.Count("/_search"); x*y != 0 || x+y != 20 {
		t.Errorf("%d and %d calls, want 20 on one of them", x, y)
	}
}

func TestBasePath(t *testing.T) {
	es := estest.New(t, estest.Options{})
	k, _ := open(t, ", discovery: {enabled: false}", es.URL()+"/base/")
	_, _ = send(k, "GET", "/es%2Findex/_search?q=%zz", "")
	if es.Count("/base/es%2Findex/_search") == 0 {
		var got []string
		for _, c := range es.Calls() {
			got = append(got, c.Target)
		}
		t.Errorf("got %q", got)
	}
}

// A path does not lead from one cluster to another that a proxy serves beside it (traefik/traefik#12360).
func TestPathsStayBelowTheBase(t *testing.T) {
	es := estest.New(t, estest.Options{})
	k, _ := open(t, ", discovery: {enabled: false}", es.URL()+"/base")
	f := func(target string, passes bool) {
		t.Helper()
		es.Forget()
		_, err := send(k, "GET", target, "")
		path, _, _ := strings.Cut("/base"+target, "?")
		calls := 0
		for _, c := range es.Calls() {
			if strings.HasPrefix(c.Target, path) && c.Target != "/base/" {
				calls++
			}
		}
		switch e := AsError(err); {
		case passes && (err != nil || calls != 1):
			t.Errorf("%s: sent %d times, %v", target, calls, err)
		case !passes && (err == nil || e.Status != 400 || calls > 0):
			t.Errorf("%s: sent %d times, %v, want 400", target, calls, err)
		}
	}
	f("/i/_doc/..", true)
	f("/i/_doc/..%2Fx", true)
	f("/i/../x", true)
	f("/...%2Fx", true)
	f("/..x/.y/x..", true)
	f("/i/_search?q=/../../..", true)
	f("/%252e%252e/x", true)
	f("/..", false)
	f("/../other/_search", false)
	f("/.%2e/other/_search", false)
	f("/%2E%2e%2fother/_search", false)
	f("/./../other/_search", false)
	f("//../other/_search", false)
	f("/i/../../other/_search", false)
	f("/i/_doc/..%2f..%2f..%2fother", false)
	// What proxies before nodes read in other ways: a fragment, parameters of a segment, the other slash.
	f("/..#", false)
	f("/..%23/other/_search", false)
	f("/a/../..#x", false)
	f("/..;x=1/other/_search", false)
	f("/i/_doc/..\\..\\..\\other", false)
	f("/i%5c..%5c..%5cother", false)
	f("/;/../other/_search", false)
	f("/.;x=y/../other", false)
	f("/a/;/../../other", false)
	f("/i;a=b/../other", true)
	f("/i/_doc/a;..#b", true)
	f("/i/_doc/..a%5cb", true)
	if n := inFlight(k); n != 0 {
		t.Errorf("%d exchanges are still in flight", n)
	}
	plain, _ := open(t, ", discovery: {enabled: false}", es.URL())
	if _, err := send(plain, "GET", "/../other/_search", ""); err != nil || es.Count("/../other/_search") != 1 {
		t.Errorf("a node without a base path reads dots as a name: %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		e, err := ParseEndpoint(text)
		if got := fmt.Sprint(e, err != nil); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	f("http://localhost:9200", "http://localhost:9200 false")
	f("https://es.test", "https://es.test:443 false")
	f("http://[::1]:9200/a/b/", "http://[::1]:9200/a/b false")
	f("https://u:p@es.test/", "https://es.test:443 false")
	if _, err := ParseEndpoint("ftp://u:p4ss@es.test"); err == nil || strings.Contains(err.Error(), "p4ss") {
		t.Errorf("got %v", err)
	}
}

// waitFor waits until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
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
