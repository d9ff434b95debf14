package policy

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// called returns "pkg.Func" of a call such as time.Sleep(d), by the name that the file knows the package under.
func called(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// forbid returns a rule against calls, for the files that where picks.
func forbid(why string, where func(*source) bool, calls ...string) rule {
	return func(s *source) []string {
		if !where(s) {
			return nil
		}
		var problems []string
		ast.Inspect(s.file, func(n ast.Node) bool {
			if name := called(n); slices.Contains(calls, name) {
				problems = append(problems, fmt.Sprintf("%s: %s: %s", s.at(n), name, why))
			}
			return true
		})
		return problems
	}
}

var (
	noSleep = forbid("wait for what is to happen, not for a time: a channel, a deadline, internal/simtime",
		func(*source) bool { return true }, "time.Sleep")
	noBareSynctest = forbid("internal/simtime keeps the race detector alive",
		func(s *source) bool { return !strings.HasPrefix(s.name, "internal/simtime/") }, "synctest.Test")
	noExit = forbid("only a main package ends the process, and tests, which run themselves as children",
		func(s *source) bool { return !s.isMain() && !s.test() },
		"os.Exit", "log.Fatal", "log.Fatalf", "log.Fatalln")
	noBackground = forbid("what a filter does has a caller or an owner that ends it",
		func(s *source) bool { return strings.HasPrefix(s.name, "filters/") && !s.test() }, "context.Background", "context.TODO")
)

// noInit holds that nothing happens because a package is imported.
func noInit(s *source) []string {
	var problems []string
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			problems = append(problems, s.at(f)+": func init: registration is explicit")
		}
	}
	return problems
}

// noPanic holds that code panics only where its name says so, or about a mistake in the program itself. Tests may panic.
func noPanic(s *source) []string {
	if s.test() {
		return nil
	}
	var problems []string
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && (strings.HasPrefix(f.Name.Name, "must") || strings.HasPrefix(f.Name.Name, "Must")) {
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if called(n) == "panic" && !strings.HasPrefix(leftmost(n.(*ast.CallExpr).Args[0]), "BUG: ") {
				problems = append(problems, s.at(n)+`: panic: return an error, or say "BUG: " what cannot be`)
			}
			return true
		})
	}
	return problems
}

// leftmost returns the string that an expression begins with: a literal, the first part of a sum, or the first argument of
// a call.
func leftmost(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value)
			return text
		}
	case *ast.BinaryExpr:
		return leftmost(e.X)
	case *ast.CallExpr:
		if len(e.Args) > 0 {
			return leftmost(e.Args[0])
		}
	}
	return ""
}

func TestNothingSleeps(t *testing.T)                 { hold(t, noSleep) }
func TestSimulatedTimeIsMadeInOnePlace(t *testing.T) { hold(t, noBareSynctest) }
func TestOnlyMainEndsTheProcess(t *testing.T)        { hold(t, noExit) }
func TestFiltersHaveTheirCallers(t *testing.T)       { hold(t, noBackground) }
func TestNoInit(t *testing.T)                        { hold(t, noInit) }
func TestPanicsAreAboutTheProgram(t *testing.T)      { hold(t, noPanic) }

func TestCodeRulesCatch(t *testing.T) {
	f := func(r rule, want int, name, body string) {
		t.Helper()
		catches(t, r, want, name, "package p\n"+body)
	}
	f(noSleep, 2, "flows/a_test.go", "func f() { time.Sleep(1); go func() { time.Sleep(2) }() }")
	f(noSleep, 0, "flows/a.go", "func f() { time.After(1); x.time.Sleep() }")
	f(noBareSynctest, 1, "flows/a_test.go", "func f() { synctest.Test(t, func(t *testing.T) { synctest.Wait() }) }")
	f(noBareSynctest, 0, "internal/simtime/simtime.go", "func f() { synctest.Test(t, f) }")
	f(noExit, 2, "flows/a.go", "func f() { os.Exit(1); log.Fatalf(``) }")
	f(noBackground, 1, "filters/cache/a.go", "func f() { g(context.Background()) }")
	f(noBackground, 0, "flows/a.go", "func f() { g(context.Background()) }")
	f(noInit, 1, "flows/a.go", "func init() {}")
	f(noInit, 0, "flows/a.go", "func (x X) init() {}")
	f(noPanic, 1, "flows/a.go", "func f() { panic(`no`) }")
	f(noPanic, 1, "flows/a.go", "var f = func() { panic(err) }")
	f(noPanic, 0, "flows/a.go", "func mustBe() { panic(err) }")
	f(noPanic, 0, "flows/a.go", "func f() { panic(`BUG: `+x); panic(fmt.Sprintf(`BUG: %s`, x)) }")
	f(noPanic, 0, "flows/a_test.go", "func f() { panic(`planted`) }")
	catches(t, noExit, 0, "cmd/weir/main.go", "package main\nfunc main() { os.Exit(1) }")
}
