package query

import (
	"bytes"
	"net/url"
	"slices"
	"strconv"
)

// maxSearches is how many searches of one _msearch are looked at. The largest dashboards have some fifty panels.
const maxSearches = 256

// A Search is one search of a _msearch, as the same search would stand in a request of its own. Its slices point into the
// body, and into the memory of its Searches.
type Search struct {
	// Index is the index expression as a path would spell it, nil where the one of the request's path counts.
	Index []byte
	// RawQuery are the parameters: those of the URL, overlaid by those of the search's own line.
	RawQuery []byte
	// Body is the search body.
	Body []byte
	// Lines are the two lines of the search, line ends included.
	Lines []byte
	// Unknown tells that the first line holds something of which is not known what it means in a URL.
	Unknown bool
}

// Searches are the searches of one _msearch. The zero value is ready; its memory is used again.
type Searches struct {
	List  []Search
	arena []byte
	names [][]byte // of the parameters in a first line
}

// Split takes the body of a _msearch apart. query is the raw query of the URL. The reason is empty if that was possible;
// otherwise the request is to be forwarded as it came, and the node judges it.
func (s *Searches) Split(body, query []byte) Reason {
	s.List, s.arena = s.List[:0], s.arena[:0]
	if why := judgeMultiQuery(query); why != "" {
		return why
	}
	switch {
	case len(body) == 0 || body[len(body)-1] != '\n':
		return ReasonBody // nodes answer 400
	case body[0] == '\n':
		return ReasonBody // nodes skip this line, and no later one
	}
	for len(body) > 0 {
		first := bytes.IndexByte(body, '\n')
		second := bytes.IndexByte(body[first+1:], '\n')
		if second < 0 {
			return ReasonBody
		}
		if len(s.List) == maxSearches {
			return ReasonSearches
		}
		end := first + 1 + second
		line := trimSpace(body[:first])
		one := Search{Body: trimSpace(body[first+1 : end]), Lines: body[:end+1]}
		if len(one.Body) == 0 || len(line) == 0 && first > 0 {
			return ReasonBody // nodes answer 400
		}
		s.first(&one, line, query)
		s.List = append(s.List, one)
		body = body[end+1:]
	}
	return ""
}

// trimSpace returns a line without the white space of JSON around it.
func trimSpace(line []byte) []byte { return bytes.Trim(line, " \t\r") }

// Append appends the lines of a search to those of others in the body of a _msearch. Nodes skip an empty line that is the first
// of a body, so one that stands for no parameters is written as such there.
func (s *Search) Append(body []byte) []byte {
	if len(body) == 0 && len(s.Lines) > 0 && s.Lines[0] == '\n' {
		body = append(body, "{}"...)
	}
	return append(body, s.Lines...)
}

// judgeMultiQuery says why the answer could not be taken apart, and put together again to the byte.
func judgeMultiQuery(query []byte) Reason {
	for len(query) > 0 {
		var name, value []byte
		name, value, query = nextArg(query)
		switch string(name) {
		case "filter_path":
			return ReasonFilterPath
		case "format", "pretty":
			if string(value) != "json" && string(value) != "false" {
				return ReasonFormat
			}
		case "source", "source_content_type":
			return ReasonSource
		default:
			if bytes.IndexByte(name, '%') >= 0 {
				return ReasonArguments // one of the above, perhaps
			}
		}
	}
	return ""
}

// nextArg cuts a parameter off a raw query, not decoded.
func nextArg(query []byte) (name, value, rest []byte) {
	pair := query
	if i := bytes.IndexAny(query, "&;"); i >= 0 {
		pair, rest = query[:i], query[i+1:]
	}
	name, value, _ = bytes.Cut(pair, []byte{'='})
	return name, value, rest
}

// first reads the first line of a search, which is an object or empty, and works out its parameters.
func (s *Searches) first(one *Search, line, query []byte) {
	start := len(s.arena)
	s.names = s.names[:0]
	if len(line) > 0 {
		one.Unknown = !wholeObject(line, func(name, value []byte) bool { return s.member(one, name, value) })
	}
	for len(query) > 0 {
		pair := query
		var name, value []byte
		name, value, query = nextArg(query)
		pair = pair[:len(pair)-len(query)]
		switch {
		case len(name) == 0, slices.ContainsFunc(s.names, func(n []byte) bool { return bytes.Equal(n, name) }):
		case string(name) == "max_concurrent_searches" && (&arg{value: value, row: param{kind: kindCount, least: 1}}).wellFormed():
			// How many run at a time, not what is found; _search does not know it.
		case isDefault(name, value):
		default:
			s.arena = append(s.arena, bytes.TrimRight(pair, "&;")...)
			s.arena = append(s.arena, '&')
		}
	}
	one.RawQuery = s.arena[start:len(s.arena):len(s.arena)]
	if n := len(one.RawQuery); n > 0 {
		one.RawQuery = one.RawQuery[:n-1]
	}
}

// isDefault tells whether the parameter says what holds without it. Grafana always sends it.
func isDefault(name, value []byte) bool {
	return string(name) == "search_type" && string(value) == "query_then_fetch"
}

// member reads one member of a first line into the parameters. It returns false for one that it does not know.
func (s *Searches) member(one *Search, name, value []byte) bool {
	start := len(s.arena)
	switch string(name) {
	case "index":
		if one.Index != nil {
			return false
		}
		// The parameters are put behind the index, which keeps its place in the arena.
		text, ok := textOf(value)
		if !ok || text == "" {
			return false
		}
		one.Index = []byte(url.PathEscape(text))
		return true
	case "search_type", "preference", "routing", "allow_partial_search_results", "ignore_unavailable", "allow_no_indices",
		"expand_wildcards", "ignore_throttled", "request_cache", "ccs_minimize_roundtrips":
		if slices.ContainsFunc(s.names, func(n []byte) bool { return bytes.Equal(n, name) }) {
			return false
		}
		text, ok := textOf(value)
		if !ok {
			return false
		}
		s.names = append(s.names, name)
		if isDefault(name, []byte(text)) {
			return true
		}
		s.arena = append(append(s.arena[:start], name...), '=')
		s.arena = append(append(s.arena, url.QueryEscape(text)...), '&')
		return true
	}
	return false
}

// textOf returns a member of a first line as a parameter of a URL would have it: a string, a boolean, or a list of strings. A
// comma inside of one of the list is part of a name for the node, and would be none in a URL.
func textOf(value []byte) (string, bool) {
	switch {
	case len(value) > 1 && value[0] == '"':
		text := value[1 : len(value)-1]
		return string(text), bytes.IndexByte(text, '\\') < 0
	case string(value) == "true", string(value) == "false":
		return string(value), true
	case len(value) > 1 && value[0] == '[':
		var parts []byte
		ok := eachItem(value, func(item []byte) bool {
			if len(item) < len(`"x"`) || item[0] != '"' || bytes.ContainsAny(item, `\,`) {
				return false
			}
			parts = append(append(parts, item[1:len(item)-1]...), ',')
			return true
		})
		return string(bytes.TrimSuffix(parts, comma)), ok && len(parts) > 0
	}
	return "", false
}

// itemEnd is what an answer has as an item of a _msearch and not by itself.
var itemEnd = []byte(`,"status":200}`)

// Responses returns the items of the answer to a _msearch as they stand in it, or false if it is not such an answer, or
// holds something else besides.
func Responses(answer []byte) ([][]byte, bool) {
	var items [][]byte
	seen := 0
	whole := wholeObject(answer, func(name, value []byte) bool {
		seen++
		switch string(name) {
		case "took":
			return true
		case "responses":
			if items != nil {
				return false
			}
			items = [][]byte{}
			return eachItem(value, func(item []byte) bool {
				items = append(items, item)
				return true
			})
		}
		return false
	})
	return items, whole && seen == 2 && items != nil
}

// CutItem returns the answer that an item of a _msearch is, as _search gives it, in two parts that follow each other, or
// false if it is none that succeeded: its last member, and no other, is a status of 200.
func CutItem(item []byte) (front, end []byte, ok bool) {
	statuses := 0
	whole := wholeObject(item, func(name, value []byte) bool {
		if string(name) == "status" {
			statuses++
		}
		return bytes.IndexByte(name, '\\') < 0
	})
	if !whole || statuses != 1 {
		return nil, nil, false
	}
	front = item
	for _, token := range [...]string{"}", "200", ":", `"status"`, ","} {
		if front, ok = bytes.CutSuffix(bytes.TrimRight(front, " \t\r\n"), []byte(token)); !ok {
			return nil, nil, false
		}
	}
	return front, itemEnd[len(itemEnd)-1:], true
}

// ItemStatus returns the status of an item of a _msearch, or 0 if it has none that can be read, or several.
func ItemStatus(item []byte) int {
	status, statuses := 0, 0
	whole := wholeObject(item, func(name, value []byte) bool {
		if string(name) == "status" {
			statuses++
			status, _ = strconv.Atoi(string(value)) // nodes write three digits
		}
		return true
	})
	if !whole || statuses != 1 {
		return 0
	}
	return status
}

// AppendItem appends the answer of a _search to dst as an item of a _msearch. It returns false, and dst as it was, if that
// is not to be had by adding to it.
func AppendItem(dst, answer []byte) ([]byte, bool) {
	answer = bytes.TrimSpace(answer)
	if len(answer) < 3 || answer[len(answer)-1] != '}' {
		return dst, false
	}
	dst = append(dst, answer[:len(answer)-1]...)
	return append(dst, itemEnd...), true
}
