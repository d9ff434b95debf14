package estest

import (
	"errors"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An apiError is an error in Elasticsearch's shape.
type apiError struct {
	status      int
	typ, reason string
	meta        object    // members such as index and index_uuid, in any order
	cause       *apiError // caused_by
	root        *apiError // root_cause, if it is not the error itself
	shard       bool      // raised by the shards: wrapped into search_phase_execution_exception
	bare        bool      // {"error": reason, "status": …}, or without status if status is -400
}

func (e *apiError) Error() string { return e.typ + ": " + e.reason }

// object writes type, reason, metadata in the flavor's order, and cause.
func (e *apiError) object(order []string) object {
	o := object{{"type", e.typ}, {"reason", e.reason}}
	for _, key := range order {
		if e.meta.has(key) {
			o = append(o, member{key, e.meta.get(key)})
		}
	}
	for _, m := range e.meta {
		if !slices.Contains(order, m.key) {
			o = append(o, m)
		}
	}
	if e.cause != nil {
		o = append(o, member{"caused_by", e.cause.object(order)})
	}
	return o
}

// full is the value of the member "error".
func (e *apiError) full(order []string) object {
	root := *e
	if e.root != nil {
		root = *e.root
	}
	root.cause = nil
	o := object{{"root_cause", []any{root.object(order)}}}
	return append(o, e.object(order)...)
}

func (e *apiError) body(order []string) object {
	switch {
	case e.bare && e.status < 0:
		return object{{"error", e.reason}}
	case e.bare:
		return object{{"error", e.reason}, {"status", e.status}}
	}
	return object{{"error", e.full(order)}, {"status", e.status}}
}

func badRequest(typ, format string, args ...any) *apiError {
	return &apiError{status: 400, typ: typ, reason: fmt.Sprintf(format, args...)}
}

func illegalArgument(format string, args ...any) *apiError {
	return badRequest("illegal_argument_exception", format, args...)
}

// parsing is an error of the query language. Nodes add line and column; here they are those of the first byte.
func parsing(format string, args ...any) *apiError {
	e := badRequest("parsing_exception", format, args...)
	e.meta = object{{"line", 1}, {"col", 1}}
	return e
}

// asAPIError returns err as it is put into an answer.
func asAPIError(err error) *apiError {
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{status: 500, typ: "exception", reason: err.Error()}
	}
	return e
}

// indexNotFound has the resource type of calls that take many indices, or of those that take one.
func indexNotFound(name string, one bool) *apiError {
	kind := "index_or_alias"
	if one {
		kind = "index_expression"
	}
	return &apiError{
		status: 404, typ: "index_not_found_exception", reason: "no such index [" + name + "]",
		meta: object{{"resource.type", kind}, {"resource.id", name}, {"index_uuid", "_na_"}, {"index", name}},
	}
}

// A request is a call on its way through a handler.
type request struct {
	*Call
	c      *Cluster
	node   *Node
	fault  *Fault
	user   *User
	now    time.Time
	vars   map[string]string // parts of the path
	params map[string]string // of the query string; the last one of a name counts
}

// flag tells whether a boolean parameter is set; without a value it means true.
func (r *request) flag(name string) bool {
	v, ok := r.params[name]
	return ok && (v == "" || v == "true")
}

func (r *request) int(name string, otherwise int) (int, error) {
	v, ok := r.params[name]
	if !ok {
		return otherwise, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		e := illegalArgument("Failed to parse int parameter [%s] with value [%s]", name, v)
		e.cause = badRequest("number_format_exception", "For input string: %q", v)
		return 0, e
	}
	return n, nil
}

// object returns the body as an object; a missing body, or source=, counts as what is given in its place.
func (r *request) object() (object, error) {
	body := r.Body
	if source, ok := r.params["source"]; ok && len(body) == 0 {
		body = []byte(source)
	}
	if len(body) == 0 {
		return nil, nil
	}
	v, err := parseJSON(body)
	if err != nil {
		return nil, err
	}
	o, ok := v.(object)
	if !ok {
		return nil, parsing("Expected [START_OBJECT] but found [%s]", tokenName(v))
	}
	return o, nil
}

func tokenName(v any) string {
	switch v.(type) {
	case object:
		return "START_OBJECT"
	case []any:
		return "START_ARRAY"
	case string:
		return "VALUE_STRING"
	case bool:
		return "VALUE_BOOLEAN"
	case nil:
		return "VALUE_NULL"
	}
	return "VALUE_NUMBER"
}

// A route is one API: its methods, its path, in which {name} stands for a part, and the parameters that it knows besides
// the common ones.
type route struct {
	methods string
	path    string
	params  string
	handle  func(r *request) (answer, error)
}

const (
	commonParams = "pretty human error_trace filter_path format v h s help source source_content_type master_timeout cluster_manager_timeout timeout local"
	indexParams  = "ignore_unavailable allow_no_indices expand_wildcards "
	searchParams = indexParams + "q df default_operator analyzer analyze_wildcard lenient from size sort _source _source_includes " +
		"_source_excludes track_total_hits rest_total_hits_as_int typed_keys preference routing request_cache scroll search_type " +
		"batched_reduce_size max_concurrent_shard_requests pre_filter_shard_size ccs_minimize_roundtrips terminate_after " +
		"allow_partial_search_results stats version seq_no_primary_term track_scores cancel_after_time_interval phase_took " +
		"ignore_throttled stored_fields docvalue_fields explain"
	countParams = indexParams + "q df default_operator analyzer analyze_wildcard lenient preference routing min_score terminate_after ignore_throttled"
	writeParams = "refresh routing version version_type if_seq_no if_primary_term op_type wait_for_active_shards pipeline require_alias include_type_name"
	readParams  = "routing preference realtime refresh _source _source_includes _source_excludes stored_fields version version_type"
)

// routes is the table of APIs. Where several paths fit, the one with the most literal parts wins.
var routes = []route{
	{"GET HEAD", "/", "", info},
	{"GET", "/_cluster/health", "level wait_for_status wait_for_nodes wait_for_active_shards", clusterHealth},
	{"GET", "/_cluster/health/{index}", "level wait_for_status wait_for_nodes wait_for_active_shards", clusterHealth},
	{"GET", "/_cluster/state", indexParams, clusterState},
	{"GET", "/_cluster/state/{metric}", indexParams, clusterState},
	{"GET", "/_nodes", "flat_settings", nodesInfo},
	{"GET", "/_nodes/http", "flat_settings", nodesInfo},
	{"GET", "/_nodes/{node}/http", "flat_settings", nodesInfo},
	{"GET", "/_nodes/stats", "level", nodesStats},
	{"GET", "/_tasks", "actions detailed nodes parent_task_id group_by wait_for_completion", tasks},
	{"GET", "/_security/_authenticate", "", onlyOn(false, authenticate)},
	{"GET", "/_plugins/_security/authinfo", "verbose auth_type", onlyOn(true, authinfo)},
	{"GET", "/_cat/indices", indexParams + "bytes health pri time", catIndices},
	{"GET", "/_cat/indices/{index}", indexParams + "bytes health pri time", catIndices},
	{"GET", "/_cat/nodes", "bytes full_id time", catNodes},
	{"GET", "/_cat/health", "ts time", catHealth},
	{"GET", "/_stats", indexParams + "level", stats},
	{"GET", "/_stats/{metric}", indexParams + "level", stats},
	{"GET", "/{index}/_stats", indexParams + "level", stats},
	{"GET", "/{index}/_stats/{metric}", indexParams + "level", stats},

	{"PUT", "/{index}", "wait_for_active_shards include_type_name", createIndex},
	{"GET HEAD", "/{index}", indexParams + "include_defaults flat_settings include_type_name", getIndex},
	{"DELETE", "/{index}", indexParams, deleteIndex},
	{"GET", "/_mapping", indexParams + "include_type_name", getMapping},
	{"GET", "/{index}/_mapping", indexParams + "include_type_name", getMapping},
	{"PUT POST", "/{index}/_mapping", indexParams + "include_type_name write_index_only", putMapping},
	{"GET", "/_settings", indexParams + "include_defaults flat_settings", getSettings},
	{"GET", "/{index}/_settings", indexParams + "include_defaults flat_settings", getSettings},
	{"PUT", "/{index}/_settings", indexParams + "preserve_existing flat_settings", putSettings},
	{"GET POST", "/_refresh", indexParams, refresh},
	{"GET POST", "/{index}/_refresh", indexParams, refresh},
	{"POST", "/_aliases", "", updateAliases},
	{"GET HEAD", "/_alias", indexParams, getAlias},
	{"GET HEAD", "/_alias/{name}", indexParams, getAlias},
	{"GET HEAD", "/{index}/_alias", indexParams, getAlias},
	{"GET HEAD", "/{index}/_alias/{name}", indexParams, getAlias},
	{"PUT POST", "/{index}/_alias/{name}", "", putAlias},
	{"DELETE", "/{index}/_alias/{name}", "", deleteAlias},
	{"GET", "/_index_template", "flat_settings", getIndexTemplate},
	{"GET HEAD", "/_index_template/{name}", "flat_settings", getIndexTemplate},
	{"PUT POST", "/_index_template/{name}", "create cause", putIndexTemplate},
	{"DELETE", "/_index_template/{name}", "", deleteIndexTemplate},
	{"GET", "/_ilm/policy/{name}", "", onlyOn(false, getILM)},
	{"PUT", "/_ilm/policy/{name}", "", onlyOn(false, putILM)},
	{"GET", "/_plugins/_ism/policies/{name}", "", onlyOn(true, getISM)},
	{"PUT", "/_plugins/_ism/policies/{name}", "if_seq_no if_primary_term", onlyOn(true, putISM)},
	{"GET", "/_template", "flat_settings include_type_name", getTemplate},
	{"GET HEAD", "/_template/{name}", "flat_settings include_type_name", getTemplate},
	{"PUT POST", "/_template/{name}", "create order include_type_name", putTemplate},
	{"DELETE", "/_template/{name}", "", deleteTemplate},

	{"PUT POST", "/{index}/_doc/{id}", writeParams, indexDocument},
	{"POST", "/{index}/_doc", writeParams, indexDocument},
	{"PUT POST", "/{index}/_create/{id}", writeParams, createDocument},
	{"GET HEAD", "/{index}/_doc/{id}", readParams, getDocument},
	{"GET HEAD", "/{index}/_source/{id}", readParams, getSource},
	{"DELETE", "/{index}/_doc/{id}", writeParams, deleteDocument},
	{"POST", "/{index}/_update/{id}", writeParams + " retry_on_conflict _source lang", updateDocument},
	{"POST PUT", "/_bulk", writeParams + " _source", bulk},
	{"POST PUT", "/{index}/_bulk", writeParams + " _source", bulk},
	{"GET POST", "/_mget", readParams, multiGet},
	{"GET POST", "/{index}/_mget", readParams, multiGet},
	{"POST", "/{index}/_delete_by_query", searchParams + " refresh conflicts wait_for_completion slices scroll_size requests_per_second max_docs", deleteByQuery},

	{"GET POST", "/_search", searchParams, search},
	{"GET POST", "/{index}/_search", searchParams, search},
	{"GET POST", "/_count", countParams, count},
	{"GET POST", "/{index}/_count", countParams, count},
	{"GET POST", "/_msearch", searchParams + " max_concurrent_searches", multiSearch},
	{"GET POST", "/{index}/_msearch", searchParams + " max_concurrent_searches", multiSearch},
	{"POST", "/_async_search", asyncParams + searchParams, onlyOn(false, submitAsync)},
	{"POST", "/{index}/_async_search", asyncParams + searchParams, onlyOn(false, submitAsync)},
	{"GET", "/_async_search/status/{id}", "keep_alive", onlyOn(false, asyncStatus)},
	{"GET", "/_async_search/{id}", "wait_for_completion_timeout keep_alive typed_keys", onlyOn(false, getAsync)},
	{"DELETE", "/_async_search/{id}", "", onlyOn(false, deleteAsync)},
	{"POST", "/_plugins/_asynchronous_search", "index " + asyncParams + searchParams, onlyOn(true, submitAsync)},
	{"POST", "/{index}/_plugins/_asynchronous_search", "index " + asyncParams + searchParams, onlyOn(true, submitAsync)},
	{"GET", "/_plugins/_asynchronous_search/{id}", "wait_for_completion_timeout keep_alive typed_keys", onlyOn(true, getAsync)},
	{"DELETE", "/_plugins/_asynchronous_search/{id}", "", onlyOn(true, deleteAsync)},
	{"GET POST", "/_search/scroll", "scroll scroll_id rest_total_hits_as_int", nextScroll},
	{"GET POST", "/_search/scroll/{scroll_id}", "scroll rest_total_hits_as_int", nextScroll},
	{"DELETE", "/_search/scroll", "", clearScroll},
	{"DELETE", "/_search/scroll/{scroll_id}", "", clearScroll},
}

// findRoute returns the route for a method and a path, or, if there is none, the methods that the path has. Literal parts
// come before variable ones even if they lack the method: DELETE /_search does not delete an index.
func (c *Cluster) findRoute(method, path string) (best *route, vars map[string]string, allowed []string) {
	parts := splitPath(path)
	if c.details.opensearch && strings.Contains(strings.TrimSuffix(path, "/"), "//") && len(parts) > 1 {
		return nil, nil, nil // Elasticsearch skips empty parts, OpenSearch knows no such path
	}
	if !c.details.opensearch { // and Elasticsearch takes %5Fdoc for _doc
		for i, p := range parts {
			if decoded, err := url.PathUnescape(p); err == nil && strings.HasPrefix(decoded, "_") {
				parts[i] = decoded
			}
		}
	}
	most := ""
	for i := range routes {
		found, literal, ok := matchPath(parts, splitPath(routes[i].path))
		if !ok || literal < most {
			continue
		}
		if literal > most {
			most, best, allowed = literal, nil, nil
		}
		for m := range strings.FieldsSeq(routes[i].methods) {
			if m == method {
				best, vars = &routes[i], found
			}
			if !slices.Contains(allowed, m) {
				allowed = append(allowed, m)
			}
		}
	}
	return best, vars, allowed
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

// matchPath returns the variables of a path and a string with one letter for each part, greater for a literal one.
func matchPath(parts, pattern []string) (vars map[string]string, literal string, ok bool) {
	if len(parts) != len(pattern) {
		return nil, "", false
	}
	vars = map[string]string{}
	for i, p := range pattern {
		if p[0] != '{' {
			if p != parts[i] {
				return nil, "", false
			}
			literal += "1"
			continue
		}
		name := strings.Trim(p, "{}")
		decoded, err := url.PathUnescape(parts[i])
		if err != nil {
			decoded = parts[i]
		}
		vars[name] = decoded
		literal += "0"
	}
	return vars, literal, true
}

// handle works out the answer to a call.
func (c *Cluster) handle(n *Node, call *Call, fault *Fault) answer {
	r := &request{Call: call, c: c, node: n, fault: fault, now: c.clock.Now()}
	a, err := c.dispatch(r)
	return r.conclude(a, err)
}

// conclude brings an answer, or an error, into the form in which it is sent. What comes later is concluded then.
func (r *request) conclude(a answer, err error) answer {
	c := r.c
	if a.later != nil {
		a.resume = func() answer {
			c.mu.Lock()
			defer c.mu.Unlock()
			r.now = c.clock.Now()
			return r.conclude(a.later())
		}
		return a
	}
	if err != nil {
		e := asAPIError(err)
		a.status, a.value = max(e.status, -e.status), e.body(c.details.order)
	}
	if a.status == 0 {
		a.status = 200
	}
	if o, ok := a.value.(object); ok && err == nil {
		a.value = filterAnswer(o, r.params["filter_path"])
	}
	return a
}

func filterAnswer(o object, filterPath string) object {
	if filterPath == "" {
		return o
	}
	include, exclude := parsePaths(strings.Split(filterPath, ","))
	if len(include) > 0 {
		kept, _ := include.keep(plain(o))
		o = kept.(object)
	}
	if len(exclude) > 0 {
		o = exclude.drop(plain(o)).(object)
	}
	return o
}

// plain returns o with its raw parts parsed.
func plain(o object) object {
	v, err := parseJSON(appendJSON(nil, o, -1))
	if err != nil {
		return o
	}
	return v.(object)
}

func (c *Cluster) dispatch(r *request) (answer, error) {
	params, err := parseQuery(r.Query)
	if err != nil {
		return answer{}, err
	}
	r.params = params
	if err := c.authenticate(r); err != nil {
		return answer{header: []string{`WWW-Authenticate: Basic realm="security" charset="UTF-8"`}}, err
	}
	rt, vars, allowed := c.findRoute(r.Method, r.Path)
	if rt == nil && len(allowed) == 0 {
		return answer{}, r.noHandler()
	}
	if rt == nil {
		header := []string{"Allow: " + strings.Join(allowed, ",")}
		if r.Method == "OPTIONS" {
			return answer{contentType: "text/plain; charset=UTF-8", header: header}, nil
		}
		return answer{header: header}, &apiError{
			status: 405, bare: true,
			reason: fmt.Sprintf("Incorrect HTTP method for uri [%s] and method [%s], allowed: [%s]", r.Target, r.Method, strings.Join(allowed, ", ")),
		}
	}
	r.vars = vars
	if err := c.checkContentType(r); err != nil {
		return answer{}, err
	}
	var unknown []string
	known := strings.Fields(commonParams + " " + rt.params)
	for name := range r.params {
		if !slices.Contains(known, name) {
			unknown = append(unknown, "["+name+"]")
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		noun := "parameter"
		if len(unknown) > 1 {
			noun = "parameters"
		}
		return answer{}, illegalArgument("request [%s] contains unrecognized %s: %s", r.Path, noun, strings.Join(unknown, ", "))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return rt.handle(r)
}

// noHandler is the error for paths that no API has.
func (r *request) noHandler() error {
	uri := r.Target
	if decoded, err := url.PathUnescape(r.Path); err == nil && r.c.details.opensearch {
		uri = decoded + strings.TrimPrefix(r.Target, r.Path)
	}
	return &apiError{
		status: -400, bare: true, reason: fmt.Sprintf("no handler found for uri [%s] and method [%s]", uri, r.Method),
	}
}

// parseQuery reads a query string as nodes do: a name without a value is there, and a broken escape is an error.
func parseQuery(query string) (map[string]string, error) {
	params := map[string]string{}
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		for _, p := range []*string{&name, &value} {
			decoded, err := url.QueryUnescape(*p)
			if err != nil {
				e := badRequest("bad_parameter_exception", "java.lang.IllegalArgumentException: invalid escape sequence in: %s", *p)
				e.cause = illegalArgument("invalid escape sequence in: %s", *p)
				return nil, e
			}
			*p = decoded
		}
		params[name] = value
	}
	return params, nil
}

// checkContentType refuses bodies that are not declared as JSON or NDJSON, as nodes do since version 6, and as Elasticsearch 8 those
// that are declared for one version where an answer for another one is asked for (RestCompatibleVersionHelper).
func (c *Cluster) checkContentType(r *request) error {
	if len(r.Body) == 0 {
		return nil
	}
	declared := r.Header.Get("Content-Type")
	media, _, _ := strings.Cut(declared, ";")
	switch strings.TrimSpace(strings.ToLower(media)) {
	case "application/json", "application/x-ndjson":
		return nil
	case "application/vnd.elasticsearch+json", "application/vnd.elasticsearch+x-ndjson":
		if c.details.vendorTypes && compatibleWith(declared) != compatibleWith(r.Header.Get("Accept")) {
			return &apiError{status: 400, typ: "media_type_header_exception", reason: fmt.Sprintf("A compatible version is required on both Content-Type "+
				"and Accept headers if either one has requested a compatible version. Accept=%s, Content-Type=%s", r.Header.Get("Accept"), declared)}
		}
		if c.details.vendorContent || c.details.vendorTypes {
			return nil
		}
	}
	return &apiError{status: 406, bare: true, reason: fmt.Sprintf("Content-Type header [%s] is not supported", declared)}
}

// compatibleWith returns the version that a media type names, or "".
func compatibleWith(mediaType string) string {
	_, params, _ := mime.ParseMediaType(mediaType)
	return params["compatible-with"]
}

// jsonType returns the Content-Type of a JSON answer: the vendor type, if the flavor has one and it is asked for.
func (c *Cluster) jsonType(call *Call) string {
	if accept := call.Header.Get("Accept"); c.details.vendorTypes && strings.HasPrefix(accept, "application/vnd.elasticsearch+json") {
		return strings.ReplaceAll(accept, " ", "")
	}
	return c.details.contentType
}

// encode writes a JSON answer, in the pretty form if the URL asks for it or, without a word there, the answer has it by
// nature.
func encode(call *Call, a answer) []byte {
	params, _ := parseQuery(call.Query) // a broken query string was answered with an error, which is compact
	pretty, asked := params["pretty"]
	if asked && pretty != "false" || !asked && a.pretty {
		return append(appendJSON(nil, a.value, 0), '\n')
	}
	return appendJSON(nil, a.value, -1)
}
