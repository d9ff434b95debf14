package upstream

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/transport"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
)

// ClustersConfig says which of several clusters gets an exchange, by one of first, weighted and by_index. What has to do
// with a scroll, a point in time, an asynchronous search or a task goes to the cluster that has it, whatever they say.
type ClustersConfig struct {
	// Names of clusters, the one that is wanted most first: it gets everything as long as one of its nodes can be reached,
	// otherwise the next one gets the reads. Writes go to the first alone.
	First conf.Strings `conf:"first"`
	// Shares by name of cluster. A caller, known by its user name or else its address, always gets the same cluster, and the
	// shares are shares of callers. While its cluster cannot be reached, another one gets a caller's reads.
	Weighted map[string]int `conf:"weighted"`
	// Clusters by the indices that are asked for.
	ByIndex []IndexedConfig `conf:"by_index"`
	// How long a cluster that could not be reached must have been reachable before it gets reads again.
	HoldDown conf.Duration `conf:"hold_down" min:"0s"`
}

// IndexedConfig is a cluster and the indices that it gets.
type IndexedConfig struct {
	// Name of the cluster, as in the section elasticsearch.
	Elasticsearch string `conf:"elasticsearch,required"`
	// Patterns of indices and aliases, in which * stands for any text. The last cluster has none and gets everything else.
	Index conf.Strings `conf:"index"`
}

// maxClusters bounds the clusters of one filter.
const maxClusters = 16

// several is what a filter knows of its clusters besides how to reach them.
type several struct {
	names    []string
	weights  []int      // of weighted
	patterns [][]string // of by_index
	holdDown time.Duration
}

// buildClusters reads which clusters there are; nil for a single one. It returns false if none or too many are named.
func buildClusters(b *flows.Builder, c *ElasticsearchConfig) (*several, bool) {
	s := &several{holdDown: c.Clusters.HoldDown.Std()}
	ways := 0
	if len(c.Clusters.First) > 0 {
		ways++
		s.names = c.Clusters.First
	}
	if len(c.Clusters.Weighted) > 0 {
		ways++
		s.names = slices.Sorted(maps.Keys(c.Clusters.Weighted))
		for _, name := range s.names {
			w := c.Clusters.Weighted[name]
			if w < 1 {
				b.Errorf("clusters", "weight %d of %s: a weight is a number from 1 on", w, name)
			}
			s.weights = append(s.weights, w)
		}
	}
	if len(c.Clusters.ByIndex) > 0 {
		ways++
		s.names = nil
		for i, item := range c.Clusters.ByIndex {
			if (len(item.Index) == 0) != (i == len(c.Clusters.ByIndex)-1) {
				b.Errorf("clusters", "by_index: the last cluster gets everything else and has no index, all others have one")
				break
			}
			s.names, s.patterns = append(s.names, item.Elasticsearch), append(s.patterns, item.Index)
		}
	}
	switch {
	case ways == 0 && c.Elasticsearch == "":
		b.Errorf("", "elasticsearch names the cluster, or clusters names several")
		return nil, false
	case ways == 0:
		return nil, true
	case ways > 1 || c.Elasticsearch != "":
		b.Errorf("clusters", "one of elasticsearch, clusters.first, clusters.weighted and clusters.by_index says which clusters there are")
		return nil, false
	case len(s.names) > maxClusters:
		b.Errorf("clusters", "%d clusters are more than %d", len(s.names), maxClusters)
		return nil, false
	}
	for i, name := range s.names {
		if slices.Contains(s.names[:i], name) {
			b.Errorf("clusters", "%s is named twice", name)
			return nil, false
		}
	}
	return s, true
}

// A plan says to which targets an exchange may go, in the order in which they are wanted.
type plan struct {
	list    [maxClusters]uint8
	n       int
	write   bool // it goes to the first of them and nowhere else
	unknown bool // one of them has what the exchange is about, and nobody knows which
}

func (p *plan) add(i int) {
	p.list[p.n] = uint8(i)
	p.n++
}

// plan makes the plan of x.
func (f *elasticsearch) plan(x *flows.Exchange) (p plan, err error) {
	bound, owner, err := f.owner(x)
	switch {
	case err != nil:
		return p, err
	case owner >= 0:
		p.add(owner)
		return p, nil
	}
	p.unknown = bound
	call := x.Call()
	p.write = call.Idempotency < api.Cursor && call.Class != api.ClassCursor
	switch s := f.several; {
	case s.weights != nil:
		s.byWeight(x, &p)
	case s.patterns != nil && !bound:
		i, err := s.byIndex(x)
		p.add(i)
		return p, err
	default:
		for i := range s.names {
			p.add(i)
		}
	}
	return p, nil
}

// byWeight ranks the clusters for the caller of x: each makes a number of the caller and the cluster (weighted rendezvous
// hashing), so that all gateways agree, and a cluster that is added or gone moves no caller between two others.
func (s *several) byWeight(x *flows.Exchange, p *plan) {
	var buf [64]byte
	caller := append(buf[:0], x.Request.User...)
	if x.Request.User == nil {
		ip := x.Request.ClientIP.As16()
		caller = append(caller, ip[:]...)
	}
	caller = append(caller, 0)
	length := len(caller)
	var scores [maxClusters]float64
	for i, name := range s.names {
		caller = append(caller[:length], name...)
		// From 0 to 1, and neither of them.
		number := (float64(xxhash.Sum64(caller)>>11) + 0.5) / (1 << 53)
		scores[i] = -float64(s.weights[i]) / math.Log(number)
		at := p.n
		p.n++
		for ; at > 0 && scores[p.list[at-1]] < scores[i]; at-- {
			p.list[at] = p.list[at-1]
		}
		p.list[at] = uint8(i)
	}
}

// choose returns the place in p of the target that gets the exchange: the first that is well for long enough, or else one
// that is well, or else the first.
func (f *elasticsearch) choose(p *plan) int {
	if p.write || p.n == 1 {
		return 0
	}
	best := -1
	for at, i := range p.list[:p.n] {
		well, held := f.targets[i].usable()
		if well && !held {
			return at
		}
		if well && best < 0 {
			best = at
		}
	}
	return max(best, 0)
}

// Destination implements flows.Destined.
func (f *elasticsearch) Destination(x *flows.Exchange) string {
	if f.several == nil {
		return f.targets[0].cluster.Name
	}
	p, err := f.plan(x)
	if err != nil {
		return ""
	}
	return f.targets[p.list[f.choose(&p)]].cluster.Name
}

// doSeveral sends the exchange to one of several clusters. A read to which nothing could be sent goes to the next one.
func (f *elasticsearch) doSeveral(x *flows.Exchange, c *call) error {
	p, err := f.plan(x)
	if err != nil {
		return err
	}
	if p.unknown {
		return f.askAround(x, c, &p)
	}
	home := p.list[0]
	for {
		at := f.choose(&p)
		t := f.targets[p.list[at]]
		if p.list[at] != home && t.reach != nil {
			t.reach.diverted.Inc()
		}
		err := t.do(x, c)
		var e *elastic.Error
		if !errors.As(err, &e) || e.Type != noNode {
			return err
		}
		if p.write || c.Stream != nil {
			return err
		}
		copy(p.list[at:], p.list[at+1:p.n])
		if p.n--; p.n == 0 {
			return f.noneLeft(e, home)
		}
		c.Reset()
		c.resp.Reset()
	}
}

// noNode is the type of error for exchanges to which no node could be found.
const noNode = "no_node_available_exception"

// noneLeft makes the error for an exchange that no cluster could be given.
func (f *elasticsearch) noneLeft(e *elastic.Error, home uint8) error {
	if e.Reason = fmt.Sprintf("no node of the clusters %q can be reached", f.several.names); f.several.patterns != nil {
		e.Reason = fmt.Sprintf("no node of cluster [%s] can be reached", f.several.names[home])
	}
	return e
}

// askAround asks one cluster after the other for what the exchange is about by an id that tells nobody where it is from. An
// id means nothing to other clusters than its own, so that nothing happens there. That no cluster knows it is true only if
// all were asked.
func (f *elasticsearch) askAround(x *flows.Exchange, c *call, p *plan) error {
	var kept transport.Response // an answer that says more than that there is no such thing
	defer func() { kept.Reset() }()
	keptFrom := 0
	for i, at := range p.list[:p.n] {
		t := f.targets[at]
		if i > 0 {
			c.Reset()
			c.resp.Reset()
		}
		err := t.do(x, c)
		switch {
		case err != nil && c.Cancel != nil && c.Cancel.Fired():
			return err
		case err != nil:
			e := elastic.AsError(err)
			if e.Status < 500 {
				return err
			}
			return elastic.Errorf(503, "unknown_cluster_exception",
				"the id in the request does not tell which cluster it is from, and cluster [%s] cannot be asked: %s", t.cluster.Name, e.Reason).Because(err)
		case c.resp.Status < 400, c.resp.Status != 404 && c.resp.Stream != nil: // what streams cannot be kept
			return nil
		case c.resp.Status != 404 && kept.Status == 0:
			kept, c.resp, keptFrom = c.resp, kept, int(at)
		}
	}
	if kept.Status != 0 {
		kept, c.resp = c.resp, kept
		x.Trace.Cluster = f.several.names[keptFrom]
	}
	return nil
}

// usable tells whether exchanges may be sent to the target, and whether they should not be yet because it has been away.
func (f *target) usable() (well, held bool) {
	if f.reach == nil {
		return f.cluster.Enabled, false
	}
	return f.reach.look()
}

// A reach remembers whether a cluster could be reached.
type reach struct {
	cluster  *elastic.Cluster
	holdDown time.Duration
	began    time.Time    // what times are counted from
	seenAway atomic.Int64 // when it was last seen away
	held     atomic.Bool  // it was away, and gets no reads yet
	changes  [2]obs.Counter
	diverted obs.Counter
	rt       *flows.Runtime
}

func newReach(name string, cluster *elastic.Cluster, holdDown time.Duration, rt *flows.Runtime) *reach {
	changes := rt.Metrics.Counter("weir_upstream_cluster_changes_total",
		"Times that one of several clusters was found away, or got reads again.", "cluster", "state")
	return &reach{
		cluster: cluster, holdDown: holdDown, began: time.Now(), rt: rt,
		changes: [2]obs.Counter{changes.With(name, "away"), changes.With(name, "back")},
		diverted: rt.Metrics.Counter("weir_upstream_diverted_total",
			"Exchanges that a cluster got because one that comes before it could not be reached, or was not back for long enough.", "cluster").With(name),
	}
}

// look tells whether the cluster can be reached, and whether it is held down nevertheless.
func (r *reach) look() (well, held bool) {
	if !r.cluster.Reachable() {
		r.seenAway.Store(int64(time.Since(r.began)))
		if r.held.CompareAndSwap(false, true) {
			r.changes[0].Inc()
			r.rt.Logger.Warn("cluster cannot be reached; others get its reads", "cluster", r.cluster.Name())
		}
		return false, true
	}
	if !r.held.Load() {
		return true, false
	}
	if int64(time.Since(r.began))-r.seenAway.Load() < int64(r.holdDown) {
		return true, true
	}
	if r.held.CompareAndSwap(true, false) {
		r.changes[1].Inc()
		r.rt.Logger.Info("cluster is back and gets its reads again", "cluster", r.cluster.Name(), "after", r.holdDown)
	}
	return true, false
}

// byIndex returns the cluster that has the indices which x names.
func (s *several) byIndex(x *flows.Exchange) (int, error) {
	others := len(s.patterns) - 1
	found := -1
	judge := func(expr string) error {
		i, err := s.ofIndex(expr)
		if err == nil && found >= 0 && i >= 0 && i != found {
			err = elastic.Errorf(400, "illegal_argument_exception",
				"the request names indices of the clusters [%s] and [%s]: ask for them one by one", s.names[found], s.names[i])
		}
		if i >= 0 {
			found = i
		}
		return err
	}
	if err := eachIndex(x, judge); err != nil {
		return others, err
	}
	if found < 0 && x.Call().Class == api.ClassSearch {
		return others, elastic.Errorf(400, "illegal_argument_exception",
			"the request names no index, and so may mean those of several clusters: name one in the path")
	}
	if found < 0 {
		found = others
	}
	return found, nil
}

// ofIndex returns the cluster of an index expression, -1 for one that names nothing.
func (s *several) ofIndex(expr string) (int, error) {
	if expr == "" || strings.HasPrefix(expr, "-") {
		return -1, nil
	}
	for i, patterns := range s.patterns {
		for _, p := range patterns {
			if api.MatchIndex(p, expr) {
				return i, nil
			}
		}
		for _, p := range patterns {
			if api.OverlapsIndex(p, expr) {
				return -1, elastic.Errorf(400, "illegal_argument_exception",
					"[%s] may name indices of cluster [%s] and of others: ask for them one by one", expr, s.names[i])
			}
		}
	}
	return len(s.patterns) - 1, nil
}
