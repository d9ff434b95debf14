package e2e

import (
	"testing"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

// What holds without a gateway is what the gateway is measured against.
func TestClientsAgainstTheEngines(t *testing.T) {
	for _, engine := range searchnode.Engines() {
		t.Run(engine, func(t *testing.T) {
			RunClients(t, searchtest.ForTest(t, engine, 1).URLs()[0], engine)
		})
	}
}
