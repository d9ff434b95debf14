package upstream_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/flows"
	"weir/flows/flowstest"
)

// A rawNode is a node that does on its connections what a test wants. It answers the gateway's own calls by itself.
type rawNode struct {
	addr string

	mu    sync.Mutex // guards the fields below
	heads []string   // of the requests that it got
	conns []net.Conn
}

// newRawNode starts a node. serve gets the head of each request, and tells whether the connection goes on.
func newRawNode(t *testing.T, serve func(head string, c net.Conn, r *bufio.Reader) bool) *rawNode {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &rawNode{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			n.conns = append(n.conns, c)
			n.mu.Unlock()
			serving.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for goesOn := true; goesOn; {
					head := readHead(r)
					switch {
					case head == "":
						return
					case strings.HasPrefix(head, "GET / "), strings.HasPrefix(head, "GET /_nodes/"):
						_, err := io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
						goesOn = err == nil
					default:
						n.mu.Lock()
						n.heads = append(n.heads, head)
						n.mu.Unlock()
						goesOn = serve(head, c, r)
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		n.mu.Lock()
		for _, c := range n.conns {
			c.Close()
		}
		n.mu.Unlock()
		serving.Wait()
	})
	return n
}

// readHead reads the head of a message, empty if none comes.
func readHead(r *bufio.Reader) string {
	var head strings.Builder
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		line, err := r.ReadString('\n')
		if err != nil {
			return ""
		}
		head.WriteString(line)
	}
	return head.String()
}

// readBody reads the body behind a head.
func readBody(head string, r *bufio.Reader) ([]byte, error) {
	lower := strings.ToLower(head)
	if strings.Contains(lower, "transfer-encoding: chunked") {
		body, err := io.ReadAll(httputil.NewChunkedReader(r))
		if err == nil {
			_, err = r.ReadString('\n') // the end of the trailers
		}
		return body, err
	}
	length := 0
	if _, after, ok := strings.Cut(lower, "content-length: "); ok {
		_, _ = fmt.Sscan(after, &length)
	}
	body := make([]byte, length)
	_, err := io.ReadFull(r, body)
	return body, err
}

// always has a node read each request and write answer.
func always(answer string) func(string, net.Conn, *bufio.Reader) bool {
	return func(head string, c net.Conn, r *bufio.Reader) bool {
		if _, err := readBody(head, r); err != nil {
			return false
		}
		_, err := io.WriteString(c, answer)
		return err == nil
	}
}

// asked returns the heads of the requests that the node got, and forgets them.
func (n *rawNode) asked() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	heads := n.heads
	n.heads = nil
	return heads
}

// before starts a gateway in front of the node.
func before(t *testing.T, n *rawNode, filter string) *flowstest.Gateway {
	t.Helper()
	return flowstest.New(t, registry(), one(endpoints("http://"+n.addr), filter), flowstest.Options{})
}

const short = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

// Long credentials and cookies pass up to what nodes take, and are refused in JSON beyond that (authelia/authelia#939).
func TestLongCredentialsPass(t *testing.T) {
	n := newRawNode(t, always(short))
	g := before(t, n, "")
	f := func(fields string, status int) {
		t.Helper()
		resp, body := g.Dial().Send("GET /i/_count HTTP/1.1\nHost: a\n" + fields + "\n").Answer()
		heads := n.asked()
		if resp.StatusCode != status || len(heads) > 1 || (len(heads) == 1) != (status == 200) {
			t.Fatalf("%.20q, %d bytes: status %d %s, sent on %d times", fields, len(fields), resp.StatusCode, body, len(heads))
		}
		if status == 200 && !strings.Contains(heads[0], "\r\n"+strings.ReplaceAll(fields, "\n", "\r\n")) {
			t.Errorf("%.20q, %d bytes: they did not reach the node", fields, len(fields))
		}
		if status != 200 && (resp.Header.Get("Content-Type") != "application/json" || !strings.HasPrefix(body, `{"error":`)) {
			t.Errorf("%.20q, %d bytes: refused with %s", fields, len(fields), body)
		}
	}
	for length, status := range map[int]int{6_000: 200, 15_000: 200, 70_000: 431} {
		f("Authorization: Bearer "+strings.Repeat("x", length)+"\n", status)
		f("Cookie: security_authentication="+strings.Repeat("x", length)+"\n", status)
		f(strings.Repeat("Cookie: a="+strings.Repeat("x", 90)+"\n", length/100), status)
	}
}

// A node that has much to warn of is asked once, whatever the method, and its answer passes: with all lines, or with those for
// which there is room (elastic/elasticsearch#28301).
func TestManyWarningsPass(t *testing.T) {
	f := func(method string, lines int, all bool) {
		t.Helper()
		n := newRawNode(t, always("HTTP/1.1 200 OK\r\n"+strings.Repeat("Warning: 299 x \"field nnnn is old and will go away\"\r\n", lines)+"X-End: 1\r\nContent-Length: 2\r\n\r\n{}"))
		resp, body := before(t, n, "").Dial().Send(method + " /i/_doc/1 HTTP/1.1\nHost: a\nContent-Length: 2\n\n{}").Answer()
		got := len(resp.Header.Values("Warning"))
		if asked := len(n.asked()); resp.StatusCode != 200 || body != "{}" || resp.Header.Get("X-End") != "1" || asked != 1 || (got == lines) != all {
			t.Errorf("%s, %d warnings: status %d %s with %d, the node was asked %d times", method, lines, resp.StatusCode, body, got, asked)
		}
	}
	for _, method := range []string{"GET", "PUT", "POST"} {
		f(method, 400, true)
		f(method, 4000, false)
	}
}

// What a node has read and not answered is sent again only where it does no harm, by what it is and not by its method
// (valyala/fasthttp#1875, ruflin/Elastica#501).
func TestSwallowedWritesAreSentOnce(t *testing.T) {
	n := newRawNode(t, func(head string, _ net.Conn, r *bufio.Reader) bool { _, _ = readBody(head, r); return false })
	g := before(t, n, "")
	const lines = "{\"index\":{\"_index\":\"i\"}}\n{}\n{\"index\":{\"_index\":\"i\"}}\n{}\n"
	for _, raw := range []string{request("PUT", "/_bulk", lines), request("POST", "/_bulk", lines), request("POST", "/i/_doc", "{}"), request("DELETE", "/i/_doc/1", ""), request("GET", "/_search/scroll?scroll_id=x", "")} {
		resp, body := ask(t, g.Addr(), raw)
		if heads := n.asked(); resp.StatusCode != 502 || len(heads) != 1 || !strings.HasPrefix(body, `{"error":`) {
			t.Errorf("%.20q: status %d %s, sent %d times", raw, resp.StatusCode, body, len(heads))
		}
	}
}

// A connection that the node has closed without a word costs nobody an answer (golang/go#22158).
func TestConnectionThatTheNodeClosedIsNotUsed(t *testing.T) {
	closed := make(chan struct{}, 1)
	n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool {
		goesOn := always(short)(head, c, r)
		if strings.HasPrefix(head, "GET /i/_count ") {
			_ = c.Close()
			closed <- struct{}{}
			return false
		}
		return goesOn
	})
	g := before(t, n, "")
	for _, raw := range []string{request("POST", "/i/_search", "{}"), request("POST", "/i/_doc", "{}"), request("POST", "/_bulk", "{\"index\":{\"_index\":\"i\"}}\n{}\n")} {
		ask(t, g.Addr(), request("GET", "/i/_count", ""))
		<-closed
		resp, body := ask(t, g.Addr(), raw)
		if heads := n.asked(); resp.StatusCode != 200 || len(heads) != 2 {
			t.Errorf("%.20q: status %d %s, the node was asked %d times", raw, resp.StatusCode, body, len(heads))
		}
	}
}

// A node that refuses a body of which it has read nothing is heard, although writing to it fails (elastic/elasticsearch#2902).
func TestEarlyRefusalOfANodeIsHandedOn(t *testing.T) {
	n := newRawNode(t, func(_ string, c net.Conn, _ *bufio.Reader) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 5\r\n\r\nlarge")
		return false
	})
	g := before(t, n, "")
	const size = 40 << 20
	for _, framing := range []string{fmt.Sprintf("Content-Length: %d\n\n", size), fmt.Sprintf("Transfer-Encoding: chunked\n\n%x\n", size)} {
		for range 2 {
			c := g.Dial().Send("POST /_bulk HTTP/1.1\nHost: a\nContent-Type: application/x-ndjson\n" + framing)
			piece := strings.Repeat("x", 256<<10)
			for sent := 0; sent < size; sent += len(piece) {
				if _, err := io.WriteString(c, piece); err != nil {
					t.Fatalf("%q: after %d bytes: %v", framing, sent, err)
				}
			}
			if resp, body := c.Answer(); resp.StatusCode != 413 || body != "large" {
				t.Errorf("%q: status %d %s", framing, resp.StatusCode, body)
			}
		}
	}
	if asked := len(n.asked()); asked != 4 {
		t.Errorf("4 requests came to the node %d times", asked)
	}
}

// Up to the size that nodes take a body passes; beyond it, it is refused, announced or not (valyala/fasthttp#156).
func TestDefaultSizeIsThatOfNodes(t *testing.T) {
	var read atomic.Int64
	n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool {
		var length int64
		var err error
		if strings.Contains(head, "chunked") {
			length, err = io.Copy(io.Discard, httputil.NewChunkedReader(r))
			_, _ = r.ReadString('\n')
		} else {
			var body []byte
			body, err = readBody(head, r)
			length = int64(len(body))
		}
		read.Store(length)
		_, werr := io.WriteString(c, short)
		return err == nil && werr == nil
	})
	g := before(t, n, "")
	piece := strings.Repeat("x", 1<<20)
	f := func(mb, status int, chunked bool) {
		t.Helper()
		c := g.Dial()
		frame := fmt.Sprintf("Content-Length: %d\n\n", mb<<20)
		if chunked {
			frame = fmt.Sprintf("Transfer-Encoding: chunked\n\n%x\n", mb<<20)
		}
		c.Send("POST /_bulk HTTP/1.1\nHost: a\nContent-Type: application/x-ndjson\n" + frame)
		for range mb {
			if _, err := io.WriteString(c, piece); err != nil {
				t.Fatalf("%d MB, chunked %v: %v", mb, chunked, err)
			}
		}
		if chunked {
			c.Send("\n0\n\n")
		}
		resp, body := c.Answer()
		if resp.StatusCode != status || status == 413 && !strings.HasPrefix(body, `{"error":`) {
			t.Errorf("%d MB, chunked %v: status %d %s, want %d", mb, chunked, resp.StatusCode, body, status)
		}
		if status == 200 && read.Load() != int64(mb)<<20 {
			t.Errorf("%d MB, chunked %v: the node read %d bytes", mb, chunked, read.Load())
		}
	}
	for _, mb := range []int{5, 99} {
		f(mb, 200, false)
		f(mb, 200, true)
	}
	n.asked()
	f(101, 413, false)
	if asked := len(n.asked()); asked != 0 {
		t.Errorf("a body that was announced as too large came to the node")
	}
	f(101, 413, true)
}

// What belongs to a connection, and wishes to speak something else on it, end at the gateway (istio/istio#53239).
func TestUpgradesAreServedAsTheyAre(t *testing.T) {
	n := newRawNode(t, always(short))
	g := before(t, n, "")
	for _, fields := range []string{"Connection: Upgrade\nUpgrade: TLS/1.2\n", "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n", "Upgrade: websocket\n"} {
		c := g.Dial()
		for range 2 {
			if resp, body := c.Send("GET /i/_count HTTP/1.1\nHost: a\n" + fields + "\n").Answer(); resp.StatusCode != 200 || body != "{}" || resp.Header.Get("Upgrade") != "" {
				t.Errorf("%q: status %d %s", fields, resp.StatusCode, body)
			}
		}
		for _, head := range n.asked() {
			if lower := strings.ToLower(head); strings.Contains(lower, "upgrade") || strings.Contains(lower, "http2-settings") || strings.Contains(lower, "connection") {
				t.Errorf("%q: the node got %q", fields, head)
			}
		}
	}
	// The preface of HTTP/2 is no request.
	if resp, body := g.Dial().Send("PRI * HTTP/2.0\n\nSM\n\n").Answer(); resp.StatusCode != 400 || len(n.asked()) > 0 {
		t.Errorf("status %d %s", resp.StatusCode, body)
	}
}

// A node that speaks HTTP/2 alone is told apart from one that breaks off (opensearch-project/OpenSearch#18846).
func TestNodeThatSpeaksSomethingElse(t *testing.T) {
	n := newRawNode(t, func(_ string, c net.Conn, _ *bufio.Reader) bool {
		_, _ = io.WriteString(c, "\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80\x00\x04\x00\x01\x00\x00\x00\x05\x00\xff\xff\xff")
		return false
	})
	resp, body := ask(t, before(t, n, "").Addr(), request("GET", "/i/_count", ""))
	if resp.StatusCode != 502 || !strings.Contains(body, "is not HTTP/1.1") || !strings.HasPrefix(body, `{"error":`) {
		t.Errorf("status %d %s", resp.StatusCode, body)
	}
}

// Whatever ends a message, the node gets the body that was sent, and the next message on the connection is read as what it is.
func TestMessagesEndWhereTheyEnd(t *testing.T) {
	f := func(first, sent, answer, want string) {
		t.Helper()
		var body []byte
		n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool {
			if strings.Contains(head, " /next ") {
				return always("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext")(head, c, r)
			}
			var err error
			if body, err = readBody(head, r); err == nil {
				_, err = io.WriteString(c, answer)
			}
			return err == nil
		})
		g := before(t, n, "")
		c := g.Dial().Send(first)
		method, _, _ := strings.Cut(first, " ")
		resp, err := http.ReadResponse(c.R, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%q: %v", first, err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil || string(got) != want || resp.StatusCode != 200 {
			t.Errorf("%q: status %d %q, %v; want %q", first, resp.StatusCode, got, err, want)
		}
		if _, next := c.Send("GET /next HTTP/1.1\nHost: a\n\n").Answer(); next != "next" {
			t.Errorf("%q: the next answer is %q", first, next)
		}
		heads := n.asked()
		if len(heads) != 2 || !strings.HasPrefix(heads[1], "GET /next ") || string(body) != sent {
			t.Errorf("%q: the node got %q, and %q", first, heads, body)
		}
		// Nodes refuse what may have a body and does not say how long it is (elastic/elasticsearch-js#289).
		if says := strings.Contains(heads[0], "\r\nContent-Length: 0\r\n"); says != (sent == "" && (method == "PUT" || method == "POST")) {
			t.Errorf("%q: the node got %q", first, heads[0])
		}
	}
	const (
		chunked = "HTTP/1.1 200 OK\r\nx-elastic-product: Elasticsearch\r\ntransfer-encoding: chunked\r\n\r\n"
		list    = chunked + "2\r\n[]\r\n0\r\n\r\n"
		term    = `{"query":{"term":{"a":1}}}`
		id      = `{"scroll_id":["x"]}`
	)
	f("HEAD /i HTTP/1.1\nHost: a\n\n", "", chunked, "") // valyala/fasthttp#1824
	f("POST /i/_refresh HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n0\n\n", "", short, "{}")
	f("PUT /new HTTP/1.1\nHost: a\n\n", "", short, "{}")
	f("POST /i/_refresh HTTP/1.1\nHost: a\n\n", "", short, "{}")
	f("DELETE /new HTTP/1.1\nHost: a\n\n", "", short, "{}")
	for method, body := range map[string]string{"GET /i/_search": term, "DELETE /_search/scroll": id, "POST /i/_search": term} {
		f(fmt.Sprintf("%s HTTP/1.1\nHost: a\nContent-Length: %d\n\n%s", method, len(body), body), body, list, "[]")
		f(fmt.Sprintf("%s HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n%x\n%s\n0\n\n", method, len(body), body), body, chunked+"2\r\n[]\r\n0\r\nX-T: 1\r\n\r\n", "[]")
	}
	f("GET /i/_search HTTP/1.1\nHost: a\n\n", "", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"+short, "{}")
	f("POST /i/_doc HTTP/1.1\nHost: a\nContent-Length: 2\n\n{}", "{}", "HTTP/1.1 100 Continue\r\n\r\n"+short, "{}")
}

// A request that two readers may understand differently reaches no node, and nothing behind it is a request
// (envoyproxy/envoy#12349, valyala/fasthttp#2303).
func TestTwoFramingsReachNoNode(t *testing.T) {
	n := newRawNode(t, always(short))
	g := before(t, n, "")
	const chunks = "Transfer-Encoding: chunked\n"
	for _, fields := range []string{
		"Content-Length: 5\n" + chunks, chunks + "Content-Length: 5\n", chunks + "content-length: 0\n",
		"Content-Length: 5\nContent-Length: 5\n", "Content-Length: 5\ncontent-length: 6\n", "Content-Length: 5, 5\n", "Content-Length: 5,6\n",
		"Content-Length: +5\n", "Content-Length: -5\n", "Content-Length: 0x5\n", "Content-Length: 5 5\n", "Content-Length: 5a\n", "Content-Length: 5.0\n", "Content-Length: \n",
		"Content-Length: 18446744073709551621\n", "Content-Length : 5\n", "Content-Length\t: 5\n", " Content-Length: 5\n", "Content_Length: 5\n" + chunks + chunks,
		chunks + chunks, chunks + "Transfer-Encoding: identity\n", "Transfer-Encoding: identity\n" + chunks, "Transfer-Encoding: gzip, chunked\n", "Transfer-Encoding: chunked, gzip\n",
		"Transfer-Encoding: chunked, chunked\n", "Transfer-Encoding: xchunked\n", "Transfer-Encoding: chunked;a=b\n", "Transfer-Encoding: \"chunked\"\n", "Transfer-Encoding: \vchunked\n",
		"Transfer-Encoding: identity\n", "Transfer-Encoding:\n", "Transfer-Encoding : chunked\n", "Transfer-Encoding:\n chunked\n", "X-A: 1\n " + chunks,
		"Host: b\n", "host: a\n", "X-A : 1\n", "X A: 1\n", "X-A\n", ": 1\n",
	} {
		c := g.Dial().Send("POST /first HTTP/1.1\nHost: a\n" + fields + "\n0\n\nGET /smuggled HTTP/1.1\nHost: a\n\n")
		resp, body := c.Answer()
		if heads := n.asked(); resp.StatusCode != 400 || !strings.HasPrefix(body, `{"error":`) || len(heads) > 0 {
			t.Errorf("%q: status %d %s, the node got %q", fields, resp.StatusCode, body, heads)
		}
		if rest := c.Raw(); rest != "" {
			t.Errorf("%q: more is answered: %q", fields, rest)
		}
	}
}

// A client of HTTP/1.0 gets no chunks, and keeps its connection if it asks for that; the node is spoken to in HTTP/1.1
// (reactor/reactor-netty#265).
func TestOldClientsBeforeChunkedAnswers(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool {
		if strings.Contains(head, "/events ") {
			return always("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n0\r\n\r\n")(head, c, r)
		}
		return always(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long))(head, c, r)
	})
	g := before(t, n, "")
	f := func(path, fields, want string, kept bool) {
		t.Helper()
		c := g.Dial()
		for range 2 {
			c.Send("GET " + path + " HTTP/1.0\n" + fields + "\n")
			resp, body := c.Answer()
			if body != want || len(resp.TransferEncoding) > 0 || resp.ProtoMajor != 1 {
				t.Errorf("%s %q: %d bytes in %q, want %d", path, fields, len(body), resp.TransferEncoding, len(want))
			}
			if !kept {
				if !c.Closed() {
					t.Errorf("%s %q: the connection was not closed", path, fields)
				}
				break
			}
		}
		for _, head := range n.asked() {
			if line, _, _ := strings.Cut(head, "\r\n"); !strings.HasSuffix(line, " HTTP/1.1") {
				t.Errorf("the node was asked with %q", line)
			}
		}
	}
	f("/i/_search", "", "abc"+long, false)
	f("/i/_search", "Host: a\nConnection: keep-alive\n", "abc"+long, true)
	f("/events", "Connection: keep-alive\n", "event", false)

	// As ab -k -n 1000 -c 10 does.
	var callers sync.WaitGroup
	for range 10 {
		callers.Go(func() {
			c := g.Dial()
			for range 100 {
				_, err := io.WriteString(c, "GET /i/_search HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: a\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n")
				var resp *http.Response
				if err == nil {
					resp, err = http.ReadResponse(c.R, nil)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "abc"+long || resp.ContentLength < 0 {
					t.Errorf("%d bytes of %d: %v", len(body), resp.ContentLength, err)
				}
			}
		})
	}
	callers.Wait()
	if got := len(n.asked()); got != 1000 {
		t.Errorf("the node was asked %d times", got)
	}
}

// An answer that breaks off before the client has any of it is an error in JSON; after that the client's connection breaks off as
// well. Reads may be asked for once more where nothing was passed on, writes never (traefik/traefik#13568).
func TestAnswersThatBreakOffAreNotWhole(t *testing.T) {
	half := strings.Repeat("x", 2<<20)
	f := func(raw, answer string, cut bool, most int) {
		t.Helper()
		n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool { always(answer)(head, c, r); return false })
		g := before(t, n, "")
		c := g.Dial()
		if _, err := io.WriteString(c, raw); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(io.LimitReader(c.R, 1<<10))
		if !cut {
			if !strings.HasPrefix(string(got), "HTTP/1.1 502 ") || !strings.Contains(string(got), `{"error":`) || strings.Contains(string(got), "half") {
				t.Errorf("%.60q: %q, %v", answer, got, err)
			}
		} else {
			rest, err := io.ReadAll(c.R)
			if text := string(got) + string(rest); err == nil || !strings.HasPrefix(text, "HTTP/1.1 200 ") || strings.Contains(text, "error") || strings.HasSuffix(text, "0\r\n\r\n") {
				t.Errorf("%.60q: %d bytes that end with %.40q, %v", answer, len(text), text[max(0, len(text)-40):], err)
			}
		}
		if asked := len(n.asked()); asked > most {
			t.Errorf("%.60q: the node was asked %d times for %.20q", answer, asked, raw)
		}
	}
	search := strings.Replace(request("POST", "/i/_search", "{}"), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)
	write := strings.Replace(request("POST", "/_bulk", "{\"index\":{\"_index\":\"i\"}}\n{}\n"), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)
	for raw, most := range map[string]int{search: 2, write: 1} {
		f(raw, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":1", false, most)
		f(raw, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"half\":1\r\n", false, most)
		f(raw, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 10<<20, half), true, 1)
		f(raw, fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(half), half), true, 1)
	}
}

// Who ran into a time limit leaves nothing behind that another caller could take for its own (valyala/fasthttp#576).
func TestLateAnswersReachNobodyElse(t *testing.T) {
	n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool {
		body, err := readBody(head, r)
		if err != nil {
			return false
		}
		if len(body)%2 == 0 {
			<-time.After(300 * time.Millisecond)
		}
		_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		return err == nil
	})
	g := before(t, n, ", timeout: 150ms, max_connection: 512")
	var all sync.WaitGroup
	var late, answers atomic.Int64
	for caller := range 100 {
		all.Go(func() {
			c := g.Dial()
			for i := range 5 {
				id := fmt.Sprintf(`{"id":"%d-%d%s"}`, caller, i, strings.Repeat("x", caller%2))
				if _, err := io.WriteString(c, request("POST", "/i/_search", id)); err != nil {
					t.Error(err)
					return
				}
				resp, err := http.ReadResponse(c.R, nil)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				switch {
				case err == nil && resp.StatusCode == 200 && string(body) == id:
					answers.Add(1)
				case err == nil && resp.StatusCode == 504:
					late.Add(1)
				default:
					t.Errorf("%s: status %d %s, %v", id, resp.StatusCode, body, err)
				}
			}
		})
	}
	all.Wait()
	if late.Load() == 0 || answers.Load() == 0 {
		t.Errorf("%d answers, %d came too late: nothing was tried", answers.Load(), late.Load())
	}
}

// More callers at once than a node may have wait in turn; those for which there is no place are told to come again
// (valyala/fasthttp#718, elastic/go-elasticsearch#377).
func TestManyCallersAtOnce(t *testing.T) {
	const callers, room = 700, 64
	f := func(waiting int, all bool) {
		t.Helper()
		var running, most atomic.Int64
		full := make(chan struct{}) // until when nobody is answered
		release := sync.OnceFunc(func() { close(full) })
		n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool {
			now := running.Add(1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			<-full
			running.Add(-1)
			return always(short)(head, c, r)
		})
		t.Cleanup(release)
		g := before(t, n, fmt.Sprintf(", max_connection: %d, max_waiting: %d", room, waiting))
		var done sync.WaitGroup
		var passed, refused atomic.Int64
		for range callers {
			done.Go(func() {
				c := g.Dial()
				_, err := io.WriteString(c, request("POST", "/i/_search", "{}"))
				var resp *http.Response
				if err == nil {
					resp, err = http.ReadResponse(c.R, nil)
				}
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(resp.Body)
				switch {
				case resp.StatusCode == 200:
					passed.Add(1)
				case resp.StatusCode == 429 && resp.Header.Get("Retry-After") == "1" && strings.Contains(string(body), "es_rejected_execution_exception"):
					refused.Add(1)
				default:
					t.Errorf("status %d %s", resp.StatusCode, body)
				}
			})
		}
		eventually(t, "all to have come", func() bool {
			return running.Load() == room && sum(t, g.Metrics, "weir_upstream_queued")+float64(refused.Load()) == callers-room
		})
		release()
		done.Wait()
		if most.Load() != room || passed.Load()+refused.Load() != callers || (refused.Load() == 0) != all {
			t.Errorf("%d may wait: %d passed, %d were refused, the node had %d at once", waiting, passed.Load(), refused.Load(), most.Load())
		}
	}
	f(1000, true)
	f(100, false)
}

// Events are passed on as they come, and answers to pipelined requests in their order (valyala/fasthttp#1636,
// elastic/elasticsearch#29500).
func TestEventsAndPipelines(t *testing.T) {
	read := make(chan struct{})
	var inFlight, most atomic.Int64
	n := newRawNode(t, func(head string, c net.Conn, r *bufio.Reader) bool {
		if strings.Contains(head, "/events ") {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n")
			<-read
			_, err := io.WriteString(c, "8\r\ndata: 2\n\r\n0\r\n\r\n")
			return err == nil
		}
		most.Store(max(most.Load(), inFlight.Add(1)))
		defer inFlight.Add(-1)
		if strings.Contains(head, "/1 ") {
			<-time.After(50 * time.Millisecond)
		}
		line, _, _ := strings.Cut(head, "\r\n")
		return always(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(line), line))(head, c, r)
	})
	g := before(t, n, "")
	c := g.Dial().Send("GET /events HTTP/1.1\nHost: a\n\n")
	resp, err := http.ReadResponse(c.R, nil)
	if err != nil {
		t.Fatal(err)
	}
	events := bufio.NewReader(resp.Body)
	first, err := events.ReadString('\n') // the second is not sent before
	close(read)
	rest, errRest := io.ReadAll(events)
	if errors.Join(err, errRest) != nil || first != "data: 1\n" || string(rest) != "data: 2\n" {
		t.Errorf("events %q, %q, %v", first, rest, errors.Join(err, errRest))
	}
	c.Send("GET /i/_doc/1 HTTP/1.1\nHost: a\n\nGET /i/_doc/2 HTTP/1.1\nHost: a\n\nGET /i/_doc/3 HTTP/1.1\nHost: a\n\n")
	for i := 1; i <= 3; i++ {
		if _, body := c.Answer(); body != fmt.Sprintf("GET /i/_doc/%d HTTP/1.1", i) {
			t.Errorf("answer %d is that to %q", i, body)
		}
	}
	if most.Load() != 1 {
		t.Errorf("the node had %d of the requests of one connection at once", most.Load())
	}
}

// Nothing is added that nobody sent (valyala/fasthttp#214), and names keep their spelling (valyala/fasthttp#57).
func TestNothingIsAddedOnTheWay(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nx-elastic-product: Elasticsearch\r\nlocation: /i\r\ncontent-length: 2\r\n\r\n{}"
	n := newRawNode(t, always(answer))
	g := flowstest.New(t, registry(), one(endpoints("http://"+n.addr), ""), flowstest.Options{Entry: func(c *flows.EntryConfig) { c.Forwarded = flows.ForwardedOff }})
	c := g.Dial().Send("POST /i/_search HTTP/1.1\nHost: gw.test\nx-opaque-id: a\nauthorization: ApiKey eA==\nContent-Length: 2\n\n{}")
	got := make([]byte, len(answer))
	if _, err := io.ReadFull(c.R, got); err != nil || string(got) != answer {
		t.Errorf("the client got %q, %v", got, err)
	}
	want := "POST /i/_search HTTP/1.1\r\nHost: " + n.addr + "\r\nx-opaque-id: a\r\nauthorization: ApiKey eA==\r\nContent-Length: 2\r\n\r\n"
	if heads := n.asked(); !slices.Equal(heads, []string{want}) {
		t.Errorf("the node got %q, want %q", heads, want)
	}
}
