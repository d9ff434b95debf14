// Command bench measures the gateway side by side with its peers: nginx, HAProxy, Varnish and a bare fasthttp server, in
// one run on one machine.
//
//	go run ./bench [flags]
//
// It is not a load test of a deployment, and its numbers mean nothing across machines: only ratios between two rows of
// one case do. The measured process is pinned to one core; wrk, and where there is one the upstream, share another. All
// processes of a case run at once and are measured in turns, round after round, so that a slow minute of the machine hits
// all of them. Since wrk's core may be the ceiling, what is compared is requests per CPU-second of the pinned process and
// its children. A round with an error, an answer that is not 2xx or one of the wrong size makes the run invalid.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	rounds      int
	duration    time.Duration
	cases       string
	targets     string
	weir        string
	output      string
	check       bool
	keep        bool
	traps       bool
	gatewayCore int
	loadCore    int
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "measured `rounds` of each case")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "length of a round; whole seconds")
	flag.StringVar(&o.cases, "cases", "", "only these cases, separated by commas: "+strings.Join(caseNames(), ", "))
	flag.StringVar(&o.targets, "targets", "", "only these targets, separated by commas: weir, nginx, haproxy, varnish, fasthttp")
	flag.StringVar(&o.weir, "weir", "", "gateway `binary` to measure; built from ./cmd/weir if empty")
	flag.StringVar(&o.output, "o", "", "also write the results to this Markdown `file`")
	flag.BoolVar(&o.check, "check", false, "end with 1 if an aim is missed")
	flag.BoolVar(&o.keep, "keep", false, "keep the working folder with configurations and logs")
	flag.BoolVar(&o.traps, "traps", false, "measure nothing; compare how caches answer where answers are easily wrong")
	flag.IntVar(&o.gatewayCore, "gateway-core", 0, "`core` of the measured process")
	flag.IntVar(&o.loadCore, "load-core", 1, "`core` of wrk and the upstream")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if runtime.GOOS != "linux" {
		return errors.New("needs Linux: taskset and /proc")
	}
	if o.rounds < 1 || o.duration < time.Second || o.duration%time.Second != 0 {
		return fmt.Errorf("rounds %d of %v: want at least one, of whole seconds", o.rounds, o.duration)
	}
	if o.traps {
		return runTraps(ctx, o)
	}
	h, err := newHarness(ctx, o)
	if err != nil {
		return err
	}
	defer h.close()
	report := report{machine: describeMachine(ctx), rounds: o.rounds, duration: o.duration}
	for _, c := range cases {
		if !listed(o.cases, c.name) {
			continue
		}
		r, err := h.run(ctx, c)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		report.results = append(report.results, r)
		fmt.Println(r.text())
	}
	report.missing = h.missing
	if listed(o.cases, recordsCase) {
		found, missing, err := compareRecords(ctx)
		if err != nil {
			return err
		}
		report.records, report.missing = found, append(report.missing, missing...)
		fmt.Println(recordsTitle + " (" + recordsCase + ")\n" + aligned(comparisonTable(found)))
	}
	for _, line := range report.missing {
		fmt.Println(line)
	}
	if o.output != "" {
		if err := os.WriteFile(o.output, []byte(report.markdown()), 0o644); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	if missed := report.missed(); o.check && len(missed) > 0 {
		return fmt.Errorf("missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

// listed tells whether name is in a list separated by commas; an empty list has everything.
func listed(list, name string) bool {
	if list == "" {
		return true
	}
	for one := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(one) == name {
			return true
		}
	}
	return false
}
