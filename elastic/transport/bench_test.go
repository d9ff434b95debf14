package transport

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"weir/internal/wire"
)

// echo is a node that answers size bytes to every request without a body, and allocates nothing for it.
func echo(t testing.TB, size int) string {
	answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nX-elastic-product: Elasticsearch\r\n"+
		"content-type: application/json; charset=UTF-8\r\ncontent-length: %d\r\n\r\n%s", size, bytes.Repeat([]byte("x"), size))
	return serve(t, func(_ int, c net.Conn, _ *bufio.Reader) {
		buf := make([]byte, 64<<10)
		for have := 0; ; {
			n, err := c.Read(buf[have:])
			if err != nil {
				return
			}
			have += n
			if bytes.HasSuffix(buf[:have], []byte("\r\n\r\n")) || bytes.HasSuffix(buf[:have], []byte("}}")) {
				have = 0
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}
	})
}

func search() *Request {
	h := &wire.Header{}
	h.AddString("Accept", "application/json")
	h.AddString("Content-Type", "application/json")
	h.AddString("User-Agent", "elasticsearch-py/7.17.9 (Python 3.11)")
	h.AddString("Connection", "keep-alive")
	return &Request{
		Method: []byte("POST"), Target: []byte("/logs-1/_search?ignore_unavailable=true"), Host: []byte("es.test:9200"),
		Header: h, Extra: []wire.Field{{Name: []byte("Via"), Value: []byte("1.1 weir")}},
		Body: []byte(`{"query":{"match_all":{}}}`), Cancel: &wire.Cancel{}, Reuse: RetryFresh,
	}
}

func benchmarkDo(b *testing.B, size int, o Options) {
	o.Addr = echo(b, size)
	n := node(b, o)
	req, resp := search(), &Response{}
	b.ReportAllocs()
	for b.Loop() {
		if err := n.Do(req, resp); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDo1k(b *testing.B)   { benchmarkDo(b, 1000, Options{}) }
func BenchmarkDo100k(b *testing.B) { benchmarkDo(b, 100_000, Options{}) }
func BenchmarkDoLimits(b *testing.B) {
	benchmarkDo(b, 1000, Options{HeadTimeout: time.Minute, WriteTimeout: time.Minute, IdleReadTimeout: time.Minute})
}

// BenchmarkDoNoNetwork is the part of an exchange that is not the kernel's.
func BenchmarkDoNoNetwork(b *testing.B) {
	n := node(b, Options{Dial: dialTo(newCanned([]byte("HTTP/1.1 200 OK\r\nX-elastic-product: Elasticsearch\r\n" +
		"content-type: application/json; charset=UTF-8\r\ncontent-length: 2\r\n\r\nok")))})
	req, resp := search(), &Response{}
	b.ReportAllocs()
	for b.Loop() {
		if err := n.Do(req, resp); err != nil {
			b.Fatal(err)
		}
	}
}

func TestWarmExchangesDoNotAllocate(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	f := func(name string, size int, o Options, change func(*Request)) {
		t.Helper()
		o.Addr = echo(t, size)
		n := node(t, o)
		req, resp := search(), &Response{}
		if change != nil {
			change(req)
		}
		exchange := func() {
			if err := n.Do(req, resp); err != nil {
				t.Fatal(err)
			}
		}
		exchange()
		if got := testing.AllocsPerRun(1000, exchange); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
	f("small", 1000, Options{}, nil)
	f("empty", 0, Options{}, nil)
	f("large", 100_000, Options{}, nil)
	f("limits", 1000, Options{HeadTimeout: time.Minute, WriteTimeout: time.Minute, IdleReadTimeout: time.Minute}, nil)
	f("looked at", 1000, Options{}, func(r *Request) { r.Reuse = NoRetry })
	f("deadline", 1000, Options{}, func(r *Request) { r.Deadline = time.Now().Add(time.Hour) })
	f("long body", 1000, Options{}, func(r *Request) { r.Body = append(make([]byte, 20<<10), "}}"...) })
}

// TestIdleConnectionsHoldNoBuffers keeps a thousand of them cheap.
func TestIdleConnectionsHoldNoBuffers(t *testing.T) {
	n := node(t, Options{Addr: echo(t, 100_000)})
	do(t, n, search())
	if c := idleConn(n); c.scratch != nil || c.parts[0] != nil || c.vec != nil {
		t.Error("an idle connection holds on to buffers")
	}

	n = node(t, Options{Addr: script(t, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 100<<10)+"\r\nContent-Length: 0\r\n\r\n")})
	do(t, n, get("/"))
	if s := n.scratch.Get().(*scratch); len(s.in) > maxKeptScratch {
		t.Errorf("a buffer of %d bytes was kept", len(s.in))
	}
}
