package log

import (
	"bytes"
	"math/rand/v2"

	"weir/flows"
	"weir/internal/wire"
)

// TraceContextConfig is the configuration of trace_context, which has no parameters.
type TraceContextConfig struct{}

// traceContext gives a traceparent to requests that have none.
type traceContext struct{}

// TraceContext declares the filter trace_context.
func TraceContext() flows.Factory[TraceContextConfig] {
	return flows.Factory[TraceContextConfig]{
		Name: "trace_context", Family: "log",
		Summary: "Begins a trace (the field traceparent of W3C Trace Context) for a request that comes without one, so that its record, the nodes and their slow logs name the same. A trace that the caller began goes on unchanged.",
		Default: func() TraceContextConfig { return TraceContextConfig{} },
		Build:   func(*flows.Builder, TraceContextConfig) flows.Filter { return traceContext{} },
		Examples: []flows.Example{
			{Title: "At the head of a flow", YAML: "- trace_context: {}"},
		},
	}
}

// Serve implements flows.Filter.
func (traceContext) Serve(x *flows.Exchange, next flows.Handler) error {
	if trace, _ := traceOf(x.Request.Header.Get(traceParentName)); trace == nil {
		// A field that is not valid is taken for none (W3C Trace Context, section 3.2.1).
		x.Request.Header.Filter(func(f wire.Field) bool { return !wire.EqualFold(f.Name, traceParentName) })
		x.Request.Header.Add(bytesOf(traceParentName), newTraceParent())
	}
	return next.Serve(x)
}

const traceParentName = "traceparent"

// newTraceParent returns a field for a new trace that is not sampled by anybody yet.
func newTraceParent() []byte {
	// Neither id may be nothing but zeros.
	field := append(make([]byte, 0, traceParentLength), "00-"...)
	field = appendHex(appendHex(field, rand.Uint64()), max(1, rand.Uint64()))
	field = appendHex(append(field, '-'), max(1, rand.Uint64()))
	return append(field, "-00"...)
}

// traceParentLength is the length of a field of version 00.
const traceParentLength = len("00-00000000000000000000000000000000-0000000000000000-00")

// traceOf returns the trace id and the span id of a traceparent field (W3C Trace Context), or nil if the field is not valid.
func traceOf(parent []byte) (trace, span []byte) {
	if len(parent) < traceParentLength || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' || parent[0] == 'f' && parent[1] == 'f' ||
		len(parent) > traceParentLength && (parent[0] == '0' && parent[1] == '0' || parent[traceParentLength] != '-') {
		return nil, nil
	}
	for i, c := range parent[:traceParentLength] {
		if i != 2 && i != 35 && i != 52 && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return nil, nil
		}
	}
	trace, span = parent[3:35], parent[36:52]
	if len(bytes.Trim(trace, "0")) == 0 || len(bytes.Trim(span, "0")) == 0 {
		return nil, nil
	}
	return trace, span
}
