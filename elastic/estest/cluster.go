// Package estest is a scripted cluster in memory that speaks enough of the REST API of Elasticsearch and OpenSearch for
// tests and for a demonstration without Java: documents, searches, aggregations, templates, statistics, several nodes,
// and faults on demand. Its answers have the shape of those of the real products, member order and error types
// included, as far as they were compared with Elasticsearch 7.17, OpenSearch 2.19 and OpenSearch 3.9.
//
// It is not a search engine. Scores only tell which documents match better, analysis is splitting into lower-case
// words, and everything is kept in maps under one lock: it trades depth and speed for code that can be read, and for
// exact control of time (Clock), of failures (Fault) and of what was received (Call). Nothing is written to disk. The
// HTTP side is a small server of its own, because the tests need the exact bytes of each request and broken answers
// that a proper server refuses to give.
package estest

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const defaultName = "estest"

// Options say what cluster to start. The zero value is one node of Elasticsearch 7 on a free port of 127.0.0.1.
type Options struct {
	// Flavor is the product and version.
	Flavor Flavor
	// Nodes is the number of nodes, 1 if zero.
	Nodes int
	// Ports are the ports of the first nodes on 127.0.0.1; missing and zero ones mean free ports.
	Ports []int
	// Name is the cluster's name, "estest" if empty.
	Name string
	// InMemory opens no sockets: nodes are reached through Dial alone, which works in a testing/synctest bubble.
	InMemory bool
	// TLS makes the nodes speak TLS.
	TLS *tls.Config
	// Clock is the time of the cluster, the system's if nil.
	Clock Clock
	// RefreshInterval is how long documents stay invisible to searches if index.refresh_interval is not set, 1 s if zero;
	// negative means until a refresh is asked for.
	RefreshInterval time.Duration
	// Gzip codes answers when Accept-Encoding asks for it, as nodes do by default.
	Gzip bool
	// MaxContentLength is the limit for bodies, in bytes, 100 MiB if zero, as in nodes.
	MaxContentLength int64
	// Users are who may use the cluster, by basic authentication or a key of theirs. Nobody has to say who they are if there
	// are none. SetUsers changes them.
	Users []User
}

// A User may use the cluster.
type User struct {
	Name, Password string
	Roles          []string
	// Filter is a query, in JSON: the user sees the documents that match it and no others. Empty for all.
	Filter string
	// Keys are the user's API keys.
	Keys []Key
	// Tokens are bearer tokens of the user. What has the form of a JWT comes from a realm; Elasticsearch gave out others.
	Tokens []string
	// RunAs are the names of users as whom the user may act, by es-security-runas-user.
	RunAs []string

	key   string // by which the user came
	token string // likewise
	agent string // who runs as the user
}

// A Key is an API key: who has it is its user, with rights that are as narrow as the user's and its own together.
type Key struct {
	ID, Secret string
	// Filter is as that of a User.
	Filter string
}

// A Cluster is a number of nodes over one store of documents. Its methods may be called from any goroutine.
type Cluster struct {
	o       Options
	details *flavorDetails
	clock   Clock
	uuid    string
	users   atomic.Pointer[[]User]
	faults  faults

	nodesMu sync.Mutex // guards nodes
	nodes   []*Node

	callsMu sync.Mutex // guards the fields below
	calls   []*Call
	seq     int
	changed chan struct{} // closed and renewed when a call is recorded
	running map[*Call]struct{}

	mu    sync.Mutex // guards store; handlers run under it
	store store
}

// Start starts a cluster. It fails when an address cannot be listened on or an option makes no sense.
func Start(o Options) (*Cluster, error) {
	if o.Flavor < 0 || int(o.Flavor) >= len(flavors) {
		return nil, fmt.Errorf("start cluster: no flavor %d", o.Flavor)
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.Name == "" {
		o.Name = defaultName
	}
	if o.RefreshInterval == 0 {
		o.RefreshInterval = time.Second
	}
	if o.MaxContentLength == 0 {
		o.MaxContentLength = 100 << 20
	}
	c := &Cluster{
		o: o, details: &flavors[o.Flavor], clock: o.Clock, changed: make(chan struct{}), running: map[*Call]struct{}{},
		store: newStore(),
	}
	if c.clock == nil {
		c.clock = systemClock{}
	}
	c.uuid = c.store.newID()
	for range o.Nodes {
		if _, err := c.AddNode(); err != nil {
			c.Close()
			return nil, err
		}
	}
	if err := c.SetUsers(o.Users...); err != nil {
		c.Close()
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	return c, nil
}

// TB is the part of testing.TB that New needs, so that programs that are no tests do not link the testing package.
type TB interface {
	Helper()
	Fatal(args ...any)
	Cleanup(func())
}

// New starts a cluster for a test and closes it when the test ends. It ends the test if the cluster does not start.
func New(tb TB, o Options) *Cluster {
	tb.Helper()
	c, err := Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Close stops all nodes and waits for what they were doing. Further calls do nothing.
func (c *Cluster) Close() {
	for _, n := range c.Nodes() {
		n.Stop()
	}
}

// AddNode adds a node to the cluster and starts it.
func (c *Cluster) AddNode() (*Node, error) {
	c.nodesMu.Lock()
	defer c.nodesMu.Unlock()
	i := len(c.nodes)
	n := &Node{c: c, number: i, name: fmt.Sprintf("n%d", i+1), id: c.nodeID(i), listed: true, hasHTTP: true}
	n.roles = []string{"data", "ingest", "master", "remote_cluster_client"}
	if c.details.opensearch {
		n.roles = []string{"cluster_manager", "data", "ingest", "remote_cluster_client"}
	}
	port := 0
	if i < len(c.o.Ports) {
		port = c.o.Ports[i]
	}
	n.addr = fmt.Sprintf("127.0.0.1:%d", port)
	if c.o.InMemory {
		n.addr = fmt.Sprintf("10.0.0.%d:9200", i+1)
	}
	if err := n.Start(); err != nil {
		return nil, err
	}
	c.nodes = append(c.nodes, n)
	return n, nil
}

// Nodes returns the nodes, stopped ones included.
func (c *Cluster) Nodes() []*Node {
	c.nodesMu.Lock()
	defer c.nodesMu.Unlock()
	return append([]*Node(nil), c.nodes...)
}

// Node returns node i, from 0. It panics if there is none, as indexing a slice does.
func (c *Cluster) Node(i int) *Node { return c.Nodes()[i] }

// URL returns the URL of node 0.
func (c *Cluster) URL() string { return c.Node(0).URL() }

// URLs returns the URLs of all nodes.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, n := range c.Nodes() {
		urls = append(urls, n.URL())
	}
	return urls
}

// UUID returns the cluster's UUID.
func (c *Cluster) UUID() string { return c.uuid }

// Dial connects to the running node that has the address, over a connection in memory. It has the signature of
// net.Dialer.DialContext; network does not matter.
func (c *Cluster) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, n := range c.Nodes() {
		if n.Addr() == addr {
			client, server := net.Pipe()
			if n.accept(server) {
				return client, nil
			}
			_ = server.Close()
			break
		}
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("no node runs at %s", addr)}
}

// nodeID returns the id of node i, which clusters of different names have different ones for.
func (c *Cluster) nodeID(i int) string {
	n := uint64(i) + 1
	if c.o.Name != defaultName {
		h := fnv.New64a()
		_, _ = h.Write([]byte(c.o.Name))
		n ^= h.Sum64()
	}
	return stableID(n)
}

// stableID returns an id of 22 characters, as nodes and indices have, that depends on n alone.
func stableID(n uint64) string {
	var b [16]byte
	for i := range 2 {
		n += 0x9e3779b97f4a7c15
		z := n
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.BigEndian.PutUint64(b[8*i:], z^z>>31)
	}
	return base64.RawURLEncoding.EncodeToString(b[:])
}
