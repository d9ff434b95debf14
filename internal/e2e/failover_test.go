package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

//go:embed clients/load.py
var loadPython []byte

// A trouble is what happens to a node, and how that ends.
type trouble struct {
	name       string
	begin, end func(context.Context, *searchnode.Node) error
}

var troubles = []trouble{
	{"kill", func(_ context.Context, n *searchnode.Node) error { return n.Kill() }, restart},
	{
		"pause", func(_ context.Context, n *searchnode.Node) error { return n.Pause() },
		func(_ context.Context, n *searchnode.Node) error { return n.Resume() },
	},
	rollingRestart,
}

var rollingRestart = trouble{"stop", func(_ context.Context, n *searchnode.Node) error { return n.Stop() }, restart}

func restart(ctx context.Context, n *searchnode.Node) error { return n.Start(ctx) }

// Nodes of a real cluster fail in turn, under a load of searches that only the node asked answers, of documents without an
// id, and of elasticsearch-py's bulk helper. No search fails or takes more than three seconds, no bulk fails, no document is
// there twice, no other node is taken out, and the load comes back to each node. In CI each node has one trouble; in a soak
// each has all, each time the shares are waited for, and a rolling restart ends it.
func TestNodesFailInTurn(t *testing.T) {
	c := searchtest.ForTest(t, searchnode.Elasticsearch7, 3)
	client := newClient(t)
	direct := c.URLs()[0]
	fill(t, client, direct, "failover")
	must(t, client, http.MethodPut, direct+"/failover/_settings", `{"index.number_of_replicas":2}`)
	for _, index := range []string{"failover-posted", "failover-bulk"} {
		must(t, client, http.MethodPut, direct+"/"+index, `{"settings":{"number_of_shards":1,"number_of_replicas":2}}`)
	}
	if err := c.WaitGreen(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Bulks whose documents all have ids may run twice.
	g := newPlainSite(t, direct, "", swap("endpoint: "+direct, "endpoint: "+direct+", discovery: {interval: 2s}, retry: {writes: idempotent}")).start()
	awaitNodes(t, g, 3)

	bulk := startBulk(t, g.url, "failover-bulk")
	searches := startLoad(t, g.addr, 4, 20*time.Millisecond, func(n int) string {
		return fmt.Sprintf("GET /failover/_search?preference=_local&size=%d HTTP/1.1\r\nHost: weir.test\r\n\r\n", n%20)
	})
	posts := startLoad(t, g.addr, 2, 50*time.Millisecond, func(n int) string {
		body := fmt.Sprintf(`{"n":%d}`, n)
		return fmt.Sprintf("POST /failover-posted/_doc HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	})
	searches.await(100)

	rounds := soak(1, len(troubles))
	for round := range rounds {
		for i := range c.Nodes() {
			x, node := troubles[(i+round)%len(troubles)], c.Node(i)
			t.Logf("%s %s: %s", time.Now().Format("15:04:05"), node.URL(), x.name)
			disturb(t, c, g, node, x, searches)
			if rounds > 1 || i == c.Nodes()-1 {
				awaitShares(t, g, c)
			}
		}
	}

	if rounds > 1 { // a rolling restart: the next node goes as soon as the cluster is green again
		for i := range c.Nodes() {
			t.Logf("%s %s: rolling restart", time.Now().Format("15:04:05"), c.Node(i).URL())
			disturb(t, c, g, c.Node(i), rollingRestart, searches)
		}
		awaitShares(t, g, c)
	}

	checkShots(t, searches.stop(), every)
	slowest := time.Duration(0)
	for _, shot := range searches.soFar() {
		slowest = max(slowest, shot.ended.Sub(shot.sent))
	}
	t.Logf("%d searches, the slowest took %v", len(searches.soFar()), slowest)
	if slowest > 3*time.Second {
		t.Errorf("a search took %v", slowest)
	}
	checkPosted(t, client, direct, posts.stop())
	bulk.check(t, client, direct)
}

// disturb makes trouble for one node, and checks that no other one is taken out.
func disturb(t *testing.T, c *searchnode.Cluster, g *gateway, node *searchnode.Node, x trouble, l *load) {
	t.Helper()
	before := len(g.log.String())
	if err := x.begin(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	l.last(3 * time.Second)
	if err := x.end(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitGreen(t.Context()); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(node.URL(), "http://")
	for line := range strings.Lines(g.log.String()[before:]) {
		if strings.Contains(line, "node is out") && !strings.Contains(line, address) {
			t.Errorf("%s of %s took another node out: %s", x.name, address, line)
		}
	}
	until(t, time.Minute, func(context.Context) error {
		for _, n := range seenNodes(t, g) {
			if n.Node == address && !n.Out && !n.Unreachable {
				return nil
			}
		}
		return fmt.Errorf("%s is not back: %+v", address, seenNodes(t, g))
	})
}

type seenNode struct {
	Node        string
	Out         bool
	Unreachable bool
}

func seenNodes(t *testing.T, g *gateway) []seenNode {
	t.Helper()
	var seen struct{ Clusters []struct{ Nodes []seenNode } }
	body := must(t, g.client, http.MethodGet, g.adminURL+"/_weir/clusters", "").body
	if err := json.Unmarshal(body, &seen); err != nil || len(seen.Clusters) != 1 {
		t.Fatalf("%s: %v", body, err)
	}
	return seen.Clusters[0].Nodes
}

// awaitShares waits until each node has had its even share of the searches, within a tenth, for ten seconds.
func awaitShares(t *testing.T, g *gateway, c *searchnode.Cluster) {
	t.Helper()
	answers := func() (counts []float64) {
		m := g.metrics()
		for _, url := range c.URLs() {
			counts = append(counts, m.sum("weir_upstream_requests_total", `pool="traffic"`, fmt.Sprintf("node=%q", strings.TrimPrefix(url, "http://"))))
		}
		return counts
	}
	const window = 10 // seconds
	var seen [][]float64
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	until(t, 75*time.Second, func(ctx context.Context) error { // a minute, and the ten seconds that are measured
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if seen = append(seen, answers()); len(seen) <= window {
			return errors.New("ten seconds have not passed")
		}
		before, shares, total := seen[len(seen)-1-window], slices.Clone(seen[len(seen)-1]), 0.0
		for i := range shares {
			shares[i] -= before[i]
			total += shares[i]
		}
		if slices.Min(shares) < 0.9*total/3 || slices.Max(shares) > 1.1*total/3 {
			return fmt.Errorf("since the last node came back the shares of ten seconds are %v", shares)
		}
		return nil
	})
}

// checkPosted checks that each document that was acknowledged is there once, and none twice.
func checkPosted(t *testing.T, client *http.Client, direct string, shots []shot) {
	t.Helper()
	must(t, client, http.MethodPost, direct+"/failover-posted/_refresh", "")
	there := map[int]int{}
	var page struct {
		ScrollID string `json:"_scroll_id"`
		Hits     struct {
			Hits []struct {
				Source struct{ N int } `json:"_source"`
			}
		}
	}
	body := must(t, client, http.MethodPost, direct+"/failover-posted/_search?scroll=1m&size=1000", "{}").body
	for {
		page.Hits.Hits = nil
		if err := json.Unmarshal(body, &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Hits.Hits) == 0 {
			break
		}
		for _, h := range page.Hits.Hits {
			there[h.Source.N]++
		}
		body = must(t, client, http.MethodPost, direct+"/_search/scroll", fmt.Sprintf(`{"scroll":"1m","scroll_id":%q}`, page.ScrollID)).body
	}
	must(t, client, http.MethodDelete, direct+"/_search/scroll", fmt.Sprintf(`{"scroll_id":[%q]}`, page.ScrollID))
	acknowledged, unknown := 0, 0
	for _, s := range shots {
		n := there[s.n]
		switch {
		case s.status == http.StatusCreated:
			acknowledged++
			if n != 1 {
				t.Errorf("document %d was acknowledged and is there %d times", s.n, n)
			}
		default:
			if unknown++; n > 1 {
				t.Errorf("document %d is there %d times (status %d, %v)", s.n, n, s.status, s.err)
			}
		}
	}
	t.Logf("%d documents were acknowledged, of %d the fate was not known", acknowledged, unknown)
	if acknowledged == 0 || unknown > len(shots)/20 {
		t.Errorf("%d of %d documents were acknowledged", acknowledged, len(shots))
	}
}

// A bulkLoad is elasticsearch-py's bulk helper at work.
type bulkLoad struct {
	cmd    *exec.Cmd
	end    io.Closer
	stdout bytes.Buffer
	stderr output
	index  string
}

func startBulk(t *testing.T, url, index string) *bulkLoad {
	t.Helper()
	dir := clientsDir(t, "requirements.txt", requirements)
	b := &bulkLoad{index: index}
	b.cmd = exec.Command(filepath.Join(dir, "venv", "bin", "python"), writeScript(t, "load.py", loadPython), url, index)
	b.cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost")
	b.cmd.Stdout, b.cmd.Stderr = &b.stdout, &b.stderr
	stdin, err := b.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.end = stdin
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b.cmd.ProcessState == nil {
			_ = b.cmd.Process.Kill()
			_ = b.cmd.Wait()
		}
	})
	return b
}

// check ends the helper and checks that all it wrote is there.
func (b *bulkLoad) check(t *testing.T, client *http.Client, direct string) {
	t.Helper()
	if err := errors.Join(b.end.Close(), b.cmd.Wait()); err != nil {
		t.Fatalf("the bulk helper: %v\n%s", err, &b.stderr)
	}
	var did struct {
		Written int
		Failed  []json.RawMessage
	}
	if err := json.Unmarshal(b.stdout.Bytes(), &did); err != nil {
		t.Fatalf("the bulk helper printed %q: %v", &b.stdout, err)
	}
	must(t, client, http.MethodPost, direct+"/"+b.index+"/_refresh", "")
	var counted struct{ Count int }
	body := must(t, client, http.MethodGet, direct+"/"+b.index+"/_count", "").body
	if err := json.Unmarshal(body, &counted); err != nil {
		t.Fatal(err)
	}
	t.Logf("the bulk helper wrote %d documents", did.Written)
	if len(did.Failed) > 0 || did.Written == 0 || counted.Count != did.Written {
		t.Errorf("the bulk helper wrote %d documents and failed with %d (%.300s); %d are there", did.Written, len(did.Failed), did.Failed, counted.Count)
	}
}
