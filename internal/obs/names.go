package obs

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	nameRule  = regexp.MustCompile(`^weir(_[a-z][a-z0-9]*){2,}$`)
	labelRule = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

	// histogramUnits are the base units that a distribution of ours can have.
	histogramUnits = []string{"seconds", "bytes", "records", "items", "ratio"}
	// scaledUnits have a base unit that must be used instead.
	scaledUnits = []string{"ms", "millis", "milliseconds", "us", "microseconds", "ns", "nanoseconds", "minutes", "hours", "days", "kb", "mb", "gb", "kilobytes", "megabytes", "percent"}
	// openLabels have values without end, whoever sends requests chooses them.
	openLabels = []string{"path", "url", "uri", "query", "id", "ip", "address", "user_agent"}
)

// CheckNames returns what is wrong with the names, labels and help texts of metrics, all at once, or nil. It is for
// tests: each package that registers metrics calls it with [Metrics.Describe]. Names are
// weir_<noun>_<unit> in base units, with _total at the end of counters only, as Prometheus recommends; histograms end in
// their unit; no label has values that callers choose.
func CheckNames(docs []MetricDoc) error {
	var errs []error
	for _, d := range docs {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("metric %s: %s", d.Name, fmt.Sprintf(format, args...)))
		}
		name, total := strings.CutSuffix(d.Name, "_total")
		if total != (d.Type == "counter") {
			bad("counters end in _total and nothing else does, this is a %s", d.Type)
		}
		if !nameRule.MatchString(name) {
			bad("not of the form weir_<noun>_<unit>")
		}
		words := strings.Split(name, "_")
		for _, w := range words {
			if slices.Contains(scaledUnits, w) {
				bad("%q is not a base unit", w)
			}
		}
		if unit := words[len(words)-1]; d.Type == "histogram" && !slices.Contains(histogramUnits, unit) {
			bad("a histogram ends in its unit, one of %v, not in %q", histogramUnits, unit)
		}
		if strings.TrimSpace(d.Help) == "" {
			bad("no help text")
		}
		for _, l := range d.Labels {
			if !labelRule.MatchString(l) {
				bad("label %q is not in snake case", l)
			}
			if slices.Contains(openLabels, l) {
				bad("label %q has values without end", l)
			}
		}
	}
	return errors.Join(errs...)
}
