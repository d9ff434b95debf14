package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A load is what wrk saw in one run.
type load struct {
	requests, bytes int64
	duration        time.Duration
	p50, p99        time.Duration
	refused         int64    // answers of status 400 and above
	errors          []string // "timeout=3", ...; empty in a valid run
}

// runWrk puts load on an address for a time, from one pinned thread.
func runWrk(ctx context.Context, c benchCase, address, scripts string, core int, duration time.Duration) (load, error) {
	cmd := exec.CommandContext(ctx, "taskset", "-c", strconv.Itoa(core), "wrk", "-t1", "-c", strconv.Itoa(c.connections),
		"-d", strconv.Itoa(int(duration/time.Second))+"s", "--timeout", "5s", "-s", c.script, "http://"+address+c.path)
	cmd.Dir = scripts
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return load{}, fmt.Errorf("wrk: %w: %s", err, stderr.Bytes())
	}
	return parseLoad(string(out))
}

// parseLoad reads the line that wrk/report.lua prints.
func parseLoad(out string) (load, error) {
	var line string
	for l := range strings.Lines(out) {
		if strings.HasPrefix(l, "bench ") {
			line = l
		}
	}
	var l load
	seen := 0
	for _, field := range strings.Fields(line)[min(1, len(line)):] {
		key, text, _ := strings.Cut(field, "=")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return load{}, fmt.Errorf("wrk's report: %s: %w", field, err)
		}
		seen++
		switch key {
		case "requests":
			l.requests = n
		case "bytes":
			l.bytes = n
		case "duration_us":
			l.duration = time.Duration(n) * time.Microsecond
		case "p50_us":
			l.p50 = time.Duration(n) * time.Microsecond
		case "p99_us":
			l.p99 = time.Duration(n) * time.Microsecond
		case "status":
			l.refused = n
			fallthrough
		default:
			if n != 0 {
				l.errors = append(l.errors, field)
			}
		}
	}
	if seen != 10 {
		return load{}, fmt.Errorf("wrk's report has %d numbers, want 10: %q", seen, out)
	}
	return l, nil
}

// valid tells whether the run counts: no errors, and as many bytes as requests of that size (head and body) have.
func (l load) valid(size int64, connections int) error {
	if len(l.errors) > 0 {
		return fmt.Errorf("wrk counted errors: %s", strings.Join(l.errors, " "))
	}
	if l.requests == 0 || l.duration == 0 {
		return fmt.Errorf("wrk counted %d requests in %v", l.requests, l.duration)
	}
	// wrk counts the bytes of answers that were under way at the end, at most one a connection; and heads vary by some
	// bytes, in Age for instance.
	least := l.requests * (size - 16)
	most := l.requests*(size+16) + int64(connections)*size
	if l.bytes < least || l.bytes > most {
		return fmt.Errorf("%d bytes in %d answers, want %d to %d: answers have the wrong size", l.bytes, l.requests, least, most)
	}
	return nil
}
