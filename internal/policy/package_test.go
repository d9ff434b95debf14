package policy

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryPackageSaysWhatItIsFor wants a comment in front of one package clause of each package.
func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range undocumented(all) {
		t.Errorf("package %s has no comment that begins with its name", dir)
	}
}

// undocumented returns the folders of packages without a comment, sorted.
func undocumented(all []*source) []string {
	missing := map[string]bool{}
	for _, s := range all {
		if s.test() {
			continue
		}
		if _, seen := missing[s.dir()]; !seen {
			missing[s.dir()] = true
		}
		start := "Package " + s.file.Name.Name + " "
		if s.isMain() {
			start = "Command "
		}
		if strings.HasPrefix(s.file.Doc.Text(), start) {
			missing[s.dir()] = false
		}
	}
	maps.DeleteFunc(missing, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(missing))
}

func TestUndocumentedPackagesAreFound(t *testing.T) {
	f := func(want string, text string) {
		t.Helper()
		s, err := parse("a/a.go", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(undocumented([]*source{s}), " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	f("a", "package a")
	f("a", "// What it is.\npackage a")
	f("a", "// Package a is apart.\n\npackage a")
	f("", "// Package a is one.\npackage a")
	f("", "// Command a does something.\npackage main")
}

// machinePaths are folders of single machines, written so that this file has none.
var machinePaths = regexp.MustCompile(`(^|[^A-Za-z0-9_.*-])/(wor` + `k|roo` + `t|home/[a-z]+)/`)

// TestNoFileNamesAFolderOfAMachine looks at every file that is text.
func TestNoFileNamesAFolderOfAMachine(t *testing.T) {
	names, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue
		}
		for i, line := range bytes.Split(text, []byte{'\n'}) {
			if found := machinePaths.Find(line); found != nil {
				t.Errorf("%s:%d: %q is a folder of one machine", name, i+1, found)
			}
		}
	}
}

func TestFoldersOfMachinesAreFound(t *testing.T) {
	f := func(want bool, line string) {
		t.Helper()
		if got := machinePaths.MatchString(strings.ReplaceAll(line, "~", "/")); got != want {
			t.Errorf("%q: got %v, want %v", line, got, want)
		}
	}
	f(true, "~work~main~x")
	f(true, `cd "~root~go"`)
	f(true, "from ~home~alice~x")
	f(false, "docs~work~x")
	f(false, "~workers~x")
	f(false, "GET ~home~_search")
}
