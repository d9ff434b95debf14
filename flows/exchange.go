package flows

import (
	"bytes"
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"weir/elastic"
	"weir/elastic/api"
	"weir/internal/wire"
)

// A Request is what the client sent. Its bytes are valid only while the exchange runs.
type Request struct {
	Method []byte
	Target []byte // request target, byte for byte as it came
	Path   []byte // the part of Target before the first '?', raw
	Query  []byte // the part behind it, raw, without the '?'
	Host   []byte
	Header wire.Header // all fields in order, spelling and bytes kept
	Body   Body
	HTTP10 bool
	TLS    bool

	Peer     netip.AddrPort    // the other end of the connection
	ClientIP netip.Addr        // the caller's address
	User     []byte            // user name of Basic credentials, unproven, or nil
	Cert     *x509.Certificate // the client's, proven and accepted by the entry, or nil
}

// A Response is what the client will get. Status 0 means that no filter has answered yet.
type Response struct {
	Status int
	Reason []byte      // of the status line, as the node wrote it; nil for the usual one
	Header wire.Header // without hop-by-hop fields; a Content-Length is corrected when it is written
	Body   Body
}

// Answered tells whether a filter has filled the response.
func (r *Response) Answered() bool { return r.Status != 0 }

// Outcome says in one word how an exchange was answered. It is a closed set: metric labels are made of it.
type Outcome uint8

// The outcomes.
const (
	Local      Outcome = iota // answered by a filter of ours: echo, a fixed reply
	Upstream                  // answered by a node
	Hit                       // answered from the cache
	Shared                    // answered with another exchange's upstream answer
	Limited                   // refused by a limit
	Denied                    // refused by a rule, or malformed
	Failed                    // the gateway or its upstream failed
	ClientGone                // the client left before the answer
	outcomes
)

// Outcomes is the number of outcomes.
const Outcomes = int(outcomes)

var outcomeNames = [...]string{"local", "upstream", "hit", "shared", "limited", "denied", "failed", "client_gone"}

func (o Outcome) String() string { return outcomeNames[o] }

// Trace is what an exchange leaves for logs and metrics. Filters fill in what they know.
type Trace struct {
	Outcome  Outcome
	Flow     string // the flow that the router chose
	Cache    []byte // value of Cache-Status, if a cache took part
	Limit    string // the limit that refused the exchange
	Cluster  string
	Node     string // address of the node that answered, or that was tried last
	Attempts int    // upstream attempts made

	Queued    time.Duration // waiting for a connection or a slot
	Connect   time.Duration // dialling
	FirstByte time.Duration // from sending the request until the first byte of the answer
	Upstream  time.Duration // whole time spent on the upstream, bodies included as far as they were buffered

	Err *elastic.Error // the refusal or failure that was answered
}

// An Exchange is one request and its response on their way through a flow. It is pooled: neither it nor anything it
// gives out may be kept after Serve returned. What must live longer is copied.
type Exchange struct {
	Request  Request
	Response Response
	Trace    Trace
	Start    time.Time // when the request's head was complete
	Entry    string    // name of the entry
	Tracing  bool      // the answer has been written and the tracing flow runs: nobody waits for a response
	Replay   *Replay   // of a request that comes from a queue; nil for those of clients

	call       api.Call
	classified bool
	path       []byte // decoded copy of Request.Path
	cancel     wire.Cancel
	watched    bool                        // the connection looks after the client
	hold       atomic.Pointer[func() bool] // see HoldCancel
	gen        *Generation
	router     *Router
	vars       []slot
	cleanups   []Releaser

	// The bytes of both bodies as they were read from the client and written to it, the head of the answer included. They
	// are final when a Releaser is called and in a tracing flow, which also knows the time that writing took.
	RequestBytes, ResponseBytes int64
	WriteTime                   time.Duration

	callers     *callers // the policy of its entry, or nil
	conn        *conn
	in          buffer // what the client has sent; outlives the exchange
	out         []byte // head of the answer, and a short body
	parts       [2][]byte
	vec         net.Buffers
	body        requestBody
	served      time.Duration // from Start until the response was filled
	keepAlive10 bool          // the client speaks HTTP/1.0 and wants to keep the connection
	scratch     []byte        // memory of user names, kept
	hostName    []byte
	told        []byte // memory of what nodes are told of the caller, kept

	detached func() // ends the time limit of an exchange that Detach made
}

// A Releaser is something that an exchange gives back when its answer has been written.
type Releaser interface{ Release() }

// Call returns the classified API of the request. It is worked out once, when first asked for.
func (x *Exchange) Call() *api.Call {
	if !x.classified {
		api.Classify(&x.call, x.Request.Method, x.Request.Path, x.Request.Query)
		x.classified = true
	}
	return &x.call
}

// Indices appends to dst the index expressions that the request names outside its body, decoded, and returns it: those of the path
// (see api.Call.Indices) or, where that names none, those of the parameter index. To nodes both are one parameter, of which the
// path's value wins.
func (x *Exchange) Indices(dst []string) ([]string, error) {
	call := x.Call()
	if call.Index == nil && call.Name != "" && !bytes.HasPrefix(x.Request.Path, doubleSlash) { // where the path names every index
		value, _ := api.QueryValue(x.Request.Query, "index")
		for part := range strings.SplitSeq(string(api.DecodeQuery(nil, value)), ",") {
			if part != "" {
				dst = append(dst, part)
			}
		}
		return dst, nil
	}
	return call.Indices(dst)
}

var doubleSlash = []byte("//")

// DecodedPath returns the path as rules and limits look at it: percent-decoded once, repeated slashes collapsed. What
// is forwarded is Request.Target, never this.
func (x *Exchange) DecodedPath() []byte {
	if len(x.path) == 0 {
		x.path = api.DecodePath(x.path[:0], x.Request.Path)
	}
	return x.path
}

func (r *Request) setTarget(target []byte) {
	r.Target = target
	r.Path, r.Query = target, nil
	for i, c := range target {
		if c == '?' {
			r.Path, r.Query = target[:i], target[i+1:]
			break
		}
	}
}

// HostName returns the host that the client asked for as rules look at it: in lower case, without its port and without a dot
// at its end. It is valid as long as the exchange runs.
func (x *Exchange) HostName() []byte {
	if len(x.hostName) == 0 {
		x.hostName = wire.AppendHostName(x.hostName, x.Request.Host)
	}
	return x.hostName
}

// Retarget makes x a request for another target, which must live as long as the exchange. What was worked out of the old
// one is forgotten.
func (x *Exchange) Retarget(target []byte) {
	x.Request.setTarget(target)
	x.classified, x.path = false, x.path[:0]
}

// Cancel returns the handle that fires when the client has left. From the first call on the client is looked after.
func (x *Exchange) Cancel() *wire.Cancel {
	if !x.watched && x.conn != nil && !x.Tracing {
		x.watched = true
		x.conn.watch(x)
	}
	return &x.cancel
}

// HoldCancel makes the client's leaving not cancel the exchange as long as held returns true. A cache fill that other
// callers wait for uses it. held is called from another goroutine.
func (x *Exchange) HoldCancel(held func() bool) { x.hold.Store(&held) }

// ReleaseWith calls r.Release when the answer has been written.
func (x *Exchange) ReleaseWith(r Releaser) { x.cleanups = append(x.cleanups, r) }

// Reply fills the response. The exchange keeps body; it must not change while the exchange runs. An empty contentType
// writes none.
func (x *Exchange) Reply(status int, contentType string, body []byte) {
	x.Response.reset()
	x.Response.Status = status
	if contentType != "" {
		x.Response.Header.Add(contentTypeName, bytesOf(contentType))
	}
	x.Response.Body.Replace(body)
}

var contentTypeName = []byte("Content-Type")

func (r *Response) reset() {
	r.Status, r.Reason = 0, nil
	r.Header.Reset()
	r.Body.reset()
}

// A Var is a typed place for a value that one filter leaves for another. Its identity is its address.
type Var[T any] struct{ Name string }

type slot struct {
	key   any
	value any
}

// Set leaves value in the exchange.
func (v *Var[T]) Set(x *Exchange, value *T) {
	for i := range x.vars {
		if x.vars[i].key == any(v) {
			x.vars[i].value = value
			return
		}
	}
	x.vars = append(x.vars, slot{v, value})
}

// Get returns the value that was left, or nil.
func (v *Var[T]) Get(x *Exchange) *T {
	for i := range x.vars {
		if x.vars[i].key == any(v) {
			value, _ := x.vars[i].value.(*T)
			return value
		}
	}
	return nil
}

// Conclude tells what filters gave to ReleaseWith that the answer has been written. The entry does that for its exchanges, and
// End for others; what is known of the exchange stays readable.
func (x *Exchange) Conclude() {
	for i := range x.cleanups {
		x.cleanups[i].Release()
		x.cleanups[i] = nil
	}
	x.cleanups = x.cleanups[:0]
}

// reset gives back what the exchange holds and makes it ready for the next request.
func (x *Exchange) reset() {
	x.Conclude()
	clear(x.vars)
	x.vars = x.vars[:0]
	x.Request.Header.Reset()
	x.Request.Body.reset()
	x.Request.Method, x.Request.Host, x.Request.User = nil, nil, nil
	x.Request.setTarget(nil)
	x.Response.reset()
	x.Trace = Trace{}
	x.classified, x.path, x.hostName = false, x.path[:0], x.hostName[:0]
	if x.watched {
		x.watched = false
		x.cancel.Reset()
		x.hold.Store(nil)
	}
	x.gen, x.router, x.Replay = nil, nil, nil
	x.Tracing, x.keepAlive10, x.served, x.WriteTime, x.RequestBytes, x.ResponseBytes = false, false, 0, 0, 0, 0
	x.body.reset()
	x.in.free()
	if cap(x.out) > keptBuffer {
		x.out = nil
	}
}

// Explaining returns an exchange that no client sent, for explanations and tests: method, target and header fields in
// turn names and values.
func Explaining(method, target string, fields ...string) *Exchange {
	x := new(Exchange)
	x.Start = time.Now()
	x.Request.Method = []byte(method)
	x.Request.setTarget([]byte(target))
	for pair := range slices.Chunk(fields, 2) {
		x.Request.Header.AddString(pair[0], pair[1])
	}
	x.Request.Host = x.Request.Header.Get("host")
	return x
}
