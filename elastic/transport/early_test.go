package transport

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

const tooLarge = "HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 5\r\n\r\nlarge"

// zeros is an endless stream.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// readHeadOnly reads the head of a request and leaves the body.
func readHeadOnly(r *bufio.Reader) error {
	for {
		line, err := r.ReadString('\n')
		if err != nil || line == "\r\n" {
			return err
		}
	}
}

// TestEarlyAnswer meets a node that refuses a body of which it has read nothing (elastic/elasticsearch#2902), and then
// closes, or keeps the connection open without reading on.
func TestEarlyAnswer(t *testing.T) {
	const size = 40 << 20
	body := make([]byte, size)
	f := func(name string, times int, stays bool, req func() *Request) {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			n := node(t, Options{Addr: serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
				if readHeadOnly(r) == nil {
					_, _ = io.WriteString(c, tooLarge)
				}
				if stays {
					<-done
				}
			})})
			defer close(done)
			resp := &Response{}
			for i := range times {
				if err := n.Do(req(), resp); err != nil {
					t.Fatalf("try %d: %v", i, err)
				}
				if resp.Status != 413 || string(resp.Body) != "large" {
					t.Fatalf("try %d: %d %q", i, resp.Status, resp.Body)
				}
			}
			if s := n.Stats(); s.Open != 0 || s.Dials != uint64(times) {
				t.Errorf("a connection on which half a request stands was kept: %+v", s)
			}
		})
	}
	bytesBody := func() *Request { return &Request{Method: []byte("POST"), Target: []byte("/_bulk"), Body: body} }
	stream := func(length int64) func() *Request {
		return func() *Request {
			return &Request{Method: []byte("POST"), Target: []byte("/_bulk"), Stream: zeros{}, StreamLength: length}
		}
	}
	f("bytes, closes", 100, false, bytesBody)
	f("stream, closes", 100, false, stream(size))
	f("chunked, closes", 100, false, stream(-1))
	f("bytes, stays", 10, true, bytesBody)
	f("stream, stays", 10, true, stream(size))
	f("chunked, stays", 10, true, stream(-1))
}

// A tornConn writes half of what it is given and then fails.
type tornConn struct{ net.Conn }

func (c tornConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p[:len(p)/2])
	if err == nil {
		err = syscall.EPIPE
	}
	return n, err
}

func TestAnswerToARequestThatCouldNotBeWritten(t *testing.T) {
	n := node(t, Options{
		Addr: serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if readHeadOnly(r) == nil {
				_, _ = io.WriteString(c, tooLarge)
			}
			_, _ = io.Copy(io.Discard, r)
		}),
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return tornConn{c}, err
		},
	})
	if resp := do(t, n, post(string(make([]byte, 1000)))); resp.Status != 413 || string(resp.Body) != "large" {
		t.Errorf("%d %q", resp.Status, resp.Body)
	}
	if s := n.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// A stalled stream gives nothing until it is interrupted.
type stalled struct {
	once sync.Once
	end  chan struct{}
}

var errInterrupted = errors.New("interrupted")

func (s *stalled) Read([]byte) (int, error) { <-s.end; return 0, errInterrupted }
func (s *stalled) Interrupt()               { s.once.Do(func() { close(s.end) }) }

func TestEarlyAnswerInterruptsTheStream(t *testing.T) {
	n := node(t, Options{Addr: serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if readHeadOnly(r) == nil {
			_, _ = io.WriteString(c, tooLarge)
		}
		_, _ = r.ReadByte()
	})})
	req := &Request{Method: []byte("POST"), Target: []byte("/"), Stream: &stalled{end: make(chan struct{})}, StreamLength: 100}
	if resp := do(t, n, req); resp.Status != 413 || string(resp.Body) != "large" {
		t.Errorf("%d %q", resp.Status, resp.Body)
	}
	if s := n.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// A goneConn is one that the node has closed and whose writes wait until they are given up.
type goneConn struct {
	net.Conn
	once  sync.Once
	given chan struct{} // is closed when writes are given up
}

func (c *goneConn) Read([]byte) (int, error) { return 0, io.EOF }

func (c *goneConn) Write([]byte) (int, error) { <-c.given; return 0, os.ErrDeadlineExceeded }

func (c *goneConn) SetWriteDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(time.Now()) {
		c.once.Do(func() { close(c.given) })
	}
	return nil
}

// TestStreamThatNobodyReadIsNotInterrupted meets a connection that is found to be closed before anything was written: the request
// goes elsewhere, and its stream must be as it was.
func TestStreamThatNobodyReadIsNotInterrupted(t *testing.T) {
	n := node(t, Options{Addr: "127.0.0.1:1", Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, nodes := net.Pipe()
		t.Cleanup(func() { nodes.Close() })
		return &goneConn{Conn: ours, given: make(chan struct{})}, nil
	}})
	s := &stalled{end: make(chan struct{})}
	if e := fails(t, n, &Request{Method: []byte("POST"), Target: []byte("/_bulk"), Stream: s, StreamLength: 2 << 20}); e.Written != 0 || e.Source {
		t.Errorf("%+v", *e)
	}
	select {
	case <-s.end:
		t.Error("the stream was interrupted")
	default:
	}
}

// A stubborn stream gives nothing until it is interrupted, and then goes on for ever.
type stubborn struct{ stalled }

func (s *stubborn) Read(p []byte) (int, error) { <-s.end; clear(p); return len(p), nil }

func TestEarlyAnswerOverTLS(t *testing.T) {
	ca := issue(t, nil, true)
	leaf := issue(t, ca, false)
	cfg, err := TLSConfig(TLSOptions{CA: ca.certPEM()})
	if err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}}}
	done := make(chan struct{})
	n := node(t, Options{TLS: cfg, Addr: serve(t, func(_ int, raw net.Conn, _ *bufio.Reader) {
		c := tls.Server(raw, server)
		if readHeadOnly(bufio.NewReader(c)) == nil {
			_, _ = io.WriteString(c, tooLarge)
		}
		<-done
	})})
	defer close(done)
	for _, stream := range []io.Reader{zeros{}, &stubborn{stalled{end: make(chan struct{})}}} {
		req := &Request{Method: []byte("POST"), Target: []byte("/"), Stream: stream, StreamLength: -1}
		if resp := do(t, n, req); resp.Status != 413 || string(resp.Body) != "large" {
			t.Errorf("%d %q", resp.Status, resp.Body)
		}
	}
}

func TestNodeThatClosesWhileTheBodyIsWritten(t *testing.T) {
	n := node(t, Options{Addr: serve(t, func(_ int, _ net.Conn, r *bufio.Reader) { _ = readHeadOnly(r) })})
	for _, req := range []*Request{
		{Method: []byte("POST"), Target: []byte("/"), Body: bytes.Repeat([]byte("x"), 40<<20)},
		{Method: []byte("POST"), Target: []byte("/"), Stream: zeros{}, StreamLength: 40 << 20},
		{Method: []byte("POST"), Target: []byte("/"), Stream: &stalled{end: make(chan struct{})}, StreamLength: -1},
	} {
		e := fails(t, n, req)
		if e.Phase != Write || e.Written == 0 || e.Answered || e.Source || e.Timeout || e.Cancelled {
			t.Errorf("error %v of %+v", e, *e)
		}
	}
}
