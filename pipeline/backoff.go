package pipeline

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a pause between attempts that doubles, with half of it left to chance so that gateways which lost a cluster at
// the same time do not come back at the same time.
type backoff struct{ next, most time.Duration }

// defaultBackoff finds a cluster again within ten seconds and asks it a hundred times in a quarter of an hour.
var defaultBackoff = backoff{next: 100 * time.Millisecond, most: 10 * time.Second}

// maxRetryAfter bounds what a cluster may ask for.
const maxRetryAfter = time.Minute

// wait waits, and at least as long as the cluster asked for. It returns false when ctx ended before.
func (b *backoff) wait(ctx context.Context, atLeast time.Duration) bool {
	d := b.next/2 + rand.N(b.next/2+1)
	b.next = min(2*b.next, b.most)
	t := time.NewTimer(max(d, min(atLeast, maxRetryAfter)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
