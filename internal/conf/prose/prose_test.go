package prose

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCollect(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "filters", "limit")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		filepath.Join(root, "go.mod"): "// a comment\nmodule example.org/m // the name\n\ngo 1.26\n",
		filepath.Join(dir, "limit.go"): `package limit

// Config is the configuration
// of a limit.
//
// Second paragraph.
type Config struct {
	// Burst is how many
	// come at once.
	Burst int ` + "`conf:\"burst\"`" + `
	Rate, Other int ` + "`conf:\"rate\"`" + ` // Rate is beside.
	None int ` + "`conf:\"none\"`" + `
	// Untagged is no field.
	Untagged int
	// Rules are tried in order.
	Rules []*struct {
		// Pattern is what matches.
		Pattern string ` + "`conf:\"pattern\"`" + `
	} ` + "`conf:\"rules\"`" + `
}

// unrelated is no configuration.
type unrelated struct {
	// A is a field.
	A int
}

type (
	// inner is one of a group.
	inner struct {
		// A is inside.
		A int ` + "`conf:\"a\"`" + `
	}
)
`,
		filepath.Join(dir, "limit_test.go"): "package limit\n\n// T is a test.\ntype T struct {\n\tA int `conf:\"a\"`\n}\n",
	}
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Collect([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	const pkg = "example.org/m/filters/limit."
	want := map[string]string{
		pkg + "Config":               "Config is the configuration of a limit.\n\nSecond paragraph.",
		pkg + "Config.Burst":         "Burst is how many come at once.",
		pkg + "Config.Rate":          "Rate is beside.",
		pkg + "Config.Other":         "Rate is beside.",
		pkg + "Config.Rules":         "Rules are tried in order.",
		pkg + "Config.Rules.Pattern": "Pattern is what matches.",
		pkg + "inner":                "inner is one of a group.",
		pkg + "inner.A":              "A is inside.",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCollectNeedsAModule(t *testing.T) {
	if _, err := Collect([]string{t.TempDir()}); err == nil {
		t.Error("a folder outside of any module has no import path")
	}
}
