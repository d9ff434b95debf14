package transform

import (
	"strings"

	"weir/flows"
	"weir/internal/conf"
)

// SetRequestHeaderConfig is the configuration of set_request_header.
type SetRequestHeaderConfig struct {
	// Fields to set; each replaces what the request has under that name.
	Headers map[string]string `conf:"headers"`
	// Names of fields to take out, such as Origin.
	Remove conf.Strings `conf:"remove"`
}

type setRequestHeader struct {
	set    fields
	remove []string // in lower case
}

// SetRequestHeader declares the filter set_request_header.
func SetRequestHeader() flows.Factory[SetRequestHeaderConfig] {
	return flows.Factory[SetRequestHeaderConfig]{
		Name: "set_request_header", Family: "transform",
		Summary: "Sets and takes out fields of the request for the filters below it, nodes included. A cache below it goes by what is left. " +
			"Host and Authorization are not its business: `host` of the cluster and `credentials` of the filter elasticsearch say what nodes get.",
		Default: func() SetRequestHeaderConfig { return SetRequestHeaderConfig{} },
		Build: func(b *flows.Builder, c SetRequestHeaderConfig) flows.Filter {
			if len(c.Headers)+len(c.Remove) == 0 {
				b.Errorf("", "neither headers nor remove: the filter would change nothing")
			}
			f := &setRequestHeader{set: newFields(b, c.Headers, checkRequestField)}
			for _, name := range c.Remove {
				checkRequestField(b, "remove", name, "")
				f.remove = append(f.remove, strings.ToLower(name))
			}
			return f
		},
		Examples: []flows.Example{
			{Title: "A cluster that refuses what browsers say of pages", YAML: "- set_request_header: {remove: [Origin]}\n- elasticsearch: {elasticsearch: main}"},
			{Title: "Tell nodes of the tenant", YAML: "- set_request_header: {headers: {securitytenant: global}}"},
		},
	}
}

// checkRequestField is checkField for a request, which has fields that others decide on.
func checkRequestField(b *flows.Builder, field, name, value string) {
	switch strings.ToLower(name) {
	case "host":
		b.Errorf(field, "Host is what `host` of the cluster says")
	case "authorization":
		b.Errorf(field, "Authorization is what `credentials` of the filter elasticsearch says")
	case "expect":
		b.Errorf(field, "Expect ends at the gateway")
	default:
		checkField(b, field, name, value)
	}
}

func (f *setRequestHeader) Serve(x *flows.Exchange, next flows.Handler) error {
	for _, name := range f.remove {
		x.Request.Header.Del(name)
	}
	f.set.apply(&x.Request.Header)
	return next.Serve(x)
}
