package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"weir/internal/searchnode/searchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(withBinary{searchtest.Main(m)}) }

// withBinary are the tests, with a folder for the gateway's binary that goes with them.
type withBinary struct{ tests *searchtest.M }

// binaryDir is where the gateway is built.
var binaryDir string

// Run runs the tests and returns their exit code.
func (b withBinary) Run() int {
	dir, err := os.MkdirTemp("", "weir-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binaryDir = dir
	return b.tests.Run()
}

// buildGateway builds ./cmd/weir as the tests are built, and buildUnraced without the race detector, which multiplies what
// memory and requests cost. They do so once a process and return the binary's path.
var (
	buildGateway = sync.OnceValues(func() (string, error) { return build("weir", raceEnabled) })
	buildUnraced = sync.OnceValues(func() (string, error) { return build("weir-unraced", false) })
)

func build(name string, race bool) (string, error) {
	path := filepath.Join(binaryDir, name)
	if out, err := exec.Command("go", "build", fmt.Sprintf("-race=%t", race), "-o", path, "weir/cmd/weir").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the gateway: %w\n%s", err, out)
	}
	return path, nil
}
