package elastic

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxMeeting bounds the nodes that are asked at the same time whether they are of the cluster.
	maxMeeting = 32
	// namedAbsent is how many of the nodes that did not answer are named in the one line about them.
	namedAbsent = 3
)

// absentees are the addresses that were found and at which no node of the cluster answered. A cluster may list thousands: those
// that were asked longest ago go first, so that each has its turn, and one line of the log is about all that are new.
type absentees struct {
	round int // number of the search for nodes that is going on
	at    map[string]*absentee
}

// An absentee is one such address.
type absentee struct {
	listed int // the last round that found it
	asked  int // the last round that asked it, or 0
	told   bool
}

// next begins another round. Addresses that are found no longer are forgotten.
func (a *absentees) next() {
	a.round++
	maps.DeleteFunc(a.at, func(_ string, o *absentee) bool { return o.listed < a.round-1 })
}

// find returns what is known of an address that was found.
func (a *absentees) find(addr string) *absentee {
	o := a.at[addr]
	if o == nil {
		if a.at == nil {
			a.at = map[string]*absentee{}
		}
		o = &absentee{}
		a.at[addr] = o
	}
	o.listed = a.round
	return o
}

// A newcomer is a node that was found and is no member yet.
type newcomer struct {
	listed *listed
	absent *absentee
	asked  bool  // and had time to answer
	node   *node // nil unless it answered as a node of the cluster
	err    error // why it did not
}

// admit makes the listed nodes that answer a probe the cluster's nodes. Configured ones always stay; a listed node that
// is one of them does not count twice.
func (k *Cluster) admit(ctx context.Context, list []listed) {
	exclude := &k.options.Discovery.Exclude
	serving := slices.DeleteFunc(slices.Clone(list), func(l listed) bool { return !l.serves() || exclude.excludes(l) })
	if len(serving) == 0 {
		serving = list // a filter that leaves nothing is wrong (elastic/go-elasticsearch#256)
	}
	var found []*listed
	for _, l := range k.resolved {
		if l.id == "" || !contains(list, l.id) || contains(serving, l.id) {
			found = append(found, l)
		}
	}
	for i := range serving {
		found = append(found, &serving[i])
	}
	current := k.picker.Members()
	keep := k.join(ctx, k.admitSeeds(current, serving, list), current, found)
	if len(keep) == 0 {
		keep = k.admitSeeds(current, nil, nil) // better a node of the wrong kind than none
	}
	k.describe(keep, list)
	k.replace(current, keep)
}

// admitResolved adds the nodes that lookups have found. Without discovery they are all that there are besides the
// configured ones; with it, others leave when the cluster no longer lists them.
func (k *Cluster) admitResolved(ctx context.Context) {
	current := k.picker.Members()
	keep := k.join(ctx, k.admitSeeds(current, nil, nil), current, k.resolved)
	if k.options.Discovery.Enabled || len(keep) == 0 {
		for _, m := range current {
			if !slices.Contains(keep, m) {
				keep = append(keep, m)
			}
		}
	}
	k.replace(current, keep)
}

// join returns members with the nodes that were found, unless they are among them already, under this or another address, or do
// not answer as nodes of the cluster. One that is in use now is not asked again.
func (k *Cluster) join(ctx context.Context, members, current []*member, found []*listed) []*member {
	met := k.meet(ctx, slices.Concat(members, current), found)
	for _, l := range found {
		n := met[l]
		switch m := find(current, *l); {
		case find(members, *l) != nil:
		case m != nil:
			members = append(members, m)
		case n != nil:
			members = append(members, k.newMember(n))
			k.logger.Info("node found", "node", n.name)
			continue
		}
		if n != nil {
			n.close()
		}
	}
	return members
}

// meet asks the nodes of found that are no members yet, a few at the same time, and returns those that answer as nodes of the
// cluster. It notes the ids that were not known.
func (k *Cluster) meet(ctx context.Context, members []*member, found []*listed) map[*listed]*node {
	var comers []*newcomer
	for _, l := range found {
		if m := find(members, *l); m != nil {
			if id := m.Node.id.Load(); l.id == "" && id != nil {
				l.id = *id
			}
			continue
		}
		absent := k.absent.find(l.endpoint.Addr)
		if absent.asked < k.absent.round && !slices.ContainsFunc(comers, func(c *newcomer) bool { return c.absent == absent }) {
			comers = append(comers, &newcomer{listed: l, absent: absent})
		}
	}
	slices.SortStableFunc(comers, func(a, b *newcomer) int { return a.absent.asked - b.absent.asked })
	var asking sync.WaitGroup
	next := make(chan *newcomer)
	for range min(maxMeeting, len(comers)) {
		asking.Go(func() {
			for c := range next {
				c.node, c.err = k.ask(ctx, c.listed)
				c.asked = c.node != nil || !over(ctx) // otherwise it is one of the first of the next round
			}
		})
	}
	for _, c := range comers {
		if over(ctx) {
			break
		}
		next <- c
	}
	close(next)
	asking.Wait()
	met := map[*listed]*node{}
	var absent []*newcomer
	for _, c := range comers {
		if !c.asked {
			continue
		}
		c.absent.asked = k.absent.round
		switch {
		case c.node != nil:
			met[c.listed] = c.node
			delete(k.absent.at, c.listed.endpoint.Addr)
		case !c.absent.told:
			c.absent.told = true
			absent = append(absent, c)
		}
	}
	if len(absent) > 0 && k.ctx.Err() == nil {
		names := make([]string, 0, namedAbsent)
		for _, c := range absent[:min(namedAbsent, len(absent))] {
			names = append(names, c.listed.endpoint.Addr)
		}
		k.logger.Warn("listed nodes do not answer where they say they are; not used", "count", len(absent), "nodes", strings.Join(names, ", "),
			"error", absent[0].err)
	}
	return met
}

// over tells whether the time of ctx is over, also in the moment before ctx itself says so.
func over(ctx context.Context) bool {
	by, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(by)
}

// ask opens connections to the node l and asks whether it is one of the cluster. It notes its id if that is not known.
func (k *Cluster) ask(ctx context.Context, l *listed) (*node, error) {
	n, err := k.newNode(l.endpoint)
	if err != nil {
		return nil, err
	}
	uuid, err := k.probe(ctx, n)
	// A lookup is the operator's word, and may stand for a cluster that does not let the gateway look into it.
	if err == nil && uuid == "" && l.source == "" {
		err = errNoCluster
	}
	if err != nil {
		n.close()
		return nil, err
	}
	if l.id == "" {
		l.id = k.askID(ctx, n)
	}
	if l.id != "" {
		n.id.Store(&l.id)
	}
	return n, nil
}

// admitSeeds returns the members of configured nodes. One that the cluster lists with a role that takes no traffic is
// left out if others are there.
func (k *Cluster) admitSeeds(current []*member, serving, list []listed) []*member {
	var out []*member
	for _, s := range k.seeds {
		id := s.id.Load()
		if id != nil && contains(list, *id) && !contains(serving, *id) {
			continue
		}
		i := slices.IndexFunc(current, func(m *member) bool { return m.Node == s })
		if i >= 0 {
			out = append(out, current[i])
			continue
		}
		out = append(out, k.newMember(s))
	}
	return out
}

// newMember returns a member that is n, with the weight of n. Only now the node has numbers of its own: those that are merely
// listed would use up what the registry has room for.
func (k *Cluster) newMember(n *node) *member {
	if n.metrics == nil {
		n.metrics = k.metrics.node(n)
	}
	return k.picker.NewMember(n.name, n, k.weight(n.name))
}

func contains(list []listed, id string) bool {
	return slices.ContainsFunc(list, func(l listed) bool { return l.id == id })
}

// find returns the member that is l: at its address, or with its id.
func find(members []*member, l listed) *member {
	for _, m := range members {
		id := m.Node.id.Load()
		if m.Node.endpoint.Addr == l.endpoint.Addr || id != nil && *id == l.id && l.id != "" {
			return m
		}
	}
	return nil
}

// replace puts the members keep in the place of current, and closes the pools of those that left.
func (k *Cluster) replace(current, keep []*member) {
	k.picker.Set(keep)
	for _, m := range current {
		if !slices.Contains(keep, m) && !m.Node.seed {
			k.logger.Info("node left", "node", m.Name)
			k.left.Store(k.deps.Now().UnixNano())
			k.look()
			m.Node.close()
		}
	}
}
