package estest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
)

func TestCallHoldsTheExactHead(t *testing.T) {
	c, _ := start(t, estest.Options{})
	head := "GET /%3Clogs-%7Bnow%2Fd%7D%3E//_search?q=%zz;a HTTP/1.1\r\nhOsT:  x \r\nX-A: 1\r\nx-a: 2\r\nConnection: close\r\n\r\n"
	exchange(t, c, head, "")
	call := c.Calls()[0]
	if string(call.Head) != head {
		t.Errorf("head is %q, want %q", call.Head, head)
	}
	if call.Path != "/%3Clogs-%7Bnow%2Fd%7D%3E//_search" || call.Query != "q=%zz;a" {
		t.Errorf("path %q and query %q", call.Path, call.Query)
	}
	if got := call.Header.Values("X-A"); len(got) != 2 || got[0] != "1" {
		t.Errorf("X-A is %q", got)
	}
}

func TestCallHoldsTheBodyWithoutFraming(t *testing.T) {
	c, _ := start(t, estest.Options{})
	head := "POST /_count HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
	exchange(t, c, head+"Content-Length: 2\r\n\r\n{}", "")
	exchange(t, c, head+"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nTrailer: 1\r\n\r\n", "")
	for i, call := range c.Calls() {
		if string(call.Body) != "{}" || call.Status() != 200 {
			t.Errorf("call %d: body %q, status %d", i, call.Body, call.Status())
		}
	}
}

func TestConnectionStaysOpen(t *testing.T) {
	c, _ := start(t, estest.Options{})
	two := "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /_count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	if got := exchange(t, c, two, ""); strings.Count(got, "HTTP/1.1 200 OK") != 2 {
		t.Errorf("answers to two requests on one connection: %q", got)
	}
	if _, accepted := c.Node(0).Conns(); accepted != 1 {
		t.Errorf("%d connections", accepted)
	}
	if calls := c.Calls(); calls[0].Conn != 1 || calls[1].Conn != 1 || calls[1].Seq != 2 {
		t.Errorf("calls %v", calls)
	}
}

func TestHTTP10(t *testing.T) {
	c, _ := start(t, estest.Options{})
	if got := exchange(t, c, "GET /_count HTTP/1.0\r\n\r\n", ""); !strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n") {
		t.Errorf("answer %q", got)
	}
}

func TestHead(t *testing.T) {
	c, _ := start(t, estest.Options{})
	got := exchange(t, c, "HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "")
	if !strings.HasSuffix(got, "\r\n\r\n") || strings.Contains(got, "content-length: 0") {
		t.Errorf("answer %q", got)
	}
}

func TestProductHeaderAndBanner(t *testing.T) {
	f := func(flavor estest.Flavor, header, value, number, contentType string) {
		t.Helper()
		_, cl := start(t, estest.Options{Flavor: flavor, Name: "shop"})
		r := cl.do("GET", "/", "")
		if got := r.header.Get(header); got != value {
			t.Errorf("%s: %s is %q, want %q", flavor, header, got, value)
		}
		if got := r.get(t, "version", "number"); got != number {
			t.Errorf("%s: version %v", flavor, got)
		}
		if got := r.header.Get("Content-Type"); got != contentType {
			t.Errorf("%s: content type %q", flavor, got)
		}
		if !strings.Contains(r.body, "\n  \"cluster_name\" : \"shop\",\n") {
			t.Errorf("%s: banner %q", flavor, r.body)
		}
	}
	f(estest.Elasticsearch7, "X-Elastic-Product", "Elasticsearch", "7.17.28", "application/json; charset=UTF-8")
	f(estest.Elasticsearch8, "X-Elastic-Product", "Elasticsearch", "8.19.7", "application/json")
	f(estest.OpenSearch2, "X-Elastic-Product", "", "2.19.6", "application/json; charset=UTF-8")
	f(estest.OpenSearch2, "X-Opensearch-Version", "", "2.19.6", "application/json; charset=UTF-8")
	f(estest.OpenSearch3, "X-Opensearch-Version", "OpenSearch/3.9.0 (opensearch)", "3.9.0", "application/json; charset=UTF-8")
}

func TestVendorMediaTypes(t *testing.T) {
	const vendor = "application/vnd.elasticsearch+json;compatible-with=8"
	f := func(flavor estest.Flavor, status int, contentType string) {
		t.Helper()
		_, cl := start(t, estest.Options{Flavor: flavor})
		r, err := cl.try("POST", "/_count", "{}", "Accept", vendor, "Content-Type", vendor)
		if err != nil || r.status != status || r.header.Get("Content-Type") != contentType {
			t.Errorf("%s: status %d, content type %q, %v", flavor, r.status, r.header.Get("Content-Type"), err)
		}
	}
	_, cl := start(t, estest.Options{Flavor: estest.Elasticsearch8})
	if r, err := cl.try("POST", "/_count", "{}", "Content-Type", vendor); err != nil || r.status != 400 || !strings.Contains(r.body, "compatible version") {
		t.Errorf("with a version for the body only: %d %s, %v", r.status, r.body, err)
	}
	f(estest.Elasticsearch7, 200, "application/json; charset=UTF-8")
	f(estest.Elasticsearch8, 200, vendor)
	f(estest.OpenSearch3, 406, "application/json; charset=UTF-8")
}

func TestBodyOfAForm(t *testing.T) {
	_, cl := start(t, estest.Options{})
	r, err := cl.try("POST", "/_search", "{}", "Content-Type", "application/x-www-form-urlencoded")
	if err != nil || r.status != 406 {
		t.Errorf("status %d, %v", r.status, err)
	}
}

func TestOpaqueIDComesBack(t *testing.T) {
	_, cl := start(t, estest.Options{})
	r, err := cl.try("GET", "/", "", "X-Opaque-Id", "abc")
	if err != nil || r.header.Get("X-Opaque-Id") != "abc" {
		t.Errorf("header %v, %v", r.header, err)
	}
}

func TestGzip(t *testing.T) {
	_, cl := start(t, estest.Options{Gzip: true})
	r, err := cl.try("GET", "/_count", "", "Accept-Encoding", "gzip")
	if err != nil || r.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("header %v, %v", r.header, err)
	}
	zr, err := gzip.NewReader(strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := io.ReadAll(zr); err != nil || string(plain) != cl.do("GET", "/_count", "").body {
		t.Errorf("body %q, %v", plain, err)
	}
}

// A node that refuses a long header keeps the connection and never answers on it again.
func TestLongHeaderSilencesTheConnection(t *testing.T) {
	c, _ := start(t, estest.Options{})
	conn := dial(t, c)
	write(t, conn, "GET / HTTP/1.1\r\nHost: x\r\nX-A: "+strings.Repeat("a", 9000)+"\r\n\r\n")
	if got := readUntil(t, conn, `"status":400}`); !strings.Contains(got, "too_long_http_header_exception") {
		t.Errorf("answer %q", got)
	}
	write(t, conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest := readUntil(t, conn, ""); rest != "" {
		t.Errorf("a second answer: %q", rest)
	}
}

func TestLongLine(t *testing.T) {
	c, _ := start(t, estest.Options{})
	got := exchange(t, c, "GET /?"+strings.Repeat("a", 5000)+" HTTP/1.1\r\n", "")
	if !strings.HasPrefix(got, "HTTP/1.0 400 ") || !strings.Contains(got, "too_long_http_line_exception") {
		t.Errorf("answer %q", got)
	}
}

func TestBodyOverTheLimit(t *testing.T) {
	c, _ := start(t, estest.Options{MaxContentLength: 10})
	request := "POST /_bulk HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n12345678901GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	got := exchange(t, c, request, "")
	if !strings.HasPrefix(got, "HTTP/1.1 413 Request Entity Too Large\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n") {
		t.Errorf("answers %q", got)
	}
}

func TestExpect(t *testing.T) {
	c, _ := start(t, estest.Options{MaxContentLength: 10})
	f := func(expect string, length int, want string) {
		t.Helper()
		request := fmt.Sprintf("POST /_count HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: %s\r\nContent-Length: %d\r\n\r\n", expect, length)
		if got := exchange(t, c, request, "\r\n\r\n"); !strings.HasPrefix(got, want) {
			t.Errorf("Expect: %s with %d bytes: %q, want %q", expect, length, got, want)
		}
	}
	f("100-continue", 2, "HTTP/1.1 100 Continue\r\n\r\n")
	f("100-continue", 11, "HTTP/1.1 413 ")
	f("tea", 2, "HTTP/1.1 417 ")
}

func TestContinueAsksForTheBody(t *testing.T) {
	c, _ := start(t, estest.Options{})
	conn := dial(t, c)
	write(t, conn, "POST /_count HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
	readUntil(t, conn, "100 Continue\r\n\r\n")
	write(t, conn, "{}")
	if got := readUntil(t, conn, `{"count":0`); !strings.HasPrefix(got, "HTTP/1.1 200 OK") {
		t.Errorf("answer %q", got)
	}
}

func TestTLS(t *testing.T) {
	lender := httptest.NewUnstartedServer(nil)
	lender.StartTLS()
	certificate := lender.TLS.Certificates[0]
	pool := lender.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	lender.Close()
	c := estest.New(t, estest.Options{TLS: &tls.Config{Certificates: []tls.Certificate{certificate}}})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "example.com"}}
	t.Cleanup(transport.CloseIdleConnections)
	cl := &client{t: t, http: &http.Client{Transport: transport}, url: c.URL()}
	if r := cl.do("GET", "/", ""); r.status != 200 || !strings.HasPrefix(c.URL(), "https://") {
		t.Errorf("status %d from %s", r.status, c.URL())
	}
}

func TestNodeStopsAndStartsOnItsPort(t *testing.T) {
	c, cl := start(t, estest.Options{Nodes: 2})
	cl.do("PUT", "/i/_doc/1?refresh=true", `{"a":1}`)
	n := c.Node(0)
	addr := n.Addr()
	n.Stop()
	if n.Running() {
		t.Error("the stopped node runs")
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the stopped node takes connections")
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if n.Addr() != addr {
		t.Errorf("address %s, was %s", n.Addr(), addr)
	}
	if r := cl.do("GET", "/i/_count", ""); r.get(t, "count") != 1.0 {
		t.Errorf("after the restart: %s", r.body)
	}
}

func TestStopEndsWhatIsInProgress(t *testing.T) {
	c, cl := start(t, estest.Options{})
	c.Inject(estest.Fault{Hold: make(chan struct{})})
	failed := make(chan error, 1)
	go func() {
		_, err := cl.try("GET", "/_search", "")
		failed <- err
	}()
	call := wait(t, c, estest.Path("/_search"))
	c.Node(0).Stop()
	if err := <-failed; err == nil {
		t.Error("the held call was answered")
	}
	closes(t, "end of the call", call.Finished())
	select {
	case <-call.Gone():
		t.Error("the client is blamed for the node's stop")
	default:
	}
}

func TestCloseIdleSparesBusyConnections(t *testing.T) {
	c, cl := start(t, estest.Options{})
	release := make(chan struct{})
	c.Inject(estest.Fault{Path: "/_search", Hold: release})
	idle := dial(t, c)
	write(t, idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	readUntil(t, idle, "Search\"\n}\n")
	answered := make(chan reply, 1)
	go func() {
		r, _ := cl.try("GET", "/_search", "")
		answered <- r
	}()
	wait(t, c, estest.Path("/_search"))
	// A connection becomes idle some time after its answer could be read.
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			c.Node(0).CloseIdle()
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	if rest := readUntil(t, idle, ""); rest != "" {
		t.Errorf("the idle connection got %q", rest)
	}
	close(stop)
	<-stopped
	close(release)
	if r := <-answered; r.status != 200 {
		t.Errorf("the busy connection got status %d", r.status)
	}
}

func TestClientGone(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Path: "/_search", Hold: make(chan struct{})})
	conn := dial(t, c)
	write(t, conn, "GET /_search HTTP/1.1\r\nHost: x\r\n\r\n")
	call := wait(t, c, estest.Path("/_search"))
	_ = conn.Close()
	closes(t, "notice of the client's leaving", call.Gone())
	if status := call.Status(); status != 0 {
		t.Errorf("status %d for nobody", status)
	}
}

func TestClientThatLeavesAfterItsAnswerIsNotGone(t *testing.T) {
	c, _ := start(t, estest.Options{})
	for range 50 {
		conn := dial(t, c)
		write(t, conn, "GET /_count HTTP/1.1\r\nHost: x\r\n\r\n")
		readUntil(t, conn, "\"failed\":0}}")
		_ = conn.Close()
	}
	for _, call := range c.Calls() {
		closes(t, "end of a call", call.Finished())
		select {
		case <-call.Gone():
			t.Fatal("a client that had its answer counts as gone")
		default:
		}
	}
}

func TestTasksListHeldSearches(t *testing.T) {
	c, cl := start(t, estest.Options{})
	c.Inject(estest.Fault{Path: "/_search", Hold: make(chan struct{})})
	conn := dial(t, c)
	write(t, conn, "GET /_search HTTP/1.1\r\nHost: x\r\nX-Opaque-Id: me\r\n\r\n")
	call := wait(t, c, estest.Path("/_search"))
	// The call is noted before it is held.
	r := cl.do("GET", "/_tasks?actions=*search*", "")
	for end := time.Now().Add(10 * time.Second); !strings.Contains(r.body, `"X-Opaque-Id":"me"`); {
		if time.Now().After(end) {
			t.Fatalf("tasks %s", r.body)
		}
		r = cl.do("GET", "/_tasks?actions=*search*", "")
	}
	_ = conn.Close()
	closes(t, "end of the call", call.Finished())
	if r := cl.do("GET", "/_tasks?actions=*search*", ""); r.body != `{"nodes":{}}` {
		t.Errorf("tasks after the client left: %s", r.body)
	}
}

func TestWaitCall(t *testing.T) {
	c, cl := start(t, estest.Options{})
	cl.do("GET", "/", "")
	if call := wait(t, c, estest.Path("/")); call.Seq != 1 {
		t.Errorf("call %d", call.Seq)
	}
	c.Forget()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.WaitCall(ctx, estest.Path("/")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	cl.do("GET", "/_count", "")
	if c.Count("/_c*") != 1 || c.Count("/") != 0 {
		t.Errorf("calls %v", c.Calls())
	}
}

func TestNodesHTTP(t *testing.T) {
	c, cl := start(t, estest.Options{Nodes: 3})
	n := c.Node(1)
	info := func() reply { return cl.do("GET", "/_nodes/http", "") }
	address := func(n *estest.Node) any { return info().get(t, "nodes", n.ID(), "http", "publish_address") }
	if got := address(n); got != n.Addr() {
		t.Errorf("publish_address %v, want %s", got, n.Addr())
	}
	for _, form := range []string{"10.0.0.1:9200", "es1.test/10.0.0.1:9200", "inet[es1.test/10.0.0.1:9200]"} {
		n.Publish(form)
		if got := address(n); got != form {
			t.Errorf("publish_address %v, want %s", got, form)
		}
	}
	n.SetRoles()
	if got := info().get(t, "nodes", n.ID(), "roles"); len(got.([]any)) != 0 {
		t.Errorf("roles %v", got)
	}
	n.SetHTTP(false)
	if got := info().get(t, "nodes", n.ID(), "http"); got != nil {
		t.Errorf("http section %v", got)
	}
	n.SetListed(false)
	c.Node(2).Stop()
	if got := info().get(t, "nodes").(map[string]any); len(got) != 1 || got[c.Node(0).ID()] == nil {
		t.Errorf("nodes %v", got)
	}
	added, err := c.AddNode()
	if err != nil {
		t.Fatal(err)
	}
	if got := address(added); got != added.Addr() {
		t.Errorf("the new node's publish_address %v, want %s", got, added.Addr())
	}
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	f := func(o estest.Options, want string) {
		t.Helper()
		if c, err := estest.Start(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
			c.Close()
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f(estest.Options{Flavor: 99}, "no flavor 99")
	f(estest.Options{Ports: []int{l.Addr().(*net.TCPAddr).Port}}, "address already in use")
	f(estest.Options{Users: []estest.User{{Name: "u", Filter: `{"foo":{}}`}}}, `filter of user "u"`)
}

func TestConcurrentUse(t *testing.T) {
	c, cl := start(t, estest.Options{Nodes: 2})
	done := make(chan error)
	const workers, rounds = 8, 20
	for w := range workers {
		go func() {
			var failed error
			for i := range rounds {
				body := fmt.Sprintf(`{"worker":%d}`, w)
				if r, err := cl.try("PUT", fmt.Sprintf("/i/_doc/%d-%d?refresh=true", w, i), body); err != nil || r.status != 201 {
					failed = errors.Join(failed, err, fmt.Errorf("status %d", r.status))
				}
				_, err := cl.try("POST", "/i/_search", `{"size":0,"aggs":{"w":{"terms":{"field":"worker"}}}}`)
				failed = errors.Join(failed, err)
				_, _ = c.Calls(), c.Count("*")
			}
			done <- failed
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if r := cl.do("GET", "/i/_count", ""); r.get(t, "count") != float64(workers*rounds) {
		t.Errorf("count %s", r.body)
	}
}

func TestPretty(t *testing.T) {
	_, cl := start(t, estest.Options{})
	cl.do("PUT", "/i/_doc/1?refresh=true", `{"a":[{"x":1},{}],"b":[]}`)
	want := "{\n  \"hits\" : {\n    \"hits\" : [\n      {\n        \"_source\" : {\n          \"a\" : [\n            {\n              \"x\" : 1\n            },\n            { }\n          ],\n          \"b\" : [ ]\n        }\n      }\n    ]\n  }\n}\n"
	if got := cl.do("GET", "/i/_search?pretty&filter_path=hits.hits._source", "").body; got != want {
		t.Errorf("got %s", got)
	}
}

func TestSourceComesBackByteForByte(t *testing.T) {
	_, cl := start(t, estest.Options{})
	source := `{ "n" : 1.50, "id":9007199254740993, "s":"\u00e4" }`
	cl.do("PUT", "/i/_doc/1?refresh=true", source)
	for _, target := range []string{"/i/_doc/1", "/i/_source/1", "/i/_search"} {
		if r := cl.do("GET", target, ""); !bytes.Contains([]byte(r.body), []byte(source)) {
			t.Errorf("%s: %s", target, r.body)
		}
	}
}

// A list of actions on aliases is done whole or not at all.
func TestAliasActionsAreAllOrNone(t *testing.T) {
	_, c := start(t, estest.Options{})
	for _, name := range []string{"/a", "/b", "/c"} {
		c.do("PUT", name, "")
	}
	c.do("PUT", "/a/_alias/now", "")
	state := func() string {
		return c.do("GET", "/_alias", "").body + c.do("GET", "/_cluster/state/metadata", "").body
	}
	before := state()
	f := func(status int, method, target, body string) {
		t.Helper()
		if r := c.do(method, target, body); r.status != status {
			t.Errorf("%s %s: %d %s", target, body, r.status, r.body)
		}
		if after := state(); (after == before) != (status != 200) {
			t.Errorf("%s %s: %s, before %s", target, body, after, before)
		}
		before = state()
	}
	const move = `{"remove":{"index":"a","alias":"now"}},{"add":{"index":"b","alias":"now"}}`
	f(404, "POST", "/_aliases", `{"actions":[`+move+`,{"remove":{"index":"a","alias":"none","must_exist":true}}]}`)
	f(404, "POST", "/_aliases", `{"actions":[`+move+`,{"remove":{"index":"none","alias":"now"}}]}`)
	f(400, "POST", "/_aliases", `{"actions":[`+move+`,{"add":{"index":"b","alias":"c"}}]}`)
	f(404, "POST", "/_aliases", `{"actions":[{"remove_index":{"index":"c"}},{"remove":{"index":"a","alias":"none"}}]}`)
	f(404, "DELETE", "/a/_alias/now,none", "")
	f(400, "PUT", "/b/_alias/c", "")
	f(200, "POST", "/_aliases", `{"actions":[`+move+`,{"remove":{"index":"a","alias":"none","must_exist":false}}]}`)
	if got := c.do("GET", "/_alias", "").body; !strings.Contains(got, `"a":{"aliases":{}}`) || !strings.Contains(got, `"b":{"aliases":{"now":{}}}`) {
		t.Errorf("aliases are %s", got)
	}
	f(200, "POST", "/_aliases", `{"actions":[{"remove_index":{"index":"a"}},{"add":{"index":"c","alias":"a"}}]}`)
}
