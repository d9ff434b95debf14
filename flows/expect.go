package flows

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"weir/internal/wire"
)

// An expectation is an exchange whose client waits for "100 Continue" before it sends the body (RFC 9110 section
// 10.1.1). The flow runs in a goroutine of its own until it either wants the body, and only then the client is told
// to go on, or has an answer, which the client then gets instead. So everything that a flow decides without the body,
// be it route, identity, limit or cache, is decided before the body is sent.
type expectation struct {
	want chan struct{} // the flow wants the body
	body chan error    // nil: the body is there; an error: it will not come
	done chan struct{} // the flow has an answer

	opened        atomic.Bool   // the flow reads the body
	interrupted   chan struct{} // closed when the node has answered and the body is not wanted any more
	interruptOnce sync.Once
}

var errNotWanted = errors.New("the node has answered without the body")

var errNoBody = errors.New("the client sent no body after 100 Continue")

// headerReceived keeps the server from waiting for the body of a request that is refused for its head alone: an
// expectation that nobody knows, or a body over the limit. See admit.
func (e *Entry) headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	expect := h.Peek("Expect")
	if len(expect) > 0 && !wire.EqualFold(expect, "100-continue") || int64(h.ContentLength()) > e.limits.maxBody {
		h.SetContentLength(0)
	}
	return fasthttp.RequestConfig{}
}

// handleExpect runs the flow of a request with Expect until it wants the body or is done.
func (e *Entry) handleExpect(fc *fasthttp.RequestCtx) int {
	c, _ := fc.Conn().(*conn)
	c.request = fc
	x := e.begin(fc, c)
	x.expect = &expectation{
		want: make(chan struct{}), body: make(chan error), done: make(chan struct{}), interrupted: make(chan struct{}),
	}
	go func() {
		e.run(x)
		close(x.expect.done)
	}()
	select {
	case <-x.expect.want:
		c.expecting = x
		return http.StatusContinue
	case <-x.expect.done:
		c.linger = true
		e.answer(x, fc)
		return x.Response.Status
	}
}

// hand tells the flow that the body is there, or will not come, and waits for the flow to end.
func (e *expectation) hand(err error) {
	select {
	case e.body <- err:
		<-e.done
	case <-e.done:
	}
}

// openBody is called by the flow when it first reads the body.
func (x *Exchange) openBody(b *requestBody) error {
	x.expect.want <- struct{}{}
	select {
	case err := <-x.expect.body:
		if err != nil {
			return err
		}
	case <-x.expect.interrupted:
		return errNotWanted
	}
	b.src = bodyStream(x.conn.request)
	x.expect.opened.Store(true)
	return nil
}

// resumeExpect goes on with an exchange whose body has been asked for and is there now.
func (c *conn) resumeExpect(fc *fasthttp.RequestCtx) bool {
	c.request = fc
	x := c.expecting
	if x == nil {
		return false
	}
	c.expecting = nil
	c.serving = true
	x.expect.hand(nil)
	c.entry.answer(x, fc)
	return true
}

// abandonExpect ends an exchange whose body was asked for and does not come. It is called while the server still waits
// for the body, so that the request's memory is still the request's.
func (c *conn) abandonExpect() {
	x := c.expecting
	if x == nil {
		return
	}
	c.expecting = nil
	x.Trace.Outcome = ClientGone
	x.expect.hand(errNoBody)
	c.serving = false
	c.entry.conclude(x)
	c.entry.written(x)
}
