package query

import (
	"bytes"
	"cmp"
	"encoding/binary"
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
//
// What stands in a body in canonical spelling already is copied in runs as long as possible, not piece by piece: the bytes
// of in from run on belong behind those written, and are written when something else must come next, or when members
// change places.
type Canon struct {
	in      []byte
	out     []byte // what is written
	run     int
	depth   int
	members []member // of all objects that are open, innermost last
	scratch []byte   // where members are put in order
	facts   factSet

	timeless bool // no string can be date math

	timeout, stats       []byte // the top-level members left out, in canonical form
	sawTimeout, sawStats bool
}

// A member is one `"name":value` of an open object, as offsets into what is written once the run is.
type member struct {
	head               uint64 // headOf its name
	start, keyEnd, end int
}

// Body appends the canonical form of a search body to dst and tells what in the body decides on caching. Two bodies with
// the same form are the same search: white space is gone, members are sorted by name, escapes are written one way,
// numbers stay as they were written (on a keyword field 1 and 1.0 are different terms, and ids exceed float64). Arrays
// keep their order, and so do the objects in which Elasticsearch heeds it. The top-level members "timeout" and "stats"
// are left out, since they change no complete answer; see Dropped. An empty body is {}; one of nothing but white space is not
// JSON, and nodes answer it with 400.
//
// The error is a NotCanonical, and then dst comes back as it was.
func (c *Canon) Body(dst, body []byte) ([]byte, Facts, error) {
	c.in, c.run = body, 0
	c.depth, c.members, c.facts = 0, c.members[:0], 0
	c.timeless = bytes.IndexByte(body, '\\') < 0 && !hasNow(body) && bytes.IndexByte(body, '<') < 0
	c.timeout, c.stats = c.timeout[:0], c.stats[:0]
	c.sawTimeout, c.sawStats = false, false
	c.out = dst
	fault := c.document()
	out := c.out
	c.in, c.out = nil, nil
	if fault != 0 {
		return dst, Facts{}, fault
	}
	if c.facts.has(saysAnalyzed) && hasAnyNow(out[len(dst):]) {
		c.facts |= saysNow.set()
	}
	return out, c.facts.named(), nil
}

// Dropped appends to dst what the last call of Body left out of the canonical form: the members "timeout" and "stats".
// Requests with the same form but different dropped members may share a complete answer, not a failure.
func (c *Canon) Dropped(dst []byte) []byte {
	dst = append(dst, c.timeout...)
	return append(dst, c.stats...)
}

// The functions below read what stands at i, and return where it ends.

// flush writes the run up to i. The next one begins at next.
func (c *Canon) flush(i, next int) {
	c.out = append(c.out, c.in[c.run:i]...)
	c.run = next
}

// space skips the white space at i. It is called where a byte says that there may be some.
func (c *Canon) space(i int) int {
	if end := skipSpaces(c.in, i); end > i {
		c.flush(i, end)
		return end
	}
	return i
}

func (c *Canon) document() NotCanonical {
	in := c.in
	if len(in) == 0 {
		c.out = append(c.out, "{}"...)
		return 0
	}
	i := skipSpace(in, 0)
	if i == len(in) {
		return NotJSON
	}
	if in[i] != '{' {
		if end, ok := skipValue(in, i); !ok || skipSpace(in, end) != len(in) {
			return NotJSON
		}
		return NotObject
	}
	c.run = i
	i, fault := c.object(i, placeTop, false)
	if fault != 0 {
		return fault
	}
	if skipSpace(in, i) != len(in) {
		return TrailingData
	}
	c.flush(i, i)
	return 0
}

// value reads the value at i. ordered says that the objects in it keep the order of their members.
func (c *Canon) value(i int, p place, ordered bool) (int, NotCanonical) {
	if i >= len(c.in) {
		return i, NotJSON
	}
	switch c.in[i] {
	case '{':
		return c.object(i, p, ordered)
	case '[':
		return c.array(i, p, ordered)
	case '"':
		if end := skipPlain(c.in, i+1); c.timeless && end < len(c.in) && c.in[end] == '"' {
			return end + 1, 0
		}
		text, i, fault := c.text(i)
		if fault == 0 && !c.timeless {
			c.facts |= textFacts(p, text)
		}
		return i, fault
	}
	end, ok := skipScalar(c.in, i)
	if !ok {
		return i, NotJSON
	}
	return end, 0
}

func (c *Canon) array(i int, p place, ordered bool) (int, NotCanonical) {
	if c.depth++; c.depth > maxDepth {
		return i, TooDeep
	}
	in := c.in
	if i++; i < len(in) && in[i] <= ' ' {
		i = c.space(i)
	}
	if i < len(in) && in[i] == ']' {
		c.depth--
		return i + 1, 0
	}
	for {
		var fault NotCanonical
		if i, fault = c.value(i, p, ordered); fault != 0 {
			return i, fault
		}
		if i < len(in) && in[i] <= ' ' {
			i = c.space(i)
		}
		if i == len(in) || in[i] != ',' && in[i] != ']' {
			return i, NotJSON
		}
		if in[i] == ']' {
			c.depth--
			return i + 1, 0
		}
		if i++; i < len(in) && in[i] <= ' ' {
			i = c.space(i)
		}
	}
}

func (c *Canon) object(i int, p place, ordered bool) (int, NotCanonical) {
	if c.depth++; c.depth > maxDepth {
		return i, TooDeep
	}
	in, base := c.in, len(c.members)
	if i++; i < len(in) && in[i] <= ' ' {
		i = c.space(i)
	}
	if i < len(in) && in[i] == '}' {
		c.facts |= missing(p, 0)
		c.depth--
		return i + 1, 0
	}
	sorted, whole := true, true // no member stands before a lesser one; none was left out
	var last []byte             // name of the member before, and lastHead its head
	var lastHead uint64
	var kept rivals   // names seen that set the same thing
	var seen required // members seen that the place asks for
	for {
		if i == len(in) || in[i] != '"' {
			return i, NotJSON
		}
		m := member{start: len(c.out) + i - c.run}
		var key []byte
		var fault NotCanonical
		if end := skipPlain(in, i+1); end < len(in) && in[end] == '"' {
			key, i = in[i+1:end], end+1
		} else if key, i, fault = c.text(i); fault != 0 {
			return i, fault
		}
		m.keyEnd = len(c.out) + i - c.run
		if short := headLen - len(key); short <= 0 {
			m.head = binary.BigEndian.Uint64(key)
		} else if at := i - 1 - len(key); c.run <= at && at+headLen <= len(in) {
			m.head = binary.BigEndian.Uint64(in[at:]) >> (8 * short) << (8 * short) // as headOf, in one piece
		} else {
			m.head = headOf(key)
		}
		w := wordOf(key, m.head)
		next := w.steps[p]
		c.facts |= next.says.set()
		if w.name == "" {
			c.facts |= unknownFacts(p, key)
		}
		if kept&w.rival != 0 {
			ordered = true
		}
		kept |= w.rival

		if i < len(in) && in[i] <= ' ' {
			i = c.space(i)
		}
		if i == len(in) || in[i] != ':' {
			return i, NotJSON
		}
		if i++; i < len(in) && in[i] <= ' ' {
			i = c.space(i)
		}
		if next.to == placeTermsField && i < len(in) && in[i] == '{' {
			c.facts |= saysForeign.set()
		}
		if i, fault = c.value(i, next.to, ordered || w.ordered); fault != 0 {
			return i, fault
		}
		m.end = len(c.out) + i - c.run

		drop := false
		if judged[p] {
			c.flush(i, i)
			value := c.out[m.keyEnd+1:]
			seen |= c.judge(p, key, value)
			if drop, fault = c.drop(p, key, value, c.out[m.start:]); fault != 0 {
				return i, fault
			}
		}
		if drop {
			c.out, whole = c.out[:m.start], false
		} else {
			if len(c.members) == maxMembers {
				return i, TooManyMembers
			}
			if sorted && len(c.members) > base && lastHead >= m.head {
				sorted = lastHead == m.head && bytes.Compare(last, key) < 0
			}
			c.members = append(c.members, m)
			last, lastHead = key, m.head
		}

		if i < len(in) && in[i] <= ' ' {
			i = c.space(i)
		}
		if i == len(in) || in[i] != ',' && in[i] != '}' {
			return i, NotJSON
		}
		if in[i] == '}' {
			break
		}
		if i++; drop {
			c.run = i // its comma goes too
		}
		if i < len(in) && in[i] <= ' ' {
			i = c.space(i)
		}
	}
	c.facts |= missing(p, seen)
	if !sorted || !whole {
		c.flush(i, i+1)
		if !whole {
			c.out = bytes.TrimSuffix(c.out, comma) // if the last member was left out
		}
		c.out = append(c.out, '}')
		if !sorted {
			if fault := c.sort(base, ordered); fault != 0 {
				return i, fault
			}
		}
	}
	c.members = c.members[:base]
	c.depth--
	return i + 1, 0
}

var comma = []byte{','}

// fewMembers is the size up to which moving members one place at a time is the fastest way to sort them.
const fewMembers = 12

// sort refuses two members of one name among those from base on, and puts them in order unless their order is kept.
func (c *Canon) sort(base int, keep bool) NotCanonical {
	out := c.out
	members := c.members[base:]
	start, end := members[0].start, members[len(members)-1].end
	first, last := 0, len(members)-1 // the members that change places are among these
	if len(members) <= fewMembers {
		first, last = last, first
		for n := 1; n < len(members); n++ {
			m, at := members[n], n
			for ; at > 0; at-- {
				order := compareMembers(out, &members[at-1], &m)
				if order == 0 {
					return DuplicateKey
				}
				if order < 0 {
					break
				}
				members[at] = members[at-1]
			}
			if at < n {
				members[at] = m
				first, last = min(first, at), n
			}
		}
	} else {
		slices.SortFunc(members, func(a, b member) int { return compareMembers(out, &a, &b) })
		for i := 1; i < len(members); i++ {
			if compareMembers(out, &members[i-1], &members[i]) == 0 {
				return DuplicateKey
			}
		}
	}
	if keep {
		return 0
	}
	if first > 0 {
		start = members[first-1].end + 1
	}
	if last < len(members)-1 {
		end = members[last+1].start - 1
	}
	scratch := c.scratch[:0]
	for i := range members[first : last+1] {
		m := &members[first+i]
		scratch = append(scratch, out[m.start:m.end+1]...) // with what stands behind it, a comma but for the last
		scratch[len(scratch)-1] = ','
	}
	copy(out[start:end], scratch)
	c.scratch = scratch
	return 0
}

// compareMembers compares by name.
func compareMembers(out []byte, a, b *member) int {
	if a.head != b.head {
		return cmp.Compare(a.head, b.head)
	}
	return bytes.Compare(out[a.start+1:a.keyEnd-1], out[b.start+1:b.keyEnd-1])
}

// drop sets the member aside if it is one that changes no complete answer. One whose value Elasticsearch would refuse
// stays, or a warm cache would answer what a node answers with 400.
func (c *Canon) drop(p place, key, value, whole []byte) (bool, NotCanonical) {
	if p != placeTop {
		return false, 0
	}
	switch string(key) {
	case "timeout":
		if c.sawTimeout {
			return false, DuplicateKey
		}
		c.sawTimeout = true
		if len(value) > 2 && value[0] == '"' && isDuration(value[1:len(value)-1]) {
			c.timeout = append(append(c.timeout, whole...), ',')
			return true, 0
		}
	case "stats":
		if c.sawStats {
			return false, DuplicateKey
		}
		c.sawStats = true
		if value[0] == '[' && !bytes.ContainsAny(value[1:], "[{") {
			c.stats = append(append(c.stats, whole...), ',')
			return true, 0
		}
	}
	return false, 0
}

// text reads the string at i and gives its escapes one spelling: \" and \\, \u00xx for control characters, and everything
// else as it is. It returns the string in that spelling, without quotes, valid until more is written.
func (c *Canon) text(i int) (text []byte, end int, fault NotCanonical) {
	in := c.in
	start, at := i, len(c.out)+i-c.run
	i = skipPlain(in, i+1)
	for {
		if i == len(in) {
			return nil, i, NotJSON
		}
		switch b := in[i]; {
		case b == '"':
			if c.run <= start {
				return in[start+1 : i], i + 1, 0
			}
			c.flush(i+1, i+1)
			return c.out[at+1 : len(c.out)-1], i + 1, 0
		case b == '\\':
			c.flush(i, i)
			var n int
			if c.out, n, fault = appendEscape(c.out, in[i:]); fault != 0 {
				return nil, i, fault
			}
			i += n
			c.run = i
		case b >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(in[i:])
			if r == utf8.RuneError && n == 1 {
				return nil, i, BadText
			}
			i += n
		default:
			return nil, i, NotJSON
		}
		i = skipPlain(in, i)
	}
}

// appendEscape writes the character that the escape sequence at the beginning of s stands for, and returns the length of
// the sequence.
func appendEscape(out, s []byte) ([]byte, int, NotCanonical) {
	if len(s) < 2 {
		return out, 0, NotJSON
	}
	switch s[1] {
	case '"', '\\':
		out = append(out, '\\', s[1])
	case '/':
		out = append(out, '/')
	case 'b':
		out = append(out, `\u0008`...)
	case 'f':
		out = append(out, `\u000c`...)
	case 'n':
		out = append(out, `\u000a`...)
	case 'r':
		out = append(out, `\u000d`...)
	case 't':
		out = append(out, `\u0009`...)
	case 'u':
		return appendUnicode(out, s)
	default:
		return out, 0, NotJSON
	}
	return out, 2, 0
}

func appendUnicode(out, s []byte) ([]byte, int, NotCanonical) {
	r, ok := hex4(s, 2)
	if !ok {
		return out, 0, NotJSON
	}
	n := 6
	if 0xd800 <= r && r < 0xe000 {
		if r >= 0xdc00 || len(s) < 12 || s[6] != '\\' || s[7] != 'u' {
			return out, 0, BadText
		}
		low, ok := hex4(s, 8)
		if !ok || low < 0xdc00 || low >= 0xe000 {
			return out, 0, BadText
		}
		r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
		n = 12
	}
	switch {
	case r == '"' || r == '\\':
		return append(out, '\\', byte(r)), n, 0
	case r < ' ':
		const digits = "0123456789abcdef"
		return append(out, '\\', 'u', '0', '0', digits[r>>4], digits[r&15]), n, 0
	}
	return utf8.AppendRune(out, r), n, 0
}
