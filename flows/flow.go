package flows

import (
	"fmt"
	"slices"
	"strings"

	"weir/elastic"
	"weir/internal/conf"
)

// A Flow is a chain of filters. Its zero value has none.
type Flow struct {
	name  string
	links []*link
	first Handler
	node  *conf.Node
	used  bool
	off   bool // switched off: it has no filters
	whole bool // all its filters could be built
}

// A link is one filter of a flow together with what comes behind it.
type link struct {
	flow   *Flow
	name   string // as configured, or the kind's name
	kind   string
	filter Filter
	when   Condition
	next   Handler
	node   *conf.Node
}

func (l *link) Serve(x *Exchange) error {
	if l.when != nil && !l.when.Match(x) {
		return l.next.Serve(x)
	}
	return l.filter.Serve(x, l.next)
}

// end stands behind the last filter of a chain.
type end struct{}

func (end) Serve(*Exchange) error { return nil }

// Name returns the flow's name.
func (f *Flow) Name() string { return f.name }

// Serve runs the flow's filters. It implements Handler. A flow that is switched off refuses what it is given, but stands
// for nothing among others.
func (f *Flow) Serve(x *Exchange) error {
	if f.off && !x.Tracing {
		return elastic.Errorf(503, "no_answer_exception", "flow [%s] is switched off", f.name)
	}
	if f.first == nil {
		return nil
	}
	return f.first.Serve(x)
}

// Then runs the flow's filters and then next, unless a filter finished the exchange. It lets one flow stand inside
// another.
func (f *Flow) Then(next Handler) Handler { return f.chain(next) }

// An Inliner is a Filter that stands for a chain of its own, such as another flow. It is asked for that chain, in front
// of next, when all flows are built.
type Inliner interface{ Inline(next Handler) Handler }

// chain links the flow's filters in front of last.
func (f *Flow) chain(last Handler) Handler {
	h := last
	for i := len(f.links) - 1; i >= 0; i-- {
		l := *f.links[i]
		l.next = h
		if in, ok := l.filter.(Inliner); ok {
			l.filter = inlined{in.Inline(h)}
		}
		h = &l
	}
	return h
}

// inlined is a chain in the place of a filter.
type inlined struct{ chain Handler }

func (i inlined) Serve(x *Exchange, _ Handler) error { return i.chain.Serve(x) }

// Steps describes the flow's filters in order, for explanations.
func (f *Flow) Steps() []Step {
	out := make([]Step, 0, len(f.links))
	for _, l := range f.links {
		s := Step{Name: l.name, Kind: l.kind, Filter: l.filter, Node: l.node}
		if l.when != nil {
			s.When = l.when.String()
		}
		if in, ok := l.filter.(interface{ Flows() []*Flow }); ok {
			s.Flows = in.Flows()
		}
		out = append(out, s)
	}
	return out
}

// A Step is one filter of a flow, described.
type Step struct {
	Name, Kind, When string
	Filter           Filter
	Flows            []*Flow    // that the filter stands for
	Node             *conf.Node // where it is configured
}

// Whole tells whether all filters of the flow, other than those that are switched off, are among its steps.
func (f *Flow) Whole() bool { return f.whole }

// Meets tells whether x would meet the i-th filter of the flow, as far as its condition can be judged now.
func (f *Flow) Meets(i int, x *Exchange) bool {
	return f.links[i].when == nil || f.links[i].when.Match(x)
}

// errNoAnswer is what a client gets when a flow ends without an answer.
func errNoAnswer(flow string) *elastic.Error {
	return elastic.Errorf(503, "no_answer_exception", "no filter of flow [%s] answered the request", flow)
}

// Define makes flows of their configuration: a list of {name, filter: [...]}. Flows may refer to each other in any
// order; cycles are errors.
func (b *Builder) Define(list *conf.Node) {
	type pending struct {
		flow    *Flow
		filters *conf.Node
	}
	var todo []pending
	for _, n := range conf.ItemsOf(list, b.Problems) {
		var c struct {
			Name    string     `conf:"name,required"`
			Enabled bool       `conf:"enabled"`
			Filter  *conf.Node `conf:"filter"`
		}
		c.Enabled = true
		in := b.Problems.In(strings.TrimSpace("flow " + n.Get("name").Scalar()))
		understood := decode(n, &c, in)
		if c.Name == "" {
			continue
		}
		if first := b.flows[c.Name]; first != nil {
			b.Problems.Errorf(n.Get("name"), "flow %q is defined twice; first at %s", c.Name, first.node.Pos())
			continue
		}
		if understood && c.Enabled && c.Filter.Len() == 0 && c.Filter.Kind() != conf.Scalar {
			in.Warnf(n, "the flow has no filter")
		}
		f := &Flow{name: c.Name, node: n, off: !c.Enabled, whole: true}
		b.flows[c.Name] = f
		if c.Enabled {
			todo = append(todo, pending{f, c.Filter})
		}
	}
	for _, p := range todo {
		b.flow, b.named = p.flow, map[string]int{}
		p.flow.links = b.links(p.flow, p.filters)
		b.flow, b.named = nil, nil
	}
	if b.refuseCycles() {
		return
	}
	for _, p := range todo {
		p.flow.first = p.flow.chain(end{})
	}
}

// links builds the filters of a list, in both forms:
//
//   - {name: x, type: rate_limit, parameters: {...}}   the classic one
//   - rate_limit: {...}                                 the short one; name, when and enabled may stand inside
func (b *Builder) links(f *Flow, list *conf.Node) []*link {
	var out []*link
	for _, n := range conf.ItemsOf(list, b.Problems.In("flow "+f.name)) {
		before, _ := b.Problems.Count()
		l := b.link(f, n)
		if after, _ := b.Problems.Count(); after > before {
			f.whole = false
		} else if l != nil {
			out = append(out, l)
		}
	}
	return out
}

// filterHead is what both forms of a filter have around its parameters.
type filterHead struct {
	name    string
	kind    string
	kindAt  *conf.Node
	enabled bool
	when    *conf.Node
	params  *conf.Node
}

func (b *Builder) link(f *Flow, n *conf.Node) *link {
	h, ok := b.filterHead(f, n)
	if !ok {
		return nil
	}
	defer b.within("flow " + f.name + ": " + h.kind)()
	k := b.Registry.Kind(h.kind)
	if k == nil {
		if near, ok := conf.Nearest(h.kind, b.Registry.Names()); ok {
			b.Problems.Errorf(h.kindAt, "unknown filter %q; did you mean %q?", h.kind, near)
		} else {
			b.Problems.Errorf(h.kindAt, "unknown filter %q; `weir filters` lists them", h.kind)
		}
		return nil
	}
	l := &link{flow: f, name: h.name, kind: h.kind, node: n}
	if l.name == "" {
		l.name = h.kind
	}
	if h.when != nil {
		l.when = b.Condition(h.when, b.Problems)
	}
	b.node = h.params
	if h.params.IsZero() {
		b.node = n
	}
	b.name = l.name
	b.named[l.name]++
	l.filter = k.build(b, h.params)
	b.node, b.name = nil, ""
	if l.filter == nil || !h.enabled {
		return nil
	}
	return l
}

func (b *Builder) filterHead(f *Flow, n *conf.Node) (filterHead, bool) {
	h := filterHead{enabled: true}
	if b.classic(n) {
		var c struct {
			Name       string     `conf:"name"`
			Type       string     `conf:"type,required"`
			Enabled    bool       `conf:"enabled"`
			When       *conf.Node `conf:"when"`
			Parameters *conf.Node `conf:"parameters"`
		}
		c.Enabled = true
		conf.Decode(n, &c, b.Problems.In("flow "+f.name).Elsewhere(func(field string) string {
			if k := b.Registry.Kind(n.Get("type").Scalar()); k != nil && conf.IsField(k.Config, field) {
				return "; what belongs to the filter stands in parameters"
			}
			return ""
		}))
		h.name, h.kind, h.kindAt = c.Name, strings.TrimSpace(c.Type), n.Get("type")
		h.enabled, h.when, h.params = c.Enabled, c.When, c.Parameters
		return h, h.kind != ""
	}
	keys := n.Keys()
	isFilter := func(key string) bool { return b.Registry.Kind(key) != nil }
	if i := slices.IndexFunc(keys, isFilter); i >= 0 && len(keys) > 1 {
		beside := keys[(i+1)%len(keys)]
		b.Problems.In("flow " + f.name).Add(conf.Problem{Pos: n.KeyPos(beside), Message: fmt.Sprintf(
			"%q stands beside the filter %s: what belongs to it stands in it, and another filter is another item", beside, keys[i])})
		return h, false
	}
	if len(keys) != 1 {
		b.Problems.In("flow "+f.name).Errorf(n, "a filter is written `- rate_limit: {...}` or `- {name: x, type: rate_limit, parameters: {...}}`")
		return h, false
	}
	h.kind, h.kindAt = keys[0], n
	body := n.Get(keys[0])
	h.params = body.Without("name", "when", "enabled")
	h.when = body.Get("when")
	if name := body.Get("name"); name != nil {
		h.name = name.Scalar()
	}
	if enabled := body.Get("enabled"); enabled != nil {
		conf.Decode(enabled, &h.enabled, b.Problems)
	}
	return h, true
}

// classic tells whether n is meant to be a filter in the classic form, which one of its keys makes clear.
func (b *Builder) classic(n *conf.Node) bool {
	if n.Get("type") != nil || n.Get("parameters") != nil {
		return true
	}
	keys := n.Keys()
	known := slices.ContainsFunc(keys, func(key string) bool { return b.Registry.Kind(key) != nil })
	return len(keys) > 1 && !known && n.Get("name") != nil
}

// refuseCycles reports flows that would run in a circle, and whether there are any.
func (b *Builder) refuseCycles() bool {
	found := false
	const (
		unseen = iota
		open
		done
	)
	state := map[*Flow]int{}
	var visit func(f *Flow, trail []string)
	visit = func(f *Flow, trail []string) {
		state[f] = open
		trail = append(trail, f.name)
		for _, e := range b.edges[f] {
			switch state[e.to] {
			case open:
				found = true
				b.Problems.Errorf(e.node, "flows run in a circle: %s -> %s", strings.Join(trail, " -> "), e.to.name)
			case unseen:
				visit(e.to, trail)
			}
		}
		state[f] = done
	}
	for _, f := range b.flows {
		if state[f] == unseen {
			visit(f, nil)
		}
	}
	return found
}
