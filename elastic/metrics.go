package elastic

import (
	"errors"
	"sync/atomic"

	"weir/elastic/transport"
	"weir/internal/obs"
)

// clusterMetrics are the numbers of one pool of a cluster: the label pool tells the traffic of callers from the
// gateway's own calls.
type clusterMetrics struct {
	cluster    string
	pool       string
	retries    obs.Counter
	suppressed obs.Counter
	ejections  obs.Counter
	discovery  [2]obs.Counter // good, failed

	requests *obs.CounterVec
	inUse    *obs.FuncVec
	idle     *obs.FuncVec
	waiting  *obs.FuncVec
	dials    *obs.FuncVec
	unasked  *obs.FuncVec
	warnings *obs.FuncVec
	nodes    *obs.FuncVec
	queued   *obs.FuncVec
	panic    *obs.FuncVec
	removes  []func()
}

// nodeOutcomes are the label values for what a node did, in the order of nodeMetrics.counters.
var nodeOutcomes = [...]string{"2xx", "3xx", "4xx", "429", "5xx", "refused", "reset", "timeout", "cancelled", "waited"}

const (
	out2xx = iota
	out3xx
	out4xx
	out429
	out5xx
	outRefused
	outReset
	outTimeout
	outCancelled
	outWaited
)

type nodeMetrics struct {
	counters [len(nodeOutcomes)]obs.Counter
	failures atomic.Int32 // in a row, of attempts on the node and looks at it
	removes  []func()
}

func newClusterMetrics(m *obs.Metrics, cluster, pool string) (*clusterMetrics, error) {
	discovery := m.Counter("weir_upstream_discoveries_total", "Searches for the nodes of a cluster.", "cluster", "pool", "outcome")
	cm := &clusterMetrics{
		cluster:    cluster,
		pool:       pool,
		retries:    m.Counter("weir_upstream_retries_total", "Attempts after the first on another node.", "cluster").With(cluster),
		suppressed: m.Counter("weir_upstream_retries_suppressed_total", "Retries that were not made because the budget was spent.", "cluster").With(cluster),
		queued:     m.GaugeFunc("weir_upstream_queued", "Exchanges that wait because all nodes are full.", "cluster", "pool"),
		panic:      m.GaugeFunc("weir_upstream_panic", "1 while fewer than half of the nodes are in.", "cluster", "pool"),
		ejections:  m.Counter("weir_upstream_ejections_total", "Nodes taken out because they failed.", "cluster", "pool").With(cluster, pool),
		discovery:  [2]obs.Counter{discovery.With(cluster, pool, "good"), discovery.With(cluster, pool, "failed")},
		requests: m.Counter("weir_upstream_requests_total", "Attempts on a node by what it did: answered, with the class of the status, "+
			"refused the connection, reset it, took too long; or the client left, or no connection became free.",
			"cluster", "pool", "node", "outcome"),
		inUse: m.GaugeFunc("weir_upstream_connections_in_use", "Connections to a node with an exchange on them.", "cluster", "pool", "node"),
		idle:  m.GaugeFunc("weir_upstream_connections_idle", "Connections to a node that are kept for the next exchange.", "cluster", "pool", "node"),
		nodes: m.GaugeFunc("weir_upstream_nodes", "Nodes by state: in; failing, of which the last attempts failed although it is not taken out, "+
			"as the only node never is; out. A cluster with no node that is in cannot be reached.", "cluster", "pool", "state"),
		dials: m.CounterFunc("weir_upstream_dials_total", "Connections opened to a node, attempts that failed included.", "cluster", "pool", "node"),
		unasked: m.CounterFunc("weir_upstream_unasked_total", "Times that a node sent something on a connection that nobody had asked for. "+
			"For a minute after each it gets a connection for every exchange.", "cluster", "pool", "node"),
		warnings: m.CounterFunc("weir_upstream_warnings_dropped_total", "Warning fields left out of answers of a node whose fields were over the limit.",
			"cluster", "pool", "node"),
		waiting: m.GaugeFunc("weir_upstream_waiting", "Exchanges that wait for a connection to a node.", "cluster", "pool", "node"),
	}
	return cm, m.Err()
}

// node makes the numbers of n. The number of nodes in metrics is bounded by the registry.
func (cm *clusterMetrics) node(n *node) *nodeMetrics {
	nm := &nodeMetrics{}
	for i, outcome := range nodeOutcomes {
		nm.counters[i] = cm.requests.With(cm.cluster, cm.pool, n.name, outcome)
	}
	nm.removes = []func(){
		cm.inUse.Set(func() float64 { return float64(n.pool.Stats().InUse) }, cm.cluster, cm.pool, n.name),
		cm.idle.Set(func() float64 { return float64(n.pool.Stats().Idle) }, cm.cluster, cm.pool, n.name),
		cm.waiting.Set(func() float64 { return float64(n.pool.Stats().Waiting) }, cm.cluster, cm.pool, n.name),
		cm.dials.Set(func() float64 { return float64(n.pool.Stats().Dials) }, cm.cluster, cm.pool, n.name),
		cm.unasked.Set(func() float64 { return float64(n.pool.Stats().Unasked) }, cm.cluster, cm.pool, n.name),
		cm.warnings.Set(func() float64 { return float64(n.pool.Stats().WarningsDropped) }, cm.cluster, cm.pool, n.name),
	}
	return nm
}

func (nm *nodeMetrics) forget() {
	for _, remove := range nm.removes {
		remove()
	}
}

func (nm *nodeMetrics) answered(status int) {
	i := out5xx
	switch {
	case status == 429:
		i = out429
	case status < 300:
		i = out2xx
	case status < 400:
		i = out3xx
	case status < 500:
		i = out4xx
	}
	nm.counters[i].Inc()
	nm.heard(status != 502 && status != 504) // those come from proxies in front of a node that is gone
}

func (nm *nodeMetrics) failed(te *transport.Error) {
	i, fault := outReset, true
	switch {
	case te.Cancelled, te.Source:
		i, fault = outCancelled, false
	case te.Phase == transport.Wait:
		i, fault = outWaited, false
	case te.Timeout:
		i = outTimeout
	case te.Phase == transport.Dial, te.Phase == transport.Handshake:
		i = outRefused
	}
	nm.counters[i].Inc()
	if fault && !errors.Is(te, transport.ErrRequest) {
		nm.heard(false)
	}
}
