// Package upstream holds the filter that sends an exchange to a cluster.
//
// Choosing nodes, repeating and finding nodes is the business of package elastic. The filter trades a bounded copy for
// safety: a request's body of up to a megabyte is read before a node is chosen, so that a slow client holds no
// connection to a node and the request can be sent to another node as it was.
package upstream

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"time"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/balance"
	"weir/elastic/bulk"
	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/elastic/transport"
	"weir/flows"
	"weir/internal/conf"
)

// ElasticsearchConfig is the configuration of elasticsearch.
type ElasticsearchConfig struct {
	// Name of the cluster, as in the section elasticsearch.
	Elasticsearch string `conf:"elasticsearch"`
	// Several clusters in place of one; everything else holds for each of them.
	Clusters ClustersConfig `conf:"clusters"`
	// How a node is chosen: `weight`, the classic word, as balance.policy of the cluster says, or one of its values.
	Balancer string `conf:"balancer,alias=policy" enum:"weight,p2c,least,round_robin,first"`
	// Exchanges in flight at one node, each on a connection of its own. While all nodes are full, further ones wait.
	MaxConnection int `conf:"max_connection,alias=max_connection_per_node" min:"1"`
	// Exchanges that may wait while all nodes are full; more are refused with 429. Callers take turns.
	MaxWaiting int `conf:"max_waiting" min:"1"`
	// Longest wait for a node with room; then 429.
	WaitTimeout conf.Duration `conf:"wait_timeout"`
	// Largest answer that is passed on; a larger one is refused with 502, or cut off if it did not announce its length.
	// -1 and 0 are no limit.
	MaxResponseSize conf.Bytes `conf:"max_response_size" min:"-1"`
	// Time until an answer must begin; then 504. 0 is no limit. It never applies to calls that run long by nature, such
	// as _forcemerge, _reindex, _update_by_query and snapshots.
	Timeout conf.Duration `conf:"timeout"`
	// The other limits on time. What ran into one is not repeated: it may still run.
	Timeouts TimeoutsConfig `conf:"timeouts"`
	// Whose credentials nodes get. caller: what the caller sent, and nothing of the gateway's. gateway: the gateway's own,
	// its client certificate included, in place of the caller's; everybody who reaches the flow acts with its rights.
	// if_missing: the gateway's own for callers that send no Authorization, as the classic form does it.
	Credentials string `conf:"credentials" enum:"caller,gateway,if_missing"`
	// How nodes are found; replaces what the cluster says.
	Discovery *elastic.DiscoveryConfig `conf:"discovery"`
}

// TimeoutsConfig limits the time of an exchange with a node.
type TimeoutsConfig struct {
	// Connecting to a node, encryption included. Then another node is tried.
	Connect conf.Duration `conf:"connect"`
	// Until an answer must begin, by class of API, in place of timeout.
	FirstByte FirstByteConfig `conf:"first_byte"`
	// Between two pieces of an answer, or of a request that the node is to take. Then the exchange is cut off. 0 is no limit.
	Idle conf.Duration `conf:"idle"`
	// The whole exchange, until the last byte of the answer. It never applies to calls that run long by nature. 0 is no
	// limit.
	Total conf.Duration `conf:"total"`
	// Rate at which an answer must come at least, such as 10kb/s, by the time spent waiting for the node; then it is cut
	// off. It does not apply to streams of events.
	MinRate conf.Rate `conf:"min_rate"`
	// Time over which min_rate is measured.
	MinRateWindow conf.Duration `conf:"min_rate_window"`
	// How long a connection that nobody uses is kept: less than nodes, and balancers in front of them, do.
	KeepAlive conf.Duration `conf:"keep_alive" min:"1ms"`
	// Age from which a connection serves no further request, so that a name that leads to other addresses is noticed
	// under load too.
	ConnectionAge conf.Duration `conf:"connection_age" min:"1ms"`
}

// FirstByteConfig limits the time until an answer begins, by class of API. 0 is no limit.
type FirstByteConfig struct {
	// Searches and other calls that ask for documents.
	Search *conf.Duration `conf:"search"`
	// Calls that open, move or close a cursor: scroll, points in time, asynchronous searches.
	Cursor *conf.Duration `conf:"cursor"`
	// Calls that change documents, such as _bulk.
	Write *conf.Duration `conf:"write"`
	// Calls that read state, mappings or statistics.
	Inspect *conf.Duration `conf:"inspect"`
	// Calls that change anything else.
	Admin *conf.Duration `conf:"admin"`
	// Calls that are not known.
	Unknown *conf.Duration `conf:"unknown"`
	// Calls that run long by nature, whatever their class, such as _forcemerge, _reindex, _update_by_query, snapshots and
	// waiting for the health of a cluster. They have no limit unless one is given here.
	Long *conf.Duration `conf:"long"`
}

// of returns the limit for a call; 0 is none.
func (c *FirstByteConfig) of(call *api.Call, timeout conf.Duration) time.Duration {
	if call.Long() {
		timeout = 0
		if c.Long != nil {
			timeout = *c.Long
		}
		return timeout.Std()
	}
	byClass := [...]*conf.Duration{
		api.ClassUnknown: c.Unknown, api.ClassSearch: c.Search, api.ClassCursor: c.Cursor, api.ClassWrite: c.Write,
		api.ClassInspect: c.Inspect, api.ClassAdmin: c.Admin,
	}
	if own := byClass[call.Class]; own != nil {
		timeout = *own
	}
	return timeout.Std()
}

// Values of ElasticsearchConfig.Credentials.
const (
	credentialsCaller    = "caller"
	credentialsGateway   = "gateway"
	credentialsIfMissing = "if_missing"
)

// replayLimit is the size up to which a request's body is kept, so that it can be sent again.
const replayLimit = 1 << 20

type elasticsearch struct {
	config  ElasticsearchConfig
	targets []*target // one, or those that several chooses among
	several *several  // nil for one
	calls   sync.Pool // of *call
	callers maphash.Seed
}

// A target is a cluster that exchanges are sent to.
type target struct {
	*elasticsearch
	cluster *elastic.ClusterConfig
	pool    elastic.PoolOptions
	live    *elastic.Cluster    // nil if it is switched off
	tracker *generation.Tracker // of what changes in the cluster, for caches
	memory  transport.Memory    // for answers, with all other bodies; nil without a bound
	leave   func()              // the tracker
	reach   *reach              // nil for the only one
}

// call is the memory of one exchange with a cluster.
type call struct {
	elastic.Call
	resp  transport.Response
	query []byte
	owner *elasticsearch
}

// Release implements flows.Releaser.
func (c *call) Release() {
	c.Reset()
	c.resp.Reset()
	c.owner.calls.Put(c)
}

// Elasticsearch declares the filter elasticsearch.
func Elasticsearch() flows.Factory[ElasticsearchConfig] {
	return flows.Factory[ElasticsearchConfig]{
		Name: "elasticsearch", Family: "upstream",
		Summary: "Sends the request to a node of a cluster and goes on with its answer.",
		Default: func() ElasticsearchConfig {
			return ElasticsearchConfig{
				Clusters: ClustersConfig{HoldDown: conf.Duration(30 * time.Second)},
				Balancer: "weight", MaxConnection: transport.DefaultMaxConns, MaxWaiting: transport.DefaultMaxWaiting,
				WaitTimeout: conf.Duration(30 * time.Second), MaxResponseSize: -1, Credentials: credentialsCaller,
				Timeouts: TimeoutsConfig{
					Connect: conf.Duration(transport.DefaultDialTimeout), Idle: conf.Duration(5 * time.Minute),
					MinRateWindow: conf.Duration(transport.DefaultMinRateWindow),
					KeepAlive:     conf.Duration(transport.DefaultIdleTimeout), ConnectionAge: conf.Duration(transport.DefaultMaxAge),
				},
			}
		},
		Build: buildElasticsearch,
		Examples: []flows.Example{
			{Title: "A cluster called default", YAML: "- elasticsearch: {elasticsearch: default, max_connection: 500}"},
			{
				Title: "A second cluster for reads while the first is away",
				YAML:  "- elasticsearch: {clusters: {first: [main, default], hold_down: 1m}}",
			},
			{
				Title: "Limits on time: searches begin to answer within 30 seconds, answers come at 10 kB a second at least",
				YAML:  "- elasticsearch: {elasticsearch: default, timeout: 1m, timeouts: {first_byte: {search: 30s}, min_rate: 10kb/s}}",
			},
		},
	}
}

func buildElasticsearch(b *flows.Builder, c ElasticsearchConfig) flows.Filter {
	f := &elasticsearch{config: c, callers: maphash.MakeSeed()}
	f.calls.New = func() any { return &call{owner: f} }
	names, ok := []string{c.Elasticsearch}, true
	if f.several, ok = buildClusters(b, &c); !ok {
		return nil
	}
	if f.several != nil {
		names = f.several.names
	}
	switch c.Credentials {
	case credentialsGateway:
		b.Warnf("credentials", "everybody who reaches this flow acts with the gateway's rights")
	case credentialsIfMissing:
		b.Warnf("credentials", "everybody who reaches this flow without credentials acts with the gateway's rights")
	}
	if rate := c.Timeouts.MinRate; rate != (conf.Rate{}) && rate.Unit != conf.Data {
		b.Errorf("timeouts.min_rate", "%s is not an amount of data in a time, such as 10kb/s", rate)
	}
	if c.Discovery != nil && !c.Discovery.Refresh.Enabled {
		b.Problems.Warnf(b.Node("discovery").Get("refresh"), "without discovery.refresh nodes were looked for once; now they are looked for again and again: "+
			"leave it out, or write discovery: {enabled: false} to use the configured nodes only")
	}
	for _, name := range names {
		cluster, ok := flows.Resource[*elastic.ClusterConfig](b, "elasticsearch", name)
		if !ok {
			continue
		}
		if c.Credentials != credentialsCaller && cluster.SignedRequests {
			b.Errorf("credentials", "requests to %s are signed by callers: other credentials cannot replace theirs", name)
		}
		warnClassic(b, name, cluster)
		if c.Credentials != credentialsCaller {
			// What callers get with rights that are lent to them must not outlive the loan.
			secrets := cluster.Secrets()
			b.Identify("lent", c.Credentials, name, cluster.BasicAuth.Username, secrets[0], secrets[1], secrets[2])
		}
		f.targets = append(f.targets, f.target(cluster))
	}
	if len(f.targets) < len(names) {
		return nil
	}
	return f
}

// target makes the target of a cluster.
func (f *elasticsearch) target(cluster *elastic.ClusterConfig) *target {
	c := &f.config
	t := &target{elasticsearch: f, cluster: cluster}
	t.pool = elastic.PoolOptions{
		Name: "traffic", MaxConns: c.MaxConnection, MaxWaiting: c.MaxWaiting, WaitTimeout: c.WaitTimeout.Std(),
		MaxBuffered: transport.DefaultMaxBufferedBody, Discovery: cluster.Discovery, DialTimeout: c.Timeouts.Connect.Std(),
		PieceTimeout: c.Timeouts.Idle.Std(), MinRate: int64(math.Ceil(c.Timeouts.MinRate.PerSecond())), MinRateWindow: c.Timeouts.MinRateWindow.Std(),
		IdleTimeout: c.Timeouts.KeepAlive.Std(), MaxAge: c.Timeouts.ConnectionAge.Std(), Certificate: c.Credentials == credentialsGateway,
	}
	if c.Discovery != nil {
		t.pool.Discovery = *c.Discovery
	}
	if c.Balancer != "weight" {
		t.pool.Policy = c.Balancer
	}
	return t
}

// warnClassic names what of a cluster is read otherwise than in the classic form.
func warnClassic(b *flows.Builder, name string, cluster *elastic.ClusterConfig) {
	if cluster.BasicAuth.Username != "" && b.Node("").Get("credentials").IsZero() {
		b.Warnf("elasticsearch", "basic_auth of %s was also sent for callers without credentials; now it is for the gateway's own calls only, "+
			"and such callers get 401 from a secured cluster: write credentials: caller if that is right, or credentials: if_missing for what was before", name)
	}
}

// Start opens the clusters, or takes over those of the configuration before.
func (f *elasticsearch) Start(rt *flows.Runtime) error {
	for _, t := range f.targets {
		if err := t.start(rt); err != nil {
			return err
		}
	}
	return nil
}

func (f *target) start(rt *flows.Runtime) error {
	if rt.Budget != nil {
		f.memory = rt.Budget
	}
	if !f.cluster.Enabled {
		return nil
	}
	text, err := json.Marshal(struct {
		Cluster elastic.ClusterConfig
		Secrets [3]string // by which a changed secret is noticed; the key never leaves the process
		Pool    elastic.PoolOptions
	}{*f.cluster, f.cluster.Secrets(), f.pool})
	if err != nil {
		return err
	}
	shape := string(text)
	f.live, err = flows.Keep(rt, "elasticsearch "+shape, func() (*elastic.Cluster, func(), error) {
		c, err := elastic.NewCluster(f.cluster, f.pool, elastic.Deps{Metrics: rt.Metrics, Logger: rt.Logger})
		if err != nil {
			return nil, nil, err
		}
		c.Start()
		return c, c.Close, nil
	})
	if err != nil {
		return err
	}
	if f.several != nil {
		holdDown := f.several.holdDown
		f.reach, err = flows.Keep(rt, "reach "+holdDown.String()+" "+shape, func() (*reach, func(), error) {
			r := newReach(f.cluster.Name, f.live, holdDown, rt)
			return r, nil, nil
		})
		if err != nil {
			return err
		}
	}
	// All filters of a cluster share a tracker, since each sees writes that the searches of others are about.
	f.tracker, err = flows.Keep(rt, "generations "+f.cluster.Name+" "+f.cluster.Identity(), func() (*generation.Tracker, func(), error) {
		k := generation.New(generation.Options{Cluster: f.cluster.Name, Metrics: rt.Metrics, Logger: rt.Logger})
		return k, k.Close, nil
	})
	if err != nil {
		return err
	}
	f.leave = f.tracker.Use(f.live)
	return nil
}

// Repeats implements flows.Repeater.
func (f *elasticsearch) Repeats() {}

// Stop implements flows.Stopper.
func (f *elasticsearch) Stop() {
	for _, t := range f.targets {
		if t.leave != nil {
			t.leave()
			t.leave = nil
		}
	}
}

func (f *elasticsearch) Serve(x *flows.Exchange, next flows.Handler) error {
	c, _ := f.calls.Get().(*call)
	x.ReleaseWith(c)
	var err error
	if f.several == nil {
		err = f.targets[0].do(x, c)
	} else {
		err = f.doSeveral(x, c)
	}
	if err != nil {
		return err
	}
	if err := f.response(x, c); err != nil {
		return err
	}
	return next.Serve(x)
}

// do sends the exchange to the target and reads its answer into c.
func (f *target) do(x *flows.Exchange, c *call) error {
	t := &x.Trace
	t.Cluster = f.cluster.Name
	if f.live == nil {
		return elastic.Errorf(503, "no_node_available_exception", "cluster [%s] is switched off", f.cluster.Name)
	}
	if err := f.request(x, c); err != nil {
		return err
	}
	if a := flows.Stamps.Get(x); a != nil {
		a.Fill(f.tracker)
	}
	before := time.Now()
	err := f.live.Do(&c.Call, &c.resp)
	f.note(x, c, err)
	t.Upstream += time.Since(before)
	t.Outcome, t.Node = flows.Upstream, c.Node
	t.Attempts += c.Attempts
	t.Queued += c.Queued
	t.Connect += c.Connected
	t.FirstByte = c.FirstByte
	return err
}

// note tells the tracker what the exchange may have changed, before the client learns that it has.
func (f *target) note(x *flows.Exchange, c *call, err error) {
	w := generation.Write{Call: x.Call(), Method: c.Method, Query: x.Request.Query, Body: c.Body}
	if err == nil {
		w.Status = c.resp.Status
		if c.resp.Stream == nil {
			w.Answer = c.resp.Body
		}
	}
	f.tracker.Note(&w)
}

// request makes the request to the node of the client's.
func (f *target) request(x *flows.Exchange, c *call) error {
	r, kind := &x.Request, x.Call()
	c.Method, c.Target, c.Header, c.ClientHost = r.Method, f.path(x, c), &r.Header, r.Host
	c.Idempotency, c.Class = kind.Idempotency, elastic.ClassOf(kind, r.Query)
	switch f.config.Credentials {
	case credentialsGateway:
		c.OwnAuth = true
	case credentialsIfMissing:
		c.OwnAuth = !r.Header.Has("authorization")
	}
	if f.cluster.SignedRequests {
		if err := checkSigned(r); err != nil {
			return err
		}
	} else {
		c.Extra = x.Forwarded(c.Extra[:0]) // a field that is signed must not change
	}
	if r.User != nil {
		c.Caller = maphash.Bytes(f.callers, r.User)
	} else {
		ip := r.ClientIP.As16()
		c.Caller = maphash.Bytes(f.callers, ip[:])
	}
	c.Memory = f.memory
	body, whole, err := f.body(r)
	if err != nil {
		return err
	}
	if whole {
		c.Body, c.HasBody = body, len(body) > 0 || r.Header.Has("content-length")
		switch {
		case kind.Name == "bulk":
			c.Idempotency = bulk.Idempotency(body)
		case query.Writes(kind.Name, r.Query, body): // a statement that is not sure to read only
			c.Idempotency = api.Unsafe
		}
	} else {
		c.Stream, c.StreamLength = r.Body.Reader(), r.Body.Len()
	}
	c.Prompt = c.Class != balance.Search // whose answers come at once, and are worth keeping
	c.HeadTimeout = f.config.Timeouts.FirstByte.of(kind, f.config.Timeout)
	if total := f.config.Timeouts.Total; total > 0 && !kind.Long() {
		c.Deadline = x.Start.Add(total.Std())
	}
	// A search ends with its client; a write is not left half-done because somebody hung up. One out of a queue is made again.
	if c.Idempotency == api.Read || c.Idempotency == api.Context || x.Replay != nil {
		c.Cancel = x.Cancel()
	}
	return nil
}

// body returns the request's body if it is short enough to be kept, so that it can be sent again.
func (f *elasticsearch) body(r *flows.Request) (data []byte, whole bool, err error) {
	switch n := r.Body.Len(); {
	case r.Body.Buffered(), n < 0:
		return r.Body.Prefetch(replayLimit)
	case n <= replayLimit:
		data, err = r.Body.Bytes(replayLimit)
		return data, true, err
	}
	return nil, false, nil
}

// path returns the request target without the gateway's own switch no_cache, which nodes would refuse.
func (f *target) path(x *flows.Exchange, c *call) []byte {
	r := &x.Request
	if _, ok := api.QueryValue(r.Query, "no_cache"); !ok || f.cluster.SignedRequests {
		return r.Target
	}
	c.query = append(append(c.query[:0], r.Path...), '?')
	c.query = api.RemoveParam(c.query, r.Query, "no_cache")
	if c.query[len(c.query)-1] == '?' {
		c.query = c.query[:len(c.query)-1]
	}
	return c.query
}

// response makes the node's answer the response.
func (f *elasticsearch) response(x *flows.Exchange, c *call) error {
	limit := int64(f.config.MaxResponseSize)
	if limit > 0 && c.resp.Length > limit && string(x.Request.Method) != "HEAD" {
		return elastic.Errorf(502, "content_too_long_exception",
			"the answer of node [%s] has %d bytes, over the limit of %d", c.Node, c.resp.Length, limit)
	}
	x.Response.Status, x.Response.Reason = c.resp.Status, c.resp.Reason
	x.Response.Header.Reset()
	for _, field := range c.resp.Header.Fields() {
		x.Response.Header.Add(field.Name, field.Value)
	}
	switch {
	case c.resp.Stream != nil && limit > 0 && c.resp.Length < 0:
		x.Response.Body.ReplaceStream(&limited{c.resp.Stream, limit}, -1)
	case c.resp.Stream != nil:
		x.Response.Body.ReplaceStream(c.resp.Stream, c.resp.Length)
	case len(c.resp.Body) == 0 && c.resp.Length != 0:
		x.Response.Body.Announce(c.resp.Length)
	default:
		x.Response.Body.Replace(c.resp.Body)
	}
	return nil
}

// limited cuts off an answer that did not announce its length and passes the limit.
type limited struct {
	stream interface {
		Read(p []byte) (int, error)
		Close() error
	}
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.stream.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("answer is over max_response_size: %w", flows.ErrBodyTooLarge)
	}
	return n, err
}

// Close closes the answer.
func (l *limited) Close() error { return l.stream.Close() }
