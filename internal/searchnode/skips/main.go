// Command skips prints a line that names the engines which tests on this machine cannot run against, and why; nothing if
// there are none. `make test` begins with it: go test does not show what passing packages print.
package main

import (
	"fmt"
	"strings"

	"weir/internal/searchnode"
)

func main() {
	var reasons []string
	for _, engine := range searchnode.Engines() {
		if reason, ok := searchnode.Find(engine); !ok {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) > 0 {
		fmt.Println("SKIP: tests against real engines:", strings.Join(reasons, "; "))
	}
}
