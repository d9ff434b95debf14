package flows

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"weir/internal/conf"
)

// A Handler serves an exchange: it fills the response or returns an error. An *elastic.Error is answered as it is, any
// other error as a 500.
type Handler interface{ Serve(x *Exchange) error }

// A Filter does one thing with an exchange. It passes the exchange on by calling next.Serve; one that does not has
// finished it. What a filter does before that call it does to the request, what it does after it to the response.
type Filter interface {
	Serve(x *Exchange, next Handler) error
}

// A Starter is a Filter that needs I/O, goroutines or state that survives reloads. Start comes once, before the first
// Serve.
type Starter interface{ Start(rt *Runtime) error }

// A Stopper is a Filter that gives back what Start took. Stop comes once, after the last Serve; it is safe without
// Start.
type Stopper interface{ Stop() }

// An Ender is a Filter that may end every exchange that it meets, so that what stands behind it is never reached.
type Ender interface{ Ends() bool }

// A Repeater is a Filter that sends the request to a node. It does not belong in a tracing flow, where the request has been
// sent: every write would be made twice.
type Repeater interface{ Repeats() }

// An Example shows how a filter is configured. It must load: a test sees to it.
type Example struct {
	Title string
	YAML  string // the filter as an item of a flow's list
}

// A Factory declares a filter: its name, its prose, its defaults and how one is made. The configuration C is the
// schema: its fields, their types and their comments become the reference and the JSON Schema.
type Factory[C any] struct {
	Name    string // as written in the configuration
	Summary string // one sentence
	Family  string // cache, limit, upstream, route, transform, log, debug
	Default func() C
	// Build makes a filter. It does no I/O, so that checking a configuration is safe anywhere; it reports what is
	// wrong with b and may then return nil. It is also called when c could be decoded in part only, with the defaults for
	// the rest; its result is not used then.
	Build    func(b *Builder, c C) Filter
	Examples []Example
}

// A Kind is a registered filter without its configuration type.
type Kind struct {
	Name, Summary, Family string
	Examples              []Example
	Config                any // the defaults
	build                 func(b *Builder, n *conf.Node) Filter
}

// A Registry holds the filters that a configuration may name.
type Registry struct{ kinds map[string]*Kind }

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{kinds: map[string]*Kind{}} }

// Register adds f to r. A name registered twice is a mistake in the program, and panics.
func Register[C any](r *Registry, f Factory[C]) {
	if _, dup := r.kinds[f.Name]; dup {
		panic("BUG: filter " + f.Name + " registered twice")
	}
	r.kinds[f.Name] = &Kind{
		Name: f.Name, Summary: f.Summary, Family: f.Family, Examples: f.Examples, Config: f.Default(),
		build: func(b *Builder, n *conf.Node) Filter {
			c := f.Default()
			if decode(n, &c, b.Problems.Elsewhere(r.owners)) {
				return f.Build(b, c)
			}
			// What else is wrong with the filter is said now, not after the first mistake is mended.
			b.Problems.Follow(b.node, func() { f.Build(b, c) })
			return nil
		},
	}
}

// owners tells, for a message, which filters have a parameter of that name.
func (r *Registry) owners(parameter string) string {
	names := slices.DeleteFunc(r.Names(), func(name string) bool { return !conf.IsField(r.kinds[name].Config, parameter) })
	const most = 3 // more say nothing
	if len(names) == 0 || len(names) > most {
		return ""
	}
	return "; it belongs to " + strings.Join(names, ", ")
}

// Kinds returns the registered filters by name.
func (r *Registry) Kinds() []*Kind {
	out := make([]*Kind, 0, len(r.kinds))
	for _, name := range r.Names() {
		out = append(out, r.kinds[name])
	}
	return out
}

// Names returns the names of the registered filters, sorted.
func (r *Registry) Names() []string {
	out := make([]string, 0, len(r.kinds))
	for name := range r.kinds {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Kind returns the filter called name, or nil.
func (r *Registry) Kind(name string) *Kind { return r.kinds[name] }

// A resource is something that flows refer to by kind and name: a cluster, a queue.
type resource struct {
	value any
	used  bool
	node  *conf.Node
}

// A Builder makes flows out of their configuration, and resolves what they refer to. It does no I/O. All that is wrong
// goes to Problems.
type Builder struct {
	Registry *Registry
	Problems *conf.Problems

	resources map[string]map[string]*resource
	flows     map[string]*Flow
	edges     map[*Flow][]edge
	flow      *Flow  // being built
	name      string // of the filter being built

	identities []string
	node       *conf.Node     // of the filter being built
	named      map[string]int // filters of the flow being built that came so far, by name
}

type edge struct {
	to   *Flow
	node *conf.Node
}

// NewBuilder returns a Builder over r that reports to p.
func NewBuilder(r *Registry, p *conf.Problems) *Builder {
	return &Builder{
		Registry: r, Problems: p, resources: map[string]map[string]*resource{}, flows: map[string]*Flow{},
		edges: map[*Flow][]edge{},
	}
}

// Provide makes value known as the resource name of a kind such as "elasticsearch" or "queue". node is where it is
// configured; it may be nil.
func (b *Builder) Provide(kind, name string, value any, node *conf.Node) {
	if b.resources[kind] == nil {
		b.resources[kind] = map[string]*resource{}
	}
	b.resources[kind][name] = &resource{value: value, node: node}
}

// An Identified resource says in one text what it is: a cluster says where it is. Answers that depend on a resource
// must not outlive a change of it.
type Identified interface{ Identity() string }

// Identify adds to the digest of what the generation's answers depend on; see Runtime.Resources. What is added may be secret:
// only the digest is kept.
func (b *Builder) Identify(what ...string) {
	b.identities = append(b.identities, fmt.Sprintf("%q", what))
}

// identity returns the digest of what all resources say they are, and of what filters added.
func (b *Builder) identity() string {
	h := sha256.New()
	for _, kind := range slices.Sorted(maps.Keys(b.resources)) {
		for _, name := range slices.Sorted(maps.Keys(b.resources[kind])) {
			if r, ok := b.resources[kind][name].value.(Identified); ok {
				fmt.Fprintf(h, "%q %q %q\n", kind, name, r.Identity())
			}
		}
	}
	for _, what := range slices.Sorted(slices.Values(b.identities)) {
		fmt.Fprintln(h, what)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Resource returns the resource name of kind as a T. If there is none it reports a problem, with the nearest name, and
// returns false.
func Resource[T any](b *Builder, kind, name string) (T, bool) {
	var none T
	r := b.resources[kind][name]
	if r == nil {
		b.dangling(kind, name, slices.Collect(maps.Keys(b.resources[kind])), b.at(kind), b.Problems)
		return none, false
	}
	r.used = true
	value, ok := r.value.(T)
	if !ok {
		panic(fmt.Sprintf("BUG: %s %s is a %T, not a %s", kind, name, r.value, reflect.TypeFor[T]()))
	}
	return value, true
}

// Use notes that something outside of flows refers to a resource.
func (b *Builder) Use(kind, name string) {
	if r := b.resources[kind][name]; r != nil {
		r.used = true
	}
}

// dangling reports that nothing of that kind has the name that stands at n. Where files are missing, it may be in them.
func (b *Builder) dangling(kind, name string, names []string, n *conf.Node, p *conf.Problems) {
	if p.Incomplete() {
		return
	}
	slices.Sort(names)
	q := p.Errorf(n, "no %s called %q", kind, name)
	if near, ok := conf.Nearest(name, names); ok {
		q.Suggestion = near
	} else if len(names) == 0 {
		q.Message += ": none is defined"
	} else {
		q.Message += fmt.Sprintf(": defined are %q", names)
	}
}

// Errorf reports that the filter being built cannot work as configured. field is the name of the parameter that is
// wrong, or empty for the filter as a whole.
func (b *Builder) Errorf(field, format string, args ...any) {
	b.Problems.Errorf(b.at(field), format, args...)
}

// Warnf reports that the filter being built works, but hardly as meant.
func (b *Builder) Warnf(field, format string, args ...any) {
	b.Problems.Warnf(b.at(field), format, args...)
}

func (b *Builder) at(field string) *conf.Node {
	return b.node.At(field)
}

// FlowName returns the name of the flow being built, for messages and metrics.
func (b *Builder) FlowName() string {
	if b.flow == nil {
		return ""
	}
	return b.flow.name
}

// FilterName returns the name of the filter being built, for messages and metrics: as configured, or else its kind's.
func (b *Builder) FilterName() string { return b.name }

// FilterID returns a text by which the filter being built is known across reloads, as long as neither its name nor its place
// among those of the same name in its flow changes.
func (b *Builder) FilterID() string {
	return fmt.Sprintf("%s/%s/%d", b.FlowName(), b.name, b.named[b.name])
}

// Flow returns the flow called name, which may be built later. It reports a problem and returns nil if there is none.
func (b *Builder) Flow(name string, node *conf.Node) *Flow {
	f := b.flows[name]
	if f == nil {
		b.dangling("flow", name, slices.Collect(maps.Keys(b.flows)), node, b.Problems)
		return nil
	}
	f.used = true
	if b.flow != nil {
		b.edges[b.flow] = append(b.edges[b.flow], edge{f, node})
	}
	return f
}

// Unused reports resources and flows that nothing refers to.
func (b *Builder) Unused() {
	for kind, byName := range b.resources {
		for name, r := range byName {
			if !r.used && r.node != nil {
				b.Problems.Warnf(r.node, "%s %s is not used", kind, name)
			}
		}
	}
	for name, f := range b.flows {
		if !f.used {
			b.Problems.Warnf(f.node, "flow %s is not used", name)
		}
	}
}

// decode fills into from n and tells whether that went without errors.
func decode(n *conf.Node, into any, p *conf.Problems) bool {
	before, _ := p.Count()
	conf.Decode(n, into, p)
	after, _ := p.Count()
	return after == before
}

// within makes all that is reported until the returned function is called say where it was found.
func (b *Builder) within(where string) func() {
	saved := b.Problems
	b.Problems = saved.In(where)
	return func() { b.Problems = saved }
}

// Node returns the configuration of a parameter of the filter being built, under the first of its names that is given, or
// of the filter if none is.
func (b *Builder) Node(names ...string) *conf.Node { return b.node.At(names...) }
