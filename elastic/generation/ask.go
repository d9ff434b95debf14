package generation

import (
	"sync"
	"time"
)

// An Ask is what a cache leaves in an exchange, so that the filter that knows the cluster takes the stamps: at the last moment
// before the request is sent. Its memory is used again.
type Ask struct {
	mu    sync.Mutex // guards parts, while the exchange runs
	parts []part
}

type part struct {
	index, query []byte
	every        time.Duration
	stamp        Stamp
}

// Reset empties a.
func (a *Ask) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.parts)
	a.parts = a.parts[:0]
}

// Add asks for a stamp of an index expression, polled at that interval, as Tracker.Stamp takes them. Both slices must not
// change until Fill.
func (a *Ask) Add(index, query []byte, every time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parts = append(a.parts, part{index: index, query: query, every: every})
}

// Fill takes the stamps from t.
func (a *Ask) Fill(t *Tracker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.parts {
		p := &a.parts[i]
		p.stamp = t.Stamp(p.index, p.query, p.every)
	}
}

// Stamp returns the stamp of the i-th expression, the zero Stamp if nobody took it yet.
func (a *Ask) Stamp(i int) Stamp {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i >= len(a.parts) {
		return Stamp{}
	}
	return a.parts[i].stamp
}
