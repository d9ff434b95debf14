// Command gen writes the dashboards into the files that are shipped. It is run by go generate and is no part of the program.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"weir/internal/dashboards"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen FOLDER")
		os.Exit(2)
	}
	for name, content := range dashboards.Files() {
		path := filepath.Join(os.Args[1], filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, content, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
}
