// Package e2e runs official Elasticsearch and OpenSearch clients against an address, be it a node's or a gateway's, and
// holds the tests that put gateway, clients and real engines together.
//
// It is for tests only, and it does not test the clients: each runs the calls that applications make most, and the
// answers are compared with what a cluster gives without a gateway between. It trades speed for likeness: the scripts run
// under the real Python and Node.js, in versions pinned in clients/.
package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/searchnode/searchtest"
)

// ClientsDirEnv names the environment variable with the folder into which clients/install has put the clients. If it is
// not set, that is weir/clients in the user's cache, for the script too.
const ClientsDirEnv = "WEIR_CLIENTS_DIR"

var (
	//go:embed clients/suite.py
	suitePython []byte
	//go:embed clients/suite.js
	suiteNode []byte
	//go:embed clients/patience.py
	patiencePython []byte
	//go:embed clients/patience.js
	patienceNode []byte
	//go:embed clients/failures.py
	failuresPython []byte
	//go:embed clients/failures.js
	failuresNode []byte
	//go:embed clients/suite.go
	suiteGo []byte
	//go:embed clients/requirements.txt
	requirements []byte
	//go:embed clients/package-lock.json
	packageLock []byte
	//go:embed clients/java/Suite.java
	suiteJava []byte
)

// seen is what each client reports at the end.
type seen struct{ Indexed, Bulk, Count, Hits, Scrolled int }

// wantSeen is the same for all of them: their suites make the same calls.
var wantSeen = seen{Indexed: 1, Bulk: 500, Count: 501, Hits: 3, Scrolled: 501}

// clientLimit is how long one client may take; without a fault it takes some seconds.
const clientLimit = 2 * time.Minute

// RunClients runs each official client that supports the engine (a name of searchnode.Engines) against baseURL, as
// subtests. A client whose installation is missing is skipped, or fails under searchtest.RequireEnv. The clients create
// and delete indices called clients-*.
func RunClients(t *testing.T, baseURL, engine string) {
	library := strings.TrimRight(engine, "0123456789")
	t.Run("python", func(t *testing.T) {
		dir := clientsDir(t, "requirements.txt", requirements)
		runSuite(t, "", filepath.Join(dir, "venv", "bin", "python"), writeScript(t, "suite.py", suitePython), library, baseURL)
	})
	t.Run("node", func(t *testing.T) {
		dir := clientsDir(t, "package-lock.json", packageLock)
		suite := writeScript(t, "suite.js", suiteNode)
		for _, compression := range []string{"", "gzip"} {
			runSuite(t, "NODE_PATH="+filepath.Join(dir, "node", "node_modules"), "node", suite, library, baseURL, compression)
		}
	})
	// go-elasticsearch refuses OpenSearch: it looks for Elasticsearch's product header.
	if library == "elasticsearch" {
		t.Run("go", func(t *testing.T) {
			dir := clientsDir(t, "suite.go", suiteGo)
			runSuite(t, "", filepath.Join(dir, "suite-go"), library, baseURL)
		})
	}
}

// RunJavaClient runs the low-level Java client, which looks for the cluster's nodes through baseURL and then sends to those
// that it found. It returns their addresses (host:port), sorted.
func RunJavaClient(t *testing.T, baseURL string) (nodes []string) {
	t.Helper()
	dir := clientsDir(t, filepath.Join("java", "Suite.java"), suiteJava)
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", java)
	}
	path := filepath.Join(dir, "java", "classes") + string(os.PathListSeparator) + filepath.Join(dir, "java", "lib", "*")
	return runSuite(t, "", java, "-XX:TieredStopAtLevel=1", "-cp", path, "Suite", baseURL)
}

// RunPatience runs the helpers of the official Python and Node.js clients against baseURL, which refuses most of what they ask
// with 429, as subtests. refused tells how many requests were.
func RunPatience(t *testing.T, baseURL, engine string, refused func() float64) {
	library := strings.TrimRight(engine, "0123456789")
	run := func(t *testing.T, want string, env string, command ...string) {
		t.Helper()
		before := refused()
		if got := strings.TrimSpace(string(runClient(t, env, command...))); got != want {
			t.Errorf("printed %s, want %s", got, want)
		}
		if n := refused() - before; n < 5 {
			t.Errorf("%v requests were refused, which shows nothing", n)
		}
	}
	t.Run("python", func(t *testing.T) {
		dir := clientsDir(t, "requirements.txt", requirements)
		run(t, `{"wrote": 200, "count": 200}`, "", filepath.Join(dir, "venv", "bin", "python"), writeScript(t, "patience.py", patiencePython), library, baseURL)
	})
	t.Run("node", func(t *testing.T) {
		dir := clientsDir(t, "package-lock.json", packageLock)
		run(t, `{"wrote":20,"count":20}`, "NODE_PATH="+filepath.Join(dir, "node", "node_modules"), "node", writeScript(t, "patience.js", patienceNode), library, baseURL)
	})
}

// RunFailures has the official Python and Node.js clients ask baseURL, which answers each call with the same error, as subtests:
// each must have understood its status and, where there is a body, its type.
func RunFailures(t *testing.T, baseURL string, status int, errorType string) {
	for _, library := range []string{"elasticsearch", "opensearch"} {
		check := func(t *testing.T, env string, command ...string) {
			t.Helper()
			var seen map[string]string
			if out := runClient(t, env, append(command, library, baseURL)...); json.Unmarshal(out, &seen) != nil || len(seen) != 6 {
				t.Fatalf("printed %q", out)
			}
			for call, got := range seen {
				// An answer to HEAD has no body; a client that asks GET / first says what it was told then.
				if want := fmt.Sprintf("%d %s", status, errorType); got != want && (call != "exists" || got != strconv.Itoa(status)) {
					t.Errorf("%s: the client understood %q, want %q", call, got, want)
				}
			}
		}
		t.Run("python "+library, func(t *testing.T) {
			dir := clientsDir(t, "requirements.txt", requirements)
			check(t, "", filepath.Join(dir, "venv", "bin", "python"), writeScript(t, "failures.py", failuresPython))
		})
		t.Run("node "+library, func(t *testing.T) {
			dir := clientsDir(t, "package-lock.json", packageLock)
			check(t, "NODE_PATH="+filepath.Join(dir, "node", "node_modules"), "node", writeScript(t, "failures.js", failuresNode))
		})
	}
}

// clientsDir returns the folder of the installed clients, in which the file called made tells from what one of them was
// made: that must be what the repository holds.
func clientsDir(t *testing.T, made string, from []byte) string {
	t.Helper()
	dir := os.Getenv(ClientsDirEnv)
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "weir", "clients")
	}
	if got, err := os.ReadFile(filepath.Join(dir, made)); err != nil || !bytes.Equal(got, from) {
		searchtest.Require(t, "the official clients of "+made+" are not installed as the repository has them: run internal/e2e/clients/install")
	}
	return dir
}

func writeScript(t *testing.T, name string, script []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, script, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// runSuite runs a client's suite with a further environment variable and checks the line that it prints. It returns the
// nodes to which the client has sent, if it tells.
func runSuite(t *testing.T, env string, command ...string) (nodes []string) {
	t.Helper()
	stdout := runClient(t, env, command...)
	var got struct {
		Client, Version string
		Nodes           []string
		seen
	}
	if err := json.Unmarshal(stdout, &got); err != nil {
		t.Fatalf("%s printed %q: %v", strings.Join(command, " "), stdout, err)
	}
	t.Logf("%s %s", got.Client, got.Version)
	if diff := cmp.Diff(wantSeen, got.seen); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", got.Client, diff)
	}
	return got.Nodes
}

// runClient runs a client with a further environment variable and returns what it prints.
func runClient(t *testing.T, env string, command ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	// A proxy that the environment names is not for loopback.
	cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost")
	if env != "" {
		cmd.Env = append(cmd.Env, env)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, stderr.Bytes())
	}
	return stdout.Bytes()
}
