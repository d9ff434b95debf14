package conf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind is the shape of a node.
type Kind uint8

// The kinds of nodes.
const (
	Missing Kind = iota // there is no such node: the kind of a nil *Node
	Null                // a key without a value, or null
	Scalar              // text, a number or a boolean
	List
	Map
)

// String returns the kind as messages name it.
func (k Kind) String() string {
	return [...]string{"nothing", "null", "scalar", "list", "map"}[k]
}

// A Node is a part of a configuration with its place. Nodes do not change. Every method works on nil, which is the node
// that is not there.
type Node struct {
	kind    Kind
	pos     Pos
	text    string // scalar: the text after variables were filled in
	written string // scalar: the text as it stands in the file
	plain   bool   // scalar: neither quoted nor tagged as a string, so that it may be a number or a boolean
	whole   bool   // scalar: one variable and nothing else, so that quotes, which some places need, say nothing
	filled  bool   // scalar: text has the value of a variable in it
	broken  bool   // there is a problem about n itself already, and nothing more is to be said about its value
	members []member
	items   []*Node
	files   []string
}

type member struct {
	key   string
	pos   Pos
	value *Node
}

// Kind returns the shape of n.
func (n *Node) Kind() Kind {
	if n == nil {
		return Missing
	}
	return n.kind
}

// IsZero tells whether n holds no value: it is missing or null.
func (n *Node) IsZero() bool { return n.Kind() <= Null }

// Pos returns the place of n: of a scalar its first character, of a map its first key.
func (n *Node) Pos() Pos {
	if n == nil {
		return Pos{}
	}
	return n.pos
}

// Scalar returns the text of a scalar, with variables filled in, and "" for every other kind.
func (n *Node) Scalar() string {
	if n == nil {
		return ""
	}
	return n.text
}

// Plain tells whether n is a scalar without quotes, or one variable in quotes. Only such a one may be read as a number or
// a boolean.
func (n *Node) Plain() bool { return n != nil && n.kind == Scalar && (n.plain || n.whole) }

// FromVariable tells whether the text of n was filled in from a variable, at least in part. Such text is not to be shown.
func (n *Node) FromVariable() bool { return n != nil && n.filled }

// Broken tells whether a problem about n itself has been reported, such as a variable without a value, so that nothing more
// is to be said about what n holds.
func (n *Node) Broken() bool { return n != nil && n.broken }

// Len returns the number of items of a list or of keys of a map, and 0 for other kinds.
func (n *Node) Len() int {
	if n == nil {
		return 0
	}
	return len(n.items) + len(n.members)
}

// Items returns the items of a list. The caller must not change the slice.
func (n *Node) Items() []*Node {
	if n == nil {
		return nil
	}
	return n.items
}

// Keys returns the keys of a map in the order of the file.
func (n *Node) Keys() []string {
	if n == nil {
		return nil
	}
	keys := make([]string, len(n.members))
	for i := range n.members {
		keys[i] = n.members[i].key
	}
	return keys
}

// Get returns the value of a key of a map, or nil.
func (n *Node) Get(key string) *Node {
	if i := n.find(key); i >= 0 {
		return n.members[i].value
	}
	return nil
}

// At returns the node to speak of when a field is wrong: the value of the first of its names that is given, or, where none
// is, what it would stand in. A name with dots is a path, which may be written in maps or with the dots.
func (n *Node) At(names ...string) *Node {
	for _, name := range names {
		if v := n.Get(name); v != nil {
			return v
		}
		if head, tail, dotted := strings.Cut(name, "."); dotted {
			if v := n.Get(head); v != nil {
				return v.At(tail)
			}
		}
	}
	return n
}

// Item returns the i-th item of a list, and n itself if it is no list: one value may stand for a list of one.
func (n *Node) Item(i int) *Node {
	if n.Kind() == List && i < len(n.items) {
		return n.items[i]
	}
	return n
}

// KeyPos returns the place of a key of a map, and the place of n when there is no such key.
func (n *Node) KeyPos(key string) Pos {
	if i := n.find(key); i >= 0 {
		return n.members[i].pos
	}
	return n.Pos()
}

func (n *Node) find(key string) int {
	if n == nil {
		return -1
	}
	return slices.IndexFunc(n.members, func(m member) bool { return m.key == key })
}

// places returns the indices of the keys, where many are looked up.
func (n *Node) places() map[string]int {
	places := make(map[string]int, len(n.members))
	for i := range n.members {
		places[n.members[i].key] = i
	}
	return places
}

// Without returns a map like n that lacks the given keys. Nodes of other kinds are returned as they are.
func (n *Node) Without(keys ...string) *Node {
	if n.Kind() != Map {
		return n
	}
	rest := *n
	rest.members = slices.DeleteFunc(slices.Clone(n.members), func(m member) bool { return slices.Contains(keys, m.key) })
	return &rest
}

// Files returns, for a node that Load returned, every file that was read or was to be read, and the pattern of every
// include, in the order of reading. It is what a Watcher should look at.
func (n *Node) Files() []string {
	if n == nil {
		return nil
	}
	return slices.Clone(n.files)
}

// Any returns n as plain values: nil, bool, int64, float64, string, []any or map[string]any.
func (n *Node) Any() any {
	switch n.Kind() {
	case Scalar:
		if n.plain {
			if b, ok := n.boolean(); ok {
				return b
			}
			if i, err := strconv.ParseInt(n.text, 10, 64); err == nil {
				return i
			}
			if looksNumeric(n.text) {
				f, _ := strconv.ParseFloat(n.text, 64)
				return f
			}
		}
		return n.text
	case List:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = item.Any()
		}
		return list
	case Map:
		object := make(map[string]any, len(n.members))
		for _, m := range n.members {
			object[m.key] = m.value.Any()
		}
		return object
	}
	return nil
}

func (n *Node) boolean() (value, ok bool) {
	if !n.Plain() {
		return false, false
	}
	return n.text == "true", n.text == "true" || n.text == "false"
}

// found describes n for a message that says what stands where something else was wanted.
func (n *Node) found() string {
	switch n.Kind() {
	case Missing, Null:
		return "nothing"
	case List, Map:
		return "a " + n.kind.String()
	}
	what := "the string"
	if n.plain {
		if _, ok := n.boolean(); ok {
			what = "the boolean"
		} else if looksNumeric(n.text) {
			what = "the number"
		}
	}
	return what + " " + n.Quoted()
}

// Quoted returns the text of a scalar for a message: as it stands in the file, so that what came from a variable is not
// shown, and not more of it than fits on a line.
func (n *Node) Quoted() string {
	const most = 60
	text := n.written
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	if n.FromVariable() {
		return fmt.Sprintf("that %s stands for", text)
	}
	return strconv.Quote(text)
}

func looksNumeric(s string) bool {
	digits := strings.TrimLeft(s, "+-")
	if digits == "" || digits[0] != '.' && (digits[0] < '0' || digits[0] > '9') {
		return false
	}
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}
