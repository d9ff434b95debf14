package cache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/flows"
)

// A lifetime says how long answers are given.
type lifetime struct {
	ttl    time.Duration
	nowTTL time.Duration // of answers that move with the clock
}

// of returns how long an answer is given that moves with the clock, or does not.
func (l lifetime) of(moves bool) time.Duration {
	if moves {
		return min(l.ttl, l.nowTTL)
	}
	return l.ttl
}

// A rule is the lifetime of what one filter has stored, as the configuration in force says. An answer that was stored before
// a reload is given for as long as is configured now: who lowers a time to live does it because answers were too old
// (grafana/mimir#4439).
type rule struct {
	current atomic.Pointer[lifetime]

	mu    sync.Mutex // guards users
	users []*lifetime
}

// ruleOf returns the rule of the filter with this id, which is kept over reloads.
func ruleOf(rt *flows.Runtime, id string) (*rule, error) {
	return flows.Keep(rt, "cache rule "+id, func() (*rule, func(), error) { return &rule{}, nil, nil })
}

// use puts l in force until the function that it returns is called: then what was in force before is so again, unless
// something newer is. After the last one l stays, for what is stored still.
func (r *rule) use(l lifetime) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := &l
	r.users = append(r.users, mine)
	r.current.Store(mine)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if i := slices.Index(r.users, mine); i >= 0 {
			r.users = slices.Delete(r.users, i, i+1)
		}
		if n := len(r.users); n > 0 {
			r.current.Store(r.users[n-1])
		}
	}
}
