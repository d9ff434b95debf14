package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/simtime"
)

// A handler serves connection i of a node until it returns.
type handler func(i int, c net.Conn, r *bufio.Reader)

// slow answers each request after the time that its target names; to the target 0 it never answers.
func slow(_ int, c net.Conn, r *bufio.Reader) {
	for {
		raw, err := readRequest(r)
		if err != nil {
			return
		}
		d, err := time.ParseDuration(strings.Fields(raw)[1])
		if err != nil || d == 0 {
			_, _ = r.ReadByte()
			return
		}
		<-time.After(d)
		if _, err := io.WriteString(c, okAnswer); err != nil {
			return
		}
	}
}

// bubble runs f in simulated time, where time is exact, with a Node whose connections are pipes to handle, and waits
// until all of them have ended.
func bubble(t *testing.T, o Options, handle handler, f func(t *testing.T, n *Node)) {
	t.Helper()
	simtime.Test(t, func(t *testing.T) {
		var nodes sync.WaitGroup
		var mu sync.Mutex
		dials := 0
		if handle != nil {
			o.Dial = func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				mu.Lock()
				i := dials
				dials++
				mu.Unlock()
				nodes.Go(func() {
					defer there.Close()
					handle(i, there, bufio.NewReader(there))
				})
				return here, nil
			}
		}
		n := New(o)
		f(t, n)
		n.Close()
		nodes.Wait()
		if s := n.Stats(); s.Open != 0 {
			t.Errorf("after Close: %+v", s)
		}
	})
}

// timesOut sends req and wants a time limit to strike in phase after exactly d.
func timesOut(t *testing.T, n *Node, req *Request, phase Phase, d time.Duration) *Error {
	t.Helper()
	start := time.Now()
	e := fails(t, n, req)
	if e.Phase != phase || !e.Timeout || e.Cancelled || e.Source {
		t.Errorf("error %v of %+v", e, *e)
	}
	if got := time.Since(start); got < d || got > d+time.Millisecond {
		t.Errorf("it took %v, want %v", got, d)
	}
	return e
}

func TestHeadTimeout(t *testing.T) {
	bubble(t, Options{HeadTimeout: 5 * time.Second}, slow, func(t *testing.T, n *Node) {
		do(t, n, get("4s"))
		e := timesOut(t, n, get("6s"), Head, 5*time.Second)
		if e.Written == 0 || e.Answered {
			t.Errorf("%+v", *e)
		}
		own := get("8s")
		own.HeadTimeout = 9 * time.Second
		do(t, n, own)
		own = get("3s")
		own.HeadTimeout = 2 * time.Second
		timesOut(t, n, own, Head, 2*time.Second)
		none := get("100h")
		none.HeadTimeout = -1
		do(t, n, none)
		// A time limit must not run the request again, even though it may be.
		again := get("6s")
		again.Reuse = RetryFresh
		timesOut(t, n, again, Head, 5*time.Second)
	})
}

func TestDeadline(t *testing.T) {
	bubble(t, Options{HeadTimeout: 5 * time.Second}, slow, func(t *testing.T, n *Node) {
		req := get("4s")
		req.Deadline = time.Now().Add(3 * time.Second)
		timesOut(t, n, req, Head, 3*time.Second)
		req = get("4s")
		req.Deadline = time.Now().Add(4*time.Second + time.Millisecond)
		do(t, n, req)
		req.Deadline = time.Now()
		timesOut(t, n, req, Write, 0)
	})
}

// TestLimitsOfEarlierExchangesDoNotStrike holds for limits that are left on the socket to save timer operations.
func TestLimitsOfEarlierExchangesDoNotStrike(t *testing.T) {
	bubble(t, Options{IdleTimeout: time.Hour, WriteTimeout: 2 * time.Second}, slow, func(t *testing.T, n *Node) {
		for _, limit := range []time.Duration{5, 3, 0, 20, 0, 4} {
			req := get("3s")
			if limit > 0 {
				req.HeadTimeout = limit*time.Second + time.Millisecond
			}
			if resp := do(t, n, req); n.Stats().Dials != 1 {
				t.Fatalf("another connection: %+v, reused %v", n.Stats(), resp.Reused)
			}
			<-time.After(time.Minute)
		}
	})
}

// A paced stream gives one byte each second.
type paced struct{ left int }

func (p *paced) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	<-time.After(time.Second)
	p.left--
	b[0] = 'x'
	return 1, nil
}

func TestHeadTimeoutCountsFromTheEndOfTheUpload(t *testing.T) {
	bubble(t, Options{HeadTimeout: 5 * time.Second}, slow, func(t *testing.T, n *Node) {
		upload := func(target string) *Request {
			return &Request{Method: []byte("POST"), Target: []byte(target), Stream: &paced{20}, StreamLength: 20}
		}
		do(t, n, upload("4s"))
		e := timesOut(t, n, upload("6s"), Head, 25*time.Second)
		if e.Written < 20 {
			t.Errorf("%+v", *e)
		}
	})
}

func TestWriteTimeout(t *testing.T) {
	deaf := func(_ int, c net.Conn, _ *bufio.Reader) { <-time.After(time.Hour) }
	grace := time.Duration(answerGrace)
	bubble(t, Options{WriteTimeout: 5 * time.Second}, deaf, func(t *testing.T, n *Node) {
		timesOut(t, n, get("/"), Write, 5*time.Second+grace)
		timesOut(t, n, &Request{Method: []byte("POST"), Target: []byte("/"), Body: make([]byte, 1<<20)}, Write, 5*time.Second+grace)
		timesOut(t, n, &Request{Method: []byte("POST"), Target: []byte("/"), Stream: zeros{}, StreamLength: -1}, Write, 5*time.Second+grace)
	})
}

// TestSlowUpload holds for an upload that takes long but moves: the limit is for each write, not for all.
func TestSlowUpload(t *testing.T) {
	bubble(t, Options{WriteTimeout: 5 * time.Second, HeadTimeout: 5 * time.Second}, func(_ int, c net.Conn, r *bufio.Reader) {
		_ = readHeadOnly(r)
		buf := make([]byte, slice)
		for left := 4 * slice; left > 0; {
			n, err := r.Read(buf)
			if err != nil {
				return
			}
			left -= n
			<-time.After(time.Duration(n) * 4 * time.Second / slice)
		}
		_, _ = io.WriteString(c, okAnswer)
	}, func(t *testing.T, n *Node) {
		do(t, n, &Request{Method: []byte("POST"), Target: []byte("/"), Body: make([]byte, 4*slice)})
	})
}

func TestIdleReadTimeout(t *testing.T) {
	drip := func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			raw, err := readRequest(r)
			if err != nil {
				return
			}
			pause, _ := time.ParseDuration(strings.Fields(raw)[1])
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
			for range 10 {
				<-time.After(pause)
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
			}
		}
	}
	o := Options{HeadTimeout: 2 * time.Second, IdleReadTimeout: 5 * time.Second}
	bubble(t, o, drip, func(t *testing.T, n *Node) {
		do(t, n, get("4s"))
		if e := timesOut(t, n, get("6s"), Body, 5*time.Second); !e.Answered {
			t.Errorf("%+v", *e)
		}
	})
	o.MaxBufferedBody = 1
	bubble(t, o, drip, func(t *testing.T, n *Node) {
		if got, err := io.ReadAll(do(t, n, get("4s")).Stream); err != nil || len(got) != 10 {
			t.Errorf("read %q, %v", got, err)
		}
		got, err := io.ReadAll(do(t, n, get("6s")).Stream)
		if e, ok := err.(*Error); !ok || !e.Timeout || e.Phase != Body || len(got) != 0 {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

// TestIdleTimeCountsFromTheEndOfTheAnswer holds for bodies that take longer than a connection may be idle.
func TestIdleTimeCountsFromTheEndOfTheAnswer(t *testing.T) {
	drip := func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readRequest(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
			for range 10 {
				<-time.After(4 * time.Second)
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
			}
		}
	}
	for _, limit := range []int64{10, 1} { // buffered, and as a stream
		bubble(t, Options{IdleTimeout: 10 * time.Second, MaxBufferedBody: limit}, drip, func(t *testing.T, n *Node) {
			for range 3 {
				resp := do(t, n, get("/"))
				if resp.Stream != nil {
					_, _ = io.Copy(io.Discard, resp.Stream)
				}
			}
			if s := n.Stats(); s.Dials != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestEventsArePassedOnAsTheyCome holds for answers that must not be held back (elastic/kibana#139534).
func TestEventsArePassedOnAsTheyCome(t *testing.T) {
	bubble(t, Options{}, func(_ int, c net.Conn, r *bufio.Reader) {
		_, _ = readRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 3 {
			_, _ = io.WriteString(c, "1\r\nx\r\n")
			<-time.After(time.Minute)
		}
		_, _ = io.WriteString(c, "0\r\n\r\n")
	}, func(t *testing.T, n *Node) {
		start := time.Now()
		resp := do(t, n, get("/"))
		for i := range 3 {
			if k, err := resp.Stream.Read(make([]byte, 100)); k != 1 || err != nil || time.Since(start) != time.Duration(i)*time.Minute {
				t.Errorf("event %d: %d bytes, %v, after %v", i, k, err, time.Since(start))
			}
		}
		if _, err := resp.Stream.Read(make([]byte, 100)); err != io.EOF {
			t.Error(err)
		}
	})
}

func TestWaitAndDialTimeouts(t *testing.T) {
	bubble(t, Options{MaxConns: 1, WaitTimeout: 2 * time.Second}, slow, func(t *testing.T, n *Node) {
		var wg sync.WaitGroup
		wg.Go(func() { do(t, n, get("10s")) })
		synctest.Wait()
		timesOut(t, n, get("1s"), Wait, 2*time.Second)
		req := get("1s")
		req.Deadline = time.Now().Add(time.Second)
		timesOut(t, n, req, Wait, time.Second)
		if s := n.Stats(); s.WaitTimeouts != 2 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
		wg.Wait()
	})
	never := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	bubble(t, Options{Dial: never}, nil, func(t *testing.T, n *Node) {
		timesOut(t, n, get("/"), Dial, DefaultDialTimeout)
		req := get("/")
		req.Deadline = time.Now().Add(time.Second)
		timesOut(t, n, req, Dial, time.Second)
	})
}

func TestIdleConnectionsAreClosedInTime(t *testing.T) {
	bubble(t, Options{IdleTimeout: 10 * time.Second}, slow, func(t *testing.T, n *Node) {
		at := func(want int) {
			t.Helper()
			synctest.Wait()
			if s := n.Stats(); s.Idle != want || s.Open != want {
				t.Errorf("%d idle and %d open, want %d", s.Idle, s.Open, want)
			}
		}
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() { do(t, n, get(fmt.Sprint(i+1, "s"))) })
		}
		wg.Wait() // the connections were used last at 1 s, 2 s and 3 s
		at(3)
		<-time.After(7*time.Second + time.Millisecond) // 10.001 s
		at(3)
		<-time.After(time.Second) // 11.001 s
		at(2)
		do(t, n, get("500ms")) // the one used last, at 11.501 s again
		<-time.After(time.Second)
		at(1)
		<-time.After(8 * time.Second)
		at(1)
		<-time.After(2 * time.Second)
		at(0)
		do(t, n, get("1s"))
		<-time.After(11 * time.Second)
		at(0)
	})
}

// TestTimedOutExchangesMixNothingUp has clients with identities meet a node that is sometimes too slow, each with one
// Request and one Response for all its exchanges (valyala/fasthttp#576).
func TestTimedOutExchangesMixNothingUp(t *testing.T) {
	late := func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			raw, err := readRequest(r)
			if err != nil {
				return
			}
			id := strings.Fields(raw)[1]
			k, _ := strconv.Atoi(id)
			<-time.After(time.Duration(k%5) * 30 * time.Millisecond)
			if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nX-Id: %s\r\nContent-Length: %d\r\n\r\n%s", id, len(id), id); err != nil {
				return
			}
		}
	}
	bubble(t, Options{MaxConns: 100, HeadTimeout: 100 * time.Millisecond}, late, func(t *testing.T, n *Node) {
		var wg sync.WaitGroup
		for client := range 500 {
			wg.Go(func() {
				var req Request
				var resp Response
				var target []byte
				timeouts := 0
				for i := range 10 {
					target = strconv.AppendInt(target[:0], int64(client*10+i), 10)
					req = Request{Method: []byte("GET"), Target: target}
					if err := n.Do(&req, &resp); err != nil {
						timeouts++
					} else if string(resp.Body) != string(target) || string(resp.Header.Get("x-id")) != string(target) {
						t.Errorf("client %d got the answer %q of another", client, resp.Body)
					}
				}
				if timeouts != 2 {
					t.Errorf("%d exchanges of client %d ran out of time, want every fifth", timeouts, client)
				}
			})
		}
		wg.Wait()
	})
}

// dripping serves a body of known length that comes in pieces of size bytes, one every pause.
func dripping(length, size int, pause time.Duration, contentType string) handler {
	return func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readRequest(r); err != nil {
				return
			}
			if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, length); err != nil {
				return
			}
			for left := length; left > 0; left -= size {
				<-time.After(pause)
				if _, err := c.Write(make([]byte, min(size, left))); err != nil {
					return
				}
			}
		}
	}
}

func TestMinRate(t *testing.T) {
	const window = 10 * time.Second
	f := func(size int, pause time.Duration, contentType string, want time.Duration) {
		t.Helper()
		for _, buffered := range []int64{1 << 20, 1} {
			bubble(t, Options{MinRate: 1000, MinRateWindow: window, MaxBufferedBody: buffered}, dripping(100_000, size, pause, contentType), func(t *testing.T, n *Node) {
				start, resp := time.Now(), &Response{}
				err := n.Do(get("/"), resp)
				if err == nil && resp.Stream != nil {
					_, err = io.Copy(io.Discard, resp.Stream)
				}
				took := time.Since(start).Round(time.Second)
				var e *Error
				switch {
				case want == 0:
					if err != nil {
						t.Errorf("%d bytes every %v: %v after %v", size, pause, err, took)
					}
				case !errors.As(err, &e) || !errors.Is(err, ErrTooSlow) || e.Phase != Body || !e.Timeout || took != want:
					t.Errorf("%d bytes every %v: %v after %v, want ErrTooSlow after %v", size, pause, err, took, want)
				}
				resp.Reset()
			})
		}
	}
	f(1300, time.Second, "application/json", 0)
	f(13_000, 9*time.Second, "application/json", 0) // in bursts
	f(900, time.Second, "application/json", window)
	f(1, time.Second, "application/json", window)
	f(5, time.Millisecond, "application/json", 0)
	f(1, 10*time.Millisecond, "application/json", window)
	f(10, time.Second, "text/event-stream", 0)
}

// TestMinRateIsOfTheNode has somebody read slowly what the node would send at once.
func TestMinRateIsOfTheNode(t *testing.T) {
	bubble(t, Options{MinRate: 1 << 20, MinRateWindow: time.Second, IdleReadTimeout: time.Minute, MaxBufferedBody: 1}, dripping(100_000, 100_000, 0, "application/json"), func(t *testing.T, n *Node) {
		resp := do(t, n, get("/"))
		read, buf := 0, make([]byte, 1000)
		for {
			<-time.After(10 * time.Second)
			m, err := resp.Stream.Read(buf)
			if read += m; err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("after %d bytes: %v", read, err)
			}
		}
		if read != 100_000 {
			t.Errorf("%d bytes", read)
		}
	})
}

// TestDeadlineHoldsToTheLastByte lets an answer begin in time and go on too long.
func TestDeadlineHoldsToTheLastByte(t *testing.T) {
	for _, buffered := range []int64{1 << 20, 1} {
		bubble(t, Options{MaxBufferedBody: buffered, IdleReadTimeout: time.Minute}, dripping(100_000, 1000, time.Second, "application/json"), func(t *testing.T, n *Node) {
			for _, limit := range []time.Duration{30 * time.Second, 99 * time.Second, 101 * time.Second} {
				start, req, resp := time.Now(), get("/"), &Response{}
				req.Deadline = start.Add(limit)
				err := n.Do(req, resp)
				if err == nil && resp.Stream != nil {
					_, err = io.Copy(io.Discard, resp.Stream)
				}
				var e *Error
				if late := limit < 100*time.Second; late != errors.As(err, &e) || late && (e.Phase != Body || !e.Timeout || time.Since(start).Round(time.Second) != limit) {
					t.Errorf("limit %v: %v after %v", limit, err, time.Since(start))
				}
				resp.Reset()
			}
		})
	}
}
