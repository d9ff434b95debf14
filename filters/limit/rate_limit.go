package limit

import (
	"encoding/binary"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"weir/elastic"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
)

// RateLimitConfig is the configuration of rate_limit.
type RateLimitConfig struct {
	// Text of the refusal. By default it names the limit and its rate.
	Message string `conf:"message"`
	// Status of the refusal.
	Status int `conf:"status" min:"400" max:"599"`
	// Type of the refusal, as in Elasticsearch's errors.
	Type string `conf:"type"`
	// Limits by path, the classic form: of these the first that matches counts.
	Rules []RateLimitRule `conf:"rules"`
	// Further limits, by caller, index and the like: of these all count that apply, together with the rule. A request
	// passes if all of them let it, and only then is any of them charged.
	Limits []RateLimitLimit `conf:"limits"`
	// Requests that no limit is for: health checks, a trusted job.
	Exempt *conf.Node `conf:"exempt"`
	// What is done: enforce refuses; shadow counts and logs what would be refused and lets it pass, without a trace that
	// callers could see; off does nothing.
	Mode string `conf:"mode" enum:"enforce,shadow,off"`
	// Share of the keys (callers, indices, …) for which limits are enforced; for the others they only count. It is always
	// the same keys.
	Percent conf.Percent `conf:"percent"`
	// What happens to a request over a limit that says nothing itself: reject answers with status and Retry-After; wait lets
	// it wait until it would pass, at most max_wait.
	OnLimit string `conf:"on_limit" enum:"reject,wait"`
	// Longest wait with on_limit: wait, for limits that say none. A request that would have to wait longer is refused at once.
	MaxWait conf.Duration `conf:"max_wait" min:"1ms"`
	// Requests that may wait at the same time. When there are more, the caller with most of them gives up a place.
	MaxWaiting int `conf:"max_waiting" min:"1" max:"1000000"`
	// What a caller is among those that wait for the same budget: callers take turns. Selectors as in key. Who makes up an
	// identity for each request gets a turn for each: where callers are not trusted write ip.
	FairBy conf.Strings `conf:"fair_by"`
	// Which fields tell callers of the limit that they are nearest to, in answers and refusals: draft is RateLimit and
	// RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-10), legacy is X-RateLimit-Limit, -Remaining and -Reset.
	Headers string `conf:"headers" enum:"draft,legacy,both,off"`
	// Log refusals, at most one line a minute for each limit, with how many there were.
	LogRefusals bool `conf:"log_refusals"`
	// How many keys (callers, indices, …) are told apart. Above it the keys go first that have their whole burst, which
	// changes nothing; then the one nearest to that, which is counted.
	MaxKeys int `conf:"max_keys" min:"1000" max:"50000000"`
}

// RateLimitRule is one limit by path.
type RateLimitRule struct {
	// What the limit is called in messages, logs and metrics; by default rule_ and the number of the rule.
	Name string `conf:"name"`
	// Expression that is looked for in the path, decoded and with repeated slashes made one, so that no other spelling of
	// a path evades it. The query is not part of it. It sees what the path says: a limit on an index in whatever way
	// a request names it is written under limits, with index.
	Pattern conf.Regexp `conf:"pattern,required"`
	// A group of the expression, (?P<name>…): each text that it finds has a budget of its own. Without it the rule has one.
	Group string `conf:"group"`
	// Requests a second in the long run. They are metered evenly (GCRA), not counted by the second: after rest a burst
	// passes at once, then one request each 1/max_qps of a second. With 3, three requests pass at once and the fourth
	// passes a third of a second after the first; so the first second after rest may see as many as burst and max_qps
	// together.
	MaxQPS float64 `conf:"max_qps,required"`
	// Requests that may come at once after rest; by default those of one second, at least one.
	Burst *conf.Amount `conf:"burst"`
}

// RateLimitLimit is one limit of a list.
type RateLimitLimit struct {
	// What the limit is called in messages, logs, metrics and header fields; by default limit_ and the number of the limit.
	Name string `conf:"name"`
	// What a budget is for; each combination of values has one. ip: the caller's address, of IPv6 its /64 network, and
	// ip/24 or ip/24/48 the network of so many bits; user: the name in Basic credentials, which nobody has checked here;
	// api_key: the id of an API key, not checked either; identity: the user, or else the API key, or else the address;
	// index: each index that the path or the body of a bulk, _msearch or _mget names, at most 1000, beyond which a request is refused
	// with 400. A pattern, date math and no index at all have budgets too, and count for each index that was named lately and that
	// they may mean: no spelling evades the limit of an index, and none costs one that it does not reach. Of what nobody can tell
	// what it touches, such as scrolls and statements in SQL, all share a budget; api and class: as in the API table; method; host; flow; path: the whole path; header:NAME: the first such field; cookie:NAME;
	// query:NAME: a parameter of the URL; path:GROUP: a group of pattern; global: all share one.
	Key conf.Strings `conf:"key"`
	// What becomes of a request without one of the values: anonymous: all such requests share a budget; skip: the limit is not
	// for them; reject: they are refused.
	Missing string `conf:"missing" enum:"anonymous,skip,reject"`
	// What is counted. request_bytes and response_bytes: bodies as they are sent, answers with their head, but of a bulk for a
	// limit on indices the lines, not compressed; bulk_docs: the
	// actions of a bulk and single writes, other calls count nothing; searches: searches, each of an _msearch; took: the
	// time that its answer took to come or, where an API says took, of searches, bulks, _reindex and the like, that time if it
	// is shorter; answers of a cache take none. What is
	// known only when the answer is there lets requests pass as long as the budget is not used up, and is charged then.
	Unit string `conf:"unit" enum:"requests,request_bytes,response_bytes,bulk_docs,searches,took"`
	// How much in a length of time, in the long run: 50/s, 600/m, 1/10s; of bytes 10mb/s; of took 20s/s.
	Rate conf.Rate `conf:"rate,required"`
	// How much may come at once after rest; by default that of one second, at least one. 100, of bytes 10mb, of took 5s.
	Burst *conf.Amount `conf:"burst"`
	// How much one request counts: a number, or a mapping of APIs and classes of APIs to numbers. A request that costs more
	// than the burst passes when the budget is whole, and leaves it in debt.
	Cost Costs `conf:"cost"`
	// The limit is for paths that match this expression, read as in rules.
	Pattern conf.Regexp `conf:"pattern"`
	// The limit is for requests that may touch an index of these names or patterns: also those that name it in a list or
	// by a wildcard, and those that name no index in the path. Of _msearch and _mget the body is read, and counts as one that may
	// touch every index if it cannot be. Of a bulk the lines are read: documents and bytes of those count that write to such an
	// index, and a bulk that is over one limit is refused as a whole, and with 400 one of more than 1000 indices, or with actions
	// that cannot be read. Calls that look at no index at all, such as GET /, _cluster/health and _cat/nodes, are not among them.
	Index conf.Strings `conf:"index"`
	// The limit is for requests that this condition holds for.
	When *conf.Node `conf:"when"`
	// Other rates for single keys.
	Overrides []RateLimitOverride `conf:"overrides"`
	// What happens to a request over this limit, by default what the filter's on_limit says. A request over several limits waits
	// only if it may for each of them.
	OnLimit string `conf:"on_limit" enum:"reject,wait"`
	// Longest wait for this limit, by default the filter's.
	MaxWait *conf.Duration `conf:"max_wait" min:"1ms"`
	// Text of this limit's refusals, by default the filter's.
	Message string `conf:"message"`
	// Status of this limit's refusals, by default the filter's.
	Status *int `conf:"status" min:"400" max:"599"`

	only   bool     // keys without an override are not limited
	bulks  bool     // only bulks are limited
	except []string // of index, that other limits are for
}

// RateLimitOverride is the rate of one key.
type RateLimitOverride struct {
	// Values of the selectors in key, in their order. An identity is written user:NAME, api_key:ID or as an address.
	Key conf.Strings `conf:"key,required"`
	// Rate of this key. Without one it is not limited.
	Rate *conf.Rate `conf:"rate"`
	// Burst of this key.
	Burst *conf.Amount `conf:"burst"`
}

// SetDefaults makes c a limit of requests by address.
func (c *RateLimitLimit) SetDefaults() {
	c.Key, c.Missing, c.Unit, c.Cost = conf.Strings{"ip"}, "anonymous", "requests", Costs{all: 1}
}

// rateLimit is the filter. Its limits are the rules, in order, and then the others.
type rateLimit struct {
	config   RateLimitConfig
	flow     string
	name     string // of the filter
	limits   []*limit
	rules    int
	matcher  *matcher // nil without patterns
	indices  bool     // a limit looks at indices
	exempt   flows.Condition
	style    fieldStyle
	fairBy   []selector
	enforced uint64 // of ten thousand keys
	scratch  sync.Pool

	table   *Table
	roll    *roll  // nil unless a limit is keyed by index
	rooms   *rooms // nil unless requests wait
	logs    *obs.Throttle
	release []func()
}

// A limit is one that is configured, with what it needs at work.
type limit struct {
	budget
	name      string
	quoted    string // name as header fields write it
	unit      unit
	cost      Costs
	missing   string
	message   string
	status    int
	patience  time.Duration  // how long requests wait for it
	nameless  *elastic.Error // the refusal of a request without a value
	tooMany   *elastic.Error // the refusal of a request that names more than maxIndices
	unread    *elastic.Error // the refusal of a bulk whose actions cannot be read
	selectors []selector
	byIndex   bool // one of them is the index
	index     []string
	except    []string // of index, that other limits are for
	bulks     bool     // only bulks are limited
	when      flows.Condition
	own       int                // number among the patterns that are no rules, or -1
	overrides map[string]*budget // by key without the number of the limit

	passed, waited, refused, spared, near obs.Counter
}

// A budget is the shape that a limit has for a key.
type budget struct {
	Limit
	id         uint64
	identity   string // by which it is known again after a reload
	rate       string // as written
	unlimited  bool
	reason     string // of a refusal; what comes behind it is the time to wait
	policy     []byte
	nextSecond *elastic.Error // the most frequent refusal
}

// scratch is the memory of one decision. Where the answer tells of limits or is charged for, it lives until that has been
// written.
type scratch struct {
	owner    *rateLimit
	x        *flows.Exchange
	keys     []byte
	charges  []Charge
	taken    []taken // what each charge is for
	found    *match  // what the path means to the patterns
	indices  indices
	from     query.Source // where the indices stand
	lines    lineCounter
	counted  int64 // documents or searches in the body
	whole    whole
	inflated inflater
	field    []byte // a value of the response's header
	bodies   bool   // a charge needs the request's body
	byIndex  bool   // a limit needs to know which indices the body names
	unpaid   bool   // a charge is known only when the exchange has ended
	barring  *limit // that refuses x whatever is left of its budgets, or nil
	why      *elastic.Error
}

// taken says what a charge is for.
type taken struct {
	limit  *limit
	budget *budget
	moment moment
}

// Release implements flows.Releaser: the answer has been written.
func (s *scratch) Release() {
	if s.unpaid {
		s.payRest()
	}
	s.owner.put(s)
}

// RateLimit declares the filter rate_limit.
func RateLimit() flows.Factory[RateLimitConfig] {
	return flows.Factory[RateLimitConfig]{
		Name: "rate_limit", Family: "limit",
		Summary: "Refuses with 429 what comes faster than a rate, or lets it wait, by path, caller, index and the like.",
		Default: defaultRateLimit,
		Build: func(b *flows.Builder, c RateLimitConfig) flows.Filter {
			return assemble(b, c, func(list string, i int) *conf.Node { return b.Node(list).Item(i) })
		},
		Examples: []flows.Example{
			{Title: "Searches by index, the classic form", YAML: `- name: rate_limit_1
  type: rate_limit
  parameters:
    message: "Hey, You just reached our request limit!"
    rules:
      - pattern: "/(?P<index_name>medcl)/_search"
        max_qps: 3
        group: index_name
      - pattern: "/(?P<index_name>.*?)/_search"
        max_qps: 100
        group: index_name`},
			{Title: "Callers and one index, charged together", YAML: `- rate_limit:
    limits:
      - {name: per_caller, key: [ip], rate: 50/s, burst: 100}
      - {name: archive, key: [global], index: "archive-*", rate: 600/m, when: {class: search}}`},
			{Title: "Work instead of requests: cluster time and documents, with a guest list", YAML: `- rate_limit:
    exempt: {api: [info, ping, cluster.health]}
    limits:
      - {name: cluster_time, key: [identity], unit: took, rate: 20s/s}
      - name: writes
        key: [user]
        unit: bulk_docs
        rate: 5000/s
        overrides:
          - {key: loader, rate: 50000/s}
          - {key: restore}`},
			{Title: "Shape dashboards instead of refusing them", YAML: `- rate_limit:
    on_limit: wait
    max_wait: 2s
    limits:
      - {name: dashboards, key: [global], rate: 20/s, when: {header: {x-team: kibana}}}`},
			{Title: "Try a limit on a tenth of the callers", YAML: `- rate_limit:
    percent: 10%
    log_refusals: true
    limits:
      - {key: [identity], rate: 10/s, cost: {scroll: 2, search: 1, inspect: 0}}`},
		},
	}
}

func defaultRateLimit() RateLimitConfig {
	return RateLimitConfig{
		Status: 429, Type: "rate_limit_exceeded_exception", Mode: "enforce", Percent: 100, OnLimit: "reject", MaxWait: conf.Duration(time.Second),
		MaxWaiting: 1000, FairBy: conf.Strings{"identity"}, Headers: "draft", MaxKeys: 100_000,
	}
}

// Start finds the table of the filter that had its place before, so that a reload is no fresh burst for anybody.
func (f *rateLimit) Start(rt *flows.Runtime) error {
	name, leave, err := takeSeat(rt, "rate_limit", f.flow, f.name, f)
	if err != nil {
		return err
	}
	f.release = append(f.release, leave)
	key := "limit table " + f.flow + " " + name + " " + strconv.Itoa(f.config.MaxKeys)
	f.table, err = flows.Keep(rt, key, func() (*Table, func(), error) {
		return NewTable(f.config.MaxKeys, Monotonic()), nil, nil
	})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(f.limits, func(l *limit) bool { return l.byIndex }) {
		f.roll, err = flows.Keep(rt, "limit roll "+f.flow+" "+name, func() (*roll, func(), error) { return &roll{}, nil, nil })
		if err != nil {
			return err
		}
	}
	f.name = name
	for _, l := range f.limits {
		f.hold(&l.budget)
		for _, b := range l.overrides {
			f.hold(b)
		}
	}
	if slices.ContainsFunc(f.limits, func(l *limit) bool { return l.patience > 0 }) {
		f.rooms = newRooms(f.table, f.config.MaxWaiting)
	}
	f.logs = obs.NewThrottle(rt.Logger.With("flow", f.flow, "filter", name), time.Minute)
	f.release = append(f.release, f.logs.Close)
	return f.measure(rt.Metrics, name)
}

func (f *rateLimit) hold(b *budget) {
	b.id = f.table.Hold(b.identity)
	f.release = append(f.release, func() { f.table.Release(b.identity) })
}

// measure makes the filter's numbers.
func (f *rateLimit) measure(m *obs.Metrics, name string) error {
	decisions := m.Counter("weir_limit_decisions_total",
		"Decisions of limits. A request that several limits let pass counts for each of them, at once (passed) or after a wait (waited), a refused one for the limit with the longest wait; would_refuse are those that a limit in shadow mode, or beyond percent, lets pass.",
		"flow", "filter", "limit", "outcome")
	near := m.Counter("weir_limit_near_total", "Requests that passed with less than a fifth of the burst left.", "flow", "filter", "limit")
	for _, l := range f.limits {
		outcome := func(o string) obs.Counter { return decisions.With(f.flow, name, l.name, o) }
		l.passed, l.waited, l.refused, l.spared = outcome("passed"), outcome("waited"), outcome("refused"), outcome("would_refuse")
		l.near = near.With(f.flow, name, l.name)
	}
	gauge := m.GaugeFunc("weir_limit_keys", "Keys that limits remember.", "flow", "filter")
	f.release = append(f.release, gauge.Set(func() float64 { return float64(f.table.Len()) }, f.flow, name))
	hot := m.CounterFunc("weir_limit_evicted_hot_total",
		"Keys that limits forgot for want of room although part of their burst was used up.", "flow", "filter")
	f.release = append(f.release, hot.Set(func() float64 { return float64(f.table.EvictedHot()) }, f.flow, name))
	if f.roll != nil {
		names := m.GaugeFunc("weir_limit_indices", "Names and patterns of indices that filters with a limit keyed by index remember, to tell what a pattern counts for.", "flow", "filter")
		f.release = append(f.release, names.Set(func() float64 { return float64(f.roll.len()) }, f.flow, name))
	}
	if f.matcher != nil {
		paths := m.GaugeFunc("weir_limit_paths", "Paths whose limits are remembered.", "flow", "filter")
		f.release = append(f.release, paths.Set(func() float64 { return float64(f.matcher.memo.len()) }, f.flow, name))
	}
	if f.rooms != nil {
		waiting := m.GaugeFunc("weir_limit_waiting", "Requests that wait for a limit to let them pass.", "flow", "filter")
		f.release = append(f.release, waiting.Set(func() float64 { return float64(f.rooms.waiting.Load()) }, f.flow, name))
	}
	return m.Err()
}

// Stop gives up the filter's part of the table.
func (f *rateLimit) Stop() {
	for _, release := range f.release {
		release()
	}
	f.release = nil
}

func (f *rateLimit) Serve(x *flows.Exchange, next flows.Handler) error {
	if f.config.Mode == "off" || f.exempt != nil && f.exempt.Match(x) || flows.Met(next, x) {
		return next.Serve(x)
	}
	s, _ := f.scratch.Get().(*scratch)
	s.x = x
	if err := f.admit(x, s); err != nil {
		f.put(s)
		if x.Tracing {
			return nil
		}
		return err
	}
	if len(s.charges) == 0 {
		f.put(s)
		return next.Serve(x)
	}
	err := next.Serve(x)
	f.settle(x, s, err == nil && f.config.Mode == "enforce")
	return err
}

// mostKept is for how many charges a scratch keeps its memory.
const mostKept = 256

// put gives a scratch back.
func (f *rateLimit) put(s *scratch) {
	clear(s.charges)
	clear(s.taken)
	s.keys, s.charges, s.taken = s.keys[:0], s.charges[:0], s.taken[:0]
	s.x, s.found, s.from, s.bodies, s.byIndex, s.unpaid, s.barring, s.why = nil, nil, query.InPath, false, false, false, nil, nil
	if cap(s.charges) > mostKept {
		s.keys, s.charges, s.taken, s.indices, s.whole = nil, nil, nil, indices{}, nil
	}
	f.scratch.Put(s)
}

// admit charges all limits of x together, or returns the refusal.
func (f *rateLimit) admit(x *flows.Exchange, s *scratch) error {
	f.gather(x, s)
	if (s.bodies || s.byIndex) && s.barring == nil {
		// What is refused in any case is refused before its body comes.
		if i := f.table.Peek(s.charges); i >= 0 && f.config.Mode == "enforce" && hopeless(s.charges, 0) {
			return f.refuseCharge(x, s, i)
		}
		if err := f.weighBody(x, s); err != nil {
			return err
		}
	}
	if s.barring != nil {
		return f.refuse(x, s, s.barring, s.why)
	}
	if len(s.charges) == 0 {
		return nil // no limit is for it
	}
	refused, waited := 0, false
	if f.rooms != nil && f.config.Mode == "enforce" && !x.Tracing {
		refused, waited = f.rooms.enter(x, s.charges, f.fairBy)
	} else {
		refused = f.table.CheckAll(s.charges)
	}
	if refused >= 0 {
		return f.refuseCharge(x, s, refused)
	}
	for i := range s.taken {
		l, c := s.taken[i].limit, &s.charges[i]
		if i > 0 && s.taken[i-1].limit == l && c.Decision.OK {
			continue // of another index
		}
		switch {
		case !c.Decision.OK: // beyond percent
			f.spare(x, l)
		case waited:
			l.waited.Inc()
		default:
			l.passed.Inc()
		}
		if c.Decision.OK && 5*c.Decision.Remaining < c.Limit.burst {
			l.near.Inc()
		}
	}
	return nil
}

// gather makes the charges of x that are known before its body has been read.
func (f *rateLimit) gather(x *flows.Exchange, s *scratch) {
	if f.matcher != nil {
		s.found = f.matcher.match(x.DecodedPath())
		if s.found.rule >= 0 {
			f.add(s, f.limits[s.found.rule], s.found.hit, nil)
		}
	}
	if f.indices {
		if s.from = s.indices.read(x.Call()); s.from == query.InPath {
			s.indices.spread(f.roll)
		}
	}
	for _, l := range f.limits[f.rules:] {
		h, applies := l.appliesTo(s)
		switch {
		case !applies || l.bulks && s.from != query.InActions:
		case !l.looksAtIndices():
			f.add(s, l, h, nil)
		case l.index != nil && touchesNone(x.Call()):
		case s.from != query.InPath:
			s.byIndex = s.byIndex || l.counts(x)
		default:
			f.addIndices(s, l, h)
		}
	}
}

// gatherIndices makes the charges for limits that look at indices which stand in the body.
func (f *rateLimit) gatherIndices(s *scratch) {
	s.indices.spread(f.roll)
	for _, l := range f.limits[f.rules:] {
		h, applies := l.appliesTo(s)
		switch {
		case !applies || !l.looksAtIndices() || !l.counts(s.x) || l.bulks && s.from != query.InActions:
		case s.from == query.InActions && s.lines.unread:
			s.bar(l, l.unread)
			return
		default:
			f.addIndices(s, l, h)
		}
	}
}

// addIndices makes the charges of a limit for the indices that a request names: one for each, or one for all.
func (f *rateLimit) addIndices(s *scratch, l *limit, h hit) {
	n := &s.indices
	switch {
	case n.beyond && (l.byIndex || s.from == query.InActions):
		if l.counts(s.x) {
			s.bar(l, l.tooMany)
		}
		return
	case !l.byIndex && s.from != query.InActions:
		if l.index == nil || n.overlap(l.index) {
			f.addUse(s, l, h, nil, use{docs: s.counted})
		}
		return
	}
	var shared use
	others := false
	for i := range n.named {
		w := &n.named[i]
		switch {
		case !l.isFor(w.index):
		case l.byIndex && w.index != nil:
			u := w.use
			u.add(w.more)
			f.addUse(s, l, h, w.index, u)
		case i < n.own:
			others = true
			shared.add(w.use)
		}
	}
	if others {
		f.addUse(s, l, h, unknownIndex, shared)
	}
	if !l.byIndex {
		return
	}
	for _, e := range n.checked {
		if l.isFor(e.index) {
			f.addUnits(s, l, h, e.index, 0, free)
		}
	}
}

// appliesTo tells whether a limit is for s.x as far as its pattern and its condition say, and what the pattern found.
func (l *limit) appliesTo(s *scratch) (h hit, applies bool) {
	if l.own >= 0 {
		if h = s.found.own[l.own]; !h.found {
			return h, false
		}
	}
	return h, l.when == nil || l.when.Match(s.x)
}

// counts tells whether a request like x costs anything of a limit.
func (l *limit) counts(x *flows.Exchange) bool {
	_, when := l.unit.price(x)
	return when != never && l.cost.of(x) > 0
}

// bar makes a limit refuse the request whatever is left of its budgets.
func (s *scratch) bar(l *limit, why *elastic.Error) { s.barring, s.why = l, why }

// addUse adds what a part of a request costs one key of a limit.
func (f *rateLimit) addUse(s *scratch, l *limit, h hit, index []byte, u use) {
	var units int64
	var when moment
	if s.from == query.InActions {
		units, when = u.units(l.unit)
	} else if units, when = l.unit.price(s.x); when == withBody { // the searches of a _msearch
		units, when = u.docs, atOnce
	}
	f.addUnits(s, l, h, index, units, when)
}

// units returns what is counted of a bulk's lines, and when that is known.
func (u use) units(of unit) (int64, moment) {
	switch of {
	case requests:
		return 1, atOnce
	case requestBytes:
		return u.bytes, atOnce
	case bulkDocs:
		return u.docs, atOnce
	case searches:
		return 0, never
	}
	return 0, after
}

// add adds what the request costs one key of a limit.
func (f *rateLimit) add(s *scratch, l *limit, h hit, index []byte) {
	units, when := l.unit.price(s.x)
	f.addUnits(s, l, h, index, units, when)
}

// addUnits adds what so many units cost one key of a limit.
func (f *rateLimit) addUnits(s *scratch, l *limit, h hit, index []byte, units int64, when moment) {
	price := l.cost.of(s.x)
	if when == never || price == 0 || when == atOnce && units == 0 {
		return
	}
	from := len(s.keys)
	var missing bool
	s.keys, missing = appendKey(s.keys, l.id, l.selectors, s.x, h, index)
	key := s.keys[from:]
	if missing && l.missing != "anonymous" {
		s.keys = s.keys[:from]
		if l.missing == "reject" {
			s.bar(l, l.nameless)
		}
		return
	}
	b := &l.budget
	if l.overrides != nil {
		if other := l.overrides[string(key[idBytes:])]; other != nil {
			b = other
			binary.BigEndian.PutUint64(key, b.id)
		}
	}
	if b.unlimited {
		s.keys = s.keys[:from]
		return
	}
	s.bodies = s.bodies || when == withBody
	s.charges = append(s.charges, Charge{
		Limit: &b.Limit, Key: key, Cost: times(units, price), Patience: l.patience,
		Advisory: f.enforced < wholly && xxhash.Sum64(key[idBytes:])%wholly >= f.enforced,
	})
	s.taken = append(s.taken, taken{l, b, when})
}

// wholly is the number of parts in which keys are counted for percent.
const wholly = 10_000

// times multiplies what is counted with what it costs, within the bounds of a cost.
func times(n, price int64) int64 {
	if n > maxSpan/max(price, 1) {
		return maxSpan
	}
	return n * price
}

// weighBody reads the request's body, and fills in the costs that it decides.
func (f *rateLimit) weighBody(x *flows.Exchange, s *scratch) error {
	n, err := s.weigh(x)
	if err != nil {
		return err
	}
	s.counted = n
	for i := range s.taken {
		if s.taken[i].moment == withBody {
			s.charges[i].Cost = times(n, s.taken[i].limit.cost.of(x))
		}
	}
	if s.byIndex {
		f.gatherIndices(s)
	}
	return nil
}

// refuseCharge returns the refusal by a charge, or nil if limits only count. Nothing has been charged.
func (f *rateLimit) refuseCharge(x *flows.Exchange, s *scratch, i int) error {
	t, d := s.taken[i], s.charges[i].Decision
	if f.config.Mode == "enforce" && d.Wait <= time.Second && d.Remaining == 0 {
		return f.refuse(x, s, t.limit, t.budget.nextSecond)
	}
	if f.config.Mode == "enforce" {
		return f.refuse(x, s, t.limit, f.refusal(t.limit, t.budget, d.Wait))
	}
	return f.refuse(x, s, t.limit, nil)
}

// refuse counts what a limit refuses, and returns e or, if limits only count, nil.
func (f *rateLimit) refuse(x *flows.Exchange, s *scratch, l *limit, e *elastic.Error) error {
	if f.config.Mode == "shadow" {
		f.spare(x, l)
		s.charges, s.taken = s.charges[:0], s.taken[:0] // what would not have been answered costs nothing
		return nil
	}
	l.refused.Inc()
	if f.config.LogRefusals {
		f.logRefusal(x, l, "refused")
	}
	if !x.Tracing { // there it would say that of the exchange that is traced
		x.Trace.Outcome, x.Trace.Limit = flows.Limited, l.name
	}
	return e
}

// spare counts what a limit would refuse.
func (f *rateLimit) spare(x *flows.Exchange, l *limit) {
	l.spared.Inc()
	f.logRefusal(x, l, "would refuse")
}

// logRefusal logs a refusal; lines of one limit are throttled.
func (f *rateLimit) logRefusal(x *flows.Exchange, l *limit, what string) {
	f.logs.Log(slog.LevelWarn, l.name, what, "limit", l.name, "api", x.Call().String(), "client", x.Request.ClientIP)
}

// refusal is the answer to a request that has to wait for so long: it says so in whole seconds, at least one.
func (f *rateLimit) refusal(l *limit, b *budget, d time.Duration) *elastic.Error {
	wait := max(1, seconds(d))
	e := &elastic.Error{
		Status: l.status, Type: f.config.Type, Reason: b.reason, RetryAfter: time.Duration(wait) * time.Second,
		Fields: f.refusalFields(l, b, wait),
	}
	if l.message == "" {
		e.Reason += strconv.FormatInt(wait, 10) + "s"
	}
	return e
}

// settle charges what is known now that there is an answer, and tells the caller of the limits. What is known only when the
// answer has been written is charged then.
func (f *rateLimit) settle(x *flows.Exchange, s *scratch, told bool) {
	for i := range s.taken {
		switch t := &s.taken[i]; {
		case t.moment != after:
		case t.limit.unit == took:
			c := &s.charges[i]
			c.Decision = f.table.Bill(c.Limit, c.Key, times(tookOf(x), t.limit.cost.of(x)))
		default:
			s.unpaid = true
		}
	}
	told = told && f.style.any() && !x.Tracing
	if told {
		f.addFields(x, s)
	}
	if !told && !s.unpaid {
		f.put(s)
		return
	}
	x.ReleaseWith(s)
}

// payRest charges bytes that were counted on their way.
func (s *scratch) payRest() {
	x := s.x
	for i := range s.taken {
		t := &s.taken[i]
		if t.moment != after || t.limit.unit == took {
			continue
		}
		n := x.ResponseBytes
		if t.limit.unit == requestBytes {
			n = x.RequestBytes
		}
		s.owner.table.Bill(&t.budget.Limit, s.charges[i].Key, times(n, t.limit.cost.of(x)))
	}
}

var (
	_ flows.Starter  = (*rateLimit)(nil)
	_ flows.Stopper  = (*rateLimit)(nil)
	_ flows.Releaser = (*scratch)(nil)
)
