package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"weir/filters"
	"weir/internal/docs"
)

type docsCmd struct {
	Out string `default:"docs/reference" placeholder:"FOLDER" help:"Folder to write to. Pages of filters in it that no longer exist are removed."`
}

// Run writes the reference pages.
func (c *docsCmd) Run(e env) error {
	pages := docs.New(filters.Registry()).Pages()
	old, err := filepath.Glob(filepath.Join(c.Out, "filters", "*.md"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if rel, err := filepath.Rel(c.Out, name); err == nil && pages[filepath.ToSlash(rel)] == "" {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	for _, page := range slices.Sorted(maps.Keys(pages)) {
		name := filepath.Join(c.Out, filepath.FromSlash(page))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(pages[page]), 0o644); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(e.stdout, "%d pages in %s\n", len(pages), c.Out)
	return err
}
