package query

import (
	"bytes"
	"encoding/json"

	"weir/elastic/api"
)

// A Source says where the indices of a request stand.
type Source uint8

// The sources.
const (
	InPath     Source = iota // and nowhere else
	InActions                // in the lines of a bulk; the one of the path is that of lines which name none
	InSearches               // in each first line of a _msearch
	InDocs                   // in the documents that are asked for
	InTime                   // perhaps in a point in time, which is not read
)

// SourceOf tells where the indices of a call stand.
func SourceOf(call *api.Call) Source {
	switch call.Name {
	case "bulk", "bulk_stream":
		return InActions
	case "msearch", "msearch_template", "fleet.msearch":
		return InSearches
	case "mget", "mtermvectors":
		return InDocs
	case "search":
		if len(call.Index) == 0 {
			return InTime
		}
	}
	return InPath
}

// SearchIndices calls f with each index expression in the first lines of the searches of a _msearch, as HeaderIndices does. It
// returns false if one of them cannot be read. Where the body begins with an empty line, which some nodes skip and others take for
// a first one, every line counts as one: nothing else in a search has such a member.
func SearchIndices(body []byte, f func(expr []byte)) bool {
	skipped := len(body) > 0 && body[0] == '\n'
	header := true
	for line := range bytes.SplitSeq(body, []byte{'\n'}) {
		if (header || skipped) && !HeaderIndices(line, f) {
			return false
		}
		header = !header
	}
	return true
}

// HeaderIndices calls f with each index expression in the first line of a search of a _msearch, decoded and good until f returns.
// A line that names none calls nothing. It returns false for a line that cannot be read: a node might see more in it.
func HeaderIndices(line []byte, f func(expr []byte)) bool {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return true
	}
	return wholeObject(line, func(name, value []byte) bool {
		switch string(name) {
		case "index", "indices": // nodes take both
			return eachExpression(value, f)
		}
		return bytes.IndexByte(name, '\\') < 0 // or it may be one of them, spelled with escapes
	})
}

// DocIndices calls f with the index of each document that the body of a _mget or _mtermvectors asks for, decoded and good until f
// returns, and with nil for those that are in the index of the path. It returns false for a body that cannot be read, and for one
// that names no document.
func DocIndices(body []byte, f func(index []byte)) bool {
	named := false
	whole := wholeObject(body, func(name, value []byte) bool {
		switch string(name) {
		case "ids":
			named = true
			f(nil)
		case "docs":
			named = true
			return eachItem(value, func(item []byte) bool { return docIndex(item, f) })
		}
		return bytes.IndexByte(name, '\\') < 0
	})
	return whole && named
}

// docIndex calls f with the index of one document.
func docIndex(item []byte, f func(index []byte)) bool {
	if len(item) > 0 && item[0] == '"' {
		f(nil) // an id
		return true
	}
	found := false
	_, ok := eachMember(item, 0, func(name, value []byte) bool {
		if string(name) == "_index" || string(name) == "index" {
			found = true
			return eachExpression(value, f)
		}
		return bytes.IndexByte(name, '\\') < 0
	})
	if !found {
		f(nil)
	}
	return ok
}

// PointInTime tells whether the body of a search asks for a point in time, which says itself what it is of. A body that cannot be
// read does not.
func PointInTime(body []byte) bool {
	found := false
	whole := wholeObject(body, func(name, value []byte) bool {
		found = found || string(name) == "pit" && len(value) > 0 && value[0] == '{'
		return true
	})
	return whole && found
}

// eachExpression calls f with the index expressions of a value: a string, in which commas part them, a list of strings, or null
// for none.
func eachExpression(value []byte, f func(expr []byte)) bool {
	switch {
	case len(value) > 0 && value[0] == '[':
		return eachItem(value, func(item []byte) bool { return len(item) > 0 && item[0] == '"' && eachExpression(item, f) })
	case len(value) > 1 && value[0] == '"':
		text := value[1 : len(value)-1]
		if bytes.IndexByte(text, '\\') >= 0 {
			var decoded string
			if json.Unmarshal(value, &decoded) != nil {
				return false
			}
			text = []byte(decoded)
		}
		for part := range bytes.SplitSeq(text, []byte{','}) {
			if len(part) > 0 {
				f(part)
			}
		}
		return true
	}
	return string(value) == "null"
}

// eachItem calls f for the items of an array, as they are spelled. It returns false where f does, or the JSON is broken.
func eachItem(array []byte, f func(item []byte) bool) bool {
	if len(array) == 0 || array[0] != '[' {
		return false
	}
	i := skipSpace(array, 1)
	if i < len(array) && array[i] == ']' {
		return true
	}
	for i < len(array) {
		end, ok := skipValue(array, i)
		if !ok || !f(array[i:end]) {
			return false
		}
		i = skipSpace(array, end)
		if i == len(array) || array[i] != ',' {
			return i < len(array) && array[i] == ']'
		}
		i = skipSpace(array, i+1)
	}
	return false
}
