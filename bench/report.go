package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A row is one target in a case.
type row struct {
	name   string
	rounds []measurement
	long   measurement // of the limits
	idle   idle
}

// A result is one measured case. Its first row is the one that the others are compared with.
type result struct {
	benchCase
	rows []row
}

// median returns the median of what f says of each round.
func (r row) median(f func(measurement) float64) float64 {
	values := make([]float64, len(r.rounds))
	for i, m := range r.rounds {
		values[i] = f(m)
	}
	return median(values)
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	if n == 0 {
		return 0
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

// ratio returns the median over the rounds of first to peer. The two were measured next to each other in each round, so
// what slowed the machine in one round is in both.
func ratio(first, peer row, f func(measurement) float64) float64 {
	ratios := make([]float64, len(first.rounds))
	for i := range first.rounds {
		ratios[i] = f(first.rounds[i]) / f(peer.rounds[i])
	}
	return median(ratios)
}

// table returns the result as rows of cells, the head first.
func (r result) table() [][]string {
	if r.name == idleCase {
		cells := [][]string{{"", "before", "after", "cost", "aim"}}
		for _, row := range r.rows {
			cells = append(cells, []string{
				row.name, megabytes(row.idle.before), megabytes(row.idle.after),
				megabytes(row.idle.after - row.idle.before), r.judge(row).String(),
			})
		}
		return cells
	}
	if r.name == limitCase {
		return r.limitTable()
	}
	cells := [][]string{{"", "requests/s", "cores", "requests/CPU-s", "p50", "p99", "weir to it, per s", "weir to it, per CPU-s", "aim"}}
	for _, row := range r.rows {
		line := []string{
			row.name,
			fmt.Sprintf("%.0f", row.median(measurement.perSecond)),
			fmt.Sprintf("%.2f", row.median(measurement.core)),
			fmt.Sprintf("%.0f", row.median(measurement.perCPUSecond)),
			latency(row.median(p50)),
			latency(row.median(p99)),
			"", "", r.judge(row).String(),
		}
		if r.comparable(row) {
			line[6] = fmt.Sprintf("%.2f", ratio(r.rows[0], row, measurement.perSecond))
			line[7] = fmt.Sprintf("%.2f", ratio(r.rows[0], row, measurement.perCPUSecond))
		}
		cells = append(cells, line)
	}
	return cells
}

// limitTable returns the rows of the case that counts what limits let pass.
func (r result) limitTable() [][]string {
	cells := [][]string{{"", "let pass", "of the rate", "refusals/s", "cores", "answers/CPU-s", "weir to it, per CPU-s", "aim"}}
	for _, row := range r.rows {
		line := []string{
			row.name, fmt.Sprint(row.long.requests - row.long.refused), fmt.Sprintf("%.1f %%", 100*row.long.admitted()),
			fmt.Sprintf("%.0f", row.median(func(m measurement) float64 { return float64(m.refused) / m.duration.Seconds() })),
			fmt.Sprintf("%.2f", row.median(measurement.core)), fmt.Sprintf("%.0f", row.median(measurement.perCPUSecond)), "", r.judge(row).String(),
		}
		if r.comparable(row) {
			line[6] = fmt.Sprintf("%.2f", ratio(r.rows[0], row, measurement.perCPUSecond))
		}
		cells = append(cells, line)
	}
	return cells
}

// comparable tells whether row is a peer in a case in which the gateway was measured.
func (r result) comparable(row row) bool { return r.rows[0].name == "weir" && row.name != "weir" }

// A judgement says whether an aim was met. Its zero value is no aim.
type judgement struct {
	aim string
	met bool
}

func (j judgement) String() string {
	switch {
	case j.aim == "":
		return ""
	case j.met:
		return j.aim + ": met"
	}
	return j.aim + ": missed"
}

// judge holds row against the case's aim for it: a ratio for a peer, or memory for the gateway itself.
func (r result) judge(row row) judgement {
	if r.name == idleCase {
		if row.name != "weir" {
			return judgement{}
		}
		return judgement{"under " + megabytes(idleAimBytes), row.idle.after-row.idle.before < idleAimBytes}
	}
	if r.name == crowdCase {
		if row.name == r.rows[0].name {
			return judgement{}
		}
		return judgement{fmt.Sprintf("p50 at most %.1f times", crowdAim), ratio(row, r.rows[0], p50) <= crowdAim}
	}
	if r.name == swarmCase {
		gateway, nginx, ok := r.growth()
		if !ok || row.name != r.rows[1].name {
			return judgement{}
		}
		return judgement{fmt.Sprintf("p99 grows %.2f times as much as nginx's, at most %d", gateway/nginx, swarmAim), gateway <= swarmAim*nginx}
	}
	if r.name == limitCase && row.name == "weir" {
		return judgement{fmt.Sprintf("within %.0f %%", 100*limitAim), math.Abs(row.long.admitted()-1) <= limitAim}
	}
	aim, ok := r.aims[row.name]
	if !ok || !r.comparable(row) {
		return judgement{}
	}
	return judgement{fmt.Sprintf("%.2f", aim), ratio(r.rows[0], row, measurement.perCPUSecond) >= aim}
}

func latency(ns float64) string {
	return time.Duration(ns).Round(10 * time.Microsecond).String()
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/(1<<20)) }

// text returns the result for a terminal.
func (r result) text() string {
	return fmt.Sprintf("%s (%s)\n", r.title, r.name) + aligned(r.table())
}

// aligned returns rows of cells for a terminal.
func aligned(table [][]string) string {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, line := range table {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush() // into memory
	return out.String()
}

// missed returns the aims that were not met, one line each.
func (r result) missed() []string {
	var missed []string
	for _, row := range r.rows {
		if j := r.judge(row); j.aim != "" && !j.met {
			missed = append(missed, fmt.Sprintf("%s, %s: aim %s", r.name, row.name, j.aim))
		}
	}
	return missed
}

// A report is a whole run.
type report struct {
	machine  machine
	rounds   int
	duration time.Duration
	results  []result
	records  []comparison
	missing  []string
}

func (r report) missed() []string {
	var missed []string
	for _, one := range r.results {
		missed = append(missed, one.missed()...)
	}
	for _, c := range r.records {
		if j := c.judge(); !j.met {
			missed = append(missed, fmt.Sprintf("%s, %s: aim %s", recordsCase, c.title, j.aim))
		}
	}
	return missed
}

// markdown returns the report as a page.
func (r report) markdown() string {
	var out strings.Builder
	fmt.Fprintf(&out, `# Benchmarks

Written by %[1]s on %[2]s; do not edit. The next run replaces it.

The measured process is pinned to one core; wrk, and the upstream where there is one, share another. The targets of a case
run at once and are measured in turns, %[3]d rounds of %[4]s each after a warm-up; the numbers are medians. "weir to it" is
the median of the rounds' ratios; above 1, Weir is better. wrk's core may be the ceiling, so judge by requests per
CPU-second: "cores" below 1 means that the process was waiting for work.

`, "`make bench`", r.machine.date, r.rounds, r.duration)
	for _, line := range r.machine.lines() {
		fmt.Fprintf(&out, "- %s\n", line)
	}
	for _, line := range r.missing {
		fmt.Fprintf(&out, "- %s\n", line)
	}
	for _, one := range r.results {
		section(&out, one.title, one.table())
	}
	if len(r.records) > 0 {
		section(&out, recordsTitle, comparisonTable(r.records))
	}
	return out.String()
}

// section writes a table of a page under its title.
func section(out *strings.Builder, title string, table [][]string) {
	fmt.Fprintf(out, "\n## %s\n\n", strings.ToUpper(title[:1])+title[1:])
	for i, line := range table {
		fmt.Fprintf(out, "| %s |\n", strings.Join(line, " | "))
		if i == 0 {
			fmt.Fprintf(out, "|%s\n", strings.Repeat(" --- |", len(line)))
		}
	}
}

// A machine describes where a run took place.
type machine struct {
	date, cpu, kernel string
	// load is the load average of the minute before the run: near 0 on a machine that is fit for measuring.
	load     string
	cores    int
	versions []string
}

func (m machine) lines() []string {
	return append([]string{
		fmt.Sprintf("Machine: %s, %d cores, Linux %s", m.cpu, m.cores, m.kernel),
		"Load average before the run: " + m.load,
		"Go: " + runtime.Version(),
	}, m.versions...)
}

func describeMachine(ctx context.Context) machine {
	m := machine{date: time.Now().UTC().Format(time.DateOnly), cpu: "unknown CPU", cores: runtime.NumCPU()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.cpu = cpuModel(string(info))
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.kernel = strings.TrimSpace(string(release))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.load, _, _ = strings.Cut(string(load), " ")
	}
	for _, p := range peers {
		m.versions = appendVersion(ctx, m.versions, p.name, p.program, p.version)
	}
	m.versions = appendVersion(ctx, m.versions, "wrk", "wrk", "-v")
	return m
}

// appendVersion appends what a program says of its version, if it is there.
func appendVersion(ctx context.Context, list []string, name, program, flag string) []string {
	// wrk ends with 1 when asked for its version, so only the output counts.
	out, _ := exec.CommandContext(ctx, program, flag).CombinedOutput()
	if line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n"); line != "" {
		list = append(list, versionLine(name, line))
	}
	return list
}

// versionLine shortens what a program says of its version to "nginx: 1.22.1".
func versionLine(name, line string) string {
	for _, word := range strings.Fields(line) {
		word = strings.TrimPrefix(word, "nginx/")
		word = strings.TrimPrefix(word, "debian/")
		word = strings.TrimPrefix(word, "(varnish-")
		if word != "" && word[0] >= '0' && word[0] <= '9' {
			return name + ": " + word
		}
	}
	return name + ": " + line
}

// cpuModel returns the model of the first CPU in /proc/cpuinfo.
func cpuModel(info string) string {
	for line := range strings.Lines(info) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}
