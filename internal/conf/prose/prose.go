// Package prose collects the doc comments of configuration structs, for the reference pages.
//
// It takes nothing but text from the source: shape, defaults and units come from the structs themselves at run time, since
// the syntax tree knows neither. It is for a generator that runs while Weir is built, not for Weir.
package prose

import (
	"errors"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Collect reads the Go packages in the given folders, without their tests, and returns the doc comments of the structs that
// have fields with a conf tag, by "package/path.Type", and of those fields, by "package/path.Type.Field"; fields of a
// struct without a name are found by the way to them: "package/path.Type.Field.Inner". Paragraphs are separated by an empty
// line and have no line ends within them. A folder must be part of a module.
func Collect(dirs []string) (map[string]string, error) {
	texts := make(map[string]string)
	for _, dir := range dirs {
		if err := collect(dir, texts); err != nil {
			return nil, fmt.Errorf("collect doc comments of %s: %w", dir, err)
		}
	}
	return texts, nil
}

func collect(dir string, texts map[string]string) error {
	pkg, err := importPath(dir)
	if err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if decl, ok := decl.(*ast.GenDecl); ok && decl.Tok == token.TYPE {
				types(decl, pkg, texts)
			}
		}
	}
	return nil
}

func types(decl *ast.GenDecl, pkg string, texts map[string]string) {
	for _, spec := range decl.Specs {
		spec := spec.(*ast.TypeSpec)
		structType, ok := spec.Type.(*ast.StructType)
		if !ok || !fields(structType, pkg+"."+spec.Name.Name, texts) {
			continue
		}
		doc := spec.Doc
		if doc == nil && !decl.Lparen.IsValid() {
			doc = decl.Doc
		}
		put(texts, pkg+"."+spec.Name.Name, doc)
	}
}

// fields collects the fields of a struct and tells whether any has a conf tag.
func fields(structType *ast.StructType, key string, texts map[string]string) bool {
	tagged := false
	for _, f := range structType.Fields.List {
		if f.Tag == nil || !strings.Contains(f.Tag.Value, `conf:"`) {
			continue
		}
		tagged = true
		doc := f.Doc
		if doc == nil {
			doc = f.Comment
		}
		for _, name := range f.Names {
			put(texts, key+"."+name.Name, doc)
			if inner, ok := anonymous(f.Type); ok {
				fields(inner, key+"."+name.Name, texts)
			}
		}
	}
	return tagged
}

// anonymous returns the struct without a name that t is, or is a pointer to, a list of, or a map of.
func anonymous(t ast.Expr) (*ast.StructType, bool) {
	for {
		switch u := t.(type) {
		case *ast.StructType:
			return u, true
		case *ast.StarExpr:
			t = u.X
		case *ast.ArrayType:
			t = u.Elt
		case *ast.MapType:
			t = u.Value
		default:
			return nil, false
		}
	}
}

func put(texts map[string]string, key string, doc *ast.CommentGroup) {
	if doc == nil {
		return
	}
	var p comment.Parser
	printer := comment.Printer{TextWidth: -1}
	if text := strings.TrimSpace(string(printer.Text(p.Parse(doc.Text())))); text != "" {
		texts[key] = text
	}
}

// importPath works out the import path of the package in dir from the go.mod above it.
func importPath(dir string) (string, error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for root := full; ; root = filepath.Dir(root) {
		text, err := os.ReadFile(filepath.Join(root, "go.mod"))
		switch {
		case err == nil:
			rel, err := filepath.Rel(root, full)
			if err != nil {
				return "", err
			}
			for line := range strings.Lines(string(text)) {
				if words := strings.Fields(line); len(words) > 1 && words[0] == "module" {
					return path.Join(strings.Trim(words[1], `"`), filepath.ToSlash(rel)), nil
				}
			}
			return "", fmt.Errorf("%s names no module", filepath.Join(root, "go.mod"))
		case !errors.Is(err, os.ErrNotExist):
			return "", err
		case root == filepath.Dir(root):
			return "", errors.New("it is not part of a module: no go.mod above it")
		}
	}
}
