// Package transform holds filters that look at a message and change or judge it.
//
// They never touch a field that frames a message, and of bodies only the addresses that rewrite_addresses writes over.
// They trade power for order: repeated fields, and all other bytes, stay where they are.
package transform

import (
	"maps"
	"slices"
	"strings"

	"weir/flows"
	"weir/internal/wire"
)

// SetResponseHeaderConfig is the configuration of set_response_header.
type SetResponseHeaderConfig struct {
	// Fields to set; each replaces what the answer has under that name.
	Headers map[string]string `conf:"headers,required"`
}

type setResponseHeader struct{ set fields }

// fields are header fields to set, in the order of their names.
type fields struct{ names, values []string }

// newFields checks each field with check, and that no two are one, since case does not count in names (RFC 9110 section 5.1).
func newFields(b *flows.Builder, headers map[string]string, check func(b *flows.Builder, field, name, value string)) (f fields) {
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		check(b, "headers", name, headers[name])
		lower := strings.ToLower(name)
		if other, twice := seen[lower]; twice {
			b.Errorf("headers", "%s and %s are one field", other, name)
		}
		seen[lower] = name
		f.names = append(f.names, name)
		f.values = append(f.values, headers[name])
	}
	return f
}

// apply sets the fields; each replaces what h has under its name.
func (f *fields) apply(h *wire.Header) {
	for i, name := range f.names {
		h.Set(name, f.values[i])
	}
}

// SetResponseHeader declares the filter set_response_header.
func SetResponseHeader() flows.Factory[SetResponseHeaderConfig] {
	return flows.Factory[SetResponseHeaderConfig]{
		Name: "set_response_header", Family: "transform",
		Summary: "Sets fields of the answers of the filters below it, whichever of them answers; of errors that the gateway makes it does not. At the top of a flow it sees all answers, hits of a cache included.",
		Default: func() SetResponseHeaderConfig { return SetResponseHeaderConfig{} },
		Build: func(b *flows.Builder, c SetResponseHeaderConfig) flows.Filter {
			return &setResponseHeader{newFields(b, c.Headers, checkField)}
		},
		Examples: []flows.Example{{Title: "Say who answered", YAML: "- set_response_header: {headers: {X-Served-By: weir}}"}},
	}
}

// checkField reports a header field that cannot be sent, or that is not for a filter to set.
func checkField(b *flows.Builder, field, name, value string) {
	var h wire.Header
	if err := wire.ParseFields(&h, []byte(name+": "+value+"\r\n")); err != nil || h.Len() != 1 {
		b.Errorf(field, "%q: %q cannot be sent as a header field", name, value)
		return
	}
	if lower := strings.ToLower(name); wire.HopByHop([]byte(name)) || lower == "content-length" {
		b.Errorf(field, "%s frames the message and is not for a filter to change", name)
	}
}

func (f *setResponseHeader) Serve(x *flows.Exchange, next flows.Handler) error {
	if err := next.Serve(x); err != nil {
		return err
	}
	f.set.apply(&x.Response.Header)
	return nil
}
