package flows

import "time"

// A ConnState is what tests see of a connection.
type ConnState struct {
	Idle    bool          // between requests
	Closing bool          // the last answer is written
	Age     time.Duration // since it became what it is, to within a sweep
}

// Conns returns the states of the open connections.
func (e *Entry) Conns() (states []ConnState) {
	for _, c := range e.snapshot(nil) {
		age := time.Duration(e.clock.Load()-c.state.Load()>>8) * time.Millisecond
		states = append(states, ConnState{Idle: c.phase() == phaseIdle, Closing: c.phase() == phaseClosing, Age: age})
	}
	return states
}

// Claim is claim.
var Claim = claim
