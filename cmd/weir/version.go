package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker for releases.
var version string

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(e env) error {
	_, err := fmt.Fprintf(e.stdout, "weir %s (%s, %s/%s)\n", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// versionString returns the release, or what the build knows of its source.
func versionString() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	s := info.Main.Version
	if s == "" {
		s = "(devel)"
	}
	return s
}
