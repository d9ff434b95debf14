package flows

import (
	"errors"
	"net/http"

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
}

var errNoBody = errors.New("the client sent no body after 100 Continue")

// headerReceived keeps the server from waiting for the body of a request that is refused for an expectation that nobody
// knows: its client may be waiting too. See admit.
func headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if expect := h.Peek("Expect"); len(expect) > 0 && !wire.EqualFold(expect, "100-continue") {
		h.SetContentLength(0)
	}
	return fasthttp.RequestConfig{}
}

// handleExpect runs the flow of a request with Expect until it wants the body or is done.
func (e *Entry) handleExpect(fc *fasthttp.RequestCtx) int {
	c, _ := fc.Conn().(*conn)
	c.request = fc
	x := e.begin(fc, c)
	x.expect = &expectation{want: make(chan struct{}), body: make(chan error), done: make(chan struct{})}
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

// openBody is called by the flow when it first reads the body.
func (x *Exchange) openBody(b *requestBody) error {
	x.expect.want <- struct{}{}
	if err := <-x.expect.body; err != nil {
		return err
	}
	b.src = bodyStream(x.conn.request)
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
	x.expect.body <- nil
	<-x.expect.done
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
	x.expect.body <- errNoBody
	<-x.expect.done
	c.serving = false
	c.entry.conclude(x)
	c.entry.written(x)
}
