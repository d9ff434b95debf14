package limit

import (
	"math/bits"
	"regexp"
	"sync"
)

// A pattern is a regular expression and the groups of it that keys are made of.
type pattern struct {
	re     *regexp.Regexp
	groups []int // numbers of the groups
}

// A hit is what a pattern found in a path: where its groups stand. A group that took no part is empty.
type hit struct {
	found  bool
	groups []span
}

type span struct{ from, to int }

func (s span) of(path []byte) []byte { return path[s.from:s.to] }

// A match is what a path means to all patterns. It does not change once it is made.
type match struct {
	path string
	rule int   // number of the first rule that matches, or -1
	hit  hit   // of that rule
	own  []hit // of the other patterns, each for itself
}

// A matcher tells which patterns match a path. Of the rules the first one counts, of the own patterns each. What it found
// for a path it remembers, so that expressions run for paths that are new; for those a prefilter leaves few to run.
type matcher struct {
	rules     []pattern
	own       []pattern
	prefilter prefilter
	memo      *memo
	masks     sync.Pool // of *[]uint64
}

func newMatcher(rules, own []pattern) *matcher {
	m := &matcher{rules: rules, own: own, memo: newMemo(memoBytes)}
	all := make([]string, 0, len(rules)+len(own))
	for _, p := range rules {
		all = append(all, p.re.String())
	}
	for _, p := range own {
		all = append(all, p.re.String())
	}
	m.prefilter = newPrefilter(all)
	m.masks.New = func() any {
		mask := make([]uint64, len(m.prefilter.always))
		return &mask
	}
	return m
}

// match returns what path means. It is valid as long as path is not changed.
func (m *matcher) match(path []byte) *match {
	if found := m.memo.get(path); found != nil {
		return found
	}
	found := m.find(path)
	m.memo.put(found)
	return found
}

// find runs the expressions that may match.
func (m *matcher) find(path []byte) *match {
	found := &match{path: string(path), rule: -1, own: make([]hit, len(m.own))}
	mask, _ := m.masks.Get().(*[]uint64)
	m.prefilter.candidates(*mask, path)
	for word, set := range *mask {
		for ; set != 0; set &= set - 1 {
			switch i := 64*word + bits.TrailingZeros64(set); {
			case i >= len(m.rules):
				found.own[i-len(m.rules)] = m.own[i-len(m.rules)].find(path)
			case found.rule < 0:
				if found.hit = m.rules[i].find(path); found.hit.found {
					found.rule = i
				}
			}
		}
	}
	m.masks.Put(mask)
	return found
}

func (p *pattern) find(path []byte) hit {
	at := p.re.FindSubmatchIndex(path)
	if at == nil {
		return hit{}
	}
	h := hit{found: true, groups: make([]span, len(p.groups))}
	for i, g := range p.groups {
		if at[2*g] >= 0 {
			h.groups[i] = span{at[2*g], at[2*g+1]}
		}
	}
	return h
}
