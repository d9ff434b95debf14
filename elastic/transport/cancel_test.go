package transport

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"weir/internal/wire"
)

// begin runs Do in the background and returns its error to come.
func begin(n *Node, req *Request) <-chan error {
	result := make(chan error, 1)
	go func() { result <- n.Do(req, &Response{}) }()
	return result
}

func cancelled(t testing.TB, err error, phase Phase) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !e.Cancelled || e.Timeout || e.Source || e.Phase != phase || !errors.Is(err, ErrCancelled) {
		t.Errorf("error %v, want a cancelled exchange in phase %v", err, phase)
	}
}

// eof is a node that reads a request's head and tells when the connection ends; it answers first if there is an answer.
func eof(t testing.TB, answer string) (addr string, came, gone <-chan error) {
	a, b := make(chan error, 1), make(chan error, 1)
	return serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		err := readHeadOnly(r)
		_, _ = io.WriteString(c, answer)
		a <- err
		_, err = r.ReadByte()
		b <- err
	}), a, b
}

func TestCancelWhileTheNodeWorks(t *testing.T) {
	addr, came, gone := eof(t, "")
	n := node(t, Options{Addr: addr})
	req := get("/")
	req.Cancel, req.Reuse = &wire.Cancel{}, RetryFresh
	result := begin(n, req)
	receive(t, came, "request")
	start := time.Now()
	req.Cancel.Fire()
	if err := receive(t, gone, "end of the connection"); err == nil {
		t.Error("the node read on")
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("the node learned of it after %v", d)
	}
	cancelled(t, receive(t, result, "result"), Head)
	if s := n.Stats(); s.Open != 0 || s.Dials != 1 {
		t.Errorf("%+v", s)
	}
}

func TestCancelWhileALongBodyIsWritten(t *testing.T) {
	came := make(chan error, 2)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		came <- readHeadOnly(r)
		buf := make([]byte, 1<<10)
		for {
			if _, err := r.Read(buf); err != nil {
				return
			}
		}
	})
	n := node(t, Options{Addr: addr})
	for _, stream := range []io.Reader{zeros{}, &stalled{end: make(chan struct{})}} {
		req := &Request{Method: []byte("POST"), Target: []byte("/"), Stream: stream, StreamLength: -1, Cancel: &wire.Cancel{}}
		result := begin(n, req)
		receive(t, came, "request")
		req.Cancel.Fire()
		cancelled(t, receive(t, result, "result"), Write)
	}
}

func TestCancelBeforeTheNodeWasAsked(t *testing.T) {
	addr, seen, open := gated(t)
	n := node(t, Options{Addr: addr, MaxConns: 1})
	first := begin(n, get("/1"))
	receive(t, seen, "request")
	waiting := get("/2")
	waiting.Cancel = &wire.Cancel{}
	result := begin(n, waiting)
	eventually(t, "exchange waits", func() bool { return n.Stats().Waiting == 1 })
	waiting.Cancel.Fire()
	cancelled(t, receive(t, result, "result"), Wait)
	open <- struct{}{}
	if err := receive(t, first, "answer"); err != nil {
		t.Error(err)
	}
	// One that was cancelled before it began must not use up the pooled connection's good name either.
	e := fails(t, n, waiting)
	if !e.Cancelled || e.Written != 0 {
		t.Errorf("%+v", *e)
	}

	dialing := node(t, Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	req := get("/")
	req.Cancel = &wire.Cancel{}
	result = begin(dialing, req)
	eventually(t, "dial", func() bool { return dialing.Stats().Dials == 1 })
	req.Cancel.Fire()
	cancelled(t, receive(t, result, "result"), Dial)
}

func TestCancelWhileTheBodyIsRead(t *testing.T) {
	addr, came, gone := eof(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
	n := node(t, Options{Addr: addr, MaxBufferedBody: 10})
	req := get("/")
	req.Cancel = &wire.Cancel{}
	resp := do(t, n, req)
	receive(t, came, "request")
	var wg sync.WaitGroup
	wg.Go(func() {
		got, err := io.ReadAll(resp.Stream)
		cancelled(t, err, Body)
		if string(got) != "abc" {
			t.Errorf("read %q", got)
		}
	})
	req.Cancel.Fire()
	receive(t, gone, "end of the connection")
	wg.Wait()
	if s := n.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

func TestCancelAfterTheEndSparesTheConnection(t *testing.T) {
	f := func(limit int64) {
		t.Helper()
		n := node(t, Options{Addr: script(t, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"), MaxBufferedBody: limit})
		req := get("/")
		req.Cancel = &wire.Cancel{}
		resp := do(t, n, req)
		if resp.Stream != nil {
			if _, err := io.ReadAll(resp.Stream); err != nil {
				t.Error(err)
			}
		}
		req.Cancel.Fire()
		resp = do(t, n, get("/"))
		if !resp.Reused {
			t.Error("a cancel that came too late closed the connection of the next exchange")
		}
		resp.Reset()
	}
	f(10)
	f(1)
}

// A firing connection cancels the exchange while it gives the last bytes of the answer.
type firing struct {
	*canned
	cancel *wire.Cancel
}

func (c firing) Read(p []byte) (int, error) { c.cancel.Fire(); return c.canned.Read(p) }

func TestCancelAtTheLastMomentEndsTheConnection(t *testing.T) {
	cancel := &wire.Cancel{}
	n := node(t, Options{Dial: dialTo(firing{newCanned([]byte(okAnswer)), cancel})})
	req := get("/")
	req.Cancel = cancel
	if resp := do(t, n, req); string(resp.Body) != "ok" {
		t.Errorf("the answer was there, but the body is %q", resp.Body)
	}
	if s := n.Stats(); s.Open != 0 {
		t.Errorf("a closed connection went back to the pool: %+v", s)
	}
}

func TestClosedStreamEndsTheConnection(t *testing.T) {
	addr, came, gone := eof(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
	n := node(t, Options{Addr: addr, MaxBufferedBody: 10})
	resp := do(t, n, get("/"))
	receive(t, came, "request")
	stream := resp.Stream
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
	receive(t, gone, "end of the connection")
	if _, err := stream.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("reading on gave %v", err)
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}

	// Reset does it as well.
	addr, came, gone = eof(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
	resp = do(t, node(t, Options{Addr: addr, MaxBufferedBody: 10}), get("/"))
	receive(t, came, "request")
	resp.Reset()
	receive(t, gone, "end of the connection")
}
