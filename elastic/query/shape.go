package query

import "bytes"

// A form is what the strings in a part of a search mean to Shape: names of fields, which belong to its shape, or values,
// which do not.
type form uint8

const (
	formValues  form = iota
	formTop          // a search body
	formNamed        // aggregations by name
	formAgg          // one aggregation
	formByField      // its member "field" is the name of a field
	formSort         // strings are names of fields
)

// within returns the form of the value of a member.
func (f form) within(key []byte) form {
	aggs := string(key) == "aggs" || string(key) == "aggregations"
	switch {
	case f == formTop && string(key) == "sort":
		return formSort
	case (f == formTop || f == formAgg) && aggs, f == formByField && string(key) == "sources":
		return formNamed
	case f == formTop && string(key) == "collapse", string(key) == "exists", f == formAgg && string(key) != "meta":
		return formByField
	case f == formNamed:
		return formAgg
	}
	return formValues
}

// Shape appends what searches have in common that differ in their values only, so that slow ones can be counted by what
// they do: the canonical form of a body (see Canon) with ? for each literal, and of neighbours in an array that look the
// same one. Names of members stay, and the names of the fields that aggregations, sorts, collapses and exists queries work
// on. It is text for people, not JSON.
func Shape(dst, canonical []byte) []byte {
	s := shaper{in: canonical, out: dst}
	if len(canonical) > 0 {
		s.value(formTop)
	}
	return s.out
}

type shaper struct {
	in, out []byte
	pos     int
}

// value appends the shape of the value at pos.
func (s *shaper) value(f form) {
	switch s.in[s.pos] {
	case '{':
		s.object(f)
	case '[':
		s.array(f)
	case '"':
		start := s.pos
		s.pos, _ = skipString(s.in, s.pos)
		if f == formSort {
			s.out = append(s.out, s.in[start:s.pos]...)
		} else {
			s.out = append(s.out, '?')
		}
	default:
		s.pos, _ = skipScalar(s.in, s.pos)
		s.out = append(s.out, '?')
	}
}

func (s *shaper) object(f form) {
	s.pos++
	s.out = append(s.out, '{')
	if f == formSort {
		f = formValues // a direction, or a table of options
	}
	for s.in[s.pos] != '}' {
		if s.in[s.pos] == ',' {
			s.pos++
			s.out = append(s.out, ',')
		}
		start := s.pos
		s.pos, _ = skipString(s.in, s.pos)
		key := s.in[start+1 : s.pos-1]
		s.pos++ // the colon
		s.out = append(append(s.out, s.in[start:s.pos-1]...), ':')
		if f == formByField && string(key) == "field" && s.in[s.pos] == '"' {
			s.value(formSort)
			continue
		}
		s.value(f.within(key))
	}
	s.pos++
	s.out = append(s.out, '}')
}

func (s *shaper) array(f form) {
	s.pos++
	s.out = append(s.out, '[')
	last := -1 // where the shape of the element before begins
	for s.in[s.pos] != ']' {
		if s.in[s.pos] == ',' {
			s.pos++
		}
		start := len(s.out)
		if last >= 0 {
			s.out = append(s.out, ',')
		}
		at := len(s.out)
		s.value(f)
		if last >= 0 && bytes.Equal(s.out[at:], s.out[last:start]) {
			s.out = s.out[:start]
			continue
		}
		last = at
	}
	s.pos++
	s.out = append(s.out, ']')
}
