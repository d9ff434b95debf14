package flows

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir/internal/conf"
)

// A Router picks a flow for an exchange: the first rule that matches wins, then the default flow.
type Router struct {
	name     string
	node     *conf.Node
	rules    []*rule
	fallback target
	tracing  *Flow
	off      bool // no entry may use it
}

// A target is where a rule leads: one or more flows that run as one chain.
type target struct {
	name  string
	chain Handler
	flows []*Flow
}

// A rule matches exchanges by method, path and condition.
type rule struct {
	id       string
	methods  []string // none: all
	patterns []pathPattern
	when     Condition
	target   target
	node     *conf.Node
	broken   bool // not all that it should match could be understood
}

// String returns what the rule matches, the same for rules that match the same.
func (r *rule) String() string {
	patterns := make([]string, len(r.patterns))
	for i, p := range r.patterns {
		patterns[i] = p.String()
	}
	slices.Sort(patterns)
	when := ""
	if r.when != nil {
		when = r.when.String()
	}
	return fmt.Sprintf("%q %q %q", slices.Sorted(slices.Values(r.methods)), patterns, when)
}

func (r *rule) matches(x *Exchange) bool {
	if len(r.methods) > 0 && !slices.Contains(r.methods, string(x.Request.Method)) {
		return false
	}
	if len(r.patterns) > 0 && !slices.ContainsFunc(r.patterns, func(p pathPattern) bool { return p.match(x.DecodedPath()) }) {
		return false
	}
	return r.when == nil || r.when.Match(x)
}

// everything tells whether the rule has nothing that could keep an exchange out. It does not hold for a broken rule.
func (r *rule) everything() bool {
	return !r.broken && len(r.methods) == 0 && len(r.patterns) == 0 && r.when == nil
}

// Name returns the router's name.
func (r *Router) Name() string { return r.name }

// Enabled tells whether entries may use the router.
func (r *Router) Enabled() bool { return !r.off }

// route returns the target for x.
func (r *Router) route(x *Exchange) *target {
	for _, rule := range r.rules {
		if rule.matches(x) {
			return &rule.target
		}
	}
	return &r.fallback
}

// Chains returns what the router's rules and its default flow lead to: lists of flows that run as one chain.
func (r *Router) Chains() [][]*Flow {
	chains := [][]*Flow{r.fallback.flows}
	for _, rule := range r.rules {
		chains = append(chains, rule.target.flows)
	}
	return chains
}

// Tracing returns the flow that exchanges go through when they are answered, or nil.
func (r *Router) Tracing() *Flow { return r.tracing }

// A Way is the way that an exchange would take, for explanations.
type Way struct {
	Router string
	Rule   string // id or number of the rule; empty for the default flow
	Line   string // where the rule stands
	Flows  []*Flow
	Trace  *Flow
}

// Explain returns the way of x without running it, and names the flow in the trace of x.
func (r *Router) Explain(x *Exchange) Way {
	w := Way{Router: r.name, Flows: r.fallback.flows, Trace: r.tracing}
	x.Trace.Flow = r.fallback.name
	for _, rule := range r.rules {
		if rule.matches(x) {
			w.Rule, w.Flows = rule.id, rule.target.flows
			x.Trace.Flow = rule.target.name
			if rule.node != nil {
				w.Line = rule.node.Pos().String()
			}
			break
		}
	}
	return w
}

// RouterConfig is one item of the section router.
type RouterConfig struct {
	// Name by which entries refer to the router.
	Name string `conf:"name,required"`
	// A router that is switched off may not be used by an entry.
	Enabled bool `conf:"enabled"`
	// Flow for requests that no rule matches.
	DefaultFlow string `conf:"default_flow"`
	// Flow that runs on each exchange after the answer has been written.
	TracingFlow string `conf:"tracing_flow"`
	// Rules in order; the first that matches wins.
	Rules []RuleConfig `conf:"rules"`
}

// RuleConfig is one rule of a router. All that is given must match.
type RuleConfig struct {
	// Name of the rule in explanations.
	ID string `conf:"id"`
	// A rule that is switched off is passed over.
	Enabled bool `conf:"enabled"`
	// Methods in capitals; `*` is every method.
	Method conf.Strings `conf:"method"`
	// Path patterns: `{name}` is one segment, `*` any run of characters in a segment or, as the last one, all the
	// rest; `/` alone is everything.
	Pattern conf.Strings `conf:"pattern,alias=path"`
	// Host patterns with `*`.
	Host conf.Strings `conf:"host"`
	// API names such as search or bulk.
	API conf.Strings `conf:"api"`
	// Index patterns; every index that the request names must match one, as in conditions.
	Index conf.Strings `conf:"index"`
	// A further condition.
	When *conf.Node `conf:"when"`
	// Flows that run one after the other.
	Flow conf.Strings `conf:"flow,required"`
}

// SetDefaults makes r a rule that is switched on.
func (r *RuleConfig) SetDefaults() { r.Enabled = true }

// Router makes a router of its configuration. It reports problems; the router then knows its name and nothing else that
// can be relied on. It is nil only if it has no name.
func (b *Builder) Router(n *conf.Node) *Router {
	c := RouterConfig{Enabled: true}
	defer b.within(strings.TrimSpace("router " + n.Get("name").Scalar()))()
	decoded := decode(n, &c, b.Problems)
	if c.Name == "" {
		return nil
	}
	r := &Router{name: c.Name, node: n, off: !c.Enabled, fallback: target{name: "none", chain: end{}}}
	if decoded {
		b.fill(r, c, n)
		b.warnUnreachable(r)
	} else {
		b.Problems.Follow(n, func() { b.fill(r, c, n) })
	}
	return r
}

// fill gives r its flows and rules.
func (b *Builder) fill(r *Router, c RouterConfig, n *conf.Node) {
	if c.DefaultFlow != "" {
		r.fallback = b.target(conf.Strings{c.DefaultFlow}, n.At("default_flow"))
	}
	if c.TracingFlow != "" {
		if r.tracing = b.Flow(c.TracingFlow, n.At("tracing_flow")); r.tracing != nil {
			b.refuseRepeaters(r.tracing, n.At("tracing_flow"), map[*Flow]bool{})
		}
	}
	items := n.Get("rules").Items()
	for i, rc := range c.Rules {
		before, _ := b.Problems.Count()
		rule := b.rule(rc, items[i], i)
		after, _ := b.Problems.Count()
		rule.broken = after > before
		if rc.Enabled {
			r.rules = append(r.rules, rule)
		}
	}
}

// refuseRepeaters reports a filter of the tracing flow f, or of a flow that it leads to, that would send requests again.
func (b *Builder) refuseRepeaters(f *Flow, tracing *conf.Node, seen map[*Flow]bool) bool {
	if seen[f] {
		return false
	}
	seen[f] = true
	for _, l := range f.links {
		if _, repeats := l.filter.(Repeater); repeats {
			b.Problems.Errorf(tracing, "flow %s cannot trace: its filter %s would send every request to the cluster once more", f.name, l.name)
			return true
		}
	}
	for _, e := range b.edges[f] {
		if b.refuseRepeaters(e.to, tracing, seen) {
			return true
		}
	}
	return false
}

// warnUnreachable reports rules that an earlier one leaves nothing.
func (b *Builder) warnUnreachable(r *Router) {
	same := map[string]*rule{}
	for i, rule := range r.rules {
		if rule.broken {
			continue
		}
		if rule.everything() {
			for _, later := range r.rules[i+1:] {
				b.Problems.Warnf(later.node, "this rule is never reached: the rule at %s matches everything", rule.node.Pos())
			}
			return
		}
		if first := same[rule.String()]; first != nil {
			b.Problems.Warnf(rule.node, "this rule is never reached: the rule at %s matches the same", first.node.Pos())
			continue
		}
		same[rule.String()] = rule
	}
}

func (b *Builder) rule(c RuleConfig, n *conf.Node, i int) *rule {
	r := &rule{id: c.ID, node: n}
	if r.id == "" {
		r.id = "#" + strconv.Itoa(i+1)
	}
	for _, names := range [][]string{{"method"}, {"pattern", "path"}, {"host"}, {"api"}, {"index"}, {"flow"}} {
		if v := n.At(names...); v.Kind() == conf.List && v.Len() == 0 {
			b.Problems.Errorf(v, "the list %s is empty: the rule would match nothing, or lead nowhere", names[0])
		}
	}
	for i, m := range c.Method {
		at := n.At("method").Item(i)
		m = upperMethod(m, at, b.Problems)
		if m != "*" && strings.Contains(m, "*") {
			b.Problems.Errorf(at, "%s: in a rule methods are named in full, or * for all", at.Quoted()).Code = conf.CodeValue
		} else if checkWord("method", m, at, b.Problems) {
			r.methods = append(r.methods, m)
		}
	}
	if slices.Contains(r.methods, "*") {
		r.methods = nil
	}
	every := false
	for i, p := range c.Pattern {
		at := n.At("pattern", "path").Item(i)
		switch {
		case p == "/" || p == "*" || p == "/*":
			every = true
		case !strings.HasPrefix(p, "/"):
			b.Problems.Errorf(at, "pattern %s does not start with /", at.Quoted())
		default:
			b.warnBraces(p, at)
			r.patterns = append(r.patterns, compilePath(p))
		}
	}
	if every {
		r.patterns = nil
	}
	var all conjunction
	for _, given := range []struct {
		key      string
		patterns conf.Strings
	}{{"host", c.Host}, {"api", c.API}, {"index", c.Index}} {
		if len(given.patterns) == 0 {
			continue
		}
		if cond := parseSubject(given.key, n.At(given.key), b.Problems); cond != nil {
			all = append(all, cond)
		}
	}
	if c.When != nil {
		if cond := b.Condition(c.When, b.Problems); cond != nil {
			all = append(all, cond)
		}
	}
	if len(all) > 0 {
		r.when = all
	}
	r.target = b.target(c.Flow, n.At("flow"))
	return r
}

// warnBraces reports braces that make no parameter of a path pattern: they are text like any other, and hardly meant so.
func (b *Builder) warnBraces(pattern string, n *conf.Node) {
	for segment := range strings.SplitSeq(pattern, "/") {
		inner := segment
		if isParameter(segment) {
			inner = segment[1 : len(segment)-1]
		}
		if strings.ContainsAny(inner, "{}") {
			b.Problems.Warnf(n, "%q is read as it stands: {name} must be all that is between two slashes", segment)
		}
	}
}

func (b *Builder) target(names conf.Strings, node *conf.Node) target {
	t := target{name: strings.Join(names, ","), chain: end{}}
	for i, name := range names {
		if f := b.Flow(name, node.Item(i)); f != nil {
			t.flows = append(t.flows, f)
		}
	}
	if len(t.flows) == 1 {
		t.chain = t.flows[0]
		return t
	}
	for i := len(t.flows) - 1; i >= 0; i-- {
		t.chain = t.flows[i].Then(t.chain)
	}
	return t
}

// A pathPattern is a compiled path pattern.
type pathPattern struct {
	segments []string // "" stands for {name}
	rest     bool     // ends in * as a whole segment: matches anything behind
}

func compilePath(p string) pathPattern {
	var out pathPattern
	segments := strings.Split(strings.Trim(p, "/"), "/")
	for i, s := range segments {
		switch {
		case s == "*" && i == len(segments)-1:
			out.rest = true
		case isParameter(s):
			out.segments = append(out.segments, "")
		default:
			out.segments = append(out.segments, s)
		}
	}
	return out
}

func isParameter(segment string) bool {
	return strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}")
}

// String returns the pattern with parameters without their names, which make no difference.
func (p pathPattern) String() string {
	var b strings.Builder
	for _, s := range p.segments {
		b.WriteByte('/')
		if s == "" {
			s = "{}"
		}
		b.WriteString(s)
	}
	if p.rest {
		b.WriteString("/*")
	}
	return b.String()
}

// match compares with a decoded path, segment by segment.
func (p pathPattern) match(path []byte) bool {
	for _, want := range p.segments {
		if len(path) == 0 || path[0] != '/' {
			return false
		}
		path = path[1:]
		n := 0
		for n < len(path) && path[n] != '/' {
			n++
		}
		if n == 0 || want != "" && !Glob(want, path[:n]) {
			return false
		}
		path = path[n:]
	}
	return p.rest || len(path) == 0
}

// Pos returns where the router is configured.
func (r *Router) Pos() conf.Pos { return r.node.Pos() }
