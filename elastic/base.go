package elastic

import (
	"bytes"
	"errors"
)

// errLeavesBase refuses a request whose path leads out of the base path of a node.
var errLeavesBase = errors.New("the dots in the request's path lead out of the path under which the cluster stands")

// leavesBase tells whether a path, decoded, leads by segments of two dots to above where it begins. Nodes take such segments for
// names; what serves a node under a base path is a proxy, and proxies resolve them, encoded ones too (traefik/traefik#12360).
func leavesBase(path []byte) bool {
	depth := 0
	for segment := range bytes.SplitSeq(path, slash) {
		switch string(segment) {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			if climbs(segment) {
				return true
			}
			if name, _, _ := bytes.Cut(segment, semicolon); len(name) > 0 && string(name) != "." { // others are none for some
				depth++
			}
		}
	}
	return false
}

// climbs tells whether a segment is one of two dots for those who take what stands behind a "#" or ";" for no part of the path, or
// "\\" for another "/". No index has such a name (Elasticsearch, naming of indices).
func climbs(segment []byte) bool {
	for name := range bytes.SplitSeq(segment, backslash) {
		if end := bytes.IndexAny(name, "#;?"); end >= 0 {
			name = name[:end]
		}
		if string(name) == ".." {
			return true
		}
	}
	return false
}

var backslash = []byte{'\\'}

var slash, question, semicolon = []byte{'/'}, []byte{'?'}, []byte{';'}
