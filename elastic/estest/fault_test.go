package estest_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/simtime"
)

const getClose = "GET /_count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

func TestFaultCuts(t *testing.T) {
	f := func(cut estest.Cut, body string, wantErr error) {
		t.Helper()
		c, _ := start(t, estest.Options{})
		c.Inject(estest.Fault{Cut: cut})
		conn := dial(t, c)
		write(t, conn, "POST /_count HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"+body)
		got, err := io.ReadAll(conn)
		if !errors.Is(err, wantErr) || len(got) > 0 {
			t.Errorf("cut %d: read %q, %v", cut, got, err)
		}
		call := wait(t, c, estest.Path("/_count"))
		if call.Status() != 0 {
			t.Errorf("cut %d: status %d", cut, call.Status())
		}
	}
	f(estest.ResetBeforeBody, "", syscall.ECONNRESET) // the body never comes, and is not waited for
	f(estest.ResetAfterRequest, "{}", syscall.ECONNRESET)
	f(estest.CloseAfterRequest, "{}", nil)
}

func TestFaultCloseAfterAnswer(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Cut: estest.CloseAfterAnswer})
	got := exchange(t, c, "GET /_count HTTP/1.1\r\nHost: x\r\n\r\n", "")
	if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || strings.Contains(strings.ToLower(got), "connection: close") {
		t.Errorf("answer %q", got)
	}
}

func TestFaultSelects(t *testing.T) {
	c, cl := start(t, estest.Options{Nodes: 2})
	i := c.Inject(estest.Fault{
		Method: "POST", Path: "/*/_search", Skip: 1, Times: 2, Status: 429,
		Match: func(call *estest.Call) bool { return call.Node == 0 },
	})
	f := func(method, target string, want int) {
		t.Helper()
		if r := cl.do(method, target, ""); r.status != want {
			t.Errorf("%s %s: status %d, want %d", method, target, r.status, want)
		}
	}
	f("GET", "/_all/_search", 200)
	f("POST", "/_search", 200)
	f("POST", "/_all/_search", 200) // skipped
	f("POST", "/_all/_search", 429)
	f("POST", "/_all/_search", 429)
	f("POST", "/_all/_search", 200) // used up
	if i.Hits() != 2 {
		t.Errorf("%d hits", i.Hits())
	}
}

func TestFaultOfANodeComesFirstAndGoes(t *testing.T) {
	c, cl := start(t, estest.Options{})
	c.Inject(estest.Fault{Status: 503})
	i := c.Node(0).Inject(estest.Fault{Status: 429})
	if r := cl.do("GET", "/", ""); r.status != 429 {
		t.Errorf("status %d", r.status)
	}
	i.Remove()
	if r := cl.do("GET", "/", ""); r.status != 503 {
		t.Errorf("status %d", r.status)
	}
}

func TestFaultStatuses(t *testing.T) {
	f := func(status int, contentType, inBody string) {
		t.Helper()
		c, cl := start(t, estest.Options{})
		c.Inject(estest.Fault{Status: status})
		r := cl.do("GET", "/_search", "")
		if r.status != status || r.header.Get("Content-Type") != contentType || !strings.Contains(r.body, inBody) {
			t.Errorf("status %d, content type %q, body %q", r.status, r.header.Get("Content-Type"), r.body)
		}
	}
	f(429, "application/json; charset=UTF-8", `"type":"es_rejected_execution_exception"`)
	f(503, "application/json; charset=UTF-8", `"status":503}`)
	f(502, "text/html", "<title>502 Bad Gateway</title>")
	f(413, "", "")
}

func TestFaultBodyAndHeader(t *testing.T) {
	c, cl := start(t, estest.Options{})
	c.Inject(estest.Fault{Path: "/_nodes/http", Body: []byte("{garbage"), Header: []string{"X-A: 1", "X-A: 2"}})
	r := cl.do("GET", "/_nodes/http", "")
	if r.status != 200 || r.body != "{garbage" || len(r.header.Values("X-A")) != 2 {
		t.Errorf("answer %+v", r)
	}
}

func TestFaultWarnings(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Header: estest.Warnings(400)})
	got := exchange(t, c, getClose, "")
	if strings.Count(got, "\r\nWarning: 299 ") != 400 || len(got) < 20_000 {
		t.Errorf("%d bytes, %q...", len(got), got[:200])
	}
}

func TestFaultRaw(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Raw: []byte("\x00\x00\x04\x00")})
	if got := exchange(t, c, getClose, ""); got != "\x00\x00\x04\x00" {
		t.Errorf("answer %q", got)
	}
}

func TestFaultMissing(t *testing.T) {
	c, _ := start(t, estest.Options{})
	whole := exchange(t, c, getClose, "")
	c.Inject(estest.Fault{Missing: 5})
	if got := exchange(t, c, "GET /_count HTTP/1.1\r\nHost: x\r\n\r\n", ""); got != whole[:len(whole)-5] {
		t.Errorf("answer %q, want %q less five bytes", got, whole)
	}
}

func TestFaultMissingInChunks(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Body: []byte("abcdef"), Chunk: 4, Missing: 1})
	got := exchange(t, c, getClose, "")
	if !strings.HasSuffix(got, "\r\n\r\n4\r\nabcd\r\n1\r\ne\r\n") {
		t.Errorf("answer %q", got)
	}
}

func TestFaultLengthOff(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Body: []byte("abc"), LengthOff: -1})
	got := exchange(t, c, getClose, "")
	if !strings.HasSuffix(got, "content-length: 2\r\n\r\nabc") {
		t.Errorf("answer %q", got)
	}
}

func TestFaultInterim(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Interim: []int{100, 103}})
	got := exchange(t, c, getClose, "")
	if !strings.HasPrefix(got, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n") {
		t.Errorf("answer %q", got)
	}
}

func TestFaultEarlyAnswersBeforeTheBody(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Early: true, Status: 413})
	got := exchange(t, c, "POST /_bulk HTTP/1.1\r\nHost: x\r\nContent-Length: 40000000\r\n\r\n", "")
	if !strings.HasPrefix(got, "HTTP/1.1 413 ") {
		t.Errorf("answer %q", got)
	}
}

func TestFaultPauseBetweenChunks(t *testing.T) {
	c, _ := start(t, estest.Options{})
	pause := make(chan struct{})
	c.Inject(estest.Fault{Body: []byte("abcdef"), Chunk: 2, Pause: pause})
	conn := dial(t, c)
	write(t, conn, getClose)
	if got := readUntil(t, conn, "ab\r\n"); strings.Contains(got, "cd") {
		t.Errorf("answer %q before the pause", got)
	}
	pause <- struct{}{}
	if got := readUntil(t, conn, "cd\r\n"); strings.Contains(got, "ef") {
		t.Errorf("answer %q before the second pause", got)
	}
	close(pause)
	if got := readUntil(t, conn, ""); got != "2\r\nef\r\n0\r\n\r\n" {
		t.Errorf("end of the answer %q", got)
	}
}

func TestClientGoneBetweenChunks(t *testing.T) {
	c, _ := start(t, estest.Options{})
	c.Inject(estest.Fault{Body: []byte("abcdef"), Chunk: 2, Pause: make(chan struct{})})
	conn := dial(t, c)
	write(t, conn, getClose)
	readUntil(t, conn, "ab\r\n")
	_ = conn.Close()
	closes(t, "notice of the client's leaving", wait(t, c, estest.Path("/_count")).Gone())
}

func TestFaultHoldOneByOne(t *testing.T) {
	c, cl := start(t, estest.Options{})
	hold := make(chan struct{})
	c.Inject(estest.Fault{Hold: hold})
	statuses := make(chan int, 2)
	for range 2 {
		go func() {
			r, _ := cl.try("GET", "/", "")
			statuses <- r.status
		}()
	}
	hold <- struct{}{}
	if got := <-statuses; got != 200 {
		t.Errorf("status %d", got)
	}
	select {
	case <-statuses:
		t.Error("the second call was not held")
	default:
	}
	hold <- struct{}{}
	<-statuses
}

func TestFaultDelayGoesByTheClock(t *testing.T) {
	clock := estest.NewManualClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c, cl := start(t, estest.Options{Clock: clock})
	c.Inject(estest.Fault{Path: "/_search", Delay: time.Minute})
	answered := make(chan reply, 1)
	go func() {
		r, _ := cl.try("GET", "/_search", "")
		answered <- r
	}()
	wait(t, c, estest.Path("/_search"))
	for pending := true; pending; { // the call is recorded just before it starts to wait
		clock.Advance(time.Minute)
		select {
		case r := <-answered:
			pending = false
			if r.status != 200 || r.get(t, "took") == 0.0 {
				t.Errorf("answer %+v", r)
			}
		case <-time.After(time.Millisecond):
		}
	}
}

func TestFaultPartialSearch(t *testing.T) {
	c, cl := start(t, estest.Options{})
	cl.do("PUT", "/i", `{"settings":{"number_of_shards":3}}`)
	c.Inject(estest.Fault{FailedShards: 2, TimedOut: true})
	for _, target := range []string{"/i/_search", "/i/_count"} {
		r := cl.do("GET", target, "")
		if r.status != 200 || r.get(t, "_shards", "failed") != 2.0 || r.get(t, "_shards", "successful") != 1.0 {
			t.Errorf("%s: %d %s", target, r.status, r.body)
		}
	}
	if r := cl.do("GET", "/i/_search", ""); r.get(t, "timed_out") != true {
		t.Errorf("answer %s", r.body)
	}
}

// A request that a fault answers is not executed.
func TestFaultAnswersDoNotExecute(t *testing.T) {
	c, cl := start(t, estest.Options{})
	c.Inject(estest.Fault{Method: "PUT", Status: 503})
	cl.do("PUT", "/i/_doc/1", `{"a":1}`)
	if r := cl.do("HEAD", "/i", ""); r.status != 404 {
		t.Errorf("the index was made: status %d", r.status)
	}
}

// A node that loses its answer has executed the request.
func TestLostAnswerExecutes(t *testing.T) {
	c, cl := start(t, estest.Options{})
	c.Inject(estest.Fault{Method: "PUT", Missing: 1 << 20})
	if _, err := cl.try("PUT", "/i/_doc/1", `{"a":1}`); err == nil {
		t.Error("the answer came")
	}
	if r := cl.do("GET", "/i/_doc/1", ""); r.status != 200 {
		t.Errorf("status %d", r.status)
	}
}

func TestInMemoryInABubble(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		c, cl := start(t, estest.Options{InMemory: true, Nodes: 2})
		c.Node(1).Inject(estest.Fault{Delay: time.Hour})
		begin := time.Now()
		if r := cl.do("GET", "/", ""); r.status != 200 {
			t.Errorf("status %d", r.status)
		}
		conn, err := c.Dial(t.Context(), "tcp", c.Node(1).Addr())
		if err != nil {
			t.Fatal(err)
		}
		write(t, conn, getClose)
		if got := readUntil(t, conn, ""); !strings.HasPrefix(got, "HTTP/1.1 200 OK") || time.Since(begin) != time.Hour {
			t.Errorf("after %v: %q", time.Since(begin), got)
		}
		_ = conn.Close()
		c.Node(1).Stop()
		if _, err := c.Dial(t.Context(), "tcp", c.Node(1).Addr()); err == nil {
			t.Error("the stopped node takes connections")
		}
		cl.http.CloseIdleConnections()
		c.Close()
	})
}

func TestScript(t *testing.T) {
	c := estest.New(t, estest.Options{})
	seen := 0
	c.Script(func(call *estest.Call) *estest.Fault {
		if seen++; call.Path == "/a" {
			return &estest.Fault{Status: 400 + seen}
		}
		return nil
	})
	in := c.Inject(estest.Fault{Status: 499})
	for _, each := range []struct {
		path string
		want int
	}{{"/a", 401}, {"/b", 499}, {"/a", 403}} {
		resp, err := http.Get(c.URL() + each.path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != each.want {
			t.Errorf("%s: %d, want %d", each.path, resp.StatusCode, each.want)
		}
	}
	if in.Hits() != 1 {
		t.Errorf("the injected fault hit %d times", in.Hits())
	}
}
