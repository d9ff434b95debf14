package policy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// A licence that a dependency may have, known by words that no other has. They all let Weir be given away under the Apache
// License.
var licences = map[string]string{
	"Apache-2.0": "apache license version 2.0",
	"MIT":        "permission is hereby granted, free of charge, to any person obtaining a copy",
	"BSD":        "redistribution and use in source and binary forms, with or without modification, are permitted",
	"ISC":        "permission to use, copy, modify, and/or distribute this software for any purpose",
	"MPL-2.0":    "mozilla public license version 2.0", // of single files, which Weir leaves as they are
}

// licenceOf returns the licence of a text, or "".
func licenceOf(text string) string {
	words := strings.ToLower(strings.Join(strings.Fields(text), " "))
	words = strings.NewReplacer("license, version", "license version", "license v. 2.0", "license version 2.0").Replace(words)
	for name, mark := range licences {
		if strings.Contains(words, mark) {
			return name
		}
	}
	return ""
}

// required returns the modules that a go.mod requires, as path@version.
func required(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(words) >= 2 && strings.Contains(words[0], ".") && strings.HasPrefix(words[1], "v") {
			out = append(out, words[0]+"@"+words[1])
		}
	}
	return out
}

// escaped returns a module in the form of its folder: capitals are written as ! and the small letter.
func escaped(module string) string {
	var b strings.Builder
	for _, r := range module {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// TestDependenciesMayBeUsed reads the licences of the modules that are in the cache. Those that are not were not needed to
// build the tests on this machine.
func TestDependenciesMayBeUsed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skip("no go command to ask for the module cache:", err)
	}
	modules := required(string(text))
	if len(modules) == 0 {
		t.Error("go.mod requires nothing?")
	}
	read := 0
	for _, m := range modules {
		dir := filepath.Join(strings.TrimSpace(string(cache)), filepath.FromSlash(escaped(m)))
		names, _ := filepath.Glob(filepath.Join(dir, "[LlCc][IiOo][CcPp][EeYy]*")) // LICENSE, licence, COPYING
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		read++
		found := ""
		for _, name := range names {
			if text, err := os.ReadFile(name); err == nil && found == "" {
				found = licenceOf(string(text))
			}
		}
		if found == "" {
			t.Errorf("%s: no licence that is known here, in %q", m, names)
		}
	}
	t.Logf("%d of %d modules read", read, len(modules))
}

func TestLicencesAreKnown(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := licenceOf(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	f("   Apache License\n   Version 2.0, January 2004", "Apache-2.0")
	f("Mozilla Public License Version 2.0\n===", "MPL-2.0")
	f("GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3", "")
	f("Server Side Public License\nVERSION 1", "")
	f("Elastic License 2.0", "")
	f("", "")
}

func TestRequiredReadsBothForms(t *testing.T) {
	got := required("module x\n\ngo 1.26.0\n\nrequire a.b/C v1.2.3\nrequire (\n\tc.d/e/v2 v2.0.0 // indirect\n)\n")
	if want := "a.b/C@v1.2.3 c.d/e/v2@v2.0.0"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := escaped("github.com/BurntSushi/toml"); got != "github.com/!burnt!sushi/toml" {
		t.Error(got)
	}
}
