package elastic

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"weir/elastic/balance"
)

// NodeStatus is what is known of a node, for people.
type NodeStatus struct {
	Node string `json:"node"`
	Name string `json:"name,omitempty"` // in the cluster, once known
	// Version is what it says of itself, such as 7.17.28; others of its cluster may have another one while that is upgraded.
	Version string `json:"version,omitempty"`
	Seed    bool   `json:"configured"`
	balance.State
	Failing bool `json:"failing"` // nothing but failures came of the last attempts on it, health checks included
	Open    int  `json:"connections"`
	Waiting int  `json:"waiting"`
}

// ClusterStatus is what is known of a cluster, for people.
type ClusterStatus struct {
	Name         string       `json:"name"`
	Version      string       `json:"version,omitempty"`
	Distribution string       `json:"distribution,omitempty"`
	UUID         string       `json:"cluster_uuid,omitempty"`
	Reachable    bool         `json:"reachable"` // there is a node that is neither out nor failing
	Pool         string       `json:"pool"`      // traffic for callers, own for the gateway's calls
	Policy       string       `json:"policy"`
	Panic        bool         `json:"panic"`  // fewer than half of the nodes are in
	Queued       int          `json:"queued"` // exchanges that wait because all nodes are full
	InFlight     int64        `json:"in_flight"`
	Retries      int64        `json:"retries_in_flight"`
	Nodes        []NodeStatus `json:"nodes"`
}

// failingAfter is how many failures in a row make a node failing: one may be chance.
const failingAfter = 3

// heard notes whether an attempt on a node, or a look at it, got an answer. It is apart from what the picker counts, which never
// takes the only node out, since there is nothing better to try: that one would look well for ever.
func (nm *nodeMetrics) heard(answered bool) {
	switch {
	case !answered:
		nm.failures.Add(1)
	case nm.failures.Load() > 0:
		nm.failures.Store(0)
	}
}

func (n *node) failing() bool { return n.metrics.failures.Load() >= failingAfter }

// nodeStates are the label values of weir_upstream_nodes.
var nodeStates = [...]string{"in", "failing", "out"}

// stateOf returns which of nodeStates m is in. A node of weight 0 gets nothing, as one that is out.
func stateOf(m *member) string {
	switch {
	case !m.Well():
		return "out"
	case m.Node.failing():
		return "failing"
	}
	return "in"
}

// watchNodes makes the numbers of nodes by state.
func (k *Cluster) watchNodes() {
	for _, state := range nodeStates {
		k.metrics.removes = append(k.metrics.removes, k.metrics.nodes.Set(func() float64 {
			n := 0
			for _, m := range k.picker.Members() {
				if stateOf(m) == state {
					n++
				}
			}
			return float64(n)
		}, k.metrics.cluster, k.metrics.pool, state))
	}
}

// watchQueue makes the numbers of the picker.
func (k *Cluster) watchQueue() {
	k.metrics.removes = append(k.metrics.removes,
		k.metrics.queued.Set(func() float64 { return float64(k.queued()) }, k.metrics.cluster, k.metrics.pool),
		k.metrics.panic.Set(func() float64 {
			if k.picker.Panicking() {
				return 1
			}
			return 0
		}, k.metrics.cluster, k.metrics.pool))
}

// Status returns what is known of the cluster.
func (k *Cluster) Status() ClusterStatus {
	v := k.Version()
	s := ClusterStatus{Name: k.config.Name, Version: v.Number, Distribution: v.Distribution, Nodes: []NodeStatus{}}
	s.Pool, s.Policy, s.Panic, s.Queued = k.options.Name, k.config.Balance.Policy, k.picker.Panicking(), k.queued()
	if k.options.Policy != "" {
		s.Policy = k.options.Policy
	}
	s.InFlight, s.Retries = k.budget.inFlight.Load(), k.budget.spent.Load()
	if id := k.uuid.Load(); id != nil {
		s.UUID = *id
	}
	for _, m := range k.picker.Members() {
		pool := m.Node.pool.Stats()
		title := ""
		if t := m.Node.title.Load(); t != nil {
			title = *t
		}
		version := ""
		if v := m.Node.version.Load(); v != nil {
			version = v.Number
		}
		s.Nodes = append(s.Nodes, NodeStatus{
			Node: m.Name, Name: title, Version: version, Seed: m.Node.seed, State: m.State(), Failing: m.Node.failing(), Open: pool.Open, Waiting: pool.Waiting,
		})
		s.Reachable = s.Reachable || stateOf(m) == "in"
	}
	slices.SortFunc(s.Nodes, func(a, b NodeStatus) int { return strings.Compare(a.Node, b.Node) })
	return s
}

// ClustersHandler answers with the status of the clusters that list returns.
func ClustersHandler(list func() []*Cluster) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		out := []ClusterStatus{}
		for _, k := range list() {
			out = append(out, k.Status())
		}
		w.Header().Set("Content-Type", "application/json")
		// The client may have left; there is nobody else to tell.
		_ = json.NewEncoder(w).Encode(map[string]any{"clusters": out})
	})
}
