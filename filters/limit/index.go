package limit

import (
	"bytes"
	"slices"
	"strings"
	"unsafe"

	"weir/elastic/api"
)

// maxIndices is how many indices of one path are charged one by one.
const maxIndices = 16

// maxWritten is how many indices of one bulk are told apart.
const maxWritten = 64

// longestIndex is the longest name an index can have, in bytes.
const longestIndex = 255

// anyIndex is the index of requests whose indices are not named one by one: none, wildcards, date math, a long list. They
// share a key, so that no spelling of a wildcard has a burst of its own.
var anyIndex = []byte("*")

// indices holds the index expressions of one request.
type indices struct {
	text  []byte
	parts [][]byte // as written, without empty ones and exclusions; none stands for every index
	names [][]byte // to charge: each name once, and anyIndex for what is no name

	written []written // what the lines of a bulk write, each index once
	slot    int       // of written, that was used last
}

// written is what a bulk writes to one index.
type written struct {
	index []byte // as the lines name it, decoded, or nil for one that is not known
	docs  int64
	bytes int64 // of lines, with their ends
}

// read fills n from the path of a request.
func (n *indices) read(call *api.Call) {
	n.text = api.DecodeSegment(n.text[:0], call.Index)
	n.parts, n.names, n.written, n.slot = n.parts[:0], n.names[:0], n.written[:0], 0
	if bodyNames(call) {
		n.names = append(n.names, anyIndex)
		return
	}
	any := false
	for part := range bytes.SplitSeq(n.text, []byte{','}) {
		if len(part) == 0 || part[0] == '-' {
			continue
		}
		n.parts = append(n.parts, part)
		name := withoutSelector(part)
		switch {
		case !isName(name):
			any = true
		case slices.ContainsFunc(n.names, func(other []byte) bool { return bytes.Equal(name, other) }):
		case len(n.names) == maxIndices:
			any = true
		default:
			n.names = append(n.names, name)
		}
	}
	if any || len(n.parts) == 0 {
		n.names = append(n.names, anyIndex)
	}
}

// withoutSelector cuts off which part of a data stream is meant: logs::failures is of logs.
func withoutSelector(part []byte) []byte {
	if i := bytes.Index(part, []byte("::")); i > 0 {
		return part[:i]
	}
	return part
}

// isName tells whether an expression names one index, always the same.
func isName(expr []byte) bool {
	return expr[0] != '<' && bytes.IndexByte(expr, '*') < 0 && string(expr) != "_all"
}

// namesByLine tells whether it is the lines of a call's body that name its indices. The one in its path is that of lines which
// name none.
func namesByLine(call *api.Call) bool { return call.Name == "bulk" || call.Name == "bulk_stream" }

// bodyNames tells whether the body of a call may name other indices than its path, and is not read here for that: such a call may
// touch every index, whatever its path says.
func bodyNames(call *api.Call) bool {
	switch call.Name {
	case "msearch", "msearch_template", "fleet.msearch", "mget", "mtermvectors":
		return true
	}
	return false
}

// write counts an action of a bulk, with the length of its line. index is what the line says; without one the action is for the
// index in the path.
func (n *indices) write(index []byte, length int64) {
	if len(index) == 0 && len(n.parts) == 1 {
		index = n.parts[0]
	}
	n.find(index)
	n.written[n.slot].docs++
	n.written[n.slot].bytes += length
}

// writeUnknown counts actions whose index cannot be told.
func (n *indices) writeUnknown(docs, length int64) {
	n.find(nil)
	n.written[n.slot].docs += docs
	n.written[n.slot].bytes += length
}

// find puts slot where an index is counted. One that cannot exist, or is one too many, is counted as unknown.
func (n *indices) find(index []byte) {
	index = withoutSelector(index)
	if len(index) == 0 || len(index) > longestIndex {
		index = nil
	}
	is := func(w written) bool { return bytes.Equal(w.index, index) }
	if n.slot < len(n.written) && is(n.written[n.slot]) {
		return
	}
	n.slot = slices.IndexFunc(n.written, is)
	if n.slot < 0 && index != nil && len(n.written) >= maxWritten {
		index = nil
		n.slot = slices.IndexFunc(n.written, is)
	}
	if n.slot >= 0 {
		return
	}
	w := written{}
	if index != nil {
		from := len(n.text)
		n.text = append(n.text, index...)
		w.index = n.text[from:len(n.text):len(n.text)]
	}
	n.slot = len(n.written)
	n.written = append(n.written, w)
}

// touchesNone tells whether a call has nothing to do with the documents of any index, so that a limit on one is not for it:
// who is at a limit on an index can still ask whether the cluster is well. An unknown call may touch every index.
func touchesNone(call *api.Call) bool {
	if len(call.Index) > 0 || call.Class != api.ClassInspect && call.Class != api.ClassAdmin {
		return false
	}
	space, name, _ := strings.Cut(call.Name, ".")
	switch space {
	case "info", "ping", "cluster", "nodes", "tasks", "security", "license", "ssl", "xpack":
		return true
	case "cat":
		return !slices.Contains(catOfIndices, name)
	}
	return false
}

// catOfIndices are the APIs under _cat that look at indices.
var catOfIndices = []string{
	"aliases", "all_pit_segments", "count", "fielddata", "indices", "pit_segments", "recovery", "segment_replication", "segments", "shards",
}

// overlap tells whether the request may touch an index that matches one of the patterns.
func (n *indices) overlap(patterns []string) bool {
	return len(n.parts) == 0 || slices.ContainsFunc(n.parts, func(part []byte) bool { return overlapsAny(patterns, part) })
}

func overlapsAny(patterns []string, expr []byte) bool {
	text := unsafe.String(unsafe.SliceData(expr), len(expr)) // read during this call only
	return slices.ContainsFunc(patterns, func(p string) bool { return api.OverlapsIndex(p, text) })
}

// isFor tells whether a limit is for what is written to an index, or for searches in it. nil is one that is not known.
func (l *limit) isFor(index []byte) bool {
	if l.index == nil || index == nil {
		return true
	}
	if !overlapsAny(l.index, index) {
		return false
	}
	text := unsafe.String(unsafe.SliceData(index), len(index)) // as above
	return !slices.ContainsFunc(l.except, func(p string) bool { return api.MatchIndex(p, text) })
}

// looksAtIndices tells whether a limit needs to know the indices of a request.
func (l *limit) looksAtIndices() bool { return l.index != nil || l.byIndex() }

func (l *limit) byIndex() bool {
	return slices.ContainsFunc(l.selectors, func(s selector) bool { return s.kind == byIndex })
}
