package query

import (
	"bytes"

	"weir/elastic/api"
)

// Members are members at the top of an answer by which Complete judges it, a bit each.
type Members uint8

const (
	memberTimedOut Members = 1 << iota
	memberShards
	memberEarly
	memberClusters

	allMembers = memberTimedOut | memberShards | memberEarly | memberClusters
)

// memberNames are the names of Members, in the order of their bits.
var memberNames = [...]string{"timed_out", "_shards", "terminated_early", "_clusters"}

// memberOf returns the member of that name, 0 for others.
func memberOf(name []byte) Members {
	for i, known := range memberNames {
		if string(name) == known {
			return 1 << i
		}
	}
	return 0
}

// hiddenBy returns which of the members an answer lacks that filter_path has cut down to these patterns, or false if it may have
// a part of one, or if nodes differ in how they read the patterns.
func hiddenBy(patterns []byte) (Members, bool) {
	kept, including := Members(0), false
	for rest := patterns; len(rest) > 0; {
		var p []byte
		p, rest, _ = bytes.Cut(rest, []byte{','})
		if bytes.ContainsAny(p, " \t\\") {
			return 0, false // trimmed and unescaped by some nodes, not by others
		}
		if len(p) > 0 && p[0] == '-' {
			first, _, _ := bytes.Cut(p[1:], []byte{'.'})
			if bytes.IndexByte(first, '*') >= 0 || memberOf(first) != 0 {
				return 0, false
			}
			continue
		}
		if len(p) == 0 {
			continue
		}
		including = true
		first, _, within := bytes.Cut(p, []byte{'.'})
		switch {
		case string(p) == "*", string(p) == "**":
			kept = allMembers
		case bytes.IndexByte(first, '*') >= 0, within && memberOf(first) != 0:
			if kept != allMembers {
				return 0, false
			}
		default:
			kept |= memberOf(p)
		}
	}
	if !including {
		return 0, true
	}
	return allMembers &^ kept, true
}

// Widen appends to dst the raw query with which the request is to be sent, so that the answer has the members that its
// filter_path would hide.
func (v *Verdict) Widen(dst, rawQuery []byte) []byte {
	value, _ := api.QueryValue(rawQuery, "filter_path")
	if dst = api.RemoveParam(dst, rawQuery, "filter_path"); len(dst) > 0 && dst[len(dst)-1] != '?' {
		dst = append(dst, '&')
	}
	dst = append(append(dst, "filter_path="...), value...)
	for i, name := range memberNames {
		if v.Hidden&(1<<i) != 0 {
			dst = append(append(dst, ','), name...)
		}
	}
	return dst
}

// Narrow returns an answer without the members that were added for Widen, as the node gives it to the request as it was. What
// is no JSON object comes back as it is.
func (v *Verdict) Narrow(answer []byte) []byte {
	out := append(make([]byte, 0, len(answer)), '{')
	whole := wholeObject(answer, func(name, value []byte) bool {
		if v.Hidden&memberOf(name) != 0 {
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), name...), '"', ':')
		out = append(out, value...)
		return true
	})
	if !whole {
		return answer
	}
	return append(out, '}')
}
