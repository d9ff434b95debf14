package estest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
)

// A Call is one request as it reached a node. Its fields do not change once it is recorded.
type Call struct {
	// Seq is the place of the call among all calls of the cluster, from 1.
	Seq int
	// Node is the number of the node, from 0, and Conn the number of the connection on that node, from 1.
	Node, Conn int
	// Head is the request line and the header block, byte for byte, with the empty line at its end.
	Head []byte
	// Method, Target and Proto are the words of the request line as they were sent.
	Method, Target, Proto string
	// Path and Query are Target up to and after the first '?', still encoded.
	Path, Query string
	// Header is the header block with names in canonical spelling.
	Header http.Header
	// Body is the body without its framing; what was read of it, if it did not come whole.
	Body []byte

	started  int64         // place in time for _tasks, nanoseconds of the cluster's clock
	gone     chan struct{} // closed when the client closed its connection before the answer
	finished chan struct{} // closed when the node is done with the call
	status   int           // status of the answer; readable once finished is closed
}

// Gone returns a channel that is closed when the client closed its connection (or its sending side, which makes nodes
// drop a request too) before it had the answer. A client that had sent a further request already is not noticed.
func (c *Call) Gone() <-chan struct{} { return c.gone }

// Finished returns a channel that is closed when the node has answered the call or has given it up.
func (c *Call) Finished() <-chan struct{} { return c.finished }

// Status waits for the end of the call and returns the status of the answer that the node gave or tried to send, 0 if
// there was none.
func (c *Call) Status() int {
	<-c.finished
	return c.status
}

// String returns the request line's method and target and the node's number.
func (c *Call) String() string { return fmt.Sprintf("%s %s at node %d", c.Method, c.Target, c.Node) }

// parseHead splits a request's head. It is lenient: judging requests is not a node's way of helping a test.
func parseHead(head []byte) (*Call, bool) {
	line, rest, _ := bytes.Cut(head, []byte("\n"))
	words := strings.Split(strings.TrimRight(string(line), "\r"), " ")
	if len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/1.") {
		return nil, false
	}
	c := &Call{
		Head: head, Method: words[0], Target: words[1], Proto: words[2], Header: http.Header{},
		gone: make(chan struct{}), finished: make(chan struct{}),
	}
	c.Path, c.Query, _ = strings.Cut(c.Target, "?")
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\n"))
		if name, value, ok := strings.Cut(strings.TrimRight(string(line), "\r"), ":"); ok {
			c.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		}
	}
	return c, true
}

// Calls returns the calls that reached the cluster so far, in the order of their arrival.
func (c *Cluster) Calls() []*Call {
	c.callsMu.Lock()
	defer c.callsMu.Unlock()
	return append([]*Call(nil), c.calls...)
}

// Count returns how many calls so far had a path that matches pattern, in which * stands for any text.
func (c *Cluster) Count(pattern string) int {
	n := 0
	for _, call := range c.Calls() {
		if wildcardMatch(pattern, call.Path) {
			n++
		}
	}
	return n
}

// Forget empties the list of calls.
func (c *Cluster) Forget() {
	c.callsMu.Lock()
	defer c.callsMu.Unlock()
	c.calls = nil
}

// WaitCall returns the first recorded call for which match returns true, and waits for one to come if there is none.
// A call is recorded when its body was read, or when a fault acts on it before that.
func (c *Cluster) WaitCall(ctx context.Context, match func(*Call) bool) (*Call, error) {
	last := 0 // Seq of the last call looked at
	others := 0
	for {
		c.callsMu.Lock()
		calls, changed := c.calls, c.changed
		c.callsMu.Unlock()
		for _, call := range calls {
			if call.Seq <= last {
				continue
			}
			if match(call) {
				return call, nil
			}
			last = call.Seq
			others++
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a call, %d others came: %w", others, ctx.Err())
		}
	}
}

// record adds a call to the list. Calls keep their order of recording, which Seq repeats.
func (c *Cluster) record(call *Call) {
	c.callsMu.Lock()
	defer c.callsMu.Unlock()
	c.seq++
	call.Seq = c.seq
	call.started = c.clock.Now().UnixNano()
	c.calls = append(c.calls, call)
	if len(c.calls) > maxCalls {
		c.calls = append([]*Call(nil), c.calls[len(c.calls)-maxCalls/2:]...)
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// maxCalls bounds the list of calls, so that a cluster that serves a demo for days does not grow. Tests stay below it.
const maxCalls = 100_000

// Path returns a predicate for WaitCall and Fault.Match: calls whose path matches pattern, in which * stands for any
// text.
func Path(pattern string) func(*Call) bool {
	return func(c *Call) bool { return wildcardMatch(pattern, c.Path) }
}
