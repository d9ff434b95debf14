package e2e

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weir/elastic/estest"
)

var (
	//go:embed clients/graphite/requirements.txt
	graphiteRequirements []byte
	//go:embed clients/graphite/package-lock.json
	graphiteLock []byte
)

// runServer runs a program of others until the test ends, and returns when it accepts connections at address.
func runServer(t *testing.T, address string, env []string, command ...string) {
	t.Helper()
	log := &output{}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s printed\n%s", strings.Join(command, " "), tail(log.String(), 4000))
		}
	})
	until(t, startLimit, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// TestMetricsReachGraphite sends what the classic section statsd says to the StatsD server of Etsy, which gives it to Graphite's
// carbon, and reads it out of the file that carbon writes.
func TestMetricsReachGraphite(t *testing.T) {
	dir := clientsDir(t, "graphite/requirements.txt", graphiteRequirements)
	clientsDir(t, "graphite/package-lock.json", graphiteLock)
	bin := filepath.Join(dir, "graphite", "venv", "bin")
	work := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}

	carbon := freeAddress(t)
	write("storage-schemas.conf", "[all]\npattern = .*\nretentions = 1s:1h\n")
	config := write("carbon.conf", fmt.Sprintf(`[cache]
STORAGE_DIR = %[1]s/
CONF_DIR = %[1]s/
LOCAL_DATA_DIR = %[1]s/whisper/
LOG_DIR = %[1]s/
PID_DIR = %[1]s/
LINE_RECEIVER_INTERFACE = 127.0.0.1
LINE_RECEIVER_PORT = %[2]s
PICKLE_RECEIVER_PORT = 0
CACHE_QUERY_INTERFACE = 127.0.0.1
CACHE_QUERY_PORT = %[3]s
MAX_CREATES_PER_MINUTE = inf
ENABLE_LOGROTATION = False
`, work, portOf(carbon), portOf(freeAddress(t))))
	runServer(t, carbon, []string{"GRAPHITE_ROOT=" + work}, filepath.Join(bin, "python"), filepath.Join(bin, "carbon-cache.py"),
		"--nodaemon", "--config="+config, "start")

	// UDP has no connections to try: the server listens when its management port does.
	port, management := portOf(freeAddress(t)), freeAddress(t)
	js := write("statsd.js", fmt.Sprintf(`{address: "127.0.0.1", port: %s, mgmt_address: "127.0.0.1", mgmt_port: %s, backends: ["./backends/graphite"],
		graphiteHost: "127.0.0.1", graphitePort: %s, flushInterval: 1000, graphite: {legacyNamespace: false}}`, port, portOf(management), portOf(carbon)))
	runServer(t, management, nil, "node", filepath.Join(dir, "graphite", "node", "node_modules", "statsd", "stats.js"), js)

	c := estest.New(t, estest.Options{})
	g := newSite(t, c.URL(), swap("port: 8125", "port: "+port+"\n  interval: 1s")).start()
	const requests = 20
	for range requests {
		g.get("/_cluster/health")
	}
	series := filepath.Join(work, "whisper", "stats", "counters", "gateway", "http_requests", "es_gateway", "2xx", "upstream", "count.wsp")
	until(t, startLimit, func(ctx context.Context) error {
		printed, err := exec.CommandContext(ctx, filepath.Join(bin, "python"), filepath.Join(bin, "whisper-fetch.py"), series).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, printed)
		}
		sum := 0.0
		for line := range strings.Lines(string(printed)) {
			if _, value, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok && value != "None" {
				n, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return err
				}
				sum += n
			}
		}
		if sum != requests {
			return fmt.Errorf("%s counts %v requests, want %d", series, sum, requests)
		}
		return nil
	})
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}
