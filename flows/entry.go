package flows

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"weir/elastic"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
)

// EntryConfig is one item of the section entry: a listener and its limits.
type EntryConfig struct {
	// Name of the entry in logs and metrics.
	Name string `conf:"name,required"`
	// An entry that is switched off does not listen.
	Enabled bool `conf:"enabled"`
	// Router that its requests go to.
	Router string `conf:"router,required"`
	// Where it listens.
	Network NetworkConfig `conf:"network"`
	// Encryption towards clients.
	TLS EntryTLSConfig `conf:"tls"`
	// Connections open at the same time; more wait in the kernel's queue.
	MaxConnections int `conf:"max_connections,alias=max_concurrency" min:"1"`
	// Longest block of header fields. Elasticsearch 8 and OpenSearch 3 take 16kb, older ones 8kb.
	MaxHeaderSize conf.Bytes `conf:"max_header_size" min:"256b"`
	// Longest request line; nodes take 4kb.
	MaxRequestLine conf.Bytes `conf:"max_request_line" min:"256b"`
	// Longest request body; nodes take 100mb (http.max_content_length).
	MaxBodySize conf.Bytes `conf:"max_body_size"`
	// Time for a request's line and header to arrive once its first byte has.
	HeaderTimeout conf.Duration `conf:"header_timeout" min:"1ms"`
	// Time that a connection may stay open between requests.
	IdleTimeout conf.Duration `conf:"idle_timeout" min:"1ms"`
	// Time without a byte after which a request body is given up.
	ReadTimeout conf.Duration `conf:"read_timeout" min:"1ms"`
	// Time without a byte taken by the client after which an answer is given up.
	WriteTimeout conf.Duration `conf:"write_timeout" min:"1ms"`
	// Bytes a second below which a body is given up, in either direction: of the time that the entry waits for the client,
	// and not before read_timeout or write_timeout. 0 sets no rate.
	MinRate conf.Bytes `conf:"min_rate"`
	// Proxies and balancers in front whose word counts: their X-Forwarded-For says who called, and fields that claim an
	// identity pass. From everybody else those fields are taken out.
	TrustedProxies []conf.Network `conf:"trusted_proxies"`
	// Fields that clusters may believe when they come from here, and that only trusted_proxies may send; a * at the end
	// stands for any rest.
	IdentityFields conf.Strings `conf:"identity_fields"`
	// Fields that tell nodes who called. What trusted_proxies wrote is continued, what others wrote replaced; with off the
	// client's fields pass as they are.
	Forwarded ForwardedMode `conf:"forwarded" enum:"x_forwarded,rfc7239,both,off"`
	// Name in the field Via that nodes get; none by default.
	Via string `conf:"via"`
	// Tell requests with the field X-Weir-Explain, whatever its value, where their answer comes from: X-Weir-Cluster, X-Weir-Node
	// and X-Weir-Attempts, the number of attempts on nodes. Answers of a cache, and those that no node was asked for, have none of them. Whoever
	// reaches the entry can learn addresses of nodes then.
	Explain bool `conf:"explain"`
}

// NetworkConfig says where an entry listens.
type NetworkConfig struct {
	// Address and port, such as 0.0.0.0:8000.
	Binding string `conf:"binding"`
	// Take the next free port if the port is taken, and say so in the log.
	SkipOccupiedPort bool `conf:"skip_occupied_port"`
	// Share the port with other processes that do the same (SO_REUSEPORT).
	ReusePort bool `conf:"reuse_port"`
	// Connections begin with the address of the caller in the PROXY protocol, version 1 or 2, as balancers send it. Only
	// trusted_proxies may connect then.
	ProxyProtocol bool `conf:"proxy_protocol"`
}

// EntryTLSConfig says how an entry encrypts.
type EntryTLSConfig struct {
	// Serve HTTPS.
	Enabled bool `conf:"enabled"`
	// Certificate chain in PEM. Without one a self-signed certificate is made and kept under path.data.
	CertFile string `conf:"cert_file"`
	// Private key in PEM.
	KeyFile string `conf:"key_file"`
	// Oldest version spoken.
	MinVersion string `conf:"min_version" enum:"1.2,1.3"`
	// Authorities in PEM whose client certificates are accepted. Nodes do not see a client's certificate: what it proves
	// ends here, and belongs to the identity by which caches tell callers apart.
	ClientCAFile string `conf:"client_ca_file"`
	// Refuse clients without a certificate of client_ca_file.
	ClientCertRequired bool `conf:"client_cert_required"`
}

// DefaultEntry returns the defaults of an entry.
func DefaultEntry() EntryConfig {
	return EntryConfig{
		Enabled: true, Network: NetworkConfig{Binding: "0.0.0.0:8000"}, TLS: EntryTLSConfig{MinVersion: "1.2"},
		MaxConnections: 10_000, MaxHeaderSize: 16 << 10, MaxRequestLine: 4 << 10, MaxBodySize: 100 << 20,
		HeaderTimeout: conf.Duration(10 * time.Second), IdleTimeout: conf.Duration(5 * time.Minute),
		ReadTimeout: conf.Duration(30 * time.Second), WriteTimeout: conf.Duration(60 * time.Second),
		MinRate: 240, IdentityFields: defaultIdentity(), Forwarded: ForwardedX,
	}
}

// limits are an entry's limits in the form that its connections ask for.
type limits struct {
	head, idle, read, write time.Duration
	minRate                 int64 // bytes a second
	maxLine, maxHead        int
	maxBody                 int64
}

const (
	sweepInterval = 50 * time.Millisecond
	watchAfter    = 100 * time.Millisecond // running exchanges whose client is looked after
	lastRequest   = time.Second            // what a connection gets to bring a request when the entry ends
)

// An Entry accepts connections on one address and serves the requests on them. Its listener and its connections
// survive reloads; what a request meets is the generation in force when it comes.
type Entry struct {
	config  EntryConfig
	limits  limits
	callers callers
	logger  *slog.Logger
	failLog *obs.Throttle // repeated lines, see logFailure
	metrics *entryMetrics
	current atomic.Pointer[Generation]
	tls     *tls.Config

	began    time.Time    // of serving; ages are measured from it, since a step of the wall clock must make nobody late
	clock    atomic.Int64 // coarse time since then in milliseconds, moved on by the sweeper
	listener net.Listener
	slots    chan struct{} // one for each connection
	closing  atomic.Bool
	stop     chan struct{}
	tasks    sync.WaitGroup // acceptor, sweeper and connections
	pool     sync.Pool      // of *Exchange
	budget   *Budget

	mu    sync.Mutex // guards conns
	conns map[*conn]struct{}
}

// NewEntry makes an entry. tlsConfig is nil for plain HTTP. Use must come before Serve.
func NewEntry(c EntryConfig, tlsConfig *tls.Config, m *obs.Metrics, budget *Budget, logger *slog.Logger) (*Entry, error) {
	metrics, err := newEntryMetrics(m, c.Name)
	if err != nil {
		return nil, err
	}
	logger = logger.With("entry", c.Name)
	e := &Entry{
		config: c, tls: tlsConfig, metrics: metrics, budget: budget,
		logger: logger, failLog: obs.NewThrottle(logger, time.Minute), slots: make(chan struct{}, connections(c.MaxConnections, logger)),
		stop: make(chan struct{}), conns: map[*conn]struct{}{}, callers: newCallers(&c),
		limits: limits{
			head: time.Duration(c.HeaderTimeout), idle: time.Duration(c.IdleTimeout),
			read: time.Duration(c.ReadTimeout), write: time.Duration(c.WriteTimeout), minRate: int64(c.MinRate),
			maxLine: int(c.MaxRequestLine), maxHead: int(c.MaxHeaderSize), maxBody: int64(c.MaxBodySize),
		},
	}
	e.pool.New = func() any {
		x := &Exchange{Entry: c.Name, in: buffer{b: make([]byte, firstBuffer)}}
		x.Request.Body.budget, x.Response.Body.budget = budget, budget
		return x
	}
	return e, nil
}

// ownFiles is how many files are left to other things than connections of clients and to nodes.
const ownFiles = 64

// connections returns how many connections an entry takes that is to take wanted: not more than half of the files that the
// process may open, since each may need another one to a node, less some for queues, files and the admin listener.
func connections(wanted int, logger *slog.Logger) int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return wanted
	}
	most := max(1, (files.Cur-min(files.Cur/2, ownFiles))/2)
	if uint64(wanted) <= most {
		return wanted
	}
	logger.Warn("max_connections is more than the files that the process may open (ulimit -n) suffice for", "max_connections", wanted,
		"files", files.Cur, "taken", most)
	return int(most)
}

// Listen opens the entry's port. With skip_occupied_port it takes the next free one of the following hundred.
func (e *Entry) Listen(ctx context.Context) error {
	n := e.config.Network
	host, port, err := net.SplitHostPort(n.Binding)
	if err != nil {
		return fmt.Errorf("entry %s: binding %q: %w", e.config.Name, n.Binding, err)
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("entry %s: port %q is not a number", e.config.Name, port)
	}
	last := first
	if n.SkipOccupiedPort && first > 0 {
		last = min(first+100, 65535)
	}
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		if !n.ReusePort {
			return nil
		}
		var serr error
		if cerr := rc.Control(func(fd uintptr) {
			serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}); cerr != nil {
			return cerr
		}
		return serr
	}}
	for p := first; ; p++ {
		addr := net.JoinHostPort(host, strconv.Itoa(p))
		e.listener, err = lc.Listen(ctx, "tcp", addr)
		if err == nil {
			if p != first {
				e.logger.Warn("port is taken, using the next free one", "wanted", n.Binding, "address", e.Addr())
			}
			return nil
		}
		if p >= last || !errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("entry %s: %w", e.config.Name, err)
		}
	}
}

// Addr returns the address that the entry listens on.
func (e *Entry) Addr() string { return e.listener.Addr().String() }

// Name returns the entry's name.
func (e *Entry) Name() string { return e.config.Name }

// Use makes requests that come from now on meet the generation g. The one before may be retired then.
func (e *Entry) Use(g *Generation) { e.current.Store(g) }

// Serve accepts connections until Shutdown.
func (e *Entry) Serve() {
	e.began = time.Now()
	e.tasks.Add(2)
	go e.accept()
	go e.sweep()
}

func (e *Entry) accept() {
	defer e.tasks.Done()
	backoff := time.NewTimer(0)
	defer backoff.Stop()
	for {
		select {
		case e.slots <- struct{}{}:
		case <-e.stop:
			return
		}
		nc, err := e.listener.Accept()
		if err != nil {
			<-e.slots
			if e.closing.Load() || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors and the like: go on when it may be over.
			e.failLog.Log(slog.LevelError, "cannot accept", "cannot accept a connection", "error", err)
			backoff.Reset(100 * time.Millisecond)
			select {
			case <-backoff.C:
			case <-e.stop:
				return
			}
			continue
		}
		c := newConn(e, nc)
		e.mu.Lock()
		e.conns[c] = struct{}{}
		e.mu.Unlock()
		e.metrics.connections.Inc()
		e.tasks.Add(1)
		go e.serveConn(c)
	}
}

// serveConn serves one connection.
func (e *Entry) serveConn(c *conn) {
	defer e.tasks.Done()
	defer func() {
		c.drop()
		c.shut()
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		<-e.slots
		e.metrics.connections.Dec()
	}()
	if e.config.Network.ProxyProtocol && !e.meetProxy(c) || e.tls != nil && !e.handshake(c) {
		return
	}
	for c.await() && e.serve(c) {
	}
}

// meetProxy reads the header of the PROXY protocol with which a balancer begins a connection.
func (e *Entry) meetProxy(c *conn) bool {
	c.enter(phaseHead)
	if !c.trusted {
		e.failLog.Log(slog.LevelWarn, "stranger", "connection refused: the peer is not one of trusted_proxies", "peer", c.peer)
		return false
	}
	p := proxyproto.NewConn(&proxied{Conn: c.Conn}, proxyproto.SetReadHeaderTimeout(e.limits.head), proxyproto.WithPolicy(proxyproto.REQUIRE))
	header := p.ProxyHeader()
	if header == nil {
		e.failLog.Log(slog.LevelWarn, "no PROXY header", "connection refused: it does not begin with a header of the PROXY protocol", "peer", c.peer)
		return false
	}
	c.trusted = false // the balancer may stand for anybody, itself included when it names nobody
	if peer, ok := addrPort(header.SourceAddr); ok && header.Command.IsProxy() {
		c.peer = peer
		c.trusted = e.callers.trusts(c.peer.Addr())
	}
	c.Conn = p
	return true
}

// proxied reads the connection of a balancer. The text form of the PROXY header is to be read at one go by those who parse
// it, and may come in pieces.
type proxied struct {
	net.Conn
	begun bool
}

func (p *proxied) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if p.begun {
		return n, err
	}
	p.begun = true
	const text, longest = "PROXY", 107
	for err == nil && n < min(longest, len(b)) && strings.HasPrefix(text, string(b[:min(n, len(text))])) && bytes.IndexByte(b[:n], '\n') < 0 {
		var m int
		m, err = p.Conn.Read(b[n:])
		n += m
	}
	return n, err
}

// handshake makes the connection one of TLS. A client that speaks plain HTTP is told so.
func (e *Entry) handshake(c *conn) bool {
	t := tls.Server(c.Conn, e.tls)
	c.enter(phaseHead)
	if err := t.Handshake(); err != nil {
		e.metrics.handshakes.Inc()
		e.logger.Debug("TLS handshake failed", "peer", c.RemoteAddr(), "error", err)
		if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) && plain.Conn != nil && isHTTP(plain.RecordHeader[:]) {
			body := elastic.Errorf(400, "invalid_http_line_exception", "plain HTTP on a port that speaks HTTPS").Body()
			length := len(body)
			if string(plain.RecordHeader[:]) == "HEAD " {
				body = nil
			}
			_, _ = fmt.Fprintf(plain.Conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/json\r\n"+
				"%s: %s\r\nContent-Length: %d\r\n\r\n%s", gatewayName, gatewayValue, length, body)
			c.linger = true
		}
		return false
	}
	c.Conn = t
	if certs := t.ConnectionState().PeerCertificates; len(certs) > 0 {
		c.cert = certs[0]
	}
	return true
}

// isHTTP tells whether the first bytes of a connection are those of a request line.
func isHTTP(b []byte) bool { return len(b) > 2 && wire.ValidToken(b[:3]) }

// sweep moves the coarse clock, ends what lasts too long and looks whether clients that wait are still there.
func (e *Entry) sweep() {
	defer e.tasks.Done()
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	var conns []*conn
	for {
		select {
		case at := <-tick.C:
			now := at.Sub(e.began).Milliseconds()
			e.clock.Store(now)
			conns = e.snapshot(conns[:0])
			for _, c := range conns {
				e.look(c, now)
			}
			clear(conns)
		case <-e.stop:
			return
		}
	}
}

func (e *Entry) snapshot(into []*conn) []*conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		into = append(into, c)
	}
	return into
}

// look judges one connection.
func (e *Entry) look(c *conn, now int64) {
	state := c.state.Load()
	age := time.Duration(now-state>>8) * time.Millisecond
	switch p := phase(state & 0xff); p {
	case phaseIdle:
		// A connection that was accepted just now is about to bring a request.
		if age > e.limits.idle || e.closing.Load() && (c.used.Load() || age > lastRequest) {
			c.interrupt(p)
		}
	case phaseHead:
		if age > e.limits.head {
			c.interrupt(p)
		}
	case phaseHandler:
		if age > watchAfter {
			c.cancelIfGone()
		}
	case phaseBody:
		if age > e.limits.read {
			c.interrupt(p)
		}
	case phaseWrite:
		if age > e.limits.write {
			_ = c.Conn.SetWriteDeadline(past)
		}
	}
}

// Shutdown stops accepting, lets running exchanges finish until ctx is done and then cuts them off. It returns ctx's
// error if it had to.
func (e *Entry) Shutdown(ctx context.Context) error {
	e.closing.Store(true)
	_ = e.listener.Close()
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(sweepInterval)
		defer tick.Stop()
		for e.open() > 0 {
			<-tick.C
		}
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
		for _, c := range e.snapshot(nil) {
			c.mu.Lock()
			if c.waiting != nil {
				c.waiting.cancel.Fire()
			}
			c.mu.Unlock()
			_ = c.raw.SetLinger(0) // half an answer must not end like a whole one
			_ = c.Conn.Close()
		}
		<-done
	}
	close(e.stop)
	e.tasks.Wait()
	e.failLog.Close()
	return err
}

// open returns the number of open connections.
func (e *Entry) open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.conns)
}

// Inherit takes over the listener of old, which stops accepting. Connections that old has accepted stay with it.
func (e *Entry) Inherit(old *Entry) error {
	tcp, ok := old.listener.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("entry %s: listener %T cannot be handed over", e.config.Name, old.listener)
	}
	file, err := tcp.File()
	if err != nil {
		return fmt.Errorf("entry %s: %w", e.config.Name, err)
	}
	defer func() { _ = file.Close() }()
	e.listener, err = net.FileListener(file)
	if err != nil {
		return fmt.Errorf("entry %s: %w", e.config.Name, err)
	}
	return nil
}

// Abandon closes the listener of an entry that was never served.
func (e *Entry) Abandon() { _ = e.listener.Close() }
