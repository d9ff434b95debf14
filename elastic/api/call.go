package api

import "bytes"

// A Call is what the table says of one request. It is filled by Classify, may be used again, and is valid as long as the
// path given to Classify is: its byte slices point into it.
type Call struct {
	// Name is the API's name as the client libraries spell it ("search", "indices.get_mapping"), empty when unknown.
	Name string
	// ID is the dense number of the API, 0 when unknown, below Count. It is good for one build only.
	ID uint16
	// Class is what the call does to the cluster.
	Class Class
	// Idempotency says when the request may be sent again. It is worked out from method, path and query alone: a bulk is
	// Unsafe here.
	Idempotency Idempotency
	// Index is the index expression as the path spells it, not decoded. It is nil when the path names none, which most
	// APIs take as all indices. For unknown calls it is the first segment, unless that starts with an underscore.
	Index []byte
	// Target is the name of the index that the call makes (clone, shrink, split, rollover, downsample), not decoded; nil
	// for others and when the node chooses it.
	Target []byte

	names  []string
	params [maxParams][]byte
}

// String returns the API's name, "unknown" for a call that is not in the table.
func (c *Call) String() string { return Name(c.ID) }

// Param returns a path parameter of the API as the path spells it, not decoded ("id" of /{index}/_doc/{id}), nil if the
// API has none of that name.
func (c *Call) Param(name string) []byte {
	for i, n := range c.names {
		if n == name {
			return c.params[i]
		}
	}
	return nil
}

// Name returns the name of the API with the given number, "unknown" for 0 and for numbers not below Count.
func Name(id uint16) string {
	if id == 0 || int(id) >= Count {
		return "unknown"
	}
	return apis[id].name
}

// Names returns the names of all APIs, "unknown" the first. It is for reading configuration.
func Names() []string {
	names := make([]string, Count)
	for id := range names {
		names[id] = Name(uint16(id))
	}
	return names
}

// ClassOf returns the class of the API with the given number, ClassUnknown for 0 and for numbers not below Count.
func ClassOf(id uint16) Class {
	if int(id) >= Count {
		return ClassUnknown
	}
	return apis[id].class
}

// ID returns the number of the API of a name, false when there is none. It is for reading configuration.
func ID(name string) (uint16, bool) {
	lo, hi := 1, Count // apis[0] is the unknown one
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if apis[mid].name < name {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < Count && apis[lo].name == name {
		return uint16(lo), true
	}
	return 0, false
}

type apiInfo struct {
	name  string
	class Class
}

// A node is one segment of the trie: its literal children are edges[edge:edge+edges], sorted by the length of their
// labels, then the labels; param is the child that takes any segment, 0 if there is none; a path that ends here is one of
// routes[route:route+routes].
type node struct {
	edge, edges, param, route, routes uint16
}

type edge struct {
	label string
	node  uint16
}

type route struct {
	method      method
	idempotency Idempotency
	api         uint16
	path        uint16
}

// A pathInfo is what the routes of one path share.
type pathInfo struct {
	params        []string
	index, target int8 // positions in params, -1 for none
	// typed marks the document paths of Elasticsearch 6 and 7 (/{index}/{type}/{id}). Neither type nor id may look like an
	// endpoint there, so that an endpoint missing in the table is unknown, and not the write of a document.
	typed bool
}

type method uint8

const (
	methodOther method = iota
	methodDelete
	methodGet
	methodHead
	methodPatch
	methodPost
	methodPut
)

func methodOf(b []byte) method {
	switch string(b) {
	case "GET":
		return methodGet
	case "POST":
		return methodPost
	case "PUT":
		return methodPut
	case "HEAD":
		return methodHead
	case "DELETE":
		return methodDelete
	case "PATCH":
		return methodPatch
	}
	return methodOther
}

// Classify fills c for a request. The path is the request's own, undecoded, without the query; the query is undecoded and
// without its question mark. Neither is kept beyond what Call says. Classify does not allocate.
//
// The path is split at its slashes first, then segments are read decoded, so an encoded slash stays inside its segment.
// Repeated slashes count as one and a slash at the end as none: the nodes differ in that (//i/_count is a 400 on OpenSearch
// 2.19 and 3.9 and a count over every index on Elasticsearch 7.17), and no spelling may get around a rule. A path with
// slashes repeated at its front names no Index for that reason. Literal segments win over parameters.
//
// Literals spelled with escapes (/i/%5Fsearch) count as the literal, which the nodes refuse or take for a parameter: such
// calls are Unsafe. HEAD is the API of GET where there is no other; the nodes seen answer 405.
func Classify(c *Call, method, rawPath, rawQuery []byte) {
	*c = Call{}
	if len(rawPath) == 0 || rawPath[0] != '/' {
		return
	}
	m := methodOf(method)
	// Elasticsearch 7.17 reads the empty segment of //x as an index expression that names every index.
	anyIndex := len(rawPath) > 1 && rawPath[1] == '/'
	w := walk{path: rawPath, params: &c.params}
	r := w.find(m, 0, 0)
	if r == nil && anyIndex {
		c.params[0] = rawPath[:0]
		r = w.find(m, nodes[0].param, 1)
	}
	if r == nil {
		if first, _ := segment(rawPath, 0); len(first) > 0 && !anyIndex && !underscored(first) {
			c.Index = first
		}
		return
	}
	c.ID, c.Name, c.Class, c.Idempotency = r.api, apis[r.api].name, apis[r.api].class, r.idempotency
	p := &paths[r.path]
	c.names = p.params
	if p.index >= 0 && !anyIndex {
		c.Index = c.params[p.index]
	}
	if p.target >= 0 {
		c.Target = c.params[p.target]
	}
	if w.escaped {
		c.Idempotency = Unsafe
	} else if len(rawQuery) > 0 {
		c.readQuery(rawQuery)
	}
}

// readQuery lowers the idempotency for parameters that change what a repetition does.
func (c *Call) readQuery(rawQuery []byte) {
	for rest := rawQuery; len(rest) > 0; {
		var name, value []byte
		name, value, rest = nextParam(rest)
		switch c.Idempotency {
		case Read:
			if c.Class == ClassSearch && queryEqual(name, "scroll") {
				c.Idempotency = Context
			}
		case Idempotent:
			switch {
			case queryEqual(name, "op_type") && !queryEqual(value, "index"),
				queryEqual(name, "create") && !queryEqual(value, "false"), // templates: refuse to replace
				queryEqual(name, "if_seq_no"), queryEqual(name, "if_primary_term"), queryEqual(name, "if_version"),
				queryEqual(name, "version"), queryEqual(name, "version_type"):
				c.Idempotency = Unsafe // the repetition is a conflict
			}
		}
	}
}

// A walk looks for the route of one path.
type walk struct {
	path    []byte
	params  *[maxParams][]byte
	method  method
	escaped bool // a literal of the route was spelled with escapes
}

func (w *walk) find(m method, from uint16, params int) *route {
	w.method = m
	r := w.step(from, 0, params)
	if r == nil && m == methodHead {
		w.method = methodGet
		r = w.step(from, 0, params)
	}
	return r
}

// step matches the path from pos on below node n, with the given number of parameters bound so far. Its work is bounded by
// the depth of the trie: each level has at most two ways on.
func (w *walk) step(n uint16, pos, params int) *route {
	seg, end := segment(w.path, pos)
	at := &nodes[n]
	if len(seg) == 0 {
		for i := at.route; i < at.route+at.routes; i++ {
			if routes[i].method == w.method && w.fits(&paths[routes[i].path]) {
				return &routes[i]
			}
		}
		return nil
	}
	if next, escaped := at.literal(seg); next != 0 {
		if r := w.step(next, end, params); r != nil {
			w.escaped = w.escaped || escaped
			return r
		}
	}
	if n == 0 {
		if r := w.renamed(seg, end, params); r != nil {
			return r
		}
	}
	if at.param == 0 {
		return nil
	}
	w.params[params] = seg
	return w.step(at.param, end, params+1)
}

// renamed follows the names that APIs had before, which nodes still take: /_opendistro/x is /_plugins/x, and in
// Elasticsearch 7 /_xpack/x is /_x. They must be no way around a rule.
func (w *walk) renamed(first []byte, end, params int) *route {
	switch {
	case pathEqual(first, "_opendistro"):
		next, _ := nodes[0].literal([]byte("_plugins"))
		return w.step(next, end, params)
	case pathEqual(first, "_xpack"):
		second, end := segment(w.path, end)
		var label [maxLabel]byte
		if len(second) == 0 || len(second) >= maxLabel {
			return nil
		}
		label[0] = '_'
		copy(label[1:], second)
		if next, _ := nodes[0].literal(label[:len(second)+1]); next != 0 {
			return w.step(next, end, params)
		}
	}
	return nil
}

// fits refuses routes whose parameters cannot be what they stand for: no index starts with an underscore (all engines
// refuse the name), except that _all means every index.
func (w *walk) fits(p *pathInfo) bool {
	if p.index >= 0 {
		if i := w.params[p.index]; underscored(i) && !pathEqual(i, "_all") {
			return false
		}
	}
	if p.typed {
		if t := w.params[1]; underscored(t) && !pathEqual(t, "_doc") {
			return false
		}
		return len(p.params) < 3 || !underscored(w.params[2])
	}
	return true
}

// literal returns the child of a literal segment, 0 if there is none, and whether escapes were needed to see it.
func (n *node) literal(seg []byte) (child uint16, escaped bool) {
	var buf [maxLabel]byte
	if bytes.IndexByte(seg, '%') >= 0 {
		if len(seg) > 3*maxLabel {
			return 0, false
		}
		var ok bool
		if seg, ok = unescapeShort(&buf, seg); !ok {
			return 0, false
		}
		escaped = true
	}
	lo, hi := n.edge, n.edge+n.edges
	for lo < hi {
		mid := (lo + hi) / 2
		e := &edges[mid]
		switch {
		case len(e.label) == len(seg) && e.label == string(seg):
			return e.node, escaped
		case len(e.label) < len(seg) || len(e.label) == len(seg) && e.label < string(seg):
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false
}

// segment returns the first segment of path from pos on and where it ends, an empty one at the path's end.
func segment(path []byte, pos int) (seg []byte, end int) {
	for pos < len(path) && path[pos] == '/' {
		pos++
	}
	if i := bytes.IndexByte(path[pos:], '/'); i >= 0 {
		return path[pos : pos+i : pos+i], pos + i
	}
	return path[pos:], len(path)
}

func underscored(seg []byte) bool {
	return len(seg) > 0 && (seg[0] == '_' || len(seg) > 2 && seg[0] == '%' && seg[1] == '5' && seg[2]|0x20 == 'f')
}
