package limit

import (
	"bytes"
	"slices"
	"strings"
	"unsafe"

	"weir/elastic/api"
	"weir/elastic/query"
)

// maxIndices is how many indices one request may name where limits are by index. Each of them is charged, so that a long list
// neither hides an index nor costs those a budget that are not in it; beyond it a request is refused. No node has room for the
// shards of more by default (cluster.max_shards_per_node).
const maxIndices = 1000

// longestPattern is the longest expression in a body that is told apart from others.
const longestPattern = 1 << 10

// longestIndex is the longest name an index can have, in bytes.
const longestIndex = 255

// unknownIndex is the index of requests of which nobody here can tell what they touch, such as scrolls and statements in SQL. They
// share a key; no index has a space in its name.
var unknownIndex = []byte("(not known)")

// everyIndex is how a request without an index is written that touches all of them.
var everyIndex = []byte("*")

// indices holds the index expressions of one request.
type indices struct {
	text  []byte
	parts [][]byte // of the path, as written, without empty ones and exclusions

	named   []named        // what the request names, or the lines of its bulk, each expression once
	places  map[string]int // in named; its keys are text
	own     int            // of named; behind them stands what else they count for
	slot    int            // of named, that was used last
	beyond  bool           // more than maxIndices are named
	checked []*entry       // patterns that the request must pass as well, and is not charged for
}

// named is an index that a request names, or a pattern, and how much of the request is for it.
type named struct {
	index []byte // as it is named, decoded, or nil for one that is not known
	use
	more use // of others that count for it
}

// use is what is counted by index: actions of a bulk, searches of a _msearch.
type use struct {
	docs  int64
	bytes int64 // of lines, with their ends
}

func (u *use) add(o use) {
	u.docs += o.docs
	u.bytes += o.bytes
}

// read fills n from the path of a request, and tells where its indices stand. Unless that is the path, none are named yet.
func (n *indices) read(call *api.Call) query.Source {
	if n.places == nil {
		n.places = map[string]int{}
	}
	clear(n.places)
	n.text = api.DecodeSegment(n.text[:0], call.Index)
	n.parts, n.named, n.checked, n.own, n.slot, n.beyond = n.parts[:0], n.named[:0], n.checked[:0], 0, 0, false
	for part := range bytes.SplitSeq(n.text, []byte{','}) {
		if len(part) > 0 && part[0] != '-' {
			n.parts = append(n.parts, part)
		}
	}
	if from := query.SourceOf(call); from != query.InPath {
		return from
	}
	switch {
	case len(n.parts) > 0:
		n.findPath(use{})
	case reachesAll(call):
		n.find(everyIndex)
	default:
		n.find(nil)
	}
	return query.InPath
}

// findPath names what the path does, with as much of the request for each.
func (n *indices) findPath(u use) {
	for _, part := range n.parts {
		n.find(part)
		n.named[n.slot].add(u)
	}
}

// reachesAll tells whether a call that names no index touches all of them. Of others nobody can tell: cursors and points in time
// say only to nodes what they are of, statements and bodies of all kinds are not read.
func reachesAll(call *api.Call) bool {
	space, name, _ := strings.Cut(call.Name, ".")
	switch space {
	case "sql", "ppl", "esql", "search_application", "render_search_template":
		return false
	case "async_search", "eql":
		return name == "submit" || name == "search"
	case "indices":
		return !strings.Contains(name, "template")
	case "cat":
		return slices.Contains(catOfIndices, name)
	}
	return call.Class == api.ClassSearch
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
	return len(expr) > 0 && bytes.IndexByte(expr, '<') < 0 && bytes.IndexByte(expr, '*') < 0 && string(expr) != "_all" &&
		!bytes.HasSuffix(expr, []byte(":_all"))
}

// write counts an action of a bulk, with the length of its line. index is what the line says; without one the action is for the
// index in the path.
func (n *indices) write(index []byte, length int64) {
	switch {
	case len(index) == 0 && len(n.parts) == 1:
		index = n.parts[0]
	case len(index) > longestIndex:
		index = nil // which cannot be
	}
	n.find(index)
	n.named[n.slot].add(use{1, length})
}

// writeUnknown counts actions whose index cannot be told.
func (n *indices) writeUnknown(docs, length int64) {
	n.find(nil)
	n.named[n.slot].add(use{docs, length})
}

// search counts a search of a _msearch by its first line.
func (n *indices) search(header []byte) {
	found, others := false, false
	readable := query.HeaderIndices(header, func(expr []byte) {
		if others = true; expr[0] != '-' {
			found = true
			n.find(expr)
			n.named[n.slot].docs++
		}
	})
	switch {
	case readable && found:
	case readable && !others && len(n.parts) > 0:
		n.findPath(use{docs: 1})
	default:
		n.searchAll(1)
	}
}

// searchAll counts searches that may be in every index.
func (n *indices) searchAll(searches int64) {
	n.find(everyIndex)
	n.named[n.slot].docs += searches
}

// docs names the indices of the documents that a body asks for.
func (n *indices) docs(body []byte) {
	readable := query.DocIndices(body, func(index []byte) {
		if index == nil {
			n.findPath(use{})
			return
		}
		n.find(index)
	})
	if !readable || len(n.named) == 0 {
		n.find(everyIndex)
	}
}

// time names the indices of a search whose path names none.
func (n *indices) time(body []byte) {
	if query.PointInTime(body) {
		n.find(nil)
		return
	}
	n.find(everyIndex)
}

// find puts slot where an index or a pattern is in named, and adds it. When there are too many the others are not told apart.
func (n *indices) find(index []byte) {
	index = withoutSelector(index)
	switch {
	case len(index) == 0, n.beyond:
		index = nil
	case len(index) > longestPattern:
		index = everyIndex
	}
	if n.slot < len(n.named) && bytes.Equal(n.named[n.slot].index, index) {
		return
	}
	place, known := n.places[string(index)]
	if !known && len(n.named) >= maxIndices && index != nil {
		n.beyond, index = true, nil
		place, known = n.places[""]
	}
	if !known {
		place = putIndex(n, index)
	}
	n.slot = place
}

// putIndex adds an index to n.
func putIndex[T string | []byte](n *indices, index T) int {
	w := named{}
	if len(index) > 0 {
		from := len(n.text)
		n.text = append(n.text, index...)
		w.index = n.text[from:len(n.text):len(n.text)]
	}
	n.named = append(n.named, w)
	n.places[unsafe.String(unsafe.SliceData(w.index), len(w.index))] = len(n.named) - 1 // text is not changed before places is cleared
	return len(n.named) - 1
}

// spread adds to what is named what else that counts for. Without a roll, where no limit is keyed by index, that is nothing.
func (n *indices) spread(r *roll) {
	n.own = len(n.named)
	if r == nil {
		return
	}
	for i := range n.own {
		if n.named[i].index == nil {
			continue
		}
		charged, checked := r.related(n.named[i].index)
		for _, e := range charged {
			place, known := n.places[e.expr]
			if !known {
				place = putIndex(n, e.expr)
			}
			n.named[place].more.add(n.named[i].use)
		}
		for _, e := range checked {
			if !slices.Contains(n.checked, e) {
				n.checked = append(n.checked, e)
			}
		}
	}
	n.checked = slices.DeleteFunc(n.checked, func(e *entry) bool { _, charged := n.places[e.expr]; return charged })
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
	return slices.ContainsFunc(n.named[:n.own], func(w named) bool { return w.index == nil || overlapsAny(patterns, w.index) })
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
func (l *limit) looksAtIndices() bool { return l.index != nil || l.byIndex }
