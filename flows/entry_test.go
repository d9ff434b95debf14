package flows_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/flows"
	"weir/flows/flowstest"
)

func TestKeepAliveAndPipelining(t *testing.T) {
	g := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(nil), nil)
	c := g.Dial()
	for range 3 {
		c.Send("POST /i/_search HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc")
		if resp, body := c.Answer(); resp.StatusCode != 200 || body != "abc" {
			t.Fatalf("got %d %q", resp.StatusCode, body)
		}
	}
	c.Send("POST / HTTP/1.1\nHost: a\nContent-Length: 1\n\n1" +
		"POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n1\n2\n0\n\n" +
		"POST / HTTP/1.1\nHost: a\nContent-Length: 1\n\n3")
	for _, want := range []string{"1", "2", "3"} {
		if _, body := c.Answer(); body != want {
			t.Fatalf("got %q, want %q: answers out of order", body, want)
		}
	}
}

func TestTargetAndHeaderAreKeptByteForByte(t *testing.T) {
	var target, path, fields string
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) {
		target, path = string(x.Request.Target), string(x.DecodedPath())
		fields = ""
		for _, f := range x.Request.Header.Fields() {
			fields += string(f.Name) + "=" + string(f.Value) + ";"
		}
	}), nil)
	f := func(want, wantPath string) {
		t.Helper()
		c := g.Dial().Send("GET " + want + " HTTP/1.1\nhOsT: a\nx-A: 1\nX-a: 2\nAccept:  b \n\n")
		if resp, body := c.Answer(); resp.StatusCode != 200 {
			t.Fatalf("%s: %d %s", want, resp.StatusCode, body)
		}
		if target != want || path != wantPath {
			t.Errorf("target %q, path %q; want %q, %q", target, path, want, wantPath)
		}
		if fields != "hOsT=a;x-A=1;X-a=2;Accept=b;" {
			t.Errorf("fields %q", fields)
		}
	}
	f("/%3Clogs-%7Bnow%2Fd%7D%3E/_search", "/<logs-{now/d}>/_search")
	f("/i/_doc/orders%2F17", "/i/_doc/orders/17")
	f("/i/_doc/..%2Fx", "/i/_doc/../x")
	f("/i/../_cluster/settings", "/i/../_cluster/settings")
	f("//i//_search?q=%zz;a", "/i/_search")
	f("/a%2Cb/_search", "/a,b/_search")
	f("/a%252Cb/_search", "/a%2Cb/_search")
}

func TestAmbiguousRequestsAreRefused(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), func(c *flows.EntryConfig) { c.HeaderTimeout = 200e6 })
	f := func(request string) {
		t.Helper()
		c := g.Dial().Send(request)
		resp, body := c.Answer()
		if resp.StatusCode != 400 && resp.StatusCode != 408 || !strings.HasPrefix(body, `{"error":{"root_cause":[`) {
			t.Errorf("%q: got %d %s", request, resp.StatusCode, body)
		}
		if !c.Closed() {
			t.Errorf("%q: the connection was not closed", request)
		}
	}
	f("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nTransfer-Encoding: chunked\n\n0\n\n")
	f("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nContent-Length: 3\n\nabc")
	f("POST / HTTP/1.1\nHost: a\nContent-Length: +3\n\nabc")
	f("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: gzip, chunked\n\n0\n\n")
	f("GET / HTTP/1.1\nHost: a\nHost: b\n\n")
	f("GET / HTTP/1.1\n\n")
	f("GET / HTTP/1.1\nHost: a\nX-A : 1\n\n")
	f("GET / HTTP/1.1\nHost: a\nX-A: 1\n b\n\n")
	f("CONNECT a:1 HTTP/1.1\nHost: a:1\n\n")
	f("GET http://other.test/ HTTP/1.1\nHost: a\n\n")
	f("PRI * HTTP/2.0\n\nSM\n\n")
}

func TestSizesAreRefusedInJSON(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), func(c *flows.EntryConfig) { c.MaxBodySize = 1 << 20 })
	f := func(request string, status int) {
		t.Helper()
		c := g.Dial().Send(request)
		resp, body := c.Answer()
		if resp.StatusCode != status || !strings.HasPrefix(body, `{"error":`) || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %d %v %s, want %d", resp.StatusCode, resp.Header, body, status)
		}
	}
	f("GET /"+strings.Repeat("a", 5000)+" HTTP/1.1\nHost: a\n\n", 414)
	f("GET / HTTP/1.1\nHost: a\nX-A: "+strings.Repeat("a", 70_000)+"\n\n", 431)
	f("POST / HTTP/1.1\nHost: a\nContent-Length: 2000000\nExpect: 100-continue\n\n", 413)
	f("POST / HTTP/1.1\nHost: a\nContent-Length: 2000000\n\n"+strings.Repeat("a", 2_000_000), 413)
}

func TestContinueComesWhenTheBodyIsWanted(t *testing.T) {
	mirror := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(nil), nil)
	c := mirror.Dial().Send("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nExpect: 100-continue\n\n")
	line, err := c.R.ReadString('\n')
	if err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	if _, err := c.R.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	c.Send("abc")
	if resp, body := c.Answer(); resp.StatusCode != 200 || body != "abc" {
		t.Fatalf("got %d %q", resp.StatusCode, body)
	}

	never := newGateway(t, oneFlow, testRegistry(nil), nil)
	c = never.Dial().Send("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nExpect: 100-continue\n\n")
	if resp, body := c.Answer(); resp.StatusCode != 200 || body != "ok" {
		t.Fatalf("a flow that needs no body: got %d %q", resp.StatusCode, body)
	}
	if !c.Closed() {
		t.Error("the connection was kept although the body may still come")
	}

	c = mirror.Dial().Send("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nExpect: 100-continue\n\n")
	if _, err := c.R.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // the exchange must end; the leak check sees to it

	c = mirror.Dial().Send("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nExpect: something\n\n")
	if resp, _ := c.Answer(); resp.StatusCode != http.StatusExpectationFailed {
		t.Fatalf("got %d", resp.StatusCode)
	}
}

func TestLeavingClientCancels(t *testing.T) {
	left := make(chan struct{})
	g := newGateway(t, flowstest.Main("{answer: {wait: true}}"), testRegistry(func(x *flows.Exchange) {
		done := x.Cancel().Done()
		go func() { <-done; close(left) }()
	}), nil)
	c := g.Dial().Send("GET / HTTP/1.1\nHost: a\n\n")
	_ = c.Close()
	select {
	case <-left:
	case <-time.After(5 * time.Second):
		t.Fatal("the exchange was not cancelled")
	}
}

func TestPanicIsContained(t *testing.T) {
	g := newGateway(t, flowstest.Main("{answer: {panic: true}}"), testRegistry(nil), nil)
	c := g.Dial()
	for range 2 {
		c.Send("GET / HTTP/1.1\nHost: a\n\n")
		if resp, body := c.Answer(); resp.StatusCode != 500 || !strings.Contains(body, `"type":"gateway_exception"`) {
			t.Fatalf("got %d %s", resp.StatusCode, body)
		}
	}
}

func TestHeadHasNoBody(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	c := g.Dial().Send("HEAD / HTTP/1.1\nHost: a\n\n")
	resp, err := http.ReadResponse(c.R, &http.Request{Method: "HEAD"})
	if err != nil || resp.ContentLength != 2 {
		t.Fatalf("got %v, %v", resp, err)
	}
	c.Send("GET / HTTP/1.1\nHost: a\n\n")
	if _, body := c.Answer(); body != "ok" {
		t.Fatalf("the connection is out of step: %q", body)
	}
}

func TestNothingIsInvented(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	resp, _ := g.Dial().Send("GET / HTTP/1.1\nHost: a\n\n").Answer()
	var names []string
	for name := range resp.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "Content-Length Content-Type" {
		t.Errorf("answer has %s", got)
	}
}

func TestSlowHeadIsCutAndIdleConnectionIsNot(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), func(c *flows.EntryConfig) { c.HeaderTimeout = 200e6 })
	slow := g.Dial().Send("GET / HTTP/1.1\nHost")
	if resp, _ := slow.Answer(); resp.StatusCode != 408 {
		t.Errorf("got %d", resp.StatusCode)
	}
	idle := g.Dial().Send("GET / HTTP/1.1\nHost: a\n\n")
	idle.Answer()
	waitFor(t, "the idle connection to be older than the limit on heads", func() bool {
		conns := g.Conns()
		return len(conns) == 1 && conns[0].Idle && conns[0].Age > 400*time.Millisecond
	})
	idle.Send("GET / HTTP/1.1\nHost: a\n\n")
	if _, body := idle.Answer(); body != "ok" {
		t.Errorf("after a while: %q", body)
	}
}

// Who connects and says nothing, or stops half-way, does not keep the connection (valyala/fasthttp#572), whichever layer waits for
// him.
func TestSilentClientsAreCut(t *testing.T) {
	limits := func(c *flows.EntryConfig) { c.HeaderTimeout, c.ReadTimeout = 200e6, 200e6 }
	f := func(g *flowstest.Gateway, sent, want string) {
		t.Helper()
		c := g.Dial()
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c.R)
		if err != nil || !strings.HasPrefix(string(got), want) || want == "" && len(got) > 0 {
			t.Errorf("%q: got %q, %v; want %q and the end of the connection", sent, got, err, want)
		}
		waitFor(t, "the connection to be given back", func() bool { return len(g.Conns()) == 0 })
	}
	plain := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(nil), func(c *flows.EntryConfig) {
		limits(c)
		c.IdleTimeout = 200e6
	})
	f(plain, "", "")
	f(plain, "\r\n", "")
	f(plain, "G", "HTTP/1.1 408 ")
	f(plain, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc", "HTTP/1.1 408 ")
	f(plain, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "HTTP/1.1 408 ")
	secure := flowstest.New(t, testRegistry(nil), oneFlow, flowstest.Options{TLS: overTLS(t, flows.EntryTLSConfig{Enabled: true}), Entry: limits})
	f(secure, "", "")
	f(secure, "\x16\x03\x01\x02\x00\x01", "")
	proxied := newGateway(t, oneFlow, testRegistry(nil), func(c *flows.EntryConfig) {
		limits(c)
		trust("127.0.0.1")(c)
		c.Network.ProxyProtocol = true
	})
	f(proxied, "", "")
	f(proxied, "PROXY TCP4 203.", "")
}

// A client that takes the gateway for a forward proxy is served by the gateway's own nodes if it names the gateway, with the path
// alone, and is refused otherwise (elastic/elasticsearch-hadoop#939).
func TestTargetsInAbsoluteForm(t *testing.T) {
	var target string
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) { target = string(x.Request.Target) }), nil)
	f := func(method, sent, host, want string) {
		t.Helper()
		target = ""
		resp, body := g.Dial().Send(method + " " + sent + " HTTP/1.1\nHost: " + host + "\n\n").Answer()
		if want == "" && (resp.StatusCode != 400 || !strings.HasPrefix(body, `{"error":`)) || want != "" && resp.StatusCode != 200 || target != want {
			t.Errorf("%s %s to %s: status %d %s, served as %q, want %q", method, sent, host, resp.StatusCode, body, target, want)
		}
	}
	f("GET", "http://gw.test:8000/i/_search?q=a", "gw.test:8000", "/i/_search?q=a")
	f("GET", "http://GW.test:8000/%3Ci%3E//_search", "gw.test:8000", "/%3Ci%3E//_search")
	f("GET", "https://gw.test/i", "gw.test", "/i")
	f("GET", "http://gw.test:80/i", "gw.test", "/i")
	f("GET", "http://gw.test", "gw.test", "/")
	f("GET", "http://gw.test?pretty", "gw.test", "/?pretty")
	f("OPTIONS", "*", "gw.test", "*")
	f("GET", "http://other.test:9200/i/_search", "gw.test:8000", "")
	f("GET", "http://gw.test:9200/i", "gw.test:8000", "")
	f("GET", "http://gw.test@other.test/i", "gw.test", "")
	f("GET", "http://gw.test.other.test/i", "gw.test", "")
	f("GET", "http:///i", "gw.test", "")
	f("GET", "ftp://gw.test/i", "gw.test", "")
	f("GET", "other.test:9200", "other.test:9200", "")
	f("GET", "i/_search", "gw.test", "")
	f("GET", "*", "gw.test", "")
	f("CONNECT", "gw.test:8000", "gw.test:8000", "")
	f("CONNECT", "http://gw.test:8000/i", "gw.test:8000", "")
	f("CONNECT", "/i", "gw.test:8000", "")
}

// A connection on which a flow left a body unread is as idle as any other once the rest of that body has come.
func TestConnectionIsIdleAfterABodyThatNobodyWanted(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	for _, size := range []int{2, 100 << 10} {
		c := g.Dial().Send(fmt.Sprintf("POST / HTTP/1.1\nHost: a\nContent-Length: %d\n\n", size) + strings.Repeat("x", size))
		c.Answer()
		waitFor(t, "the connection to be idle", func() bool {
			conns := g.Conns()
			return len(conns) == 1 && conns[0].Idle
		})
		c.Send("GET / HTTP/1.1\nHost: a\n\n")
		if _, body := c.Answer(); body != "ok" {
			t.Errorf("after a body of %d bytes: %q", size, body)
		}
		_ = c.Close()
		waitFor(t, "the connection to be closed", func() bool { return len(g.Conns()) == 0 })
	}
}

func TestTracingFlowSeesTheExchange(t *testing.T) {
	type record struct {
		target string
		status int
		bytes  int64
		trace  bool
	}
	seen := make(chan record, 10)
	g := newGateway(t, `
flow:
  - {name: main, filter: [{answer: {text: hello}}]}
  - {name: log, filter: [{answer: {}}]}
router: [{name: default, default_flow: main, tracing_flow: log}]
`, testRegistry(func(x *flows.Exchange) {
		if x.Tracing {
			seen <- record{string(x.Request.Target), x.Response.Status, x.ResponseBytes, x.Tracing}
		}
	}), nil)
	c := g.Dial()
	c.Send("GET /a HTTP/1.1\nHost: a\n\n").Answer()
	c.Send("GET /b HTTP/1.1\nHost: a\n\n").Answer()
	for _, want := range []string{"/a", "/b"} {
		r := <-seen
		if r.target != want || r.status != 200 || r.bytes < 5 || !r.trace {
			t.Errorf("got %+v, want target %s", r, want)
		}
	}
}

func TestReloadWhileRequestsRun(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	stop, done := make(chan struct{}), make(chan error, 4)
	for range cap(done) {
		go func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				resp, err := client.Get("http://" + g.Addr() + "/")
				if err != nil {
					done <- err
					return
				}
				_ = resp.Body.Close()
				if resp.StatusCode != 200 {
					done <- errors.New(resp.Status)
					return
				}
			}
		}()
	}
	for range 50 {
		g.Load(oneFlow)
	}
	close(stop)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// waitFor waits until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func TestPrefetch(t *testing.T) {
	f := func(text string, limit int64, whole bool) {
		t.Helper()
		var b flows.Body
		b.ReplaceStream(strings.NewReader(text), -1)
		data, got, err := b.Prefetch(limit)
		if err != nil || got != whole {
			t.Fatalf("%d bytes with a limit of %d: whole %v, %v", len(text), limit, got, err)
		}
		if whole && string(data) != text {
			t.Errorf("got %d bytes", len(data))
		}
		all, err := io.ReadAll(b.Reader())
		if err != nil || string(all) != text {
			t.Errorf("%d bytes with a limit of %d: read %d, %v", len(text), limit, len(all), err)
		}
	}
	for _, n := range []int{0, 1, 2047, 2048, 2049, 5000, 100_000} {
		text := strings.Repeat("x", n)
		f(text, int64(n), true)
		f(text, int64(n)+1, true)
		if n > 0 {
			f(text, int64(n)-1, false)
		}
	}
}

func TestBrokenBodies(t *testing.T) {
	g := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(nil), nil)
	f := func(request string, half bool, status int) {
		t.Helper()
		c := g.Dial().Send(request)
		if half {
			_ = c.CloseWrite()
		}
		resp, body := c.Answer()
		if resp.StatusCode != status || !strings.HasPrefix(body, `{"error":`) {
			t.Errorf("%.80q: got %d %.100s, want %d", request, resp.StatusCode, body, status)
		}
		if !c.Closed() {
			t.Errorf("%.80q: the connection was not closed", request)
		}
	}
	for _, n := range []int{1, 100, 8000, 8192, 30_000} {
		f("POST /_bulk HTTP/1.1\nHost: a\nContent-Length: 50000\n\n"+strings.Repeat("a", n), true, 400)
	}
	for _, chunk := range []string{"zz\nabc\n", "+3\nabc\n", "3\nabcd\n", "0x3\nabc\n"} {
		f("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n"+chunk+"0\n\n", false, 400)
	}
	f("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n5\nab", true, 400)
	f("CONNECT /i HTTP/1.1\nHost: a\n\n", false, 400)
}

func TestNothingBehindTrailersIsARequest(t *testing.T) {
	var targets []string
	g := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(func(x *flows.Exchange) {
		targets = append(targets, string(x.Request.Target))
	}), nil)
	for _, trailers := range []string{"X: a\n", "X: a\n b\n", "X : a\n", ": a\n", "X: a\n\n", "X\n"} {
		targets = nil
		c := g.Dial()
		text := strings.ReplaceAll("POST /first HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n1\na\n0\n", "\n", "\r\n") + trailers +
			strings.ReplaceAll("\nGET /smuggled HTTP/1.1\nHost: a\n\n", "\n", "\r\n")
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		_ = c.CloseWrite()
		c.Closed()
		if slices.Contains(targets, "/smuggled") {
			t.Errorf("trailers %q: a request was read behind them", trailers)
		}
	}
}

func TestOwnRefusalDoesNotWaitForTheBody(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	for _, sent := range []string{"", strings.Repeat("a", 1000)} {
		c := g.Dial().Send("POST /i/_doc HTTP/1.1\nHost: a\nContent-Length: 209715200\n\n" + sent)
		if resp, _ := c.Answer(); resp.StatusCode != 413 {
			t.Errorf("got %d", resp.StatusCode)
		}
	}
}

func TestHeaderLimitIsExact(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), func(c *flows.EntryConfig) { c.MaxHeaderSize = 8 << 10 })
	head := "GET / HTTP/1.1\nHost: a\nX: "
	fixed := len("Host: a\r\nX: \r\n\r\n")
	for n, status := range map[int]int{8<<10 - fixed: 200, 8<<10 - fixed + 1: 431} {
		if resp, _ := g.Dial().Send(head + strings.Repeat("x", n) + "\n\n").Answer(); resp.StatusCode != status {
			t.Errorf("%d bytes: got %d, want %d", n, resp.StatusCode, status)
		}
	}
}

func TestFieldsOfTheConnectionAreNotOfTheRequest(t *testing.T) {
	var fields string
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) {
		fields = ""
		for _, f := range x.Request.Header.Fields() {
			fields += string(f.Name) + ";"
		}
	}), nil)
	g.Dial().Send("GET / HTTP/1.1\nHost: a\nAuthorization: b\nConnection: Authorization, X-Hop\nX-Hop: 1\nTE: trailers\nX-End: 1\n\n").Answer()
	if fields != "Host;X-End;" {
		t.Errorf("got %s", fields)
	}
}

func TestShutdownWaitsForARequestThatHasBegun(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	c := g.Dial().Send("GET / HTTP/1.1\nHo")
	waitFor(t, "the head to begin", func() bool {
		conns := g.Conns()
		return len(conns) == 1 && !conns[0].Idle
	})
	ended := make(chan error, 1)
	go func() { ended <- g.Shutdown(t.Context()) }()
	waitFor(t, "the end to begin", func() bool {
		nc, err := net.Dial("tcp", g.Addr())
		if err == nil {
			_ = nc.Close()
		}
		return err != nil
	})
	resp, _ := c.Send("st: a\n\n").Answer()
	if resp.StatusCode != 200 || !resp.Close {
		t.Errorf("status %d, close %t", resp.StatusCode, resp.Close)
	}
	_ = c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A client that has sent more than was answered must still get its whole answer: closing over unread bytes resets the connection.
func TestLastAnswerReachesAClientThatSentMore(t *testing.T) {
	const size = 200_000
	g := newGateway(t, flowstest.Main("{answer: {text: '"+strings.Repeat("x", size)+"'}}"), testRegistry(nil), nil)
	f := func(request string) {
		t.Helper()
		c := g.Dial().Send(request)
		waitFor(t, "the answer to be on its way", func() bool {
			conns := g.Conns()
			return len(conns) == 0 || conns[0].Closing
		})
		if all := c.Raw(); len(all) < size {
			t.Errorf("%.40q: %d bytes came", request, len(all))
		}
		_ = c.Close()
		waitFor(t, "the connection to end", func() bool { return len(g.Conns()) == 0 })
	}
	f("GET / HTTP/1.1\nHost: a\nConnection: close\n\nGET / HTTP/1.1\nHost: a\n\n")
	f("GET / HTTP/1.0\nHost: a\n\n\n")
}

func TestUserOfAFieldThatEndsHereIsNobody(t *testing.T) {
	var user string
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) { user = string(x.Request.User) }), nil)
	const head = "GET / HTTP/1.1\nHost: a\nAuthorization: Basic Ym9iOng=\n"
	if g.Dial().Send(head + "\n").Answer(); user != "bob" {
		t.Errorf("user %q", user)
	}
	if g.Dial().Send(head + "Connection: Authorization\n\n").Answer(); user != "" {
		t.Errorf("user %q, whom no node would see", user)
	}
}

func TestBufferedBodiesAreCountedAsTheyCome(t *testing.T) {
	wanted := make(chan struct{})
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) {
		close(wanted)
		_, _ = x.Request.Body.Bytes(1 << 20)
	}), nil)
	used := func() int64 { return g.Budget.Used() }
	c := g.Dial().Send("POST / HTTP/1.1\nHost: a\nContent-Length: 900000\n\n")
	<-wanted
	if got := used(); got != 0 {
		t.Errorf("%d bytes taken by an announcement", got)
	}
	c.Send(strings.Repeat("x", 100_000))
	waitFor(t, "what came to be counted", func() bool { return used() >= 100_000 })
	if got := used(); got > 300_000 {
		t.Errorf("%d bytes taken for 100,000", got)
	}
	_ = c.Close()
	waitFor(t, "the memory to be given back", func() bool { return used() == 0 })
}

// A body for which memory runs out half-way is whole all the same, for whoever reads it then.
func TestBodyOutlivesTheBudget(t *testing.T) {
	const size = 200_000
	want := strings.Repeat("0123456789", size/10)
	var g *flowstest.Gateway
	reg := testRegistry(nil)
	flows.Register(reg, flows.Factory[struct{}]{
		Name: "wait", Default: func() struct{} { return struct{}{} },
		Build: func(*flows.Builder, struct{}) flows.Filter {
			return serveFunc(func(x *flows.Exchange, _ flows.Handler) error {
				body := &x.Request.Body
				others := g.Budget.Limit() - g.Budget.Used() - 40_000
				g.Budget.Acquire(others)
				for range 2 {
					if _, err := body.Bytes(1 << 20); err != flows.ErrBudget {
						t.Errorf("without memory: %v", err)
					}
				}
				g.Budget.Release(others)
				var got []byte
				var err error
				if string(x.Request.Path) == "/bytes" {
					got, err = body.Bytes(1 << 20)
				} else {
					got, err = io.ReadAll(body.Reader())
				}
				if err != nil || string(got) != want {
					t.Errorf("%s: %d bytes, %v; want %d", x.Request.Path, len(got), err, size)
				}
				x.Reply(200, "", nil)
				return nil
			})
		},
	})
	g = newGateway(t, flowstest.Main("{wait: {}}"), reg, nil)
	for _, path := range []string{"/bytes", "/stream"} {
		for _, framing := range []string{"Content-Length: 200000\n\n" + want, "Transfer-Encoding: chunked\n\n30d40\n" + want + "\n0\n\n"} {
			c := g.Dial().Send("POST " + path + " HTTP/1.1\nHost: a\n" + framing)
			c.Answer()
			_ = c.Close()
		}
	}
	waitFor(t, "the memory to be given back", func() bool { return g.Budget.Used() == 0 })
}

func TestAnswerOfUnknownLengthToHTTP10(t *testing.T) {
	reg := testRegistry(nil)
	flows.Register(reg, flows.Factory[struct{}]{
		Name: "stream", Default: func() struct{} { return struct{}{} },
		Build: func(*flows.Builder, struct{}) flows.Filter { return streamFilter{} },
	})
	g := newGateway(t, flowstest.Main("{stream: {}}"), reg, nil)
	c := g.Dial().Send("GET / HTTP/1.0\nConnection: keep-alive\n\n")
	got, err := io.ReadAll(c.R)
	if err != nil || !strings.HasSuffix(string(got), "\r\n\r\n"+strings.Repeat("x", 100_000)) || strings.Contains(string(got), "chunked") {
		t.Errorf("got %d bytes beginning %.120q, %v", len(got), got, err)
	}
	if resp, body := g.Dial().Send("GET / HTTP/1.1\nHost: a\n\n").Answer(); resp.ContentLength != -1 || len(body) != 100_000 {
		t.Errorf("HTTP/1.1: length %d, %d bytes", resp.ContentLength, len(body))
	}
}

// streamFilter answers with a stream of unknown length.
type streamFilter struct{}

func (streamFilter) Serve(x *flows.Exchange, _ flows.Handler) error {
	x.Reply(200, "text/plain", nil)
	x.Response.Body.ReplaceStream(strings.NewReader(strings.Repeat("x", 100_000)), -1)
	return nil
}
