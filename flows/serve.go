package flows

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"weir/elastic"
	"weir/internal/wire"
)

// handle serves one request. It is the way of an exchange from top to bottom.
func (e *Entry) handle(fc *fasthttp.RequestCtx) {
	c, _ := fc.Conn().(*conn)
	if c.resumeExpect(fc) {
		return // the exchange began before its body was asked for; see expect.go
	}
	x := e.begin(fc, c)
	e.run(x)
	e.answer(x, fc)
}

// begin makes an exchange of a request whose head has come.
func (e *Entry) begin(fc *fasthttp.RequestCtx, c *conn) *Exchange {
	c.inHead, c.serving, c.streaming, c.bodyBytes = false, true, false, 0
	c.enter(phaseHandler)
	x := c.spare
	if c.spare = nil; x == nil {
		x, _ = e.pool.Get().(*Exchange)
	}
	x.Start = time.Now()
	x.conn = c
	h := &fc.Request.Header
	r := &x.Request
	r.Method, r.Host, r.HTTP10, r.TLS = h.Method(), nil, !h.IsHTTP11(), e.tls != nil
	r.setTarget(h.RequestURI())
	r.Peer = c.peer
	r.ClientIP = r.Peer.Addr()
	r.Body.budget, x.Response.Body.budget = e.budget, e.budget
	return x
}

// peerOf returns the address of the other end.
func peerOf(c net.Conn) netip.AddrPort {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		ap := tcp.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// run checks the head, routes the exchange and serves it. Whatever happens, the response is filled when it returns.
func (e *Entry) run(x *Exchange) {
	err := e.admit(x)
	if err == nil {
		err = e.route(x)
	}
	if err == nil && !x.Response.Answered() {
		err = errNoAnswer(x.Trace.Flow)
	}
	if err != nil {
		e.fail(x, err)
	}
}

// admit parses the head strictly and refuses what is malformed, ambiguous or too large.
func (e *Entry) admit(x *Exchange) error {
	fc := x.conn.request
	r, raw := &x.Request, fc.Request.Header.RawHeaders()
	if len(raw) > e.limits.maxHead {
		return x.refuse(431, "too_long_http_header_exception", fmt.Sprintf("HTTP header is larger than %d bytes.", e.limits.maxHead))
	}
	if err := wire.ParseFields(&r.Header, raw); err != nil {
		return x.refuse(400, "invalid_http_header_exception", "malformed header: "+err.Error())
	}
	framing, err := wire.FramingOf(&r.Header)
	if err != nil {
		return x.refuse(400, "invalid_http_header_exception", "ambiguous request: "+err.Error())
	}
	hosts := 0
	var expect []byte
	for _, f := range r.Header.Fields() {
		switch len(f.Name) {
		case len("host"):
			if wire.EqualFold(f.Name, "host") {
				hosts++
				r.Host = f.Value
			}
		case len("expect"):
			if wire.EqualFold(f.Name, "expect") {
				expect = f.Value
			}
		case len("authorization"):
			if wire.EqualFold(f.Name, "authorization") && r.User == nil {
				x.setUser(f.Value)
			}
		}
	}
	switch {
	case hosts > 1:
		return x.refuse(400, "invalid_http_header_exception", wire.ErrTwoHosts.Error())
	case hosts == 0 && !r.HTTP10:
		return x.refuse(400, "invalid_http_header_exception", "no Host")
	}
	if len(r.Target)+len(r.Method) > e.limits.maxLine {
		return x.refuse(414, "too_long_http_line_exception",
			fmt.Sprintf("An HTTP line is larger than %d bytes.", e.limits.maxLine))
	}
	if len(r.Target) == 0 || r.Target[0] != '/' || string(r.Method) == "CONNECT" {
		if err := x.absoluteForm(); err != nil {
			return err
		}
	}
	if expect != nil && !wire.EqualFold(expect, "100-continue") {
		return x.refuse(http.StatusExpectationFailed, "expectation_failed_exception", "the only expectation known is 100-continue")
	}
	if framing.Length > e.limits.maxBody {
		return x.bodyTooLarge(e.limits.maxBody)
	}
	switch {
	case framing.Chunked:
		r.Body.ReplaceStream(x.bodyReader(-1), -1)
	case framing.Length > 0:
		r.Body.ReplaceStream(x.bodyReader(framing.Length), framing.Length)
	}
	// What belongs to this connection only is not part of the request: nobody may decide by it what the node never sees.
	r.Header.DropHopByHop()
	return nil
}

// absoluteForm takes the path out of a request target in absolute form (RFC 9112 section 3.2.2), which clients send
// that think they talk to a forward proxy. The host named there is never dialled. CONNECT and authority forms are
// refused.
func (x *Exchange) absoluteForm() error {
	r := &x.Request
	if string(r.Method) == "OPTIONS" && string(r.Target) == "*" {
		return nil
	}
	scheme, rest, ok := bytes.Cut(r.Target, []byte("://"))
	if !ok || !wire.EqualFold(scheme, "http") && !wire.EqualFold(scheme, "https") || string(r.Method) == "CONNECT" {
		return x.refuse(400, "illegal_argument_exception", "request target is not a path: this is not a forward proxy")
	}
	i := bytes.IndexAny(rest, "/?")
	authority := rest
	if i >= 0 {
		authority = rest[:i]
	}
	if !bytes.EqualFold(authority, r.Host) {
		return x.refuse(400, "illegal_argument_exception", "request target names another host than the Host field")
	}
	switch {
	case i < 0:
		r.setTarget([]byte("/"))
	case rest[i] == '?':
		r.setTarget(append([]byte("/"), rest[i:]...))
	default:
		r.setTarget(rest[i:])
	}
	return nil
}

// refuse returns an error after which the connection cannot go on: what the client sends next cannot be told from the
// rest of this request.
func (x *Exchange) refuse(status int, typ, reason string) *elastic.Error {
	x.conn.linger = true
	x.Trace.Outcome = Denied
	return &elastic.Error{Status: status, Type: typ, Reason: reason}
}

func (x *Exchange) bodyTooLarge(limit int64) *elastic.Error {
	return x.refuse(413, "content_too_long_exception", fmt.Sprintf("request body is over the limit of %d bytes", limit))
}

// bodyFailed returns what a client gets whose body did not come as announced.
func (x *Exchange) bodyFailed(be *bodyError) *elastic.Error {
	var timeout net.Error
	switch {
	case errors.As(be, &timeout) && timeout.Timeout():
		return x.refuse(408, "request_timeout_exception",
			fmt.Sprintf("the request's body did not come on within %s", x.conn.entry.limits.read))
	case errors.Is(be, io.ErrUnexpectedEOF), errors.Is(be, errNoBody):
		e := x.refuse(400, "illegal_argument_exception", "the request's body broke off")
		x.Trace.Outcome = ClientGone
		return e
	}
	return x.refuse(400, "illegal_argument_exception", "malformed request body: "+be.cause.Error())
}

// setUser notes the user name of Basic credentials. It is what the caller says, not proven.
func (x *Exchange) setUser(authorization []byte) {
	if len(authorization) < 6 || len(authorization) > 1024 || !wire.EqualFold(authorization[:6], "basic ") {
		return
	}
	plain, err := base64.StdEncoding.AppendDecode(x.scratch[:0], bytes.TrimSpace(authorization[6:]))
	x.scratch = plain
	if user, _, ok := bytes.Cut(plain, []byte{':'}); ok && err == nil {
		x.Request.User = user
	}
}

// route runs the flow that the entry's router picks. A panic in a filter becomes an error.
func (e *Entry) route(x *Exchange) (err error) {
	for {
		x.gen = e.current.Load()
		if x.gen.enter() {
			break
		}
	}
	if x.router = x.gen.Router(e.config.Router); x.router == nil {
		return &elastic.Error{Status: 503, Type: "no_route_exception", Reason: errNoRouter.Error()}
	}
	t := x.router.route(x)
	x.Trace.Flow = t.name
	defer func() {
		if p := recover(); p != nil {
			e.metrics.panics.Inc()
			e.logger.Error("a filter panicked", "flow", t.name, "panic", p, "stack", string(debug.Stack()))
			err = elastic.Errorf(500, "gateway_exception", "a filter of flow [%s] failed", t.name)
		}
	}()
	return t.chain.Serve(x)
}

// fail makes err the response. A failure is never answered in a way that clients take for a fact of the cluster.
func (e *Entry) fail(x *Exchange, err error) {
	switch {
	case errors.Is(err, ErrBodyTooLarge):
		err = x.bodyTooLarge(e.limits.maxBody)
	case errors.Is(err, ErrBudget):
		err = &elastic.Error{
			Status: 429, Type: "circuit_breaking_exception", RetryAfter: time.Second,
			Reason: "the gateway's memory budget for bodies is used up",
		}
	case x.cancel.Fired():
		x.Trace.Outcome = ClientGone
	}
	if be := (*bodyError)(nil); errors.As(err, &be) && !errors.As(err, new(*elastic.Error)) {
		err = x.bodyFailed(be)
	}
	ee := elastic.AsError(err)
	x.Trace.Err = ee
	if x.Trace.Outcome == Local || x.Trace.Outcome == Upstream {
		x.Trace.Outcome = Failed
	}
	if ee.Status >= 500 && ee.Cause != nil && x.Trace.Outcome != ClientGone {
		e.logFailure(x, ee)
	}
	x.Reply(ee.Status, "application/json", ee.Body())
	x.Response.Header.Add(gatewayName, gatewayValue)
	for _, f := range ee.Fields {
		x.Response.Header.Add(f.Name, f.Value)
	}
	if len(x.Trace.Cache) > 0 {
		// A cache cannot say it where there is no answer yet but an error on its way up.
		x.Response.Header.Add(cacheStatusName, x.Trace.Cache)
	}
	if s := ee.RetryAfterSeconds(); s > 0 {
		x.Response.Header.AddString("Retry-After", fmt.Sprint(s))
	}
}

// gatewayName marks answers that the gateway made by itself.
var (
	gatewayName     = []byte("X-Weir-Error")
	gatewayValue    = []byte("true")
	cacheStatusName = []byte("Cache-Status")
)

// answer hands the response to the server. The exchange ends when it has been written; see written.
func (e *Entry) answer(x *Exchange, fc *fasthttp.RequestCtx) {
	c := x.conn
	c.serving = false
	c.unread = !x.Request.Body.Buffered() && !x.bodyRead()
	resp := &fc.Response
	resp.SetStatusCode(x.Response.Status)
	for _, f := range x.Response.Header.Fields() {
		if wire.EqualFold(f.Name, "content-type") {
			resp.Header.SetContentTypeBytes(f.Value)
			continue
		}
		resp.Header.AddBytesKV(f.Name, f.Value)
	}
	if c.interrupted.Load() || x.body.length < 0 && len(fc.Request.Header.PeekTrailerKeys()) > 0 {
		// The server library reads trailers leniently: what comes behind them cannot be trusted to be a request.
		c.linger = true
	}
	if c.linger || e.closing.Load() {
		fc.SetConnectionClose()
	}
	if c.unread && e.tooMuchToDrain(x) {
		c.linger = true
		fc.SetConnectionClose()
	}
	switch body := &x.Response.Body; {
	case body.stream == nil && len(body.data) == 0 && body.length > 0 && string(x.Request.Method) == "HEAD":
		// The node's answer to HEAD announces the length of what GET would get.
		resp.SkipBody = true
		resp.Header.SetContentLength(int(body.length))
	case body.stream == nil:
		resp.SetBodyRaw(body.data)
	case x.Request.HTTP10 && body.length < 0:
		e.conclude(x)
		c.pending = append(c.pending, x)
		c.streaming = true
		e.answerHTTP10(x, fc)
		return
	default:
		c.streaming = true
		resp.ImmediateHeaderFlush = true
		resp.SetBodyStream(x.responseStream(), int(body.length))
	}
	e.conclude(x)
	c.pending = append(c.pending, x)
}

// conclude notes of a request what will be needed when the answer has been written: the server may then have given
// the request's memory to another connection.
func (e *Entry) conclude(x *Exchange) {
	x.class = classes
	if x.classified || x.router != nil && x.router.tracing != nil {
		x.class = int(x.Call().Class)
	}
	if x.router != nil && x.router.tracing != nil {
		x.served = time.Since(x.Start)
		x.trace, _ = e.pool.Get().(*Exchange)
		x.snapshot(x.trace, x.router.traceBodies)
	}
}

// drainable is how much of a request body that no filter wanted is read to keep the connection.
const drainable = 256 << 10

func (e *Entry) tooMuchToDrain(x *Exchange) bool {
	n := x.Request.Body.length
	return n < 0 || n > drainable
}

// answerHTTP10 writes an answer of unknown length for a client that cannot read chunks: the end of the connection ends
// the body (RFC 9112 section 6.3). The server has no form for that: it is written here, and what the server writes after
// it goes nowhere.
func (e *Entry) answerHTTP10(x *Exchange, fc *fasthttp.RequestCtx) {
	fc.SetConnectionClose()
	c := x.conn
	defer func() { c.mute = true }()
	head := fmt.Appendf(x.scratch[:0], "HTTP/1.1 %d %s\r\nConnection: close\r\n", x.Response.Status, http.StatusText(x.Response.Status))
	for _, f := range x.Response.Header.Fields() {
		head = append(append(append(append(head, f.Name...), ": "...), f.Value...), "\r\n"...)
	}
	if _, err := c.Write(append(head, "\r\n"...)); err != nil {
		return
	}
	if _, err := io.Copy(writerOnly{c}, x.responseStream()); err != nil {
		// An end that was not the end must not look like one.
		_ = c.raw.SetLinger(0)
	}
}

// writerOnly hides all but Write, so that io.Copy does not read around it.
type writerOnly struct{ io.Writer }

// written ends an exchange whose answer has been written, or could not be: it counts it, runs the tracing flow and
// gives everything back.
func (e *Entry) written(x *Exchange) {
	taken := time.Since(x.Start)
	e.metrics.count(x, taken)
	c := x.conn
	if x.watched {
		c.unwatch(x)
	}
	if x.trace != nil {
		e.runTrace(x, taken)
	}
	gen := x.gen
	x.reset()
	if c.spare == nil {
		c.spare = x
	} else {
		e.pool.Put(x)
	}
	if gen != nil {
		gen.leave()
	}
}

// handleError answers a request that the server could not read.
func (e *Entry) handleError(fc *fasthttp.RequestCtx, err error) {
	c, _ := fc.Conn().(*conn)
	c.linger = true
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	var ee *elastic.Error
	switch {
	case errors.As(err, &small):
		ee = elastic.Errorf(431, "too_long_http_header_exception", "HTTP header is larger than %d bytes.",
			int64(e.config.MaxHeaderSize))
	case errors.As(err, &timeout) && timeout.Timeout():
		ee = elastic.Errorf(408, "request_timeout_exception", "the request did not come within %s", e.limits.head)
	case errors.Is(err, io.ErrUnexpectedEOF):
		ee = elastic.Errorf(400, "illegal_argument_exception", "the request ended early")
	default:
		ee = elastic.Errorf(400, "illegal_argument_exception", "malformed HTTP request")
	}
	e.metrics.refuse(ee.Status)
	fc.Response.Reset()
	fc.Response.SetStatusCode(ee.Status)
	fc.Response.Header.SetContentType("application/json")
	fc.Response.Header.AddBytesKV(gatewayName, gatewayValue)
	fc.Response.SetBodyRaw(ee.AppendBody(nil))
}

// bytesOf returns the bytes of s without a copy. They must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
