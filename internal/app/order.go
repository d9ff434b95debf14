package app

import (
	"maps"
	"slices"

	"weir/filters"
	"weir/flows"
	"weir/internal/conf"
)

// warnOrder warns of filters that, where they stand, can do nothing. It looks at what rules lead to, not at single flows,
// since a part of a chain may stand in another flow.
func warnOrder(routers map[string]*flows.Router, p *conf.Problems) {
	registry := filters.Registry()
	for _, name := range slices.Sorted(maps.Keys(routers)) {
		for _, chain := range routers[name].Chains() {
			o := order{registry: registry, problems: p}
			if o.expand(chain, map[*flows.Flow]bool{}) {
				o.warn()
			}
		}
	}
}

// order is the filters of a chain, those of the flows in it in their place.
type order struct {
	registry *flows.Registry
	problems *conf.Problems
	steps    []placed
}

// placed is a filter and whether every exchange meets it that comes so far.
type placed struct {
	flows.Step
	flow   string
	always bool
}

// expand adds the filters of list. It returns false if not all are known, which makes every warning about what is not
// there a guess.
func (o *order) expand(list []*flows.Flow, open map[*flows.Flow]bool) bool {
	for _, f := range list {
		if open[f] || !f.Whole() {
			return false
		}
		open[f] = true
		for _, s := range f.Steps() {
			if s.Flows == nil {
				o.steps = append(o.steps, placed{s, f.Name(), s.When == ""})
				continue
			}
			first := len(o.steps)
			if !o.expand(s.Flows, open) {
				return false
			}
			for i := range o.steps[first:] {
				o.steps[first+i].always = o.steps[first+i].always && s.When == ""
			}
		}
		delete(open, f)
	}
	return true
}

func (o *order) warnf(s placed, format string, args ...any) {
	o.problems.In("flow "+s.flow+": "+s.Kind).Warnf(s.Node, format, args...)
}

func (o *order) warn() {
	var upstream, end, whole, lookup, store, slots *placed // the first of each kind
	for i := range o.steps {
		s := &o.steps[i]
		if end != nil {
			o.warnf(*s, "never reached: %s at %s answers or ends every exchange", end.Kind, end.Node.Pos())
			return
		}
		switch {
		case o.registry.Kind(s.Kind).Family == "upstream" && s.always && upstream == nil:
			upstream = s
		case s.Kind == "cache" || s.Kind == "get_cache":
			if upstream != nil {
				o.warnf(*s, "stands below %s at %s: when an exchange comes here it has been to the cluster", upstream.Kind, upstream.Node.Pos())
			}
			if s.Kind == "cache" {
				whole = either(whole, s)
			} else {
				lookup = either(lookup, s)
			}
		case s.Kind == "set_cache":
			store = either(store, s)
		case s.Kind == "concurrency":
			if slots != nil && keyParts(s) > keyParts(slots) {
				o.warnf(*s, "stands below %s at %s, whose slots more callers share: who waits here holds one of those; the narrow limit comes first", slots.Name, slots.Node.Pos())
			}
			slots = s
		}
		if e, ok := s.Filter.(flows.Ender); ok && e.Ends() && s.always {
			end = s
		}
	}
	if whole != nil && (lookup != nil || store != nil) {
		other := either(store, lookup)
		o.warnf(*other, "cache at %s looks up and stores by itself; %s beside it does that twice", whole.Node.Pos(), other.Kind)
	}
	o.warnUseless(either(either(whole, lookup), store))
}

// keyParts returns how many properties of an exchange a limit tells apart.
func keyParts(s *placed) int {
	if k, ok := s.Filter.(interface{ KeyParts() int }); ok {
		return k.KeyParts()
	}
	return 0
}

// warnUseless warns of a cache in a chain in which no answer can come from.
func (o *order) warnUseless(s *placed) {
	answers := func(s placed) bool {
		_, ender := s.Filter.(flows.Ender)
		return ender || o.registry.Kind(s.Kind).Family == "upstream"
	}
	if s != nil && !slices.ContainsFunc(o.steps, answers) {
		o.warnf(*s, "no filter of the chain sends requests to a cluster: there is nothing to keep")
	}
}

// either returns a, or b where there is no a.
func either(a, b *placed) *placed {
	if a != nil {
		return a
	}
	return b
}

// warnQueues warns of queues that filters fill and no pipeline empties.
func (plan *Plan) warnQueues(p *conf.Problems) {
	read := map[string]bool{}
	scalars(plan.Config.Pipeline, "input_queue", func(n *conf.Node) { read[n.Scalar()] = true })
	scalars(plan.Config.Modules, "input_queue", func(n *conf.Node) { read[n.Scalar()] = true })
	scalars(plan.Config.Flow, "queue_name", func(n *conf.Node) {
		if name := n.Scalar(); name != "" && !read[name] {
			p.Warnf(n, "no pipeline takes records from the queue %q: it fills up, and then records are dropped", name)
		}
	})
}

// scalars calls found with every scalar under key in n, however deep.
func scalars(n *conf.Node, key string, found func(*conf.Node)) {
	for _, item := range n.Items() {
		scalars(item, key, found)
	}
	for _, k := range n.Keys() {
		if v := n.Get(k); k == key && v.Kind() == conf.Scalar {
			found(v)
		} else {
			scalars(v, key, found)
		}
	}
}
