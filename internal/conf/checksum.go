package conf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Checksum returns a sum over files: their contents, where their symbolic links lead, and which of them are missing. An
// entry may be a pattern, as those that Load reports for includes: then it also covers which files match. Two calls
// return the same if nothing that a reload would see has changed in between.
func Checksum(files []string) string {
	h := sha256.New()
	files = slices.Clone(files)
	slices.Sort(files)
	for _, name := range slices.Compact(files) {
		fmt.Fprintf(h, "%q=%x\n", name, checksumOf(name))
	}
	return hex.EncodeToString(h.Sum(nil))
}

func checksumOf(name string) [sha256.Size]byte {
	h := sha256.New()
	if isPattern(name) {
		// Glob returns an error only for a pattern that is none, which then matches nothing.
		matches, _ := filepath.Glob(name)
		for _, match := range matches {
			fmt.Fprintf(h, "%q\n", match)
			writeFile(h, match)
		}
	}
	writeFile(h, name)
	return [sha256.Size]byte(h.Sum(nil))
}

// writeFile writes what can be known about a file to w. Only regular files are opened: a pipe would wait for a writer.
func writeFile(w io.Writer, name string) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		fmt.Fprintf(w, "no file: %v\n", err == nil)
		return
	}
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		fmt.Fprintln(w, "lost")
		return
	}
	fmt.Fprintf(w, "%q\n", target)
	f, err := os.Open(name)
	if err != nil {
		fmt.Fprintln(w, "closed")
		return
	}
	defer f.Close()
	content := sha256.New()
	n, err := io.Copy(content, f)
	fmt.Fprintf(w, "%d %x %v\n", n, content.Sum(nil), err == nil)
}
