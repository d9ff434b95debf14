// Package route holds filters that send an exchange another way.
//
// They do not choose nodes, which is the business of clusters. They trade nothing: a flow named by a filter is linked
// into the chain when the configuration is built, so that it costs no more than its filters written out in its place.
package route

import (
	"weir/flows"
	"weir/internal/conf"
)

// FlowConfig is the configuration of flow.
type FlowConfig struct {
	// Names of the flows to run, one after the other.
	Flows conf.Strings `conf:"flows,required,alias=flow"`
}

type flow struct{ flows []*flows.Flow }

// Flow declares the filter flow.
func Flow() flows.Factory[FlowConfig] {
	return flows.Factory[FlowConfig]{
		Name: "flow", Family: "route",
		Summary: "Runs the filters of other flows in its place, and then goes on with the next filter unless one of them ended the exchange.",
		Default: func() FlowConfig { return FlowConfig{} },
		Build: func(b *flows.Builder, c FlowConfig) flows.Filter {
			f := &flow{}
			for i, name := range c.Flows {
				if to := b.Flow(name, b.Node("flows", "flow").Item(i)); to != nil {
					f.flows = append(f.flows, to)
				}
			}
			return f
		},
		Examples: []flows.Example{{Title: "Two flows in a row", YAML: "- flow: {flows: [limits, to_cluster]}"}},
	}
}

// Flows returns the flows that stand in the filter's place.
func (f *flow) Flows() []*flows.Flow { return f.flows }

// Inline implements flows.Inliner.
func (f *flow) Inline(next flows.Handler) flows.Handler {
	for i := len(f.flows) - 1; i >= 0; i-- {
		next = f.flows[i].Then(next)
	}
	return next
}

func (f *flow) Serve(x *flows.Exchange, next flows.Handler) error { return f.Inline(next).Serve(x) }
