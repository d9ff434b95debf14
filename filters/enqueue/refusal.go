package enqueue

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/flows"
)

// mediaOf returns the media type that a body is declared as, in small letters and without parameters.
func mediaOf(x *flows.Exchange) []byte {
	media, _, _ := bytes.Cut(x.Request.Header.Get("content-type"), []byte{';'})
	return bytes.ToLower(bytes.TrimSpace(media))
}

// checkMedia refuses bodies of media types that no node takes (Elasticsearch 7.17, OpenSearch 2.19 and 3.9). Elasticsearch has its
// vendor types besides, and OpenSearch application/*.
func checkMedia(x *flows.Exchange, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	media := string(mediaOf(x))
	format, ok := strings.CutPrefix(media, "application/vnd.elasticsearch+")
	if !ok {
		format, ok = strings.CutPrefix(media, "application/")
	}
	if !ok || !slices.Contains([]string{"json", "x-ndjson", "yaml", "smile", "cbor", "*"}, format) {
		return elastic.Errorf(http.StatusNotAcceptable, "media_type_header_exception", "Content-Type header [%s] is not supported",
			x.Request.Header.Get("content-type"))
	}
	return nil
}

// shapeParams only say what an answer looks like, of which the client gets none and the consumer needs all.
var shapeParams = []string{"pretty", "human", "error_trace", "filter_path", "format", "no_cache", "include_source_on_error"}

// keptParams are the parameters of the APIs whose requests are put into queues, without those of shapeParams (Elasticsearch 7.17 to 9
// and OpenSearch 2 and 3: what one of them knows is kept).
var keptParams = map[string][]string{
	"bulk": {
		"pipeline", "refresh", "routing", "timeout", "type", "wait_for_active_shards", "require_alias", "require_data_stream",
		"batch_size", "list_executed_pipelines", "index",
	},
	"index":  documentParams,
	"create": documentParams,
	"update": {
		"refresh", "routing", "timeout", "type", "wait_for_active_shards", "require_alias", "if_seq_no", "if_primary_term", "version",
		"version_type", "retry_on_conflict", "doc_as_upsert",
	},
	"delete": {"refresh", "routing", "timeout", "type", "wait_for_active_shards", "if_seq_no", "if_primary_term", "version", "version_type"},
}

var documentParams = []string{
	"pipeline", "refresh", "routing", "timeout", "type", "wait_for_active_shards", "require_alias", "require_data_stream", "op_type",
	"if_seq_no", "if_primary_term", "version", "version_type",
}

// shapes tells whether a parameter of the API only says what an answer looks like.
func shapes(call, name string) bool {
	source := name == "_source" || strings.HasPrefix(name, "_source_")
	return slices.Contains(shapeParams, name) || source && (call == "bulk" || call == "update")
}

// queryOf returns the raw query that goes with x. Nodes refuse parameters that they do not know, and values that mean nothing, so
// the client hears of those now; and what is no parameter of the API, such as a key for a proxy in between, does not get into a
// queue.
func queryOf(x *flows.Exchange) ([]byte, error) {
	query, call := x.Request.Query, x.Call().Name
	var refused string
	var drop []string
	api.EachParam(query, func(rawName, rawValue []byte) {
		name, value := string(api.DecodeQuery(nil, rawName)), string(api.DecodeQuery(nil, rawValue))
		kept := slices.Contains(keptParams[call], name)
		switch {
		case refused != "":
		case !kept && !shapes(call, name):
			refused = fmt.Sprintf("request [%s] contains unrecognized parameter: [%s]", x.Request.Path, name)
		default:
			refused = wrongValue(call, name, value)
		}
		if !kept {
			drop = append(drop, name)
		}
	})
	if refused != "" {
		return nil, elastic.Errorf(http.StatusBadRequest, "illegal_argument_exception", "%s", refused)
	}
	for _, name := range drop {
		query = api.RemoveParam(nil, query, name)
	}
	return query, nil
}

// wrongValue returns why nodes refuse a parameter's value, in their words, or "".
func wrongValue(call, name, value string) string {
	switch name {
	case "refresh":
		if !slices.Contains([]string{"", "true", "false", "wait_for"}, value) {
			return fmt.Sprintf("Unknown value for refresh: [%s].", value)
		}
	case "timeout":
		if !isTime(value) {
			return fmt.Sprintf("failed to parse setting [timeout] with value [%s] as a time value", value)
		}
	case "wait_for_active_shards":
		if n, err := strconv.Atoi(value); value != "all" && (err != nil || n < 0) {
			return fmt.Sprintf("cannot parse ActiveShardCount[%s]", value)
		}
	case "require_alias", "require_data_stream", "list_executed_pipelines", "doc_as_upsert", "pretty", "human", "error_trace":
		if !slices.Contains([]string{"", "true", "false"}, value) {
			return fmt.Sprintf("Failed to parse value [%s] as only [true] or [false] are allowed.", value)
		}
	case "op_type":
		switch op := strings.ToLower(value); {
		case call == "create" && op != "create":
			return fmt.Sprintf("opType must be 'create', found: [%s]", value)
		case op != "create" && op != "index":
			return fmt.Sprintf("opType must be 'create' or 'index', found: [%s]", value)
		}
	case "version", "if_seq_no", "if_primary_term":
		switch n, err := strconv.ParseInt(value, 10, 64); {
		case err != nil:
			return fmt.Sprintf("Failed to parse long parameter [%s] with value [%s]", name, value)
		case name == "if_seq_no" && n < 0:
			return fmt.Sprintf("sequence numbers must be non negative. got [%s].", value)
		}
	case "retry_on_conflict", "batch_size":
		if _, err := strconv.ParseInt(value, 10, 32); err != nil {
			return fmt.Sprintf("Failed to parse int parameter [%s] with value [%s]", name, value)
		}
	case "version_type":
		if !bulk.IsVersionType([]byte(value)) {
			return fmt.Sprintf("No version type match [%s]", value)
		}
	}
	return ""
}

// isTime tells whether nodes read s as a time: -1, 0, or a whole number with a unit, in letters of any size.
func isTime(s string) bool {
	s = strings.ToLower(strings.TrimSpace(s))
	if s == "-1" || s == "0" {
		return true
	}
	for _, unit := range [...]string{"nanos", "micros", "ms", "s", "m", "h", "d"} {
		if digits, ok := strings.CutSuffix(s, unit); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
			return err == nil && n >= 0
		}
	}
	return false
}

// checkDocument refuses the write of one document that nodes refuse without having read the document. id is nil if the node would
// make one.
func checkDocument(x *flows.Exchange, verb bulk.Verb, id, body []byte) error {
	query := x.Request.Query
	if pipeline, ok := api.QueryValue(query, "pipeline"); ok && len(pipeline) == 0 {
		return invalid("pipeline cannot be an empty string")
	}
	if len(body) == 0 && (verb == bulk.Index || verb == bulk.Create) {
		return elastic.Errorf(http.StatusBadRequest, "parse_exception", "request body is required")
	}
	value := func(name string) []byte {
		v, _ := api.QueryValue(query, name)
		return v
	}
	if verb == bulk.Index && (id == nil || strings.EqualFold(string(value("op_type")), "create")) {
		verb = bulk.Create
	}
	versions := bulk.Versions{Version: value("version"), Type: value("version_type"), SeqNo: value("if_seq_no"), Term: value("if_primary_term")}
	if reason := versions.Invalid(verb, id); reason != "" {
		return invalid(reason)
	}
	if verb != bulk.Update || len(body) > 0 && !bytes.HasSuffix(mediaOf(x), jsonSuffix) {
		return nil
	}
	if len(body) == 0 {
		return invalid("script or doc is missing")
	}
	switch typ, reason := bulk.UpdateRefusal(body); {
	case typ == "":
		return nil
	case typ == bulk.Validation:
		return invalid(reason)
	default:
		return &elastic.Error{Status: http.StatusBadRequest, Type: typ, Reason: reason}
	}
}

var jsonSuffix = []byte("json")

// invalid returns the answer to a request that nodes refuse when they check it.
func invalid(reason string) *elastic.Error {
	return elastic.Errorf(http.StatusBadRequest, bulk.Validation, "Validation Failed: 1: %s;", reason)
}
