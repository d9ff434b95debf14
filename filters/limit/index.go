package limit

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strings"
	"unsafe"

	"weir/elastic/api"
)

// maxIndices is how many indices one request may name where limits are by index. Each of them is charged, so that a long list
// neither hides an index nor costs those a budget that are not in it; beyond it a request is refused. No node has room for the
// shards of more by default (cluster.max_shards_per_node).
const maxIndices = 1000

// longestIndex is the longest name an index can have, in bytes.
const longestIndex = 255

// anyIndex is the index of requests whose indices are not known: none, wildcards, date math. They share a key, so that no
// spelling of a wildcard has a burst of its own.
var anyIndex = []byte("*")

// indices holds the index expressions of one request.
type indices struct {
	text  []byte
	parts [][]byte // as written, without empty ones and exclusions; none stands for every index

	named  []named  // what the path names, or the lines of a bulk, each index once
	slots  []uint16 // of a hash table: places in named, counted from 1
	seed   maphash.Seed
	slot   int  // of named, that was used last
	beyond bool // more than maxIndices are named
}

// named is an index that a request names, and what a bulk writes to it.
type named struct {
	index []byte // as it is named, decoded, or nil for one that is not known
	docs  int64
	bytes int64 // of lines, with their ends
}

// read fills n from the path of a request. Where the lines of the body name the indices, those of the path are not among the
// named.
func (n *indices) read(call *api.Call) {
	if n.slots == nil {
		n.seed, n.slots = maphash.MakeSeed(), make([]uint16, 32)
	}
	clear(n.slots)
	n.text = api.DecodeSegment(n.text[:0], call.Index)
	n.parts, n.named, n.slot, n.beyond = n.parts[:0], n.named[:0], 0, false
	if bodyNames(call) {
		n.find(nil)
		return
	}
	byLine := namesByLine(call)
	for part := range bytes.SplitSeq(n.text, []byte{','}) {
		if len(part) == 0 || part[0] == '-' {
			continue
		}
		n.parts = append(n.parts, part)
		if !byLine {
			n.find(part)
		}
	}
	if len(n.parts) == 0 && !byLine {
		n.find(nil)
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
	return len(expr) > 0 && expr[0] != '<' && bytes.IndexByte(expr, '*') < 0 && string(expr) != "_all"
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
	switch {
	case len(index) == 0 && len(n.parts) == 1:
		index = n.parts[0]
	case len(index) > longestIndex:
		index = nil // which cannot be
	}
	n.find(index)
	n.named[n.slot].docs++
	n.named[n.slot].bytes += length
}

// writeUnknown counts actions whose index cannot be told.
func (n *indices) writeUnknown(docs, length int64) {
	n.find(nil)
	n.named[n.slot].docs += docs
	n.named[n.slot].bytes += length
}

// find puts slot where an index is in named, and adds it. When there are too many the others are not told apart.
func (n *indices) find(index []byte) {
	index = withoutSelector(index)
	if len(index) == 0 || n.beyond {
		index = nil
	}
	if n.slot < len(n.named) && bytes.Equal(n.named[n.slot].index, index) {
		return
	}
	at := n.place(index)
	if n.slots[at] == 0 && len(n.named) >= maxIndices && index != nil {
		n.beyond, index = true, nil
		at = n.place(nil)
	}
	if n.slots[at] > 0 {
		n.slot = int(n.slots[at]) - 1
		return
	}
	w := named{}
	if index != nil {
		from := len(n.text)
		n.text = append(n.text, index...)
		w.index = n.text[from:len(n.text):len(n.text)]
	}
	n.slot = len(n.named)
	n.named = append(n.named, w)
	n.slots[at] = uint16(len(n.named))
	if 2*len(n.named) > len(n.slots) {
		n.spread()
	}
}

// place returns where in slots an index is, or belongs.
func (n *indices) place(index []byte) int {
	mask := len(n.slots) - 1
	at := int(maphash.Bytes(n.seed, index)) & mask
	for n.slots[at] > 0 && !bytes.Equal(n.named[n.slots[at]-1].index, index) {
		at = (at + 1) & mask
	}
	return at
}

// spread doubles slots.
func (n *indices) spread() {
	n.slots = make([]uint16, 2*len(n.slots))
	for i := range n.named {
		n.slots[n.place(n.named[i].index)] = uint16(i + 1)
	}
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
