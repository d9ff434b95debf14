package pipeline

import (
	"context"
	"sync"
	"time"
)

// pace decides how many bulk requests of a pipeline are under way: it halves the number when the cluster says that it has too
// much to do (429), at most once a second because the requests that were under way then say it too, and lets it grow by one
// for each round of requests that went well. It follows what the cluster says and not how long it takes, which says more
// about the records than about the cluster.
type pace struct {
	most int

	mu      sync.Mutex // guards the fields below
	limit   float64
	running int
	cut     time.Time     // when the limit was last lowered
	room    chan struct{} // closed when there may be room; nil while nobody waits
}

func newPace(most int) *pace { return &pace{most: most, limit: float64(most)} }

// begin waits for its turn. It returns false when ctx ended before.
func (p *pace) begin(ctx context.Context) bool {
	for {
		p.mu.Lock()
		if p.running == 0 || p.running < int(p.limit) {
			p.running++
			p.mu.Unlock()
			return true
		}
		if p.room == nil {
			p.room = make(chan struct{})
		}
		room := p.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return false
		}
	}
}

// end tells how a request went that begin let go.
func (p *pace) end(throttled, well bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	switch {
	case throttled && time.Since(p.cut) >= time.Second:
		p.limit, p.cut = max(1, p.limit/2), time.Now()
	case well && !throttled:
		p.limit = min(float64(p.most), p.limit+1/p.limit)
	}
	if p.room != nil {
		close(p.room)
		p.room = nil
	}
}

// now returns how many requests may be under way.
func (p *pace) now() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(int(p.limit))
}
