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
	Seed bool   `json:"configured"`
	balance.State
	Open    int `json:"connections"`
	Waiting int `json:"waiting"`
}

// ClusterStatus is what is known of a cluster, for people.
type ClusterStatus struct {
	Name         string       `json:"name"`
	Version      string       `json:"version,omitempty"`
	Distribution string       `json:"distribution,omitempty"`
	UUID         string       `json:"cluster_uuid,omitempty"`
	Nodes        []NodeStatus `json:"nodes"`
}

// Status returns what is known of the cluster.
func (k *Cluster) Status() ClusterStatus {
	v := k.Version()
	s := ClusterStatus{Name: k.config.Name, Version: v.Number, Distribution: v.Distribution, Nodes: []NodeStatus{}}
	if id := k.uuid.Load(); id != nil {
		s.UUID = *id
	}
	for _, m := range k.picker.Members() {
		pool := m.Node.pool.Stats()
		s.Nodes = append(s.Nodes, NodeStatus{
			Node: m.Name, Seed: m.Node.seed, State: m.State(), Open: pool.Open, Waiting: pool.Waiting,
		})
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
