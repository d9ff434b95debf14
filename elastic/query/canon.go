package query

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// Limits of a body that is worth a key. Elasticsearch itself refuses queries nested deeper than a few dozen clauses by
// default (indices.query.bool.max_nested_depth), and no dashboard comes near the number of members.
const (
	maxDepth   = 100
	maxMembers = 1 << 16
)

// A NotCanonical is the reason why a body has no canonical form. Such a body is to be forwarded as it came: the node
// judges it, and may well accept it (comments and a byte order mark, for instance).
type NotCanonical uint8

// Why a body has no canonical form.
const (
	NotJSON      NotCanonical = 1 + iota // anything that RFC 8259 does not allow: comments, NaN, a byte order mark, control characters
	NotObject                            // JSON, but no object: no search
	DuplicateKey                         // two members of one object have the same name, which Elasticsearch answers with 400
	BadText                              // invalid UTF-8, or an escaped surrogate without its other half
	TooDeep                              // nested deeper than any query
	TooManyMembers
	TrailingData // something stands behind the object
)

// Error implements error.
func (n NotCanonical) Error() string {
	switch n {
	case NotObject:
		return "body has no canonical form: not a JSON object"
	case DuplicateKey:
		return "body has no canonical form: duplicate key"
	case BadText:
		return "body has no canonical form: invalid UTF-8 or lone surrogate"
	case TooDeep:
		return "body has no canonical form: nested too deep"
	case TooManyMembers:
		return "body has no canonical form: too many members"
	case TrailingData:
		return "body has no canonical form: data behind the object"
	}
	return "body has no canonical form: not JSON"
}

// A Canon makes canonical forms and keeps its memory between calls. The zero value is ready. It serves one call at a
// time.
type Canon struct {
	in      []byte
	pos     int
	out     []byte
	depth   int
	members []member // of all objects that are open, innermost last
	scratch []byte   // where members are put in order
	facts   Facts

	timeout, stats       []byte // the top-level members left out, in canonical form
	sawTimeout, sawStats bool
}

// A member is one `"name":value,` of an open object, as offsets into out.
type member struct{ start, keyEnd, end int }

// Body appends the canonical form of a search body to dst and tells what in the body decides on caching. Two bodies with
// the same form are the same search: white space is gone, members are sorted by name, escapes are written one way,
// numbers stay as they were written (on a keyword field 1 and 1.0 are different terms, and ids exceed float64). Arrays
// keep their order, and so do the objects in which Elasticsearch heeds it. The top-level members "timeout" and "stats"
// are left out, since they change no complete answer; see Dropped. A body that is empty or only white space is {}.
//
// The error is a NotCanonical, and then dst comes back as it was.
func (c *Canon) Body(dst, body []byte) ([]byte, Facts, error) {
	c.in, c.pos, c.out = body, 0, dst
	c.depth, c.members, c.facts = 0, c.members[:0], Facts{}
	c.timeout, c.stats = c.timeout[:0], c.stats[:0]
	c.sawTimeout, c.sawStats = false, false
	fault := c.document()
	out, facts := c.out, c.facts
	c.in, c.out = nil, nil
	if fault != 0 {
		return dst, Facts{}, fault
	}
	return out, facts, nil
}

// Dropped appends to dst what the last call of Body left out of the canonical form: the members "timeout" and "stats".
// Requests with the same form but different dropped members may share a complete answer, not a failure.
func (c *Canon) Dropped(dst []byte) []byte {
	dst = append(dst, c.timeout...)
	return append(dst, c.stats...)
}

func (c *Canon) document() NotCanonical {
	c.space()
	if c.pos == len(c.in) {
		c.out = append(c.out, "{}"...)
		return 0
	}
	if c.in[c.pos] != '{' {
		if end, ok := skipValue(c.in, c.pos); !ok || skipSpace(c.in, end) != len(c.in) {
			return NotJSON
		}
		return NotObject
	}
	if fault := c.object(placeTop, false); fault != 0 {
		return fault
	}
	c.space()
	if c.pos != len(c.in) {
		return TrailingData
	}
	return 0
}

func (c *Canon) space() {
	if c.pos < len(c.in) && c.in[c.pos] > ' ' {
		return // the common case, and short enough to be inlined
	}
	c.pos = skipSpace(c.in, c.pos)
}

// value writes the value at pos. ordered says that the objects in it keep the order of their members.
func (c *Canon) value(p place, ordered bool) NotCanonical {
	if c.pos == len(c.in) {
		return NotJSON
	}
	switch c.in[c.pos] {
	case '{':
		return c.object(p, ordered)
	case '[':
		return c.array(p, ordered)
	case '"':
		start := len(c.out)
		if fault := c.text(); fault != 0 {
			return fault
		}
		c.facts.text(p, c.out[start+1:len(c.out)-1])
		return 0
	}
	end, ok := skipScalar(c.in, c.pos)
	if !ok {
		return NotJSON
	}
	c.out = append(c.out, c.in[c.pos:end]...)
	c.pos = end
	return 0
}

func (c *Canon) array(p place, ordered bool) NotCanonical {
	if c.depth++; c.depth > maxDepth {
		return TooDeep
	}
	c.out = append(c.out, '[')
	c.pos++
	for first := true; ; first = false {
		c.space()
		if c.pos == len(c.in) {
			return NotJSON
		}
		if c.in[c.pos] == ']' && first {
			break
		}
		if fault := c.value(p, ordered); fault != 0 {
			return fault
		}
		c.space()
		if c.pos == len(c.in) {
			return NotJSON
		}
		if c.in[c.pos] == ']' {
			break
		}
		if c.in[c.pos] != ',' {
			return NotJSON
		}
		c.out = append(c.out, ',')
		c.pos++
	}
	c.out = append(c.out, ']')
	c.pos++
	c.depth--
	return 0
}

func (c *Canon) object(p place, ordered bool) NotCanonical {
	if c.depth++; c.depth > maxDepth {
		return TooDeep
	}
	base := len(c.members)
	sorted := true
	var kept rivals   // names seen that set the same thing
	var seen required // members seen that the place asks for
	c.out = append(c.out, '{')
	c.pos++
	for first := true; ; first = false {
		c.space()
		if c.pos == len(c.in) {
			return NotJSON
		}
		if c.in[c.pos] == '}' && first {
			break
		}
		if c.in[c.pos] != '"' {
			return NotJSON
		}
		m := member{start: len(c.out)}
		if fault := c.text(); fault != 0 {
			return fault
		}
		m.keyEnd = len(c.out)
		key := c.out[m.start+1 : m.keyEnd-1]
		inner := c.facts.enter(p, key)
		order, rival := orderOf(key)
		if kept&rival != 0 {
			ordered = true
		}
		kept |= rival

		c.space()
		if c.pos == len(c.in) || c.in[c.pos] != ':' {
			return NotJSON
		}
		c.pos++
		c.out = append(c.out, ':')
		c.space()
		if inner == placeTermsField && c.pos < len(c.in) && c.in[c.pos] == '{' {
			c.facts.Foreign = true
		}
		if fault := c.value(inner, ordered || order); fault != 0 {
			return fault
		}
		// The value may have moved out.
		key = c.out[m.start+1 : m.keyEnd-1]
		seen |= c.facts.leave(p, key, c.out[m.keyEnd+1:])
		c.out = append(c.out, ',')
		m.end = len(c.out)

		drop, fault := c.drop(p, key, m)
		if fault != 0 {
			return fault
		}
		if drop {
			c.out = c.out[:m.start]
		} else {
			if len(c.members) == maxMembers {
				return TooManyMembers
			}
			if sorted && len(c.members) > base {
				sorted = bytes.Compare(c.key(c.members[len(c.members)-1]), key) < 0
			}
			c.members = append(c.members, m)
		}

		c.space()
		if c.pos == len(c.in) {
			return NotJSON
		}
		if c.in[c.pos] == '}' {
			break
		}
		if c.in[c.pos] != ',' {
			return NotJSON
		}
		c.pos++
	}
	c.facts.close(p, seen)
	if !sorted {
		if fault := c.sort(base, ordered); fault != 0 {
			return fault
		}
	}
	if len(c.members) > base {
		c.out[len(c.out)-1] = '}' // was the last comma
	} else {
		c.out = append(c.out, '}')
	}
	c.members = c.members[:base]
	c.pos++
	c.depth--
	return 0
}

func (c *Canon) key(m member) []byte { return c.out[m.start+1 : m.keyEnd-1] }

// sort refuses two members of one name among those from base on, and puts them in order unless their order is kept.
func (c *Canon) sort(base int, keep bool) NotCanonical {
	members := c.members[base:]
	start, end := members[0].start, members[len(members)-1].end
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(c.key(a), c.key(b)) })
	for i := 1; i < len(members); i++ {
		if bytes.Equal(c.key(members[i-1]), c.key(members[i])) {
			return DuplicateKey
		}
	}
	if keep {
		return 0
	}
	c.scratch = c.scratch[:0]
	for _, m := range members {
		c.scratch = append(c.scratch, c.out[m.start:m.end]...)
	}
	copy(c.out[start:end], c.scratch)
	return 0
}

// drop sets the member aside if it is one that changes no complete answer. One whose value Elasticsearch would refuse
// stays, or a warm cache would answer what a node answers with 400.
func (c *Canon) drop(p place, key []byte, m member) (bool, NotCanonical) {
	if p != placeTop {
		return false, 0
	}
	value := c.out[m.keyEnd+1 : m.end-1]
	switch string(key) {
	case "timeout":
		if c.sawTimeout {
			return false, DuplicateKey
		}
		c.sawTimeout = true
		if len(value) > 2 && value[0] == '"' && isDuration(value[1:len(value)-1]) {
			c.timeout = append(c.timeout, c.out[m.start:m.end]...)
			return true, 0
		}
	case "stats":
		if c.sawStats {
			return false, DuplicateKey
		}
		c.sawStats = true
		if value[0] == '[' && !bytes.ContainsAny(value[1:], "[{") {
			c.stats = append(c.stats, c.out[m.start:m.end]...)
			return true, 0
		}
	}
	return false, 0
}

// text writes the string at pos with its escapes in one spelling: \" and \\, \u00xx for control characters, and
// everything else as it is.
func (c *Canon) text() NotCanonical {
	in, i := c.in, c.pos+1
	c.out = append(c.out, '"')
	run := i
	for {
		for i < len(in) && plain[in[i]] {
			i++
		}
		if i == len(in) {
			return NotJSON
		}
		switch b := in[i]; {
		case b == '"':
			c.out = append(c.out, in[run:i]...)
			c.out = append(c.out, '"')
			c.pos = i + 1
			return 0
		case b == '\\':
			c.out = append(c.out, in[run:i]...)
			n, fault := c.escape(in[i:])
			if fault != 0 {
				return fault
			}
			i += n
			run = i
		case b >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(in[i:])
			if r == utf8.RuneError && n == 1 {
				return BadText
			}
			i += n
		default:
			return NotJSON
		}
	}
}

// escape writes the character that the escape sequence at the beginning of s stands for, and returns the length of the
// sequence.
func (c *Canon) escape(s []byte) (int, NotCanonical) {
	if len(s) < 2 {
		return 0, NotJSON
	}
	switch s[1] {
	case '"', '\\':
		c.out = append(c.out, '\\', s[1])
	case '/':
		c.out = append(c.out, '/')
	case 'b':
		c.out = append(c.out, `\u0008`...)
	case 'f':
		c.out = append(c.out, `\u000c`...)
	case 'n':
		c.out = append(c.out, `\u000a`...)
	case 'r':
		c.out = append(c.out, `\u000d`...)
	case 't':
		c.out = append(c.out, `\u0009`...)
	case 'u':
		return c.unicode(s)
	default:
		return 0, NotJSON
	}
	return 2, 0
}

func (c *Canon) unicode(s []byte) (int, NotCanonical) {
	r, ok := hex4(s, 2)
	if !ok {
		return 0, NotJSON
	}
	n := 6
	if 0xd800 <= r && r < 0xe000 {
		if r >= 0xdc00 || len(s) < 12 || s[6] != '\\' || s[7] != 'u' {
			return 0, BadText
		}
		low, ok := hex4(s, 8)
		if !ok || low < 0xdc00 || low >= 0xe000 {
			return 0, BadText
		}
		r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
		n = 12
	}
	switch {
	case r == '"' || r == '\\':
		c.out = append(c.out, '\\', byte(r))
	case r < ' ':
		const digits = "0123456789abcdef"
		c.out = append(c.out, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
	default:
		c.out = utf8.AppendRune(c.out, r)
	}
	return n, 0
}

// rivals are names of which Elasticsearch takes the one that comes last, so that an object with two of them means
// something else when they change places.
type rivals uint16

const (
	rivalLower rivals = 1 << iota
	rivalUpper
	rivalAggs
	rivalIncludes
	rivalExcludes
	rivalValue
)

// orderOf tells whether the order of members matters everywhere inside the member called key, and which rivals key
// belongs to. JSON says that order has no meaning; Elasticsearch's parsers give it one in these places.
func orderOf(key []byte) (ordered bool, group rivals) {
	switch string(key) {
	case "sort": // {"a":"asc","b":"desc"} sorts by a, then by b
		return true, 0
	case "indices_boost": // the first name that matches an index counts
		return true, 0
	case "order": // of an aggregation: the last member counts
		return true, 0
	case "geo_distance", "geo_bounding_box", "geo_polygon", "_geo_distance": // a point has several spellings; the last one counts
		return true, 0
	case "from", "gt", "gte", "include_lower": // of a range query
		return false, rivalLower
	case "to", "lt", "lte", "include_upper":
		return false, rivalUpper
	case "aggs", "aggregations":
		return false, rivalAggs
	case "include", "includes": // of _source
		return false, rivalIncludes
	case "exclude", "excludes":
		return false, rivalExcludes
	case "value", "term", "prefix", "wildcard": // of a term-level query on one field
		return false, rivalValue
	}
	return false, 0
}
