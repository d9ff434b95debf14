// Command neighbour shows what one caller that sends as fast as it can does to others, with a concurrency limit and without.
//
//	go run ./bench/neighbour [-duration 10s]
//
// A cluster that serves sixteen searches at once, each in 20 ms and the others in the order in which they came, stands behind
// a gateway of its own process. Ten callers send five searches a second each; one has two hundred connections in a loop. What
// is printed is what the ten see: alone, beside the loop without the filter, and beside it with the filter. It is not a test of
// a gateway's speed: the cluster is the bottleneck, as it is in earnest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

const (
	slots       = 16 // of the cluster
	work        = 20 * time.Millisecond
	callers     = 10
	pause       = 200 * time.Millisecond // between the searches of a caller
	connections = 200                    // of the loop
	startLimit  = 15 * time.Second
)

// config is the gateway's configuration; the filter is what is tried.
const config = `path.data: data
path.logs: log
admin: {enabled: false}
entry:
  - {name: e, router: r, network: {binding: %s}}
router:
  - {name: r, default_flow: f}
flow:
  - name: f
    filter:
%s      - elasticsearch: {elasticsearch: c}
elasticsearch:
  - {name: c, endpoint: "http://%s", discovery: {enabled: false}}
`

const filter = "      - concurrency: {max: 16, queue: {size: 64, max_wait: 2s}, exempt: {api: [info, ping]}}\n"

func main() {
	duration := flag.Duration("duration", 10*time.Second, "length of each of the three runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *duration); err != nil {
		fmt.Fprintf(os.Stderr, "neighbour: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, duration time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "weir-neighbour-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin := filepath.Join(dir, "weir")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, "weir/cmd/weir").CombinedOutput(); err != nil {
		return fmt.Errorf("build the gateway: %w: %s", err, out)
	}
	cluster, err := listen(newCluster())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tsearches\tfailed\tp50\tp99\tp99 to alone")
	var alone time.Duration
	for _, one := range []struct {
		name, filter string
		noisy        bool
	}{{"alone", filter, false}, {"beside the loop, without the filter", "", true}, {"beside the loop, with the filter", filter, true}} {
		seen, err := try(ctx, bin, filepath.Join(dir, strconv.FormatBool(one.noisy)+strconv.Itoa(len(one.filter))), one.filter, cluster.Addr, one.noisy, duration)
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		p99 := seen.quantile(0.99)
		if alone == 0 {
			alone = p99
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%.2f\n", one.name, len(seen.took)+seen.failed, seen.failed,
			seen.quantile(0.5).Round(100*time.Microsecond), p99.Round(100*time.Microsecond), float64(p99)/float64(alone))
	}
	return table.Flush()
}

// newCluster returns a node that serves so many searches at once.
func newCluster() http.Handler {
	free := make(chan struct{}, slots)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/" {
			_, _ = io.WriteString(w, `{"cluster_uuid":"neighbour","version":{"number":"7.17.0"}}`) // the gateway may have left
			return
		}
		free <- struct{}{}
		defer func() { <-free }()
		<-time.After(work)
		_, _ = io.WriteString(w, `{"took":20,"hits":{"hits":[]}}`)
	})
}

func listen(h http.Handler) (*http.Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: h, Addr: ln.Addr().String(), ReadHeaderTimeout: startLimit}
	go func() { _ = s.Serve(ln) }() // until Close
	return s, nil
}

// latencies are what callers saw.
type latencies struct {
	mu     sync.Mutex // guards the fields below
	took   []time.Duration
	failed int
}

func (l *latencies) add(took time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ok {
		l.failed++
		return
	}
	l.took = append(l.took, took)
}

func (l *latencies) quantile(q float64) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	slices.Sort(l.took)
	return l.took[int(q*float64(len(l.took)-1))]
}

// try runs the callers against a gateway of its own.
func try(ctx context.Context, bin, dir, filter, cluster string, noisy bool, duration time.Duration) (*latencies, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "gateway.yml")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, address, filter, cluster), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, bin, "run", "-c", file)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = startLimit
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
	}()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections + callers}, Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	if err := awaitAnswer(ctx, client, address); err != nil {
		return nil, err
	}
	return send(ctx, client, address, noisy, duration), nil
}

func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// awaitAnswer waits until the gateway answers a search.
func awaitAnswer(ctx context.Context, client *http.Client, address string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		if ask(ctx, client, address, "nobody") {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the gateway does not answer on %s", address)
		}
	}
}

// ask sends a search of a user and tells whether it was answered with 200.
func ask(ctx context.Context, client *http.Client, address, user string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/i/_search", nil)
	if err != nil {
		return false
	}
	req.SetBasicAuth(user, "password")
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}

// send lets the callers, and if noisy the loop, ask for a while, and returns what the callers saw.
func send(ctx context.Context, client *http.Client, address string, noisy bool, duration time.Duration) *latencies {
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	var seen latencies
	var wg sync.WaitGroup
	if noisy {
		for range connections {
			wg.Go(func() {
				for ctx.Err() == nil {
					if !ask(ctx, client, address, "loop") {
						wait(ctx, 100*time.Millisecond) // a moment, not the second that it is told
					}
				}
			})
		}
	}
	for i := range callers {
		wg.Go(func() {
			wait(ctx, time.Duration(i)*pause/callers)
			for ctx.Err() == nil {
				next := time.Now().Add(pause)
				wg.Go(func() {
					start := time.Now()
					ok := ask(ctx, client, address, "caller-"+strconv.Itoa(i))
					if ctx.Err() == nil {
						seen.add(time.Since(start), ok)
					}
				})
				wait(ctx, time.Until(next))
			}
		})
	}
	wg.Wait()
	return &seen
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
