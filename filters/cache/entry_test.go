package cache

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/flows"
)

// listen serves the flow main on a port of the loopback.
func (r *rig) listen() *flows.Entry {
	r.t.Helper()
	c := flows.DefaultEntry()
	c.Name, c.Router, c.Network.Binding = "test", "default", "127.0.0.1:0"
	e, err := flows.NewEntry(c, nil, r.metrics, flows.NewBudget(64<<20), slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := e.Listen(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	e.Use(r.gen)
	e.Serve()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Shutdown(ctx); err != nil {
			r.t.Errorf("shutdown: %v", err)
		}
	})
	return e
}

// dial sends a search, with further lines of its head, and returns the connection on which its answer will come.
func dial(t *testing.T, e *flows.Entry, path, body string, fields ...string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := fmt.Fprintf(nc, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-Opaque-Id: z\r\nContent-Length: %d\r\n%s\r\n%s",
		path, len(body), strings.Join(append(fields, ""), "\r\n"), body); err != nil {
		t.Fatal(err)
	}
	return nc
}

func answerOf(t *testing.T, nc net.Conn) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// until waits for a condition.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("waited in vain for " + what)
		}
	}
}

// held is a node that holds searches of /held until released or cancelled, and tells when one was cancelled.
func (r *rig) held() (release chan struct{}, cancelled chan string) {
	release, cancelled = make(chan struct{}), make(chan string, 10)
	r.node = func(x *flows.Exchange, call int64) error {
		select {
		case <-release:
			reply(x, 200, complete(x, call))
			return nil
		case <-x.Cancel().Done():
			cancelled <- string(x.Request.Path)
			return io.ErrClosedPipe
		}
	}
	return release, cancelled
}

func TestHitOverTheWire(t *testing.T) {
	r := newRig(t, classic)
	e := r.listen()
	first, body := answerOf(t, dial(t, e, "/i/_search", `{}`))
	second, again := answerOf(t, dial(t, e, "/i/_search", ` { } `))
	if body != again || first.Header.Get("Cache-Status") != "weir; fwd=miss; stored" ||
		!strings.HasPrefix(second.Header.Get("Cache-Status"), "weir; hit; ttl=") || second.Header.Get("Age") != "0" ||
		second.Header.Get("X-Opaque-Id") != "z" {
		t.Errorf("%v %s\n%v %s", first.Header, body, second.Header, again)
	}
	until(t, "the entry to count", func() bool { return r.count("weir_http_requests_total", "hit", "2xx") == 1 })
}

func TestLeaderLeavesTheSocket(t *testing.T) {
	r := newRig(t, classic)
	release, cancelled := r.held()
	e := r.listen()
	leader := dial(t, e, "/i/_search", `{}`)
	until(t, "the leader", func() bool { return r.calls.Load() == 1 })
	waiter := dial(t, e, "/i/_search", `{}`)
	until(t, "the waiter", func() bool { return r.count("weir_cache_waiting_requests") == 1 })
	control := dial(t, e, "/control/_search", `{}`)
	until(t, "the control", func() bool { return r.calls.Load() == 2 })

	_ = leader.Close()
	_ = control.Close()
	// The one that nobody waits for is cut off; by then the leader has been looked at too, or will be next time.
	if got := <-cancelled; got != "/control/_search" {
		t.Fatalf("%s was cancelled", got)
	}
	close(release)
	if resp, body := answerOf(t, waiter); resp.Header.Get("Cache-Status") != "weir; fwd=miss; collapsed" {
		t.Errorf("the waiter got %v %s", resp.Header, body)
	}
	r.wantCalls(2)
	resp, _ := answerOf(t, dial(t, e, "/i/_search", `{}`))
	if !strings.HasPrefix(resp.Header.Get("Cache-Status"), "weir; hit") {
		t.Errorf("the answer was not kept: %v", resp.Header)
	}
}

func TestNobodyIsLeft(t *testing.T) {
	r := newRig(t, classic)
	_, cancelled := r.held()
	e := r.listen()
	leader := dial(t, e, "/i/_search", `{}`)
	until(t, "the leader", func() bool { return r.calls.Load() == 1 })
	waiter := dial(t, e, "/i/_search", `{}`)
	until(t, "the waiter", func() bool { return r.count("weir_cache_waiting_requests") == 1 })
	_ = leader.Close()
	_ = waiter.Close()
	if got := <-cancelled; got != "/i/_search" {
		t.Errorf("%s was cancelled", got)
	}
	until(t, "the end of both", func() bool {
		return r.count("weir_cache_waiting_requests") == 0 && r.count("weir_cache_flights") == 0
	})
	r.wantCalls(1)
}

func TestErrorsSayWhatTheCacheDid(t *testing.T) {
	r := newRig(t, classic)
	e := r.listen()
	f := func(fields string, status int, want string) {
		t.Helper()
		resp, body := answerOf(t, dial(t, e, "/i/_search", `{}`, fields))
		if resp.StatusCode != status || resp.Header.Get("Cache-Status") != want || len(resp.Header.Values("Cache-Status")) != 1 {
			t.Errorf("%s: %d %q %s, want %d %q", fields, resp.StatusCode, resp.Header.Values("Cache-Status"), body, status, want)
		}
	}
	f("limited: 1", 429, "weir; fwd=miss; detail=failed")
	f("Cache-Control: only-if-cached", 504, "weir; fwd=miss")
	f("Cache-Control: no-store\r\nlimited: 1", 429, "weir; fwd=bypass; detail=no-store")
}
