package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/conf"
)

// TestTheGuideToQueuesLoads holds that the configurations on the page are good ones.
func TestTheGuideToQueuesLoads(t *testing.T) {
	page, err := os.ReadFile("../../docs/queues.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	if len(blocks) != 2 {
		t.Fatalf("%d configurations on the page", len(blocks))
	}
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
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
}
