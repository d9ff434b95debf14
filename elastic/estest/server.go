package estest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxLine is the longest request line that a node takes (http.max_initial_line_length).
const maxLine = 4096

// A Node is one node of a cluster: a listener and its connections. All nodes share the cluster's documents.
type Node struct {
	c      *Cluster
	number int
	name   string
	id     string
	faults faults

	mu         sync.Mutex // guards the fields below
	addr       string
	listener   net.Listener
	running    bool
	stop       chan struct{} // closed by Stop
	conns      map[net.Conn]bool
	accepted   int
	publish    string
	roles      []string
	attributes map[string]string
	hasHTTP    bool
	listed     bool

	wg sync.WaitGroup // the accepting goroutine and the connections
}

// Addr returns the address, host and port, on which the node listens or listened.
func (n *Node) Addr() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addr
}

// URL returns the node's URL without a slash at its end.
func (n *Node) URL() string {
	if n.c.o.TLS != nil {
		return "https://" + n.Addr()
	}
	return "http://" + n.Addr()
}

// Name returns the node's name, "n1" for the first.
func (n *Node) Name() string { return n.name }

// ID returns the node's id, the key under which _nodes lists it.
func (n *Node) ID() string { return n.id }

// Running tells whether the node is started.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running
}

// Conns returns how many connections are open, and how many the node has accepted in all.
func (n *Node) Conns() (open, accepted int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns), n.accepted
}

// Calls returns the calls that reached the node so far.
func (n *Node) Calls() []*Call {
	var calls []*Call
	for _, call := range n.c.Calls() {
		if call.Node == n.number {
			calls = append(calls, call)
		}
	}
	return calls
}

// Publish sets the http.publish_address that _nodes gives for the node, in whatever form: "10.0.0.1:9200",
// "es1.test/10.0.0.1:9200", "inet[es1.test/10.0.0.1:9200]". The empty string stands for the real address.
func (n *Node) Publish(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.publish = address
}

// SetRoles sets the roles that _nodes gives for the node; none for a coordinating node.
func (n *Node) SetRoles(roles ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.roles = roles
}

// SetAttributes sets the attributes that _nodes gives for the node.
func (n *Node) SetAttributes(attributes map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attributes = attributes
}

// SetHTTP tells whether _nodes has an http section for the node.
func (n *Node) SetHTTP(present bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hasHTTP = present
}

// SetListed tells whether _nodes lists the node while it runs. Stopped nodes are not listed.
func (n *Node) SetListed(listed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listed = listed
}

// Start starts a stopped node on the address that it had.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running {
		return nil
	}
	if !n.c.o.InMemory {
		l, err := net.Listen("tcp", n.addr)
		if err != nil {
			return fmt.Errorf("start node %s: %w", n.name, err)
		}
		n.addr, n.listener = l.Addr().String(), l
		n.wg.Go(func() { n.acceptAll(l) })
	}
	n.running, n.stop, n.conns = true, make(chan struct{}), map[net.Conn]bool{}
	return nil
}

// Stop closes the node's listener and connections, whatever they are doing, and waits for the end of its goroutines.
// Clients see resets or refused connections, as with a killed node. Further calls do nothing.
func (n *Node) Stop() {
	n.mu.Lock()
	if n.running {
		n.running = false
		close(n.stop)
		if n.listener != nil {
			_ = n.listener.Close()
			n.listener = nil
		}
		for conn := range n.conns {
			reset(conn)
		}
	}
	n.mu.Unlock()
	n.wg.Wait()
}

// CloseIdle closes the connections on which no call is in progress, as a node does after its idle time.
func (n *Node) CloseIdle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn, busy := range n.conns {
		if !busy {
			_ = conn.Close()
		}
	}
}

func (n *Node) acceptAll(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if n.c.o.TLS != nil {
			conn = tls.Server(conn, n.c.o.TLS)
		}
		if !n.accept(conn) {
			_ = conn.Close()
		}
	}
}

// accept starts serving a connection, or returns false if the node does not run.
func (n *Node) accept(conn net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running {
		return false
	}
	n.accepted++
	n.conns[conn] = false
	s := &session{n: n, conn: conn, number: n.accepted, stop: n.stop}
	n.wg.Go(func() {
		s.serve()
		_ = conn.Close()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.conns, conn)
	})
	return true
}

func (n *Node) setBusy(conn net.Conn, busy bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running {
		n.conns[conn] = busy
	}
}

// reset closes a connection with RST where that is possible.
func reset(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = conn.Close()
}

// An answer is what a node says to a call.
type answer struct {
	status      int
	value       any    // JSON, if not nil
	pretty      bool   // for people, unless asked otherwise
	body        []byte // otherwise
	contentType string // the flavor's JSON type if empty and value is not nil
	header      []string

	// An answer that comes later: after pause, unless the client leaves before.
	pause     time.Duration
	later     func() (answer, error)
	abandoned func()
	resume    func() answer // later, as it is sent
}

// A session is one connection to a node.
type session struct {
	n      *Node
	conn   net.Conn
	number int
	stop   <-chan struct{}
	br     *bufio.Reader
	watch  chan struct{} // closed when the watch over the client ends; nil when there is none
}

// serve handles one request after the other until the connection ends.
func (s *session) serve() {
	s.br = bufio.NewReader(s.conn)
	for s.exchange() {
	}
}

// exchange handles one request and tells whether the connection stays open.
func (s *session) exchange() bool {
	head, err := s.readHead()
	if err != nil {
		return s.refuseHead(err)
	}
	s.n.setBusy(s.conn, true)
	defer s.n.setBusy(s.conn, false)
	call, ok := parseHead(head)
	if !ok {
		return s.refuseHead(&headError{"illegal_argument_exception", "invalid version format", true})
	}
	call.Node, call.Conn = s.n.number, s.number
	defer close(call.finished)
	fault := s.n.faults.pick(call)
	if fault == nil {
		fault = s.n.c.faults.pick(call)
	}
	if fault == nil {
		fault = &Fault{}
	}
	if fault.Cut == ResetBeforeBody {
		s.n.c.record(call)
		reset(s.conn)
		return false
	}
	if !fault.Early {
		if refused, goOn := s.refuseBody(call); refused {
			return goOn
		}
		call.Body, err = s.readBody(call)
	}
	s.n.c.record(call)
	if err != nil {
		return false
	}
	switch fault.Cut {
	case ResetAfterRequest:
		reset(s.conn)
		return false
	case CloseAfterRequest:
		return false
	}
	if !fault.Early {
		s.startWatch(call)
		defer s.endWatch()
	}
	a, ok := s.work(call, fault)
	if !ok {
		return false
	}
	call.status = a.status
	keep := s.write(call, fault, a)
	return keep && !fault.Early && fault.Cut != CloseAfterAnswer && !wantsClose(call)
}

func wantsClose(call *Call) bool {
	connection := strings.ToLower(call.Header.Get("Connection"))
	return strings.Contains(connection, "close") || call.Proto == "HTTP/1.0" && !strings.Contains(connection, "keep-alive")
}

// work waits as the fault wants it and then works out the answer. It returns false when the client has left or the node
// was stopped meanwhile.
func (s *session) work(call *Call, fault *Fault) (answer, bool) {
	c := s.n.c
	c.callsMu.Lock()
	c.running[call] = struct{}{}
	c.callsMu.Unlock()
	defer func() {
		c.callsMu.Lock()
		delete(c.running, call)
		c.callsMu.Unlock()
	}()
	if !s.wait(call, fault) {
		return answer{}, false
	}
	if fault.Raw != nil {
		return answer{}, true
	}
	if a, ok := fault.answer(); ok {
		return a, true
	}
	a := c.handle(s.n, call, fault)
	for a.resume != nil {
		if !s.sleep(call, a.pause) {
			c.mu.Lock()
			defer c.mu.Unlock()
			a.abandoned()
			return answer{}, false
		}
		a = a.resume()
	}
	return a, true
}

// wait waits for Hold and Delay, and returns false if the client left or the node was stopped before.
func (s *session) wait(call *Call, fault *Fault) bool {
	if fault.Hold != nil && !s.waitFor(call, fault.Hold) {
		return false
	}
	return fault.Delay == 0 || s.sleep(call, fault.Delay)
}

// sleep waits by the cluster's clock, and returns false if the client left or the node was stopped before.
func (s *session) sleep(call *Call, d time.Duration) bool {
	select {
	case <-s.n.c.clock.After(d):
		return true
	case <-call.gone:
		return false
	case <-s.stop:
		return false
	}
}

func (s *session) waitFor(call *Call, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-call.gone:
		return false
	case <-s.stop:
		return false
	}
}

// startWatch looks for the end of the client's stream while the call is worked on, and closes call.gone when it comes.
func (s *session) startWatch(call *Call) {
	done := make(chan struct{})
	s.watch = done
	go func() {
		defer close(done)
		if _, err := s.br.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) &&
			!errors.Is(err, io.ErrClosedPipe) {
			close(call.gone)
		}
	}()
}

// endWatch ends the watch, if there is one. It comes before the last write of an answer: a client that closes after
// that has got its answer.
func (s *session) endWatch() {
	if s.watch == nil {
		return
	}
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	<-s.watch
	s.watch = nil
	_ = s.conn.SetReadDeadline(time.Time{})
}

// send makes the last write of an answer, and returns false if the client has left.
func (s *session) send(call *Call, data []byte) bool {
	s.endWatch()
	select {
	case <-call.gone:
		return false
	default:
		_, err := s.conn.Write(data)
		return err == nil
	}
}

// A headError is a request head that nodes refuse.
type headError struct {
	typ, reason string
	close       bool // the node closes the connection; otherwise it keeps it open and never answers on it again
}

func (e *headError) Error() string { return e.reason }

// readHead reads up to the empty line after the header block, byte for byte.
func (s *session) readHead() ([]byte, error) {
	var head []byte
	lineEnd := 0
	for {
		line, err := s.readLine(maxLine + s.n.c.details.maxHead - len(head))
		if lineEnd == 0 && len(line) > maxLine {
			return nil, &headError{"too_long_http_line_exception", fmt.Sprintf("An HTTP line is larger than %d bytes.", maxLine), true}
		}
		head = append(head, line...)
		if lineEnd > 0 && len(head)-lineEnd > s.n.c.details.maxHead {
			return nil, &headError{
				"too_long_http_header_exception",
				fmt.Sprintf("HTTP header is larger than %d bytes.", s.n.c.details.maxHead), false,
			}
		}
		if err != nil {
			return nil, err
		}
		empty := len(bytes.TrimRight(line, "\r\n")) == 0
		switch {
		case empty && lineEnd == 0:
			head = head[:0] // a node skips empty lines before a request (RFC 9112 section 2.2)
		case empty:
			return head, nil
		case lineEnd == 0:
			lineEnd = len(head)
		}
	}
}

// readLine reads a line with its end, and stops early once it is longer than limit.
func (s *session) readLine(limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := s.br.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > limit {
			if errors.Is(err, bufio.ErrBufferFull) {
				err = nil
			}
			return line, err
		}
	}
}

// refuseHead answers a head that could not be read, and tells whether the connection stays open.
func (s *session) refuseHead(err error) bool {
	var refused *headError
	if !errors.As(err, &refused) {
		return false
	}
	call := &Call{Method: "GET", Proto: "HTTP/1.1", Header: http.Header{}}
	if refused.close {
		call.Proto = "HTTP/1.0"
	}
	e := &apiError{status: 400, typ: refused.typ, reason: refused.reason}
	s.write(call, &Fault{}, answer{status: 400, value: e.body(s.n.c.details.order)})
	if !refused.close {
		_, _ = io.Copy(io.Discard, s.br) // the silence after the answer, until the client gives up
	}
	return false
}

// refuseBody answers requests whose body a node does not want to see, and asks for the body if the client waits to be
// asked. It tells whether the request was refused and, if so, whether the connection stays open.
func (s *session) refuseBody(call *Call) (refused, goOn bool) {
	expect := call.Header.Get("Expect")
	length, _ := strconv.ParseInt(call.Header.Get("Content-Length"), 10, 64)
	status := 0
	switch {
	case expect != "" && !strings.EqualFold(expect, "100-continue"):
		status = 417
	case length > s.n.c.o.MaxContentLength:
		status = 413
	case expect != "":
		_, err := io.WriteString(s.conn, "HTTP/1.1 100 Continue\r\n\r\n")
		return err != nil, false
	default:
		return false, false
	}
	s.n.c.record(call)
	call.status = status
	if !s.write(call, &Fault{}, answer{status: status}) {
		return true, false
	}
	if expect == "" { // a client that waits to be asked sends no body now
		_, err := io.CopyN(io.Discard, s.br, length)
		return true, err == nil
	}
	return true, true
}

// readBody reads the body by its framing.
func (s *session) readBody(call *Call) ([]byte, error) {
	if strings.EqualFold(call.Header.Get("Transfer-Encoding"), "chunked") {
		body, err := io.ReadAll(httputil.NewChunkedReader(s.br))
		for err == nil {
			var line []byte
			line, err = s.readLine(maxLine)
			if len(bytes.TrimRight(line, "\r\n")) == 0 {
				break
			}
		}
		return body, err
	}
	length, err := strconv.ParseInt(call.Header.Get("Content-Length"), 10, 64)
	if err != nil || length == 0 {
		return nil, nil
	}
	body := make([]byte, length)
	n, err := io.ReadFull(s.br, body)
	return body[:n], err
}

// write sends an answer and returns false if the connection cannot be used after it.
func (s *session) write(call *Call, fault *Fault, a answer) bool {
	if fault.Raw != nil {
		s.send(call, fault.Raw)
		return false
	}
	if a.value != nil {
		a.body = encode(call, a)
		if a.contentType == "" {
			a.contentType = s.n.c.jsonType(call)
		}
	}
	var out []byte
	for _, status := range fault.Interim {
		out = fmt.Appendf(out, "HTTP/1.1 %d %s\r\n\r\n", status, statusText(status))
	}
	out = fmt.Appendf(out, "%s %d %s\r\n", call.Proto, a.status, statusText(a.status))
	for _, line := range append(a.header, fault.Header...) {
		out = append(append(out, line...), "\r\n"...)
	}
	if a.status != 413 && a.status != 417 { // those come from below the REST layer, which adds these headers
		if id := call.Header.Get("X-Opaque-Id"); id != "" {
			out = fmt.Appendf(out, "X-Opaque-Id: %s\r\n", id)
		}
		if product := s.n.c.details.product; product[0] != "" && fault.Status == 0 {
			out = fmt.Appendf(out, "%s: %s\r\n", product[0], product[1])
		}
	}
	if a.contentType != "" {
		out = fmt.Appendf(out, "content-type: %s\r\n", a.contentType)
	}
	body := a.body
	if s.n.c.o.Gzip && len(body) > 0 && strings.Contains(strings.ToLower(call.Header.Get("Accept-Encoding")), "gzip") {
		out = append(out, "content-encoding: gzip\r\n"...)
		body = zip(body)
	}
	sent := body[:max(0, len(body)-fault.Missing)]
	if fault.Chunk > 0 {
		out = append(out, "transfer-encoding: chunked\r\n\r\n"...)
		if call.Method == "HEAD" {
			return s.send(call, out)
		}
		return s.writeChunks(call, fault, out, sent)
	}
	out = fmt.Appendf(out, "content-length: %d\r\n\r\n", len(body)+fault.LengthOff)
	if call.Method != "HEAD" {
		out = append(out, sent...)
	}
	return s.send(call, out) && fault.Missing == 0
}

func (s *session) writeChunks(call *Call, fault *Fault, head, body []byte) bool {
	out := head
	for first := true; len(body) > 0; first = false {
		if !first && fault.Pause != nil && !s.waitFor(call, fault.Pause) {
			return false
		}
		n := min(fault.Chunk, len(body))
		out = fmt.Appendf(out, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
		if _, err := s.conn.Write(out); err != nil {
			return false
		}
		out = nil
	}
	if fault.Missing > 0 {
		return false
	}
	return s.send(call, append(out, "0\r\n\r\n"...))
}

func zip(body []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(body) // a Buffer takes everything
	_ = w.Close()
	return buf.Bytes()
}

func statusText(status int) string {
	if text := http.StatusText(status); text != "" {
		return text
	}
	return "Unknown"
}
