package conf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The limits of a configuration, all files together. They are far above what people write and far below what hurts.
const (
	maxNodes     = 100_000  // after aliases were followed, which is what stops an alias bomb
	maxDepth     = 100      // of nesting, aliases included
	maxFiles     = 1_000    // each may include others
	maxFileBytes = 16 << 20 // of one file
)

// Options say what to load and where from.
type Options struct {
	Files     []string                               // in order: lists of later files are appended
	ReadFile  func(name string) ([]byte, error)      // nil for os.ReadFile
	Glob      func(pattern string) ([]string, error) // nil for filepath.Glob
	LookupEnv func(name string) (string, bool)       // nil for os.LookupEnv
}

// Load reads files, those that they include, and fills in variables. The maps at their roots become one: lists are
// appended, maps merged, and two different values in one place are an error that names both places. Keys with dots at the
// roots are the classic form of maps: path.data: x is path: {data: x}. The result is never nil, and what could be read is
// in it even when there are problems.
//
// A section "env" at the top of a file gives what variables hold that are not set in the environment.
//
// A file includes others by a top-level key "configs" or "include", with one pattern or a list of them, relative to its own
// folder. Each file is read once, however often it is included.
func Load(opt Options) (*Node, *Problems) {
	p := new(Problems)
	if opt.ReadFile == nil {
		opt.ReadFile = os.ReadFile
	}
	if opt.Glob == nil {
		opt.Glob = filepath.Glob
	}
	l := loader{Options: opt, problems: p, root: &Node{kind: Map}, reader: newReader(opt.LookupEnv, p)}
	for i, name := range opt.Files {
		same := func(other string) bool { return filepath.Clean(other) == filepath.Clean(name) }
		if slices.ContainsFunc(opt.Files[:i], same) {
			p.Add(Problem{
				Pos: Pos{File: name}, Severity: Warning, Code: CodeConflict,
				Message: "the file is named twice; it is read once",
			})
			continue
		}
		l.load(name, nil)
	}
	return l.root, p
}

// Parse reads one text without following includes. name stands for it in positions; lookupEnv may be nil for
// os.LookupEnv. Unlike Load it takes any kind of root, since an example may be a list.
func Parse(name, text string, lookupEnv func(name string) (string, bool)) (*Node, *Problems) {
	p := new(Problems)
	return newReader(lookupEnv, p).read(Pos{File: name}, []byte(text)), p
}

type loader struct {
	Options
	problems *Problems
	root     *Node
	reader   *reader
	seen     []string
}

// load reads the file called name, which was included by the node at, or named by the caller where at is nil.
func (l *loader) load(name string, at *Node) {
	clean := filepath.Clean(name)
	if slices.Contains(l.seen, clean) {
		return
	}
	where := Pos{File: name}
	if at != nil {
		from := at.Pos()
		where.from = &from
	}
	l.seen = append(l.seen, clean)
	l.root.files = append(l.root.files, name)
	text, err := l.ReadFile(name)
	switch {
	case err != nil:
		if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
			err = pathError.Err
		}
		if at != nil {
			l.problems.Errorf(at, "cannot read %s: %v", name, err).Code = CodeRead
		} else {
			l.problems.Add(Problem{Pos: where, Code: CodeRead, Message: fmt.Sprintf("cannot read the file: %v", err)})
		}
		return
	case len(text) > maxFileBytes:
		l.problems.Add(Problem{
			Pos: where, Code: CodeLimit,
			Message: fmt.Sprintf("the file has %s, more than the %s that one may have", Bytes(len(text)), Bytes(maxFileBytes)),
		})
		return
	}
	n := l.reader.read(where, text)
	if n.IsZero() {
		return
	}
	if n.Kind() != Map {
		wrongType(n, l.problems, "a map at the top of a file")
		return
	}
	n = undot(n.Without(envSection), l.problems, nil)
	includes := make([]*Node, 0, 2)
	for _, key := range []string{"configs", "include"} {
		// "configs" was also a section of the classic form; as a map it is left to the one who knows the sections.
		if v := n.Get(key); v.Kind() == Scalar || v.Kind() == List {
			includes = append(includes, v)
			n = n.Without(key)
		}
	}
	files := l.root.files
	l.root = merge(l.root, n, "", true, l.problems)
	l.root.files = files
	for _, v := range includes {
		l.include(filepath.Dir(name), v)
	}
}

func (l *loader) include(dir string, n *Node) {
	if n.Kind() == List {
		for _, item := range n.Items() {
			l.include(dir, item)
		}
		return
	}
	if n.Kind() != Scalar || n.Scalar() == "" {
		wrongType(n, l.problems, "the path or pattern of a file")
		return
	}
	pattern := n.Scalar()
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(dir, pattern)
	}
	if !isPattern(pattern) {
		l.includeFile(pattern, n)
		return
	}
	l.root.files = append(l.root.files, pattern)
	names, err := l.Glob(pattern)
	if err != nil {
		l.problems.Errorf(n, "%s is no pattern for files: %v", n.Quoted(), err).Code = CodeInclude
		return
	}
	slices.Sort(names)
	for _, name := range names {
		l.includeFile(name, n)
	}
}

func (l *loader) includeFile(name string, n *Node) {
	if len(l.seen) >= maxFiles {
		l.problems.Errorf(n, "more than %d files are included", maxFiles).Code = CodeLimit
		return
	}
	l.load(name, n)
}

func isPattern(path string) bool { return strings.ContainsAny(path, "*?[") }

// merge puts b into a, both values of key. Between files, lists are appended and equal scalars are no conflict.
func merge(a, b *Node, key string, betweenFiles bool, p *Problems) *Node {
	switch {
	case b.IsZero():
		return a
	case a.IsZero():
		return b
	case a.kind == Map && b.kind == Map:
		both := *a
		both.pos = cmp.Or(a.pos, b.pos)
		both.members = slices.Clone(a.members)
		places := both.places()
		for _, m := range b.members {
			if i, ok := places[m.key]; ok {
				path := strings.TrimPrefix(key+"."+m.key, ".")
				both.members[i].value = merge(both.members[i].value, m.value, path, betweenFiles, p)
			} else {
				both.members = append(both.members, m)
			}
		}
		return &both
	case betweenFiles && a.kind == List && b.kind == List:
		both := *a
		both.items = slices.Concat(a.items, b.items)
		return &both
	case betweenFiles && a.kind == Scalar && b.kind == Scalar && a.text == b.text:
		return a
	}
	p.Errorf(b, "%s is given twice; the other value stands at %s", key, a.pos).Code = CodeConflict
	return a
}

// undot turns keys with dots into maps, as in the classic form: path.data: x into path: {data: x}. Only keys of which
// known says that the part before the dot is a name, and that the whole is not, are turned; without known all are.
func undot(n *Node, p *Problems, known func(string) bool) *Node {
	dotted := func(m member) (head, tail string, ok bool) {
		head, tail, ok = strings.Cut(m.key, ".")
		ok = ok && head != "" && tail != "" && (known == nil || known(head) && !known(m.key))
		return head, tail, ok
	}
	if n.Kind() != Map || !slices.ContainsFunc(n.members, func(m member) bool { _, _, ok := dotted(m); return ok }) {
		return n
	}
	flat := *n
	flat.members = nil
	places := make(map[string]int)
	for _, m := range n.members {
		if head, tail, ok := dotted(m); ok {
			m = member{head, m.pos, &Node{kind: Map, pos: m.pos, members: []member{{tail, m.pos, m.value}}}}
		}
		if i, ok := places[m.key]; ok {
			flat.members[i].value = merge(flat.members[i].value, m.value, m.key, false, p)
		} else {
			places[m.key] = len(flat.members)
			flat.members = append(flat.members, m)
		}
	}
	return &flat
}
