package policy

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"
)

// base are the packages that everything may stand on.
var base = []string{"internal/conf", "internal/obs", "internal/wire"}

// layers say what packages may import besides themselves and what is below them. The longest prefix counts; a package
// that none fits has no place yet. Tests may import what they like.
var layers = map[string][]string{
	"internal/wire":       {},
	"internal/conf":       {},
	"internal/obs":        {},
	"internal/admin":      base,
	"elastic":             append([]string{"elastic"}, base...),
	"queue":               append([]string{"queue"}, base...),
	"flows":               append([]string{"elastic=", "elastic/api", "elastic/generation", "elastic/query"}, base...),
	"flows/flowstest":     append([]string{"flows=", "elastic="}, base...),
	"pipeline":            append([]string{"pipeline", "flows", "elastic", "queue"}, base...),
	"filters":             append([]string{"filters/outbox", "flows", "elastic", "queue"}, base...),
	"filters=":            {"filters", "flows"},
	"internal/app":        append([]string{"internal/admin", "filters=", "pipeline", "flows", "elastic", "queue"}, base...),
	"internal/docs":       append([]string{"internal/app", "filters=", "pipeline", "flows", "elastic"}, base...),
	"internal/policy":     {},
	"internal/dashboards": {"internal/dashboards", "internal/obs"},
	"internal/searchnode": {"internal/searchnode"},
	"internal/e2e":        {"internal/searchnode"},
	"internal/sim":        {"elastic/balance"},
	"internal/simtime":    {},
	"internal/demo":       {""},
	"cmd":                 {""},
	"bench":               {"bench", "elastic/estest"},
}

// owners are the only packages that may import a library, those below them included. Tests may import what they like.
var owners = map[string][]string{
	"go.yaml.in/yaml":                    {"internal/conf"},
	"github.com/fsnotify/fsnotify":       {"internal/conf"},
	"github.com/nsqio/go-diskqueue":      {"queue/disk"},
	"github.com/prometheus/":             {"internal/obs"},
	"github.com/cactus/go-statsd-":       {"internal/obs"},
	"github.com/klauspost/compress/zstd": {"queue"},
	"github.com/valyala/fasthttp":        {"bench"},
	"github.com/maypok86/otter":          {"filters/cache"},
	"github.com/dgraph-io/ristretto":     {"filters/cache"},
	"github.com/alecthomas/kong":         {"cmd"},
	"github.com/elastic/go-elasticsear":  {"elastic", "pipeline", "internal/e2e/clients"},
}

// under tells whether the package dir is the one that pattern names, or below it. A pattern that ends in = is that
// package alone, an empty one any.
func under(dir, pattern string) bool {
	if exact, ok := strings.CutSuffix(pattern, "="); ok {
		return dir == exact
	}
	return pattern == "" || dir == pattern || strings.HasPrefix(dir, pattern+"/")
}

func anyOf(dir string, patterns []string) bool {
	for _, p := range patterns {
		if under(dir, p) {
			return true
		}
	}
	return false
}

// layerOf returns the layer of a package.
func layerOf(dir string) (name string, allowed []string, ok bool) {
	for pattern, a := range layers {
		if under(dir, pattern) && len(pattern) > len(name) {
			name, allowed, ok = pattern, a, true
		}
	}
	return name, allowed, ok
}

// direction holds that imports within the project point downwards, and that a filter family imports no other family.
func direction(s *source) []string {
	name, allowed, ok := layerOf(s.dir())
	if !ok {
		return []string{fmt.Sprintf("%s: package %s has no place in layers (imports_test.go)", s.name, s.dir())}
	}
	if s.test() {
		return nil
	}
	var problems []string
	s.imports(func(spec *ast.ImportSpec, p string) {
		to, own := strings.CutPrefix(p, module+"/")
		if !own || under(to, s.dir()) || anyOf(to, allowed) {
			return
		}
		problems = append(problems, fmt.Sprintf("%s: %s imports %s, which %s may not", s.at(spec), s.dir(), to, name))
	})
	return problems
}

// ownership holds that libraries with one owner are imported by that one only.
func ownership(s *source) []string {
	if s.test() {
		return nil
	}
	var problems []string
	s.imports(func(spec *ast.ImportSpec, p string) {
		for library, who := range owners {
			if strings.HasPrefix(p, library) && !anyOf(s.dir(), who) {
				problems = append(problems, fmt.Sprintf("%s: %s imports %s, which is for %s only", s.at(spec), s.dir(), p, who))
			}
		}
	})
	return problems
}

func TestImportsPointOneWay(t *testing.T) { hold(t, direction) }

func TestLibrariesHaveOneOwner(t *testing.T) { hold(t, ownership) }

func TestImportRulesCatch(t *testing.T) {
	f := func(r rule, want int, name, imports string) {
		t.Helper()
		catches(t, r, want, name, "package p\nimport ("+imports+")")
	}
	f(direction, 0, "flows/a.go", `"weir/elastic"; "weir/elastic/api"; "weir/internal/wire"; "fmt"`)
	f(direction, 3, "flows/a.go", `"weir/elastic/balance"; "weir/elastic/transport"; "weir/elastic/estest"`)
	f(direction, 2, "flows/a.go", `"weir/filters/limit"; "weir/internal/app"`)
	f(direction, 0, "flows/a_test.go", `"weir/elastic/estest"`)
	f(direction, 1, "filters/cache/a.go", `"weir/flows"; "weir/filters/limit"`)
	f(direction, 0, "filters/cache/a.go", `"weir/filters/cache/store"; "weir/queue"`)
	f(direction, 0, "filters/register.go", `"weir/filters/cache"`)
	f(direction, 1, "elastic/api/a.go", `"weir/flows"`)
	f(direction, 1, "internal/conf/a.go", `"weir/internal/obs"`)
	f(direction, 1, "pipeline/a.go", `"weir/filters/log"`)
	f(direction, 1, "nowhere/a.go", `"fmt"`)
	f(ownership, 1, "flows/a.go", `"go.yaml.in/yaml/v4"`)
	f(ownership, 1, "queue/a.go", `"github.com/nsqio/go-diskqueue"`)
	f(ownership, 1, "flows/a.go", `"github.com/prometheus/client_golang/prometheus"`)
	f(ownership, 1, "filters/limit/a.go", `"github.com/maypok86/otter/v2"`)
	f(ownership, 0, "filters/limit/a_test.go", `"github.com/prometheus/client_model/go"`)
	f(ownership, 0, "queue/disk/a.go", `"github.com/nsqio/go-diskqueue"`)
	f(ownership, 0, "bench/bare/a.go", `"github.com/valyala/fasthttp"`)
}
