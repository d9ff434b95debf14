package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"weir/internal/obs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options() Options {
	return Options{
		Addr:    "127.0.0.1:0",
		Metrics: obs.NewMetrics().Handler(slog.New(slog.DiscardHandler)),
		Logger:  slog.New(slog.DiscardHandler),
		Info:    func() Info { return Info{Version: "1.2.3", Generation: 4, ConfigFiles: []string{"gateway.yml"}} },
	}
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask sends a request on a connection of its own; header pairs follow the path, "Host" among them.
func ask(t *testing.T, s *Server, method, path string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

func TestRoutes(t *testing.T) {
	s := start(t, options())
	f := func(method, path string, wantStatus int, wantBody string) {
		t.Helper()
		status, _, body := ask(t, s, method, path)
		if status != wantStatus || !strings.Contains(body, wantBody) {
			t.Errorf("%s %s: %d %s, want %d and %q", method, path, status, body, wantStatus, wantBody)
		}
	}
	f("GET", "/metrics", 200, "go_goroutines")
	f("GET", "/healthz", 200, `{"alive":true}`)
	f("HEAD", "/healthz", 200, "")
	f("GET", "/readyz", 200, `{"ready":true}`)
	f("GET", "/_weir", 200, `"version":"1.2.3","generation":4,"config_files":["gateway.yml"]`)
	f("GET", "/_weir", 200, `"uptime_seconds":`)
	f("GET", "/debug/pprof/", 200, "goroutine")
	f("GET", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile")
	f("GET", "/debug/pprof/cmdline", 200, "")
	f("GET", "/debug/pprof/symbol", 200, "num_symbols")
	f("GET", "/nothing", 404, `{"error":{"root_cause":[{"type":"resource_not_found_exception","reason":"no handler for [GET /nothing]"}],"type":"resource_not_found_exception","reason":"no handler for [GET /nothing]"},"status":404}`)
	f("POST", "/healthz", 405, `"status":405`)
	f("POST", "/_weir/reload", 501, `"status":501`)
}

func TestMethodNotAllowedNamesTheOthers(t *testing.T) {
	s := start(t, options())
	_, header, _ := ask(t, s, "DELETE", "/healthz")
	if header.Get("Allow") != "GET, HEAD" || header.Get("Content-Type") != "application/json" {
		t.Errorf("got %v", header)
	}
}

func TestReadyTellsWhyNot(t *testing.T) {
	opts := options()
	opts.Ready = func() []string { return []string{"cluster es has no node", "draining"} }
	s := start(t, opts)
	status, _, body := ask(t, s, "GET", "/readyz")
	if status != 503 || body != `{"ready":false,"reasons":["cluster es has no node","draining"]}`+"\n" {
		t.Errorf("%d %s", status, body)
	}
}

func TestHandleAddsPages(t *testing.T) {
	s := start(t, options())
	s.Handle("GET /_weir/clusters/{name}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		WriteJSON(w, http.StatusOK, r.PathValue("name"))
	}))
	if status, _, body := ask(t, s, "GET", "/_weir/clusters/es"); status != 200 || body != "\"es\"\n" {
		t.Errorf("%d %s", status, body)
	}
}

func TestReload(t *testing.T) {
	f := func(result error, wantStatus int, want string) {
		t.Helper()
		opts := options()
		opts.Reload = func() error { return result }
		s := start(t, opts)
		status, _, body := ask(t, s, "POST", "/_weir/reload")
		if status != wantStatus || strings.TrimSpace(body) != want {
			t.Errorf("got %d %s\nwant %d %s", status, body, wantStatus, want)
		}
	}
	const refused = `"type":"configuration_exception","reason":"the new configuration was refused, the old one stays in force"`
	f(nil, 200, `{"acknowledged":true}`)
	f(errors.Join(errors.New("gateway.yml:1:2: a"), errors.New("gateway.yml:3:4: b")), 400,
		`{"error":{"root_cause":[{"type":"configuration_exception","reason":"gateway.yml:1:2: a"},{"type":"configuration_exception","reason":"gateway.yml:3:4: b"}],`+refused+`},"status":400}`)
	f(fmt.Errorf("reload: %w", detailedError{}), 400,
		`{"error":{"root_cause":[{"type":"configuration_exception","reason":"reload: bad"}],`+refused+`,"problems":[{"line":7}]},"status":400}`)
}

type detailedError struct{}

func (detailedError) Error() string { return "bad" }

func (detailedError) MarshalJSON() ([]byte, error) { return []byte(`[{"line":7}]`), nil }

func TestOneReloadAtATime(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	opts := options()
	opts.Reload = func() error {
		entered <- struct{}{}
		<-release
		return nil
	}
	s := start(t, opts)
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, _, body := ask(t, s, "POST", "/_weir/reload"); status != 200 {
			t.Errorf("the first: %d %s", status, body)
		}
	})
	<-entered
	if status, _, body := ask(t, s, "POST", "/_weir/reload"); status != 409 {
		t.Errorf("the second: %d %s", status, body)
	}
	close(release)
	wg.Wait()
}

func TestHostsOfOthersAreRefused(t *testing.T) {
	opts := options()
	opts.Hosts = []string{"weir.internal"}
	s := start(t, opts)
	f := func(host string, want int) {
		t.Helper()
		if status, _, body := ask(t, s, "GET", "/healthz", "Host", host); status != want {
			t.Errorf("host %q: %d %s, want %d", host, status, body, want)
		}
	}
	f("localhost", 200)
	f("LOCALHOST:2900", 200)
	f("localhost.", 200)
	f("127.0.0.1:2900", 200)
	f("10.1.2.3", 200)
	f("[::1]:2900", 200)
	f("[::1]", 200)
	f("weir.internal:2900", 200)
	f("Weir.Internal.", 200)
	f("evil.example", 403)
	f("localhost.evil.example:2900", 403)
	f("127.0.0.1.evil.example", 403)
	f("weir.internal.evil.example", 403)
}

func TestTheNameInTheAddressIsItsOwn(t *testing.T) {
	opts := options()
	opts.Addr = "node7.internal:2900"
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if !s.ownHost("node7.internal:2900") || s.ownHost("node8.internal:2900") {
		t.Error("want node7.internal and nothing else")
	}
}

func TestPagesOfOtherSitesAreRefused(t *testing.T) {
	reloads := 0
	opts := options()
	opts.Reload = func() error { reloads++; return nil }
	s := start(t, opts)
	f := func(method, path string, want int, header ...string) {
		t.Helper()
		if status, _, body := ask(t, s, method, path, header...); status != want {
			t.Errorf("%s %s %v: %d %s, want %d", method, path, header, status, body, want)
		}
	}
	f("POST", "/_weir/reload", 403, "Origin", "http://evil.example")
	f("POST", "/_weir/reload", 403, "Origin", "null")
	f("POST", "/_weir/reload", 403, "Origin", "http://localhost:1")
	f("POST", "/_weir/reload", 403, "Sec-Fetch-Site", "cross-site")
	f("POST", "/_weir/reload", 403, "Sec-Fetch-Site", "same-site")
	if reloads != 0 {
		t.Errorf("%d reloads by other sites", reloads)
	}
	f("POST", "/_weir/reload", 200, "Origin", "http://"+s.Addr(), "Sec-Fetch-Site", "same-origin")
	f("POST", "/_weir/reload", 200)
	f("GET", "/debug/pprof/cmdline", 403, "Sec-Fetch-Site", "cross-site")
	f("GET", "/healthz", 200, "Sec-Fetch-Site", "cross-site")
}

func TestAnswersAreNotCachedOrSniffed(t *testing.T) {
	s := start(t, options())
	_, header, _ := ask(t, s, "GET", "/nothing")
	if header.Get("Cache-Control") != "no-store" || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("got %v", header)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	s := start(t, options())
	s.Handle("POST /_weir/echo", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var tooLarge *http.MaxBytesError
		if _, err := io.Copy(io.Discard, r.Body); errors.As(err, &tooLarge) {
			WriteError(w, http.StatusRequestEntityTooLarge, "content_too_long_exception", err.Error())
		}
	}))
	resp, err := http.Post("http://"+s.Addr()+"/_weir/echo", "", bytes.NewReader(make([]byte, maxBody+1)))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("status %d, want 413", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestConnectionsAreBounded(t *testing.T) {
	s := start(t, options())
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		return c
	}
	get := func(c net.Conn) error {
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	var first net.Conn
	for i := range maxConnections {
		c := dial()
		if err := get(c); err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
		if first == nil {
			first = c
		}
	}
	if err := get(dial()); err == nil {
		t.Error("one connection too many was answered")
	}
	_ = first.Close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := get(dial())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no connection after one was closed: %v", err)
		}
	}
}

func TestSecondServerTakesTheNextFreePort(t *testing.T) {
	first := start(t, options())
	var log bytes.Buffer
	opts := options()
	opts.Addr, opts.SkipOccupied = first.Addr(), true
	opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	second := start(t, opts)
	if second.Addr() == first.Addr() {
		t.Fatalf("both listen on %s", first.Addr())
	}
	if status, _, _ := ask(t, second, "GET", "/healthz"); status != 200 {
		t.Errorf("status %d", status)
	}
	if line := log.String(); !strings.Contains(line, "wanted="+first.Addr()) || !strings.Contains(line, "addr="+second.Addr()) {
		t.Errorf("log: %q", line)
	}
}

func TestOccupiedPortIsAnErrorUnlessSkipped(t *testing.T) {
	first := start(t, options())
	opts := options()
	opts.Addr = first.Addr()
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err == nil || !strings.Contains(err.Error(), first.Addr()) {
		t.Errorf("got %v", err)
	}
	if s.Addr() != "" {
		t.Errorf("address %q", s.Addr())
	}
}

func TestOpenListenerIsWarnedAbout(t *testing.T) {
	var log bytes.Buffer
	opts := options()
	opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	start(t, opts)
	if log.Len() != 0 {
		t.Errorf("loopback: %q", log.String())
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.warnIfOpen(&net.TCPAddr{IP: net.IPv4zero, Port: 2900})
	if !strings.Contains(log.String(), "no password") {
		t.Errorf("all interfaces: %q", log.String())
	}
}

func TestNewRefuses(t *testing.T) {
	f := func(change func(*Options), want string) {
		t.Helper()
		opts := options()
		change(&opts)
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	f(func(o *Options) { o.Addr = "127.0.0.1" }, `address "127.0.0.1"`)
	f(func(o *Options) { o.Metrics = nil }, "required")
	f(func(o *Options) { o.Logger = nil }, "required")
	f(func(o *Options) { o.Info = nil }, "required")
}

func TestLifeCycle(t *testing.T) {
	s, err := New(options())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := s.Start(); err == nil {
		t.Error("started after Close")
	}
	s = start(t, options())
	if err := s.Start(); err == nil {
		t.Error("started twice")
	}
}

func TestCloseEndsLongRequests(t *testing.T) {
	entered := make(chan struct{})
	s := start(t, options())
	s.Handle("GET /_weir/stream", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}))
	var wg sync.WaitGroup
	wg.Go(func() { ask(t, s, "GET", "/_weir/stream") })
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := start(t, options())
	s.Handle("GET /_weir/stuck", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-release
	}))
	var wg sync.WaitGroup
	wg.Go(func() {
		resp, err := (&http.Transport{}).RoundTrip(mustRequest(t, "http://"+s.Addr()+"/_weir/stuck"))
		if err == nil {
			_ = resp.Body.Close()
			t.Error("answered by a server that was closed")
		}
	})
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	wg.Wait()
	close(release)
}

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestWhatCannotBeMarshalledIsAnError(t *testing.T) {
	s := start(t, options())
	s.Handle("GET /_weir/bad", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, func() {})
	}))
	status, _, body := ask(t, s, "GET", "/_weir/bad")
	var got struct{ Status int }
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{500, 500}, []int{status, got.Status}); diff != "" {
		t.Error(diff)
	}
}
