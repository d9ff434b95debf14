package elastic

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"weir/elastic/api"
	"weir/elastic/transport"
	"weir/internal/wire"
)

// Perform sends a call of the gateway itself, with its own credentials. It implements esapi.Transport, so that the
// request types of go-elasticsearch work over the gateway's transport: the client of that library refuses OpenSearch.
// The context of req ends the call.
func (k *Cluster) Perform(req *http.Request) (*http.Response, error) {
	var resp transport.Response
	r, err := newCall(req)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(req.Context(), r.Cancel.Fire)
	defer stop()
	if err := k.Do(r, &resp); err != nil {
		if ctxErr := context.Cause(req.Context()); ctxErr != nil {
			return nil, ctxErr
		}
		return nil, err
	}
	return httpResponse(req, &resp), nil
}

// onNode sends calls of the gateway itself to one node, whatever the picker thinks of it.
type onNode struct {
	k *Cluster
	n *node
}

// Perform implements esapi.Transport.
func (o onNode) Perform(req *http.Request) (*http.Response, error) {
	var resp transport.Response
	r, err := newCall(req)
	if err != nil {
		return nil, err
	}
	r.lendAuth(o.k.auth.Load())
	r.Host = o.n.host
	r.Target = append(append([]byte(nil), o.n.base...), r.Target...)
	r.Reuse = transport.RetryFresh
	if deadline, ok := req.Context().Deadline(); ok {
		r.Deadline = deadline
	}
	stop := context.AfterFunc(req.Context(), r.Cancel.Fire)
	defer stop()
	if err := o.n.own.Do(&r.Request, &resp); err != nil {
		return nil, err
	}
	return httpResponse(req, &resp), nil
}

// newCall makes a Call of an *http.Request.
func newCall(req *http.Request) (*Call, error) {
	r := &Call{OwnAuth: true}
	r.Method = []byte(req.Method)
	r.Target = []byte(req.URL.RequestURI())
	r.Header = new(wire.Header)
	r.Cancel = new(wire.Cancel)
	for name, values := range req.Header {
		for _, v := range values {
			r.Header.AddString(name, v)
		}
	}
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		_ = req.Body.Close()
		r.Body = body
	}
	var call api.Call
	api.Classify(&call, r.Method, []byte(req.URL.EscapedPath()), []byte(req.URL.RawQuery))
	r.Idempotency, r.Class = call.Idempotency, ClassOf(&call, []byte(req.URL.RawQuery))
	return r, nil
}

// httpResponse makes an *http.Response of a node's answer.
func httpResponse(req *http.Request, resp *transport.Response) *http.Response {
	out := &http.Response{
		Status: http.StatusText(resp.Status), StatusCode: resp.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, ContentLength: resp.Length, Request: req,
	}
	for _, f := range resp.Header.Fields() {
		out.Header.Add(string(f.Name), string(f.Value))
	}
	if resp.Stream != nil {
		out.Body = resp.Stream
	} else {
		out.Body = io.NopCloser(bytes.NewReader(resp.TakeBody()))
	}
	return out
}
