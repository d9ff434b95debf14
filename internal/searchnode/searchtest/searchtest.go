// Package searchtest gives tests real clusters: it starts them, shares them between the tests of a process, and skips the
// test where none can be started.
//
// It is for tests only, and it is not a fake: package elastic/estest is the one to use where a scripted answer will do. It
// trades isolation for time, since a start takes ten seconds: tests of one package meet in the same cluster (which is
// emptied when no test uses it), tests of different packages wait for each other, because a machine has memory for few.
package searchtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/internal/searchnode"
)

// RequireEnv names the environment variable that makes missing engines a failure instead of a skip when it is 1. CI sets
// it, so that a broken installation cannot pass for a green run.
const RequireEnv = "WEIR_REQUIRE_ENGINES"

const (
	// maxClusters is the number of clusters that one process keeps; an idle one makes way. With heaps of 512 MB a node,
	// two clusters of three nodes fit into the 8 GB of a small CI machine.
	maxClusters = 2
	// startLimit bounds the wait for room and for a start, the download of the jars included.
	startLimit = 8 * time.Minute
)

// ForTest returns a running cluster of the engine with that many nodes, shared with the other tests of the process. The
// test may write what it likes, with names of its own if it runs in parallel with others; when the last test is done
// with it, indices and templates are deleted (cluster settings are not). A test that stops, kills or pauses a node should start it again; if not,
// the cluster is replaced. Where the engine cannot run, the test is skipped, or fails under RequireEnv.
func ForTest(tb testing.TB, engine string, nodes int) *searchnode.Cluster {
	tb.Helper()
	return acquire(tb, searchnode.Options{Engine: engine, Nodes: nodes}, true)
}

// Own is ForTest for a test that needs a port, settings or a cluster all to itself: the cluster ends with the test.
func Own(tb testing.TB, o searchnode.Options) *searchnode.Cluster {
	tb.Helper()
	return acquire(tb, o, false)
}

// Require skips tb, or fails it under RequireEnv, because of reason: something that tests with real engines need is not
// on this machine. A reason is printed once a process.
func Require(tb testing.TB, reason string) {
	tb.Helper()
	if os.Getenv(RequireEnv) == "1" {
		tb.Fatalf("%s (and %s=1)", reason, RequireEnv)
	}
	if _, printed := skips.LoadOrStore(reason, true); !printed {
		fmt.Fprintf(os.Stderr, "SKIP: %s\n", reason)
	}
	tb.Skip(reason)
}

// Main returns m with an end to it: after the tests it closes the shared clusters. A package that uses ForTest or Own needs
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(searchtest.Main(m)) }
func Main(m *testing.M) *M {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	pool.hasMain = true
	return &M{m}
}

// M is a testing.M whose Run closes the shared clusters at the end.
type M struct{ m *testing.M }

// Run runs the tests and returns their exit code, or 1 if a cluster could not be closed.
func (m *M) Run() int {
	code := m.m.Run()
	if err := pool.close(); err != nil {
		fmt.Fprintf(os.Stderr, "close the shared clusters: %v\n", err)
		return max(code, 1)
	}
	return code
}

// pool and skips are the process's, since sharing between tests that know nothing of each other is what they are for.
var (
	pool  clusters
	skips sync.Map
)

// clusters are the clusters of this process.
type clusters struct {
	// mu guards the fields below, and is held while a cluster starts: two starts at once take longer than one after the
	// other.
	mu      sync.Mutex
	hasMain bool
	lock    *os.File // held while there may be clusters, see lockMachine
	path    string   // of the lock, if it is not that of the machine
	all     []*entry
	freed   chan struct{} // closed when an entry becomes idle
}

type entry struct {
	cluster *searchnode.Cluster
	shared  bool
	users   int
}

func acquire(tb testing.TB, o searchnode.Options, share bool) *searchnode.Cluster {
	tb.Helper()
	if reason, ok := searchnode.Find(o.Engine); !ok {
		Require(tb, reason)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), startLimit)
	defer cancel()
	e, err := pool.acquire(ctx, o, share)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := pool.release(e); err != nil {
			tb.Error(err)
		}
	})
	return e.cluster
}

func (p *clusters) acquire(ctx context.Context, o searchnode.Options, share bool) (*entry, error) {
	for {
		e, freed, err := p.tryAcquire(ctx, o, share)
		if e != nil || err != nil {
			return e, err
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for one of %d clusters to become free: %w", maxClusters, ctx.Err())
		}
	}
}

// tryAcquire returns an entry, or the channel that tells when to try again.
func (p *clusters) tryAcquire(ctx context.Context, o searchnode.Options, share bool) (*entry, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hasMain {
		return nil, nil, errors.New("the package needs a TestMain with searchtest.Main, which closes the clusters")
	}
	if share {
		for _, e := range p.all {
			if e.shared && e.cluster.Engine() == o.Engine && e.cluster.Nodes() == o.Nodes {
				e.users++
				return e, nil, nil
			}
		}
	}
	if len(p.all) == maxClusters && !p.evictIdle() {
		if p.freed == nil {
			p.freed = make(chan struct{})
		}
		return nil, p.freed, nil
	}
	if err := p.lockMachine(ctx); err != nil {
		return nil, nil, err
	}
	c, err := searchnode.Start(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	e := &entry{cluster: c, shared: share, users: 1}
	p.all = append(p.all, e)
	return e, nil, nil
}

// evictIdle closes the oldest cluster that no test uses and tells whether there was one. The caller holds mu.
func (p *clusters) evictIdle() bool {
	for _, e := range p.all {
		if e.users == 0 {
			// That it ended is what counts; what was left of its data is a matter for the operating system.
			_ = p.drop(e)
			return true
		}
	}
	return false
}

// drop closes e and takes it out of the list. The caller holds mu.
func (p *clusters) drop(e *entry) error {
	for i := range p.all {
		if p.all[i] == e {
			p.all = append(p.all[:i], p.all[i+1:]...)
			break
		}
	}
	return e.cluster.Close()
}

// release takes one user from e. The last one empties a shared cluster, or closes it if that fails, as it does when a
// node is missing.
func (p *clusters) release(e *entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.users--
	if e.users > 0 {
		return nil
	}
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
	var err error
	if !e.shared || wipe(e.cluster) != nil {
		err = p.drop(e)
	}
	return errors.Join(err, p.giveWay())
}

// giveWay lets another process have clusters if one waits for them and no test here uses any. The caller holds mu.
func (p *clusters) giveWay() error {
	if p.lock == nil || slices.ContainsFunc(p.all, func(e *entry) bool { return e.users > 0 }) {
		return nil
	}
	waiting, err := tryLock(p.lockPath() + ".next")
	if err != nil || waiting != nil {
		if waiting != nil {
			waiting.Close() // nobody had it
		}
		return err
	}
	return p.closeAll()
}

// wipe deletes what tests leave behind. It fails unless all nodes run and the cluster is green then.
func wipe(c *searchnode.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for i := range c.Nodes() {
		if !c.Node(i).Running() {
			return fmt.Errorf("node %s does not run", c.Node(i).URL())
		}
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for _, path := range []string{"/_data_stream/*", "/*?expand_wildcards=all", "/_index_template/*", "/_template/*"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.URLs()[0]+path, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("empty the cluster: %w", err)
		}
		resp.Body.Close()
		// Elasticsearch 7.17 has data streams only with x-pack, and answers 400 or 405 without.
		if resp.StatusCode >= 500 {
			return fmt.Errorf("empty the cluster: DELETE %s: status %d", path, resp.StatusCode)
		}
	}
	return c.WaitGreen(ctx)
}

func (p *clusters) lockPath() string {
	if p.path != "" {
		return p.path
	}
	return filepath.Join(os.TempDir(), "weir-searchtest.lock")
}

// tryLock locks a file, which ends with the process at the latest, or returns nil if somebody else has it locked.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("lock the machine's clusters: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, nil
	}
	return f, nil
}

// lockMachine lets one test process at a time have clusters: go test runs the tests of several packages at once, and each
// would fill the memory for itself. Who is next has a lock of its own, by which the one at work sees that somebody waits; see
// giveWay. The caller holds mu.
func (p *clusters) lockMachine(ctx context.Context) error {
	if p.lock != nil {
		return nil
	}
	next, err := awaitLock(ctx, p.lockPath()+".next")
	if err != nil {
		return err
	}
	defer next.Close()
	p.lock, err = awaitLock(ctx, p.lockPath())
	return err
}

func awaitLock(ctx context.Context, path string) (*os.File, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if f, err := tryLock(path); f != nil || err != nil {
			return f, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		}
	}
}

// close closes all clusters.
func (p *clusters) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeAll()
}

// closeAll closes all clusters and lets other processes have theirs. The caller holds mu.
func (p *clusters) closeAll() error {
	var errs []error
	for len(p.all) > 0 {
		errs = append(errs, p.drop(p.all[0]))
	}
	if p.lock != nil {
		p.lock.Close()
		p.lock = nil
	}
	return errors.Join(errs...)
}
