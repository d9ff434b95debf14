package conf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Severity tells whether a problem keeps a configuration from being used.
type Severity uint8

// The severities. The zero value is Error, so that a problem is one unless it says otherwise.
const (
	Error   Severity = iota // the configuration cannot be used
	Warning                 // the configuration works, but probably not for ever or not as meant
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// Codes of the problems that this package finds, for programs that read the JSON form.
const (
	CodeAlias           = "alias"             // an old name of a field was used
	CodeClearText       = "clear-text-secret" // a secret stands in the file itself
	CodeConflict        = "conflict"          // a value is given twice
	CodeDeprecated      = "deprecated"        // a deprecated field was used
	CodeDuplicateKey    = "duplicate-key"     // a key stands twice in one map
	CodeEnum            = "enum"              // a value is not one of those allowed
	CodeInclude         = "include"           // an include cannot be followed
	CodeLimit           = "limit"             // a file is too large, too deep, or expands to too much
	CodeMissingField    = "missing-field"     // a required field is absent
	CodeRange           = "out-of-range"      // a number is below its minimum or above its maximum
	CodeRead            = "read"              // a file cannot be read
	CodeSyntax          = "syntax"            // a file is not YAML
	CodeUnknownField    = "unknown-field"     // a field does not exist
	CodeUnsetVariable   = "unset-variable"    // a variable has no value
	CodeUnknownVariable = "unknown-variable"  // a variable reference cannot be understood
	CodeValue           = "value"             // a value has the right type and cannot be understood
	CodeWrongType       = "wrong-type"        // a value has the wrong type
)

// Pos is a place in a file. Line and Col count from 1, Col in characters; a Line of 0 means the file as a whole, an empty
// File no place at all.
type Pos struct {
	File      string
	Line, Col int

	from *Pos // where the file was included, nil for a file that was named by the caller
}

// IncludedFrom returns the place of the include that brought the file in, and false for a file that was named directly.
func (p Pos) IncludedFrom() (Pos, bool) {
	if p.from == nil {
		return Pos{}, false
	}
	return *p.from, true
}

// String returns "file:line:col", or less of it where less is known.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}

func (p Pos) compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Col, q.Col))
}

// A Problem is one mistake in a configuration.
type Problem struct {
	Pos
	Severity
	Where      string // what the place belongs to, in the user's words: "flow search: rate_limit: rules[0]"
	Message    string // what is wrong and, where it is short, the way out
	Suggestion string // the word that was probably meant, or empty
	Code       string // one of the Code constants, or one of the caller's
}

// String returns the problem as one line:
// gateway.yml:42:7: flow search: rate_limit: unknown field "brust"; did you mean "burst"?
func (q Problem) String() string {
	var b strings.Builder
	if q.File != "" {
		b.WriteString(q.Pos.String())
		for from := q.from; from != nil; from = from.from {
			fmt.Fprintf(&b, " (included from %s)", from)
		}
		b.WriteString(": ")
	}
	if q.Severity == Warning {
		b.WriteString("warning: ")
	}
	if q.Where != "" {
		b.WriteString(q.Where)
		b.WriteString(": ")
	}
	b.WriteString(q.Message)
	if q.Suggestion != "" {
		fmt.Fprintf(&b, "; did you mean %q?", q.Suggestion)
	}
	return b.String()
}

// MarshalJSON writes the problem as an object; members without a value are left out.
func (q Problem) MarshalJSON() ([]byte, error) {
	var from string
	if q.from != nil {
		from = q.from.String()
	}
	return json.Marshal(struct {
		Severity     string `json:"severity"`
		File         string `json:"file,omitempty"`
		Line         int    `json:"line,omitempty"`
		Column       int    `json:"column,omitempty"`
		IncludedFrom string `json:"included_from,omitempty"`
		Where        string `json:"where,omitempty"`
		Message      string `json:"message"`
		Suggestion   string `json:"suggestion,omitempty"`
		Code         string `json:"code,omitempty"`
	}{q.Severity.String(), q.File, q.Line, q.Col, from, q.Where, q.Message, q.Suggestion, q.Code})
}

// Problems collects what is wrong with a configuration. The zero value is ready. It is not safe for concurrent use.
type Problems struct {
	where string
	path  string    // of fields, below where
	root  *Problems // the collector that In was called on first; nil in that one itself

	elsewhere func(field string) string // see Elsewhere
	list      []*Problem
}

// In returns a collector that adds to p and puts where in front of every Where: p.In("flow search").In("rate_limit").
func (p *Problems) In(where string) *Problems {
	return &Problems{where: joinWhere(joinWhere(p.where, p.path), where), root: p.collector()}
}

// Elsewhere returns a collector like p for decoding one value. When that has a field that is unknown and resembles none,
// hint may tell where such a field belongs: what it returns stands behind the message.
func (p *Problems) Elsewhere(hint func(field string) string) *Problems {
	return &Problems{where: p.where, path: p.path, root: p.collector(), elsewhere: hint}
}

// at returns a collector for a field, as ".name", or an item, as "[0]", of the value that p is for.
func (p *Problems) at(step string) *Problems {
	path := p.path + step
	if p.path == "" {
		path = strings.TrimPrefix(step, ".")
	}
	return &Problems{where: p.where, path: path, root: p.collector()}
}

func (p *Problems) collector() *Problems {
	if p.root != nil {
		return p.root
	}
	return p
}

func joinWhere(outer, inner string) string {
	if outer == "" || inner == "" {
		return outer + inner
	}
	return outer + ": " + inner
}

// Add adds q, with the Where of p in front of its own, and returns the problem as kept, so that it can be completed.
func (p *Problems) Add(q Problem) *Problem {
	q.Where = joinWhere(joinWhere(p.where, p.path), q.Where)
	root := p.collector()
	root.list = append(root.list, &q)
	return &q
}

// Errorf adds an error at n, which may be nil when there is no place. The result can be given a Suggestion and a Code.
func (p *Problems) Errorf(n *Node, format string, args ...any) *Problem {
	return p.Add(Problem{Pos: n.Pos(), Message: fmt.Sprintf(format, args...)})
}

// Warnf adds a warning at n, which may be nil when there is no place.
func (p *Problems) Warnf(n *Node, format string, args ...any) *Problem {
	return p.Add(Problem{Pos: n.Pos(), Severity: Warning, Message: fmt.Sprintf(format, args...)})
}

// Follow calls check, which looks further at what was decoded from whole with mistakes, and forgets what it reports that
// may only follow from them: about whole in general, without a place, or at a place that was spoken of before. What is
// left stands in the configuration and is wrong by itself.
func (p *Problems) Follow(whole *Node, check func()) {
	root := p.collector()
	said := map[Pos]bool{whole.Pos(): true}
	for _, q := range root.list {
		said[q.Pos] = said[q.Pos] || q.Severity == Error
	}
	before := len(root.list)
	check()
	found := slices.DeleteFunc(root.list[before:], func(q *Problem) bool { return q.Line == 0 || said[q.Pos] })
	root.list = root.list[:before+len(found)]
}

// Incomplete tells whether a part of the configuration could not be read at all, so that what is missing may stand there: a
// file, or a section that has the wrong name or shape.
func (p *Problems) Incomplete() bool {
	return slices.ContainsFunc(p.collector().list, func(q *Problem) bool {
		switch q.Code {
		case CodeRead, CodeSyntax, CodeInclude, CodeLimit:
			return true
		case CodeUnknownField, CodeWrongType:
			return q.Where == ""
		}
		return false
	})
}

// Sorted returns the problems by file, line and column. What an anchor repeats at every use is reported once.
func (p *Problems) Sorted() []Problem {
	root := p.collector()
	type identity struct {
		pos     Pos
		message string
	}
	seen := make(map[identity]bool, len(root.list))
	sorted := make([]Problem, 0, len(root.list))
	for _, q := range root.list {
		id := identity{q.Pos, q.Message}
		if q.Line > 0 && seen[id] {
			continue
		}
		seen[id] = true
		sorted = append(sorted, *q)
	}
	slices.SortStableFunc(sorted, func(a, b Problem) int { return a.Pos.compare(b.Pos) })
	return sorted
}

// Count returns the numbers of errors and warnings.
func (p *Problems) Count() (errs, warnings int) {
	for _, q := range p.Sorted() {
		if q.Severity == Warning {
			warnings++
		} else {
			errs++
		}
	}
	return errs, warnings
}

// HasErrors tells whether there is a problem that is more than a warning.
func (p *Problems) HasErrors() bool {
	return slices.ContainsFunc(p.collector().list, func(q *Problem) bool { return q.Severity == Error })
}

// Err returns all errors, one a line, as one error, or nil when there are none. Warnings are left out.
func (p *Problems) Err() error {
	var lines []string
	for _, q := range p.Sorted() {
		if q.Severity == Error {
			lines = append(lines, q.String())
		}
	}
	if lines == nil {
		return nil
	}
	return errors.New(strings.Join(lines, "\n"))
}

// WriteText writes the problems in order, one a line.
func (p *Problems) WriteText(w io.Writer) error {
	for _, q := range p.Sorted() {
		if _, err := fmt.Fprintln(w, q); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes the problems in order, as an array of objects.
func (p *Problems) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(p.Sorted())
}
