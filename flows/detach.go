package flows

import (
	"context"
	"time"

	"weir/internal/wire"
)

// Adopt makes x, which came from no entry, run in g until End. It returns false if g has drained.
func (g *Generation) Adopt(x *Exchange) bool {
	if !g.enter() {
		return false
	}
	x.gen = g
	return true
}

// Detach returns an exchange with a copy of the request of x, for work that goes on when the client of x has its answer:
// a cache renews what it keeps. Nobody waits for the response of the new exchange; whoever detached it calls End. Its
// Cancel fires after limit, or when its generation goes out of force. Detach returns nil if x runs in no generation, or if
// the request's body is not in memory.
func (x *Exchange) Detach(limit time.Duration) *Exchange {
	if x.gen == nil || !x.Request.Body.Buffered() {
		return nil
	}
	d := &Exchange{Start: time.Now(), Entry: x.Entry, router: x.router, callers: x.callers}
	if !x.gen.Adopt(d) {
		return nil
	}
	ctx, cancel := context.WithTimeout(x.gen.life, limit)
	stop := context.AfterFunc(ctx, d.cancel.Fire)
	d.detached = func() {
		stop()
		cancel()
	}

	var a arena
	r, q := &d.Request, &x.Request
	r.Method, r.Host, r.User = a.copy(q.Method), a.copy(q.Host), a.copy(q.User)
	r.setTarget(a.copy(q.Target))
	r.HTTP10, r.TLS, r.Peer, r.ClientIP, r.Cert = q.HTTP10, q.TLS, q.Peer, q.ClientIP, q.Cert
	a.header(&r.Header, &q.Header)
	r.Body.data = a.copy(q.Body.data)
	r.Body.budget, d.Response.Body.budget = q.Body.budget, x.Response.Body.budget
	d.Trace.Flow = x.Trace.Flow
	return d
}

// End gives back what an exchange holds. For those that came from an entry, the entry calls it.
func (x *Exchange) End() {
	if x.detached != nil {
		x.detached()
		x.detached = nil
	}
	gen := x.gen
	x.reset()
	if gen != nil {
		gen.leave()
	}
}

// An arena holds copies.
type arena struct{ buf []byte }

// copy returns a copy of b. Growing leaves earlier copies where they are.
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
