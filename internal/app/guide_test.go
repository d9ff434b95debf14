package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/conf"
)

// TestTheGuideToQueuesLoads holds that the configuration on the page is a good one.
func TestTheGuideToQueuesLoads(t *testing.T) {
	page, err := os.ReadFile("../../docs/queues.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "```yaml\n")
	text, _, closed := strings.Cut(text, "```")
	if !ok || !closed {
		t.Fatal("the page has no configuration")
	}
	file := filepath.Join(t.TempDir(), "gateway.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	plan, p := Load(conf.Options{Files: []string{file}})
	if plan == nil || len(p.Sorted()) > 0 {
		t.Fatalf("%v", p.Sorted())
	}
	if len(plan.Pipelines) != 2 {
		t.Errorf("%d pipelines", len(plan.Pipelines))
	}
}
