package cache

import (
	"slices"
	"strings"

	"weir/elastic/query"
	"weir/flows"
	"weir/internal/conf"
)

// KeyConfig says which requests are alike. All cache filters that look for answers have it.
type KeyConfig struct {
	// Who shares answers: callers with the same credentials, callers who are the same to the cluster, or everybody.
	// `principal` asks the cluster, once in auth_ttl, for whom the Basic or Bearer credentials of a caller stand; all other
	// fields count as they do with `per_credential`, and so do credentials of which the cluster does not say that. It needs that
	// what lies below treats that call like the searches. `shared` is right only where no index has document or field level
	// security and everybody who reaches the flow may read all that is searched.
	Identity string `conf:"identity" enum:"per_credential,principal,shared"`
	// Header fields that change no answer, such as trace ids of your own, besides those that are known not to: every other
	// field is part of who asks. A name, or the beginning of names with `*` behind it. Fields by which the entry is told
	// who a caller is (`identity_fields`) always count.
	HarmlessHeaders conf.Strings `conf:"harmless_headers"`
	// Make the caller's address part of who asks, for clusters that map roles by host.
	ByAddress bool `conf:"by_address"`
	// What a custom `?preference` does to the key: `auto` leaves it out when no hits are asked for, neither as such nor by
	// top_hits, top_metrics, inner_hits or suggest, and nothing else in which copies of a shard may differ, such as min_score,
	// knn or terminate_after. Copies of a shard may order hits of equal score differently.
	Preference string `conf:"preference" enum:"auto,keep,drop"`
	// What searches are to the clock that count from a rounded now only, such as `now-7d/d`. `moving`: their answers live for
	// now_ttl, like those of all searches that count from now. `still`: for ttl, and longer while nothing changes, but never
	// beyond the moment at which the rounding may change, which is each full quarter of an hour, or each minute for `now/m`.
	// That is right only while the clocks of the gateway and of all nodes differ by less than 30 s.
	RoundedNow string `conf:"rounded_now" enum:"moving,still"`
	// Whether searches with scripts are cached: `deterministic` says that scripts give the same for the same documents.
	Scripts string `conf:"scripts" enum:"bypass,deterministic"`
	// APIs whose answers are kept too, each for ttl, and those to queries for now_ttl if that is shorter: `field_caps`,
	// `indices.get_mapping`, `search_template`, `sql.query`, `esql.query`, `ppl.query`. Such an answer may be as old as that
	// whatever was written; only `_search`, `_msearch`, `_count` and async searches are kept unless they are named here.
	Also conf.Strings `conf:"also"`
	// Largest body of a request that is cached.
	MaxRequest conf.Bytes `conf:"max_request_size" min:"1kb" max:"64mb"`
}

func defaultKey() KeyConfig {
	return KeyConfig{Identity: "per_credential", Preference: "auto", RoundedNow: "moving", Scripts: "bypass", MaxRequest: 1 << 20}
}

// options returns the options of a Keyer.
func (c *KeyConfig) options(b *flows.Builder, headers, args []string) query.Options {
	o := query.Options{
		ByAddress: c.ByAddress, RoundedNow: c.RoundedNow == "still", DeterministicScripts: c.Scripts == "deterministic", MaxBody: int(c.MaxRequest),
		ExtraHeaders: headers, HarmlessHeaders: c.HarmlessHeaders, ExtraArgs: args, Others: c.Also,
	}
	switch c.Identity {
	case "principal":
		o.Identity = query.PerPrincipal
	case "shared":
		o.Identity = query.Shared
		b.Warnf("identity", "everybody who reaches this flow is given what anybody with rights has searched")
	}
	switch c.Preference {
	case "keep":
		o.Preference = query.PreferenceKeep
	case "drop":
		o.Preference = query.PreferenceDrop
	}
	return o
}

// check reports options that make no Keyer. The secret is none of the configuration's business.
func check(b *flows.Builder, field string, o query.Options) bool {
	for _, name := range o.Others {
		if !slices.Contains(query.Others(), name) {
			b.Errorf("also", "%q is not one of %s", name, strings.Join(query.Others(), ", "))
			return false
		}
	}
	o.Secret, o.MemoBytes = make([]byte, 32), -1
	extra := o.ExtraHeaders
	o.ExtraHeaders = nil
	if _, err := query.NewKeyer(o); err != nil {
		b.Errorf("harmless_headers", "%v", err)
		return false
	}
	o.ExtraHeaders = extra
	if _, err := query.NewKeyer(o); err != nil {
		b.Errorf(field, "%v", err)
		return false
	}
	return true
}

// checkPrincipal reports that nothing would bound for how long a caller counts as who it once was.
func checkPrincipal(b *flows.Builder, key *KeyConfig, proof *ProofConfig) {
	if key.Identity == "principal" && proof.AuthTTL == 0 {
		b.Errorf("auth_ttl", "identity: principal asks the cluster who a caller is once in auth_ttl, so that it must not be 0")
	}
}

// GetCacheConfig is the configuration of get_cache.
type GetCacheConfig struct {
	// Requests that are not cached: those whose path has one of these as a whole segment, or whose URL has one of these
	// parameters.
	PassPatterns conf.Strings `conf:"pass_patterns"`
	// What else makes two requests different.
	HashFactor HashFactor `conf:"hash_factor"`
	// Kind of store, as for set_cache. Answers are found in whatever store set_cache put them.
	CacheType string `conf:"cache_type"`
	// Statuses of answers that are stored. Whatever stands here, only answers with 200 are.
	ValidatedStatusCode []int `conf:"validated_status_code"`
	// Smallest answer that is stored; -1 is no limit.
	MinResponseSize conf.Bytes `conf:"min_response_size" min:"-1"`
	// Largest answer that is stored; -1 leaves it to set_cache.
	MaxResponseSize conf.Bytes `conf:"max_response_size" min:"-1"`

	Key   KeyConfig   `conf:",inline"`
	Stale StaleConfig `conf:",inline"`
	Proof ProofConfig `conf:",inline"`
	Async AsyncConfig `conf:",inline"`
}

// HashFactor adds to what makes two requests different. It takes nothing away from that.
type HashFactor struct {
	// Header fields that are part of the key although they are known to change no answer: those of one hop, of tracing, of
	// codings and languages, and those that name the client program. All others always are. A name, or the beginning of
	// names with `*` behind it; `*` alone adds credentials and unknown fields where `identity: shared` leaves them out.
	Header conf.Strings `conf:"header"`
	// Whether the path is part of the key. It always is.
	Path bool `conf:"path"`
	// Whether the body is part of the key. It always is.
	Body bool `conf:"body"`
	// URL parameters that are part of the key although they change no complete answer, such as timeout. All others always
	// are.
	QueryArgs conf.Strings `conf:"query_args"`
	// Requests that are cached in spite of pass_patterns.
	MustCache MustCache `conf:"must_cache"`
}

// MustCache names requests.
type MustCache struct {
	// Methods; none means every method.
	Method conf.Strings `conf:"method"`
	// Segments of the path, of which the request must have one.
	Path conf.Strings `conf:"path"`
}

type getCache struct{ lookup }

// GetCache declares the filter get_cache.
func GetCache() flows.Factory[GetCacheConfig] {
	return flows.Factory[GetCacheConfig]{
		Name: "get_cache", Family: "cache",
		Summary: "Answers searches from the cache, and lets one of many that are alike go on. It stands above the upstream filter, set_cache below.",
		Default: func() GetCacheConfig {
			return GetCacheConfig{
				CacheType: "otter", HashFactor: HashFactor{Path: true, Body: true}, MinResponseSize: -1, MaxResponseSize: -1,
				Key: defaultKey(), Stale: defaultStale(), Proof: defaultProof(),
				Async: defaultAsync(),
			}
		},
		Build: buildGetCache,
		Examples: []flows.Example{
			{Title: "Searches with long bodies are not cached", YAML: "- get_cache: {max_request_size: 64kb}"},
		},
	}
}

func buildGetCache(b *flows.Builder, c GetCacheConfig) flows.Filter {
	storeKind(b, "cache_type", c.CacheType)
	checkStatuses(b, c.ValidatedStatusCode)
	for name, given := range map[string]bool{"path": c.HashFactor.Path, "body": c.HashFactor.Body} {
		if !given {
			b.Problems.Warnf(b.Node("hash_factor").Get(name), "the %s stays in the key: without it one search would get the answer of another", name)
		}
	}
	o := c.Key.options(b, c.HashFactor.Header, c.HashFactor.QueryArgs)
	if !check(b, "hash_factor", o) {
		return nil
	}
	warnClassic(b, &c)
	checkPrincipal(b, &c.Key, &c.Proof)
	warnTimes(b, &c.Proof)
	warnSizes(b, c.MinResponseSize, c.MaxResponseSize)
	warnPass(b, b.Node("pass_patterns"), c.PassPatterns)
	factor := b.Node("hash_factor")
	warnNames(b, factor.Get("query_args"), c.HashFactor.QueryArgs)
	warnSegments(b, factor.At("must_cache.path"), c.HashFactor.MustCache.Path)
	warnMethods(b, factor.At("must_cache.method"), c.HashFactor.MustCache.Method)
	return &getCache{lookup{
		options: o, pass: setOf(c.PassPatterns), flow: b.FlowName(),
		must:  mustCache{methods: setOf(c.HashFactor.MustCache.Method), paths: setOf(c.HashFactor.MustCache.Path)},
		least: int64(c.MinResponseSize), most: int64(c.MaxResponseSize), stale: c.Stale.build(), proof: c.Proof,
		async: c.Async,
	}}
}

// warnClassic names parameters that are read otherwise than in the classic form, where it makes a difference.
func warnClassic(b *flows.Builder, c *GetCacheConfig) {
	if len(c.PassPatterns) > 0 {
		b.Warnf("pass_patterns", "pass_patterns were looked for anywhere in the URL; now each is a whole segment of the path or the name of a "+
			"parameter: write out what is to match")
	}
	factor, p := b.Node("hash_factor"), b.Problems
	if len(c.HashFactor.Header) > 0 {
		p.Warnf(factor.Get("header"), "hash_factor.header named all fields of the key; now its fields are added to those that always are in it, such as "+
			"credentials, and * leaves out fields that change no answer, such as trace ids: callers with other credentials no longer share answers")
	}
	if len(c.HashFactor.QueryArgs) > 0 {
		p.Warnf(factor.Get("query_args"), "hash_factor.query_args named all parameters of the key; now all are in it that can change an answer, and these are added")
	}
	must := c.HashFactor.MustCache
	if len(must.Method)+len(must.Path) > 0 {
		p.Warnf(factor.Get("must_cache"), "what must_cache names was cached whatever else held; now it only overrides pass_patterns: what is neither a search "+
			"nor a count, and an incomplete answer, is never kept")
	}
	for _, s := range must.Path {
		if s != "_search" && s != "_count" && s != "_msearch" && s != "_async_search" {
			p.Warnf(factor.Get("must_cache").Get("path"), "must_cache names %s, which is never cached: only _search, _msearch, _count and "+
				"_async_search are; leave it out", s)
		}
	}
}

// checkStatuses reports statuses that would be stored in the classic form and are not.
func checkStatuses(b *flows.Builder, list []int) {
	if i := slices.IndexFunc(list, func(s int) bool { return s != 200 }); i >= 0 {
		b.Warnf("validated_status_code", "only answers with status 200 are stored; %d is passed on", list[i])
	}
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}

// Start implements flows.Starter.
func (f *getCache) Start(rt *flows.Runtime) error { return f.start(rt) }

// Stop implements flows.Stopper.
func (f *getCache) Stop() { f.stop() }

func (f *getCache) Serve(x *flows.Exchange, next flows.Handler) error { return f.serve(x, next) }
