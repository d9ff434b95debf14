package limit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"weir/elastic/api"
	"weir/flows"
	"weir/internal/conf"
)

// longestKey bounds what a key takes in the table. Of a longer one its digest is kept, which nobody can make another key
// with.
const longestKey = 128

// maxIndices is how many indices of one request are charged one by one.
const maxIndices = 16

// What the first byte of a key behind the number of its limit says.
const (
	keyAsItIs = iota
	keyDigest
)

// A selector is one part of a key.
type selector struct {
	kind  selectorKind
	name  string // of a header field, in lower case, or of a group
	group int    // position of the group in the hit of the limit's pattern
}

type selectorKind uint8

const (
	byIP selectorKind = iota
	byUser
	byIndex
	byAPI
	byClass
	byHost
	byHeader
	byPath
	byNothing // all callers share one key
)

// plainSelectors are the selectors that are one word.
var plainSelectors = map[string]selectorKind{
	"ip": byIP, "user": byUser, "index": byIndex, "api": byAPI, "class": byClass, "host": byHost, "global": byNothing,
}

// parseSelector reads a selector: a word, header:NAME or path:GROUP.
func parseSelector(text string) (selector, error) {
	if kind, ok := plainSelectors[text]; ok {
		return selector{kind: kind}, nil
	}
	what, name, colon := strings.Cut(text, ":")
	switch {
	case colon && name == "":
		return selector{}, fmt.Errorf("%q names nothing behind the colon", text)
	case what == "header" && colon:
		return selector{kind: byHeader, name: strings.ToLower(name)}, nil
	case what == "path" && colon:
		return selector{kind: byPath, name: name}, nil
	}
	known := []string{"ip", "user", "index", "api", "class", "host", "global", "header:NAME", "path:GROUP"}
	if near, ok := conf.Nearest(text, known); ok {
		return selector{}, fmt.Errorf("unknown selector %q; did you mean %q?", text, near)
	}
	return selector{}, fmt.Errorf("unknown selector %q: known are %s", text, strings.Join(known, ", "))
}

// appendKey appends the key of x in the limit number id. Each part has its length in front, so that no two lists of parts
// are one key. index is the index that the key is for, if a selector asks for it, and h what the limit's pattern found.
func appendKey(dst []byte, id uint64, selectors []selector, x *flows.Exchange, h hit, index []byte) []byte {
	start := len(dst)
	dst = append(binary.BigEndian.AppendUint64(dst, id), keyAsItIs)
	for _, s := range selectors {
		switch s.kind {
		case byIP:
			dst = appendAddr(dst, x)
		case byUser:
			dst = appendPart(dst, x.Request.User)
		case byIndex:
			dst = appendPart(dst, index)
		case byAPI:
			dst = binary.BigEndian.AppendUint16(dst, x.Call().ID)
		case byClass:
			dst = append(dst, byte(x.Call().Class))
		case byHost:
			dst = appendHost(dst, x.Request.Host)
		case byHeader:
			dst = appendPart(dst, x.Request.Header.Get(s.name))
		case byPath:
			dst = appendPart(dst, h.groups[s.group].of(x.DecodedPath()))
		case byNothing:
		}
	}
	if len(dst)-start > longestKey {
		sum := sha256.Sum256(dst[start:])
		dst = append(binary.BigEndian.AppendUint64(dst[:start], id), keyDigest)
		dst = append(dst, sum[:]...)
	}
	return dst
}

func appendPart(dst, part []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(part))), part...)
}

// appendAddr appends the caller's address. Of IPv6 it is the network of 64 bits, which one caller has at hand whole
// (RFC 6177).
func appendAddr(dst []byte, x *flows.Exchange) []byte {
	switch addr := x.Request.ClientIP.Unmap(); {
	case addr.Is4():
		four := addr.As4()
		return appendPart(dst, four[:])
	case addr.Is6():
		sixteen := addr.As16()
		return appendPart(dst, sixteen[:8])
	}
	return appendPart(dst, nil)
}

// appendHost appends the name of a host, without its port and in lower case.
func appendHost(dst, host []byte) []byte {
	if i := bytes.LastIndexByte(host, ':'); i >= 0 && bytes.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	host = bytes.TrimSuffix(host, []byte("."))
	dst = binary.AppendUvarint(dst, uint64(len(host)))
	for _, c := range host {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		dst = append(dst, c)
	}
	return dst
}

// anyIndex is the index of requests whose indices are not named one by one: none, wildcards, date math, a long list. They
// share a key, so that no spelling of a wildcard has a burst of its own.
var anyIndex = []byte("*")

// indices holds the index expressions of one request.
type indices struct {
	text  []byte
	parts [][]byte // as written, without empty ones and exclusions; none stands for every index
	names [][]byte // to charge: each name once, and anyIndex for what is no name
}

// read fills n from the path of a request.
func (n *indices) read(call *api.Call) {
	n.text = api.DecodeSegment(n.text[:0], call.Index)
	n.parts, n.names = n.parts[:0], n.names[:0]
	any := false
	for part := range bytes.SplitSeq(n.text, []byte{','}) {
		if len(part) == 0 || part[0] == '-' {
			continue
		}
		n.parts = append(n.parts, part)
		name := part
		if i := bytes.Index(part, []byte("::")); i > 0 { // a selector: logs::data is logs
			name = part[:i]
		}
		switch {
		case name[0] == '<', bytes.IndexByte(name, '*') >= 0, string(name) == "_all":
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
	if len(n.parts) == 0 {
		return true
	}
	for _, part := range n.parts {
		expr := unsafe.String(unsafe.SliceData(part), len(part)) // read during this call only
		if slices.ContainsFunc(patterns, func(p string) bool { return api.OverlapsIndex(p, expr) }) {
			return true
		}
	}
	return false
}
