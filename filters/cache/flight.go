package cache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/wire"
)

const (
	// missFor is how long requests for a key whose answers cannot be shared do not wait for each other.
	missFor = 30 * time.Second
	// narrowCap is how many of those who waited for an answer that turned out to be too large go to the upstream at a time.
	narrowCap = 4

	flightShards = 32
	shardMarks   = 256 // marks in one shard
)

// A flight is one upstream call whose answer several exchanges wait for. It runs in the exchange of its leader, or in one of its
// own that was launched for it.
type flight struct {
	key     query.Key
	begun   time.Time
	done    chan struct{}   // closed when landed
	ask     *generation.Ask // where the stamp of its indices is, at part; used only while the flight can be joined
	part    int
	waiters atomic.Int64
	landed  atomic.Bool
	late    atomic.Bool            // somebody would not wait for it any longer, and is content with an older answer meanwhile
	launch  atomic.Pointer[launch] // an exchange of its own; nil if it has none

	// The fields below are set before done is closed and do not change then.
	entry   *Entry // the answer, or nil
	err     error  // of the upstream, instead of an answer
	failed  bool   // the cluster could not answer
	partial bool   // entry or err are only for callers with the same dropped parameters
	why     query.Reason
	dropped [32]byte
	lost    bool          // it ended for a reason of the leader's own: try again
	narrow  chan struct{} // waiters take a slot here to go on by themselves; nil: no limit
	trace   flows.Trace   // of an exchange of its own, and whether what it brought is kept
	stored  bool
}

// A launch is an exchange that was begun for flights only.
type launch struct {
	cancel  *wire.Cancel
	flights []*flight
}

// wanted tells whether somebody waits for one of its flights, or would not wait any longer and is content with what comes later.
func (l *launch) wanted() bool {
	return slices.ContainsFunc(l.flights, func(f *flight) bool { return f.held() || f.late.Load() })
}

// held tells whether somebody waits for the flight, so that it must not end with its leader's client.
func (f *flight) held() bool { return !f.landed.Load() && f.waiters.Load() > 0 }

// serves tells whether the flight has something for a request with these dropped parameters.
func (f *flight) serves(dropped *[32]byte) bool {
	return (f.entry != nil || f.err != nil) && (!f.partial || f.dropped == *dropped)
}

// flights are the upstream calls that are running, by the full key of their answer: who asks with other credentials has
// another key. It also remembers, for a while, keys for which waiting is pointless.
type flights struct {
	shards  [flightShards]flightShard
	waiting atomic.Int64
}

type flightShard struct {
	mu    sync.Mutex // guards the fields below
	open  map[query.Key]*flight
	marks map[query.Key]time.Time // until when
}

func newFlights() *flights {
	fs := &flights{}
	for i := range fs.shards {
		fs.shards[i].open = map[query.Key]*flight{}
		fs.shards[i].marks = map[query.Key]time.Time{}
	}
	return fs
}

func (fs *flights) shard(key *query.Key) *flightShard { return &fs.shards[key[31]%flightShards] }

// stampedBy says where the stamp of the indices will be found that f depends on.
func (fs *flights) stampedBy(f *flight, ask *generation.Ask, part int) {
	s := fs.shard(&f.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	f.ask, f.part = ask, part
}

// outdated tells whether a change was seen since the flight's request was sent. If few tells that one of documents does not
// matter yet, only one of rights does.
func (f *flight) outdated(few bool) bool {
	if f.ask == nil {
		return false
	}
	stamp := f.ask.Stamp(f.part)
	return stamp.Changed() && (!few || stamp.Revoked())
}

// A joiner is a request that an upstream call may answer.
type joiner struct {
	maxAge   time.Duration // how long ago the call may have begun; below 0 it does not matter
	maxStale time.Duration // for how long a change does not matter
	// patience is how long the call may have run. A caller who gave up and asks again must not be tied to one that hangs.
	patience time.Duration
}

// join returns the flight to wait for, or a new one that the caller leads and must land, or nil if the caller should go on
// by itself.
func (fs *flights) join(key *query.Key, now time.Time, j joiner) (f *flight, lead bool) {
	s := fs.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if until, ok := s.marks[*key]; ok {
		if now.Before(until) {
			return nil, false
		}
		delete(s.marks, *key)
	}
	if f := s.open[*key]; f != nil {
		age := now.Sub(f.begun)
		if age < j.patience && (j.maxAge < 0 || age < j.maxAge) && !f.outdated(age < j.maxStale) {
			fs.await(f)
			return f, false
		}
	}
	f = &flight{key: *key, begun: now, done: make(chan struct{})}
	s.open[*key] = f
	return f, true
}

// overdue tells whether a flight for key is so late that whoever has an older answer does better to take it at once. When
// that has been so for patience, another try is due.
func (fs *flights) overdue(key *query.Key, now time.Time, patience time.Duration) bool {
	s := fs.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.open[*key]
	return f != nil && f.late.Load() && now.Sub(f.begun) < 2*patience
}

// await makes the caller a waiter for f.
func (fs *flights) await(f *flight) {
	f.waiters.Add(1)
	fs.waiting.Add(1)
}

// leave takes back a join as a waiter. A launched flight that nobody wants any more ends.
func (fs *flights) leave(f *flight) {
	left := f.waiters.Add(-1)
	fs.waiting.Add(-1)
	if own := f.launch.Load(); own != nil && left == 0 && !f.landed.Load() && !own.wanted() {
		own.cancel.Fire()
	}
}

// land ends a flight. If mark is set, requests for its key do not wait for each other for a while.
func (fs *flights) land(f *flight, now time.Time, mark bool) {
	s := fs.shard(&f.key)
	s.mu.Lock()
	if s.open[f.key] == f {
		delete(s.open, f.key)
	}
	if mark {
		s.mark(&f.key, now)
	}
	s.mu.Unlock()
	f.landed.Store(true)
	close(f.done)
}

// disperse makes nobody who comes from now on wait for a flight that is running.
func (fs *flights) disperse() {
	for i := range fs.shards {
		s := &fs.shards[i]
		s.mu.Lock()
		clear(s.open)
		s.mu.Unlock()
	}
}

// mark remembers key.
func (s *flightShard) mark(key *query.Key, now time.Time) {
	makeRoom(s.marks, *key, shardMarks, func(until time.Time) bool { return !now.Before(until) })
	s.marks[*key] = now.Add(missFor)
}

// count returns the number of running flights.
func (fs *flights) count() int {
	n := 0
	for i := range fs.shards {
		s := &fs.shards[i]
		s.mu.Lock()
		n += len(s.open)
		s.mu.Unlock()
	}
	return n
}
