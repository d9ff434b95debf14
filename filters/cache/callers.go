package cache

import (
	"maps"
	"sync"
	"time"

	"weir/elastic/query"
)

const (
	callerShards = 32
	// shardCallers bounds the callers of one shard. Who is forgotten is asked for proof once more.
	shardCallers = 4096
)

// A callerID is who asks one cluster, by its credentials. The flows belong to it, as to keys: they may send other credentials.
type callerID struct {
	caller                [16]byte // as in query.Verdict
	cluster, flow, routed string   // the flow of the cache, and that by which the request came
}

// callerID returns who sends the ticket's request, which has this verdict.
func (l *lookup) callerID(t *ticket, v *query.Verdict) callerID {
	return callerID{v.Caller, t.cluster, l.flow, t.routed}
}

// callers remembers when a node has accepted credentials last. An answer outlives the password of those who are given it: so
// who is given an older one must have proven since that nodes still let it in.
type callers struct {
	shards [callerShards]callerShard
}

type callerShard struct {
	mu   sync.Mutex // guards seen
	seen map[callerID]time.Time
}

func (c *callers) shard(id *callerID) *callerShard { return &c.shards[id.caller[15]%callerShards] }

// accept notes that a node that was asked at that time let the caller in.
func (c *callers) accept(id callerID, at time.Time) {
	s := c.shard(&id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[callerID]time.Time{}
	}
	makeRoom(s.seen, id, shardCallers, nil)
	if at.After(s.seen[id]) {
		s.seen[id] = at
	}
}

// makeRoom deletes from m, if key is new and m has as many as most, first what is over, and then whatever comes. A nil over is never
// true.
func makeRoom[K comparable, V any](m map[K]V, key K, most int, over func(V) bool) {
	if _, old := m[key]; old || len(m) < most {
		return
	}
	if over != nil {
		maps.DeleteFunc(m, func(_ K, v V) bool { return over(v) })
	}
	for k := range m {
		if len(m) < most {
			return
		}
		delete(m, k)
	}
}

// refuse notes that a node did not know the caller.
func (c *callers) refuse(id callerID) {
	s := c.shard(&id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, id)
}

// accepted tells whether a node that was asked after that time let the caller in.
func (c *callers) accepted(id callerID, after time.Time) bool {
	s := c.shard(&id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[id].After(after)
}

// count returns the number of callers that are remembered.
func (c *callers) count() int {
	n := 0
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.seen)
		s.mu.Unlock()
	}
	return n
}
