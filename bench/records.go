package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
)

// recordsCase measures the way of records to the disk and from there into a cluster, by the benchmarks of the packages, each of
// which lets its peer do the same work in turns.
const (
	recordsCase  = "records"
	recordsTitle = "rates of records, each in turns with the same work of a peer"
)

// A comparison is what a benchmark says of the gateway's rate to that of a peer.
type comparison struct {
	name, title string
	aim, ratio  float64
}

// comparisons are those that are made, without their ratios.
var comparisons = []comparison{
	{name: "WriteAgainstDD/block", title: "blocks of 1 MB into a queue, each synced, to dd oflag=sync", aim: 0.5},
	{name: "WriteAgainstDD/block,zstd", title: "the same, compressed by the queue", aim: 0.5},
	{name: "WriteAgainstDD/never", title: "blocks of 1 MB into a queue without a sync, to dd", aim: 0.5},
	{name: "DrainAgainstBulkIndexer", title: "records out of a queue into OpenSearch, to BulkIndexer of go-elasticsearch with as many workers", aim: 0.9},
}

// compareRecords runs the benchmarks. What one of them lacks is told in missing.
func compareRecords(ctx context.Context) (found []comparison, missing []string, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "Against", "-benchtime", "5x", "-v", "./queue/disk", "./pipeline")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output() // the names of its benchmarks end in -2 or the like, where there are two processors
	if err != nil {
		return nil, nil, fmt.Errorf("case %s: %w\n%s", recordsCase, err, out)
	}
	found = parseComparisons(string(out))
	for _, c := range comparisons {
		if !slices.ContainsFunc(found, func(f comparison) bool { return f.name == c.name }) {
			missing = append(missing, c.title+": not measured")
		}
	}
	return found, missing, nil
}

var comparisonLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s.*?\s([0-9.]+) (?:queue/dd|drain/indexer)\b`)

// parseComparisons returns the comparisons that the output of go test has ratios of.
func parseComparisons(out string) []comparison {
	var found []comparison
	for _, c := range comparisons {
		for _, m := range comparisonLine.FindAllStringSubmatch(out, -1) {
			if ratio, err := strconv.ParseFloat(m[2], 64); err == nil && m[1] == c.name {
				c.ratio = ratio
				found = append(found, c)
			}
		}
	}
	return found
}

func (c comparison) judge() judgement {
	return judgement{fmt.Sprintf("%.2f", c.aim), c.ratio >= c.aim}
}

// comparisonTable returns the comparisons as rows of cells, the head first.
func comparisonTable(found []comparison) [][]string {
	cells := [][]string{{"", "weir to it", "aim"}}
	for _, c := range found {
		cells = append(cells, []string{c.title, fmt.Sprintf("%.2f", c.ratio), c.judge().String()})
	}
	return cells
}
