package flows

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"time"
	"unsafe"

	"weir/elastic"
	"weir/internal/wire"
)

// serve serves the next request on c: it is the way of an exchange from top to bottom. It returns false if the
// connection is to be closed.
func (e *Entry) serve(c *conn) bool {
	x := c.x
	var head wire.Head
	n, err := c.readHead(&head)
	switch {
	case err == errNoRequest:
		c.blanks++
		return c.blanks < maxBlanks
	case err != nil && !worthAnAnswer(err):
		return false
	}
	e.begin(x)
	if err == nil {
		err = e.admit(x, x.in.hold(n), head.FirstLine())
	} else {
		err = x.headFailed(err)
	}
	if err == nil {
		err = e.route(x)
	}
	if err == nil && !x.Response.Answered() {
		err = errNoAnswer(x.Trace.Flow)
	}
	if err != nil {
		e.fail(x, err)
	}
	if e.config.Explain && x.Request.Header.Has("x-weir-explain") {
		x.explain()
	}
	if x.abandoned() {
		c.last = true // a node answers nothing either
	} else if err := e.answer(x); err != nil {
		c.last = true
	}
	e.conclude(x)
	return !c.last
}

// begin makes the exchange ready for a request whose head has come, or will not.
func (e *Entry) begin(x *Exchange) {
	c := x.conn
	c.enter(phaseHandler)
	c.blanks = 0
	x.Start = time.Now()
	r := &x.Request
	r.TLS, r.Peer, r.ClientIP, r.Cert = e.tls != nil, c.peer, c.peer.Addr(), c.cert
}

// maxBlanks is how often nothing but empty lines may come in the place of a request: they must not hold a connection open.
const maxBlanks = 8

var headPrefix = []byte("HEAD ")

// worthAnAnswer tells whether a client whose request's head failed may still be there to read why.
func worthAnAnswer(err error) bool {
	return errors.Is(err, wire.ErrBareLineFeed) || errors.Is(err, wire.ErrRequestLine) || errors.Is(err, errLongLine) || errors.Is(err, errLongHead) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded)
}

// headFailed returns what a client gets whose request's head is malformed, too long or incomplete.
func (x *Exchange) headFailed(err error) *elastic.Error {
	limits := &x.conn.entry.limits
	if bytes.HasPrefix(x.in.bytes(), headPrefix) {
		x.Request.Method = headPrefix[:len("HEAD")]
	}
	switch {
	case errors.Is(err, errLongLine):
		return x.lineTooLong(limits.maxLine)
	case errors.Is(err, errLongHead):
		return x.refuse(431, "too_long_http_header_exception", fmt.Sprintf("HTTP header is larger than %d bytes.", limits.maxHead))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return x.refuse(408, "request_timeout_exception", fmt.Sprintf("the request did not come within %s", limits.head))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return x.refuse(400, "illegal_argument_exception", "the request ended early")
	}
	return x.refuse(400, "invalid_http_header_exception", "malformed request: "+err.Error())
}

// admit parses the head strictly and refuses what is malformed, ambiguous or too large.
func (e *Entry) admit(x *Exchange, head []byte, firstLine int) error {
	r := &x.Request
	line, err := wire.ParseRequestLine(head[:firstLine-len("\r\n")])
	r.Method, r.HTTP10 = line.Method, err == nil && line.Minor == 0
	if err != nil {
		return x.refuse(400, "invalid_http_line_exception", err.Error())
	}
	r.setTarget(line.Target)
	if err := wire.ParseFields(&r.Header, head[firstLine:]); err != nil {
		return x.refuse(400, "invalid_http_header_exception", "malformed header: "+err.Error())
	}
	framing, err := wire.FramingOf(&r.Header)
	if err == nil && framing.Chunked && r.HTTP10 {
		err = fmt.Errorf("%w: chunked in HTTP/1.0", wire.ErrCoding) // RFC 9112 section 6.1
	}
	if err != nil {
		return x.refuse(400, "invalid_http_header_exception", "ambiguous request: "+err.Error())
	}
	expects, err := x.examine()
	if err != nil {
		return err
	}
	if len(r.Target)+len(r.Method) > e.limits.maxLine {
		return x.lineTooLong(e.limits.maxLine)
	}
	if len(r.Target) == 0 || r.Target[0] != '/' || string(r.Method) == "CONNECT" {
		if err := x.absoluteForm(); err != nil {
			return err
		}
	}
	if framing.Length > e.limits.maxBody {
		return x.bodyTooLarge(e.limits.maxBody)
	}
	x.openBody(framing, expects && !r.HTTP10)
	return nil
}

// examine looks at the fields that the entry itself goes by, and takes those out that belong to this connection only:
// nobody may decide by what the node never sees. It tells whether the client waits for 100 Continue.
func (x *Exchange) examine() (expects bool, err error) {
	r := &x.Request
	hosts, hops, keep, claims := 0, false, false, false
	for _, f := range r.Header.Fields() {
		switch len(f.Name) {
		case len("host"):
			if wire.EqualFold(f.Name, "host") {
				hosts++
				r.Host = f.Value
			}
		case len("expect"):
			if wire.EqualFold(f.Name, "expect") {
				if expects || !wire.EqualFold(f.Value, "100-continue") {
					return false, x.refuse(http.StatusExpectationFailed, "expectation_failed_exception", "the only expectation known is 100-continue")
				}
				expects = true
			}
		case len("connection"):
			if wire.EqualFold(f.Name, "connection") {
				x.conn.last = x.conn.last || wire.HasToken(f.Value, "close")
				keep = keep || wire.HasToken(f.Value, "keep-alive")
			}
		case len("authorization"):
			if wire.EqualFold(f.Name, "authorization") && r.User == nil {
				x.setUser(f.Value)
			}
		}
		hops = hops || wire.HopByHop(f.Name)
		claims = claims || x.callers.claims(f.Name)
	}
	switch {
	case hosts > 1:
		return false, x.refuse(400, "invalid_http_header_exception", wire.ErrTwoHosts.Error())
	case hosts == 0 && !r.HTTP10:
		return false, x.refuse(400, "invalid_http_header_exception", "no Host")
	case !wire.ValidHost(r.Host):
		return false, x.refuse(400, "invalid_http_header_exception", fmt.Sprintf("malformed Host %q", r.Host))
	}
	if r.HTTP10 {
		x.keepAlive10 = keep && !x.conn.last
		x.conn.last = !x.keepAlive10
	}
	if hops {
		r.Header.DropHopByHop()
		if r.User != nil && !r.Header.Has("authorization") {
			r.User = nil // Connection named it: the node will not see it
		}
	}
	x.callers.judge(r, x.conn.trusted, claims)
	return expects, nil
}

// openBody makes the request's body: bytes, if they have all come with the head, or a stream.
func (x *Exchange) openBody(framing wire.Framing, expects bool) {
	x.body.x = x
	switch n := framing.Length; {
	case framing.Chunked:
		x.body.chunked, x.body.expect = true, expects
		x.Request.Body.ReplaceStream(&x.body, -1)
	case n <= 0:
		x.body.done = true
	case n <= int64(x.in.len()):
		x.body.done, x.RequestBytes = true, n
		x.Request.Body.Replace(x.in.hold(int(n)))
	default:
		x.body.left, x.body.expect = n, expects
		x.Request.Body.ReplaceStream(&x.body, n)
	}
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
	if port := []byte(":80"); wire.EqualFold(scheme, "http") && bytes.HasSuffix(authority, port) && !bytes.HasSuffix(r.Host, port) {
		authority = authority[:len(authority)-len(port)]
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
	x.conn.linger, x.conn.last = true, true
	x.Trace.Outcome = Denied
	return &elastic.Error{Status: status, Type: typ, Reason: reason}
}

func (x *Exchange) lineTooLong(limit int) *elastic.Error {
	return x.refuse(414, "too_long_http_line_exception", fmt.Sprintf("An HTTP line is larger than %d bytes.", limit))
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
	case errors.Is(be, io.ErrUnexpectedEOF):
		e := x.refuse(400, "illegal_argument_exception", "the request's body broke off")
		x.Trace.Outcome = ClientGone
		return e
	}
	return x.refuse(400, "illegal_argument_exception", "malformed request body: "+be.cause.Error())
}

// setUser notes the user name of Basic credentials. It is what the caller says, not proven.
func (x *Exchange) setUser(authorization []byte) {
	var user []byte
	if x.scratch, user = claim(x.scratch, authorization, "basic "); user != nil {
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
	return e.contain(x, t.name, t.chain)
}

// contain serves x by h, a part of the flow. A panic in a filter becomes an error.
func (e *Entry) contain(x *Exchange, flow string, h Handler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.metrics.panics.Inc()
			err = errPanic(p, flow, e.logger)
		}
	}()
	return h.Serve(x)
}

// errPanic tells the log of a panic in a filter of a flow, and returns what is answered.
func errPanic(p any, flow string, logger *slog.Logger) error {
	logger.Error("a filter panicked", "flow", flow, "panic", p, "stack", string(debug.Stack()))
	return elastic.Errorf(500, "gateway_exception", "a filter of flow [%s] failed", flow)
}

// fail makes err the response. A failure is never answered in a way that clients take for a fact of the cluster.
func (e *Entry) fail(x *Exchange, err error) {
	ee, plain := err.(*elastic.Error) // most often a refusal, which is to cost little
	plain = plain && ee.Cause == nil
	switch {
	case !plain && errors.Is(err, ErrBodyTooLarge):
		err = x.bodyTooLarge(e.limits.maxBody)
	case !plain && errors.Is(err, ErrBudget):
		err = &elastic.Error{
			Status: 429, Type: "circuit_breaking_exception", RetryAfter: time.Second,
			Reason: "the gateway's memory budget for bodies is used up",
		}
	case x.cancel.Fired():
		x.Trace.Outcome = ClientGone
	}
	if be := (*bodyError)(nil); !plain && errors.As(err, &be) && !errors.As(err, new(*elastic.Error)) {
		err = x.bodyFailed(be)
	}
	if !plain {
		ee = elastic.AsError(err)
	}
	x.Trace.Err = ee
	if x.Trace.Outcome == Local || x.Trace.Outcome == Upstream {
		x.Trace.Outcome = Failed
	}
	if ee.Status >= 500 && ee.Cause != nil && x.Trace.Outcome != ClientGone {
		e.logFailure(x, ee)
	}
	x.Reply(ee.Status, "application/json", ee.Body())
	if x.abandoned() {
		x.Response.Status = statusClientGone
	}
	x.Response.Header.Add(gatewayName, gatewayValue)
	for _, f := range ee.Fields {
		x.Response.Header.Add(f.Name, f.Value)
	}
	if len(x.Trace.Cache) > 0 {
		// A cache cannot say it where there is no answer yet but an error on its way up.
		x.Response.Header.Add(cacheStatusName, x.Trace.Cache)
	}
	if v := ee.RetryAfterValue(); v != nil {
		x.Response.Header.Add(retryAfterName, v)
	}
}

// explain adds to the response which node it comes from. It is done last, so that no cache keeps it.
func (x *Exchange) explain() {
	if t := &x.Trace; t.Attempts == 0 || t.Outcome == Hit || t.Outcome == Shared {
		return
	}
	h := &x.Response.Header
	h.Add(explainClusterName, []byte(x.Trace.Cluster))
	h.Add(explainNodeName, []byte(x.Trace.Node))
	h.Add(explainAttemptsName, strconv.AppendInt(nil, int64(x.Trace.Attempts), 10))
}

// abandoned tells whether the exchange ended because its client left.
func (x *Exchange) abandoned() bool { return x.Trace.Outcome == ClientGone && x.cancel.Fired() }

// statusClientGone stands in logs and metrics for an answer that nobody waited for.
const statusClientGone = 499

// gatewayName marks answers that the gateway made by itself.
var (
	gatewayName     = []byte("X-Weir-Error")
	gatewayValue    = []byte("true")
	cacheStatusName = []byte("Cache-Status")
	retryAfterName  = []byte("Retry-After")
)

// The fields that tell a client who asked for them where its answer comes from.
var (
	explainClusterName  = []byte("X-Weir-Cluster")
	explainNodeName     = []byte("X-Weir-Node")
	explainAttemptsName = []byte("X-Weir-Attempts")
)

// conclude ends an exchange whose answer has been written, or could not be: it counts it, runs the tracing flow and gives
// everything back.
func (e *Entry) conclude(x *Exchange) {
	c := x.conn
	if x.watched {
		c.unwatch()
	}
	taken := time.Since(x.Start)
	e.metrics.count(x, taken)
	if x.router != nil && x.router.tracing != nil {
		x.WriteTime = max(0, taken-x.served)
		e.trace(x)
	}
	x.End()
}

// trace runs the tracing flow. Its errors cannot reach the client any more: they are logged.
func (e *Entry) trace(x *Exchange) {
	t := x.router.tracing
	x.Tracing = true
	x.Request.Body.closeStream()
	x.Response.Body.closeStream()
	if err := e.contain(x, t.name, t); err != nil {
		e.metrics.traceErrors.Inc()
		e.failLog.Log(slog.LevelWarn, "tracing "+t.name, "tracing flow failed", "flow", t.name, "error", err)
	}
}

// bytesOf returns the bytes of s without a copy. They must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
