// Package bulk reads the bodies of Elasticsearch's _bulk requests and the answers to them: which actions a body holds, where
// each begins and ends, whether the whole may be sent twice, and what became of each.
//
// It is not for checking bodies: documents are never read, and a body that a node would refuse is passed on for the node to
// refuse, unless the one who asks keeps it for later and wants to know from Refusal. It does not decompress. Action lines are read
// as leniently as the nodes do (seen on Elasticsearch 7.17, OpenSearch 2.19 and 3.9), except that comments, which they let stand in
// JSON, are an error here.
//
// What it trades: scanning costs one pass over the bytes and no allocation; answers, which are smaller and rarer on a hot
// path, go through encoding/json.
package bulk

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"weir/elastic/api"
	"weir/internal/wire"
)

// Verb is what an action does.
type Verb uint8

// The verbs. An index action with op_type create is a Create: the nodes treat and answer it as one.
const (
	Other  Verb = iota // none that Elasticsearch knows; OpenSearch refuses the body, Elasticsearch 7.17 skips the action and its line
	Index              // stores a document, replacing an older one
	Create             // stores a document, a conflict if there is one
	Update             // changes a document, by script or in part
	Delete             // removes a document; the only one without a second line
)

var verbNames = [...]string{"other", "index", "create", "update", "delete"}

// String returns the verb as action lines spell it, "other" for unknown ones.
func (v Verb) String() string { return verbNames[v] }

func verbOf(b []byte) Verb {
	switch string(b) {
	case "index":
		return Index
	case "create":
		return Create
	case "update":
		return Update
	case "delete":
		return Delete
	}
	return Other
}

// VerbOfCall returns what a request for one document does, by the name of its API and its raw query, and Other for any other one.
func VerbOfCall(name string, rawQuery []byte) Verb {
	v := verbOf([]byte(name)) // the APIs are called as the actions are
	if v == Index {
		if op, _ := api.QueryValue(rawQuery, "op_type"); string(op) == "create" {
			return Create
		}
	}
	return v
}

// An Action is one action of a body. Its slices are good until the scanner's next step.
type Action struct {
	Verb Verb
	// Index is the decoded _index, nil when the line names none and the one in the URL counts. It may be date math.
	Index []byte
	// ID is the decoded _id, nil when the line has none and the node makes one. A number or true is an id as it is spelled.
	ID []byte
	// Conditional tells that the line names a version or a sequence number, so that a repetition is a conflict.
	Conditional bool
	// Pipeline tells that the line names an ingest pipeline, which may put the document into another index.
	Pipeline bool
	// Source is the document, update or script: the second line without its end. It is nil for a Delete.
	Source   []byte
	versions Versions
	fault    fault // see Refusal
	// Start and End are the byte range of the action in the body, line ends included. Blank lines between actions belong
	// to none.
	Start, End int
}

// Missing returns what a node would find missing in the action: its index, if index, which is that of the URL, does not name one
// either, or the id that an Update and a Delete need. It returns "index", "id" or "".
func (a *Action) Missing(index []byte) string {
	switch {
	case len(a.Index) == 0 && len(index) == 0:
		return "index"
	case len(a.ID) == 0 && (a.Verb == Update || a.Verb == Delete):
		return "id"
	}
	return ""
}

// ErrNoNewline says that a body does not end with a line feed. The nodes refuse such a body as a whole.
var ErrNoNewline = errors.New("bulk body does not end with a line feed")

// A SyntaxError is an action line that cannot be read. What follows it cannot be told apart.
type SyntaxError struct {
	Offset int // of the line in the body
	Reason string
}

// Error tells the offset of the line and what is wrong with it.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("bulk action line at byte %d: %s", e.Offset, e.Reason)
}

// A Scanner steps through the actions of a body. The zero value scans an empty body; Reset gives it another one and keeps its
// memory. It does not allocate, unless an index or id is spelled with escapes for the first time.
//
// As on the nodes, blank lines between actions are skipped, a line may end with CR LF, what follows an action's object in its
// line is ignored, and a last action that lacks its second line is no action.
type Scanner struct {
	body    []byte
	pos     int
	action  Action
	scratch []byte // decoded strings of the action
	err     error
}

// Reset makes s scan body, which must not change while it does.
func (s *Scanner) Reset(body []byte) {
	*s = Scanner{body: body, scratch: s.scratch[:0]}
}

// Next steps to the next action. It returns false at the end and at an error.
func (s *Scanner) Next() bool {
	for s.err == nil && s.pos < len(s.body) {
		start := s.pos
		line, ended := s.line()
		l := lexer{b: bytes.TrimPrefix(line, utf8BOM)}
		if l.peek() == 0 && l.i == len(l.b) {
			if !ended {
				s.err = ErrNoNewline
			}
			continue
		}
		s.action = Action{Start: start}
		s.scratch = s.scratch[:0]
		if reason := s.read(&l); reason != "" {
			s.err = &SyntaxError{start, reason}
			return false
		}
		if s.action.Verb != Delete {
			if s.pos == len(s.body) {
				if !ended {
					s.err = ErrNoNewline
				}
				return false
			}
			line, ended = s.line()
			s.action.Source = bytes.TrimSuffix(line, carriageReturn)
		}
		if !ended {
			s.err = ErrNoNewline // after this action
		}
		s.action.End = s.pos
		return true
	}
	return false
}

// Action returns the action that Next stepped to.
func (s *Scanner) Action() *Action { return &s.action }

// ReadLine reads the line of one action, without its line feed, for those who see a body piece by piece. The action has neither a
// source nor a place in a body, and is good until the scanner's next use. It returns false for a line that cannot be read.
func (s *Scanner) ReadLine(line []byte) (*Action, bool) {
	s.action = Action{}
	s.scratch = s.scratch[:0]
	l := lexer{b: bytes.TrimPrefix(line, utf8BOM)}
	return &s.action, s.read(&l) == ""
}

// Err returns what ended the scan early: a *SyntaxError, or ErrNoNewline, which comes after the last action was given out. It
// is nil at a proper end.
func (s *Scanner) Err() error { return s.err }

var (
	utf8BOM        = []byte("\xef\xbb\xbf")
	carriageReturn = []byte{'\r'}
)

// line takes the next line without its line feed, and tells whether it had one.
func (s *Scanner) line() (line []byte, ended bool) {
	rest := s.body[s.pos:]
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		s.pos += i + 1
		return rest[:i:i], true
	}
	s.pos = len(s.body)
	return rest, false
}

// read fills the action from its line, and returns what is wrong with it.
func (s *Scanner) read(l *lexer) (reason string) {
	if !l.take('{') {
		return "no object"
	}
	verb, ok := s.text(l)
	if !ok {
		return "no verb"
	}
	s.action.Verb = verbOf(verb)
	if !l.take(':') || !l.take('{') {
		return "no object behind the verb"
	}
	for alone := true; !l.take('}'); alone = false {
		if !alone && !l.take(',') {
			return "no comma between fields"
		}
		name, ok := s.text(l)
		if !ok {
			return "no name of a field"
		}
		if !l.take(':') {
			return "no colon behind a name"
		}
		first := l.peek()
		value, ok := s.value(l)
		if !ok {
			return "no value of a field"
		}
		if value != nil {
			s.action.set(name, value, first)
		}
	}
	return ""
}

// set takes a member of the action's object, whose value begins with the byte first.
func (a *Action) set(name, value []byte, first byte) {
	if a.fault.kind == noFault {
		if kind := faultOf(name, value, first); kind != noFault {
			a.fault = fault{kind, name, value}
		}
	}
	switch string(name) {
	case "_index":
		a.Index = value
	case "_id":
		a.ID = value
	case "op_type":
		if a.Verb == Index && string(value) == "create" {
			a.Verb = Create
		}
	case "if_seq_no":
		a.versions.SeqNo = value
	case "if_primary_term":
		a.versions.Term = value
	case "version":
		a.versions.Version = value
	case "version_type":
		a.versions.Type = value
	case "pipeline":
		a.Pipeline = true
	}
	a.Conditional = a.versions.said()
}

// text takes a string and decodes it.
func (s *Scanner) text(l *lexer) ([]byte, bool) {
	raw, escaped, ok := l.str()
	if !ok || !escaped {
		return raw, ok
	}
	from := len(s.scratch)
	s.scratch, ok = unquote(s.scratch, raw)
	return s.scratch[from:len(s.scratch):len(s.scratch)], ok
}

// value takes a value: a string decoded, a number or boolean as it is spelled, nil for null, an empty one for objects and
// arrays.
func (s *Scanner) value(l *lexer) ([]byte, bool) {
	switch l.peek() {
	case '"':
		return s.text(l)
	case '{', '[':
		return l.b[:0], l.skip()
	}
	raw := l.word()
	if string(raw) == "null" {
		return nil, true
	}
	return raw, len(raw) > 0
}

// A lexer reads the JSON of one line, or of the body of an update.
type lexer struct {
	b []byte
	i int
}

// peek returns the next byte that is no space, 0 at the end.
func (l *lexer) peek() byte {
	for ; l.i < len(l.b); l.i++ {
		switch c := l.b[l.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (l *lexer) take(c byte) bool {
	if l.peek() != c {
		return false
	}
	l.i++
	return true
}

// str takes a string and returns what stands between its quotes, never nil.
func (l *lexer) str() (raw []byte, escaped, ok bool) {
	if !l.take('"') {
		return nil, false, false
	}
	for from := l.i; l.i < len(l.b); l.i++ {
		switch l.b[l.i] {
		case '\\':
			escaped = true
			l.i++
		case '"':
			l.i++
			return l.b[from : l.i-1 : l.i-1], escaped, true
		}
	}
	return nil, false, false
}

// word takes a number or literal.
func (l *lexer) word() []byte {
	from := l.i
	for ; l.i < len(l.b); l.i++ {
		switch c := l.b[l.i]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c == 'E', c == '-', c == '+', c == '.':
		default:
			return l.b[from:l.i:l.i]
		}
	}
	return l.b[from:l.i:l.i]
}

// skip takes an object or array, looking at nothing but brackets and strings.
func (l *lexer) skip() bool {
	for depth := 0; ; {
		switch l.peek() {
		case 0:
			if l.i == len(l.b) {
				return false
			}
			l.i++
		case '"':
			if _, _, ok := l.str(); !ok {
				return false
			}
		case '{', '[':
			depth++
			l.i++
		case '}', ']':
			depth--
			l.i++
			if depth == 0 {
				return true
			}
		default:
			l.i++
		}
	}
}

// unquote appends the text of a JSON string to dst. A surrogate without its other half becomes U+FFFD.
func unquote(dst, raw []byte) ([]byte, bool) {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		if i+1 == len(raw) {
			return dst, false
		}
		c := raw[i+1]
		i += 2
		switch c {
		case '"', '\\', '/':
			dst = append(dst, c)
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, ok := hex4(raw[i:])
			if !ok {
				return dst, false
			}
			i += 4
			if utf16.IsSurrogate(r) && len(raw) >= i+6 && raw[i] == '\\' && raw[i+1] == 'u' {
				if low, ok := hex4(raw[i+2:]); ok && utf16.DecodeRune(r, low) != utf8.RuneError {
					r = utf16.DecodeRune(r, low)
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r) // a lone surrogate becomes U+FFFD
		default:
			return dst, false
		}
	}
	return dst, true
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		d := wire.HexDigit(c)
		if d == wire.NoHexDigit {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// Idempotency looks into a body: a bulk is api.Idempotent when it can be read to its end and each of its actions is an Index
// or Delete with an id and without a condition, and api.Unsafe otherwise.
func Idempotency(body []byte) api.Idempotency {
	var s Scanner
	s.Reset(body)
	found := false
	for s.Next() {
		a := &s.action
		if a.Verb != Index && a.Verb != Delete || len(a.ID) == 0 || a.Conditional {
			return api.Unsafe
		}
		found = true
	}
	if !found || s.err != nil {
		return api.Unsafe
	}
	return api.Idempotent
}
