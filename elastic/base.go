package elastic

import (
	"bytes"
	"errors"
)

// errLeavesBase refuses a request whose path leads out of the base path of a node.
var errLeavesBase = errors.New("the dots in the request's path lead out of the path under which the cluster stands")

// leavesBase tells whether target leads, by segments of two dots, to above where it begins. Nodes take such segments for names;
// what serves a node under a base path is a proxy, and proxies resolve them, encoded ones too (traefik/traefik#12360).
func leavesBase(target []byte) bool {
	path, _, _ := bytes.Cut(target, []byte{'?'})
	depth := 0
	for len(path) > 0 {
		dots, others, ends := 0, 0, false
		for len(path) > 0 && !ends {
			c := path[0]
			path = path[1:]
			if c == '%' && len(path) > 1 && path[0] == '2' {
				switch path[1] {
				case 'e', 'E':
					c, path = '.', path[2:]
				case 'f', 'F':
					c, path = '/', path[2:]
				}
			}
			switch c {
			case '.':
				dots++
			case '/':
				ends = true
			default:
				others++
			}
		}
		switch {
		case dots == 2 && others == 0:
			depth--
		case dots > 2 || others > 0: // neither nothing nor this folder
			depth++
		}
		if depth < 0 {
			return true
		}
	}
	return false
}
