package limit

import (
	"bytes"
	"sync"

	"weir/elastic/api"
)

const (
	// rollNames is how many names of indices a roll remembers in each of two generations. No node has room for the shards of many
	// more by default (cluster.max_shards_per_node).
	rollNames = 1000
	// rollPatterns is the same for patterns. All names are held against each of them.
	rollPatterns = 64
)

// A roll remembers under which names and patterns indices were asked for lately. What an expression means only the cluster knows;
// but of those on the roll it can be told whether the expression may mean them too. So a search in log* counts for logs-1, which
// others ask for, and who is at the limit of logs-1 gains nothing by another spelling; what log* does not reach is not touched.
type roll struct {
	mu       sync.Mutex // guards the fields below
	names    shelf
	patterns shelf
	version  int // of what is on the roll, counted up when an expression comes or goes
	outline  int // the same of the patterns alone
}

// A shelf holds entries by their expression, in two generations as a memo does: those in use stay.
type shelf struct{ young, old map[string]*entry }

// An entry is an expression on the roll, with what it has to do with the others.
type entry struct {
	expr  string
	index []byte // the same
	at    int    // the version, or for a name the outline, that the lists below hold for
	// charged are the others that a request for expr counts for: what expr covers, and patterns that overlap it in part.
	charged []*entry
	// checked are patterns that cover expr and more: what was asked for under them was asked of expr, but not the other way round.
	checked []*entry
}

// related returns what else a request for expr counts for, and what it must also pass. The slices must not be changed.
func (r *roll) related(expr []byte) (charged, checked []*entry) {
	name := isName(expr)
	r.mu.Lock()
	defer r.mu.Unlock()
	shelf, most, current := &r.patterns, rollPatterns, &r.version
	if name {
		shelf, most, current = &r.names, rollNames, &r.outline
	}
	e := shelf.young[string(expr)]
	if e == nil {
		if e = shelf.old[string(expr)]; e == nil {
			e = &entry{expr: string(expr), index: bytes.Clone(expr), at: -1}
			r.changed(name)
		}
		if len(shelf.young) >= most {
			clear(shelf.old)
			shelf.young, shelf.old = shelf.old, shelf.young
			r.changed(name)
		}
		delete(shelf.old, e.expr)
		shelf.put(e)
	}
	if e.at != *current {
		r.relate(e, name)
		e.at = *current
	}
	return e.charged, e.checked
}

func (s *shelf) put(e *entry) {
	if s.young == nil {
		s.young, s.old = map[string]*entry{}, map[string]*entry{}
	}
	s.young[e.expr] = e
}

func (s *shelf) len() int { return len(s.young) + len(s.old) }

func (r *roll) changed(name bool) {
	r.version++
	if !name {
		r.outline++
	}
}

// relate works out the lists of e anew; those of before may still be read.
func (r *roll) relate(e *entry, name bool) {
	e.charged, e.checked = nil, nil
	for _, generation := range []map[string]*entry{r.patterns.young, r.patterns.old} {
		for _, o := range generation {
			switch {
			case o == e || !api.OverlapsIndex(o.expr, e.expr):
			case api.MatchIndex(o.expr, e.expr) && !api.MatchIndex(e.expr, o.expr):
				e.checked = append(e.checked, o)
			default:
				e.charged = append(e.charged, o)
			}
		}
	}
	if name {
		return
	}
	for _, generation := range []map[string]*entry{r.names.young, r.names.old} {
		for _, o := range generation {
			if api.MatchIndex(e.expr, o.expr) {
				e.charged = append(e.charged, o)
			}
		}
	}
}

// len returns how many expressions are on the roll.
func (r *roll) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.len() + r.patterns.len()
}
