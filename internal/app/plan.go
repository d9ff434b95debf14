package app

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/elastic"
	"weir/filters"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/wire"
	"weir/pipeline"
)

// A Plan is a configuration that has been read and understood. Making one does no I/O beyond reading the files.
type Plan struct {
	Config    Config
	Files     []string // all that were read
	Entries   []flows.EntryConfig
	Routers   map[string]*flows.Router
	Clusters  map[string]*elastic.ClusterConfig
	Pipelines []*pipeline.Plan
	Templates []pipeline.Template

	root    *conf.Node
	off     []string // names of the entries that are switched off
	builder *flows.Builder
	queues  *queues
}

// ModuleElasticConfig is the module elastic of the classic form.
type ModuleElasticConfig struct {
	// Name of the module: elastic.
	Name string `conf:"name"`
	// A module that is switched off does nothing.
	Enabled bool `conf:"enabled"`
	// Cluster that the gateway's own indices live in.
	Elasticsearch string `conf:"elasticsearch"`
	// Install the index template for the gateway's records.
	InitTemplate bool `conf:"init_template"`
	// Data stream for the gateway's records, which json_indexing writes to by this name (index_name). Its template, and a
	// lifecycle policy where the cluster has an API for one, are installed with init_template.
	DataStream string `conf:"data_stream"`
	// Age at which records in the data stream are deleted, by whole indices. 0 keeps them.
	Retention conf.Duration `conf:"retention" min:"0s"`
	// Age of an index of the data stream at which the next one is begun.
	RolloverAge conf.Duration `conf:"rollover_age" min:"1m"`
	// Size of an index of the data stream at which the next one is begun.
	RolloverSize conf.Bytes `conf:"rollover_size" min:"1mb"`
	// Classic: keep the gateway's metadata in the cluster. Weir keeps none there.
	StoreConfig bool `conf:"store_config,alias=store" deprecated:"nothing but records is kept in the cluster"`
}

// DefaultModuleElastic returns the module elastic without a parameter.
func DefaultModuleElastic() ModuleElasticConfig {
	return ModuleElasticConfig{
		Enabled: true, Retention: conf.Duration(30 * 24 * time.Hour), RolloverAge: conf.Duration(24 * time.Hour), RolloverSize: 10 << 30,
	}
}

// stream returns the data stream that the module asks for, or none.
func (m *ModuleElasticConfig) stream() pipeline.Stream {
	if m.DataStream == "" {
		return pipeline.Stream{}
	}
	return pipeline.Stream{Name: m.DataStream, Retention: m.Retention, RolloverAge: m.RolloverAge, RolloverSize: m.RolloverSize}
}

// check reports what is wrong with the data stream.
func (m *ModuleElasticConfig) check(n *conf.Node, p *conf.Problems) {
	if m.DataStream == "" {
		return
	}
	if reason := m.stream().BadName(); reason != "" {
		p.Errorf(n.Get("data_stream"), "data stream %q %s", m.DataStream, reason)
	}
	if !m.InitTemplate {
		p.Errorf(n.Get("data_stream"), "data_stream needs init_template: true, which installs its template")
	}
	if m.Retention > 0 && m.Retention < m.RolloverAge {
		p.Warnf(n.Get("retention"), "retention %s is shorter than rollover_age %s: an index is deleted when it is no longer written to", m.Retention, m.RolloverAge)
	}
}

// moduleNames are the modules that there are.
var moduleNames = []string{"elastic", "pipeline", "queue"}

// Load reads files and makes a plan of them. The problems hold everything that is wrong; the plan is nil if there are
// errors among them.
func Load(opt conf.Options) (*Plan, *conf.Problems) {
	root, p := conf.Load(opt)
	plan := &Plan{Config: DefaultConfig(), Files: root.Files(), root: root}
	c := &plan.Config
	conf.Decode(root, c, p)

	plan.Clusters = elastic.DecodeClusters(c.Elasticsearch, p)
	b := flows.NewBuilder(filters.Registry(), p)
	plan.builder = b
	for name, cluster := range plan.Clusters {
		var unused *conf.Node // of a cluster that is switched off it does not matter
		if cluster.Enabled {
			unused = clusterNode(c.Elasticsearch, name)
		}
		b.Provide("elasticsearch", name, cluster, unused)
	}
	plan.queues = &queues{}
	b.Provide("queues", "default", plan.queues, nil)
	b.Define(c.Flow)
	plan.routers(b)
	plan.entries(p)
	plan.modules(p)
	if !p.Incomplete() {
		warnOrder(plan.Routers, p)
	}
	if !p.HasErrors() {
		// What refers to something may be misspelled or missing where there are errors.
		b.Unused()
		plan.warnUnused(p)
		plan.checkQueues(p)
		plan.warnLosses(p)
		plan.checkFiles(p)
	}
	if plan.Config.Entry.Len() == 0 && !p.HasErrors() {
		// Not a gateway: most likely a file that is being written.
		where := conf.Pos{}
		if len(opt.Files) > 0 {
			where.File = opt.Files[0]
		}
		p.Add(conf.Problem{Pos: where, Message: "no entry: the configuration would serve nothing"})
	}
	if p.HasErrors() {
		return nil, p
	}
	return plan, p
}

func (plan *Plan) routers(b *flows.Builder) {
	plan.Routers = map[string]*flows.Router{}
	for _, n := range conf.ItemsOf(plan.Config.Router, b.Problems) {
		r := b.Router(n)
		if r == nil {
			continue
		}
		if first := plan.Routers[r.Name()]; first != nil {
			b.Problems.In("router "+r.Name()).Errorf(n.Get("name"), "router %q is defined twice; first at %s", r.Name(), first.Pos())
			continue
		}
		plan.Routers[r.Name()] = r
	}
}

func (plan *Plan) entries(p *conf.Problems) {
	names := map[string]bool{}
	for _, n := range conf.ItemsOf(plan.Config.Entry, p) {
		e := flows.DefaultEntry()
		in := p.In(strings.TrimSpace("entry " + n.Get("name").Scalar()))
		before, _ := p.Count()
		conf.Decode(n, &e, in)
		after, _ := p.Count()
		check := func() { plan.checkEntry(e, n, in) }
		if after > before {
			in.Follow(n, check)
		} else {
			check()
		}
		if e.Name != "" && names[e.Name] {
			in.Errorf(n.Get("name"), "entry %q is defined twice", e.Name)
			continue
		}
		names[e.Name] = true
		if e.Enabled {
			plan.Entries = append(plan.Entries, e)
		} else {
			plan.off = append(plan.off, e.Name)
		}
	}
	if plan.Config.Entry.Len() > 0 && len(plan.Entries) == 0 && !p.HasErrors() {
		p.Errorf(plan.Config.Entry, "all entries are switched off: the configuration would serve nothing")
	}
}

// WarnFiles warns of certificates and keys that are not on this machine. Load does not look: a configuration may be checked
// elsewhere than where it is used.
func (plan *Plan) WarnFiles(p *conf.Problems) {
	warn := func(p *conf.Problems, section *conf.Node, fields ...string) {
		for _, field := range fields {
			n := section.At("tls." + field)
			if n.Kind() != conf.Scalar {
				continue // not given: this is what it would stand in
			}
			if _, err := os.Stat(n.Scalar()); err != nil {
				p.Warnf(n, "tls.%s: %v", field, err)
			}
		}
	}
	for _, n := range plan.Config.Entry.Items() {
		name := n.Get("name").Scalar()
		if slices.ContainsFunc(plan.Entries, func(e flows.EntryConfig) bool { return e.Name == name && e.TLS.Enabled }) {
			warn(p.In("entry "+name), n, "cert_file", "key_file", "client_ca_file")
		}
	}
	for _, n := range plan.Config.Elasticsearch.Items() {
		name := n.Get("name").Scalar()
		if c := plan.Clusters[name]; c != nil && c.Enabled {
			warn(p.In("elasticsearch "+name), n, "ca_file", "cert_file", "key_file")
		}
	}
}

// warnUnused warns of routers that no entry has, switched on or off.
func (plan *Plan) warnUnused(p *conf.Problems) {
	used := map[string]bool{}
	for _, n := range plan.Config.Entry.Items() {
		used[n.Get("router").Scalar()] = true
	}
	for _, name := range slices.Sorted(maps.Keys(plan.Routers)) {
		if r := plan.Routers[name]; !used[name] && r.Enabled() {
			p.Add(conf.Problem{Pos: r.Pos(), Severity: conf.Warning, Message: "router " + name + " is not used"})
		}
	}
}

// checkEntry reports what is wrong with an entry and with it among those before it.
func (plan *Plan) checkEntry(e flows.EntryConfig, n *conf.Node, p *conf.Problems) {
	binding := n.At("network.binding")
	if _, _, err := splitBinding(e.Network.Binding); err != nil {
		p.Errorf(binding, "%v", err)
	}
	fixed := e.Enabled && !e.Network.SkipOccupiedPort
	if admin := plan.Config.Admin; fixed && admin.Enabled && overlap(e.Network.Binding, admin.Binding) {
		p.Errorf(binding, "the admin listener is at %s already (admin.binding)", admin.Binding)
	}
	for _, other := range plan.Entries {
		if !fixed || !overlap(e.Network.Binding, other.Network.Binding) {
			continue
		}
		p.Errorf(binding, "entry %s listens on %s already; of two entries on one address clients would meet either",
			other.Name, other.Network.Binding)
		break
	}
	if (e.TLS.CertFile == "") != (e.TLS.KeyFile == "") {
		p.Errorf(n.At("tls.cert_file", "tls.key_file"), "cert_file and key_file go together")
	}
	if e.TLS.ClientCertRequired && e.TLS.ClientCAFile == "" {
		p.Errorf(n.At("tls.client_cert_required"), "client_cert_required needs client_ca_file")
	}
	if e.Network.ProxyProtocol && len(e.TrustedProxies) == 0 {
		p.Errorf(n.At("network.proxy_protocol"), "proxy_protocol needs trusted_proxies: only they may say who called")
	}
	for _, name := range e.IdentityFields {
		if !wire.ValidToken([]byte(strings.TrimSuffix(name, "*"))) {
			p.Errorf(n.At("identity_fields"), "%q is not the name of a header field", name)
		}
	}
	if e.Via != "" && !wire.ValidToken([]byte(e.Via)) {
		p.Errorf(n.At("via"), "via %q is not a name without spaces", e.Via)
	}
	switch r := plan.Routers[e.Router]; {
	case e.Router == "" || !e.Enabled || p.Incomplete() && r == nil:
	case r == nil:
		q := p.Errorf(n.At("router"), "no router called %q", e.Router)
		q.Suggestion, _ = conf.Nearest(e.Router, slices.Collect(maps.Keys(plan.Routers)))
	case !r.Enabled():
		p.Errorf(n.At("router"), "router %q is switched off at %s", e.Router, r.Pos())
	}
}

// splitBinding reads the address that a listener has: a host, which may be empty, and a port, where 0 is any free one.
func splitBinding(binding string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(binding)
	if err != nil {
		return "", 0, fmt.Errorf("binding %q is not an address and a port such as 0.0.0.0:8000", binding)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("binding %q: the port %q is not a number up to 65535", binding, text)
	}
	return host, uint16(n), nil
}

// overlap tells whether two listeners on these addresses would be in each other's way.
func overlap(a, b string) bool {
	hostA, portA, errA := splitBinding(a)
	hostB, portB, errB := splitBinding(b)
	if errA != nil || errB != nil || portA != portB || portA == 0 {
		return false
	}
	every := func(host string) bool {
		addr, err := netip.ParseAddr(host)
		return host == "" || err == nil && addr.IsUnspecified()
	}
	return hostA == hostB || every(hostA) || every(hostB)
}

func (plan *Plan) modules(p *conf.Problems) {
	names := pipeline.Names{
		Cluster: plan.cluster,
		Flow:    func(name string, n *conf.Node) bool { return plan.builder.Flow(name, n) != nil },
	}
	reg := pipeline.Processors()
	if admin := plan.Config.Admin; admin.Enabled {
		if _, _, err := splitBinding(admin.Binding); err != nil {
			p.In("admin").Errorf(plan.root.At("admin.binding"), "%v", err)
		}
	}
	if !plan.Config.Pipeline.IsZero() {
		plan.Pipelines = pipeline.Build(reg, plan.Config.Pipeline, names, p)
	}
	for _, n := range conf.ItemsOf(plan.Config.Modules, p) {
		name := n.Get("name").Scalar()
		in := p.In("module " + name)
		switch name {
		case "elastic":
			m := DefaultModuleElastic()
			conf.Decode(n, &m, in)
			m.check(n, in)
			if !m.Enabled || m.Elasticsearch == "" {
				continue
			}
			if c := plan.cluster(m.Elasticsearch, n.Get("elasticsearch"), in); c != nil && c.Enabled && m.InitTemplate {
				plan.Templates = append(plan.Templates, pipeline.Template{Cluster: m.Elasticsearch, Prefix: c.IndexPrefix, Stream: m.stream()})
			}
		case "pipeline":
			plan.Pipelines = append(plan.Pipelines, pipeline.BuildModule(reg, n, names, in)...)
		case "queue":
			conf.Decode(n.Without("name"), &plan.Config.Queue, in)
		case "":
			p.Errorf(n, "a module needs a name, one of %q", moduleNames)
		default:
			q := in.Errorf(n.Get("name"), "unknown module %q", name)
			q.Suggestion, _ = conf.Nearest(name, moduleNames)
		}
	}
	pipeline.Check(plan.Pipelines, p)
	if options := plan.Config.Queue.Options(); options.Check(1) == nil { // else it has been reported
		pipeline.CheckQueues(plan.Pipelines, options, p)
	}
}

// cluster returns the configuration of the cluster called name, or reports that there is none.
func (plan *Plan) cluster(name string, n *conf.Node, p *conf.Problems) *elastic.ClusterConfig {
	if c := plan.Clusters[name]; c != nil {
		plan.builder.Use("elasticsearch", name)
		return c
	}
	if !p.Incomplete() {
		q := p.Errorf(n, "no elasticsearch called %q", name)
		q.Suggestion, _ = conf.Nearest(name, slices.Collect(maps.Keys(plan.Clusters)))
	}
	return nil
}

// clusterNode returns the part of the section elasticsearch that configures a cluster.
func clusterNode(section *conf.Node, name string) *conf.Node {
	for _, n := range section.Items() {
		if n.Get("name").Scalar() == name {
			return n
		}
	}
	return nil
}

// Way returns the flows that a request meets that comes to an entry from its ClientIP, and makes of the request what the entry
// makes of it. An empty name is the first entry.
func (plan *Plan) Way(entry string, x *flows.Exchange) ([]*flows.Flow, error) {
	e, err := plan.Entry(entry)
	if err != nil {
		return nil, err
	}
	e.Admit(x, x.Request.ClientIP)
	return plan.Routers[e.Router].Explain(x).Flows, nil
}

// Entry returns the entry called name, or the first one if name is empty.
func (plan *Plan) Entry(name string) (flows.EntryConfig, error) {
	names := make([]string, 0, len(plan.Entries))
	for _, e := range plan.Entries {
		if name == "" || e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	if name == "" {
		return flows.EntryConfig{}, errors.New("the configuration has no entry that is switched on")
	}
	if slices.Contains(plan.off, name) {
		return flows.EntryConfig{}, fmt.Errorf("entry %q is switched off", name)
	}
	return flows.EntryConfig{}, fmt.Errorf("no entry called %q, only %q", name, names)
}
