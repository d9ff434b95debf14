package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/elastic"
	"weir/internal/conf"
	"weir/queue/disk"
)

// Names find what processors refer to by name.
type Names struct {
	// Cluster returns the configuration of a cluster. If there is none it reports a problem at n and returns nil.
	Cluster func(name string, n *conf.Node, p *conf.Problems) *elastic.ClusterConfig
	// Flow tells whether there is such a flow. If there is none it reports a problem at n.
	Flow func(name string, n *conf.Node) bool
}

// ModuleConfig is the module pipeline of the classic form.
type ModuleConfig struct {
	// Name of the module: pipeline.
	Name string `conf:"name"`
	// A module that is switched off runs nothing.
	Enabled bool `conf:"enabled"`
	// Which pipelines run.
	Runners []RunnerConfig `conf:"runners"`
	// The pipelines.
	Pipelines []PipelineConfig `conf:"pipelines"`
}

// RunnerConfig says that a pipeline runs.
type RunnerConfig struct {
	// Name of the runner, for people.
	Name string `conf:"name"`
	// A runner that is switched off runs nothing.
	Enabled bool `conf:"enabled"`
	// Name of the pipeline to run.
	PipelineID string `conf:"pipeline_id,required"`
	// Consumers that work at the same time, each on its own partition of the queue.
	MaxGoRoutine int `conf:"max_go_routine" min:"0" max:"64"`
	// Pause of a consumer after each block, in milliseconds. A pipeline waits for its queue and needs none.
	ThresholdInMs int `conf:"threshold_in_ms" min:"0" max:"3600000"`
	// Classic: longest time of a run. A pipeline runs until it is stopped.
	TimeoutInMs int `conf:"timeout_in_ms"`

	parted *conf.Node // where max_go_routine stands
}

// SetDefaults implements conf.Defaulter.
func (r *RunnerConfig) SetDefaults() { r.Enabled = true }

// PipelineConfig is a pipeline of the classic form.
type PipelineConfig struct {
	// Name by which runners refer to the pipeline.
	Name string `conf:"name,required"`
	// The processor.
	Start *conf.Node `conf:"start,required"`
	// Classic: what follows the first processor. A pipeline has one processor, and this list is empty.
	Process *conf.Node `conf:"process"`
}

// StartConfig is the processor of a pipeline of the classic form.
type StartConfig struct {
	// Name of the processor.
	Joint string `conf:"joint,required"`
	// A processor that is switched off does not run.
	Enabled bool `conf:"enabled"`
	// Parameters of the processor.
	Parameters *conf.Node `conf:"parameters"`
}

// A Plan is a pipeline that was read and understood and does not run.
type Plan struct {
	Name string

	key       string
	node      *conf.Node
	processor Processor
	consumers int
	parted    *conf.Node // where the number of consumers stands, or node
}

// Key returns the plan's name and configuration in one string. Plans with the same key do the same, so that a reload need not
// touch the pipeline.
func (p *Plan) Key() string { return p.key }

// BuildModule makes plans of an item pipeline of the list of modules. What is wrong goes to p. What is switched off makes
// no plan: the module, a runner, a processor, its cluster.
func BuildModule(reg *Registry, module *conf.Node, names Names, p *conf.Problems) []*Plan {
	m := ModuleConfig{Enabled: true}
	conf.Decode(module, &m, p)
	nodes := module.Get("pipelines").Items()
	runners := m.running(module.Get("runners").Items(), p)
	var plans []*Plan
	for i, c := range m.Pipelines {
		if c.Name == "" {
			continue
		}
		in := p.In("pipeline " + c.Name)
		if c.Process.Len() > 0 {
			in.Errorf(c.Process, "a pipeline has one processor, the joint that it starts with")
		}
		s := StartConfig{Enabled: true}
		conf.Decode(c.Start, &s, in)
		runner := runners[c.Name]
		if runner == nil && m.Enabled {
			in.Warnf(nodes[i], "no runner runs the pipeline")
		}
		if s.Joint == "" || !m.Enabled || !s.Enabled || runner == nil || !runner.Enabled {
			continue
		}
		settings := Settings{max(1, runner.MaxGoRoutine), conf.Duration(time.Duration(runner.ThresholdInMs) * time.Millisecond)}
		if size := s.Parameters.Get("bulk_size"); !size.IsZero() {
			in.Warnf(size, "bulk_size was the size of a bulk request; now it is the most records of one, and max_bytes bounds its size")
		}
		for _, plan := range build(reg, c.Name, s.Joint, nodes[i], c.Start.Get("joint").Pos(), s.Parameters, settings, names, in) {
			if !runner.parted.IsZero() {
				plan.parted = runner.parted
			}
			plans = append(plans, plan)
		}
	}
	Check(plans, p)
	return plans
}

// running returns the runner of each pipeline that one names, and reports runners without one. Of several runners of a
// pipeline the first that is switched on counts.
func (m *ModuleConfig) running(nodes []*conf.Node, p *conf.Problems) map[string]*RunnerConfig {
	run := map[string]*RunnerConfig{}
	names := make([]string, 0, len(m.Pipelines))
	for _, c := range m.Pipelines {
		names = append(names, c.Name)
	}
	for i, r := range m.Runners {
		if r.PipelineID == "" {
			continue
		}
		in := p.In("runner " + r.Name)
		if !slices.Contains(names, r.PipelineID) {
			q := in.Errorf(nodes[i].Get("pipeline_id"), "no pipeline called %q", r.PipelineID)
			q.Suggestion, _ = conf.Nearest(r.PipelineID, names)
		}
		if r.TimeoutInMs > 0 {
			in.Warnf(nodes[i].Get("timeout_in_ms"), "timeout_in_ms ended a run; now a pipeline runs until it is stopped: leave it out")
		}
		// A pipeline that is named although its runner is switched off is not forgotten, only off.
		m.Runners[i].parted = nodes[i].Get("max_go_routine")
		if first := run[r.PipelineID]; first == nil || !first.Enabled {
			run[r.PipelineID] = &m.Runners[i]
		}
	}
	return run
}

// Build makes plans of a list in the short form: {name: x, json_indexing: {...}}. What is wrong goes to p. What is switched
// off makes no plan.
func Build(reg *Registry, list *conf.Node, names Names, p *conf.Problems) []*Plan {
	var items []*conf.Node
	conf.Decode(list, &items, p)
	var plans []*Plan
	for _, n := range items {
		var head struct {
			Name    string `conf:"name,required"`
			Enabled bool   `conf:"enabled"`

			Settings `conf:",inline"`
		}
		head.Enabled, head.Consumers = true, 1
		kinds := n.Without("name", "enabled", "consumers", "pause").Keys()
		conf.Decode(n.Without(kinds...), &head, p)
		if head.Name == "" {
			continue
		}
		in := p.In("pipeline " + head.Name)
		if len(kinds) != 1 {
			in.Errorf(n, "a pipeline has one processor, as in {name: x, json_indexing: {...}}; here are %d: %s", len(kinds), strings.Join(kinds, ", "))
			continue
		}
		if head.Enabled {
			plans = append(plans, build(reg, head.Name, kinds[0], n, n.KeyPos(kinds[0]), n.Get(kinds[0]), head.Settings, names, in)...)
		}
	}
	Check(plans, p)
	return plans
}

// build makes at most one plan. at is where the pipeline stands, kindAt where its processor is named.
func build(reg *Registry, name, kind string, at *conf.Node, kindAt conf.Pos, params *conf.Node, settings Settings, names Names,
	p *conf.Problems,
) []*Plan {
	b := &Builder{pipeline: name, node: at, problems: p, names: names, registry: reg, settings: settings}
	processor, key := b.processor(kind, kindAt, params)
	if processor == nil || b.off {
		return nil
	}
	plan := &Plan{
		Name: name, key: fmt.Sprintf("%s %s %s %s", name, settings, kind, key), node: at, processor: processor,
		consumers: settings.Consumers, parted: at.Get("consumers"),
	}
	if plan.parted.IsZero() {
		plan.parted = at
	}
	return []*Plan{plan}
}

// processor makes a processor of a kind within what b builds, and a text of its configuration.
func (b *Builder) processor(kind string, kindAt conf.Pos, params *conf.Node) (Processor, string) {
	k := b.registry.Kind(kind)
	if k == nil {
		q := b.problems.Add(conf.Problem{Pos: kindAt, Message: fmt.Sprintf("unknown processor %q; there are %q", kind, b.registry.Names())})
		q.Suggestion, _ = conf.Nearest(kind, b.registry.Names())
		return nil, ""
	}
	inner := *b
	inner.problems = b.problems.In(kind)
	if !params.IsZero() {
		inner.node = params
	}
	processor, key := k.build(&inner, params)
	b.off = b.off || inner.off
	return processor, key
}

// Check reports plans of the same name, and plans that consume the same queue: each would advance over blocks that the
// other one has in hand. Build and BuildModule call it for what they return; who joins plans of both calls it again.
func Check(plans []*Plan, p *conf.Problems) {
	names, queues := map[string]*Plan{}, map[string]*Plan{}
	for _, plan := range plans {
		in := p.In("pipeline " + plan.Name)
		if first := names[plan.Name]; first != nil {
			in.Errorf(plan.node, "pipeline %q is defined twice; first at %s", plan.Name, first.node.Pos())
			continue
		}
		names[plan.Name] = plan
		input := plan.processor.Input()
		if first := queues[input]; first != nil && input != "" {
			in.Errorf(plan.node, "queue %q has a consumer already, pipeline %q at %s", input, first.Name, first.node.Pos())
			continue
		}
		queues[input] = plan
	}
}

// CheckQueues reports plans among whose consumers a queue of these options cannot be split: they would never start.
func CheckQueues(plans []*Plan, o disk.Options, p *conf.Problems) {
	for _, plan := range plans {
		if plan.processor.Input() == "" {
			continue
		}
		if err := o.Check(plan.consumers); err != nil {
			p.In("pipeline "+plan.Name).Errorf(plan.parted,
				"the queue %q cannot be split among %d consumers: %s; take fewer consumers, raise max_bytes of the queue, or lower its max_msg_size or block_size",
				plan.processor.Input(), plan.consumers, err)
		}
	}
}

// Start puts the plan to work. Stop must be called.
func (p *Plan) Start(env Env) (*Running, error) {
	work, err := p.processor.Start(env)
	if err != nil {
		return nil, fmt.Errorf("start pipeline %s: %w", p.Name, err)
	}
	r := &Running{name: p.Name, work: work, done: make(chan struct{})}
	var finish, take context.Context
	finish, r.drop = context.WithCancel(context.Background())
	take, r.cease = context.WithCancel(finish)
	go func() {
		defer close(r.done)
		r.err = work.Run(take, finish)
	}()
	return r, nil
}

// Running is a pipeline at work.
type Running struct {
	name        string
	work        Work
	cease, drop context.CancelFunc
	done        chan struct{}
	err         error // of Run; readable once done is closed
}

// Drain waits until the pipeline has delivered what it can deliver now, or ctx ends. It does not stop it.
func (r *Running) Drain(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !r.work.Idle() {
		select {
		case <-tick.C:
		case <-r.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Stop lets the pipeline finish what it has in hand, until ctx ends; what is dropped then stays on the queue and is delivered
// again. It returns when the pipeline has ended, with an error if it was cut off or left something undone. It may be called
// twice.
func (r *Running) Stop(ctx context.Context) error {
	r.cease()
	defer r.drop()
	select {
	case <-r.done:
		return r.ended(nil)
	case <-ctx.Done():
	}
	r.drop()
	<-r.done
	return r.ended(context.Cause(ctx))
}

func (r *Running) ended(cut error) error {
	err := r.err
	if err == nil {
		err = cut
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("stop pipeline %s: %w", r.name, err)
}
