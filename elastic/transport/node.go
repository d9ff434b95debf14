package transport

// Stats is a snapshot of a Node's connections and counters.
type Stats struct {
	Open    int // open or being opened
	Idle    int
	InUse   int
	Waiting int // exchanges that wait for a connection

	Dials        uint64 // attempts to connect
	DialErrors   uint64 // of them failed, TLS handshakes included
	Reuses       uint64 // exchanges that began on a pooled connection
	Dead         uint64 // pooled connections that were found dead when looked at before use
	FreshRetries uint64 // exchanges repeated on a fresh connection
	Refused      uint64 // exchanges refused with ErrPoolFull
	WaitTimeouts uint64
	Dropped      uint64 // Warning fields dropped
}

// A Node is a pool of connections to one node. Its methods may be called from any goroutine.
type Node struct{ o Options }

// New returns a Node. It connects when first used.
func New(o Options) *Node { return &Node{o: o.withDefaults()} }

// Close closes idle connections at once and those in use when they are given back. Further calls of Do fail.
func (n *Node) Close() {}

// Stats returns the numbers of this moment.
func (n *Node) Stats() Stats { return Stats{} }

// Do sends req and reads the answer into resp. The error is an *Error.
func (n *Node) Do(req *Request, resp *Response) error {
	return &Error{Addr: n.o.Addr, Phase: Wait, Err: ErrClosed}
}
