package elastic

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"weir/elastic/balance"
	"weir/elastic/transport"
	"weir/internal/obs"
)

// PoolOptions say how a user of a cluster wants to reach it. They shape the pool: each user with other options has
// connections of its own.
type PoolOptions struct {
	Name          string        // in metrics: traffic for callers, own for the gateway's calls
	Policy        string        // in place of the cluster's balance.policy, if not empty
	MaxConns      int           // exchanges in flight at one node
	MaxWaiting    int           // exchanges that wait while all nodes are full
	WaitTimeout   time.Duration // longest wait for that
	MaxBuffered   int64         // longer answers are streamed
	Discovery     DiscoveryConfig
	DialTimeout   time.Duration // connecting to a node; 0 = transport.DefaultDialTimeout
	PieceTimeout  time.Duration // between two pieces of a request that is sent or of an answer; 0 = none
	MinRate       int64         // bytes a second of an answer's body; 0 = any
	MinRateWindow time.Duration // over which MinRate is measured
	IdleTimeout   time.Duration // a connection unused for so long is closed; 0 = transport.DefaultIdleTimeout
	MaxAge        time.Duration // a connection open for so long serves no further exchange; 0 = transport.DefaultMaxAge
	Certificate   bool          // show the gateway's client certificate to nodes on these connections
}

// DefaultPool returns the options of the gateway's own calls.
func DefaultPool() PoolOptions {
	return PoolOptions{
		Name: "own", MaxConns: 32, MaxWaiting: transport.DefaultMaxWaiting, WaitTimeout: 30 * time.Second, MaxBuffered: 64 << 20,
		Discovery: DefaultCluster().Discovery, PieceTimeout: time.Minute, Certificate: true,
	}
}

// Deps are what a cluster takes from outside. Nil fields take the system's.
type Deps struct {
	Metrics  *obs.Metrics // required
	Logger   *slog.Logger // required
	ReadFile func(name string) ([]byte, error)
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	Resolver Resolver
	Now      func() time.Time
	Rand     func(n int) int
}

// A Version is what a cluster says of itself.
type Version struct {
	Number       string // such as 7.17.28
	Distribution string // opensearch, or empty for Elasticsearch
}

// A Cluster spreads exchanges over the nodes of one cluster, finds nodes and watches over them.
type Cluster struct {
	config  *ClusterConfig
	options PoolOptions
	deps    Deps
	logger  *slog.Logger
	auth    atomic.Pointer[string] // value of Authorization for the gateway's own calls, or empty
	files   tlsFiles               // as all nodes were last told to use
	seeds   []*node
	lookups []Endpoint // that stand for several nodes
	// clientHost is set if nodes get the Host of the client.
	clientHost bool
	picker     *balance.Picker[*node]
	budget     budget // of retries
	uploads    uploads
	metrics    *clusterMetrics

	uuid    atomic.Pointer[string]
	nodeIDs atomic.Pointer[[][]byte] // of all nodes that are known, those included that get no traffic
	weights sync.Map                 // of nodes by address, in place of the configured ones
	warned  sync.Map                 // causes of warnings that were given once

	discovering sync.Mutex // held by a search for nodes; guards the fields below
	resolved    []*listed  // what lookups found
	absent      absentees

	left    atomic.Int64  // when a node last left, in nanoseconds of the epoch
	kick    chan struct{} // asks for discovery before its time
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	running atomic.Bool
}

// spareConns are connections to a node beyond those of exchanges, so that a node is not taken for dead because it is
// too busy to be asked.
const spareConns = 4

// A node is one node of a cluster and the pool of connections to it.
type node struct {
	endpoint Endpoint
	pool     *transport.Node
	own      *transport.Node // for the gateway's own calls: pool, unless only they show a client certificate
	seed     bool
	name     string // its address, as in metrics
	host     []byte
	base     []byte
	id       atomic.Pointer[string] // node id, once known
	metrics  *nodeMetrics           // nil until it is a member
	files    tlsFiles               // that its connections use; of refresh alone once it is a member
	title    atomic.Pointer[string] // its name in the cluster, once known
	version  atomic.Pointer[Version]
	stranger atomic.Bool // it belongs to another cluster
	pending  pending
	answers  atomic.Uint64 // so far
	asked    atomic.Bool   // it is being asked whether it hangs

	// of watchStalls alone
	lastAnswers uint64
	silent      int // ticks
}

type member = balance.Member[*node]

// NewCluster makes a cluster. It reads the files that the configuration names and opens no connections; Start does.
func NewCluster(c *ClusterConfig, o PoolOptions, d Deps) (*Cluster, error) {
	if d.ReadFile == nil {
		d.ReadFile = os.ReadFile
	}
	if d.Resolver == nil {
		d.Resolver = net.DefaultResolver
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Rand == nil {
		d.Rand = rand.IntN
	}
	k := &Cluster{config: c, options: o, deps: d, logger: d.Logger.With("cluster", c.Name), kick: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	var err error
	if k.metrics, err = newClusterMetrics(d.Metrics, c.Name, o.Name); err != nil {
		return nil, err
	}
	k.picker = balance.NewPicker[*node](c.Balance.options(o, d, k))
	endpoints := c.endpoints()
	k.clientHost = c.Host == hostClient
	auth, err := k.authorization(endpoints)
	if err == nil {
		k.auth.Store(&auth)
		k.files, err = k.readTLS()
	}
	if err != nil {
		return nil, fmt.Errorf("elasticsearch %s: %w", c.Name, err)
	}
	for _, e := range endpoints {
		if e.Lookup != "" {
			k.lookups = append(k.lookups, e)
			continue
		}
		n, err := k.newNode(e)
		if err != nil {
			return nil, fmt.Errorf("elasticsearch %s: %w", c.Name, err)
		}
		n.seed = true
		k.seeds = append(k.seeds, n)
	}
	// From here on nothing fails: the numbers of a cluster that is at work are not to be those of one that never was.
	k.picker.Set(k.admitSeeds(nil, nil, nil))
	k.watchQueue()
	k.watchNodes()
	return k, nil
}

// newNode makes a node and its pool.
func (k *Cluster) newNode(e Endpoint) (*node, error) {
	o := transport.Options{
		Addr: e.Addr, MaxConns: k.options.MaxConns + spareConns, MaxWaiting: k.options.MaxWaiting, WaitTimeout: k.options.WaitTimeout,
		MaxBufferedBody: k.options.MaxBuffered, IdleReadTimeout: k.options.PieceTimeout, WriteTimeout: k.options.PieceTimeout, DialTimeout: k.options.DialTimeout,
		MinRate: k.options.MinRate, MinRateWindow: k.options.MinRateWindow, IdleTimeout: k.options.IdleTimeout, MaxAge: k.options.MaxAge, Dial: k.deps.Dial, Now: k.deps.Now,
	}
	var (
		own   *tls.Config
		files tlsFiles
		err   error
	)
	if e.TLS {
		if files, err = k.readTLS(); err != nil {
			return nil, err
		}
		if o.TLS, own, err = k.tlsConfigs(e, files); err != nil {
			return nil, err
		}
	}
	n := &node{endpoint: e, files: files, pool: transport.New(o), name: e.Addr, host: []byte(e.Host), base: []byte(e.Base)}
	if k.config.Host != hostUpstream && k.config.Host != hostClient {
		n.host = []byte(k.config.Host)
	}
	n.own = n.pool
	if own != nil {
		o.TLS = own
		n.own = transport.New(o)
	}
	return n, nil
}

// Start begins to look for nodes and to watch over them.
func (k *Cluster) Start() {
	k.running.Store(true)
	k.tasks.Add(3)
	go k.discover()
	go k.watch()
	go k.watchStalls()
}

// Close ends the cluster's own work and closes connections: idle ones at once, others when their exchange has ended.
func (k *Cluster) Close() {
	k.cancel()
	k.tasks.Wait()
	for _, m := range k.picker.Members() {
		m.Node.close()
	}
	for _, n := range k.seeds {
		n.close()
	}
	for _, remove := range k.metrics.removes {
		remove()
	}
}

func (n *node) close() {
	n.pool.Close()
	n.own.Close()
	if n.metrics != nil {
		n.metrics.forget()
	}
}

// Name returns the cluster's name.
func (k *Cluster) Name() string { return k.config.Name }

// Version returns what the first of the nodes that have said so says of itself; it is zero before the first answer. In a cluster that
// is being upgraded others may say something else.
func (k *Cluster) Version() Version {
	for _, m := range k.picker.Members() {
		if v := m.Node.version.Load(); v != nil {
			return *v
		}
	}
	return Version{}
}

// nodeChanged logs that a node went out, was kept in or came back, once for each change.
func (k *Cluster) nodeChanged(c balance.Change) {
	switch {
	case c.Out:
		k.metrics.ejections.Inc()
		k.logger.Warn("node is out", "node", c.Name, "cause", c.Cause, "until", c.Until)
	case c.Kept:
		k.logger.Warn("node fails, and is not taken out since too few would be left", "node", c.Name, "cause", c.Cause)
	default:
		k.logger.Info("node is back", "node", c.Name, "cause", c.Cause)
	}
}

// panicChanged logs that fewer than half of the nodes are in, or no longer.
func (k *Cluster) panicChanged(on bool) {
	if on {
		k.logger.Warn("fewer than half of the nodes are in: those that answer at all are used again")
		return
	}
	k.logger.Info("half of the nodes or more are in again")
}
