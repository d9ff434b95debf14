// Package generation tells whether the indices behind an answer have changed since it was made.
//
// A Tracker stands for one cluster. It learns of changes in two ways: from the writes that go through this process, whose
// answers name the indices, and by polling counters of the indices for each index expression that somebody wants proven.
// Before a search is sent, a Stamp is taken of its index expression; as long as the stamp has not changed, no change was
// seen since then.
//
// It keeps no answers and decides nothing about them. It trades precision for safety: what is not known to leave an index
// alone counts as a change of it, and an index expression that was never resolved is changed by every write. What happens
// outside of the indices is not seen: stored scripts, synonyms, enrich policies, remote clusters, the clock.
package generation

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/elastic/api"
	"weir/internal/obs"
)

const (
	// maxScopes bounds the index expressions that are watched at a time. One more makes that give way which was not used for
	// longest.
	maxScopes = 1024
	// maxNames bounds the names of indices of which it is remembered whom their change concerns.
	maxNames = 4096
	// idleAfter is how long an expression is polled after its last use.
	idleAfter = time.Minute
	// Settle is how long a write without refresh may stay invisible to searches, and what a search finds in this time
	// may be outdated by it: the refresh interval that Elasticsearch has by default (index.refresh_interval).
	Settle = time.Second
)

// A Client sends calls of the gateway itself. elastic.Cluster is one.
type Client interface {
	Perform(req *http.Request) (*http.Response, error)
}

// Options are what a Tracker needs.
type Options struct {
	Cluster string // name, for logs and metrics
	Metrics *obs.Metrics
	Logger  *slog.Logger
}

// A Tracker knows what changed in one cluster. All methods may be called from any goroutine.
type Tracker struct {
	began   time.Time // what times are counted from
	metrics metrics
	revoked atomic.Uint64 // how often rights may have been taken away
	faults  *obs.Throttle
	kick    chan struct{} // a scope waits for a poll
	cancel  context.CancelFunc
	ended   chan struct{}

	mu        sync.Mutex // guards the fields below, and those of scopes that say so
	clients   []Client
	scopes    map[scopeKey]*Scope
	byName    map[string][]*Scope    // whom a change of an index concerns; emptied when that may have changed
	known     map[string]metadata    // of concrete indices; nil when unknown
	filters   map[string]aliasFilter // of aliases that have one
	processes map[string]string      // of nodes by id: each start of a node has another
	state     string                 // version of the cluster state that known is from
	shape     token                  // digest of what expressions stood for in that state
	shaped    uint64                 // changes seen of what expressions may stand for
	unseen    int64                  // until when the last write that was seen without a refresh may be invisible to searches
}

type metrics struct {
	writes, polls  obs.Counter
	proved, failed obs.Counter
}

// A scopeKey is what makes two scopes different.
type scopeKey struct {
	index   string // expression as a path spells it
	options string // of its resolution, as a query spells them
	every   time.Duration
}

// A Scope is an index expression on one cluster. It is a counter of changes.
type Scope struct {
	key     scopeKey
	tracker *Tracker
	parts   []string      // of the expression, decoded
	version atomic.Uint64 // changes seen
	used    atomic.Int64
	proven  atomic.Int64 // when the last poll that succeeded began; 0 when there was none
	dirty   atomic.Int64 // until when the last write that was seen without a refresh may be invisible to searches

	// Guarded by the tracker's mu.
	due   int64 // when it is to be polled
	idle  bool  // nobody used it for so long that it is not polled
	token token
	names map[string]bool // what it stands for, as polls keep it current; nil if unknown
}

// A Stamp says what was known of an index expression at some moment. The zero Stamp knows nothing.
type Stamp struct {
	scope   *Scope
	began   time.Time
	version uint64
	revoked uint64
	tokened bool // polls can prove that nothing changed since
	dirty   bool
	after   int64 // polls that began earlier do not know what the writes before the stamp made visible
}

// Known tells whether a tracker gave the stamp.
func (s *Stamp) Known() bool { return s.scope != nil }

// Changed tells whether a change was seen since the stamp was taken. It does not for the zero Stamp.
func (s *Stamp) Changed() bool { return s.scope != nil && s.scope.version.Load() != s.version }

// Revoked tells whether the cluster was told, since the stamp was taken, who may do what: users, roles, keys or tokens were
// changed, so that who was given an answer then might not be now. Then Changed is true as well.
func (s *Stamp) Revoked() bool { return s.scope != nil && s.scope.tracker.revoked.Load() != s.revoked }

// Dirty tells whether a write that was seen before the stamp was taken may not have been visible to searches yet. What
// they found may be outdated after Settle.
func (s *Stamp) Dirty() bool { return s.dirty }

// Proven tells whether polls show that up to a moment ago nothing has changed since the stamp was taken; how long ago at
// most is twice the interval of polls. After a write without refresh only polls count that began when it had become
// visible: one from before would vouch for what the write is about to change.
func (s *Stamp) Proven(now time.Time) bool {
	if s.scope == nil || !s.tokened || s.Changed() {
		return false
	}
	at := int64(now.Sub(s.began))
	s.scope.used.Store(at)
	proven := s.scope.proven.Load()
	return proven > 0 && proven >= s.after && at-proven <= int64(2*s.scope.key.every)
}

// New returns a Tracker that runs until Close.
func New(o Options) *Tracker {
	ctx, cancel := context.WithCancel(context.Background())
	t := &Tracker{
		began: time.Now(), faults: obs.NewThrottle(o.Logger.With("cluster", o.Cluster), time.Minute), kick: make(chan struct{}, 1), cancel: cancel,
		ended: make(chan struct{}), scopes: map[scopeKey]*Scope{}, byName: map[string][]*Scope{},
	}
	changes := o.Metrics.Counter("weir_generation_changes_total",
		"Changes of index expressions behind stored answers, by how they were noticed.", "cluster", "source")
	polls := o.Metrics.Counter("weir_generation_polls_total",
		"Polls of the counters of an index expression, by whether they gave its state.", "cluster", "outcome")
	t.metrics = metrics{
		writes: changes.With(o.Cluster, "write"), polls: changes.With(o.Cluster, "poll"),
		proved: polls.With(o.Cluster, "known"), failed: polls.With(o.Cluster, "unknown"),
	}
	go t.run(ctx)
	return t
}

// Close stops t and waits until it has.
func (t *Tracker) Close() {
	t.cancel()
	<-t.ended
	t.faults.Close()
}

// Use gives t a client to poll with, until the function that it returns is called.
func (t *Tracker) Use(c Client) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients = append(t.clients, c)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if i := slices.Index(t.clients, c); i >= 0 {
			t.clients = slices.Delete(t.clients, i, i+1)
		}
	}
}

func (t *Tracker) at(now time.Time) int64 { return int64(now.Sub(t.began)) }

// Stamp takes a stamp of an index expression. index is the expression as a path spells it, empty for all indices; query is
// a raw query string, of which the parameters that say how index expressions are resolved are heeded. every is the interval
// at which the expression is polled for as long as somebody asks for it; 0 is never.
func (t *Tracker) Stamp(index, query []byte, every time.Duration) Stamp {
	var buf [128]byte
	key := scopeKey{index: string(index), every: every}
	if options := appendResolution(buf[:0], query); len(options) > 0 {
		key.options = string(options)
	}
	now := t.at(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[key]
	if s == nil {
		s = t.add(key, now)
	}
	s.used.Store(now)
	if s.idle {
		s.idle, s.due = false, now
		t.wake()
	}
	dirty := s.dirty.Load()
	return Stamp{
		scope: s, began: t.began, version: s.version.Load(), revoked: t.revoked.Load(), tokened: s.proven.Load() > 0,
		dirty: now < dirty, after: dirty,
	}
}

// resolution are the parameters that say what an index expression stands for.
var resolution = [...]string{"expand_wildcards", "ignore_unavailable", "allow_no_indices"}

// appendResolution appends the parameters of a raw query that are in resolution.
func appendResolution(dst, query []byte) []byte {
	for _, name := range resolution {
		if len(query) == 0 {
			break
		}
		if value, ok := api.QueryValue(query, name); ok {
			dst = append(append(append(append(dst, '&'), name...), '='), value...)
		}
	}
	return dst
}

// add makes a scope. t.mu is held.
func (t *Tracker) add(key scopeKey, now int64) *Scope {
	if len(t.scopes) >= maxScopes {
		t.drop()
	}
	s := &Scope{key: key, tracker: t, due: now}
	expr := string(api.DecodeSegment(nil, []byte(key.index)))
	for part := range strings.SplitSeq(expr, ",") {
		if part != "" {
			s.parts = append(s.parts, part)
		}
	}
	if len(s.parts) == 0 {
		s.parts = []string{"*"}
	}
	s.dirty.Store(t.unseen) // nobody knows whether the write was to what it stands for
	t.scopes[key] = s
	clear(t.byName)
	if s.polled() {
		t.wake()
	}
	return s
}

// wake makes run look at once what is due.
func (t *Tracker) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// forget drops what the scope was known to stand for, so that every write concerns it. t.mu is held.
func (t *Tracker) forget(s *Scope) {
	if s.names != nil {
		s.names = nil
		clear(t.byName)
	}
}

// drop forgets the scope that was not used for longest. Nothing will notice its changes, so that it counts as changed. t.mu
// is held.
func (t *Tracker) drop() {
	var oldest *Scope
	for _, s := range t.scopes {
		if oldest == nil || s.used.Load() < oldest.used.Load() {
			oldest = s
		}
	}
	delete(t.scopes, oldest.key)
	oldest.version.Add(1)
	oldest.proven.Store(0)
}

// polled tells whether the scope can be polled: the counters of other clusters' indices are out of reach.
func (s *Scope) polled() bool {
	return s.key.every > 0 && !slices.ContainsFunc(s.parts, func(p string) bool {
		return strings.Contains(p, ":") && !strings.HasPrefix(p, "<")
	})
}
