package flows

import (
	"log/slog"
	"slices"
	"time"

	"weir/internal/wire"
)

// A BodyTaker is a filter of a tracing flow that wants bodies. Snapshots hold no more of a body than the largest wish
// in the flow, and none without one.
type BodyTaker interface{ WantBody() int64 }

// Bodies returns how many bytes of each body the flow's filters want to see in a snapshot.
func (f *Flow) bodies() int64 {
	var most int64
	for _, l := range f.links {
		if t, ok := l.filter.(BodyTaker); ok {
			most = max(most, t.WantBody())
		}
	}
	return most
}

// An arena holds the bytes of a snapshot.
type arena struct{ buf []byte }

// copy returns a copy of b that lives as long as the arena is not reset. Growing leaves earlier copies where they are.
func (a *arena) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	if cap(a.buf)-len(a.buf) < len(b) {
		a.buf = make([]byte, 0, max(2*cap(a.buf), len(b), 2048))
	}
	start := len(a.buf)
	a.buf = append(a.buf, b...)
	return a.buf[start:len(a.buf):len(a.buf)]
}

func (a *arena) header(dst, src *wire.Header) {
	for _, f := range src.Fields() {
		dst.Add(a.copy(f.Name), a.copy(f.Value))
	}
}

// snapshot makes in s a copy of x that does not depend on the connection or on x.
func (x *Exchange) snapshot(s *Exchange, bodies int64) {
	a := arena{buf: s.scratch[:0]}
	s.Start, s.Tracing, s.Trace = x.Start, true, x.Trace
	s.Trace.Cache = a.copy(x.Trace.Cache)
	r, q := &s.Request, &x.Request
	r.Method, r.Host, r.User = a.copy(q.Method), a.copy(q.Host), a.copy(q.User)
	r.setTarget(a.copy(q.Target))
	r.HTTP10, r.TLS, r.Peer, r.ClientIP = q.HTTP10, q.TLS, q.Peer, q.ClientIP
	a.header(&r.Header, &q.Header)
	r.Body.data = a.copy(clipped(q.Body.data, bodies))
	s.RequestBytes = x.requestBytes()
	s.Response.Status = x.Response.Status
	a.header(&s.Response.Header, &x.Response.Header)
	s.Response.Body.data = a.copy(clipped(x.Response.Body.data, bodies))
	if cap(a.buf) <= smallBody {
		s.scratch = a.buf[:0]
	}
}

func clipped(b []byte, most int64) []byte { return b[:min(int64(len(b)), most)] }

// requestBytes returns the bytes of the request's body that were read.
func (x *Exchange) requestBytes() int64 {
	if x.body.x == nil {
		return 0
	}
	return x.body.limit - x.body.left
}

// runTrace runs the tracing flow on the snapshot of x, which ended after taken. Errors cannot reach the client any more:
// they are logged.
func (e *Entry) runTrace(x *Exchange, taken time.Duration) {
	t, s := x.router.tracing, x.trace
	s.Trace.Outcome, s.ResponseBytes, s.WriteTime = x.Trace.Outcome, x.written, max(0, taken-x.served)
	if err := t.Serve(s); err != nil {
		e.metrics.traceErrors.Inc()
		e.failLog.Log(slog.LevelWarn, "tracing "+t.name, "tracing flow failed", "flow", t.name, "error", err)
	}
	s.reset()
	e.pool.Put(s)
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
