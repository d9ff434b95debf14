package transport

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/wire"
)

// tells answers each request in chunks, one every interval.
func tells(chunks int, interval time.Duration) handler {
	return func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readRequest(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range chunks {
				<-time.After(interval)
				_, _ = io.WriteString(c, "3\r\nbit\r\n")
			}
			_, _ = io.WriteString(c, "0\r\n\r\n")
		}
	}
}

func TestPromptAnswersArePassedOnAsTheyCome(t *testing.T) {
	prompt := func() *Request {
		req := get("/_told")
		req.Prompt = true
		return req
	}
	for _, idle := range []time.Duration{0, time.Minute} {
		bubble(t, Options{IdleReadTimeout: idle, MinRate: 1, MinRateWindow: time.Minute}, tells(3, 10*time.Second), func(t *testing.T, n *Node) {
			resp := do(t, n, prompt())
			if resp.Stream == nil || resp.Length != -1 {
				t.Fatalf("not a stream: %q", resp.Body)
			}
			begun := time.Now()
			var p [100]byte
			for i := range 3 {
				got, err := resp.Stream.Read(p[:])
				if err != nil || string(p[:got]) != "bit" {
					t.Fatalf("piece %d: %q, %v", i, p[:got], err)
				}
				if at := time.Since(begun).Round(time.Second); at != time.Duration(i+1)*10*time.Second {
					t.Errorf("piece %d came after %s", i, at)
				}
			}
			if _, err := resp.Stream.Read(p[:]); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
			if s := n.Stats(); s.Idle != 1 {
				t.Errorf("the connection was not kept: %+v", s)
			}
		})
	}
	// What comes at once is whole, and so is what nobody wants promptly.
	bubble(t, Options{}, tells(3, 10*time.Millisecond), func(t *testing.T, n *Node) {
		if resp := do(t, n, prompt()); string(resp.Body) != "bitbitbit" {
			t.Errorf("quick: %q", resp.Body)
		}
	})
	bubble(t, Options{}, tells(3, 10*time.Second), func(t *testing.T, n *Node) {
		if resp := do(t, n, get("/_told")); string(resp.Body) != "bitbitbit" {
			t.Errorf("not prompt: %q", resp.Body)
		}
	})
	// A node that stalls meets the limit on the time between two pieces, not the shorter one.
	bubble(t, Options{IdleReadTimeout: 5 * time.Second}, tells(3, time.Minute), func(t *testing.T, n *Node) {
		resp := do(t, n, prompt())
		begun := time.Now()
		if _, err := resp.Stream.Read(make([]byte, 10)); !errors.Is(err, ErrTimeout) {
			t.Errorf("stalled: %v", err)
		}
		if took := time.Since(begun); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("the limit struck after %s", took)
		}
	})
}

// TestAnswerWhileTheRequestIsRead meets a node that begins its answer at once and ends it when it has read the request.
func TestAnswerWhileTheRequestIsRead(t *testing.T) {
	const size = 20 << 20
	read := make(chan int64, 1)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if readHeadOnly(r) != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			n, _ := io.CopyN(io.Discard, r, size)
			read <- n
			_, _ = io.WriteString(c, "3\r\nbye\r\n0\r\n\r\n")
		}
	})
	n := node(t, Options{Addr: addr, HeadTimeout: patience})
	for _, prompt := range []bool{false, true} {
		for _, req := range []*Request{
			{Method: []byte("POST"), Target: []byte("/_bulk/stream"), Body: make([]byte, size)},
			{Method: []byte("POST"), Target: []byte("/_bulk/stream"), Stream: io.LimitReader(zeros{}, size), StreamLength: size},
		} {
			req.Prompt = prompt
			resp := do(t, n, req)
			if got := receive(t, read, "the end of the request"); got != size {
				t.Errorf("the node read %d bytes", got)
			}
			body := resp.Body
			if resp.Stream != nil {
				body, _ = io.ReadAll(resp.Stream)
			}
			if string(body) != "hellobye" {
				t.Errorf("got %q", body)
			}
		}
	}
	if s := n.Stats(); s.Dials != 1 {
		t.Errorf("a connection was not used again: %+v", s)
	}
}

func TestHeadThatStalls(t *testing.T) {
	says := func(what string) handler {
		return func(_ int, c net.Conn, r *bufio.Reader) {
			if _, err := readRequest(r); err == nil {
				_, _ = io.WriteString(c, what)
				_, _ = r.ReadByte()
			}
		}
	}
	f := func(what string, want error, after time.Duration) {
		t.Helper()
		bubble(t, Options{HeadTimeout: time.Hour, IdleReadTimeout: 5 * time.Second}, says(what), func(t *testing.T, n *Node) {
			begun := time.Now()
			if e := fails(t, n, get("/")); !errors.Is(e, want) {
				t.Errorf("%q: %v", what, e)
			}
			if took := time.Since(begun).Round(time.Second); took != after {
				t.Errorf("%q: failed after %s", what, took)
			}
			synctest.Wait()
		})
	}
	f("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: b", ErrTimeout, 5*time.Second)
	f("-ERR unknown command\r\n", wire.ErrStatusLine, 0)
	// A node that says 103 and then works on has the time that an answer may take.
	f("HTTP/1.1 103 Early Hints\r\n\r\n", ErrTimeout, time.Hour)
}
