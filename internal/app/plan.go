package app

import (
	"errors"
	"fmt"
	"net"

	"weir/elastic"
	"weir/filters"
	"weir/flows"
	"weir/internal/conf"
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
	// Classic: keep the gateway's metadata in the cluster. Weir keeps none there.
	StoreConfig bool `conf:"store_config,alias=store" deprecated:"nothing but records is kept in the cluster"`
}

// moduleNames are the modules that there are.
var moduleNames = []string{"elastic", "pipeline", "queue"}

// Load reads files and makes a plan of them. The problems hold everything that is wrong; the plan is nil if there are
// errors among them.
func Load(opt conf.Options) (*Plan, *conf.Problems) {
	root, p := conf.Load(opt)
	plan := &Plan{Config: DefaultConfig(), Files: root.Files()}
	c := &plan.Config
	conf.Decode(root, c, p)

	plan.Clusters = elastic.DecodeClusters(c.Elasticsearch, p)
	b := flows.NewBuilder(filters.Registry(), p)
	plan.builder = b
	for name, cluster := range plan.Clusters {
		b.Provide("elasticsearch", name, cluster, nil)
	}
	plan.queues = &queues{}
	b.Provide("queues", "default", plan.queues, nil)
	b.Define(c.Flow)
	plan.routers(b)
	plan.entries(p)
	plan.modules(p)
	b.Unused()
	if p.HasErrors() {
		return nil, p
	}
	return plan, p
}

func (plan *Plan) routers(b *flows.Builder) {
	plan.Routers = map[string]*flows.Router{}
	for _, n := range plan.Config.Router.Items() {
		r := b.Router(n)
		if r == nil {
			continue
		}
		if first := plan.Routers[r.Name()]; first != nil {
			b.Problems.Errorf(n.Get("name"), "router %q is defined twice; first at %s", r.Name(), first.Pos())
			continue
		}
		plan.Routers[r.Name()] = r
	}
}

func (plan *Plan) entries(p *conf.Problems) {
	names := map[string]bool{}
	for _, n := range plan.Config.Entry.Items() {
		e := flows.DefaultEntry()
		in := p.In("entry " + n.Get("name").Scalar())
		conf.Decode(n, &e, in)
		if e.Name == "" {
			continue
		}
		if names[e.Name] {
			in.Errorf(n.Get("name"), "entry %q is defined twice", e.Name)
			continue
		}
		names[e.Name] = true
		if !e.Enabled {
			continue
		}
		if _, _, err := net.SplitHostPort(e.Network.Binding); err != nil {
			in.Errorf(n.Get("network").Get("binding"), "binding %q is not an address and a port such as 0.0.0.0:8000", e.Network.Binding)
		}
		if (e.TLS.CertFile == "") != (e.TLS.KeyFile == "") {
			in.Errorf(n.Get("tls"), "cert_file and key_file go together")
		}
		if plan.Routers[e.Router] == nil && e.Router != "" {
			plan.danglingRouter(in, n.Get("router"), e.Router)
			continue
		}
		plan.Entries = append(plan.Entries, e)
	}
	if plan.Config.Entry.Len() == 0 {
		// Not a gateway: most likely a file that is being written.
		p.Errorf(nil, "no entry: the configuration would serve nothing")
	}
}

func (plan *Plan) danglingRouter(p *conf.Problems, n *conf.Node, name string) {
	names := make([]string, 0, len(plan.Routers))
	for r := range plan.Routers {
		names = append(names, r)
	}
	q := p.Errorf(n, "no router called %q", name)
	if near, ok := conf.Nearest(name, names); ok {
		q.Suggestion = near
	}
}

func (plan *Plan) modules(p *conf.Problems) {
	resolve := func(name string, n *conf.Node, p *conf.Problems) *elastic.ClusterConfig {
		return plan.cluster(name, n, p)
	}
	reg := pipeline.Processors()
	if !plan.Config.Pipeline.IsZero() {
		plan.Pipelines = pipeline.Build(reg, plan.Config.Pipeline, resolve, p)
	}
	for _, n := range plan.Config.Modules.Items() {
		name := n.Get("name").Scalar()
		in := p.In("module " + name)
		switch name {
		case "elastic":
			m := ModuleElasticConfig{Enabled: true}
			conf.Decode(n, &m, in)
			if !m.Enabled || m.Elasticsearch == "" {
				continue
			}
			if c := resolve(m.Elasticsearch, n.Get("elasticsearch"), in); c != nil && c.Enabled && m.InitTemplate {
				plan.Templates = append(plan.Templates, pipeline.Template{Cluster: m.Elasticsearch, Prefix: c.IndexPrefix})
			}
		case "pipeline":
			plan.Pipelines = append(plan.Pipelines, pipeline.BuildModule(reg, n, resolve, in)...)
		case "queue":
			conf.Decode(n.Without("name"), &plan.Config.Queue, in)
		case "":
			p.Errorf(n, "a module needs a name, one of %q", moduleNames)
		default:
			q := in.Errorf(n.Get("name"), "unknown module %q", name)
			if near, ok := conf.Nearest(name, moduleNames); ok {
				q.Suggestion = near
			}
		}
	}
}

// cluster returns the configuration of the cluster called name, or reports that there is none.
func (plan *Plan) cluster(name string, n *conf.Node, p *conf.Problems) *elastic.ClusterConfig {
	if c := plan.Clusters[name]; c != nil {
		return c
	}
	names := make([]string, 0, len(plan.Clusters))
	for c := range plan.Clusters {
		names = append(names, c)
	}
	q := p.Errorf(n, "no elasticsearch called %q", name)
	if near, ok := conf.Nearest(name, names); ok {
		q.Suggestion = near
	}
	return nil
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
	return flows.EntryConfig{}, fmt.Errorf("no entry called %q, only %q", name, names)
}
