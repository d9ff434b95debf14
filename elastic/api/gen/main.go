// Command gen makes the trie of package api from its table of endpoints. It is run by go generate and is no part of the
// program.
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/format"
	"os"
	"slices"
	"strings"
)

func main() {
	in := flag.String("in", "apis.tsv", "table of endpoints")
	out := flag.String("out", "table_gen.go", "Go file to write")
	flag.Parse()
	if err := run(*in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	src, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	code, err := generate(string(src))
	if err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	return os.WriteFile(out, code, 0o644)
}

type endpoint struct {
	method, path, name, class, idempotency string
}

var (
	methods       = map[string]string{"DELETE": "methodDelete", "GET": "methodGet", "HEAD": "methodHead", "PATCH": "methodPatch", "POST": "methodPost", "PUT": "methodPut"}
	classes       = map[string]string{"search": "ClassSearch", "cursor": "ClassCursor", "write": "ClassWrite", "inspect": "ClassInspect", "admin": "ClassAdmin"}
	idempotencies = map[string]string{"R": "Read", "C": "Context", "S": "Cursor", "I": "Idempotent", "U": "Unsafe"}
)

func parse(src string) ([]endpoint, error) {
	var list []endpoint
	classOf := map[string]string{}
	for i, line := range strings.Split(src, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) < 6 || len(f) > 7 {
			return nil, fmt.Errorf("line %d: %d columns, want 6 or 7", i+1, len(f))
		}
		e := endpoint{f[0], f[1], f[2], f[4], f[5]}
		switch {
		case methods[e.method] == "":
			return nil, fmt.Errorf("line %d: unknown method %q", i+1, e.method)
		case classes[e.class] == "":
			return nil, fmt.Errorf("line %d: unknown class %q", i+1, e.class)
		case idempotencies[e.idempotency] == "":
			return nil, fmt.Errorf("line %d: unknown idempotency %q", i+1, e.idempotency)
		case !strings.HasPrefix(e.path, "/"):
			return nil, fmt.Errorf("line %d: path %q has no slash at its front", i+1, e.path)
		}
		if c := classOf[e.name]; c != "" && c != e.class {
			return nil, fmt.Errorf("line %d: %s is %s here and %s above", i+1, e.name, e.class, c)
		}
		classOf[e.name] = e.class
		list = append(list, e)
	}
	return list, nil
}

// A trie node, with its labels in the order of their length, then of their bytes.
type node struct {
	labels []string
	next   map[string]*node
	param  *node
	routes []route
	number int
}

type route struct {
	endpoint
	path int
}

type path struct {
	params        []string
	index, target int
	typed         bool
}

func (p path) equal(q path) bool {
	return slices.Equal(p.params, q.params) && p.index == q.index && p.target == q.target && p.typed == q.typed
}

func generate(src string) ([]byte, error) {
	list, err := parse(src)
	if err != nil {
		return nil, err
	}
	var (
		root      = &node{}
		paths     []path
		names     []string
		class     = map[string]string{}
		maxParams int
		maxLabel  int
	)
	for _, e := range list {
		at := root
		var params []string
		for seg := range strings.SplitSeq(strings.Trim(e.path, "/"), "/") {
			switch {
			case seg == "":
			case seg[0] == '{':
				params = append(params, strings.Trim(seg, "{}"))
				if at.param == nil {
					at.param = &node{}
				}
				at = at.param
			default:
				maxLabel = max(maxLabel, len(seg))
				at = at.child(seg)
			}
		}
		maxParams = max(maxParams, len(params))
		for _, r := range at.routes {
			if r.method == e.method {
				return nil, fmt.Errorf("%s %s and %s %s are the same", r.method, r.endpoint.path, e.method, e.path)
			}
		}
		p := pathOfParams(e.path, params)
		n := slices.IndexFunc(paths, p.equal)
		if n < 0 {
			n = len(paths)
			paths = append(paths, p)
		}
		at.routes = append(at.routes, route{e, n})
		if class[e.name] == "" {
			class[e.name] = e.class
			names = append(names, e.name)
		}
	}
	slices.Sort(names)
	return write(root, paths, names, class, maxParams, maxLabel)
}

func (n *node) child(label string) *node {
	if n.next[label] == nil {
		if n.next == nil {
			n.next = map[string]*node{}
		}
		n.next[label] = &node{}
		n.labels = append(n.labels, label)
		slices.SortFunc(n.labels, func(a, b string) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
		})
	}
	return n.next[label]
}

// pathOfParams finds the parameters that name indices. Their names alone do not tell: {name} is a data stream in one path and
// a template in another.
func pathOfParams(p string, params []string) path {
	first := func(names ...string) int {
		return slices.IndexFunc(params, func(s string) bool { return slices.Contains(names, s) })
	}
	index := first("index", "alias")
	switch {
	case strings.HasPrefix(p, "/_data_stream/"), strings.HasPrefix(p, "/_resolve/index/"):
		index = first("name")
	case strings.HasPrefix(p, "/_create_from/"):
		index = first("source")
	}
	return path{
		params: params,
		index:  index,
		target: first("target", "new_index", "target_index", "dest"),
		typed:  strings.HasPrefix(p, "/{index}/{type}/{id}") || p == "/{index}/{type}",
	}
}

func write(root *node, paths []path, names []string, class map[string]string, maxParams, maxLabel int) ([]byte, error) {
	id := map[string]int{}
	for i, n := range names {
		id[n] = i + 1
	}
	all := []*node{root}
	for i := 0; i < len(all); i++ { // breadth first, so that a node's edges and the nodes they lead to stand together
		n := all[i]
		for _, l := range n.labels {
			n.next[l].number = len(all)
			all = append(all, n.next[l])
		}
		if n.param != nil {
			n.param.number = len(all)
			all = append(all, n.param)
		}
	}

	var b, edges, routes bytes.Buffer
	fmt.Fprintf(&b, "// Code generated by elastic/api/gen from apis.tsv. DO NOT EDIT.\n\npackage api\n\n")
	fmt.Fprintf(&b, "// Count is the number of APIs, the unknown one included: IDs are below it.\nconst Count = %d\n\n", len(names)+1)
	fmt.Fprintf(&b, "const (\nmaxParams = %d // of one path\nmaxLabel = %d // bytes of the longest literal segment\n)\n\n", maxParams, maxLabel)
	fmt.Fprintf(&b, "var apis = [Count]apiInfo{\n{},\n")
	for _, n := range names {
		fmt.Fprintf(&b, "{%q, %s},\n", n, classes[class[n]])
	}
	fmt.Fprintf(&b, "}\n\nvar paths = [...]pathInfo{\n")
	for _, p := range paths {
		fmt.Fprintf(&b, "{%#v, %d, %d, %t},\n", p.params, p.index, p.target, p.typed)
	}
	fmt.Fprintf(&b, "}\n\nvar nodes = [...]node{\n")
	edgeCount, routeCount := 0, 0
	for _, n := range all {
		param := 0
		if n.param != nil {
			param = n.param.number
		}
		fmt.Fprintf(&b, "{%d, %d, %d, %d, %d},\n", edgeCount, len(n.labels), param, routeCount, len(n.routes))
		for _, l := range n.labels {
			fmt.Fprintf(&edges, "{%q, %d},\n", l, n.next[l].number)
			edgeCount++
		}
		for _, r := range n.routes {
			fmt.Fprintf(&routes, "{%s, %s, %d, %d}, // %s\n", methods[r.method], idempotencies[r.idempotency], id[r.name], r.path, r.name)
			routeCount++
		}
	}
	fmt.Fprintf(&b, "}\n\nvar edges = [...]edge{\n%s}\n\nvar routes = [...]route{\n%s}\n", edges.String(), routes.String())
	if len(all) > 1<<16 || edgeCount > 1<<16 || routeCount > 1<<16 {
		return nil, fmt.Errorf("%d nodes, %d edges, %d routes do not fit 16 bits", len(all), edgeCount, routeCount)
	}
	return format.Source(b.Bytes())
}
