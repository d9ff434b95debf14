package flows

import (
	"net/netip"
	"time"
)

// A Replay says of an exchange that its request was kept in a queue and is being made good now. Nobody waits for its answer but
// the queue's consumer, who makes it again until it has gone well or is known never to.
type Replay struct {
	Queue    string    // the request was taken from
	Time     time.Time // when it came
	Attempts int       // made before this one since the consumer began
	Aside    bool      // a filter sets it: it has put the request elsewhere, and the answer says nothing
}

// NewReplay returns an exchange for a request of a queue, to be run by Generation.Run and ended by End. Header fields are
// added, and the body is replaced, by whoever makes it. target and what it gets must not change while it runs.
func NewReplay(r Replay, method, target, host string, caller netip.Addr, user string) *Exchange {
	x := &Exchange{Start: time.Now(), Replay: &r}
	q := &x.Request
	q.Method, q.Host, q.ClientIP = []byte(method), []byte(host), caller
	if user != "" {
		q.User = []byte(user)
	}
	q.setTarget([]byte(target))
	return x
}

// Run runs x, which came from no entry, by the flow called name. It returns false, and runs nothing, if the generation has
// drained or has no such flow. A panic in a filter becomes an error. The caller reads the response and then calls End.
func (g *Generation) Run(x *Exchange, name string) (ok bool, err error) {
	f := g.flows[name]
	if f == nil || !g.Adopt(x) {
		return false, nil
	}
	x.Request.Body.budget, x.Response.Body.budget = g.rt.Budget, g.rt.Budget
	x.Trace.Flow = name
	defer func() {
		if p := recover(); p != nil {
			err = errPanic(p, name, g.rt.Logger)
		}
	}()
	if err := f.Serve(x); err != nil {
		return true, err
	}
	if !x.Response.Answered() {
		return true, errNoAnswer(name)
	}
	return true, nil
}

// An Enqueuer is a Filter that puts requests into a queue, from which they come back as replays.
type Enqueuer interface{ Enqueues() }

// Met tells whether what stands in front of the chain that begins with next has met the request of x before, when the client sent
// it: x comes out of a queue, and a filter of that chain puts requests into queues.
func Met(next Handler, x *Exchange) bool {
	for x.Replay != nil {
		l, ok := next.(*link)
		if !ok {
			return false
		}
		next = l.next
		switch f := l.filter.(type) {
		case Enqueuer:
			return true
		case inlined:
			next = f.chain // what comes behind it is a part of it
		}
	}
	return false
}
