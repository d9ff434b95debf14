// Command weir is the gateway. Without a command it runs gateway.yml of the working folder.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

// Exit codes.
const (
	exitOK      = 0 // all went well
	exitFailed  = 1 // the configuration has errors, or the gateway failed
	exitUsage   = 2 // the command line makes no sense
	exitCutOff  = 3 // the gateway ended, but exchanges had to be cut off at the end of the drain time
	exitLost    = 4 // the gateway ended, but records in its queues could not be written to the disk
	defaultFile = "gateway.yml"
)

// cli is the command line.
type cli struct {
	Run     runCmd     `cmd:"" default:"withargs" help:"Run the gateway (the default)."`
	Check   checkCmd   `cmd:"" help:"Check a configuration without running it, or explain what a request would meet."`
	Filters filtersCmd `cmd:"" help:"List the filters, or show one with its parameters."`
	Cache   cacheCmd   `cmd:"" help:"Explain what the cache makes of a request."`
	Queue   queueCmd   `cmd:"" help:"Look into queues on disk, fill and repair them."`
	Setup   setupCmd   `cmd:"" help:"Install index templates, lifecycle policies and, where their addresses are given, dashboards."`
	Schema  schemaCmd  `cmd:"" help:"Print the JSON Schema of the configuration, for editors."`
	Docs    docsCmd    `cmd:"" help:"Write the reference pages."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// env is what commands use of the outside.
type env struct {
	stdout, stderr io.Writer
}

// An exitError ends the program with a code of its own.
type exitError struct {
	code int
	err  error // printed, unless nil
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func main() { os.Exit(run(os.Args[1:], env{os.Stdout, os.Stderr})) }

// run is main without the process: it returns the exit code.
func run(args []string, e env) int {
	var c cli
	code := -1
	parser, err := kong.New(&c, kong.Name("weir"),
		kong.Description("An Elasticsearch-aware caching and rate-limiting search gateway.\n\n"+
			"Exit codes: 0 all went well; 1 the configuration has errors, or the gateway failed; 2 the command line makes no "+
			"sense; 3 exchanges had to be cut off at the end; 4 records of queues could not be written at the end and are lost."),
		kong.Writers(e.stdout, e.stderr), kong.UsageOnError(), kong.Exit(func(n int) { code = n }))
	if err != nil {
		fmt.Fprintln(e.stderr, "weir:", err)
		return exitUsage
	}
	ctx, err := parser.Parse(args)
	if code >= 0 {
		return code // help was asked for and printed
	}
	if err != nil {
		fmt.Fprintln(e.stderr, "weir:", err)
		return exitUsage
	}
	err = ctx.Run(e)
	if err == nil {
		return exitOK
	}
	var ee *exitError
	if errors.As(err, &ee) {
		if ee.err != nil {
			fmt.Fprintln(e.stderr, "weir:", ee.err)
		}
		return ee.code
	}
	fmt.Fprintln(e.stderr, "weir:", err)
	return exitFailed
}
