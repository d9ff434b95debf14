package cache

import (
	"time"

	"weir/flows"
	"weir/internal/conf"
)

// Config is the configuration of cache.
type Config struct {
	// How long an answer is given, within a tenth more or less, counted from when the node was asked. After a reload it counts for
	// answers that were stored before, too.
	TTL conf.Duration `conf:"ttl" min:"1ms"`
	// How long an answer is given whose search counts time from now; never longer than ttl.
	NowTTL conf.Duration `conf:"now_ttl" min:"1ms"`
	// Kind of store.
	Store string `conf:"store" enum:"otter,ristretto"`
	// Memory for answers. Filters with the same store and limits share one.
	MaxBytes conf.Bytes `conf:"max_bytes" min:"1mb"`
	// Number of answers that are kept.
	MaxEntries int64 `conf:"max_entries" min:"1"`
	// Largest answer that is stored; a quarter of max_bytes is the limit in any case.
	MaxEntry conf.Bytes `conf:"max_entry"`
	// Requests that are not cached: those whose path has one of these as a whole segment, or whose URL has one of these
	// parameters.
	Pass conf.Strings `conf:"pass"`
	// Header fields that are part of the key beside those that always are, such as accept-language. A name, or the beginning
	// of names with `*` behind it; `*` alone adds credentials and unknown fields where `identity: shared` leaves them out.
	KeyHeaders conf.Strings `conf:"key_headers"`
	// URL parameters that are part of the key although they change no complete answer, such as timeout.
	KeyArgs conf.Strings `conf:"key_args"`

	Key   KeyConfig   `conf:",inline"`
	Stale StaleConfig `conf:",inline"`
	Proof ProofConfig `conf:",inline"`
	Async AsyncConfig `conf:",inline"`

	Stored StoredConfig `conf:",inline"`
}

type cache struct {
	lookup
	storing storing
}

// Cache declares the filter cache.
func Cache() flows.Factory[Config] {
	return flows.Factory[Config]{
		Name: "cache", Family: "cache",
		Summary: "Answers searches from the cache, and stores complete answers of the filters below it. It stands above the upstream filter, and above filters that change answers.",
		Default: func() Config {
			return Config{
				TTL: conf.Duration(defaultTTL), NowTTL: conf.Duration(defaultTTL), Store: "otter", MaxBytes: defaultMaxBytes,
				MaxEntries: defaultMaxItems, MaxEntry: defaultMaxEntry, Key: defaultKey(), Stale: defaultStale(), Proof: defaultProof(),
				Async: defaultAsync(),
			}
		},
		Build: func(b *flows.Builder, c Config) flows.Filter {
			o := c.Key.options(b, c.KeyHeaders, c.KeyArgs)
			if !check(b, "key_headers", o) {
				return nil
			}
			l := limits{kind: c.Store, maxBytes: int64(c.MaxBytes), maxItems: c.MaxEntries, pool: c.Stored.Pool}
			checkPrincipal(b, &c.Key, &c.Proof)
			warnTimes(b, &c.Proof)
			warnNowTTL(b, c.NowTTL, c.TTL, "ttl")
			warnLargest(b, "max_entry", c.MaxEntry, l)
			warnPass(b, b.Node("pass"), c.Pass)
			warnNames(b, b.Node("key_args"), c.KeyArgs)
			f := &cache{
				lookup: lookup{
					options: o, pass: setOf(c.Pass), flow: b.FlowName(), least: -1, most: -1, stale: c.Stale.build(), proof: c.Proof,
					async: c.Async,
				},
				storing: newStoring(b, c.TTL, c.NowTTL, -1, c.MaxEntry, c.Stored.Tags, l),
			}
			f.keep = &f.storing
			return f
		},
		Examples: []flows.Example{
			{Title: "For a minute, in half a gigabyte", YAML: "- cache: {ttl: 1m, max_bytes: 512mb}"},
		},
	}
}

// Start implements flows.Starter.
func (f *cache) Start(rt *flows.Runtime) error {
	if err := f.lookup.start(rt); err != nil {
		return err
	}
	return f.storing.start(rt)
}

// Stop implements flows.Stopper.
func (f *cache) Stop() {
	f.lookup.stop()
	f.storing.stop()
}

// TTL returns how long answers are given.
func (f *cache) TTL() time.Duration { return f.storing.TTL() }

func (f *cache) Serve(x *flows.Exchange, next flows.Handler) error { return f.serve(x, next) }
