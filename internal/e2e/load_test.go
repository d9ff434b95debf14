package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A shot is one request of a load and how it ended.
type shot struct {
	n           int // number of the request, from 0
	sent, ended time.Time
	status      int
	body        string
	err         error
	fresh       bool // a connection was opened for it
}

// A load sends requests from several connections, each at an even pace, until it is stopped. It sends each request once,
// over a connection that it keeps: unlike a real client's, its failures are not mended by sending again.
type load struct {
	tb      testing.TB
	addr    string
	head    func(n int) string // request number n: its head, or head and body
	next    atomic.Int64
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu    sync.Mutex
	shots []shot
}

// requestLimit is how long an answer to a load's request may take.
const requestLimit = 20 * time.Second

// startLoad begins to send what request returns to addr, from connections at once, each every so often.
func startLoad(tb testing.TB, addr string, connections int, every time.Duration, request func(n int) string) *load {
	ctx, cancel := context.WithCancel(tb.Context())
	l := &load{tb: tb, addr: addr, head: request, cancel: cancel}
	for range connections {
		l.workers.Go(func() { l.work(ctx, every) })
	}
	tb.Cleanup(func() { l.stop() })
	return l
}

func (l *load) work(ctx context.Context, every time.Duration) {
	pace := time.NewTicker(every)
	defer pace.Stop()
	var c *wireConn
	for {
		select {
		case <-pace.C:
		case <-ctx.Done():
			if c != nil {
				c.Close()
			}
			return
		}
		s := shot{n: int(l.next.Add(1) - 1), sent: time.Now()}
		if c == nil {
			s.fresh = true
			c, s.err = dialWire(l.addr)
		}
		if s.err == nil {
			c = c.shoot(&s, l.head(s.n))
		}
		s.ended = time.Now()
		l.mu.Lock()
		l.shots = append(l.shots, s)
		l.mu.Unlock()
	}
}

// stop ends the load and returns what it sent.
func (l *load) stop() []shot {
	l.cancel()
	l.workers.Wait()
	return l.shots
}

// soFar returns what has been answered by now, or failed.
func (l *load) soFar() []shot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shots[:len(l.shots):len(l.shots)]
}

// await waits until n requests more have ended.
func (l *load) await(n int) {
	l.tb.Helper()
	want := len(l.soFar()) + n
	until(l.tb, time.Minute, func(context.Context) error {
		if have := len(l.soFar()); have < want {
			return fmt.Errorf("%d requests of the load have ended, want %d", have, want)
		}
		return nil
	})
}

// last waits until the load has gone on for so long.
func (l *load) last(d time.Duration) {
	l.tb.Helper()
	end := time.Now().Add(d)
	until(l.tb, d+time.Minute, func(context.Context) error {
		if all := l.soFar(); len(all) == 0 || all[len(all)-1].sent.Before(end) {
			return errors.New("the load stands still")
		}
		return nil
	})
}

// checkShots fails the test if one of the shots that f picks was not answered with 200.
func checkShots(tb testing.TB, shots []shot, f func(shot) bool) {
	tb.Helper()
	all, bad := 0, 0
	for _, s := range shots {
		if !f(s) {
			continue
		}
		all++
		if s.err == nil && s.status == http.StatusOK {
			continue
		}
		if bad++; bad <= 5 {
			tb.Errorf("request %d (after %s, on a fresh connection: %t): %v, status %d: %.300s",
				s.n, s.ended.Sub(s.sent), s.fresh, s.err, s.status, s.body)
		}
	}
	if bad > 0 || all == 0 {
		tb.Errorf("%d of %d requests failed", bad, all)
	}
}

func every(shot) bool { return true }

// A wireConn is a connection on which tests write what they like.
type wireConn struct {
	*net.TCPConn
	r *bufio.Reader
}

func dialWire(addr string) (*wireConn, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &wireConn{c.(*net.TCPConn), bufio.NewReader(c)}, nil
}

// dial opens a connection for the length of a test.
func dial(tb testing.TB, addr string) *wireConn {
	tb.Helper()
	c, err := dialWire(addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(requestLimit)); err != nil {
		tb.Fatal(err)
	}
	return c
}

// send writes text.
func (c *wireConn) send(tb testing.TB, text string) {
	tb.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		tb.Fatal(err)
	}
}

// shoot sends a request and notes its answer. It returns the connection, or nil if that is at its end.
func (c *wireConn) shoot(s *shot, request string) *wireConn {
	s.err = c.SetDeadline(time.Now().Add(requestLimit))
	if s.err == nil {
		_, s.err = io.WriteString(c, request)
	}
	if s.err == nil {
		var closing bool
		s.status, s.body, closing, s.err = c.read(strings.HasPrefix(request, "HEAD "))
		if s.err == nil && !closing {
			return c
		}
	}
	c.Close()
	return nil
}

// read reads an answer.
func (c *wireConn) read(head bool) (status int, body string, closing bool, err error) {
	req := &http.Request{Method: http.MethodGet}
	if head {
		req.Method = http.MethodHead
	}
	resp, err := http.ReadResponse(c.r, req)
	if err != nil {
		return 0, "", true, fmt.Errorf("read the answer: %w", err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		err = fmt.Errorf("read the body of an answer with %d: %w", resp.StatusCode, err)
	}
	return resp.StatusCode, string(text), resp.Close, errors.Join(err, resp.Body.Close())
}
