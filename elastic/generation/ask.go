package generation

import (
	"sync"
	"time"
)

// An Ask is what a cache leaves in an exchange, so that the filter that knows the cluster takes the stamps: at the last moment
// before the request is sent. Its memory is used again.
type Ask struct {
	Every time.Duration // at which the expressions are polled; 0 is never

	mu    sync.Mutex // guards parts, while the exchange runs
	parts []part
}

type part struct {
	index, query []byte
	cluster      bool // a stamp of the whole cluster, whatever the expression
	stamp        Stamp
}

// Reset empties a.
func (a *Ask) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.parts)
	a.parts = a.parts[:0]
}

// Add asks for a stamp of an index expression, as Tracker.Stamp takes it. Both slices must not change until Fill.
func (a *Ask) Add(index, query []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parts = append(a.parts, part{index: index, query: query})
}

// AddCluster asks for a stamp that every write to the cluster changes. Polls never prove it.
func (a *Ask) AddCluster() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parts = append(a.parts, part{cluster: true})
}

// Fill takes the stamps from t.
func (a *Ask) Fill(t *Tracker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.parts {
		p := &a.parts[i]
		every := a.Every
		if p.cluster {
			every = 0
		}
		p.stamp = t.Stamp(p.index, p.query, every)
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
