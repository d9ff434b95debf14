package app

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"weir/internal/conf"
	"weir/queue"
	"weir/queue/disk"
)

// What a queue holds, by the filter that fills it or the processor that empties it. Others take what there is.
var (
	written = map[string]string{"queue": "requests", "retry_limiter": "requests", "request_logging": "records"}
	wanted  = map[string]string{"queue_consumer": "requests", "json_indexing": "records", "bulk_indexing": "bodies of _bulk"}
)

// A queueUse is a place of the configuration that names a queue.
type queueUse struct {
	kind   string     // of the filter or processor
	node   *conf.Node // the name of the queue
	flow   string     // in which a filter stands, or by which a processor makes requests again
	pledge string     // what clients were told of what a filter puts there, or nothing
}

// pledgeOf returns what clients have been told of what a filter puts into its queue.
func pledgeOf(kind string, filter *conf.Node) string {
	switch {
	case kind == "queue" || kind == "retry_limiter":
		return "writes that clients were told are done"
	case kind == "request_logging" && filter.Get("audit").Scalar() == "true":
		return "records of an audit"
	}
	return ""
}

// queueUses returns who fills queues, and who empties them.
func (plan *Plan) queueUses() (fill, drain map[string][]queueUse) {
	fill, drain = map[string][]queueUse{}, map[string][]queueUse{}
	for _, flow := range plan.Config.Flow.Items() {
		members(flow, "", "queue_name", func(kind string, n, in *conf.Node) {
			fill[n.Scalar()] = append(fill[n.Scalar()], queueUse{kind, n, flow.Get("name").Scalar(), pledgeOf(kind, in)})
		})
	}
	for _, section := range []*conf.Node{plan.Config.Pipeline, plan.Config.Modules} {
		members(section, "", "input_queue", func(kind string, n, in *conf.Node) {
			drain[n.Scalar()] = append(drain[n.Scalar()], queueUse{kind: kind, node: n, flow: in.Get("flow").Scalar()})
		})
	}
	delete(fill, "")
	return fill, drain
}

// checkQueues tells of queues that filters fill and no pipeline empties, of those whose content is not what the pipeline takes
// it for, and of requests that are given up into the queue from which they came.
func (plan *Plan) checkQueues(p *conf.Problems) {
	fill, drain := plan.queueUses()
	for name, users := range fill {
		for _, u := range users {
			if len(drain[name]) == 0 {
				p.Warnf(u.node, "no pipeline takes records from the queue %q: it fills up, and then records are dropped", name)
			}
			for _, d := range drain[name] {
				holds, wants := written[u.kind], wanted[d.kind]
				switch {
				case holds != "" && wants != "" && holds != wants:
					p.Errorf(d.node, "%s takes %s from the queue %q, and %s at %s puts %s into it: give each a queue of its own",
						d.kind, wants, name, u.kind, u.node.Pos(), holds)
				case u.kind == "retry_limiter" && d.kind == "queue_consumer" && d.flow == u.flow:
					p.Errorf(u.node, "what is given up goes back into the queue %q, from which queue_consumer at %s makes it again by this flow: "+
						"name another queue", name, d.node.Pos())
				}
			}
		}
	}
}

// checkFiles refuses to let two processors write one file, which each would rename under the other.
func (plan *Plan) checkFiles(p *conf.Problems) {
	first := map[string]*conf.Node{}
	members(plan.Config.Pipeline, "", "path", func(kind string, n, _ *conf.Node) {
		if kind != "file" {
			return
		}
		path, err := filepath.Abs(n.Scalar())
		if err != nil {
			return // without a working folder, starting fails
		}
		if other := first[path]; other != nil {
			p.Errorf(n, "file at %s writes %s too, and each would rename it under the other: give each a file of its own", other.Pos(), n.Quoted())
			return
		}
		first[path] = n
	})
}

// warnLosses warns of settings by which queues throw away what clients rely on.
func (plan *Plan) warnLosses(p *conf.Problems) {
	fill, _ := plan.queueUses()
	c := plan.Config.Queue
	for _, name := range slices.Sorted(maps.Keys(fill)) {
		for _, u := range fill[name] {
			if u.pledge == "" {
				continue
			}
			if c.WhenFull == "drop_oldest" {
				p.Warnf(plan.root.At("queue.when_full"), "drop_oldest throws away %s when the queue %q of %s at %s is full: refuse answers 429 then, and wait slows clients down",
					u.pledge, name, u.kind, u.node.Pos())
			}
			if c.MaxAge > 0 {
				p.Warnf(plan.root.At("queue.max_age"), "max_age throws away %s that lie in the queue %q of %s at %s for longer than %s: with 0 they stay until they are delivered",
					u.pledge, name, u.kind, u.node.Pos(), c.MaxAge)
			}
		}
	}
}

// members calls found with every scalar under key in n, however deep, the filter or processor that it belongs to, and the map that
// holds it. owner is the name of what n is the value of.
func members(n *conf.Node, owner, key string, found func(kind string, n, in *conf.Node)) {
	for _, item := range n.Items() {
		members(item, owner, key, found)
	}
	if n.Get("parameters") != nil { // the classic forms
		for _, member := range []string{"type", "joint"} {
			if kind := n.Get(member); kind != nil {
				owner = kind.Scalar()
			}
		}
	}
	for _, k := range n.Keys() {
		switch v := n.Get(k); {
		case k == key && v.Kind() == conf.Scalar:
			found(owner, v, n)
		case k == "parameters":
			members(v, owner, key, found)
		default:
			members(v, k, key, found)
		}
	}
}

// tellStranded warns of queues on disk that hold records and that nothing in the configuration reads, such as one that was
// renamed there: what a client was told is written waits in it.
func (a *App) tellStranded(plan *Plan) {
	folders, err := disk.Folders(plan.Config.Path.Data)
	if err != nil {
		a.logger.Warn("cannot look for queues that nothing reads", "error", err)
		return
	}
	fill, drain := plan.queueUses()
	for _, f := range folders {
		if base := strings.TrimSuffix(f.Name, ".dead"); fill[f.Name] != nil || drain[f.Name] != nil || base != f.Name && drain[base] != nil {
			continue
		}
		if used, err := f.InUse(); err != nil || used && !strings.HasPrefix(f.Path(), a.instance.Path()+"/") {
			continue // of another process
		}
		holds := false
		if _, err := f.Walk(func(queue.Block) bool {
			holds = true
			return false // it says enough: there may be gigabytes
		}); err == nil && holds {
			a.logger.Warn("a queue holds records and nothing in the configuration reads it: name it as an input_queue, or see `weir queue`",
				"queue", f.Name, "folder", f.Path())
		}
	}
}
