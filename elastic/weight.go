package elastic

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// maxWeight bounds weights: sums of them must not overflow.
const maxWeight = 1_000_000

// SetWeight sets the weight of the node with that address or name until the configuration of the cluster changes; nil is
// the configured weight again. It returns false if there is no such node.
func (k *Cluster) SetWeight(node string, weight *int) bool {
	found := false
	for _, m := range k.picker.Members() {
		title := m.Node.title.Load()
		if m.Name != node && (title == nil || *title != node) {
			continue
		}
		found = true
		if weight == nil {
			k.weights.Delete(m.Name)
		} else {
			k.weights.Store(m.Name, *weight)
		}
		if !m.Node.stranger.Load() {
			m.SetWeight(k.weight(m.Name))
		}
		k.logger.Info("weight of a node was set", "node", m.Name, "weight", k.weight(m.Name), "pool", k.options.Name)
	}
	return found
}

// drained tells whether there are nodes, and the operator wants no traffic on any of them.
func (k *Cluster) drained() bool {
	members := k.picker.Members()
	return len(members) > 0 && !slices.ContainsFunc(members, func(m *member) bool { return k.weight(m.Name) > 0 })
}

// weight returns the weight of the node at an address.
func (k *Cluster) weight(addr string) int {
	if w, ok := k.weights.Load(addr); ok {
		if w, ok := w.(int); ok {
			return w
		}
	}
	if w, ok := k.config.Weights[addr]; ok {
		return w
	}
	return 1
}

// WeightHandler answers PUT with {"weight": 0} to a path that has a {cluster} and a {node}, by address or name. A weight
// of 0 drains the node: it gets no new exchanges, running ones finish. null is the configured weight.
func WeightHandler(list func() []*Cluster) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse := func(status int, typ, format string, args ...any) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write(Errorf(status, typ, format, args...).AppendBody(nil))
		}
		var body struct {
			Weight json.RawMessage `json:"weight"`
		}
		d := json.NewDecoder(io.LimitReader(r.Body, 1<<10))
		d.DisallowUnknownFields()
		err := d.Decode(&body)
		if _, more := d.Token(); err != nil || body.Weight == nil || !errors.Is(more, io.EOF) {
			refuse(http.StatusBadRequest, "parse_exception", `the body must be like {"weight": 0} and hold nothing else`)
			return
		}
		var weight *int
		if err := json.Unmarshal(body.Weight, &weight); err != nil || weight != nil && (*weight < 0 || *weight > maxWeight) {
			refuse(http.StatusBadRequest, "illegal_argument_exception", "weight must be a whole number from 0 to %d, or null for the configured one", maxWeight)
			return
		}
		cluster, node := r.PathValue("cluster"), r.PathValue("node")
		known, found := false, false
		for _, k := range list() {
			if k.Name() == cluster {
				known = true
				found = k.SetWeight(node, weight) || found
			}
		}
		switch {
		case !known:
			refuse(http.StatusNotFound, "resource_not_found_exception", "no cluster [%s] is in use", cluster)
		case !found:
			refuse(http.StatusNotFound, "resource_not_found_exception", "cluster [%s] has no node [%s]; GET /_weir/clusters lists them", cluster, node)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"acknowledged":true}`+"\n")
		}
	})
}
