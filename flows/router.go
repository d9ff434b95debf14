package flows

import (
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

	traceBodies int64 // how much of bodies the tracing flow wants
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

// everything tells whether the rule has nothing that could keep an exchange out.
func (r *rule) everything() bool {
	return len(r.methods) == 0 && len(r.patterns) == 0 && r.when == nil
}

// Name returns the router's name.
func (r *Router) Name() string { return r.name }

// route returns the target for x.
func (r *Router) route(x *Exchange) *target {
	for _, rule := range r.rules {
		if rule.matches(x) {
			return &rule.target
		}
	}
	return &r.fallback
}

// A Way is the way that an exchange would take, for explanations.
type Way struct {
	Router string
	Rule   string // id or number of the rule; empty for the default flow
	Line   string // where the rule stands
	Flows  []*Flow
	Trace  *Flow
}

// Explain returns the way of x without running it.
func (r *Router) Explain(x *Exchange) Way {
	w := Way{Router: r.name, Flows: r.fallback.flows, Trace: r.tracing}
	for _, rule := range r.rules {
		if rule.matches(x) {
			w.Rule, w.Flows = rule.id, rule.target.flows
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
	// Flow that runs on a snapshot of each exchange after the answer has been written.
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
	// Index patterns; every index of the request must match one.
	Index conf.Strings `conf:"index"`
	// A further condition.
	When *conf.Node `conf:"when"`
	// Flows that run one after the other.
	Flow conf.Strings `conf:"flow,required"`
}

// SetDefaults makes r a rule that is switched on.
func (r *RuleConfig) SetDefaults() { r.Enabled = true }

// Router makes a router of its configuration. It reports problems and then may return nil.
func (b *Builder) Router(n *conf.Node) *Router {
	c := RouterConfig{Enabled: true}
	if !decode(n, &c, b.Problems) || !c.Enabled {
		return nil
	}
	defer b.within("router " + c.Name)()
	r := &Router{name: c.Name, node: n}
	if c.DefaultFlow != "" {
		r.fallback = b.target(conf.Strings{c.DefaultFlow}, n.Get("default_flow"))
	} else {
		r.fallback = target{name: "none", chain: end{}}
	}
	if c.TracingFlow != "" {
		r.tracing = b.Flow(c.TracingFlow, n.Get("tracing_flow"))
	}
	items := n.Get("rules").Items()
	for i, rc := range c.Rules {
		node := items[i]
		if len(r.rules) > 0 && r.rules[len(r.rules)-1].everything() {
			b.Problems.Warnf(node, "this rule is never reached: the rule at %s matches everything",
				r.rules[len(r.rules)-1].node.Pos())
		}
		if rule := b.rule(rc, node, i); rule != nil {
			r.rules = append(r.rules, rule)
		}
	}
	return r
}

func (b *Builder) rule(c RuleConfig, n *conf.Node, i int) *rule {
	r := &rule{id: c.ID, node: n}
	if r.id == "" {
		r.id = "#" + strconv.Itoa(i+1)
	}
	if !slices.Contains(c.Method, "*") {
		for _, m := range c.Method {
			if m != strings.ToUpper(m) {
				b.Problems.Warnf(n.Get("method"), "methods are case-sensitive; %q is read as %q", m, strings.ToUpper(m))
			}
			r.methods = append(r.methods, strings.ToUpper(m))
		}
	}
	for _, p := range c.Pattern {
		if p == "/" || p == "*" || p == "/*" {
			r.patterns = nil
			break
		}
		if !strings.HasPrefix(p, "/") {
			b.Problems.Errorf(n.Get("pattern"), "pattern %q does not start with /", p)
			continue
		}
		r.patterns = append(r.patterns, compilePath(p))
	}
	var all conjunction
	for key, pats := range map[string]conf.Strings{"host": c.Host, "api": c.API, "index": c.Index} {
		if len(pats) > 0 {
			all = append(all, &subject{key: key, patterns: pats})
		}
	}
	if c.When != nil {
		if cond := ParseCondition(c.When, b.Problems); cond != nil {
			all = append(all, cond)
		}
	}
	if len(all) > 0 {
		r.when = all
	}
	r.target = b.target(c.Flow, n.Get("flow"))
	if !c.Enabled {
		return nil
	}
	return r
}

func (b *Builder) target(names conf.Strings, node *conf.Node) target {
	t := target{name: strings.Join(names, ","), chain: end{}}
	for _, name := range names {
		if f := b.Flow(name, node); f != nil {
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
		case strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}"):
			out.segments = append(out.segments, "")
		default:
			out.segments = append(out.segments, s)
		}
	}
	return out
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
