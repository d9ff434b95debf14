package dashboards

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	series    = regexp.MustCompile(`(weir_[a-z_]+)(?:\{([^}]*)\})?`)
	matchers  = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
	groupings = regexp.MustCompile(`by \(([a-z_, ]+)\)`)
)

// checkExpr holds that an expression names metrics that there are, with labels that they have.
func checkExpr(t *testing.T, where, expr string, labels map[string][]string) {
	t.Helper()
	found := series.FindAllStringSubmatch(expr, -1)
	if len(found) == 0 {
		t.Errorf("%s: no metric in %s", where, expr)
	}
	for _, m := range found {
		name := m[1]
		own := append([]string{"job", "instance"}, labels[name]...)
		if base, ok := strings.CutSuffix(name, "_bucket"); ok {
			name, own = base, append(append(own, labels[base]...), "le")
		}
		if labels[name] == nil {
			t.Errorf("%s: there is no metric %s", where, name)
			continue
		}
		for _, l := range matchers.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(own, l[1]) {
				t.Errorf("%s: %s has no label %s", where, name, l[1])
			}
		}
		for _, g := range groupings.FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(g[1], ", ") {
				if !slices.Contains(own, l) {
					t.Errorf("%s: %s has no label %s", where, name, l)
				}
			}
		}
	}
}

// metricLabels returns the labels of all metrics, of which the reference is made, too.
func metricLabels(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name   string
		Labels []string
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, m := range list {
		labels[m.Name] = append([]string{}, m.Labels...)
	}
	return labels
}

func TestGrafanaShowsMetricsThatThereAre(t *testing.T) {
	labels := metricLabels(t)
	for _, c := range charts {
		for _, e := range c.curves {
			checkExpr(t, c.title, e.expr, labels)
		}
	}
}

func TestAlertsAreAboutMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile("../../dist/prometheus/weir.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	labels := metricLabels(t)
	alerts := strings.Split(string(text), "- alert: ")[1:]
	if len(alerts) < 10 {
		t.Fatalf("%d alerts", len(alerts))
	}
	for _, a := range alerts {
		name, rest, _ := strings.Cut(a, "\n")
		_, expr, _ := strings.Cut(rest, "expr:")
		expr, note, ok := strings.Cut(expr, "labels: {severity:")
		if !ok {
			t.Errorf("%s has no severity", name)
		}
		checkExpr(t, name, expr, labels)
		for _, l := range regexp.MustCompile(`\$labels\.([a-z_]+)`).FindAllStringSubmatch(note, -1) {
			if !regexp.MustCompile(`by \([a-z_, ]*\b` + l[1] + `\b`).MatchString(expr) {
				t.Errorf("%s tells of %s, which its expression drops", name, l[1])
			}
		}
	}
}
