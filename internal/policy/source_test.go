package policy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is the path of the module, which begins the paths of its packages.
const module = "weir"

// A source is a parsed Go file.
type source struct {
	name string // relative to the root of the repository
	set  *token.FileSet
	file *ast.File
}

func (s *source) dir() string  { return path.Dir(s.name) }
func (s *source) test() bool   { return strings.HasSuffix(s.name, "_test.go") }
func (s *source) isMain() bool { return s.file.Name.Name == "main" }

func (s *source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.name, s.set.Position(n.Pos()).Line)
}

// imports calls f with the path of each import.
func (s *source) imports(f func(spec *ast.ImportSpec, path string)) {
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			f(spec, p)
		}
	}
}

// parse returns the source with that name and text.
func parse(name string, text []byte) (*source, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	return &source{name, set, file}, err
}

// root is the top of the repository as seen from the folder in which tests run.
const root = "../.."

// ignored are the folders that are not the project's own: some wherever they are, others in their place only, since packages
// may have such a name.
var ignored = []string{".git", "node_modules", ".venv"}

var ignoredHere = []string{"bin", "data", "log", "bench/results"}

// files returns the names of all files of the repository.
var files = sync.OnceValues(func() ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			rel, err := filepath.Rel(root, name)
			if err == nil && (slices.Contains(ignored, d.Name()) || slices.Contains(ignoredHere, filepath.ToSlash(rel))) {
				return filepath.SkipDir
			}
			return err
		case d.Name() == ".git": // a file in a linked working tree
		case d.Type().IsRegular():
			rel, err := filepath.Rel(root, name)
			names = append(names, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	return names, err
})

// sources returns all Go files of the repository, those in testdata excepted.
var sources = sync.OnceValues(func() ([]*source, error) {
	names, err := files()
	if err != nil {
		return nil, err
	}
	var all []*source
	for _, name := range names {
		if path.Ext(name) != ".go" || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		s, err := parse(name, text)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
})

// A rule returns what is wrong with a source, each with its place.
type rule func(s *source) []string

// hold applies a rule to all sources.
func hold(t *testing.T, r rule) {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, problem := range r(s) {
			t.Error(problem)
		}
	}
}

// catches tells whether a rule sees what is wrong in a file with that name and text; want 0 for a file in which nothing
// is.
func catches(t *testing.T, r rule, want int, name, text string) {
	t.Helper()
	s, err := parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := r(s); len(got) != want {
		t.Errorf("%s: %q: found %q, want %d", name, text, got, want)
	}
}
