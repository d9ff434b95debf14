package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weir/internal/wire"
)

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// closing is a node whose first connection serves one request and closes after hold is closed; later ones stay open.
func closing(t testing.TB, hold <-chan struct{}) string {
	return serve(t, func(i int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readRequest(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, okAnswer)
			if i == 0 {
				<-hold
				return
			}
		}
	})
}

func idleConn(n *Node) *conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.idle[len(n.idle)-1]
}

// TestClosedIdleConnectionIsFoundBeforeUse holds for a node that closes at idle without a word (golang/go#22158).
func TestClosedIdleConnectionIsFoundBeforeUse(t *testing.T) {
	f := func(idleFor time.Duration, req *Request, wantDead, wantRetries uint64) {
		t.Helper()
		var later atomic.Int64
		hold := make(chan struct{})
		n := node(t, Options{Addr: closing(t, hold), Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }})
		do(t, n, get("/"))
		c := idleConn(n)
		if c.look() != silent {
			t.Fatal("an open connection looks dead")
		}
		close(hold)
		eventually(t, "the end of the connection", func() bool { return c.look() != silent })
		// The age counts from the answer, so that the time which eventually took must not pass for idle time.
		c.lastUsed = n.clock()
		later.Store(int64(idleFor))
		if resp := do(t, n, req); resp.Reused || string(resp.Body) != "ok" {
			t.Errorf("reused %v, body %q", resp.Reused, resp.Body)
		}
		if s := n.Stats(); s.Dead != wantDead || s.FreshRetries != wantRetries || s.Dials != 2 || s.Open != 1 {
			t.Errorf("idle for %v: %+v", idleFor, s)
		}
	}
	with := func(p ReusePolicy, req *Request) *Request { req.Reuse = p; return req }
	f(60*time.Millisecond, with(RetryFresh, get("/")), 1, 0)
	f(0, with(NoRetry, post("{}")), 1, 0)
	f(0, with(RetryUnsent, post("{}")), 1, 0)
	f(0, with(RetryFresh, &Request{Method: []byte("POST"), Target: []byte("/"), Stream: strings.NewReader("x"), StreamLength: 1}), 1, 0)
	f(DefaultIdleTimeout, with(RetryFresh, get("/")), 1, 0)
}

// TestIdleConnectionWithUnaskedBytesIsNotUsed has a node say something behind its answer. No request may take it for its
// own answer, however soon it comes and whatever it allows, and a node that does so gets no pooled connections for a
// while. A proxy that says 408 before it closes an idle connection is none of those.
func TestIdleConnectionWithUnaskedBytesIsNotUsed(t *testing.T) {
	f := func(unasked string, req *Request, wantWary bool) {
		t.Helper()
		speak := make(chan struct{})
		var later atomic.Int64
		n := node(t, Options{Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }, Addr: serve(t, func(i int, c net.Conn, r *bufio.Reader) {
			for j := 0; ; j++ {
				if _, err := readRequest(r); err != nil {
					return
				}
				_, _ = io.WriteString(c, okAnswer)
				if i == 0 && j == 0 {
					<-speak
					_, _ = io.WriteString(c, unasked)
				}
			}
		})})
		do(t, n, get("/"))
		close(speak)
		c := idleConn(n)
		eventually(t, "the unasked bytes", func() bool { return c.look() != silent })
		c.lastUsed = n.clock()
		if resp := do(t, n, req); resp.Status != 200 || resp.Reused {
			t.Errorf("%q: got the answer %d of a connection used before: %v", unasked, resp.Status, resp.Reused)
		}
		if s := n.Stats(); s.Dead != 1 || s.FreshRetries != 0 || (s.Unasked == 1) != wantWary || (s.Idle == 0) != wantWary {
			t.Errorf("%q: %+v", unasked, s)
		}
		do(t, n, get("/"))
		if s := n.Stats(); (s.Dials == 3) != wantWary {
			t.Errorf("%q: %d connections for three exchanges", unasked, s.Dials)
		}
		later.Store(wary)
		do(t, n, get("/"))
		if resp := do(t, n, get("/")); !resp.Reused {
			t.Errorf("%q: no connection is kept a minute later", unasked)
		}
	}
	again := func(req *Request) *Request { req.Reuse = RetryFresh; return req }
	stray := "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n"
	f(stray, post("{}"), true)
	f(stray, again(get("/")), true)
	f(stray, again(&Request{Method: []byte("PUT"), Target: []byte("/"), Body: make([]byte, 20<<10)}), true)
	f(stray, again(&Request{Method: []byte("PUT"), Target: []byte("/"), Body: make([]byte, 1<<20)}), true)
	f(stray, &Request{Method: []byte("PUT"), Target: []byte("/"), Stream: strings.NewReader("x"), StreamLength: -1}, true)
	f("\n", again(get("/")), true)
	f("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", post("{}"), false)
}

// TestAnswersOfANodeThatSaysTooMuch has many callers at a node that answers every tenth request twice, the second
// time at any moment. Bytes that come after the next request cannot be told from its answer; all others must be.
func TestAnswersOfANodeThatSaysTooMuch(t *testing.T) {
	var foreign, answers atomic.Int64
	n := node(t, Options{Addr: serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for j := 0; ; j++ {
			raw, err := readRequest(r)
			if err != nil {
				return
			}
			id := strings.Fields(raw)[1]
			answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(id), id)
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
			if j%10 != 9 {
				continue
			}
			for begin, after := time.Now(), rand.N(300*time.Microsecond); time.Since(begin) < after; {
				runtime.Gosched()
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	})})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			resp := &Response{}
			for j := range 250 {
				req := get(fmt.Sprintf("/%d-%d", i, j))
				if err := n.Do(req, resp); err != nil {
					continue // cut off in between: nothing to take for an answer
				}
				answers.Add(1)
				if string(resp.Body) != string(req.Target) {
					foreign.Add(1)
				}
			}
		})
	}
	wg.Wait()
	s := n.Stats()
	t.Logf("%d answers, %d of them of others; %+v", answers.Load(), foreign.Load(), s)
	if s.Unasked == 0 || answers.Load() < 1000 {
		t.Errorf("%d answers, the node was caught %d times", answers.Load(), s.Unasked)
	}
	// Eight connections may meet the surplus for the first time at the same moment, all of them too late.
	if foreign.Load() > 8 {
		t.Errorf("%d answers reached the wrong caller", foreign.Load())
	}
}

// TestRepeatedRequestHasItsBodyOnce has a request meet a dead connection before it gets through, in each of the ways in
// which that is noticed. A body that is written twice would be read as the next request on the connection.
func TestRepeatedRequestHasItsBodyOnce(t *testing.T) {
	f := func(body int, socket, afterRequest bool) {
		t.Helper()
		got := make(chan string, 1)
		n := node(t, Options{
			Addr: serve(t, func(i int, c net.Conn, r *bufio.Reader) {
				raw, _ := readRequest(r)
				_, _ = io.WriteString(c, okAnswer)
				if i > 0 {
					_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
					more, _ := io.ReadAll(r)
					got <- raw + string(more)
				} else if afterRequest {
					_, _ = readRequest(r)
				}
			}),
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				if !socket {
					c = struct{ net.Conn }{c}
				}
				return c, err
			},
		})
		do(t, n, get("/"))
		if !afterRequest {
			c := idleConn(n)
			eventually(t, "the end of the connection", func() bool { return c.look() != silent })
		}
		do(t, n, &Request{Method: []byte("POST"), Target: []byte("/"), Body: []byte(strings.Repeat("b", body)), Reuse: RetryFresh})
		if _, sent, _ := strings.Cut(receive(t, got, "request"), "\r\n\r\n"); len(sent) != body {
			t.Errorf("a body of %d bytes was sent as one of %d", body, len(sent))
		}
	}
	for _, body := range []int{1, joinBody, joinBody + 1, maxInline + 1} {
		f(body, true, false)
		f(body, true, true)
		f(body, false, true)
	}
}

// TestOldConnectionsEnd lets no connection serve for ever: the name of a node may lead elsewhere by now.
func TestOldConnectionsEnd(t *testing.T) {
	var later atomic.Int64
	n := node(t, Options{
		Addr: script(t, okAnswer), MaxAge: time.Minute, Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) },
	})
	for _, step := range []struct {
		after time.Duration
		dials uint64
	}{{0, 1}, {30 * time.Second, 1}, {59 * time.Second, 1}, {61 * time.Second, 1}, {62 * time.Second, 2}, {100 * time.Second, 2}} {
		later.Store(int64(step.after))
		do(t, n, get("/"))
		if s := n.Stats(); s.Dials != step.dials {
			t.Errorf("after %v: %d dials, want %d", step.after, s.Dials, step.dials)
		}
	}
}

// TestReusePolicy meets a node that reads a request on a pooled connection and closes without an answer.
func TestReusePolicy(t *testing.T) {
	f := func(req *Request, answer string, wantCalls int64, wantOK bool) {
		t.Helper()
		var calls atomic.Int64
		n := node(t, Options{Addr: serve(t, func(i int, c net.Conn, r *bufio.Reader) {
			for j := 0; ; j++ {
				if _, err := readRequest(r); err != nil {
					return
				}
				calls.Add(1)
				if i == 0 && j == 1 {
					_, _ = io.WriteString(c, answer)
					return
				}
				_, _ = io.WriteString(c, okAnswer)
			}
		})})
		do(t, n, get("/"))
		resp := &Response{}
		err := n.Do(req, resp)
		if calls.Load() != wantCalls || err == nil != wantOK {
			t.Errorf("policy %d: %d calls, error %v", req.Reuse, calls.Load(), err)
		}
		var e *Error
		if errors.As(err, &e) && (e.Phase != Head || e.Written == 0 || e.Answered != (answer != "") || e.Timeout || e.Cancelled || e.Source) {
			t.Errorf("policy %d: %+v", req.Reuse, *e)
		}
	}
	with := func(p ReusePolicy, req *Request) *Request { req.Reuse = p; return req }
	f(with(RetryFresh, post("{}")), "", 3, true)
	f(with(RetryFresh, &Request{Method: []byte("PUT"), Target: []byte("/"), Body: make([]byte, 1<<20)}), "", 3, true)
	f(with(RetryFresh, get("/")), "H", 2, false)
	f(with(RetryUnsent, post("{}")), "", 2, false)
	f(with(NoRetry, post("{}")), "", 2, false)
	f(with(NoRetry, get("/")), "", 2, false)
	// A stream that was begun cannot be repeated, whatever the policy.
	f(with(RetryFresh, &Request{Method: []byte("POST"), Target: []byte("/"), Stream: strings.NewReader("x"), StreamLength: 1}), "", 2, false)
}

// A deafConn refuses to write once it is deaf.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		_ = c.Conn.Close()
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}

func TestRequestOfWhichNothingWasWritten(t *testing.T) {
	f := func(req *Request, wantOK bool) {
		t.Helper()
		addr, seen := recorder(t)
		var deaf atomic.Bool
		dials := 0
		n := node(t, Options{Addr: addr, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if dials++; dials == 1 {
				c = deafConn{c, &deaf}
			}
			return c, err
		}})
		do(t, n, get("/"))
		receive(t, seen, "first request")
		deaf.Store(true)
		err := n.Do(req, &Response{})
		var e *Error
		switch {
		case wantOK && err != nil:
			t.Errorf("policy %d: %v", req.Reuse, err)
		case wantOK:
			if got := receive(t, seen, "request"); !strings.HasSuffix(got, "\r\n\r\nbody") {
				t.Errorf("policy %d: the repeated request is %q", req.Reuse, got)
			}
		case !errors.As(err, &e) || e.Phase != Write || e.Written != 0 || !errors.Is(err, syscall.EPIPE):
			t.Errorf("policy %d: error %v", req.Reuse, err)
		}
	}
	f(&Request{Method: []byte("POST"), Target: []byte("/"), Body: []byte("body"), Reuse: RetryUnsent}, true)
	f(&Request{Method: []byte("POST"), Target: []byte("/"), Stream: strings.NewReader("body"), StreamLength: 4, Reuse: RetryUnsent}, true)
	f(&Request{Method: []byte("POST"), Target: []byte("/"), Body: []byte("body"), Reuse: RetryFresh}, true)
	f(&Request{Method: []byte("POST"), Target: []byte("/"), Body: []byte("body"), Reuse: NoRetry}, false)
}

func TestDialFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	n := node(t, Options{Addr: addr, MaxConns: 1})
	for range 3 { // the slot must come back each time
		req := get("/")
		req.Reuse = RetryFresh
		e := fails(t, n, req)
		if e.Phase != Dial || e.Written != 0 || e.Answered || !errors.Is(e, syscall.ECONNREFUSED) || !strings.Contains(e.Error(), addr) {
			t.Errorf("error %v of %+v", e, *e)
		}
	}
	if s := n.Stats(); s.Open != 0 || s.Dials != 3 || s.DialErrors != 3 {
		t.Errorf("%+v", s)
	}
}

// gated is a node that tells of each request by its target and answers when go is sent to.
func gated(t testing.TB) (addr string, seen <-chan string, open chan<- struct{}) {
	s, o := make(chan string, 1000), make(chan struct{}, 1000)
	return serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			raw, err := readRequest(r)
			if err != nil {
				return
			}
			s <- strings.Fields(raw)[1]
			<-o
			if _, err := io.WriteString(c, okAnswer); err != nil {
				return
			}
		}
	}), s, o
}

func TestExchangesWaitInOrder(t *testing.T) {
	addr, seen, open := gated(t)
	n := node(t, Options{Addr: addr, MaxConns: 1, MaxWaiting: 3})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			resp := &Response{}
			if err := n.Do(get(fmt.Sprint("/", i)), resp); err != nil {
				t.Error(err)
			}
			if i > 0 && resp.Queued == 0 {
				t.Error("the time of waiting was not told")
			}
		})
		if i == 0 {
			if got := receive(t, seen, "request"); got != "/0" {
				t.Errorf("first came %s", got)
			}
		} else {
			eventually(t, "exchange waits", func() bool { return n.Stats().Waiting == i })
		}
	}
	if e := fails(t, n, get("/x")); !errors.Is(e, ErrPoolFull) || e.Phase != Wait || e.Timeout {
		t.Errorf("over the limit: %v", e)
	}
	for i := 1; i < 4; i++ {
		open <- struct{}{}
		if got := receive(t, seen, "request"); got != fmt.Sprint("/", i) {
			t.Errorf("in place %d came %s", i, got)
		}
	}
	open <- struct{}{}
	wg.Wait()
	if s := n.Stats(); s.Dials != 1 || s.Refused != 1 || s.Waiting != 0 || s.Idle != 1 {
		t.Errorf("%+v", s)
	}
}

func TestManyExchangesAtOnce(t *testing.T) {
	const clients, conns = 700, 64
	var open, most atomic.Int64
	n := node(t, Options{Addr: serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		most.Store(max(most.Load(), open.Add(1)))
		defer open.Add(-1)
		for {
			raw, err := readRequest(r)
			if err != nil {
				return
			}
			id := strings.Fields(raw)[1]
			head := "HTTP/1.1 200 OK\r\n"
			if len(id)%3 == 0 {
				head += "Connection: close\r\n"
			}
			if _, err := fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", head, len(id), id); err != nil || len(id)%3 == 0 {
				return
			}
		}
	}), MaxConns: conns})
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			resp := &Response{}
			for range 5 {
				if err := n.Do(get(fmt.Sprint("/", i)), resp); err != nil {
					t.Error(err)
				} else if string(resp.Body) != fmt.Sprint("/", i) {
					t.Errorf("%d got the answer %q", i, resp.Body)
				}
			}
		})
	}
	wg.Wait()
	if s := n.Stats(); s.Waiting != 0 || s.InUse != 0 || s.Open > conns {
		t.Errorf("%+v", s)
	}
	if most.Load() > conns+16 { // closed ones may not have been seen by the node yet
		t.Errorf("%d connections were open at once", most.Load())
	}
}

func TestSlotOfAConnectionThatEndsGoesToTheNext(t *testing.T) {
	n := node(t, Options{Addr: once(t, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), MaxConns: 1})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := n.Do(get("/"), &Response{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := n.Stats(); s.Dials != 50 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

func TestClose(t *testing.T) {
	addr, seen, open := gated(t)
	n := New(Options{Addr: addr, MaxConns: 2})
	open <- struct{}{}
	var wg sync.WaitGroup
	results := make(chan error, 2)
	do(t, n, get("/idle"))
	<-seen
	wg.Go(func() { results <- n.Do(get("/a"), &Response{}) })
	wg.Go(func() { results <- n.Do(get("/b"), &Response{}) })
	receive(t, seen, "request")
	receive(t, seen, "request")
	waits := make(chan error, 1)
	wg.Go(func() { waits <- n.Do(get("/c"), &Response{}) })
	eventually(t, "exchange waits", func() bool { return n.Stats().Waiting == 1 })
	n.Close()
	if err := receive(t, waits, "end of the wait"); !errors.Is(err, ErrClosed) {
		t.Errorf("the waiting exchange got %v", err)
	}
	if err := n.Do(get("/d"), &Response{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	open <- struct{}{}
	open <- struct{}{}
	for range 2 {
		if err := receive(t, results, "answer"); err != nil {
			t.Errorf("an exchange in use was cut off: %v", err)
		}
	}
	wg.Wait()
	if s := n.Stats(); s.Open != 0 || s.Idle != 0 {
		t.Errorf("after the last exchange: %+v", s)
	}
	n.Close()
}

// TestGrantThatComesTooLate has a connection handed to an exchange at the moment when it gives up.
func TestGrantThatComesTooLate(t *testing.T) {
	n := node(t, Options{Addr: script(t, okAnswer), MaxConns: 1})
	for taken, refused := false, false; !taken || !refused; {
		do(t, n, get("/"))
		req := get("/")
		req.Cancel = &wire.Cancel{}
		req.Cancel.Fire()
		n.mu.Lock()
		c := n.idle[0]
		n.idle = n.idle[:0]
		w := make(waiter, 1)
		place := n.waiting.PushBack(w)
		n.waiting.Remove(place)
		w <- grant{c: c}
		n.mu.Unlock()
		if g := n.wait(req, w, place, n.clock()); g.err == nil {
			taken = true
			n.release(c)
		} else {
			refused = true
		}
		if s := n.Stats(); s.Idle != 1 || s.Open != 1 {
			t.Fatalf("the connection was lost: %+v", s)
		}
	}
}

// TestBytesBehindALongAnswer has a node send more than it announced. They must not become the next answer.
func TestBytesBehindALongAnswer(t *testing.T) {
	long := "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100_000)
	stray := "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n"
	start := time.Now()
	n := node(t, Options{Addr: script(t, long+stray), Now: func() time.Time { return start }})
	for range 2 {
		req := get("/")
		req.Reuse = RetryFresh
		if resp := do(t, n, req); resp.Status != 200 || len(resp.Body) != 100_000 {
			t.Errorf("%d with %d bytes", resp.Status, len(resp.Body))
		}
		if n.Stats().Idle > 0 {
			eventually(t, "the stray bytes", func() bool { return idleConn(n).look() != silent })
		}
	}
}

// TestNothingIsLostInAStormOfCancels has exchanges give up at any moment: no connection, slot or waiter may stay behind.
func TestNothingIsLostInAStormOfCancels(t *testing.T) {
	n := node(t, Options{Addr: echo(t, 1000), MaxConns: 3, WaitTimeout: patience})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			resp := &Response{}
			for j := range 40 {
				req := search()
				if (i+j)%3 == 0 {
					wg.Go(req.Cancel.Fire)
				}
				if (i+j)%7 == 0 {
					req.Deadline = time.Now().Add(time.Duration(j) * 20 * time.Microsecond)
				}
				err := n.Do(req, resp)
				var e *Error
				if errors.As(err, &e) && !e.Cancelled && !e.Timeout {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s := n.Stats(); s.InUse != 0 || s.Waiting != 0 || s.Open > 3 {
		t.Errorf("%+v", s)
	}
	do(t, n, search())
}
