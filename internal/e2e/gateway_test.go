package e2e

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// classicFile is a configuration in the classic form, with everything that people who come from there have in theirs.
//
//go:embed testdata/classic-gateway.yml
var classicFile string

// An edit changes a configuration's text.
type edit func(tb testing.TB, text string) string

// swap replaces old, which must stand in the text exactly once.
func swap(old, fresh string) edit {
	return func(tb testing.TB, text string) string {
		tb.Helper()
		if n := strings.Count(text, old); n != 1 {
			tb.Fatalf("the configuration has %q %d times, want once", old, n)
		}
		return strings.Replace(text, old, fresh, 1)
	}
}

// add adds text at the end.
func add(fresh string) edit {
	return func(_ testing.TB, text string) string { return text + fresh }
}

// A site is what gateways that belong together share: the working folder with its configuration, and an address.
type site struct {
	tb          testing.TB
	dir         string
	addr, admin string                            // of the entry and, for the first process, of the admin listener
	text        string                            // of gateway.yml
	build       func() (binary string, err error) // buildGateway, or buildUnraced
}

// newSite makes a site with the classic file, changed by edits.
func newSite(tb testing.TB, cluster string, edits ...edit) *site {
	tb.Helper()
	return makeSite(tb, classicFile, cluster, edits)
}

// plainFile has an entry, a flow and a cluster, and nothing that keeps or limits anything.
const plainFile = `entry:
  - {name: main, router: main, network: {binding: 0.0.0.0:8000}}
router:
  - {name: main, default_flow: main}
flow:
  - name: main
    filter:
      - elasticsearch: {elasticsearch: default}
elasticsearch:
  - {name: default, endpoint: http://localhost:9200}
`

// newPlainSite makes a site that only passes on, with filters (YAML, each line indented as in the file) above the one that does.
func newPlainSite(tb testing.TB, cluster, filters string, edits ...edit) *site {
	tb.Helper()
	return makeSite(tb, plainFile, cluster, append([]edit{swap("    filter:\n", "    filter:\n"+filters)}, edits...))
}

// makeSite makes a folder with a file in which addresses are replaced first, and then what edits change. What the classic file
// has no word for, the admin listener's address, stands in a second file.
func makeSite(tb testing.TB, text, cluster string, edits []edit) *site {
	tb.Helper()
	s := &site{tb: tb, dir: tb.TempDir(), addr: freeAddress(tb), admin: freeAddress(tb), text: text, build: buildGateway}
	for _, e := range append([]edit{swap("0.0.0.0:8000", s.addr), swap("http://localhost:9200", cluster)}, edits...) {
		s.text = e(tb, s.text)
	}
	s.write("gateway.yml", s.text)
	s.write("admin.yml", "admin: {binding: "+s.admin+"}\n")
	return s
}

// toStatsD sends metrics to an address instead of port 8125 of this machine, each second.
func toStatsD(addr *net.UDPAddr) edit {
	return swap("port: 8125", fmt.Sprintf("port: %d\n  interval: 1s", addr.Port))
}

// write replaces a file as editors do: by renaming a new one.
func (s *site) write(name, text string) {
	s.tb.Helper()
	fresh := filepath.Join(s.dir, "."+name)
	if err := os.WriteFile(fresh, []byte(text), 0o644); err != nil {
		s.tb.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(s.dir, name)); err != nil {
		s.tb.Fatal(err)
	}
}

// freeAddress returns an address on which nothing listens. It is outside of the range from which the system takes ports for
// outgoing connections, so that it stays free while a gateway is restarted.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(11_000+rand.IntN(20_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	tb.Fatal("no free port found")
	return ""
}

// A gateway is a running weir.
type gateway struct {
	*site
	url, adminURL string
	cmd           *exec.Cmd
	log           *output
	client        *http.Client // for a request now and then
	exited        chan struct{}
	exit          error // valid once exited is closed
}

// output is what a process has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

const (
	startLimit = 30 * time.Second
	endLimit   = 20 * time.Second // shorter than the drain time: nothing that tests leave behind may need that
)

// start runs a gateway and waits until it is ready. If it still runs when the test ends it is ended in order, and that is
// checked.
func (s *site) start() *gateway { return s.startAs(s.admin) }

// startAs is start for a gateway whose admin listener is expected at another address than the configured one.
func (s *site) startAs(admin string) *gateway {
	s.tb.Helper()
	binary, err := s.build()
	if err != nil {
		s.tb.Fatal(err)
	}
	g := &gateway{
		site: s, url: "http://" + s.addr, adminURL: "http://" + admin, log: &output{}, exited: make(chan struct{}),
		cmd: exec.Command(binary, "run", "-c", "gateway.yml", "-c", "admin.yml"), client: newClient(s.tb),
	}
	g.cmd.Dir, g.cmd.Stdout, g.cmd.Stderr = s.dir, g.log, g.log
	g.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1")
	if err := g.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	go func() {
		g.exit = g.cmd.Wait()
		close(g.exited)
	}()
	s.tb.Cleanup(func() {
		if g.running() {
			g.stop()
		}
		if s.tb.Failed() {
			s.tb.Logf("log of the gateway at %s:\n%s", admin, tail(g.log.String(), 4000))
		}
	})
	until(s.tb, startLimit, func(ctx context.Context) error {
		if !g.running() {
			s.tb.Fatalf("the gateway ended: %v\n%s", g.exit, g.log)
		}
		a, err := g.ask(ctx, http.MethodGet, g.adminURL+"/readyz", "")
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("%s is answered with %d: %s", g.adminURL+"/readyz", a.status, a.body)
		}
		return err
	})
	return g
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }

func (g *gateway) running() bool {
	select {
	case <-g.exited:
		return false
	default:
		return true
	}
}

// term tells the gateway to end in order.
func (g *gateway) term() {
	g.tb.Helper()
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		g.tb.Fatal(err)
	}
}

// stop ends the gateway in order and checks that it says so.
func (g *gateway) stop() {
	g.tb.Helper()
	g.term()
	g.wait()
}

// wait waits for the end of a gateway that was told to end, and checks its exit code and its log.
func (g *gateway) wait() {
	g.tb.Helper()
	select {
	case <-g.exited:
	case <-time.After(endLimit):
		_ = g.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines go to the log
		<-g.exited
		g.tb.Errorf("the gateway did not end within %s of SIGTERM\n%s", endLimit, g.log)
	}
	if g.exit != nil {
		g.tb.Errorf("the gateway ended with %v, want exit code 0\n%s", g.exit, tail(g.log.String(), 8000))
	}
	g.checkLog()
}

// kill ends the gateway at once.
func (g *gateway) kill() {
	g.tb.Helper()
	if err := g.cmd.Process.Kill(); err != nil {
		g.tb.Fatal(err)
	}
	<-g.exited
	g.checkLog()
}

func (g *gateway) checkLog() {
	g.tb.Helper()
	for _, bad := range []string{"DATA RACE", "panic"} {
		if strings.Contains(g.log.String(), bad) {
			g.tb.Errorf("the gateway's log has %q", bad)
		}
	}
}

// An answer is what came back, read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// newClient returns a client for one test. It follows no proxy, asks for no coding and shares nothing with other tests.
func newClient(tb testing.TB) *http.Client {
	t := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	tb.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

// ask sends a request with further header fields ("Name: value").
func ask(ctx context.Context, client *http.Client, method, url, body string, fields ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Add(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, text}, err
}

func (g *gateway) ask(ctx context.Context, method, url, body string, fields ...string) (answer, error) {
	return ask(ctx, g.client, method, url, body, fields...)
}

// get sends GET to a path of the gateway.
func (g *gateway) get(path string, fields ...string) answer {
	g.tb.Helper()
	a, err := g.ask(g.tb.Context(), http.MethodGet, g.url+path, "", fields...)
	if err != nil {
		g.tb.Fatal(err)
	}
	return a
}

// must sends a request that has to be answered with 2xx.
func must(tb testing.TB, client *http.Client, method, url, body string) answer {
	tb.Helper()
	a, err := ask(tb.Context(), client, method, url, body)
	if err != nil {
		tb.Fatal(err)
	}
	if a.status/100 != 2 {
		tb.Fatalf("%s %s is answered with %d: %s", method, url, a.status, a.body)
	}
	return a
}

// numbers are the series of /metrics, by name and labels as they stand there.
type numbers map[string]float64

// metrics reads /metrics.
func (g *gateway) metrics() numbers {
	g.tb.Helper()
	return parseMetrics(g.tb, must(g.tb, g.client, http.MethodGet, g.adminURL+"/metrics", "").body)
}

func parseMetrics(tb testing.TB, text []byte) numbers {
	tb.Helper()
	n := numbers{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			tb.Fatalf("line %q of /metrics: %v", line, err)
		}
		n[line[:i]] = v
	}
	return n
}

// sum adds the series of a metric that have all of these labels (`name="value"`).
func (n numbers) sum(name string, labels ...string) float64 {
	total := 0.0
series:
	for key, v := range n {
		if key != name && !strings.HasPrefix(key, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(key, l) {
				continue series
			}
		}
		total += v
	}
	return total
}

// until calls f again and again until it returns nil, and fails the test with its last error when the time is over.
func until(tb testing.TB, limit time.Duration, f func(ctx context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not tried")
	for ctx.Err() == nil {
		err := f(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	tb.Fatalf("after %s: %v", limit, last)
}
