package debug

import (
	"weir/elastic"
	"weir/flows"
)

// DropConfig is the configuration of drop.
type DropConfig struct{}

type drop struct{}

// Drop declares the filter drop.
func Drop() flows.Factory[DropConfig] {
	return flows.Factory[DropConfig]{
		Name: "drop", Family: "debug",
		Summary: "Ends the exchange: a response that is there is given, a request without one is refused with 403, and in a " +
			"tracing flow the record simply goes no further.",
		Default:  func() DropConfig { return DropConfig{} },
		Build:    func(*flows.Builder, DropConfig) flows.Filter { return drop{} },
		Examples: []flows.Example{{Title: "Refuse writes", YAML: "- drop: {when: {class: write}}"}},
	}
}

// Ends implements flows.Ender.
func (drop) Ends() bool { return true }

func (drop) Serve(x *flows.Exchange, _ flows.Handler) error {
	if x.Tracing || x.Response.Answered() {
		return nil
	}
	x.Trace.Outcome = flows.Denied
	return elastic.Errorf(403, "forbidden_exception", "the gateway does not take this request")
}
