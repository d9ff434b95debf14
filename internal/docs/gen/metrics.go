package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A metric is one call of a method of obs.Metrics that registers a metric.
type metric struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"` // the method
	Help   string   `json:"help"`
	Labels []string `json:"labels"`
}

// methods are those of obs.Metrics, with the number of arguments before the labels.
var methods = map[string]int{"Counter": 2, "Gauge": 2, "GaugeFunc": 2, "CounterFunc": 2, "Histogram": 3}

// collectMetrics finds the metrics that the packages in dirs register, by name. All arguments must be literals; one whose
// name begins with weir_ and whose other arguments do not is an error.
func collectMetrics(dirs []string) ([]metric, error) {
	byName := map[string]metric{}
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				m, ok, bad := registered(n)
				if bad {
					err = fmt.Errorf("%s: help and labels of a metric must be literals", set.Position(n.Pos()))
				}
				if ok {
					byName[m.Name] = m
				}
				return true
			})
			if err != nil {
				return nil, err
			}
		}
	}
	list := make([]metric, 0, len(byName))
	for _, m := range byName {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b metric) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// registered returns the metric that n registers, if it is such a call. bad tells that it is one that cannot be read.
func registered(n ast.Node) (m metric, ok, bad bool) {
	call, isCall := n.(*ast.CallExpr)
	if !isCall || len(call.Args) < 2 {
		return m, false, false
	}
	sel, isMethod := call.Fun.(*ast.SelectorExpr)
	if !isMethod {
		return m, false, false
	}
	labels, known := methods[sel.Sel.Name]
	name, literal := text(call.Args[0])
	if !known || !literal || !strings.HasPrefix(name, "weir_") {
		return m, false, false
	}
	help, literal := text(call.Args[1])
	m = metric{Name: name, Type: sel.Sel.Name, Help: help, Labels: []string{}}
	for _, arg := range call.Args[min(labels, len(call.Args)):] {
		label, ok := text(arg)
		literal = literal && ok
		m.Labels = append(m.Labels, label)
	}
	return m, literal, !literal
}

// text returns the value of a string literal, or of a sum of them.
func text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := text(e.X)
		right, also := text(e.Y)
		return left + right, ok && also && e.Op == token.ADD
	}
	return "", false
}
