package transport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/wire"
)

// A canned connection answers what is written from memory, and keeps it if asked to.
type canned struct {
	answer  []byte
	step    int                 // the most bytes of one read; 0 = all
	last    func(p []byte) bool // p ends the request; nil = every write does
	keep    bool
	written bytes.Buffer

	mu    sync.Mutex // guards left; asked is told of changes
	asked *sync.Cond
	left  []byte
	begun bool
}

func newCanned(answer []byte) *canned {
	c := &canned{answer: answer}
	c.asked = sync.NewCond(&c.mu)
	return c
}

func (c *canned) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.begun {
		c.asked.Wait()
	}
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	if c.step > 0 {
		p = p[:min(len(p), c.step)]
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

func (c *canned) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keep {
		c.written.Write(p)
	}
	if c.last == nil || c.last(p) {
		c.left, c.begun = c.answer, true
		c.asked.Broadcast()
	}
	return len(p), nil
}

func (c *canned) Close() error                     { return nil }
func (c *canned) LocalAddr() net.Addr              { return nil }
func (c *canned) RemoteAddr() net.Addr             { return nil }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

func dialTo(c net.Conn) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) { return c, nil }
}

// ask gets the answer raw, read step bytes at a time, to a request with method.
func ask(t *testing.T, raw []byte, step int, method string, limit int64) (*Response, []byte, error) {
	c := newCanned(raw)
	c.step = step
	n := node(t, Options{Dial: dialTo(c), MaxBufferedBody: limit})
	resp := &Response{}
	req := get("/")
	req.Method = []byte(method)
	if err := n.Do(req, resp); err != nil {
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%T is not an *Error", err)
		}
		return nil, nil, err
	}
	if resp.Stream == nil {
		return resp, resp.Body, nil
	}
	body, err := io.ReadAll(resp.Stream)
	return resp, body, err
}

// FuzzAnswer holds that an answer that is accepted is read by net/http, the lenient model, in the same way, that it
// does not matter in which pieces it comes or whether it is buffered, and that faulty ones are refused either way.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 500 x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: 1\r\n\r\n",
		"HTTP/1.1 103 x\r\nLink: a\r\n\r\nHTTP/1.1 404 \r\ncontent-length: 0\r\nWarning: 299 a\r\nWarning: 299 b\r\n\r\n",
		"HTTP/1.0 200 OK\r\nA: b\r\n\r\nto the end",
		"HTTP/1.1 200 OK\r\nConnection: close, X-A\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "HTTP/1.1 200 OK\r\n A: b\r\n\r\n", "\x00\x00\x12\x04",
		"HTTP/1.1 400 x\r\nContent-Length: 30\r\n\r\ntoo_long_http_header_exception",
	} {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, step uint8) {
		resp, body, err := ask(t, raw, 0, "GET", 1<<20)
		_, again, errAgain := ask(t, raw, int(step), "GET", 1<<20)
		_, streamed, errStreamed := ask(t, raw, int(step), "GET", 1)
		if (err == nil) != (errAgain == nil) || (err == nil) != (errStreamed == nil) {
			t.Fatalf("%q: %v at once, %v in pieces, %v as a stream", raw, err, errAgain, errStreamed)
		}
		if err != nil {
			return
		}
		if !bytes.Equal(body, again) || !bytes.Equal(body, streamed) {
			t.Fatalf("%q: body %q at once, %q in pieces, %q as a stream", raw, body, again, streamed)
		}
		r := bufio.NewReader(bytes.NewReader(raw))
		model, err := http.ReadResponse(r, nil)
		for err == nil && model.StatusCode < 200 {
			model, err = http.ReadResponse(r, nil)
		}
		if err != nil {
			t.Fatalf("accepted %q, the model says %v", raw, err)
		}
		want, err := io.ReadAll(model.Body)
		if err != nil || model.StatusCode != resp.Status || !bytes.Equal(want, body) {
			t.Fatalf("%q: %d %q, the model has %d %q, %v", raw, resp.Status, body, model.StatusCode, want, err)
		}
		for _, field := range resp.Header.Fields() {
			if wire.HopByHop(field.Name) {
				t.Fatalf("%q: %s was passed on", raw, field.Name)
			}
			found := false
			for _, v := range model.Header.Values(string(field.Name)) {
				found = found || v == string(field.Value)
			}
			if !found {
				t.Fatalf("%q: the model does not have %q: %q", raw, field.Name, field.Value)
			}
		}
	})
}

// FuzzChunked is FuzzAnswer for the body alone.
func FuzzChunked(f *testing.F) {
	for _, s := range []string{
		"0\r\n\r\n", "2\r\nok\r\n0\r\n\r\n", "A;x=\"y\"\r\n0123456789\r\n00\r\nTook: 1\r\n\r\n", "2\nok\n0\n\n", "2 \r\nok\r\n0\r\n\r\n",
		"ffffffffffffffff\r\n", "-1\r\n", "2\r\nokay\r\n0\r\n\r\n", "1\r\na\r\n1\r\nb\r\n0\r\n\r\nrest",
	} {
		f.Add([]byte(s), uint8(3))
	}
	head := []byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	f.Fuzz(func(t *testing.T, chunks []byte, step uint8) {
		raw := append(bytes.Clone(head), chunks...)
		resp, body, err := ask(t, raw, int(step), "GET", 1<<20)
		if err != nil {
			return
		}
		model, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(model.Body)
		if err != nil || !bytes.Equal(want, body) || resp.Length != int64(len(body)) {
			t.Fatalf("%q: body %q, the model has %q, %v", chunks, body, want, err)
		}
	})
}

// FuzzRequest holds that whatever is written is exactly one request, as given, to a strict reader.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/i/_search?q=%zz;a", "es.test", "X-A", "1", "", false)
	f.Add("POST", "/_bulk", "", "Content-Length", "0", "{}\n", true)
	f.Add("PUT", "//a/%2e%2e", "h", "Connection", "x-b, close", "body", false)
	f.Add("GET", "/ HTTP/1.1\r\nA: b", "h", "A", "b", "", false)
	f.Add("GET", "/", "h\r\nA: b", "A", "b\r\n\r\nGET / HTTP/1.1", "", true)
	f.Add("GET", "/", "h", "Transfer-Encoding", "chunked", "0\r\n\r\n", true)
	f.Fuzz(func(t *testing.T, method, target, host, name, value, body string, stream bool) {
		c := newCanned([]byte("HTTP/1.1 204 x\r\n\r\n"))
		c.keep = true
		if stream {
			c.last = func(p []byte) bool { return string(p) == "0\r\n\r\n" } // no chunk with data looks so
		}
		n := node(t, Options{Addr: "node:9200", Dial: dialTo(c)})
		h := &wire.Header{}
		h.AddString(name, value)
		h.AddString("X-B", "2")
		req := &Request{Method: []byte(method), Target: []byte(target), Host: []byte(host), Header: h}
		if stream {
			req.Stream, req.StreamLength = strings.NewReader(body), -1
		} else {
			req.Body = []byte(body)
		}
		if err := n.Do(req, &Response{}); err != nil {
			if !errors.Is(err, ErrRequest) || c.written.Len() != 0 {
				t.Fatalf("%v after writing %q", err, c.written.Bytes())
			}
			return
		}
		raw := c.written.Bytes()
		r := bufio.NewReader(bytes.NewReader(raw))
		whole, err := readRequest(r)
		if err != nil || whole != string(raw) {
			t.Fatalf("wrote %q, of which %q is one request: %v", raw, whole, err)
		}
		head, rest, _ := strings.Cut(string(raw), "\r\n\r\n")
		line, fields, _ := strings.Cut(head, "\r\n")
		if line != method+" "+target+" HTTP/1.1" {
			t.Fatalf("request line %q", line)
		}
		var got wire.Header
		if strings.ContainsFunc(value+host, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return // passed on as it came, but not what the strict reader takes
		}
		if err := wire.ParseFields(&got, []byte(fields+"\r\n")); err != nil {
			t.Fatalf("wrote %q: %v", raw, err)
		}
		framing, err := wire.FramingOf(&got)
		if err != nil || got.Count("host") != 1 || framing.Chunked != stream || !stream && rest != body {
			t.Fatalf("wrote %q: %+v, %v", raw, framing, err)
		}
	})
}
