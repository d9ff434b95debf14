package app

import (
	"maps"
	"slices"
	"time"

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
			o := order{registry: registry, problems: p, done: map[string]*placed{}}
			if o.expand(chain, map[*flows.Flow]bool{}) {
				o.warn()
			}
		}
		if traced := routers[name].Tracing(); traced != nil {
			o := order{registry: registry, problems: p}
			o.expand([]*flows.Flow{traced}, map[*flows.Flow]bool{})
			for i := range o.steps {
				if s := &o.steps[i]; audits(s) {
					o.warnf(*s, "audit holds no answer back in a tracing flow, where clients have been answered; put the filter into their flow, above the upstream filter")
				}
			}
		}
	}
}

// audits tells whether a filter is to hold answers back until their record is on disk.
func audits(s *placed) bool {
	a, ok := s.Filter.(interface{ Audits() bool })
	return ok && a.Audits()
}

// order is the filters of a chain, those of the flows in it in their place.
type order struct {
	registry *flows.Registry
	problems *conf.Problems
	steps    []placed
	done     map[string]*placed // cache filters by kind that every exchange meets
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

// warnBlind warns of a filter for some indices that is not told of those which the lines of a bulk name.
func (o *order) warnBlind(s *placed) {
	if s.When == "" {
		return
	}
	flows.EachWord(s.Node.At(s.Kind+".when", "when"), "index", func(v *conf.Node) {
		o.problems.In("flow "+s.flow+": "+s.Kind).Warnf(v, "a condition sees the index in the path alone: a _bulk whose lines name such indices would pass by the queue, "+
			"and one to such a path whose lines name others would not; write `index` as a parameter of the filter, in place of when")
	})
}

func (o *order) warn() {
	var upstream, end, answers, whole, lookup, store, slots *placed // the first of each kind
	for i := range o.steps {
		s := &o.steps[i]
		if end != nil {
			o.warnf(*s, "never reached: %s at %s answers or ends every exchange", end.Kind, end.Node.Pos())
			return
		}
		if upstream != nil {
			o.warnSent(s, upstream)
		}
		switch {
		case o.registry.Kind(s.Kind).Family == "upstream" && s.always && upstream == nil:
			upstream = s
		case s.Kind == "cache" || s.Kind == "get_cache":
			if upstream != nil {
				o.warnf(*s, "stands below %s at %s: when an exchange comes here it has been to the cluster", upstream.Kind, upstream.Node.Pos())
			}
			first := &lookup
			if s.Kind == "cache" {
				first = &whole
			}
			o.warnTwice(s)
			*first = either(*first, s)
		case s.Kind == "set_cache":
			if answers == nil {
				o.warnEarly(s, i)
			}
			if lookup == nil && whole == nil {
				o.warnf(*s, "no get_cache stands above it, and it stores only what one has looked for: put `- get_cache: {}` above the upstream filter, "+
					"or write cache there in place of both")
			}
			o.warnTwice(s)
			store = either(store, s)
		case s.Kind == "queue":
			o.warnBlind(s)
		case s.Kind == "concurrency":
			if slots != nil && keyParts(s) > keyParts(slots) {
				o.warnf(*s, "stands below %s at %s, whose slots more callers share: who waits here holds one of those; the narrow limit comes first", slots.Name, slots.Node.Pos())
			}
			slots = s
		}
		if e, ok := s.Filter.(flows.Ender); ok && e.Ends() && s.always {
			end = s
		}
		if answers == nil && o.answers(s) {
			answers = s
		}
	}
	if whole != nil && (lookup != nil || store != nil) {
		other := either(store, lookup)
		o.warnf(*other, "cache at %s looks up and stores by itself; %s beside it does that twice", whole.Node.Pos(), other.Kind)
	}
	if lookup != nil && store == nil && whole == nil {
		o.warnf(*lookup, "no set_cache stands below it, so that nothing is stored: put `- set_cache: {}` below the upstream filter, or write cache here "+
			"in place of both")
	}
	o.warnTimes(either(whole, lookup), either(whole, store))
	if answers == nil {
		o.warnUnanswered(either(either(whole, lookup), store))
	}
}

// warnSent warns of a filter below upstream, which has sent every exchange to a cluster already, that would undo that or send it again.
func (o *order) warnSent(s, upstream *placed) {
	above := "stands below " + upstream.Kind + " at " + upstream.Node.Pos().String() + ": "
	switch o.registry.Kind(s.Kind).Family {
	case "upstream":
		o.warnf(*s, "%severy exchange is sent once more, writes too, and only the last answer is given", above)
	case "limit":
		o.warnf(*s, "%swhat it refuses has been done, and the client, who is told otherwise, sends it again; move it above", above)
	case "queue":
		o.warnf(*s, "%swhat it takes has been done, and is done again when it comes out of the queue; move it above", above)
	}
	if audits(s) {
		o.warnf(*s, "%saudit holds no answer back here; move it above", above)
	}
}

// warnTwice warns of a cache filter below another one that has done its work already.
func (o *order) warnTwice(s *placed) {
	if first := o.done[s.Kind]; first != nil {
		o.warnf(*s, "does nothing: %s at %s has done it already; leave one of them out", first.Kind, first.Node.Pos())
	} else if s.always {
		o.done[s.Kind] = s
	}
}

// warnEarly warns of a filter that stores answers, at i, above the one that gets them.
func (o *order) warnEarly(s *placed, i int) {
	if n := slices.IndexFunc(o.steps[i:], func(s placed) bool { return o.answers(&s) }); n >= 0 {
		below := o.steps[i+n]
		o.warnf(*s, "stands above %s at %s: when an exchange comes here there is no answer yet to be stored; move it below", below.Kind, below.Node.Pos())
	}
}

// warnTimes warns of times of a cache that, beside its time to live, do nothing or too much.
func (o *order) warnTimes(lookup, store *placed) {
	if lookup == nil || store == nil {
		return
	}
	l, ok := lookup.Filter.(interface{ RefreshAhead() time.Duration })
	s, ok2 := store.Filter.(interface{ TTL() time.Duration })
	if !ok || !ok2 {
		return
	}
	p := o.problems.In("flow " + lookup.flow + ": " + lookup.Kind)
	if ahead := l.RefreshAhead(); ahead >= s.TTL()-s.TTL()/10 {
		p.Warnf(lookup.Node.At(lookup.Kind+".refresh_ahead", "parameters.refresh_ahead"), "refresh_ahead %s is as long as answers live, which is %s within "+
			"a tenth: those in demand are asked for anew all the time; make it a fraction of that", conf.Duration(ahead), conf.Duration(s.TTL()))
	}
}

// answers tells whether a filter may answer an exchange.
func (o *order) answers(s *placed) bool {
	_, ender := s.Filter.(flows.Ender)
	return ender || o.registry.Kind(s.Kind).Family == "upstream"
}

// keyParts returns how many properties of an exchange a limit tells apart.
func keyParts(s *placed) int {
	if k, ok := s.Filter.(interface{ KeyParts() int }); ok {
		return k.KeyParts()
	}
	return 0
}

// warnUnanswered warns of a chain in which no answer can come from, at its cache, which is of no use then, if it has one.
func (o *order) warnUnanswered(cache *placed) {
	switch {
	case cache != nil:
		o.warnf(*cache, "no filter of the chain sends requests to a cluster: there is nothing to keep")
	case len(o.steps) > 0:
		o.warnf(o.steps[len(o.steps)-1], "no filter of the chain answers: what comes to its end is answered with 503")
	}
}

// either returns a, or b where there is no a.
func either(a, b *placed) *placed {
	if a != nil {
		return a
	}
	return b
}
