package transport

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 10 * time.Second

// serve starts a node on a loopback port that runs handle for each connection, numbered from 0, and closes it then. The
// connections and the node end with the test.
func serve(t testing.TB, handle func(i int, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				handle(i, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// script serves answer to every request on every connection, which stay open.
func script(t testing.TB, answer string) string {
	return serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readRequest(r); err != nil {
				return
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	})
}

// once serves answer to the first request on each connection and closes.
func once(t testing.TB, answer string) string {
	return serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := readRequest(r); err == nil {
			_, _ = io.WriteString(c, answer)
		}
	})
}

// readRequest reads one request as it came, chunks included.
func readRequest(r *bufio.Reader) (string, error) {
	var raw strings.Builder
	length, chunked := 0, false
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		raw.WriteString(line)
		if line == "\r\n" {
			break
		}
		if v, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			n, err := wire.ParseLength([]byte(strings.TrimSuffix(v, "\r\n")))
			if err != nil {
				return "", err
			}
			length = int(n)
		}
		chunked = chunked || line == "Transfer-Encoding: chunked\r\n"
	}
	for chunked {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		raw.WriteString(line)
		n, err := strconv.ParseInt(strings.TrimSuffix(line, "\r\n"), 16, 64)
		if err != nil {
			return "", err
		}
		if _, err := io.CopyN(&raw, r, n+2); err != nil {
			return "", err
		}
		if n == 0 {
			return raw.String(), nil
		}
	}
	if _, err := io.CopyN(&raw, r, int64(length)); err != nil {
		return "", err
	}
	return raw.String(), nil
}

// node makes a Node that is closed with the test, which then fails if a connection is still taken.
func node(t testing.TB, o Options) *Node {
	t.Helper()
	n := New(o)
	t.Cleanup(func() {
		n.Close()
		if s := n.Stats(); s.Open != 0 || s.Waiting != 0 {
			t.Errorf("after Close: %+v", s)
		}
	})
	return n
}

func get(target string) *Request { return &Request{Method: []byte("GET"), Target: []byte(target)} }

func post(body string) *Request {
	return &Request{Method: []byte("POST"), Target: []byte("/i/_doc"), Body: []byte(body)}
}

// do sends req and fails the test on an error.
func do(t testing.TB, n *Node, req *Request) *Response {
	t.Helper()
	resp := &Response{}
	if err := n.Do(req, resp); err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.Target, err)
	}
	return resp
}

// fails sends req and returns the failure that must come.
func fails(t testing.TB, n *Node, req *Request) *Error {
	t.Helper()
	resp := &Response{}
	var e *Error
	if err := n.Do(req, resp); !errors.As(err, &e) {
		t.Fatalf("%s %s: error %v, want an *Error; answer %d %q", req.Method, req.Target, err, resp.Status, resp.Body)
	}
	if resp.Status != 0 || resp.Header.Len() != 0 || resp.Stream != nil {
		t.Errorf("a failed exchange left an answer: %+v", resp)
	}
	return e
}

func fieldsOf(h *wire.Header) string {
	var s strings.Builder
	for _, f := range h.Fields() {
		s.WriteString(string(f.Name) + ": " + string(f.Value) + "\n")
	}
	return s.String()
}

// receive returns what comes from ch and fails the test if nothing does.
func receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	var v T
	select {
	case v = <-ch:
	case <-ctx.Done():
		t.Fatalf("%s did not come", what)
	}
	return v
}

// eventually waits until cond holds and fails the test if it never does.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: never", what)
		}
	}
}
