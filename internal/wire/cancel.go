package wire

import (
	"io"
	"sync"
)

// A Cancel cuts off an exchange that waits for a node: by closing the connection it waits on, which is what makes
// Elasticsearch cancel the search (it watches its HTTP channel). The zero value is ready. One exchange owns it at a
// time; Fire may come from any goroutine.
type Cancel struct {
	mu    sync.Mutex // guards the fields below
	fired bool
	cut   bool
	conn  io.Closer
	done  chan struct{}
}

// Arm names the connection that Fire closes. It returns false, and names nothing, if Fire came before, or Cut.
func (c *Cancel) Arm(conn io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fired || c.cut {
		return false
	}
	c.conn = conn
	return true
}

// Disarm forgets the connection: from its return on Fire does not close it. It returns false if Fire came before, and
// the connection is then closed or being closed.
func (c *Cancel) Disarm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return !c.fired
}

// Fire cancels: it closes the armed connection and wakes whoever waits on Done. Further calls do nothing.
func (c *Cancel) Fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fired {
		return
	}
	c.fired = true
	if c.conn != nil {
		_ = c.conn.Close()
	}
	if c.done != nil {
		close(c.done)
	}
}

// Cut ends the attempt that is under way without cancelling: it closes the armed connection, and until Renew no other one
// can be armed. The exchange fails as if the other side had closed the connection, and may go on elsewhere.
func (c *Cancel) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fired || c.cut {
		return
	}
	c.cut = true
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// WasCut tells whether Cut was called since the last Renew.
func (c *Cancel) WasCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

// Renew ends the effect of Cut.
func (c *Cancel) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = false
}

// Fired tells whether Fire was called.
func (c *Cancel) Fired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fired
}

// Done returns a channel that Fire closes. It is made when first asked for.
func (c *Cancel) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.fired {
			close(c.done)
		}
	}
	return c.done
}

// Reset makes c ready for the next exchange.
func (c *Cancel) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fired, c.cut, c.conn, c.done = false, false, nil, nil
}
