package elastic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"weir/elastic/balance"
	"weir/elastic/transport"
	"weir/internal/obs"
	"weir/internal/wire"
)

const (
	checkInterval = 5 * time.Second // between two looks at each node
	checkTimeout  = 2 * time.Second
	// urgentInterval lies between two looks while more than half of the nodes are out.
	urgentInterval = time.Second
	soonest        = time.Second     // between two discoveries
	lookoutTime    = 5 * time.Minute // after a node left, in which it is looked for more often: most are being restarted
	maxMetadata    = 16 << 20        // bytes of an answer about nodes that are read
)

// discover finds nodes: at once, then again and again, and soon after a node refused a connection.
func (k *Cluster) discover() {
	defer k.tasks.Done()
	interval := k.options.Discovery.Interval.Std()
	if r := k.options.Discovery.Refresh.Interval.Std(); r > 0 {
		interval = r
	}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-k.ctx.Done():
			return
		}
		found := k.discoverOnce()
		next := interval + interval*time.Duration(k.deps.Rand(21)-10)/100
		if !found || k.deps.Now().UnixNano()-k.left.Load() < int64(lookoutTime) {
			next = min(next, checkInterval)
		}
		wait.Reset(soonest)
		select {
		case <-wait.C:
		case <-k.ctx.Done():
			return
		}
		wait.Reset(max(0, next-soonest))
		select {
		case <-k.kick:
			wait.Reset(0)
		case <-wait.C:
			wait.Reset(0)
		case <-k.ctx.Done():
			return
		}
	}
}

// discoverOnce asks the cluster for its nodes and takes those in that answer. It returns false if the cluster could
// not be asked; nothing changes then.
func (k *Cluster) discoverOnce() bool {
	k.discovering.Lock()
	defer k.discovering.Unlock()
	ctx, cancel := context.WithTimeout(k.ctx, 10*time.Second)
	defer cancel()
	k.absent.next()
	var asked sync.WaitGroup
	for _, s := range k.seeds {
		asked.Go(func() { k.identify(ctx, s) })
	}
	asked.Wait()
	resolved := k.resolve(ctx)
	if len(k.lookups) > 0 {
		k.admitResolved(ctx)
	}
	if k.nodeIDs.Load() == nil || !k.options.Discovery.Enabled {
		k.noteIDs(nil)
	}
	if !k.options.Discovery.Enabled {
		return resolved
	}
	list, err := k.listNodes(ctx)
	if err != nil {
		k.metrics.discovery[1].Inc()
		if k.ctx.Err() == nil {
			k.warnOnce("discovery", "nodes cannot be listed, using the configured ones", "error", err)
		}
		return false
	}
	k.noteIDs(list)
	k.metrics.discovery[0].Inc()
	k.warned.Delete("discovery")
	k.admit(ctx, list)
	return resolved
}

// identify notes the id of a configured node, and what its cluster is.
func (k *Cluster) identify(ctx context.Context, s *node) {
	if _, err := k.probe(ctx, s); err != nil {
		return
	}
	if id := k.askID(ctx, s); id != "" {
		s.id.Store(&id)
	}
}

// askID asks a node for its id, which is empty if it does not say.
func (k *Cluster) askID(ctx context.Context, n *node) string {
	list, err := k.askNodes(ctx, n, []string{"_local"})
	if err != nil || len(list) != 1 {
		return ""
	}
	return list[0].id
}

// root is what a node answers to GET /.
type root struct {
	ClusterUUID string `json:"cluster_uuid"`
	Version     struct {
		Number       string `json:"number"`
		Distribution string `json:"distribution"`
	} `json:"version"`
}

var (
	errOtherCluster = errors.New("it belongs to another cluster")
	errNoCluster    = errors.New("it does not say which cluster it belongs to")
)

// probe asks a node for its root, which needs no rights on most clusters: 200, 401 and 403 all mean that it is alive.
// The error says that it is not, or that it is another cluster's. The first cluster that answered is the cluster.
func (k *Cluster) probe(ctx context.Context, n *node) (uuid string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := esapi.InfoRequest{}.Do(ctx, onNode{k, n})
	if err != nil {
		return "", err
	}
	defer func() { _ = req.Body.Close() }()
	switch req.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		k.warnOnce("rights", "the cluster refuses the gateway's own calls: nodes cannot be discovered", "status", req.StatusCode)
		return "", nil
	default:
		return "", fmt.Errorf("GET / answered %d", req.StatusCode)
	}
	var r root
	if err := json.NewDecoder(io.LimitReader(req.Body, maxMetadata)).Decode(&r); err != nil {
		return "", fmt.Errorf("GET / was not answered like a node does: %w", err)
	}
	if r.Version.Number != "" {
		n.version.Store(&Version{r.Version.Number, r.Version.Distribution})
	}
	if r.ClusterUUID == "" || r.ClusterUUID == "_na_" {
		return "", nil // it has not found its cluster yet
	}
	if k.uuid.CompareAndSwap(nil, &r.ClusterUUID) || *k.uuid.Load() == r.ClusterUUID {
		return r.ClusterUUID, nil
	}
	return r.ClusterUUID, errOtherCluster
}

// A listed node is what the cluster says of one of its nodes.
type listed struct {
	id         string // empty until it is known, for one that a lookup found
	name       string
	endpoint   Endpoint
	roles      []string
	hasRoles   bool
	attributes map[string]string
	source     string // the endpoint that stands for it, if a lookup found it
}

// listNodes asks any node that answers, the configured ones last.
func (k *Cluster) listNodes(ctx context.Context) ([]listed, error) {
	asked := make([]*node, 0, 4)
	for _, m := range k.picker.Members() {
		if !m.Out() {
			asked = append(asked, m.Node)
		}
	}
	err := balance.ErrNoMember
	for _, n := range append(asked, k.seeds...) {
		var list []listed
		if list, err = k.askNodes(ctx, n, nil); err == nil {
			return list, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// askNodes asks one node for the addresses of ids, or of all nodes. An answer that lists none is an error.
func (k *Cluster) askNodes(ctx context.Context, n *node, ids []string) ([]listed, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	resp, err := esapi.NodesInfoRequest{NodeID: ids, Metric: []string{"http"}}.Do(ctx, onNode{k, n})
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("node %s: GET _nodes/http answered %d", n.name, resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata))
	if err != nil {
		return nil, err
	}
	return k.parseNodes(data, n.endpoint)
}

// parseNodes reads an answer of _nodes/http. Scheme and base path of what it lists are those of seed: the answer
// carries neither (jaegertracing/jaeger#2263).
func (k *Cluster) parseNodes(data []byte, seed Endpoint) ([]listed, error) {
	var answer struct {
		Nodes map[string]struct {
			Name       string            `json:"name"`
			Roles      *[]string         `json:"roles"`
			Attributes map[string]string `json:"attributes"`
			HTTP       struct {
				PublishAddress string `json:"publish_address"`
			} `json:"http"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("list of nodes is not what nodes send: %w", err)
	}
	var out []listed
	for id, n := range answer.Nodes {
		addr, host, ok := publishedAddress(n.HTTP.PublishAddress)
		if !ok {
			continue
		}
		if to, ok := k.options.Discovery.Rewrite[addr]; ok {
			addr, host = to, to
		}
		l := listed{id: id, name: n.Name, attributes: n.Attributes, endpoint: Endpoint{TLS: seed.TLS, Addr: addr, Host: host, Base: seed.Base}}
		if n.Roles != nil {
			l.roles, l.hasRoles = *n.Roles, true
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, errors.New("list of nodes holds no address")
	}
	slices.SortFunc(out, func(a, b listed) int { return strings.Compare(a.endpoint.Addr, b.endpoint.Addr) })
	return out, nil
}

// publishedAddress reads the forms in which nodes publish their address: 10.0.0.1:9200, [::1]:9200,
// es1.test/10.0.0.1:9200 (elastic/elasticsearch-py#1008) and inet[es1.test/10.0.0.1:9200] of old. It returns what to
// dial and what to call the node by: the address, and the name where there is one.
func publishedAddress(text string) (addr, host string, ok bool) {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "inet["), "]")
	name, addr, named := strings.Cut(text, "/")
	if !named {
		name, addr = "", text
	}
	if strings.Count(addr, "[") == 1 && !strings.Contains(addr, "]") {
		addr = strings.Replace(addr, ":", "]:", 1) // the bracket of an IPv6 address was cut off with inet[…]
	}
	h, port, err := net.SplitHostPort(addr)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || h == "" {
		return "", "", false
	}
	ip, err := netip.ParseAddr(h)
	switch {
	case err == nil && ip.IsUnspecified():
		return "", "", false
	case name == "" && err == nil:
		name = ip.WithZone("").String() // a zone means something on this machine only
	case name == "":
		name = h
	}
	if _, notIP := netip.ParseAddr(name); notIP != nil && strings.ContainsAny(name, "[]:") || err != nil && !wire.ValidHost([]byte(h)) {
		return "", "", false
	}
	if host = net.JoinHostPort(name, port); !wire.ValidHost([]byte(host)) {
		return "", "", false
	}
	return net.JoinHostPort(h, port), host, true
}

// watch looks at every node again and again: one that is out comes back when it answers, one that does not answer goes
// out without needing callers to notice. While most nodes are out it looks more often: there is little to disturb, and all
// wait for one that is back.
func (k *Cluster) watch() {
	defer k.tasks.Done()
	timer := time.NewTimer(checkInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.ctx.Done():
			return
		}
		k.refresh()
		k.checkAll()
		out, all := 0, k.picker.Members()
		for _, m := range all {
			if stateOf(m) != "in" {
				out++
			}
		}
		if 2*out > len(all) {
			timer.Reset(urgentInterval)
		} else {
			timer.Reset(checkInterval)
		}
	}
}

// checkAll looks at every node at the same time and judges what they said.
func (k *Cluster) checkAll() {
	type result struct {
		m   *member
		err error
	}
	members := k.picker.Members()
	for _, m := range members {
		s := m.Node.pool.Stats()
		if s.Unasked > 0 {
			k.warnOnce("unasked "+m.Name, "node sends more than it is asked for; it gets a connection for each exchange while it does", "node", m.Name)
		}
		if s.WarningsDropped > 0 {
			k.warnOnce("warnings "+m.Name, "node answers with more Warning fields than there is room for; some are left out", "node", m.Name)
		}
	}
	results := make(chan result)
	for _, m := range members {
		go func() {
			_, err := k.probe(k.ctx, m.Node)
			results <- result{m, err}
		}()
	}
	var strangers []*member
	for range members {
		r := <-results
		switch {
		case k.ctx.Err() != nil:
		case r.err == nil:
			r.m.Node.metrics.heard(true)
			r.m.Node.stranger.Store(false)
			r.m.SetWeight(k.weight(r.m.Name))
			r.m.Check(balance.Good, "")
		case errors.Is(r.err, errOtherCluster):
			strangers = append(strangers, r.m)
		default:
			r.m.Node.metrics.heard(false)
			r.m.Check(checkOutcome(r.err), "health check: "+obs.RedactError(r.err).Error())
		}
	}
	k.picker.Review()
	if len(strangers) > 0 && len(strangers) == len(members) {
		// Not a mix of two clusters: the one behind the addresses was replaced.
		k.logger.Warn("all nodes belong to another cluster than before; going on with that one")
		k.uuid.Store(nil)
		return
	}
	for _, m := range strangers {
		m.Node.stranger.Store(true)
		m.SetWeight(0)
		k.warnOnce("cluster "+m.Name, "node belongs to another cluster than the others; not used", "node", m.Name)
	}
}

// checkOutcome tells a node that cannot be connected to from one that answers badly.
func checkOutcome(err error) balance.Outcome {
	var te *transport.Error
	if errors.As(err, &te) && (te.Phase == transport.Dial || te.Phase == transport.Handshake) {
		return balance.Refused
	}
	return balance.Failed
}

// warnOnce logs a warning the first time that key is met.
func (k *Cluster) warnOnce(key, msg string, args ...any) {
	if _, before := k.warned.LoadOrStore(key, true); !before {
		k.logger.Warn(msg, args...)
	}
}
