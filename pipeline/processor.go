package pipeline

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
)

// Queues opens the queues that processors name.
type Queues = queue.Opener

// Env is what pipelines get when they start. All of it belongs to the caller.
type Env struct {
	Queues  Queues
	Metrics *obs.Metrics
	Logger  *slog.Logger
	// Ready is closed when the index templates are installed: nothing is indexed before. Nil means that there is nothing to
	// wait for.
	Ready <-chan struct{}
	// Stdout is where the processor stdout writes.
	Stdout io.Writer
	// Cluster returns the cluster of a name, started. Pipelines do not close it.
	Cluster func(name string) (*elastic.Cluster, error)
	// Flows returns the generation of flows in force, or nil.
	Flows func() *flows.Generation
}

// A Processor is what a pipeline runs, configured and not at work.
type Processor interface {
	// Input returns the name of the queue that the processor consumes, or "" for none.
	Input() string
	// Start takes what the processor needs. When it fails, nothing stays taken.
	Start(env Env) (Work, error)
}

// Work is a processor at work.
type Work interface {
	// Run works until one of the contexts ends. When take ends, it finishes what it has in hand; when finish ends, which is
	// not before take, it drops that. It gives back what Start took; the error says what that left undone.
	Run(take, finish context.Context) error
	// Idle tells whether there is nothing to deliver, or nothing that could be delivered now. It is called while Run works.
	Idle() bool
}

// An Example shows how a processor is configured. It must load: a test sees to it.
type Example struct {
	Title string
	YAML  string // the pipeline as an item of the list
}

// A Factory declares a processor: its name, its prose, its defaults and how one is made. The configuration C is the schema,
// as with filters. It holds plain values and no pointers: two that are printed the same are the same.
type Factory[C any] struct {
	Name    string // as written in the configuration
	Summary string // one sentence
	Default func() C
	// Build makes a processor. It does no I/O; it reports what is wrong with b and may then return nil.
	Build    func(b *Builder, c C) Processor
	Examples []Example
}

// A Kind is a registered processor without its configuration type.
type Kind struct {
	Name, Summary string
	Examples      []Example
	Config        any // the defaults
	build         func(b *Builder, n *conf.Node) (p Processor, key string)
}

// A Registry holds the processors that a configuration may name.
type Registry struct{ kinds map[string]*Kind }

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{kinds: map[string]*Kind{}} }

// Processors returns a registry of all processors.
func Processors() *Registry {
	r := NewRegistry()
	Register(r, JSONIndexing())
	Register(r, BulkIndexing())
	Register(r, DeadLetter())
	Register(r, FileOutput())
	Register(r, StdoutOutput())
	Register(r, QueueConsumer())
	Register(r, DAG())
	return r
}

// Register adds f to r. A name registered twice is a mistake in the program, and panics.
func Register[C any](r *Registry, f Factory[C]) {
	if _, dup := r.kinds[f.Name]; dup {
		panic("BUG: processor " + f.Name + " registered twice")
	}
	r.kinds[f.Name] = &Kind{
		Name: f.Name, Summary: f.Summary, Examples: f.Examples, Config: f.Default(),
		build: func(b *Builder, n *conf.Node) (Processor, string) {
			c := f.Default()
			before, _ := b.problems.Count()
			conf.Decode(n, &c, b.problems)
			if after, _ := b.problems.Count(); after > before {
				return nil, ""
			}
			p := f.Build(b, c)
			if after, _ := b.problems.Count(); after > before {
				return nil, ""
			}
			if b.key != "" {
				return p, fmt.Sprintf("%s %v", b.key, p.Input())
			}
			return p, fmt.Sprintf("%#v", c)
		},
	}
}

// Kinds returns the registered processors by name.
func (r *Registry) Kinds() []*Kind {
	out := make([]*Kind, 0, len(r.kinds))
	for _, name := range r.Names() {
		out = append(out, r.kinds[name])
	}
	return out
}

// Names returns the names of the registered processors, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.kinds)) }

// Kind returns the processor called name, or nil.
func (r *Registry) Kind(name string) *Kind { return r.kinds[name] }

// A Builder makes one processor of its configuration. It does no I/O.
type Builder struct {
	pipeline string
	node     *conf.Node
	problems *conf.Problems
	names    Names
	registry *Registry
	settings Settings
	key      string // of the parts, for a configuration that is not plain values
	inner    bool   // a part of a dag, which has the queue
	off      bool
}

// Pipeline returns the name of the pipeline that is being built.
func (b *Builder) Pipeline() string { return b.pipeline }

// Errorf reports that the processor cannot work as configured. field is the parameter that is wrong.
func (b *Builder) Errorf(field, format string, args ...any) {
	n := b.node.Get(field)
	if n.IsZero() {
		n = b.node
	}
	b.problems.Errorf(n, format, args...)
}

// Cluster tells whether there is a cluster of a name, which the parameter field gives. If there is none a problem is
// reported. A pipeline whose cluster is switched off is not run.
func (b *Builder) Cluster(field, name string) bool {
	c := b.names.Cluster(name, b.node.Get(field), b.problems)
	if c != nil && !c.Enabled {
		b.off = true
	}
	return c != nil
}

// Flow tells whether there is a flow of a name, which the parameter field gives. If there is none a problem is reported.
func (b *Builder) Flow(field, name string) bool { return b.names.Flow(name, b.node.Get(field)) }
