package cache

import (
	"time"

	"weir/flows"
	"weir/internal/conf"
)

const (
	defaultTTL = 10 * time.Second
	// A quarter of a small machine's memory would do; twice this much is used while answers come and go.
	defaultMaxBytes = 256 << 20
	defaultMaxItems = 1_000_000
	// Larger answers are exports rather than dashboards.
	defaultMaxEntry = 8 << 20
)

// SetCacheConfig is the configuration of set_cache.
type SetCacheConfig struct {
	// Kind of store: `otter`, `ristretto`, or `memory` and `ccache`, which both mean otter.
	CacheType string `conf:"cache_type"`
	// How long an answer is given, within a tenth more or less, counted from when the node was asked. After a reload it counts for
	// answers that were stored before, too.
	CacheTTL conf.Duration `conf:"cache_ttl" min:"1ms"`
	// How long an answer is given whose search counts time from now; never longer than cache_ttl.
	NowTTL conf.Duration `conf:"now_ttl" min:"1ms"`
	// How long the answer of an async search is given. Async searches share answers with searches, for cache_ttl, so that it has no
	// effect.
	AsyncSearchCacheTTL conf.Duration `conf:"async_search_cache_ttl" deprecated:"async searches share answers with _search, for cache_ttl; leave it out"`
	// Smallest answer that is stored; -1 is no limit.
	MinResponseSize conf.Bytes `conf:"min_response_size" min:"-1"`
	// Largest answer that is stored; -1 is a quarter of the store, which is the limit in any case.
	MaxResponseSize conf.Bytes `conf:"max_response_size" min:"-1"`
	// Statuses of answers that are stored. Whatever stands here, only answers with 200 are.
	ValidatedStatusCode []int `conf:"validated_status_code"`
	// Number of answers that are kept. Flows with the same limits share a store.
	MaxCachedItem int64 `conf:"max_cached_item,alias=max_cache_items" min:"1"`
	// Memory for answers. Flows with the same limits share a store.
	MaxCachedSize conf.Bytes `conf:"max_cached_size" min:"1mb"`

	Stored StoredConfig `conf:",inline"`
}

type setCache struct{ storing }

// SetCache declares the filter set_cache.
func SetCache() flows.Factory[SetCacheConfig] {
	return flows.Factory[SetCacheConfig]{
		Name: "set_cache", Family: "cache",
		Summary: "Stores complete answers to searches for get_cache, which stands above the upstream filter. It stands below.",
		Default: func() SetCacheConfig {
			return SetCacheConfig{
				CacheType: "otter", CacheTTL: conf.Duration(defaultTTL), NowTTL: conf.Duration(defaultTTL),
				AsyncSearchCacheTTL: conf.Duration(10 * time.Minute), MinResponseSize: -1, MaxResponseSize: defaultMaxEntry,
				MaxCachedItem: defaultMaxItems, MaxCachedSize: defaultMaxBytes,
			}
		},
		Build: func(b *flows.Builder, c SetCacheConfig) flows.Filter {
			checkStatuses(b, c.ValidatedStatusCode)
			kind := storeKind(b, "cache_type", c.CacheType)
			if kind == "" {
				return nil
			}
			l := limits{kind: kind, maxBytes: int64(c.MaxCachedSize), maxItems: c.MaxCachedItem, pool: c.Stored.Pool}
			warnNowTTL(b, c.NowTTL, c.CacheTTL, "cache_ttl")
			warnSizes(b, c.MinResponseSize, c.MaxResponseSize)
			warnLargest(b, "max_response_size", c.MaxResponseSize, l)
			return &setCache{newStoring(b, c.CacheTTL, c.NowTTL, c.MinResponseSize, c.MaxResponseSize, c.Stored.Tags, l)}
		},
		Examples: []flows.Example{{Title: "For half a minute", YAML: "- set_cache: {cache_ttl: 30s}"}},
	}
}

// storeKind returns the kind of store that a configuration names, or reports a problem and returns "".
func storeKind(b *flows.Builder, field, name string) string {
	switch name {
	case "otter", "ristretto":
		return name
	case "memory":
		return "otter"
	case "ccache":
		b.Warnf(field, "there is no ccache here: otter is used, in the memory of the process; write otter")
		return "otter"
	case "redis":
		b.Errorf(field, "redis comes with a later version; this one has otter and ristretto, in the memory of the process")
	default:
		b.Errorf(field, "%q is not one of otter, ristretto, memory", name)
	}
	return ""
}

func newStoring(b *flows.Builder, ttl, nowTTL conf.Duration, least, most conf.Bytes, tags []string, l limits) storing {
	k := storing{
		id: b.FilterID(), lifetime: lifetime{ttl.Std(), nowTTL.Std()}, least: int64(least), most: l.largest(), limits: l, tags: tags,
	}
	if most >= 0 {
		k.most = min(k.most, int64(most))
	}
	return k
}

// Start implements flows.Starter.
func (f *setCache) Start(rt *flows.Runtime) error { return f.start(rt) }

// Stop implements flows.Stopper.
func (f *setCache) Stop() { f.stop() }

func (f *setCache) Serve(x *flows.Exchange, next flows.Handler) error {
	if t := ticketOf.Get(x); t != nil && t.open && !t.offered && x.Response.Answered() {
		if err := f.offer(x, t); err != nil {
			return err
		}
	}
	return next.Serve(x)
}
