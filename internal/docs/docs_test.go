package docs

import (
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/api"
	"weir/filters"
	"weir/flows"
	"weir/internal/app"
	"weir/internal/conf"
	"weir/internal/obs"
)

var update = flag.Bool("update", false, "write the reference pages")

const (
	root      = "../.."
	reference = root + "/docs/reference"
)

func newReference() *Reference { return New(filters.Registry()) }

// everything calls f with each schema of the reference and the way to it.
func everything(r *Reference, f func(path string, s conf.Schema)) {
	var walk func(path string, s conf.Schema)
	walk = func(path string, s conf.Schema) {
		f(path, s)
		for _, sub := range s.Fields {
			walk(path+"."+sub.Name, sub)
		}
		if s.Elem != nil {
			for _, sub := range s.Elem.Fields {
				walk(path+"[]."+sub.Name, sub)
			}
		}
	}
	for _, s := range r.Config().Fields {
		walk(s.Name, s)
	}
	for name, s := range r.modules() {
		for _, sub := range s.Fields {
			walk("modules."+name+"."+sub.Name, sub)
		}
	}
	for _, k := range r.registry.Kinds() {
		for _, s := range r.Filter(k).Fields {
			walk(k.Name+"."+s.Name, s)
		}
	}
}

func TestEveryFieldHasProse(t *testing.T) {
	n := 0
	everything(newReference(), func(path string, s conf.Schema) {
		n++
		if strings.TrimSpace(s.Doc) == "" && !s.Hidden {
			t.Errorf("%s: the field has no comment; add one and run make docs", path)
		}
	})
	if n < 100 {
		t.Errorf("only %d fields were looked at", n)
	}
}

// TestDefaultsKeepTheLimits decodes each default as if it were given, which checks limits and allowed values.
func TestDefaultsKeepTheLimits(t *testing.T) {
	n := 0
	for _, k := range filters.Registry().Kinds() {
		for _, s := range newReference().Filter(k).Fields {
			if s.Default == "" || s.Required || s.Deprecated != "" {
				continue
			}
			n++
			p := build(t, k, s.Name+": "+s.Default)
			for _, q := range p.Sorted() {
				if q.Severity == conf.Error && strings.HasSuffix(q.Where, ": "+s.Name) {
					t.Errorf("%s: the default %s of %s is refused: %s", k.Name, s.Default, s.Name, q)
				}
			}
		}
	}
	everything(newReference(), func(path string, s conf.Schema) {
		if s.Enum != nil && s.Default != "" && s.Elem == nil && !strings.HasPrefix(s.Default, "[") && !slices.Contains(s.Enum, s.Default) {
			t.Errorf("%s: the default %q is none of %q", path, s.Default, s.Enum)
		}
	})
	if n < 20 {
		t.Errorf("only %d defaults were looked at", n)
	}
	planted := build(t, filters.Registry().Kind("echo"), "repeat: 0").Sorted()
	if len(planted) != 1 || !strings.HasSuffix(planted[0].Where, ": repeat") {
		t.Errorf("a value outside its limits is reported as %q", planted)
	}
}

// build builds a filter with one parameter given and returns what is wrong with it.
func build(t *testing.T, k *flows.Kind, parameter string) *conf.Problems {
	t.Helper()
	n, p := conf.Parse("default", "- name: f\n  filter:\n  - "+k.Name+":\n      "+parameter+"\n", noVariables)
	b := flows.NewBuilder(filters.Registry(), p)
	b.Define(n)
	return p
}

func noVariables(string) (string, bool) { return "", false }

// load loads a configuration as weir check does, where ES_PASSWORD is set in the environment.
func load(text string) *conf.Problems {
	_, p := app.Load(conf.Options{
		Files:     []string{"gateway.yml"},
		ReadFile:  func(string) ([]byte, error) { return []byte(text), nil },
		LookupEnv: func(name string) (string, bool) { return "x", name == "ES_PASSWORD" },
	})
	return p
}

// around puts a list of filters into a configuration in which all that lists refer to is there.
func around(list string) string {
	const rest = `
  - {name: limits, filter: [{echo: {}}]}
  - {name: to_cluster, filter: [{echo: {}}]}
elasticsearch:
  - {name: default, endpoint: "http://localhost:9200"}
  - {name: main, endpoint: "http://localhost:9200"}
router:
  - {name: r, default_flow: example}
entry:
  - {name: e, router: r}
`
	return "flow:\n  - name: example\n    filter:\n" + indent(list) + rest
}

func indent(text string) string {
	return "      " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      ") + "\n"
}

func TestExamplesLoad(t *testing.T) {
	r := newReference()
	for _, k := range r.registry.Kinds() {
		if len(k.Examples) == 0 {
			t.Errorf("%s has no example", k.Name)
		}
		for _, e := range k.Examples {
			if err := load(around(e.YAML)).Err(); err != nil {
				t.Errorf("%s: %s: %v", k.Name, e.Title, err)
			}
			if !strings.Contains(e.YAML, k.Name) {
				t.Errorf("%s: %s: the example does not have the filter in it", k.Name, e.Title)
			}
		}
	}
	for _, k := range r.processors.Kinds() {
		if len(k.Examples) == 0 {
			t.Errorf("%s has no example", k.Name)
		}
		for _, e := range k.Examples {
			if err := load("pipeline:\n" + indent(e.YAML) + around("- echo: {}")).Err(); err != nil {
				t.Errorf("%s: %s: %v", k.Name, e.Title, err)
			}
		}
	}
}

// TestGeneratedFilesAreCurrent holds that prose.json and metrics.json are what go generate makes of the source.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./gen", "-root", root, "-out", dir).CombinedOutput(); err != nil {
		t.Fatalf("go run ./gen: %v\n%s", err, out)
	}
	for name, committed := range map[string][]byte{"prose.json": proseJSON, "metrics.json": metricsJSON} {
		now, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(committed), string(now)); diff != "" {
			t.Errorf("%s: run make docs (-committed +source):\n%s", name, diff)
		}
	}
}

// TestMetricsKeepTheRulesOfNames checks all metrics at once, whatever starts them.
func TestMetricsKeepTheRulesOfNames(t *testing.T) {
	if err := obs.CheckNames(mustMetrics()); err != nil {
		t.Error(err)
	}
}

// TestPagesAreWritten compares the pages in the repository with those that the program makes.
func TestPagesAreWritten(t *testing.T) {
	want := newReference().Pages()
	if *update {
		for page, text := range want {
			name := filepath.Join(reference, page)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := map[string]string{}
	err := filepath.WalkDir(reference, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		rel, _ := filepath.Rel(reference, name)
		got[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("run make docs and commit what it writes (-program +repository):\n%s", diff)
	}
}

// guides returns the hand-written pages: README, CONTRIBUTING and docs, without the reference.
func guides(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(root, name)
			pages[filepath.ToSlash(rel)] = string(text)
		}
	}
	return pages
}

var loadable = regexp.MustCompile("(?ms)^```yaml load\n(.*?)^```$")

// TestGuidesLoad loads each block that says that it loads: a whole configuration, which has to pass weir check --strict, or a
// list of filters.
func TestGuidesLoad(t *testing.T) {
	blocks := 0
	for page, text := range guides(t) {
		for _, m := range loadable.FindAllStringSubmatch(text, -1) {
			blocks++
			config := m[1]
			if strings.HasPrefix(config, "- ") {
				config = around(config)
			}
			for _, q := range load(config).Sorted() {
				if q.Severity == conf.Error || !strings.HasPrefix(m[1], "- ") { // what a part is put into has things that it does not use
					t.Errorf("%s: %v\n%s", page, q, m[1])
				}
			}
		}
	}
	if blocks < 5 {
		t.Errorf("only %d blocks found", blocks)
	}
}

var wrong = regexp.MustCompile("(?ms)^```yaml wrong\n(.*?)^```\n\n```\n(.*?)^```$")

// TestGuidesSayWhatIsWrong holds that each block which says that it is wrong has the problems that stand behind it.
func TestGuidesSayWhatIsWrong(t *testing.T) {
	blocks := 0
	for page, text := range guides(t) {
		for _, m := range wrong.FindAllStringSubmatch(text, -1) {
			blocks++
			var got strings.Builder
			if err := load(m[1]).WriteText(&got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m[2], got.String()); diff != "" {
				t.Errorf("%s (-page +program):\n%s", page, diff)
			}
		}
	}
	if blocks == 0 {
		t.Error("no block found")
	}
}

// filterInBlock finds filters in the short form.
var filterInBlock = regexp.MustCompile(`(?m)^\s*- ([a-z_]+): \{`)

// TestGuidesNameOnlyFiltersThatExist looks at lists in code blocks, loadable or not.
func TestGuidesNameOnlyFiltersThatExist(t *testing.T) {
	names := filters.Registry().Names()
	sections := []string{"index", "header"} // conditions in lists
	blocks := regexp.MustCompile("(?ms)^```yaml[^\n]*\n(.*?)^```$")
	for page, text := range guides(t) {
		for _, block := range blocks.FindAllStringSubmatch(text, -1) {
			for _, m := range filterInBlock.FindAllStringSubmatch(block[1], -1) {
				if !slices.Contains(names, m[1]) && !slices.Contains(sections, m[1]) {
					t.Errorf("%s: there is no filter %s", page, m[1])
				}
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	unnamed = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the names by which links lead to the headings of a page, as GitHub makes them.
func anchors(page string) (names []string) {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		names = append(names, strings.ReplaceAll(unnamed.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return names
}

// TestLinksLeadSomewhere follows the links within and between pages.
func TestLinksLeadSomewhere(t *testing.T) {
	pages := guides(t)
	for page, text := range newReference().Pages() {
		pages["docs/reference/"+page] = text
	}
	links := 0
	for page, text := range pages {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			links++
			to := page
			if m[1] != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(page), m[1]))
			}
			_, err := os.Stat(filepath.Join(root, to))
			if err != nil || m[2] != "" && !slices.Contains(anchors(pages[to]), m[2]) {
				t.Errorf("%s: the link %s#%s leads nowhere", page, m[1], m[2])
			}
		}
	}
	if links < 30 {
		t.Errorf("only %d links found", links)
	}
}

// TestConditionWordsAreThoseThatAreUnderstood asks for a word that nobody knows, which is answered with all that are.
func TestConditionWordsAreThoseThatAreUnderstood(t *testing.T) {
	n, p := conf.Parse("when", "zzzzzzzzzz: 1", noVariables)
	flows.ParseCondition(n, p)
	_, listed, ok := strings.Cut(p.Err().Error(), "known are ")
	if !ok {
		t.Fatal(p.Err())
	}
	var mine []string
	for _, w := range words {
		mine = append(mine, w.name)
	}
	want := strings.Split(listed, ", ")
	slices.Sort(want)
	slices.Sort(mine)
	if diff := cmp.Diff(want, mine); diff != "" {
		t.Errorf("(-understood +described)\n%s", diff)
	}
}

// TestAllClassesAreDescribed holds that the word class names every class.
func TestAllClassesAreDescribed(t *testing.T) {
	text := words[slices.IndexFunc(words, func(w word) bool { return w.name == "class" })].doc
	for c := api.ClassUnknown; c <= api.ClassAdmin; c++ {
		if !strings.Contains(text, "`"+c.String()+"`") {
			t.Errorf("class does not say %s: %s", c, text)
		}
	}
}

// TestTheHeadOfAFilterIsUnderstood loads what flowConfig and head describe, which no struct elsewhere has.
func TestTheHeadOfAFilterIsUnderstood(t *testing.T) {
	text := around(`- echo: {name: a, enabled: false, when: {method: GET}, message: hello}
- {name: b, type: echo, enabled: false, when: {method: GET}, parameters: {message: hello}}`)
	text = strings.Replace(text, "name: example", "name: example\n    enabled: true", 1)
	if err := load(text).Err(); err != nil {
		t.Error(err)
	}
	if load(strings.Replace(text, "enabled: true", "enable: true", 1)).Err() == nil {
		t.Error("a flow takes what is not described")
	}
}

func TestFilterText(t *testing.T) {
	r := newReference()
	got := r.FilterText(r.registry.Kind("echo"))
	for _, want := range []string{
		"echo (debug)\n", "  repeat  (integer, default 1)\n", "At least 1. At most 1000000.\n", "Example: A fixed answer\n  - echo: {",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	for line := range strings.Lines(got) {
		if len([]rune(line)) > lineWidth+1 && !strings.HasPrefix(line, "  - ") {
			t.Errorf("a long line: %q", line)
		}
	}
}

// TestSchemaRefersToWhatItHas follows all references of the JSON Schema.
func TestSchemaRefersToWhatItHas(t *testing.T) {
	text, err := json.Marshal(newReference().Schema())
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Error(schema["$schema"])
	}
	defs := schema["$defs"].(map[string]any)
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`"\$ref":"#/\$defs/([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
		used[m[1]] = true
		if defs[m[1]] == nil {
			t.Errorf("no definition of %s", m[1])
		}
	}
	for name := range defs {
		if !used[name] {
			t.Errorf("nothing refers to %s", name)
		}
	}
	for _, k := range filters.Registry().Kinds() {
		if !used["filter_"+k.Name] {
			t.Errorf("filter %s is not in the schema", k.Name)
		}
	}
}
