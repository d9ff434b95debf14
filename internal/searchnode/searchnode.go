// Package searchnode runs real OpenSearch and Elasticsearch clusters on loopback, from the engines' own jars on Maven
// Central, for tests and for the demonstration.
//
// It is not for serving: the nodes have small heaps, no security and only the plug-ins that stand in assets/engines
// (Elasticsearch 7.17 has no x-pack and no painless, which are not published there). It trades likeness to a packaged
// installation for a start in about ten seconds, without root and without a container. It needs a JDK, and Maven the
// first time. Package searchtest beside it shares clusters between tests.
package searchnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options says what Start starts.
type Options struct {
	// Engine is one of Engines(). There is no default.
	Engine string
	// Nodes is the number of nodes, 1 if zero.
	Nodes int
	// Port is the HTTP port of the first node; each further node has the next one. Free ports are taken if zero.
	Port int
	// Settings are further node settings, the same for each node, as they would stand in the engine's YAML file.
	Settings map[string]string
	// Dir holds the nodes' data and logs (n1.log, ...), and stays. A temporary folder that Close removes if empty.
	Dir string
	// Heap is the heap of each node in Java's notation, 512m if empty.
	Heap string
}

// A Cluster is a running cluster. Close ends it; so does the end of this process, whatever its cause.
type Cluster struct {
	engine  string
	nodes   []*Node
	dir     string
	ownsDir bool
	client  *http.Client

	closing sync.Once
	closed  error
}

// Start starts a cluster and returns once its health is green. The first start of an engine on a machine also fetches its
// jars. ctx bounds the start, not the life of the cluster. A node that does not start gives an error with the end of its
// log.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	e, err := engineNamed(o.Engine)
	if err != nil {
		return nil, err
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.Heap == "" {
		o.Heap = "512m"
	}
	jdk, err := findJDK(e, jdkHomes())
	if err != nil {
		return nil, err
	}
	prepared, err := e.prepare(ctx, jdk)
	if err != nil {
		return nil, err
	}
	ports, err := choosePorts(o.Port, o.Nodes)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Engine, err)
	}
	c := &Cluster{
		engine: o.Engine,
		dir:    o.Dir,
		// One transport for this cluster alone, so that Close can end its connections.
		client: &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second},
	}
	if c.dir == "" {
		c.ownsDir = true
		if c.dir, err = os.MkdirTemp("", "weir-"+o.Engine+"-"); err != nil {
			return nil, fmt.Errorf("start %s: %w", o.Engine, err)
		}
	}
	for i, settings := range nodeSettings(e, o, ports) {
		home := filepath.Join(c.dir, "n"+strconv.Itoa(i+1))
		n := &Node{
			url:     "http://127.0.0.1:" + strconv.Itoa(ports[i].http),
			command: e.command(jdk, prepared, home, o.Heap, settings),
			log:     home + ".log",
			client:  c.client,
		}
		c.nodes = append(c.nodes, n)
		if err = os.MkdirAll(home, 0o755); err == nil {
			err = n.launch()
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = c.WaitGreen(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", o.Engine, err), c.Close())
	}
	return c, nil
}

// nodePorts are the ports of one node.
type nodePorts struct{ http, transport int }

// nodeSettings returns the settings of each node as key=value, those of o last.
func nodeSettings(e engine, o Options, ports []nodePorts) [][]string {
	var seeds, managers []string
	for i, p := range ports {
		seeds = append(seeds, "127.0.0.1:"+strconv.Itoa(p.transport))
		managers = append(managers, "n"+strconv.Itoa(i+1))
	}
	discovery := []string{"discovery.type=single-node"}
	if len(ports) > 1 {
		discovery = []string{"discovery.seed_hosts=" + strings.Join(seeds, ","), e.initialManagers + "=" + strings.Join(managers, ",")}
	}
	var extra []string
	for key, value := range o.Settings {
		extra = append(extra, key+"="+value)
	}
	slices.Sort(extra)

	nodes := make([][]string, len(ports))
	for i, p := range ports {
		nodes[i] = slices.Concat([]string{
			"node.name=" + managers[i],
			// Nodes of two clusters never join, not even if one takes over a port of the other.
			"cluster.name=weir-" + strconv.Itoa(ports[0].transport),
			"network.host=127.0.0.1",
			"http.port=" + strconv.Itoa(p.http),
			"transport.port=" + strconv.Itoa(p.transport),
			// A nearly full disk is no reason for a test to fail.
			"cluster.routing.allocation.disk.threshold_enabled=false",
		}, discovery, extra)
	}
	return nodes
}

// Ports are chosen below the range from which the system takes the ports of outgoing connections (32768 and up on
// Linux): while a node is down, nothing can come to sit on its port by chance.
const (
	lowestPort  = 20000
	highestPort = 32000
)

// choosePorts returns the ports of n nodes, HTTP from first on if first is not zero.
func choosePorts(first, n int) ([]nodePorts, error) {
	need := 2 * n
	if first != 0 {
		need = n
	}
	free, err := freePorts(need)
	if err != nil {
		return nil, err
	}
	ports := make([]nodePorts, n)
	for i := range ports {
		ports[i].transport = free[i]
		if first == 0 {
			ports[i].http = free[n+i]
			continue
		}
		ports[i].http = first + i
		if !portFree(first + i) {
			return nil, fmt.Errorf("port %d is taken", first+i)
		}
	}
	return ports, nil
}

// freePorts returns n ports on which nothing listens. It starts at a random place, so that processes that choose at the
// same moment hardly ever choose the same.
func freePorts(n int) ([]int, error) {
	var ports []int
	span := highestPort - lowestPort
	start := rand.IntN(span)
	for i := range span {
		port := lowestPort + (start+i)%span
		if portFree(port) {
			ports = append(ports, port)
		}
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("found %d free ports between %d and %d, need %d", len(ports), lowestPort, highestPort, n)
}

func portFree(port int) bool {
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	ln.Close()
	return true
}

// Engine returns the name of the engine.
func (c *Cluster) Engine() string { return c.engine }

// URLs returns the base addresses of all nodes, without a slash at the end, in the order of Node.
func (c *Cluster) URLs() []string {
	urls := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		urls[i] = n.url
	}
	return urls
}

// Nodes returns the number of nodes, running or not.
func (c *Cluster) Nodes() int { return len(c.nodes) }

// Node returns node i, counted from 0. Its name in the cluster is n1 for i = 0, and so on.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// WaitGreen waits until all nodes whose process runs have joined and the health is green. It fails when ctx ends, and as
// soon as no node runs or one ended by itself.
func (c *Cluster) WaitGreen(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		var running []*Node
		for _, n := range c.nodes {
			if err := n.fault(); err != nil {
				return err
			}
			if n.Running() {
				running = append(running, n)
			}
		}
		if len(running) == 0 {
			return errors.New("no node runs")
		}
		health := fmt.Sprintf("%s/_cluster/health?wait_for_nodes=%d&wait_for_status=green&timeout=1s", running[0].url, len(running))
		status, err := get(ctx, c.client, health)
		if status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not green: %w: last try of %s: status %d, error %v", ctx.Err(), health, status, err)
		case <-tick.C:
		}
	}
}

// get returns the status of the answer to a GET, or 0 and the reason.
func get(ctx context.Context, client *http.Client, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// Close ends all nodes at once, without an orderly stop, and removes the data unless Options.Dir was set. It waits for
// the processes' end, and may be called again.
func (c *Cluster) Close() error {
	c.closing.Do(func() {
		var errs []error
		for _, n := range c.nodes {
			if n.Running() {
				errs = append(errs, n.Kill())
			}
		}
		c.client.CloseIdleConnections()
		if c.ownsDir {
			errs = append(errs, os.RemoveAll(c.dir))
		}
		c.closed = errors.Join(errs...)
	})
	return c.closed
}
