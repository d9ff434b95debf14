package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/searchnode/searchtest"
)

// head is a request's or an answer's head, taken apart without judging it.
type head struct {
	line   string
	fields map[string][]string // by lower-case name, in the order in which they came
	names  []string            // lower-case
}

func parseHead(text string) head {
	lines := strings.Split(strings.TrimSuffix(text, "\r\n\r\n"), "\r\n")
	h := head{line: lines[0], fields: map[string][]string{}}
	for _, l := range lines[1:] {
		name, value, ok := strings.Cut(l, ":")
		if !ok {
			continue
		}
		name = strings.ToLower(name)
		if !slices.Contains(h.names, name) {
			h.names = append(h.names, name)
		}
		h.fields[name] = append(h.fields[name], strings.Trim(value, " \t"))
	}
	return h
}

// readHead reads the head of an answer.
func (c *wireConn) readHead(tb testing.TB) head {
	tb.Helper()
	var text bytes.Buffer
	for !bytes.HasSuffix(text.Bytes(), []byte("\r\n\r\n")) {
		line, err := c.r.ReadBytes('\n')
		text.Write(line)
		if err != nil {
			tb.Fatalf("read the head of an answer: %v after %q", err, text.Bytes())
		}
	}
	return parseHead(text.String())
}

// readBody reads the body of an answer whose head is h.
func (c *wireConn) readBody(tb testing.TB, h head) string {
	tb.Helper()
	var n int
	if _, err := fmt.Sscan(strings.Join(h.fields["content-length"], ","), &n); err != nil {
		tb.Fatalf("answer has the length %q: %v", h.fields["content-length"], err)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.r, body); err != nil {
		tb.Fatal(err)
	}
	return string(body)
}

// Each of these is what some proxy decodes, encodes, resolves or drops.
var rawTargets = []string{
	"/%3Clogs-%7Bnow%2Fd%7D%3E/_search",
	"/<logs-{now/d}>/_search",
	"/i/_doc/orders%2F17",
	"/i/_doc/orders%252F17",
	"/i/_doc/%2e%2e%2fx",
	"/i/_doc/..%2Fx",
	"/i/../_cluster/settings",
	"/i/./_search",
	"//_bulk",
	"//i//_search",
	"/i/_search/",
	"/a%2Cb/_search",
	"/a,b/_search",
	"/r%3Ai-*/_search",
	"/r:i-%2A/_search",
	"/a%252Cb/_search",
	"/i/_count?q=%zz",
	"/i/_count?q=a;b=c&d",
	"/i/_count?q=a+b%20c&&=&q=%2",
	"/i/_count?",
	"/i/_search?q=\"x\"&b=[1]|{2}^`",
	"/i/_doc/a+b%20c%25d",
	"/i/_doc/%E2%82%AC%ff",
	"/i/_doc/€",
	"/i/_doc/a;v=1",
	"/?pretty",
}

func TestTargetsReachTheNodeByteForByte(t *testing.T) {
	c := estest.New(t, estest.Options{})
	g := newSite(t, c.URL()).start()
	awaitNodes(t, g, 1)
	conn := dial(t, g.addr)
	for i, target := range rawTargets {
		mark := fmt.Sprintf("X-Mark: %d", i)
		conn.send(t, "POST "+target+" HTTP/1.1\r\nHost: weir.test\r\n"+mark+"\r\nContent-Length: 0\r\n\r\n")
		if _, _, _, err := conn.read(false); err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		var got []string
		for _, call := range c.Calls() {
			if bytes.Contains(call.Head, []byte("\r\n"+mark+"\r\n")) {
				line, _, _ := strings.Cut(string(call.Head), "\r\n")
				got = append(got, line)
			}
		}
		if want := []string{"POST " + target + " HTTP/1.1"}; !slices.Equal(got, want) {
			t.Errorf("the node got %q, want %q", got, want)
		}
	}
}

func TestHeaderFieldsReachTheNodeInOrder(t *testing.T) {
	c := estest.New(t, estest.Options{})
	g := newSite(t, c.URL()).start()
	awaitNodes(t, g, 1)
	sent := []string{
		"X-Opaque-Id: mark-fields", "Accept: application/json", "X-List: one", "x-list: two,  three", "X-Odd: a;b=\"c, d\" (e) é",
		"X-LIST: one", "Accept: text/plain;q=0.5", "X-Empty:", "Authorization: Basic dTpw", "traceparent: 00-0-0-00", "Cookie: a=1; b=2",
		"Content-Type: application/vnd.elasticsearch+json; compatible-with=8", "Date: then",
	}
	want := parseHead("\r\n" + strings.Join(sent, "\r\n") + "\r\n\r\n")
	conn := dial(t, g.addr)
	conn.send(t, "POST /i/_doc HTTP/1.1\r\nHost: weir.test\r\nContent-Length: 7\r\nConnection: X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n"+
		strings.Join(sent, "\r\n")+"\r\n\r\n{\"n\":1}")
	if _, _, _, err := conn.read(false); err != nil {
		t.Fatal(err)
	}
	call, err := c.WaitCall(t.Context(), func(call *estest.Call) bool { return call.Header.Get("X-Opaque-Id") == "mark-fields" })
	if err != nil {
		t.Fatal(err)
	}
	got := parseHead(string(call.Head))
	for _, name := range want.names {
		if !slices.Equal(got.fields[name], want.fields[name]) {
			t.Errorf("the node got %s: %q, want %q", name, got.fields[name], want.fields[name])
		}
	}
	for _, name := range got.names {
		if want.fields[name] == nil && name != "host" && name != "content-length" && !strings.HasPrefix(name, "x-forwarded-") {
			t.Errorf("the node got the field %s: %q, which nobody sent", name, got.fields[name])
		}
	}
	if got := got.fields["x-forwarded-for"]; !slices.Equal(got, []string{"127.0.0.1"}) {
		t.Errorf("the node is told of the caller %q", got)
	}
	if got := got.fields["x-forwarded-host"]; !slices.Equal(got, []string{"weir.test"}) {
		t.Errorf("the node is told of the host %q", got)
	}
	if string(call.Body) != `{"n":1}` {
		t.Errorf("the node got the body %q", call.Body)
	}
}

// What nodes answer with is theirs: unknown fields, repeated ones (elastic/elasticsearch#28301), and none that they did not
// send (valyala/fasthttp#214).
func TestAnswersComeBackAsTheyAre(t *testing.T) {
	c := estest.New(t, estest.Options{})
	g := newSite(t, c.URL()).start()
	awaitNodes(t, g, 1)
	fields := append(estest.Warnings(400), "X-elastic-product: Elasticsearch", "x-Unknown: a", "X-Unknown: b,  c", "X-Unknown: a", "Set-Cookie: a=1", "Set-Cookie: b=2",
		"Location: /i/_doc/orders%2F17")
	c.Inject(estest.Fault{Path: "/i/_doc/many", Raw: []byte("HTTP/1.1 201 Created\r\n" + strings.Join(fields, "\r\n") + "\r\nContent-Length: 2\r\n\r\n{}")})
	c.Inject(estest.Fault{Path: "/i/_doc/bare", Raw: []byte("HTTP/1.1 299 Odd\r\ncontent-length: 3\r\n\r\nabc")})
	conn := dial(t, g.addr)
	f := func(path string, status int, body string, sent ...string) {
		t.Helper()
		conn.send(t, "GET "+path+" HTTP/1.1\r\nHost: weir.test\r\n\r\n")
		got := conn.readHead(t)
		want := parseHead("\r\n" + strings.Join(sent, "\r\n") + "\r\n\r\n")
		if !strings.HasPrefix(got.line, fmt.Sprintf("HTTP/1.1 %d ", status)) {
			t.Errorf("%s: status line %q, want %d", path, got.line, status)
		}
		for _, name := range want.names {
			if !slices.Equal(got.fields[name], want.fields[name]) {
				t.Errorf("%s: %s came as %q, want %q", path, name, got.fields[name], want.fields[name])
			}
		}
		for _, name := range got.names {
			if want.fields[name] == nil && name != "content-length" && name != "cache-status" {
				t.Errorf("%s: came with the field %s: %q, which the node did not send", path, name, got.fields[name])
			}
		}
		if text := conn.readBody(t, got); text != body {
			t.Errorf("%s: body %q, want %q", path, text, body)
		}
	}
	f("/i/_doc/many", http.StatusCreated, "{}", fields...)
	f("/i/_doc/bare", 299, "abc")
}

// A search ends within a second of its client's leaving (valyala/fasthttp#965); a write that has begun is not left half-done.
func TestClientThatLeavesEndsItsSearch(t *testing.T) {
	c := estest.New(t, estest.Options{})
	client := newClient(t)
	fill(t, client, c.URL(), "i")
	g := newSite(t, c.URL()).start()
	awaitNodes(t, g, 1)
	c.Inject(estest.Fault{Path: "*/_search", Hold: make(chan struct{})})
	goOn := make(chan struct{})
	c.Inject(estest.Fault{Path: "/i/_create/*", Hold: goOn})
	begin := func(target, name string) (*wireConn, *estest.Call) {
		t.Helper()
		conn := dial(t, g.addr)
		conn.send(t, "POST "+target+" HTTP/1.1\r\nHost: weir.test\r\nX-Opaque-Id: "+name+"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		call, err := c.WaitCall(ctx, func(call *estest.Call) bool { return call.Header.Get("X-Opaque-Id") == name })
		if err != nil {
			t.Fatal(err)
		}
		return conn, call
	}
	var writes []*estest.Call
	f := func(name string, leave func(*wireConn) error) {
		t.Helper()
		writer, write := begin("/i/_create/"+name, "write "+name)
		writes = append(writes, write)
		if err := leave(writer); err != nil {
			t.Fatal(err)
		}
		conn, call := begin("/i/_search?preference="+name, name)
		left := time.Now()
		if err := leave(conn); err != nil {
			t.Fatal(err)
		}
		select {
		case <-call.Gone():
			t.Logf("%s: the node saw it after %s", name, time.Since(left))
		case <-time.After(time.Second):
			t.Errorf("%s: a second after its client left the node still works on the search", name)
		}
	}
	f("closed", func(c *wireConn) error { return c.Close() })
	f("reset", func(c *wireConn) error { return errors.Join(c.SetLinger(0), c.Close()) })
	f("half-closed", func(c *wireConn) error { return c.CloseWrite() })
	for _, write := range writes { // whose clients left before those of the searches
		select {
		case <-write.Gone():
			t.Errorf("%s: the write was given up when its client left", write.Path)
		default:
		}
	}
	close(goOn)
	until(t, 10*time.Second, func(ctx context.Context) error {
		must(t, client, http.MethodPost, c.URL()+"/i/_refresh", "")
		a, err := ask(ctx, client, http.MethodPost, c.URL()+"/i/_count", `{"query":{"ids":{"values":["closed","reset","half-closed"]}}}`)
		if err == nil && !strings.Contains(string(a.body), `"count":3`) {
			err = fmt.Errorf("not all documents are there: %s", a.body)
		}
		return err
	})
}

func TestExpectIsAnsweredAfterTheChecks(t *testing.T) {
	c := estest.New(t, estest.Options{})
	fill(t, newClient(t), c.URL(), "medcl")
	g := newSite(t, c.URL()).start()
	awaitNodes(t, g, 1)
	// A scroll is not cached, so its body is not needed before the limit has been asked.
	const scroll = "/medcl/_search?scroll=1m"
	f := func(target string, length int, want string) *wireConn {
		t.Helper()
		conn := dial(t, g.addr)
		conn.send(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", target, length))
		if got := conn.readHead(t).line; !strings.HasPrefix(got, want) {
			t.Errorf("POST %s with %d bytes: first line %q, want %q", target, length, got, want)
		}
		return conn
	}
	f("/_bulk", 200<<20, "HTTP/1.1 413 ")
	until(t, time.Minute, func(ctx context.Context) error {
		a, err := g.ask(ctx, http.MethodPost, g.url+scroll, "{}")
		if err == nil && a.status != http.StatusTooManyRequests {
			err = fmt.Errorf("the limit is not reached: status %d", a.status)
		}
		return err
	})
	f(scroll, 2, "HTTP/1.1 429 ")
	conn := f("/medcl/_doc", 7, "HTTP/1.1 100 ")
	conn.send(t, `{"n":1}`)
	if got := conn.readHead(t).line; !strings.HasPrefix(got, "HTTP/1.1 201 ") {
		t.Errorf("after 100 and the body: %q, want 201", got)
	}
	denied := newPlainSite(t, c.URL(), "      - request_header_filter: {include: {X-Never: sent}}\n").start()
	conn = dial(t, denied.addr)
	conn.send(t, "POST /denied/_doc HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
	if got := conn.readHead(t).line; !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("where a rule denies: first line %q, want 403", got)
	}
	for _, call := range c.Calls() {
		if call.Path == "/_bulk" || call.Path == "/denied/_doc" || call.Header.Get("Expect") != "" {
			t.Errorf("the node got %s with Expect %q", call, call.Header.Get("Expect"))
		}
	}
}

// curl announces what it is about to send and waits: it is told to go on (rekby/lets-proxy#58), before it would give up waiting.
func TestCurlNeedNotWait(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		searchtest.Require(t, "curl is not installed")
	}
	c := estest.New(t, estest.Options{})
	client := newClient(t)
	fill(t, client, c.URL(), "i")
	g := newPlainSite(t, c.URL(), "").start()
	awaitNodes(t, g, 1)
	for _, size := range []int{2 << 10, 2 << 20} {
		for _, framing := range []string{"X-Length: announced", "Transfer-Encoding: chunked"} {
			file := filepath.Join(t.TempDir(), "body")
			if err := os.WriteFile(file, []byte(`{"text":"`+strings.Repeat("x", size)+`"}`), 0o600); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			out, err := exec.CommandContext(t.Context(), "curl", "-sS", "--noproxy", "*", "--max-time", "60", "--expect100-timeout", "50", "-o", os.DevNull, "-w", "%{http_code}",
				"-H", "Expect: 100-continue", "-H", "Content-Type: application/json", "-H", framing, "--data-binary", "@"+file, g.url+"/i/_doc").Output()
			if took := time.Since(began); err != nil || string(out) != "201" || took > 25*time.Second {
				t.Errorf("%d bytes, %s: status %s after %s, %v", size, framing, out, took, err)
			}
		}
	}
}
