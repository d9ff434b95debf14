package elastic

import (
	"path"
	"slices"
	"strings"

	"weir/elastic/balance"
)

// serves tells whether a node takes traffic: dedicated masters, voting-only and machine-learning nodes do not, a node
// without roles only coordinates and does.
func (l listed) serves() bool {
	if !l.hasRoles || len(l.roles) == 0 {
		return true
	}
	return slices.ContainsFunc(l.roles, func(role string) bool {
		switch role {
		case "master", "cluster_manager", "voting_only", "ml", "remote_cluster_client":
			return false
		}
		return true
	})
}

// excludes tells whether the configuration wants no traffic on a node.
func (c *ExcludeConfig) excludes(l listed) bool {
	for _, pattern := range c.Names {
		if ok, err := path.Match(pattern, l.name); ok && err == nil {
			return true
		}
	}
	for name, value := range c.Attributes {
		if got, ok := l.attributes[name]; ok && got == value {
			return true
		}
	}
	return slices.ContainsFunc(c.Roles, func(role string) bool { return slices.Contains(l.roles, role) })
}

// fronts tells whether a node is there to answer reads: it coordinates only, or holds the copies that OpenSearch 3 keeps
// for searches.
func (l listed) fronts() bool {
	return l.hasRoles && (len(l.roles) == 0 || slices.Contains(l.roles, "search") && !l.data())
}

// data tells whether a node holds what is read and written most.
func (l listed) data() bool {
	return !l.hasRoles || slices.ContainsFunc(l.roles, func(role string) bool {
		return role == "data" || role == "data_hot" || role == "data_content"
	})
}

// ingests tells whether a node runs pipelines itself. Others send what has to go through one to a node that does.
func (l listed) ingests() bool { return !l.hasRoles || slices.Contains(l.roles, "ingest") }

// old tells whether a node holds nothing but what is read rarely: it answers others only if nobody else is left.
func (l listed) old() bool {
	return !l.data() && slices.ContainsFunc(l.roles, func(role string) bool {
		return role == "data_warm" || role == "data_cold" || role == "data_frozen" || role == "warm"
	})
}

// describe tells the picker what the list says of members: what they are for, and where they are.
func (k *Cluster) describe(members []*member, list []listed) {
	fronts := 0
	for _, l := range list {
		if l.fronts() {
			fronts++
		}
	}
	for _, m := range members {
		l := listed{} // an ordinary node, if the list does not tell which one it is
		if id := m.Node.id.Load(); id != nil {
			if i := slices.IndexFunc(list, func(l listed) bool { return l.id == *id }); i >= 0 {
				l = list[i]
				m.Node.title.Store(&l.name)
			}
		}
		read, other := 1, 0
		switch {
		case l.old():
			read, other = 2, 2
		case l.fronts() && fronts >= 2: // one alone would be a bottleneck, and everything is lost with it
			read = 0
		}
		if slices.Contains(l.roles, "search") && !l.data() {
			other = max(other, 1)
		}
		m.SetTier(balance.Search, read)
		m.SetTier(balance.Get, read)
		m.SetTier(balance.Write, other)
		m.SetTier(balance.Manage, other)
		if !l.ingests() {
			other = max(other, 1)
		}
		m.SetTier(balance.Ingest, other)
		m.SetLocal(k.config.Balance.local(l.attributes))
	}
}

// local tells whether a node with these attributes is within the gateway's zone.
func (c *BalanceConfig) local(attributes map[string]string) bool {
	if c.Zone == "" {
		return false
	}
	for _, name := range c.ZoneAttributes {
		if zone, ok := attributes[name]; ok {
			return strings.EqualFold(zone, c.Zone)
		}
	}
	return false
}
