package limit

import (
	"slices"
	"strconv"
	"sync"

	"weir/flows"
)

// A seat is what a filter has between the reloads: its place in a flow, by its name, with one filter of each generation in
// it.
type seat struct {
	mu     sync.Mutex // guards the fields below
	taken  *flows.Runtime
	filter []explainer // of the generations that are at work, the last in force
}

// An explainer is a filter that can tell about itself.
type explainer interface{ explain() *FilterStatus }

// takeSeat finds the place of a filter of a kind by its name, or, where several have that name, by the next one that is free.
// It returns the name of the place, and what gives it up.
func takeSeat(rt *flows.Runtime, kind, flow, name string, f explainer) (string, func(), error) {
	numbered := name
	for n := 2; ; n++ {
		s, err := flows.Keep(rt, "limit seat "+kind+" "+flow+" "+numbered, func() (*seat, func(), error) { return &seat{}, nil, nil })
		if err != nil {
			return "", nil, err
		}
		if s.take(rt, f) {
			return numbered, func() { s.leave(f) }, nil
		}
		numbered = name + "_" + strconv.Itoa(n)
	}
}

// take tells whether the place was free in the generation of rt, and takes it.
func (s *seat) take(rt *flows.Runtime, f explainer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == rt {
		return false
	}
	s.taken = rt
	s.filter = append(s.filter, f)
	return true
}

func (s *seat) leave(f explainer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter = slices.DeleteFunc(s.filter, func(o explainer) bool { return o == f })
}

// current returns the filter in force, or nil.
func (s *seat) current() explainer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.filter) == 0 {
		return nil
	}
	return s.filter[len(s.filter)-1]
}
