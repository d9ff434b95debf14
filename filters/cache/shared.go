package cache

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/elastic/query"
	"weir/flows"
	"weir/internal/obs"
)

// shared is what all cache filters of the process have in common. It survives reloads, as long as there is one.
//
// Stores are shared by those who configure the same, and an entry is looked for in all of them (there is seldom more than
// one): so get_cache finds what set_cache has stored whatever each says about sizes, and a reload that changes a size
// does no harm.
type shared struct {
	secret  []byte // keys the HMAC over credentials; of this process only
	flights *flights
	callers callers
	tickets sync.Pool
	stores  atomic.Pointer[[]*store]
	budget  *flows.Budget
	faults  *obs.Throttle
	metrics sharedMetrics

	pendings pendings     // async searches that run
	renewals atomic.Int64 // that run now
	epoch    atomic.Int64 // how often the cache was purged

	mu sync.Mutex // guards changes of stores
}

// A store is a Store in use.
type store struct {
	Store
	limits limits
	epoch  *atomic.Int64 // of the cache
	mu     sync.Mutex    // guards the order of writes
}

type sharedMetrics struct {
	bypasses  tallies
	unstored  tallies
	stored    obs.Counter
	purged    obs.Counter
	evictions *obs.CounterVec
	entries   *obs.FuncVec
	bytes     *obs.FuncVec
	renewals  [renewals]obs.Counter
	faults    obs.Counter
}

// sharedOf returns what the filters share.
func sharedOf(rt *flows.Runtime) (*shared, error) {
	return flows.Keep(rt, "cache", func() (*shared, func(), error) {
		s := &shared{secret: make([]byte, 32), flights: newFlights(), budget: rt.Budget, faults: obs.NewThrottle(rt.Logger, time.Minute)}
		if _, err := rand.Read(s.secret); err != nil {
			return nil, nil, fmt.Errorf("make the secret of the cache: %w", err)
		}
		s.tickets.New = func() any { return &ticket{shared: s} }
		s.stores.Store(&[]*store{})
		s.register(rt.Metrics)
		return s, s.faults.Close, nil
	})
}

// tallies count by reason. They are read by people too, so they are not left to the library of metrics.
type tallies map[query.Reason]*atomic.Int64

func newTallies(reasons []query.Reason, v *obs.FuncVec) tallies {
	t := tallies{}
	for _, why := range reasons {
		n := &atomic.Int64{}
		t[why] = n
		v.Set(func() float64 { return float64(n.Load()) }, string(why))
	}
	return t
}

func (s *shared) register(m *obs.Metrics) {
	s.metrics = sharedMetrics{
		bypasses: newTallies(bypassReasons[:], m.CounterFunc("weir_cache_bypasses_total", "Requests that passed the cache by, by reason.", "reason")),
		unstored: newTallies(unstoredReasons[:],
			m.CounterFunc("weir_cache_rejections_total", "Answers to cacheable requests that were not stored, by reason.", "reason")),
		stored:    m.Counter("weir_cache_stored_total", "Answers that were stored.").With(),
		purged:    m.Counter("weir_cache_purged_total", "Stored answers that were purged.").With(),
		evictions: m.Counter("weir_cache_evictions_total", "Stored answers that gave way to others.", "store", "pool"),
		entries:   m.GaugeFunc("weir_cache_entries", "Answers in the cache, those that are too old to be given included.", "store", "pool"),
		bytes:     m.GaugeFunc("weir_cache_bytes", "Memory that the answers in the cache take.", "store", "pool"),
		faults:    m.Counter("weir_cache_faults_total", "Failures of the cache itself. The requests went on without it.").With(),
	}
	renewed := m.Counter("weir_cache_renewals_total", "Answers asked for anew in the background, by what came of it.", "outcome")
	for i := range s.metrics.renewals {
		s.metrics.renewals[i] = renewed.With(renewalNames[i])
	}
	m.GaugeFunc("weir_cache_waiting_requests", "Requests that wait for the answer to another one like them.").
		Set(func() float64 { return float64(s.flights.waiting.Load()) })
	m.GaugeFunc("weir_cache_async_searches", "Async searches that run, as far as their callers have seen, and whose answers would be stored.").
		Set(func() float64 { return float64(s.pendings.count()) })
	m.GaugeFunc("weir_cache_flights", "Upstream calls whose answers others may wait for.").
		Set(func() float64 { return float64(s.flights.count()) })
	m.GaugeFunc("weir_cache_callers", "Callers of which it is remembered when nodes have accepted their credentials last.").
		Set(func() float64 { return float64(s.callers.count()) })
}

// show makes the gauges of the stores of a kind and a pool, which during a reload may be two.
func (s *shared) show(kind, pool string) {
	sum := func(f func(*store) int64) func() float64 {
		return func() float64 {
			n := int64(0)
			for _, st := range *s.stores.Load() {
				if st.limits.kind == kind && st.limits.pool == pool {
					n += f(st)
				}
			}
			return float64(n)
		}
	}
	s.metrics.entries.Set(sum(func(st *store) int64 { return int64(st.Len()) }), kind, pool)
	s.metrics.bytes.Set(sum(func(st *store) int64 { return st.Bytes() }), kind, pool)
}

// store returns the store with these limits.
func (s *shared) store(rt *flows.Runtime, l limits) (*store, error) {
	key := fmt.Sprintf("cache store %s %d %d %q", l.kind, l.maxBytes, l.maxItems, l.pool)
	return flows.Keep(rt, key, func() (*store, func(), error) {
		opened, err := l.open(s.metrics.evictions.With(l.kind, l.pool).Inc)
		if err != nil {
			return nil, nil, err
		}
		st := &store{Store: opened, limits: l, epoch: &s.epoch}
		s.change(func(list []*store) []*store { return append([]*store{st}, list...) })
		s.show(l.kind, l.pool)
		return st, func() {
			s.change(func(list []*store) []*store {
				return slices.DeleteFunc(slices.Clone(list), func(o *store) bool { return o == st })
			})
			st.Close()
		}, nil
	})
}

func (s *shared) change(f func([]*store) []*store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := f(*s.stores.Load())
	s.stores.Store(&list)
}

// find returns the entry under key, however old, and where it is, or nil.
func (s *shared) find(key *query.Key) (*store, *Entry) {
	for _, st := range *s.stores.Load() {
		if e := st.Get(*key); e != nil {
			return st, e
		}
	}
	return nil, nil
}

// forget removes what is kept under key.
func (s *shared) forget(key *query.Key) {
	for _, st := range *s.stores.Load() {
		st.drop(key)
	}
}

// put stores e, unless what is stored was asked for later: of two answers that overtook each other the newer one stays.
// It returns false, and stores nothing, if the cache was purged since it was in that epoch.
func (s *store) put(key *query.Key, e *Entry, epoch int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch.Load() {
		return false
	}
	if old := s.Get(*key); old == nil || !old.asked.After(e.asked) {
		s.Set(*key, e)
	}
	return true
}

// replace puts fresh, which says the same, in the place of old, unless something else has taken it.
func (s *store) replace(key *query.Key, old, fresh *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Get(*key) == old {
		s.Set(*key, fresh)
	}
}

// drop removes what is under key.
func (s *store) drop(key *query.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Delete(*key)
}

// fault notes that the cache itself failed. Whatever fails here, the request goes on without the cache.
func (s *shared) fault(p any) {
	s.metrics.faults.Inc()
	s.faults.Log(slog.LevelError, "fault", "the cache failed, requests go on without it", "panic", p, "stack", string(debug.Stack()))
}
