package estest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// An object is a JSON object whose members keep their order: answers have the member order of real nodes, and the
// order of a request's members has a meaning in some places (sort).
type object []member

type member struct {
	key   string
	value any // object, []any, string, json.Number, bool, nil; in answers also int, int64, float32, float64, raw
}

// raw is JSON text that is written as it is.
type raw []byte

func (o object) get(key string) any {
	for i := range o {
		if o[i].key == key {
			return o[i].value
		}
	}
	return nil
}

func (o object) has(key string) bool {
	for i := range o {
		if o[i].key == key {
			return true
		}
	}
	return false
}

func (o object) set(key string, value any) object {
	for i := range o {
		if o[i].key == key {
			o[i].value = value
			return o
		}
	}
	return append(o, member{key, value})
}

func (o object) object(key string) object {
	v, _ := o.get(key).(object)
	return v
}

func (o object) string(key string) string {
	switch v := o.get(key).(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}

func badJSON(format string, args ...any) *apiError {
	return badRequest("json_parse_exception", format, args...)
}

// parseJSON reads one JSON value. Its errors are those that a node answers, in other words. A key that occurs twice in an object is an error, as it is in Elasticsearch.
func parseJSON(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := parseValue(dec, maxDepth)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		var e *apiError
		if !errors.As(err, &e) {
			e = badJSON("%s", err)
		}
		return nil, e
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, badJSON("Unrecognized token after the value")
	}
	return v, nil
}

// maxDepth is how deep JSON may be nested, as in nodes.
const maxDepth = 1000

func parseValue(dec *json.Decoder, depth int) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if depth == 0 {
		return nil, badJSON("Document nesting depth exceeds the maximum allowed (%d)", maxDepth)
	}
	switch tok {
	case json.Delim('{'):
		o := object{}
		for dec.More() {
			tok, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key, _ := tok.(string)
			if o.has(key) {
				return nil, badJSON("Duplicate field '%s'", key)
			}
			v, err := parseValue(dec, depth-1)
			if err != nil {
				return nil, err
			}
			o = append(o, member{key, v})
		}
		_, err = dec.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := parseValue(dec, depth-1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return list, err
	}
	return tok, nil
}

// appendJSON writes v in the compact form, or, with indent >= 0, in the form that nodes give for ?pretty.
func appendJSON(dst []byte, v any, indent int) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		return strconv.AppendBool(dst, v)
	case int:
		return strconv.AppendInt(dst, int64(v), 10)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case float32:
		return append(dst, javaFloat(float64(v), 32)...)
	case float64:
		return append(dst, javaFloat(v, 64)...)
	case json.Number:
		return append(dst, v...)
	case string:
		return appendString(dst, v)
	case raw:
		if indent < 0 {
			return append(dst, v...)
		}
		parsed, err := parseJSON(v)
		if err != nil {
			return append(dst, v...)
		}
		return appendJSON(dst, parsed, indent)
	case object:
		return appendMembers(dst, '{', '}', len(v), indent, func(dst []byte, i, indent int) []byte {
			dst = appendString(dst, v[i].key)
			if indent >= 0 {
				dst = append(dst, ' ')
			}
			dst = append(dst, ':')
			if indent >= 0 {
				dst = append(dst, ' ')
			}
			return appendJSON(dst, v[i].value, indent)
		})
	case []any:
		return appendMembers(dst, '[', ']', len(v), indent, func(dst []byte, i, indent int) []byte {
			return appendJSON(dst, v[i], indent)
		})
	}
	return appendString(dst, fmt.Sprint(v))
}

func appendMembers(dst []byte, open, end byte, n, indent int, one func(dst []byte, i, indent int) []byte) []byte {
	dst = append(dst, open)
	if n == 0 && indent >= 0 {
		dst = append(dst, ' ')
	}
	inner := indent
	if indent >= 0 {
		inner = indent + 1
	}
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendBreak(dst, inner)
		dst = one(dst, i, inner)
	}
	if n > 0 {
		dst = appendBreak(dst, indent)
	}
	return append(dst, end)
}

func appendBreak(dst []byte, indent int) []byte {
	if indent < 0 {
		return dst
	}
	dst = append(dst, '\n')
	for range indent {
		dst = append(dst, "  "...)
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < ' ':
			dst = fmt.Appendf(dst, `\u%04X`, c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// javaFloat spells f as Java does, because nodes print aggregation results with Double.toString: 29.0, 1.7041032E12.
func javaFloat(f float64, bits int) string {
	abs := math.Abs(f)
	if f == 0 || abs >= 1e-3 && abs < 1e7 {
		s := strconv.FormatFloat(f, 'f', -1, bits)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'E', -1, bits), "E")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	n, _ := strconv.Atoi(exponent)
	return mantissa + "E" + strconv.Itoa(n)
}

// equalJSON tells whether two values would be written alike.
func equalJSON(a, b any) bool { return bytes.Equal(appendJSON(nil, a, -1), appendJSON(nil, b, -1)) }

// A paths is a parsed list of dotted patterns, as filter_path and _source take them: * stands for any part of a name,
// ** for any number of names.
type paths [][]string

func parsePaths(patterns []string) (include, exclude paths) {
	for _, p := range patterns {
		if rest, ok := strings.CutPrefix(p, "-"); ok {
			exclude = append(exclude, strings.Split(rest, "."))
		} else if p != "" {
			include = append(include, strings.Split(p, "."))
		}
	}
	return include, exclude
}

// step returns what is left of the patterns below name, and whether one of them ends there.
func (p paths) step(name string) (rest paths, ends bool) {
	for _, pattern := range p {
		for len(pattern) > 0 {
			if pattern[0] == "**" {
				rest = append(rest, pattern)
				if len(pattern) == 1 {
					return rest, true
				}
				pattern = pattern[1:] // ** may also stand for nothing
				continue
			}
			if wildcardMatch(pattern[0], name) {
				if len(pattern) == 1 {
					return rest, true
				}
				rest = append(rest, pattern[1:])
			}
			break
		}
	}
	return rest, ends
}

// keep returns the part of v that the patterns name, and whether there is any.
func (p paths) keep(v any) (any, bool) {
	switch v := v.(type) {
	case object:
		out := object{}
		for _, m := range v {
			rest, ends := p.step(m.key)
			if ends {
				out = append(out, m)
			} else if len(rest) > 0 {
				if kept, ok := rest.keep(m.value); ok {
					out = append(out, member{m.key, kept})
				}
			}
		}
		return out, len(out) > 0
	case []any:
		out := []any{}
		for _, e := range v {
			if kept, ok := p.keep(e); ok {
				out = append(out, kept)
			}
		}
		return out, len(out) > 0
	}
	return nil, false
}

// drop returns v without the parts that the patterns name.
func (p paths) drop(v any) any {
	switch v := v.(type) {
	case object:
		out := object{}
		for _, m := range v {
			rest, ends := p.step(m.key)
			if ends {
				continue
			}
			if len(rest) > 0 {
				m.value = rest.drop(m.value)
			}
			out = append(out, m)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = p.drop(e)
		}
		return out
	}
	return v
}

// wildcardMatch tells whether s matches pattern, in which * stands for any text and ? for one byte.
func wildcardMatch(pattern, s string) bool {
	for pattern != "" {
		if pattern[0] == '*' {
			pattern = strings.TrimLeft(pattern, "*")
			if pattern == "" {
				return true
			}
			for i := range len(s) {
				if wildcardMatch(pattern, s[i:]) {
					return true
				}
			}
			return false
		}
		if s == "" || pattern[0] != '?' && pattern[0] != s[0] {
			return false
		}
		pattern, s = pattern[1:], s[1:]
	}
	return s == ""
}
