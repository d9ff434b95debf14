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

// binaryDir is where buildGateway puts the binary.
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

// buildGateway builds ./cmd/weir, once a process, and returns the binary's path.
var buildGateway = sync.OnceValues(func() (string, error) {
	args := []string{"build", "-o", filepath.Join(binaryDir, "weir")}
	if raceEnabled {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "weir/cmd/weir")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the gateway: %w\n%s", err, out)
	}
	return filepath.Join(binaryDir, "weir"), nil
})
