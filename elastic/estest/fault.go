package estest

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// A Cut is a way to end a connection instead of answering a call.
type Cut int

// The cuts. A reset sends RST, a close sends FIN; over in-memory connections they look the same.
const (
	CutNothing        Cut = iota
	ResetBeforeBody       // reset when the head was read and the body was not
	ResetAfterRequest     // reset when the whole request was read
	CloseAfterRequest     // close when the whole request was read
	CloseAfterAnswer      // answer without a word of it, then close: what an idle timeout of the node looks like
)

// A Fault is something that goes wrong with the calls that it matches. The zero value matches every call and does
// nothing; several fields work together as far as that makes sense (a Delay and a Status, Interim and Chunk).
type Fault struct {
	// Method and Path select calls: a method, and a pattern for the path in which * stands for any text. Empty ones
	// select all. Match, if not nil, must also return true; it sees the head, not yet the body.
	Method, Path string
	Match        func(*Call) bool
	// Skip lets that many matching calls pass first. Times is how many calls are hit after that, 0 for all.
	Skip, Times int

	// Cut ends the connection instead of answering, or after it.
	Cut Cut
	// Hold is waited for before the answer is worked out: close it, or send one value for each call. Delay is waited for
	// as well, by the cluster's clock. A node that is stopped, or whose client leaves, waits no longer.
	Hold  <-chan struct{}
	Delay time.Duration
	// Interim are informational statuses (100, 103) sent before the answer.
	Interim []int
	// Early answers without reading the body, and closes.
	Early bool

	// Status replaces the answer by one with that status, in the shape in which nodes (429, 503 and most others) or
	// proxies in front of them (502 and 504: HTML pages) give it. Body, if not nil, is the body instead of that
	// shape, and ContentType its type ("application/json; charset=UTF-8" if empty). The request is not executed.
	Status      int
	Body        []byte
	ContentType string
	// Raw is written instead of an answer, and the connection is closed. The request is not executed.
	Raw []byte

	// FailedShards makes that many shards of a search, count or msearch item fail (HTTP 200 with _shards.failed), and
	// TimedOut makes a search say timed_out.
	FailedShards int
	TimedOut     bool
	// Running is how long an async search runs that is submitted by the call, by the cluster's clock.
	Running time.Duration

	// Header are further header lines, "Name: value".
	Header []string
	// Missing keeps that many bytes at the end of the body back and closes the connection; a chunked body then lacks its
	// last chunk.
	Missing int
	// LengthOff is added to the Content-Length announced. The connection stays open.
	LengthOff int
	// Chunk sends the body chunked, in pieces of that many bytes. Before each piece but the first, Pause is waited for, if
	// it is not nil.
	Chunk int
	Pause <-chan struct{}
}

// An Injection is a fault that was put into a cluster or a node.
type Injection struct {
	fault Fault
	list  *faults
	seen  int // matching calls; guarded by list.mu
	hits  int
}

// Remove ends the fault for further calls.
func (i *Injection) Remove() { i.list.remove(i) }

// Hits returns how many calls the fault was applied to.
func (i *Injection) Hits() int {
	i.list.mu.Lock()
	defer i.list.mu.Unlock()
	return i.hits
}

// faults is a list of injections; the first that matches a call acts on it.
type faults struct {
	mu     sync.Mutex // guards the fields below
	list   []*Injection
	script func(*Call) *Fault
}

func (f *faults) add(fault Fault) *Injection {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := &Injection{fault: fault, list: f}
	f.list = append(f.list, i)
	return i
}

func (f *faults) remove(i *Injection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, other := range f.list {
		if other == i {
			f.list = append(f.list[:at:at], f.list[at+1:]...)
			return
		}
	}
}

// pick returns the fault for a call, or nil.
func (f *faults) pick(call *Call) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.script != nil {
		if fault := f.script(call); fault != nil {
			return fault
		}
	}
	for _, i := range f.list {
		if i.fault.Method != "" && i.fault.Method != call.Method ||
			i.fault.Path != "" && !wildcardMatch(i.fault.Path, call.Path) ||
			i.fault.Match != nil && !i.fault.Match(call) {
			continue
		}
		if i.fault.Times > 0 && i.hits == i.fault.Times {
			continue
		}
		i.seen++
		if i.seen <= i.fault.Skip {
			continue
		}
		i.hits++
		return &i.fault
	}
	return nil
}

// Inject puts a fault on all nodes of the cluster. Faults of a node come before it, and older faults before newer ones;
// one fault acts on a call.
func (c *Cluster) Inject(f Fault) *Injection { return c.faults.add(f) }

// Script has f choose the fault for each call, before all injected ones; nil chooses none. f sees the head of the call,
// not yet its body, and is called for one call at a time. Which calls a Fault matches does not count here.
func (c *Cluster) Script(f func(*Call) *Fault) {
	c.faults.mu.Lock()
	defer c.faults.mu.Unlock()
	c.faults.script = f
}

// Inject puts a fault on the node.
func (n *Node) Inject(f Fault) *Injection { return n.faults.add(f) }

// Warnings returns n header lines for Fault.Header, of about 51 bytes each, as a node gives them for a deprecated
// request: 400 of them are 20 KB (elastic/elasticsearch#28301).
func Warnings(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf(`Warning: 299 Elasticsearch-7 "field f%05d is old"`, i)
	}
	return lines
}

// answer returns the answer that the fault gives instead of the node's own, if it gives one.
func (f *Fault) answer() (answer, bool) {
	if f.Body == nil && f.Status == 0 {
		return answer{}, false
	}
	a := answer{status: f.Status, contentType: f.ContentType}
	if a.status == 0 {
		a.status = 200
	}
	switch {
	case f.Body != nil:
		a.body = f.Body
		if a.contentType == "" {
			a.contentType = jsonUTF8
		}
	case f.Status == 413:
	case f.Status == 502 || f.Status == 504:
		a.contentType = "text/html"
		a.body = fmt.Appendf(nil, "<html>\r\n<head><title>%d %s</title></head>\r\n<body></body>\r\n</html>\r\n", f.Status, statusText(f.Status))
	default:
		a.value = statusError(f.Status).body(elasticOrder)
	}
	return a, true
}

// statusError returns what a node says with a status.
func statusError(status int) *apiError {
	switch status {
	case 429:
		return &apiError{
			status: status, typ: "es_rejected_execution_exception",
			reason: "rejected execution of org.elasticsearch.common.util.concurrent.TimedRunnable on EsThreadPoolExecutor[name = estest/search, queue capacity = 1000]",
		}
	case 503:
		return &apiError{
			status: status, typ: "cluster_block_exception",
			reason: "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered / initialized];",
		}
	}
	return &apiError{
		status: status, typ: strings.ReplaceAll(strings.ToLower(statusText(status)), " ", "_") + "_exception",
		reason: statusText(status),
	}
}
