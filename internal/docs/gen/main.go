// Command gen collects from the source what package docs cannot know at run time: the doc comments of configuration
// structs, and the metrics that are registered. It is run by go generate and is no part of the program.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"weir/internal/conf/prose"
)

func main() {
	root := flag.String("root", "../..", "top of the repository")
	out := flag.String("out", ".", "folder to write prose.json and metrics.json to")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// packages are where configuration structs and metrics stand, as patterns.
var packages = []string{
	"elastic", "elastic/*", "filters/*", "flows", "internal/app", "internal/admin", "internal/docs", "internal/obs", "pipeline", "queue",
	"queue/*",
}

func run(root, out string) error {
	var dirs []string
	for _, pattern := range packages {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return err
		}
		for _, dir := range found {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				dirs = append(dirs, dir)
			}
		}
	}
	texts, err := prose.Collect(dirs)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(out, "prose.json"), texts); err != nil {
		return err
	}
	metrics, err := collectMetrics(dirs)
	if err != nil {
		return err
	}
	return write(filepath.Join(out, "metrics.json"), metrics)
}

func write(name string, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "\t")
	if err := e.Encode(v); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}
