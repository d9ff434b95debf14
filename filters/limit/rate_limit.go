package limit

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
)

// RateLimitConfig is the configuration of rate_limit.
type RateLimitConfig struct {
	// Text of the refusal. By default it names the limit and its rate.
	Message string `conf:"message"`
	// Limits by path, the classic form: of these the first that matches counts.
	Rules []RateLimitRule `conf:"rules"`
	// Further limits, by caller, index and the like: of these all count that apply, together with the rule. A request
	// passes if all of them let it, and only then is any of them charged.
	Limits []RateLimitLimit `conf:"limits"`
	// What is done: enforce refuses; shadow counts what would be refused and lets it pass; off does nothing.
	Mode string `conf:"mode" enum:"enforce,shadow,off"`
	// What happens to a request over a limit: reject answers 429 with Retry-After.
	OnLimit string `conf:"on_limit" enum:"reject"`
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
	Burst *int64 `conf:"burst" min:"1"`
}

// RateLimitLimit is one limit of a list.
type RateLimitLimit struct {
	// What the limit is called in messages, logs and metrics; by default limit_ and the number of the limit.
	Name string `conf:"name"`
	// What a budget is for; each combination of values has one. ip: the caller's address, of IPv6 its /64 network; user:
	// the name in Basic credentials, which nobody has checked here; index: each index that the path names, where all
	// requests with wildcards, date math or no index share one; api and class: as in the API table; host; header:NAME:
	// the first such field; path:GROUP: a group of pattern; global: all share one. Callers without a value share one.
	Key conf.Strings `conf:"key"`
	// Requests in a length of time, in the long run: 50/s, 600/m, 1/10s.
	Rate conf.Rate `conf:"rate,required"`
	// Requests that may come at once after rest; by default those of one second, at least one.
	Burst *int64 `conf:"burst" min:"1"`
	// The limit is for paths that match this expression, read as in rules.
	Pattern conf.Regexp `conf:"pattern"`
	// The limit is for requests that may touch an index of these names or patterns: also those that name it in a list or
	// by a wildcard, and those that name no index in the path. Calls that look at no index at all, such as GET /,
	// _cluster/health and _cat/nodes, are not among them.
	Index conf.Strings `conf:"index"`
	// The limit is for requests that this condition holds for.
	When *conf.Node `conf:"when"`
}

// SetDefaults makes c a limit by address.
func (c *RateLimitLimit) SetDefaults() { c.Key = conf.Strings{"ip"} }

// rateLimit is the filter. Its limits are the rules, in order, and then the others.
type rateLimit struct {
	config  RateLimitConfig
	flow    string
	limits  []*limit
	rules   int
	matcher *matcher // nil without patterns
	indices bool     // a limit looks at indices
	refused string   // outcome of what is over a limit
	scratch sync.Pool

	table   *Table
	release []func()
}

// A limit is one that is configured, with what it needs at work.
type limit struct {
	Limit
	name      string
	identity  string // by which it is known again after a reload
	reason    string // of a refusal; what comes behind it is the time to wait
	selectors []selector
	index     []string
	when      flows.Condition
	own       int // number among the patterns that are no rules, or -1

	id              uint64
	passed, refused obs.Counter
	nextSecond      *elastic.Error // the most frequent refusal
}

// scratch is the memory of one decision.
type scratch struct {
	keys    []byte
	charges []Charge
	limits  []*limit // of the charges
	indices indices
}

// RateLimit declares the filter rate_limit.
func RateLimit() flows.Factory[RateLimitConfig] {
	return flows.Factory[RateLimitConfig]{
		Name: "rate_limit", Family: "limit",
		Summary: "Refuses with 429 what comes faster than a rate, by path, caller, index and the like.",
		Default: func() RateLimitConfig {
			return RateLimitConfig{Mode: "enforce", OnLimit: "reject", MaxKeys: 100_000}
		},
		Build: buildRateLimit,
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
		},
	}
}

func buildRateLimit(b *flows.Builder, c RateLimitConfig) flows.Filter {
	if len(c.Rules)+len(c.Limits) == 0 {
		b.Errorf("", "neither rules nor limits: the filter would let everything pass")
		return nil
	}
	f := &rateLimit{config: c, flow: b.FlowName(), rules: len(c.Rules), refused: "refused"}
	if c.Mode == "shadow" {
		f.refused = "would_refuse"
	}
	before, _ := b.Problems.Count()
	var rules, own []pattern
	first := map[string]int{} // rules by expression
	for i := range c.Rules {
		n := b.Node("rules").Items()[i]
		rules = append(rules, f.addRule(b.Problems, n, i))
		expr := c.Rules[i].Pattern.String()
		if earlier, twice := first[expr]; twice {
			b.Problems.Warnf(n, "rule %d is never reached: rule %d has the same pattern", i+1, earlier+1)
			continue
		}
		first[expr] = i
	}
	for i := range c.Limits {
		l, p := f.addLimit(b, b.Node("limits").Items()[i], i)
		if p.re != nil {
			l.own = len(own)
			own = append(own, p)
		}
	}
	f.tellApart(b)
	after, _ := b.Problems.Count()
	if after > before || slices.ContainsFunc(rules, func(p pattern) bool { return p.re == nil }) {
		return nil
	}
	if len(rules)+len(own) > 0 {
		f.matcher = newMatcher(rules, own)
	}
	f.scratch.New = func() any { return &scratch{} }
	return f
}

// addRule adds the limit of a rule.
func (f *rateLimit) addRule(p *conf.Problems, n *conf.Node, i int) pattern {
	c := &f.config.Rules[i]
	l := &limit{name: cmp.Or(c.Name, "rule_"+strconv.Itoa(i+1)), own: -1}
	f.limits = append(f.limits, l)
	pat := pattern{re: c.Pattern.Regexp}
	if c.Group != "" && pat.re != nil {
		g := pat.re.SubexpIndex(c.Group)
		if g < 0 {
			noGroup(p, n.Get("group"), c.Pattern, c.Group)
		}
		pat.groups = []int{g}
		l.selectors = []selector{{kind: byPath, name: c.Group}}
	}
	if !(c.MaxQPS > 0) {
		p.Errorf(n.Get("max_qps"), "max_qps must be above 0; to switch the filter off, write mode: off")
		return pat
	}
	rate := strconv.FormatFloat(c.MaxQPS, 'f', -1, 64) + "/s"
	f.shape(p, n, l, c.MaxQPS, time.Second, rate, c.Burst)
	l.identity = strings.Join([]string{"rule", c.Name, c.Pattern.String(), c.Group, l.identity}, "\x00")
	return pat
}

// addLimit adds a limit of the list.
func (f *rateLimit) addLimit(b *flows.Builder, n *conf.Node, i int) (*limit, pattern) {
	p, c := b.Problems, &f.config.Limits[i]
	l := &limit{name: cmp.Or(c.Name, "limit_"+strconv.Itoa(i+1)), index: c.Index, own: -1}
	f.limits = append(f.limits, l)
	pat := pattern{re: c.Pattern.Regexp}
	if len(c.Key) == 0 {
		p.Errorf(n.Get("key"), "an empty key; write [global] for one budget that all share")
	}
	for i, text := range c.Key {
		at := n.At("key").Item(i)
		s, err := parseSelector(text)
		switch {
		case err != nil:
			p.Errorf(at, "%v", err)
			continue
		case slices.Contains(c.Key[:i], text):
			p.Errorf(at, "the selector %q stands twice", text)
		case s.kind == byPath && n.Get("pattern").IsZero():
			p.Errorf(at, "%s is a group of pattern, which is missing", text)
		case s.kind == byPath && pat.re != nil:
			g := pat.re.SubexpIndex(s.name)
			if g < 0 {
				noGroup(p, at, c.Pattern, s.name)
			}
			s.group = len(pat.groups)
			pat.groups = append(pat.groups, g)
		}
		f.indices = f.indices || s.kind == byIndex
		l.selectors = append(l.selectors, s)
	}
	f.indices = f.indices || len(c.Index) > 0
	when := ""
	if !c.When.IsZero() {
		warnIndex(p, c.When)
		if l.when = b.Condition(c.When, p); l.when != nil {
			when = l.when.String()
		}
	}
	f.shape(p, n, l, float64(c.Rate.Events), c.Rate.Per, c.Rate.String(), c.Burst)
	l.identity = strings.Join([]string{
		"limit", c.Name, c.Pattern.String(), strings.Join(c.Key, "\x01"), strings.Join(c.Index, "\x01"), when, l.identity,
	}, "\x00")
	return l, pat
}

// shape gives l its rate, its burst and the text of its refusal.
func (f *rateLimit) shape(p *conf.Problems, n *conf.Node, l *limit, units float64, per time.Duration, rate string, burst *int64) {
	if !(units > 0) || per <= 0 {
		return // it could not be read
	}
	// The sum keeps a rate of 100 a second, worked out in floating point, from having a burst of 99.
	atOnce := max(1, int64(min(units/per.Seconds()+1e-9, 1e9)))
	if burst != nil {
		atOnce = *burst
	}
	var err error
	if l.Limit, err = NewLimit(IntervalOf(units, per), atOnce); err != nil {
		p.Errorf(n, "limit %s: %v", l.name, err)
		return
	}
	l.identity = rate + "\x00" + strconv.FormatInt(atOnce, 10)
	l.reason = f.config.Message
	if l.reason == "" {
		l.reason = "[" + l.name + "] " + rate + " exceeded; retry in "
	}
	l.nextSecond = f.refusal(l, time.Second)
}

func noGroup(p *conf.Problems, n *conf.Node, re conf.Regexp, group string) {
	names := slices.DeleteFunc(slices.Clone(re.SubexpNames()), func(s string) bool { return s == "" })
	q := p.Errorf(n, "the pattern %q has no group called %q, which is written (?P<%s>…)", re.String(), group, group)
	q.Suggestion, _ = conf.Nearest(group, names)
}

// warnIndex warns of conditions on the index, which a request evades by naming the index together with another one.
func warnIndex(p *conf.Problems, n *conf.Node) {
	for _, item := range n.Items() {
		warnIndex(p, item)
	}
	for _, key := range n.Keys() {
		switch key {
		case "index":
			p.Warnf(n.Get(key), "the condition holds only if every index of the request matches; "+
				"for a limit on all requests that may touch an index write index beside when")
		case "all", "any", "not":
			warnIndex(p, n.Get(key))
		}
	}
}

// tellApart refuses names that stand twice, and makes limits different that are configured the same.
func (f *rateLimit) tellApart(b *flows.Builder) {
	names, same := map[string]bool{}, map[string]int{}
	for i, l := range f.limits {
		if names[l.name] {
			n := b.Node("rules").Items()
			if i >= f.rules {
				n, i = b.Node("limits").Items(), i-f.rules
			}
			b.Problems.Errorf(n[i].Get("name"), "two limits are called %q", l.name)
		}
		names[l.name] = true
		same[l.identity]++
		if n := same[l.identity]; n > 1 {
			l.identity += "\x00" + strconv.Itoa(n)
		}
	}
}

// refusal is the answer to a request over l that has to wait, in whole seconds.
func (f *rateLimit) refusal(l *limit, wait time.Duration) *elastic.Error {
	e := &elastic.Error{Status: 429, Type: "rate_limit_exceeded_exception", Reason: l.reason, RetryAfter: wait}
	if f.config.Message == "" {
		e.Reason += strconv.FormatInt(int64(wait/time.Second), 10) + "s"
	}
	return e
}

// A seat is what a filter has between the reloads: the place of the n-th rate_limit of a flow, with one filter of each
// generation in it.
type seat struct {
	mu    sync.Mutex // guards taken
	taken *flows.Runtime
}

// take tells whether the place was free in the generation of rt, and takes it.
func (s *seat) take(rt *flows.Runtime) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.taken != rt
	s.taken = rt
	return free
}

// Start finds the table of the filter that had its place before, so that a reload is no fresh burst for anybody.
func (f *rateLimit) Start(rt *flows.Runtime) error {
	name := "rate_limit"
	for n := 2; ; n++ {
		s, err := flows.Keep(rt, "limit seat "+f.flow+" "+name, func() (*seat, func(), error) { return &seat{}, nil, nil })
		if err != nil {
			return err
		}
		if s.take(rt) {
			break
		}
		name = "rate_limit_" + strconv.Itoa(n)
	}
	key := "limit table " + f.flow + " " + name + " " + strconv.Itoa(f.config.MaxKeys)
	table, err := flows.Keep(rt, key, func() (*Table, func(), error) {
		return NewTable(f.config.MaxKeys, Monotonic()), nil, nil
	})
	if err != nil {
		return err
	}
	f.table = table
	for _, l := range f.limits {
		l.id = table.Hold(l.identity)
		f.release = append(f.release, func() { table.Release(l.identity) })
	}
	return f.measure(rt.Metrics, name)
}

// measure makes the filter's numbers.
func (f *rateLimit) measure(m *obs.Metrics, name string) error {
	decisions := m.Counter("weir_limit_decisions_total",
		"Decisions of limits. A request that several limits let pass counts for each of them, a refused one for the limit with the longest wait.",
		"flow", "filter", "limit", "outcome")
	for _, l := range f.limits {
		l.passed, l.refused = decisions.With(f.flow, name, l.name, "passed"), decisions.With(f.flow, name, l.name, f.refused)
	}
	gauge := m.GaugeFunc("weir_limit_keys", "Keys that limits remember.", "flow", "filter")
	f.release = append(f.release, gauge.Set(func() float64 { return float64(f.table.Len()) }, f.flow, name))
	hot := m.CounterFunc("weir_limit_evicted_hot_total",
		"Keys that limits forgot for want of room although part of their burst was used up.", "flow", "filter")
	f.release = append(f.release, hot.Set(func() float64 { return float64(f.table.EvictedHot()) }, f.flow, name))
	if f.matcher != nil {
		paths := m.GaugeFunc("weir_limit_paths", "Paths whose limits are remembered.", "flow", "filter")
		f.release = append(f.release, paths.Set(func() float64 { return float64(f.matcher.memo.len()) }, f.flow, name))
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
	if f.config.Mode == "off" {
		return next.Serve(x)
	}
	s, _ := f.scratch.Get().(*scratch)
	l, wait := f.check(x, s)
	f.scratch.Put(s)
	switch {
	case l == nil || f.config.Mode == "shadow":
		return next.Serve(x)
	case x.Tracing:
		return nil
	}
	x.Trace.Outcome, x.Trace.Limit = flows.Limited, l.name
	if wait <= time.Second {
		return l.nextSecond
	}
	return f.refusal(l, (wait + time.Second - 1).Truncate(time.Second))
}

// check charges all limits of x together. It returns the limit that refuses, if one does, and the time to wait.
func (f *rateLimit) check(x *flows.Exchange, s *scratch) (*limit, time.Duration) {
	s.keys, s.charges, s.limits = s.keys[:0], s.charges[:0], s.limits[:0]
	var found *match
	if f.matcher != nil {
		found = f.matcher.match(x.DecodedPath())
		if found.rule >= 0 {
			s.add(f.limits[found.rule], x, found.hit, nil)
		}
	}
	if f.indices {
		s.indices.read(x.Call())
	}
	for _, l := range f.limits[f.rules:] {
		var h hit
		if l.own >= 0 {
			if h = found.own[l.own]; !h.found {
				continue
			}
		}
		if l.index != nil && (touchesNone(x.Call()) || !s.indices.overlap(l.index)) || l.when != nil && !l.when.Match(x) {
			continue
		}
		if !l.byIndex() {
			s.add(l, x, h, nil)
			continue
		}
		for _, name := range s.indices.names {
			s.add(l, x, h, name)
		}
	}
	refused := f.table.CheckAll(s.charges)
	if refused >= 0 {
		s.limits[refused].refused.Inc()
		return s.limits[refused], s.charges[refused].Decision.Wait
	}
	for _, l := range s.limits {
		l.passed.Inc()
	}
	return nil, 0
}

func (l *limit) byIndex() bool {
	return slices.ContainsFunc(l.selectors, func(s selector) bool { return s.kind == byIndex })
}

// add adds a charge of one request.
func (s *scratch) add(l *limit, x *flows.Exchange, h hit, index []byte) {
	from := len(s.keys)
	s.keys = appendKey(s.keys, l.id, l.selectors, x, h, index)
	s.charges = append(s.charges, Charge{Limit: &l.Limit, Key: s.keys[from:], Cost: 1})
	s.limits = append(s.limits, l)
}

var (
	_ flows.Starter = (*rateLimit)(nil)
	_ flows.Stopper = (*rateLimit)(nil)
)
