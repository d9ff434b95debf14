package upstream

import (
	"bytes"

	"weir/elastic"
	"weir/elastic/api"
	"weir/flows"
	"weir/internal/wire"
)

// checkSigned refuses a request whose signature covers a field that is not sent on, because it belongs to one connection
// or a filter has taken it away: the node could only find the signature wrong, and would not say why. Requests without
// a signature are the node's to refuse.
//
// A signature (AWS Signature Version 4) names the fields that it covers, in lower case and with semicolons between, in
// Authorization (SignedHeaders=host;x-amz-date) or in the query (X-Amz-SignedHeaders, with %3B between).
func checkSigned(r *flows.Request) error {
	const signed = "SignedHeaders="
	var names []byte
	if value, ok := api.QueryValue(r.Query, "X-Amz-SignedHeaders"); ok {
		names = bytes.ReplaceAll(bytes.ToLower(value), []byte("%3b"), []byte(";"))
	} else if value := r.Header.Get("authorization"); bytes.HasPrefix(value, []byte("AWS4-")) {
		if i := bytes.Index(value, []byte(signed)); i >= 0 {
			names, _, _ = bytes.Cut(value[i+len(signed):], []byte(","))
		}
	}
	for len(names) > 0 {
		var name []byte
		name, names, _ = bytes.Cut(names, []byte(";"))
		name = bytes.TrimSpace(name)
		if !wire.EqualFold(name, "host") && !r.Header.Has(string(name)) || wire.HopByHop(name) || wire.EqualFold(name, "expect") || rewritten(r, name) {
			return elastic.Errorf(400, "illegal_argument_exception",
				"the signature covers the field [%s], which is not sent on to nodes as it came: leave it unsigned", name)
		}
	}
	return nil
}

// rewritten tells whether name is a Content-Length that the transport writes in another way.
func rewritten(r *flows.Request, name []byte) bool {
	value := r.Header.Get("content-length")
	return wire.EqualFold(name, "content-length") && len(value) > 1 && value[0] == '0'
}
