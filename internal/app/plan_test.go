package app

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/filters"
	"weir/internal/conf"
)

var wantComment = regexp.MustCompile(`^\s*# want (\d+) (.*)$`)

// TestCorpus holds each file of the corpus against the comments above its faults, which give the column: nothing more and
// nothing less is found. An unset variable would be one; all are set to 1.
func TestCorpus(t *testing.T) {
	names, err := filepath.Glob("testdata/conf/*.yml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			_, p := Load(conf.Options{Files: []string{name}, LookupEnv: func(string) (string, bool) { return "1", true }})
			got := p.Sorted()
			var above [][]string
			line := 0
			for s := range strings.Lines(string(text)) {
				line++
				if m := wantComment.FindStringSubmatch(strings.TrimRight(s, "\n")); m != nil {
					above = append(above, m)
					continue
				}
				for _, m := range above {
					at := fmt.Sprintf("%s:%d:%s: ", name, line, m[1])
					i := slices.IndexFunc(got, func(q conf.Problem) bool {
						return strings.HasPrefix(q.String(), at) && strings.Contains(q.String(), m[2])
					})
					if i < 0 {
						t.Errorf("not found: %s%s", at, m[2])
						continue
					}
					got = slices.Delete(got, i, i+1)
				}
				above = nil
			}
			for _, q := range got {
				t.Errorf("not wanted: %s", q)
			}
		})
	}
}

// loadText loads main.yml of files in memory.
func loadText(files map[string]string) (*Plan, []string) {
	plan, p := Load(conf.Options{
		Files: []string{"main.yml"},
		ReadFile: func(name string) ([]byte, error) {
			if text, ok := files[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		},
		LookupEnv: func(string) (string, bool) { return "", false },
	})
	var texts []string
	for _, q := range p.Sorted() {
		texts = append(texts, q.String())
	}
	return plan, texts
}

// TestMissingPartsBlameNobodyElse: what refers to something in a file that cannot be read is not wrong.
func TestMissingPartsBlameNobodyElse(t *testing.T) {
	f := func(files map[string]string, want ...string) {
		t.Helper()
		if _, got := loadText(files); !cmp.Equal(got, want) {
			t.Error(cmp.Diff(want, got))
		}
	}
	f(map[string]string{}, "main.yml: cannot read the file: file does not exist")
	f(map[string]string{"main.yml": "path: {data: x}\n"}, "main.yml: no entry: the configuration would serve nothing")
	f(map[string]string{"main.yml": "entry: [\n"}, "main.yml:2:1: did not find expected node content while parsing a flow node")
	rest := `
entry: [{name: e, router: r}]
router: [{name: s, default_flow: f, rules: [{pattern: /a, when: {flow: g}, flow: h}]}]
flow: [{name: used, filter: [{elasticsearch: {elasticsearch: main}}]}]
pipeline: [{name: p, json_indexing: {input_queue: q, elasticsearch: main, index_name: i}}]
`
	f(map[string]string{"main.yml": "include: gone.yml" + rest}, "main.yml:1:10: cannot read gone.yml: file does not exist")
}

// TestBrokenParametersNeverPanic builds every filter from its examples with each value replaced by others: what Build is
// given may be anything that half of a configuration decodes to.
func TestBrokenParametersNeverPanic(t *testing.T) {
	head := "entry: [{name: e, router: r}]\nrouter: [{name: r, default_flow: f}]\nflow:\n- name: f\n  filter:\n"
	value := regexp.MustCompile(`(: |\[)([^\[\]{},:\n]+)`)
	for _, k := range filters.Registry().Kinds() {
		for _, e := range k.Examples {
			text := "  " + strings.ReplaceAll(e.YAML, "\n", "\n  ")
			for _, at := range value.FindAllStringSubmatchIndex(text, -1) {
				for _, broken := range []string{"[]", "{}", "-1", "0", "\"(\"", "[[a], {b: c}, ~]", "{x: [y]}", "~"} {
					loadText(map[string]string{"main.yml": head + text[:at[4]] + broken + text[at[5]:] + "\n"})
				}
			}
			for _, broken := range []string{"[]", "x", "[~]", "{rules: 1, limits: [~, {}]}", "{include: [a]}", "{headers: [a]}"} {
				loadText(map[string]string{"main.yml": head + "  - " + k.Name + ": " + broken + "\n"})
			}
		}
	}
}

func TestEntryThatIsSwitchedOffIsNamedAsSuch(t *testing.T) {
	plan, problems := loadText(map[string]string{"main.yml": `
entry: [{name: on, router: r}, {name: off, router: r, enabled: false}]
router: [{name: r, default_flow: f}]
flow: [{name: f, filter: [{echo: {}}]}]
`})
	if plan == nil {
		t.Fatal(problems)
	}
	if _, err := plan.Entry("off"); err == nil || err.Error() != `entry "off" is switched off` {
		t.Error(err)
	}
}
