package elastic

import "bytes"

// minNodeID is the length from which on a node id is looked for in other text: chance must not find one. Nodes make ids of 22
// characters.
const minNodeID = 16

// noteIDs remembers the ids of the nodes of list, of those that lookups found and of the configured ones.
func (k *Cluster) noteIDs(list []listed) {
	var ids [][]byte
	add := func(id string) {
		if len(id) >= minNodeID {
			ids = append(ids, []byte(id))
		}
	}
	for _, l := range list {
		add(l.id)
	}
	for _, l := range k.resolved {
		if !contains(list, l.id) {
			add(l.id)
		}
	}
	for _, s := range k.seeds {
		if id := s.id.Load(); id != nil {
			add(*id)
		}
	}
	k.nodeIDs.Store(&ids)
}

// NamesNode tells whether the id of a node of the cluster stands in text. Tasks are called by it, and it stands, in clear
// once base64 is decoded, in the ids of scrolls, points in time and asynchronous searches. Nodes are known by discovery, and
// the configured ones and those of lookups where the cluster lets the gateway ask them.
func (k *Cluster) NamesNode(text []byte) bool {
	ids := k.nodeIDs.Load()
	if ids == nil {
		return false
	}
	for _, id := range *ids {
		if bytes.Contains(text, id) {
			return true
		}
	}
	return false
}

// Reachable tells whether there is a node that is neither out nor failing. A cluster that was not looked at yet is taken for
// reachable.
func (k *Cluster) Reachable() bool {
	for _, m := range k.picker.Members() {
		if m.Well() && !m.Node.failing() {
			return true
		}
	}
	return false
}
