// Package docs makes the reference out of what the program itself knows: the pages under docs/reference, the texts of
// `weir filters`, and the JSON Schema of the configuration.
//
// Names, types, defaults and limits come from the configuration structs, prose from their doc comments (collected into
// prose.json by go generate), metrics from the calls that register them (metrics.json, likewise), examples from the registry of filters. Nothing is stated here that is stated there; what
// stands in this package are the few forms that no struct has, such as the two ways to write a filter. It trades the
// freedom of hand-written pages for pages that cannot be wrong.
package docs

//go:generate go run ./gen -root ../.. -out .

import (
	_ "embed"
	"encoding/json"
	"slices"

	"weir/elastic"
	"weir/flows"
	"weir/internal/app"
	"weir/internal/conf"
	"weir/pipeline"
)

//go:embed prose.json
var proseJSON []byte

// mustProse returns the doc comments. The file is part of the program.
func mustProse() map[string]string {
	var texts map[string]string
	if err := json.Unmarshal(proseJSON, &texts); err != nil {
		panic(err)
	}
	return texts
}

// A Reference describes all that a configuration may hold.
type Reference struct {
	registry   *flows.Registry
	processors *pipeline.Registry
	prose      map[string]string
}

// New returns the reference of the filters in reg and of the sections around them.
func New(reg *flows.Registry) *Reference {
	return &Reference{registry: reg, processors: pipeline.Processors(), prose: mustProse()}
}

// flowConfig is one item of the section flow.
type flowConfig struct {
	// Name by which routers and filters refer to the flow.
	Name string `conf:"name,required"`
	// A flow that is switched off does nothing.
	Enabled bool `conf:"enabled"`
	// Filters in the order in which a request meets them. Each is written in the short form, `- echo: {message: hello}`,
	// in which `name`, `when` and `enabled` may stand among the parameters, or in the classic form,
	// `- {name: e1, type: echo, parameters: {message: hello}}`, in which they stand beside `type`.
	Filter []*conf.Node `conf:"filter"`
}

// includeConfig is what may stand at the top of a file besides the sections.
type includeConfig struct {
	// Files to read as well, as a path or pattern or a list of them, relative to the folder of the file.
	Configs conf.Strings `conf:"configs"`
	// Another word for `configs`.
	Include conf.Strings `conf:"include"`
	// What variables hold that the environment does not set, by their names.
	Env map[string]string `conf:"env"`
}

// pipelineConfig is what an item of the section pipeline has besides its processor.
type pipelineConfig struct {
	// Name of the pipeline in logs and metrics.
	Name string `conf:"name,required"`
	// A pipeline that is switched off does not run; what is put into its queue stays there.
	Enabled bool `conf:"enabled"`

	pipeline.Settings `conf:",inline"`
}

// head is what a filter may have besides its parameters.
type head struct {
	// Name of the filter in logs and explanations. By default its type.
	Name string `conf:"name"`
	// A filter that is switched off is checked and left out.
	Enabled bool `conf:"enabled"`
	// Condition under which the filter takes part. If it does not hold, the exchange goes on with the next filter.
	When *conf.Node `conf:"when"`
}

// Filter describes the configuration of a filter.
func (r *Reference) Filter(k *flows.Kind) conf.Schema { return conf.Describe(k.Config, r.prose) }

// Config describes the configuration as a whole. Filters are items of any kind in it.
func (r *Reference) Config() conf.Schema {
	root := conf.Describe(app.DefaultConfig(), r.prose)
	for i := range root.Fields {
		f := &root.Fields[i]
		if item, ok := r.item(f.Name); ok {
			f.Type, f.Elem = "list of section", &item
		}
	}
	includes := conf.Describe(includeConfig{}, r.prose)
	root.Fields = slices.Concat(includes.Fields, root.Fields)
	return root
}

// item describes an item of a section that is decoded by its owner.
func (r *Reference) item(section string) (conf.Schema, bool) {
	var zero any
	switch section {
	case "entry":
		zero = flows.DefaultEntry()
	case "flow":
		zero = flowConfig{Enabled: true}
	case "router":
		zero = flows.RouterConfig{Enabled: true}
	case "elasticsearch":
		zero = elastic.DefaultCluster()
	case "pipeline":
		s := conf.Describe(pipelineConfig{Enabled: true, Settings: pipeline.Settings{Consumers: 1}}, r.prose)
		for _, k := range r.processors.Kinds() {
			p := conf.Describe(k.Config, r.prose)
			p.Name, p.Doc = k.Name, k.Summary
			s.Fields = append(s.Fields, p)
		}
		return s, true
	default:
		return conf.Schema{}, false
	}
	return conf.Describe(zero, r.prose), true
}

// modules describes the items of the section modules by their name.
func (r *Reference) modules() map[string]conf.Schema {
	queue := conf.Describe(app.DefaultConfig().Queue, r.prose)
	name := conf.Describe(head{}, r.prose).Fields[0]
	name.Doc = "Name of the module: queue."
	queue.Fields = slices.Concat([]conf.Schema{name}, queue.Fields)

	pipelines := conf.Describe(pipeline.ModuleConfig{Enabled: true}, r.prose)
	start := conf.Describe(pipeline.StartConfig{Enabled: true}, r.prose)
	list := pipelines.Fields[slices.IndexFunc(pipelines.Fields, named("pipelines"))].Elem
	joint := &list.Fields[slices.IndexFunc(list.Fields, named("start"))]
	joint.Type, joint.Fields = start.Type, start.Fields
	return map[string]conf.Schema{
		"elastic":  conf.Describe(app.DefaultModuleElastic(), r.prose),
		"pipeline": pipelines,
		"queue":    queue,
	}
}

func named(name string) func(conf.Schema) bool {
	return func(s conf.Schema) bool { return s.Name == name }
}
