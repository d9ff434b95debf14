// Package admin is the listener for people and machines that run Weir: metrics, health, readiness, profiles, state and
// reload. Other parts add pages of their own with [Server.Handle].
//
// It is not the gateway's front: no request of a client comes here, speed does not matter, and net/http serves it. It
// knows no users, so it listens on 127.0.0.1 unless told otherwise and says in the log when it can be reached from
// elsewhere; a proxy in front can add a password. What it does check is what a loopback address does not keep out, the
// browser on the same machine: names of hosts that are not its own (DNS rebinding) and requests of other sites.
//
// Limits: 64 connections, headers of 16 KiB, bodies of 1 MiB, 5 s for a header, 30 s for a request and 30 s for an
// answer (profiles and a reload take as long as they need), one reload at a time.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	maxConnections = 64
	maxHeader      = 16 << 10
	maxBody        = 1 << 20
	headerTimeout  = 5 * time.Second
	requestTimeout = 30 * time.Second
	answerTimeout  = 30 * time.Second
	idleTimeout    = time.Minute

	// portsToTry is how many ports after an occupied one are tried: several gateways of one folder share a file.
	portsToTry = 100
)

// DefaultAddr is where the listener is if nothing else is configured.
const DefaultAddr = "127.0.0.1:2900"

// Info is what GET /_weir tells besides the times that the server knows itself.
type Info struct {
	Version     string   `json:"version"`
	Generation  uint64   `json:"generation"`   // how many configurations have been in force
	ConfigFiles []string `json:"config_files"` // all files read
}

// Options say what the listener serves. Addr, Metrics, Logger and Info are required.
type Options struct {
	Addr         string       // host:port; DefaultAddr is the usual one
	SkipOccupied bool         // take the next free of 100 ports if this one is taken
	Hosts        []string     // names, without port, under which requests may come, besides localhost, addresses and Addr's own
	Metrics      http.Handler // GET /metrics
	Logger       *slog.Logger
	Info         func() Info

	// Ready returns why the gateway cannot serve yet or any more, nothing if it can. It must not block. Nil is always ready.
	Ready func() []string

	// Reload puts a new configuration in force. Each line of its error is a root cause in the answer; an error in its
	// chain that is a json.Marshaler is shown as "problems" besides. It must not close this server: Close waits for the
	// request that runs it. Nil answers 501.
	Reload func() error
}

// Server is the admin listener. New makes it; it is used from any goroutine.
type Server struct {
	opts    Options
	mux     *http.ServeMux
	http    *http.Server
	cancel  context.CancelFunc // ends the contexts of all requests
	started time.Time
	origins *http.CrossOriginProtection

	reloading   sync.Mutex
	connections atomic.Int64
	running     sync.WaitGroup // the goroutine that accepts connections

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	closed   bool
}

// New returns a server that does not listen yet.
func New(opts Options) (*Server, error) {
	if _, _, err := net.SplitHostPort(opts.Addr); err != nil {
		return nil, fmt.Errorf("admin listener: address %q: %w", opts.Addr, err)
	}
	if opts.Metrics == nil || opts.Logger == nil || opts.Info == nil {
		return nil, errors.New("admin listener: metrics, logger and info are required")
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		opts:    opts,
		mux:     http.NewServeMux(),
		cancel:  cancel,
		started: time.Now(),
		origins: http.NewCrossOriginProtection(),
	}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState:         s.limitConnections,
	}
	s.Handle("GET /metrics", opts.Metrics)
	s.Handle("GET /healthz", http.HandlerFunc(s.alive))
	s.Handle("GET /readyz", http.HandlerFunc(s.ready))
	s.Handle("GET /_weir", http.HandlerFunc(s.info))
	s.Handle("POST /_weir/reload", http.HandlerFunc(s.reload))
	s.Handle("GET /debug/pprof/", sameSite(pprof.Index))
	s.Handle("GET /debug/pprof/cmdline", sameSite(pprof.Cmdline))
	s.Handle("GET /debug/pprof/profile", sameSite(pprof.Profile))
	s.Handle("GET /debug/pprof/symbol", sameSite(pprof.Symbol))
	s.Handle("POST /debug/pprof/symbol", sameSite(pprof.Symbol))
	s.Handle("GET /debug/pprof/trace", sameSite(pprof.Trace))
	return s, nil
}

// Handle serves a pattern of http.ServeMux ("GET /_weir/clusters/{name}") by h, before or after Start. Like
// ServeMux.Handle it panics on a malformed pattern or one that is taken: register once, not at each reload.
func (s *Server) Handle(pattern string, h http.Handler) {
	s.mux.Handle(pattern, h)
}

// Start listens and serves until Close. If the port is taken and SkipOccupied is set it listens on the next free one and
// says so in the log.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener != nil {
		return fmt.Errorf("start the admin listener on %s: it was started or closed before", s.opts.Addr)
	}
	l, err := s.listen()
	if err != nil {
		return fmt.Errorf("start the admin listener: %w", err)
	}
	s.listener = l
	addr := l.Addr().String()
	s.warnIfOpen(l.Addr())
	s.running.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Logger.Error("admin listener ended", "addr", addr, "err", err)
		}
	})
	return nil
}

func (s *Server) warnIfOpen(addr net.Addr) {
	if bound, ok := addr.(*net.TCPAddr); ok && !bound.IP.IsLoopback() {
		s.opts.Logger.Warn("admin listener can be reached from other machines and asks for no password", "addr", addr.String())
	}
}

func (s *Server) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", s.opts.Addr)
	if err == nil || !s.opts.SkipOccupied || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	host, name, splitErr := net.SplitHostPort(s.opts.Addr)
	if splitErr != nil {
		return nil, splitErr
	}
	port, lookupErr := net.LookupPort("tcp", name)
	if lookupErr != nil {
		return nil, lookupErr
	}
	last := min(port+portsToTry, 65535)
	for p := port + 1; p <= last; p++ {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(p)))
		if err == nil {
			s.opts.Logger.Info("admin address is taken, listening on the next free port", "wanted", s.opts.Addr, "addr", l.Addr().String())
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w, and so are all ports up to %d", err, last)
}

// Addr returns the address that it listens on, or "" before Start.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Close stops listening, ends the contexts of running requests (profiles and streams stop early) and waits for them.
// When ctx ends first it cuts their connections off and returns its error without waiting for handlers that ignore
// their context. It may be called twice, and without Start.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	defer s.running.Wait()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("close the admin listener on %s: %w", s.opts.Addr, err), s.http.Close())
	}
	return nil
}

// limitConnections closes connections above the limit before a byte of them is read.
func (s *Server) limitConnections(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if s.connections.Add(1) > maxConnections {
			_ = c.Close()
		}
	case http.StateClosed, http.StateHijacked:
		s.connections.Add(-1)
	}
}

// serve refuses what a browser was tricked into and gives every error a JSON body.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if !s.ownHost(r.Host) {
		WriteError(w, http.StatusForbidden, "security_exception", fmt.Sprintf("host [%s] is not a name of this listener; add it to its hosts", r.Host))
		return
	}
	if err := s.origins.Check(r); err != nil {
		WriteError(w, http.StatusForbidden, "security_exception", "the request comes from a page of another site")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if _, pattern := s.mux.Handler(r); pattern == "" {
		s.noRoute(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// ownHost tells whether a Host header can be meant for this listener. A page that a browser loaded from elsewhere can
// make the name of its site resolve to 127.0.0.1, but it cannot change the name, and an address is no name. Clients
// without Host are no browsers.
func (s *Server) ownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if name == "" || name == "localhost" {
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	if own, _, err := net.SplitHostPort(s.opts.Addr); err == nil && strings.EqualFold(own, name) {
		return true
	}
	for _, own := range s.opts.Hosts {
		if strings.EqualFold(strings.TrimSuffix(own, "."), name) {
			return true
		}
	}
	return false
}

// noRoute answers 404 or 405 as the mux would, in JSON.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) {
	answer := statusOnly{header: make(http.Header)}
	s.mux.ServeHTTP(&answer, r)
	if answer.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", answer.header.Get("Allow"))
		WriteError(w, http.StatusMethodNotAllowed, "method_not_allowed_exception",
			fmt.Sprintf("method [%s] is not allowed for [%s], allowed: [%s]", r.Method, r.URL.Path, answer.header.Get("Allow")))
		return
	}
	WriteError(w, http.StatusNotFound, "resource_not_found_exception", fmt.Sprintf("no handler for [%s %s]", r.Method, r.URL.Path))
}

// statusOnly is a ResponseWriter that keeps status and header and drops the body.
type statusOnly struct {
	header http.Header
	status int
}

func (a *statusOnly) Header() http.Header         { return a.header }
func (a *statusOnly) WriteHeader(status int)      { a.status = status }
func (a *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// sameSite keeps other sites from starting profiles by an image or a script element, which need no permission.
func sameSite(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			WriteError(w, http.StatusForbidden, "security_exception", "the request comes from a page of another site")
			return
		}
		h(w, r)
	})
}
