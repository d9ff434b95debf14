package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"weir/internal/wire"
)

// recorder is a node that answers 200 and passes on what it read.
func recorder(t testing.TB) (string, <-chan string) {
	seen := make(chan string, 16)
	return serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			raw, err := readRequest(r)
			if err != nil {
				return
			}
			seen <- raw
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
				return
			}
		}
	}), seen
}

func TestRequestIsWrittenAsGiven(t *testing.T) {
	addr, seen := recorder(t)
	n := node(t, Options{Addr: addr})
	f := func(req *Request, want string) {
		t.Helper()
		do(t, n, req)
		if diff := cmp.Diff(strings.ReplaceAll(want, "\n", "\r\n"), receive(t, seen, "request")); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	h := func(pairs ...string) *wire.Header {
		h := &wire.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.AddString(pairs[i], pairs[i+1])
		}
		return h
	}
	m := func(method string, r *Request) *Request {
		r.Method, r.Host = []byte(method), []byte("es.test")
		return r
	}

	// The target goes out byte for byte, whatever a URL library would make of it.
	for _, target := range []string{
		"/", "//i/_count", "/%3Clogs-%7Bnow%2Fd%7D%3E/_search", "/i/_doc/..%2f..%2Fx", "/a,b:c*/_search?q=%zz;x=+y&", "/\xc3\xa9",
		"http://es.test/x", "*",
	} {
		f(m("GET", get(target)), "GET "+target+" HTTP/1.1\nHost: es.test\n\n")
	}

	// Order and spelling of the fields stay, doubles included; nothing is added.
	f(m("GET", &Request{Target: []byte("/"), Header: h("x-opaque-id", "1", "Accept", "*/*", "X-A", "", "x-OPAQUE-id", "2 \xff")}),
		"GET / HTTP/1.1\nHost: es.test\nx-opaque-id: 1\nAccept: */*\nX-A: \nx-OPAQUE-id: 2 \xff\n\n")

	// What belongs to the client's connection, and what the transport writes itself, stays behind.
	f(m("GET", &Request{Target: []byte("/"), Header: h("Host", "gw", "Connection", "close, X-Hop", "Upgrade", "TLS/1.2", "x-hop", "1",
		"TE", "trailers", "Keep-Alive", "5", "Content-Length", "7", "Transfer-Encoding", "chunked", "Expect", "100-continue",
		"Proxy-Authorization", "x", "Cookie", "c")}),
		"GET / HTTP/1.1\nHost: es.test\nCookie: c\n\n")

	// Extra fields come behind and replace; a client's Connection field cannot strike them out.
	f(m("GET", &Request{
		Target: []byte("/"), Header: h("authorization", "theirs", "A", "1", "AUTHORIZATION", "theirs"),
		Extra: []wire.Field{{Name: []byte("Authorization"), Value: []byte("ours")}},
	}), "GET / HTTP/1.1\nHost: es.test\nA: 1\nAuthorization: ours\n\n")
	f(m("GET", &Request{
		Target: []byte("/"), Header: h("A", "1", "Connection", "authorization"),
		Extra: []wire.Field{
			{Name: []byte("Authorization"), Value: []byte("ours")},
			{Name: []byte("Via"), Value: []byte("1.1 weir")},
			{Name: []byte("Host"), Value: []byte("x")},
		},
	}), "GET / HTTP/1.1\nHost: es.test\nA: 1\nAuthorization: ours\nVia: 1.1 weir\n\n")

	// Bodies, also of GET and DELETE, and their absence.
	f(m("GET", &Request{Target: []byte("/"), Body: []byte("{}")}), "GET / HTTP/1.1\nHost: es.test\nContent-Length: 2\n\n{}")
	f(m("DELETE", &Request{Target: []byte("/"), Body: []byte("{}")}), "DELETE / HTTP/1.1\nHost: es.test\nContent-Length: 2\n\n{}")
	f(m("PUT", get("/new")), "PUT /new HTTP/1.1\nHost: es.test\nContent-Length: 0\n\n")
	f(m("POST", get("/i/_refresh")), "POST /i/_refresh HTTP/1.1\nHost: es.test\nContent-Length: 0\n\n")
	f(m("DELETE", get("/i")), "DELETE /i HTTP/1.1\nHost: es.test\n\n")
	f(m("DELETE", &Request{Target: []byte("/i"), HasBody: true}), "DELETE /i HTTP/1.1\nHost: es.test\nContent-Length: 0\n\n")

	// Streams.
	f(m("POST", &Request{Target: []byte("/"), Stream: strings.NewReader("abc"), StreamLength: 3}),
		"POST / HTTP/1.1\nHost: es.test\nContent-Length: 3\n\nabc")
	f(m("POST", &Request{Target: []byte("/"), Stream: strings.NewReader("abcdef"), StreamLength: 3}),
		"POST / HTTP/1.1\nHost: es.test\nContent-Length: 3\n\nabc")
	f(m("POST", &Request{Target: []byte("/"), Stream: strings.NewReader(""), StreamLength: 0}),
		"POST / HTTP/1.1\nHost: es.test\nContent-Length: 0\n\n")
	f(m("POST", &Request{Target: []byte("/"), Stream: iotest.OneByteReader(strings.NewReader("ab")), StreamLength: -1}),
		"POST / HTTP/1.1\nHost: es.test\nTransfer-Encoding: chunked\n\n1\na\n1\nb\n0\n\n")
	f(m("POST", &Request{Target: []byte("/"), Stream: iotest.DataErrReader(strings.NewReader("abcdefghijklmnopqrst")), StreamLength: -1}),
		"POST / HTTP/1.1\nHost: es.test\nTransfer-Encoding: chunked\n\n14\nabcdefghijklmnopqrst\n0\n\n")
	f(m("POST", &Request{Target: []byte("/"), Stream: strings.NewReader(""), StreamLength: -1}),
		"POST / HTTP/1.1\nHost: es.test\nTransfer-Encoding: chunked\n\n0\n\n")

	if s := n.Stats(); s.Dials != 1 {
		t.Errorf("%d connections for requests one after another", s.Dials)
	}
}

func TestRequestBodySizes(t *testing.T) {
	addr, seen := recorder(t)
	n := node(t, Options{Addr: addr})
	f := func(size int, req *Request) {
		t.Helper()
		body := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		if req.StreamLength != 0 {
			req.Stream = bytes.NewReader(body)
		} else {
			req.Body = body
		}
		do(t, n, req)
		got := receive(t, seen, "request")
		_, got, _ = strings.Cut(got, "\r\n\r\n")
		if req.StreamLength < 0 {
			var plain strings.Builder
			for got != "" {
				line, rest, _ := strings.Cut(got, "\r\n")
				k, err := strconv.ParseInt(line, 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				plain.WriteString(rest[:k])
				got = rest[k+2:]
			}
			got = plain.String()
		}
		if got != string(body) {
			t.Errorf("body of %d bytes arrived as %d other bytes", size, len(got))
		}
	}
	for _, size := range []int{1, joinBody, joinBody + 1, maxInline, maxInline + 1, slice + 1, 3 << 20} {
		f(size, post(""))
		f(size, &Request{Method: []byte("POST"), Target: []byte("/"), StreamLength: int64(size)})
		f(size, &Request{Method: []byte("POST"), Target: []byte("/"), StreamLength: -1})
	}
	if s := n.Stats(); s.Dials != 1 {
		t.Errorf("%d connections; a long body must not cost one", s.Dials)
	}
}

func TestRequestThatIsNotOneMessageIsRefused(t *testing.T) {
	n := node(t, Options{Addr: "127.0.0.1:1"})
	f := func(req *Request) {
		t.Helper()
		if e := fails(t, n, req); !errors.Is(e, ErrRequest) || e.Written != 0 {
			t.Errorf("error %v", e)
		}
	}
	field := func(name, value string) *Request {
		r := get("/")
		r.Header = &wire.Header{}
		r.Header.AddString(name, value)
		return r
	}
	f(&Request{Target: []byte("/")})
	f(&Request{Method: []byte("GET /x HTTP/1.1\r\nA:"), Target: []byte("/")})
	f(get(""))
	f(get("/ HTTP/1.1\r\nA: b"))
	f(get("/a b"))
	f(get("/a\x00"))
	f(&Request{Method: []byte("GET"), Target: []byte("/"), Host: []byte("a\r\nB: c")})
	f(field("A\r\nB", "c"))
	f(field("", "c"))
	f(field("A ", "c"))
	f(field("A", "b\r\nC: d"))
	f(field("A", "b\nC: d"))
	f(field("A", "b\x00"))
	f(&Request{Method: []byte("GET"), Target: []byte("/"), Extra: []wire.Field{{Name: []byte("A"), Value: []byte("b\r")}}})
	if s := n.Stats(); s.Dials != 0 {
		t.Errorf("%d dials for requests that cannot be written", s.Dials)
	}
}

func TestHostDefaultsToTheNode(t *testing.T) {
	addr, seen := recorder(t)
	do(t, node(t, Options{Addr: addr}), get("/"))
	if got := receive(t, seen, "request"); got != "GET / HTTP/1.1\r\nHost: "+addr+"\r\n\r\n" {
		t.Errorf("got %q", got)
	}
}

// failingReader gives some bytes and then an error.
func failingReader(s string, err error) io.Reader {
	return io.MultiReader(strings.NewReader(s), iotest.ErrReader(err))
}

type panicking struct{}

func (panicking) Read(p []byte) (int, error) { return int(p[len(p)]), nil }

func TestStreamThatFailsIsNotTheNodesFault(t *testing.T) {
	ended := make(chan error, 1)
	addr := serve(t, func(_ int, _ net.Conn, r *bufio.Reader) {
		_, err := readRequest(r)
		ended <- err
	})
	n := node(t, Options{Addr: addr})
	broken := errors.New("client went away")
	f := func(stream io.Reader, length int64, want error) {
		t.Helper()
		e := fails(t, n, &Request{Method: []byte("POST"), Target: []byte("/"), Stream: stream, StreamLength: length, Reuse: RetryFresh})
		if !e.Source || e.Phase != Write || want != nil && !errors.Is(e, want) {
			t.Errorf("error %v of %+v", e, *e)
		}
		// The node must see that the request is not whole.
		if err := receive(t, ended, "end of the request"); err == nil {
			t.Error("the node took half a request for a whole one")
		}
	}
	f(failingReader("abc", broken), 6, broken)
	f(failingReader("abc", broken), -1, broken)
	f(strings.NewReader("abc"), 6, io.ErrUnexpectedEOF)
	f(panicking{}, 6, nil)
}
