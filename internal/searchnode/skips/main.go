// Command skips prints one line for each group of tests that this machine cannot run, and why. `make test` begins with
// it: go test does not show what passing packages print.
package main

import (
	"fmt"
	"strings"

	"weir/internal/searchnode"
)

func main() {
	missing := map[string][]string{} // engines by what they lack
	var reasons []string
	for _, engine := range searchnode.Engines() {
		if reason, ok := searchnode.Find(engine); !ok {
			if missing[reason] == nil {
				reasons = append(reasons, reason)
			}
			missing[reason] = append(missing[reason], engine)
		}
	}
	for _, reason := range reasons {
		fmt.Printf("SKIP: tests against %s: %s\n", strings.Join(missing[reason], ", "), reason)
	}
}
