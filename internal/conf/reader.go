package conf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// A reader turns YAML into nodes: it follows aliases and merge keys, fills in variables and refuses what has no clear
// meaning. One reader reads all files of a configuration, since its node limit is for all of them.
type reader struct {
	problems  *Problems
	lookupEnv func(string) (string, bool)
	defaults  map[string]string // of variables that are not set, from the sections env
	nodes     int
	stopped   bool                // since a limit was passed
	file      Pos                 // of the file being read, without a line
	text      []byte              // of the file being read
	following map[*yaml.Node]bool // the anchors that are being followed
}

func newReader(lookupEnv func(string) (string, bool), p *Problems) *reader {
	if lookupEnv == nil {
		lookupEnv = os.LookupEnv
	}
	return &reader{problems: p, lookupEnv: lookupEnv, defaults: map[string]string{}}
}

// limits implements yaml.LoaderLimitsPlugin. Aliases are counted when they are followed, not when they are parsed.
type limits struct{}

func (limits) CheckDepth(depth int, _ *yaml.DepthContext) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	return nil
}

func (limits) CheckAlias(int, int) error { return nil }

var _ yaml.LoaderLimitsPlugin = limits{}

// read parses one file. It returns nil where there is nothing in it, and where it is not YAML.
func (r *reader) read(file Pos, text []byte) *Node {
	r.file, r.text, r.following = file, text, make(map[*yaml.Node]bool)
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithPlugin(limits{}))
	if err != nil {
		r.fail(file, CodeSyntax, "%v", err)
		return nil
	}
	var first, second yaml.Node
	if err := loader.Load(&first); err != nil {
		r.syntax(err)
		return nil
	}
	if err := loader.Load(&second); err == nil {
		r.fail(r.pos(&second), CodeSyntax, "a second document begins here; a file may have one")
	} else {
		r.syntax(err)
	}
	if len(first.Content) == 0 {
		return nil
	}
	r.noteDefaults(first.Content[0])
	return r.node(first.Content[0], 0)
}

// noteDefaults takes the section env at the top of a file: what variables hold that are not set in the environment. The
// first file that names a variable wins.
func (r *reader) noteDefaults(root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		section := root.Content[i+1]
		if root.Content[i].Value != envSection || section.Kind != yaml.MappingNode {
			continue
		}
		for j := 0; j+1 < len(section.Content); j += 2 {
			name, value := section.Content[j], section.Content[j+1]
			switch _, known := r.defaults[name.Value]; {
			case !isName(name.Value) || name.Value == "":
				r.fail(r.pos(name), CodeUnknownVariable, "%q cannot be the name of a variable", name.Value)
			case value.Kind != yaml.ScalarNode:
				r.fail(r.pos(value), CodeWrongType, "the default of a variable is a text or a number")
			case !known:
				r.defaults[name.Value] = value.Value
			}
		}
	}
}

// envSection is the key, at the top of a file, of the defaults of variables.
const envSection = "env"

func (r *reader) fail(pos Pos, code, format string, args ...any) {
	r.problems.Add(Problem{Pos: pos, Code: code, Message: fmt.Sprintf(format, args...)})
}

func (r *reader) pos(y *yaml.Node) Pos {
	pos := r.file
	pos.Line, pos.Col = y.Line, y.Column
	return pos
}

// syntax reports what the parser said, which is nothing at the end of a file.
func (r *reader) syntax(err error) {
	var (
		many *yaml.LoadErrors
		one  *yaml.LoadError
	)
	switch {
	case errors.Is(err, io.EOF):
	case errors.As(err, &many):
		for _, e := range many.Errors {
			r.syntaxAt(e)
		}
	case errors.As(err, &one):
		r.syntaxAt(one)
	default:
		r.fail(r.file, CodeSyntax, "%v", err)
	}
}

func (r *reader) syntaxAt(e *yaml.LoadError) {
	pos := r.file
	pos.Line, pos.Col = e.Mark.Line, e.Mark.Column
	message := e.Message
	if pos.Line == 0 {
		pos.Line, pos.Col = unreadable(r.text)
	}
	if e.ContextMsg != "" {
		message += " " + e.ContextMsg
		if e.ContextMark.Line > 0 && e.ContextMark.Line != e.Mark.Line {
			message += fmt.Sprintf(" that begins at line %d", e.ContextMark.Line)
		}
	}
	const spaces = "; YAML is indented with spaces, not with tabs"
	switch {
	case e.Message == "did not find expected key" || e.Message == "did not find expected '-' indicator":
		message += "; is the line indented like those that it belongs to?"
	case strings.HasPrefix(e.Message, "found a tab character"):
		message = "found a tab" + spaces
	case strings.HasPrefix(e.Message, "found character that cannot start any token") && bytes.Contains(r.text, []byte("\t")):
		message += spaces
	}
	r.fail(pos, CodeSyntax, "%s", message)
}

// unreadable returns the place of the first thing in text that is no character of YAML, which the parser names without
// its place, or nothing where there is none.
func unreadable(text []byte) (line, col int) {
	line, col = 1, 1
	for len(text) > 0 {
		c, size := utf8.DecodeRune(text)
		switch {
		case c == '\n':
			line, col = line+1, 0
		case c == utf8.RuneError && size == 1 || c < ' ' && c != '\t' && c != '\r' || c == 0x7f:
			return line, col
		}
		text = text[size:]
		col++
	}
	return 0, 0
}

// node converts y. It returns nil once a limit has been passed, which has been reported then: where one is, there are
// mostly many, and a hundred thousand values are no place to go on from.
func (r *reader) node(y *yaml.Node, depth int) *Node {
	r.nodes++
	switch {
	case r.stopped:
		return nil
	case r.nodes > maxNodes:
		r.fail(r.pos(y), CodeLimit, "the configuration expands to more than %d values", maxNodes)
		r.stopped = true
		return nil
	case depth > maxDepth:
		r.fail(r.pos(y), CodeLimit, "nested deeper than %d", maxDepth)
		r.stopped = true
		return nil
	}
	switch y.Kind {
	case yaml.AliasNode:
		if r.following[y.Alias] {
			return r.refuse(y, CodeLimit, "the anchor %q contains itself", y.Value)
		}
		r.following[y.Alias] = true
		defer delete(r.following, y.Alias)
		return r.node(y.Alias, depth+1)
	case yaml.SequenceNode:
		if y.Tag != "!!seq" {
			return r.refuse(y, CodeSyntax, "the tag %s has no meaning here", y.Tag)
		}
		list := &Node{kind: List, pos: r.pos(y), items: make([]*Node, 0, len(y.Content))}
		for _, item := range y.Content {
			if n := r.node(item, depth+1); n != nil {
				list.items = append(list.items, n)
			}
		}
		return list
	case yaml.MappingNode:
		if y.Tag != "!!map" {
			return r.refuse(y, CodeSyntax, "the tag %s has no meaning here", y.Tag)
		}
		return r.mapping(y, depth)
	}
	return r.scalar(y)
}

// refuse reports a value that cannot be used and returns a node that nothing more will be said about.
func (r *reader) refuse(y *yaml.Node, code, format string, args ...any) *Node {
	r.fail(r.pos(y), code, format, args...)
	return &Node{kind: Null, pos: r.pos(y), broken: true}
}

func (r *reader) mapping(y *yaml.Node, depth int) *Node {
	n := &Node{kind: Map, pos: r.pos(y)}
	places := make(map[string]int, len(y.Content)/2)
	var merged []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if isMerge(k) {
			merged = append(merged, v)
			continue
		}
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode || k.Tag == "!!null" {
			r.fail(r.pos(y.Content[i]), CodeSyntax, "a key must be a word")
			continue
		}
		key := member{k.Value, r.pos(y.Content[i]), nil}
		if first, twice := places[key.key]; twice {
			before := n.members[first].pos
			r.fail(key.pos, CodeDuplicateKey, "the key %q stands twice; the first is at line %d, column %d", key.key, before.Line, before.Col)
			continue
		}
		if key.value = r.node(v, depth+1); key.value == nil {
			return n
		}
		places[key.key] = len(n.members)
		n.members = append(n.members, key)
	}
	for _, v := range merged {
		r.mergeKey(n, places, v, depth)
	}
	return n
}

func isMerge(k *yaml.Node) bool {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return k.Kind == yaml.ScalarNode && k.Value == "<<" && k.Style&quoted == 0 && k.Tag != "!!str"
}

// mergeKey adds to n what the merge key with the value y brings. Keys that are there already win.
func (r *reader) mergeKey(n *Node, places map[string]int, y *yaml.Node, depth int) {
	source := r.node(y, depth+1)
	maps := []*Node{source}
	if source.Kind() == List {
		maps = source.items
	}
	for _, from := range maps {
		if from.Kind() != Map {
			if from != nil && !from.broken {
				r.problems.Errorf(from, "want a map or a list of maps to merge, found %s", from.found()).Code = CodeWrongType
			}
			continue
		}
		for _, m := range from.members {
			if _, own := places[m.key]; !own {
				places[m.key] = len(n.members)
				n.members = append(n.members, m)
			}
		}
	}
}

func (r *reader) scalar(y *yaml.Node) *Node {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	n := &Node{kind: Scalar, pos: r.pos(y), text: y.Value, written: y.Value, plain: y.Style&quoted == 0 && y.Tag != "!"}
	if y.Style&yaml.TaggedStyle != 0 {
		switch y.Tag {
		case "!!str":
			n.plain = false
		case "!!int", "!!float", "!!bool", "!!null":
			n.plain = true
		default:
			return r.refuse(y, CodeSyntax, "the tag %s has no meaning here", y.Tag)
		}
	}
	if n.plain && y.Tag == "!!null" {
		return &Node{kind: Null, pos: n.pos}
	}
	r.expand(n)
	n.whole = y.Style&yaml.TaggedStyle == 0 && isVariable(n.written)
	return n
}

// isVariable tells whether text is the reference of one variable and nothing else.
func isVariable(text string) bool {
	name, braces := strings.CutPrefix(text, "${")
	if braces {
		name, braces = strings.CutSuffix(name, "}")
		return braces && isName(name)
	}
	name, brackets := strings.CutPrefix(text, "$[[env.")
	name, closed := strings.CutSuffix(name, "]]")
	return brackets && closed && isName(name)
}

// expand fills in the variables in a scalar. The text of a variable is taken as it is: it is not looked at for variables,
// and it cannot become anything but the text of this scalar.
func (r *reader) expand(n *Node) {
	var b strings.Builder
	rest := n.written
	for {
		i := strings.IndexByte(rest, '$')
		if i < 0 {
			break
		}
		b.WriteString(rest[:i])
		rest = rest[i:]
		switch {
		case strings.HasPrefix(rest, "$${") || strings.HasPrefix(rest, "$$[["):
			b.WriteString("$" + rest[2:3])
			rest = rest[3:]
		case strings.HasPrefix(rest, "${"):
			rest = r.variable(n, &b, rest, "${", "}")
		case strings.HasPrefix(rest, "$[["):
			rest = r.variable(n, &b, rest, "$[[", "]]")
		default:
			b.WriteByte('$')
			rest = rest[1:]
		}
	}
	b.WriteString(rest)
	n.text = b.String()
}

// variable writes the text of the variable that rest begins with and returns what comes after it.
func (r *reader) variable(n *Node, b *strings.Builder, rest, open, end string) string {
	inner, after, closed := strings.Cut(rest[len(open):], end)
	name := inner
	if open == "$[[" {
		space, of, _ := strings.Cut(inner, ".")
		switch name = of; {
		case !closed:
		case space == "keystore":
			r.broken(n, CodeUnknownVariable, "there is no keystore; use $[[env.%s]]", of)
			return after
		case space != "env":
			q := r.broken(n, CodeUnknownVariable, "%s%s%s is no variable; write $[[env.NAME]], or $$[[ for the text itself", open, inner, end)
			q.Suggestion, _ = Nearest(space, []string{"env"})
			return after
		}
	}
	switch value, set := r.lookup(name); {
	case !closed:
		r.broken(n, CodeUnknownVariable, "%q has no %q after it; write $%s for the text itself", open, end, open)
	case !isName(name):
		r.broken(n, CodeUnknownVariable, "%s%s%s is no variable: its name may have letters, digits and _; write $%s for the text itself",
			open, inner, end, open)
	case !set:
		r.broken(n, CodeUnsetVariable, "the environment variable %s is not set", name)
	default:
		n.filled = true
		b.WriteString(value)
	}
	return after
}

func (r *reader) broken(n *Node, code, format string, args ...any) *Problem {
	n.broken = true
	q := r.problems.Errorf(n, format, args...)
	q.Code = code
	return q
}

func (r *reader) lookup(name string) (string, bool) {
	if !isName(name) {
		return "", false
	}
	if value, set := r.lookupEnv(name); set {
		return value, true
	}
	value, set := r.defaults[name]
	return value, set
}

func isName(s string) bool {
	for i := range len(s) {
		if !isWord(s[i]) || i == 0 && s[0] <= '9' {
			return false
		}
	}
	return s != ""
}
