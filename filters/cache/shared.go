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
	tickets sync.Pool
	stores  atomic.Pointer[[]*store]
	faults  *obs.Throttle
	metrics sharedMetrics

	renewals atomic.Int64 // that run now

	mu sync.Mutex // guards changes of stores
}

// A store is a Store in use.
type store struct {
	Store
	limits limits
	mu     sync.Mutex // guards the order of writes
}

type sharedMetrics struct {
	bypasses  map[query.Reason]obs.Counter
	unstored  map[query.Reason]obs.Counter
	stored    obs.Counter
	evictions map[string]obs.Counter
	renewals  [renewals]obs.Counter
	faults    obs.Counter
}

// sharedOf returns what the filters share.
func sharedOf(rt *flows.Runtime) (*shared, error) {
	return flows.Keep(rt, "cache", func() (*shared, func(), error) {
		s := &shared{secret: make([]byte, 32), flights: newFlights(), faults: obs.NewThrottle(rt.Logger, time.Minute)}
		if _, err := rand.Read(s.secret); err != nil {
			return nil, nil, fmt.Errorf("make the secret of the cache: %w", err)
		}
		s.tickets.New = func() any { return &ticket{shared: s} }
		s.stores.Store(&[]*store{})
		s.register(rt.Metrics)
		return s, s.faults.Close, nil
	})
}

func (s *shared) register(m *obs.Metrics) {
	bypasses := m.Counter("weir_cache_bypasses_total", "Requests that passed the cache by, by reason.", "reason")
	unstored := m.Counter("weir_cache_rejections_total", "Answers to cacheable requests that were not stored, by reason.", "reason")
	evictions := m.Counter("weir_cache_evictions_total", "Stored answers that gave way to others.", "store")
	s.metrics = sharedMetrics{
		bypasses: map[query.Reason]obs.Counter{}, unstored: map[query.Reason]obs.Counter{}, evictions: map[string]obs.Counter{},
		stored: m.Counter("weir_cache_stored_total", "Answers that were stored.").With(),
		faults: m.Counter("weir_cache_faults_total", "Failures of the cache itself. The requests went on without it.").With(),
	}
	for _, why := range bypassReasons {
		s.metrics.bypasses[why] = bypasses.With(string(why))
	}
	for _, why := range unstoredReasons {
		s.metrics.unstored[why] = unstored.With(string(why))
	}
	renewed := m.Counter("weir_cache_renewals_total", "Answers asked for anew in the background, by what came of it.", "outcome")
	for i := range s.metrics.renewals {
		s.metrics.renewals[i] = renewed.With(renewalNames[i])
	}
	entries := m.GaugeFunc("weir_cache_entries", "Answers in the cache, those that are too old to be given included.", "store")
	size := m.GaugeFunc("weir_cache_bytes", "Memory that the answers in the cache take.", "store")
	for _, kind := range storeKinds {
		s.metrics.evictions[kind] = evictions.With(kind)
		entries.Set(func() float64 { return s.sum(kind, func(st *store) int64 { return int64(st.Len()) }) }, kind)
		size.Set(func() float64 { return s.sum(kind, func(st *store) int64 { return st.Bytes() }) }, kind)
	}
	m.GaugeFunc("weir_cache_waiting_requests", "Requests that wait for the answer to another one like them.").
		Set(func() float64 { return float64(s.flights.waiting.Load()) })
	m.GaugeFunc("weir_cache_flights", "Upstream calls whose answers others may wait for.").
		Set(func() float64 { return float64(s.flights.count()) })
}

func (s *shared) sum(kind string, f func(*store) int64) float64 {
	n := int64(0)
	for _, st := range *s.stores.Load() {
		if st.limits.kind == kind {
			n += f(st)
		}
	}
	return float64(n)
}

// store returns the store with these limits.
func (s *shared) store(rt *flows.Runtime, l limits) (*store, error) {
	key := fmt.Sprintf("cache store %s %d %d", l.kind, l.maxBytes, l.maxItems)
	return flows.Keep(rt, key, func() (*store, func(), error) {
		opened, err := l.open(s.metrics.evictions[l.kind].Inc)
		if err != nil {
			return nil, nil, err
		}
		st := &store{Store: opened, limits: l}
		s.change(func(list []*store) []*store { return append([]*store{st}, list...) })
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
func (s *store) put(key *query.Key, e *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.Get(*key); old == nil || !old.asked.After(e.asked) {
		s.Set(*key, e)
	}
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
