package log

import (
	"bytes"
	"fmt"
	"strings"

	"weir/internal/obs"
)

// maxNesting is how deep the JSON of a body may be nested that a record shows. What lies deeper is hidden.
const maxNesting = 64

// A fieldPath says which members of a body are hidden: names of members from the top, which arrays add nothing to.
type fieldPath struct {
	names    []string // * is any name
	anywhere bool     // the names may begin at any depth
}

// parseFieldPath reads a path such as query.match.email, with * for any name and **. in front for any depth.
func parseFieldPath(text string) (fieldPath, error) {
	rest, anywhere := strings.CutPrefix(text, "**.")
	names := strings.Split(rest, ".")
	for _, n := range names {
		if n == "" || n != "*" && strings.Contains(n, "*") {
			return fieldPath{}, fmt.Errorf("%q is not a path such as query.match.email, *.email or **.email", text)
		}
	}
	return fieldPath{names, anywhere}, nil
}

// matches tells whether the path of a member, its names joined by dots, is p. Names that have dots themselves, as those of
// fields have in queries, count as several.
func (p *fieldPath) matches(path []byte) bool {
	for i := len(p.names) - 1; i >= 0; i-- {
		at := bytes.LastIndexByte(path, '.')
		name := path[at+1:]
		if p.names[i] != "*" && p.names[i] != string(name) {
			return false
		}
		if at < 0 {
			return i == 0
		}
		path = path[:at]
	}
	return p.anywhere
}

// A redactor copies bodies with the values of secret members hidden. It keeps its memory from body to body.
type redactor struct {
	path  []byte
	names [maxNesting]int // length of path at the containers that are open, -1 - length for arrays
}

// append appends a body, JSON or lines of JSON, to dst without the values of members whose name is that of a secret or whose
// path is in hide. It goes through the text once and does not judge it, but what is no JSON ends the copy: nobody can tell
// there what is a value.
func (r *redactor) append(dst, text []byte, hide []fieldPath) []byte {
	depth, start := 0, 0 // text[start:i] is to be copied
	r.path = r.path[:0]
	key := false // a string may be the name of a member
	for i := 0; i < len(text); {
		switch c := text[i]; c {
		case ' ', '\t', '\r', '\n', ':':
			i++
		case ',':
			key = depth > 0 && r.names[depth-1] >= 0
			i++
		case '{', '[':
			if depth == maxNesting {
				return hideRest(dst, text[start:i])
			}
			r.names[depth] = len(r.path)
			if c == '[' {
				r.names[depth] = -1 - len(r.path)
			}
			depth++
			key = c == '{'
			i++
		case '}', ']':
			if depth == 0 {
				return hideRest(dst, text[start:i])
			}
			depth--
			r.cut(r.names[depth])
			key = false
			i++
		case '"':
			end := stringEnd(text, i)
			switch {
			case end < 0 && key:
				return hideRest(dst, text[start:i])
			case end < 0:
				return append(dst, text[start:]...)
			}
			name := text[i+1 : end-1]
			i = end
			if !key {
				continue
			}
			key = false
			r.cut(r.names[depth-1])
			if len(r.path) > 0 {
				r.path = append(r.path, '.')
			}
			r.path = append(r.path, name...)
			if bytes.IndexByte(name, '\\') < 0 && !secretMember(name) && !r.hidden(hide) {
				continue
			}
			from, to := valueAt(text, i)
			dst = append(append(append(append(dst, text[start:from]...), '"'), obs.Redacted...), '"')
			if to < 0 {
				return dst
			}
			i, start = to, to
		default:
			end := literalEnd(text, i)
			if end == i || key {
				return hideRest(dst, text[start:i])
			}
			i = end
		}
	}
	return append(dst, text[start:]...)
}

// cut shortens the path to that of a container.
func (r *redactor) cut(n int) {
	if n < 0 {
		n = -1 - n
	}
	r.path = r.path[:n]
}

func (r *redactor) hidden(hide []fieldPath) bool {
	for i := range hide {
		if hide[i].matches(r.path) {
			return true
		}
	}
	return false
}

func hideRest(dst, text []byte) []byte { return append(append(dst, text...), obs.Redacted...) }

// literalEnd returns the end of the number, true, false or null at i, or i.
func literalEnd(text []byte, i int) int {
	end := i
	for end < len(text) && (text[end] >= 'a' && text[end] <= 'z' || text[end] == 'E') {
		end++
	}
	if end > i {
		switch string(text[i:end]) {
		case "true", "false", "null":
			return end
		}
		return i
	}
	for end < len(text) && (text[end] >= '0' && text[end] <= '9' || bytes.IndexByte(inNumbers, text[end]) >= 0) {
		end++
	}
	return end
}

var inNumbers = []byte("+-.eE")

// stringEnd returns the end of the string that begins at i, or -1.
func stringEnd(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// valueAt returns the bounds of the value of the member whose name ends at i. to is -1 if it has no end.
func valueAt(text []byte, i int) (from, to int) {
	for i < len(text) && bytes.IndexByte(beforeValue, text[i]) >= 0 {
		i++
	}
	from = i
	for depth := 0; i < len(text); {
		switch text[i] {
		case '"':
			if i = stringEnd(text, i); i < 0 {
				return from, -1
			}
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			if depth == 0 {
				return from, i
			}
			depth--
			i++
		case ',':
			if depth == 0 {
				return from, i
			}
			i++
			continue
		default:
			i++
			continue
		}
		if depth == 0 {
			return from, i
		}
	}
	return from, -1
}

var beforeValue = []byte(": \t\r\n")

// plainMembers are names of secrets that members of queries and answers have for other things: buckets, scripts, versions.
var plainMembers = []string{"code", "key", "session", "sid", "sig", "ticket"}

// secretMember tells whether the value of a member of a body may be a secret by its name. Names of fields have those of
// objects, or what they are a variant of, in them: db.auth, password.keyword.
func secretMember(name []byte) bool {
	for _, s := range plainMembers {
		if strings.EqualFold(s, stringOf(name)) {
			return false
		}
	}
	at := bytes.LastIndexByte(name, '.')
	return obs.SecretName(name[at+1:]) || at >= 0 && obs.SecretName(name)
}
