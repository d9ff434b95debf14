package estest

import (
	"bytes"
	"maps"
	"strings"
)

// multiSearch answers pairs of lines: a header, which may be empty, and a search body. An empty line before all others is
// skipped, as nodes do it.
func multiSearch(r *request) (answer, error) {
	if len(r.Body) == 0 {
		return answer{}, badRequest("parse_exception", "request body is required")
	}
	if !bytes.HasSuffix(r.Body, []byte("\n")) {
		return answer{}, illegalArgument("The msearch request must be terminated by a newline [\n]")
	}
	lines := bytes.Split(bytes.TrimSuffix(bytes.TrimPrefix(r.Body, []byte("\n")), []byte("\n")), []byte("\n"))
	var responses []any
	for i := 0; i+1 < len(lines); i += 2 {
		header, err := parseLine(lines[i])
		if err != nil {
			return answer{}, err
		}
		body, err := parseLine(lines[i+1])
		if err != nil {
			return answer{}, err
		}
		item := r.item(header)
		if _, err := item.searchSpec(body); err != nil {
			return answer{}, err // one body that cannot be read fails the whole request
		}
		if q := body.object("query"); q != nil {
			if _, err := (compiler{newMapping(), r.now}).query(q); err != nil && !isShardError(err) {
				return answer{}, err
			}
		}
		expr := r.vars["index"]
		if header.has("index") {
			expr = strings.Join(stringList(header.get("index")), ",")
		}
		responses = append(responses, item.searchItem(expr, body))
	}
	if len(responses) == 0 {
		return answer{}, badRequest("action_request_validation_exception", "Validation Failed: 1: no requests added;")
	}
	return answer{value: object{{"took", r.took()}, {"responses", responses}}}, nil
}

func parseLine(line []byte) (object, error) {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil, nil
	}
	v, err := parseJSON(line)
	if err != nil {
		return nil, err
	}
	o, ok := v.(object)
	if !ok {
		return nil, parsing("Expected [START_OBJECT] but found [%s]", tokenName(v))
	}
	return o, nil
}

// item is the request for one search of several: its header's options come over those of the URL.
func (r *request) item(header object) *request {
	one := *r
	one.params = maps.Clone(r.params)
	for _, m := range header {
		if m.key != "index" {
			one.params[m.key] = header.string(m.key)
		}
	}
	return &one
}

func (r *request) searchItem(expr string, body object) object {
	o, err := r.search(expr, body)
	if err != nil {
		e := asAPIError(err)
		return object{{"error", e.full(r.c.details.order)}, {"status", e.status}}
	}
	return append(o, member{"status", 200})
}
