package transform

import (
	"slices"
	"strings"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/wire"
)

// RequestHeaderFilterConfig is the configuration of request_header_filter.
type RequestHeaderFilterConfig struct {
	// What must stand in the request: at least one of these fields with one of its values. `*` in a value stands for
	// any text.
	Include map[string]conf.Strings `conf:"include"`
	// What must not stand in the request: any of these fields with one of its values.
	Exclude map[string]conf.Strings `conf:"exclude"`
}

type requestHeaderFilter struct{ include, exclude []fieldRule }

// fieldRule is one field name, in lower case, with the values that count.
type fieldRule struct {
	name   string
	values []string
}

// RequestHeaderFilter declares the filter request_header_filter.
func RequestHeaderFilter() flows.Factory[RequestHeaderFilterConfig] {
	return flows.Factory[RequestHeaderFilterConfig]{
		Name: "request_header_filter", Family: "transform",
		Summary: "Lets only requests pass that carry certain header fields. What does not pass is refused with 403 or, in a tracing flow, goes no further.",
		Default: func() RequestHeaderFilterConfig { return RequestHeaderFilterConfig{} },
		Build: func(b *flows.Builder, c RequestHeaderFilterConfig) flows.Filter {
			if len(c.Include)+len(c.Exclude) == 0 {
				b.Errorf("", "neither include nor exclude: the filter would let everything pass")
			}
			return &requestHeaderFilter{include: rulesOf(c.Include), exclude: rulesOf(c.Exclude)}
		},
		Examples: []flows.Example{
			{Title: "Log only requests that ask for it", YAML: "- request_header_filter: {include: {CACHE: true}}"},
		},
	}
}

func rulesOf(m map[string]conf.Strings) []fieldRule {
	out := make([]fieldRule, 0, len(m))
	for name, values := range m {
		out = append(out, fieldRule{strings.ToLower(name), values})
	}
	slices.SortFunc(out, func(a, b fieldRule) int { return strings.Compare(a.name, b.name) })
	return out
}

func (f *requestHeaderFilter) Serve(x *flows.Exchange, next flows.Handler) error {
	if len(f.include) > 0 && !matchesAny(f.include, &x.Request.Header) || matchesAny(f.exclude, &x.Request.Header) {
		if x.Tracing {
			return nil
		}
		x.Trace.Outcome = flows.Denied
		return elastic.Errorf(403, "forbidden_exception", "the request's header fields are not let through here")
	}
	return next.Serve(x)
}

func matchesAny(rules []fieldRule, h *wire.Header) bool {
	for _, field := range h.Fields() {
		for i := range rules {
			if wire.EqualFold(field.Name, rules[i].name) &&
				slices.ContainsFunc(rules[i].values, func(v string) bool { return flows.Glob(v, field.Value) }) {
				return true
			}
		}
	}
	return false
}
