package disk

import "sync"

// signal is what those wait for who wait for a change of a queue, in any of its partitions.
type signal struct {
	mu sync.Mutex
	ch chan struct{} // closed at the next change; nil while nobody waits
}

// next returns a channel that the next change will close.
func (g *signal) next() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ch == nil {
		g.ch = make(chan struct{})
	}
	return g.ch
}

// broadcast wakes all who wait.
func (g *signal) broadcast() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ch != nil {
		close(g.ch)
		g.ch = nil
	}
}
