package estest

import (
	"bytes"
	"net/url"
	"strconv"
)

// A write is one change of a document, from its own call or from a line of a bulk request.
type write struct {
	op      string // index, create, update, delete
	ix      *index
	id      string
	routing string
	body    []byte
}

// refreshed does what refresh= asks for after a write, and tells whether the answer says forced_refresh. wait_for, which
// on a node waits for the next refresh, refreshes at once.
func (r *request) refreshed(indices ...*index) bool {
	v, ok := r.params["refresh"]
	if !ok || v == "false" {
		return false
	}
	for _, ix := range indices {
		for _, s := range ix.shards {
			if !s.dirty.IsZero() {
				s.refresh()
			}
		}
	}
	return v != "wait_for"
}

// result is the body about a write that succeeded.
func (r *request) result(w *write, d *document, result string, forced bool) object {
	o := append(r.identity(w.ix, w.id), member{"_version", d.version}, member{"result", result})
	if forced {
		o = append(o, member{"forced_refresh", true})
	}
	wanted, assigned := w.ix.replicas(len(r.c.runningNodes()))
	copies := object{{"total", 1 + wanted}, {"successful", 1 + assigned}, {"failed", 0}}
	if result == "noop" {
		copies = object{{"total", 0}, {"successful", 0}, {"failed", 0}}
	}
	return append(o, member{"_shards", copies}, member{"_seq_no", d.seqNo}, member{"_primary_term", 1})
}

// apply makes the change and returns the document after it, the word for the result and the status.
func (r *request) apply(w *write) (d *document, result string, status int, err error) {
	s, number := w.ix.shardOf(w.id, w.routing)
	have := s.live[w.id]
	switch w.op {
	case "delete":
		d = &document{id: w.id, version: 1}
		result, status = "not_found", 404
		if have != nil {
			d.version = have.version + 1
			result, status = "deleted", 200
			s.deleted++
		}
		r.change(s, d)
		delete(s.live, w.id)
		return d, result, status, nil
	case "update":
		return r.update(w, s, number, have)
	case "create":
		if have != nil {
			e := &apiError{
				status: 409, typ: "version_conflict_engine_exception",
				reason: "[" + w.id + "]: version conflict, document already exists (current version [" + strconv.FormatInt(have.version, 10) + "])",
				meta:   object{{"index_uuid", w.ix.uuid}, {"shard", strconv.Itoa(number)}, {"index", w.ix.name}},
			}
			return nil, "", 409, e
		}
	}
	return r.put(w, s, have, w.body)
}

// put stores a document whose source is given.
func (r *request) put(w *write, s *shard, have *document, source []byte) (d *document, result string, status int, err error) {
	if len(w.id) > 512 {
		return nil, "", 400, illegalArgument("id [%s] is too long, must be no longer than 512 bytes but was: %d", w.id, len(w.id))
	}
	parsed, perr := parseJSON(source)
	o, isObject := parsed.(object)
	if perr != nil || !isObject {
		e := badRequest("mapper_parsing_exception", "failed to parse")
		if perr != nil {
			e.cause = asAPIError(perr)
		}
		return nil, "", 400, e
	}
	version := w.ix.mapping.size()
	values, err := w.ix.mapping.index(w.id, o, r.now)
	if err != nil {
		return nil, "", 400, err
	}
	if w.ix.mapping.size() != version {
		r.c.store.version++
	}
	d = &document{id: w.id, version: 1, source: bytes.Clone(source), values: values}
	result, status = "created", 201
	if have != nil {
		d.version = have.version + 1
		result, status = "updated", 200
		s.deleted++
	}
	r.change(s, d)
	s.live[w.id] = d
	return d, result, status, nil
}

// change gives d its sequence number and notes that searches do not see the shard's last state.
func (r *request) change(s *shard, d *document) {
	s.maxSeqNo++
	d.seqNo = s.maxSeqNo
	if s.dirty.IsZero() {
		s.dirty = r.now
	}
}

func (r *request) update(w *write, s *shard, number int, have *document) (*document, string, int, error) {
	v, err := parseJSON(w.body)
	if err != nil {
		return nil, "", 400, err
	}
	body, _ := v.(object)
	doc, upsert := body.object("doc"), body.object("upsert")
	if doc == nil {
		e := badRequest("action_request_validation_exception", "Validation Failed: 1: script or doc is missing;")
		return nil, "", 400, e
	}
	if have == nil {
		if body.get("doc_as_upsert") == true {
			upsert = doc
		}
		if upsert == nil {
			name := "[" + w.id + "]"
			if r.c.details.types {
				name = "[_doc]" + name
			}
			e := &apiError{
				status: 404, typ: "document_missing_exception", reason: name + ": document missing",
				meta: object{{"index_uuid", w.ix.uuid}, {"shard", strconv.Itoa(number)}, {"index", w.ix.name}},
			}
			return nil, "", 404, e
		}
		return r.put(w, s, nil, appendJSON(nil, upsert, -1))
	}
	old, err := parseJSON(have.source)
	if err != nil {
		return nil, "", 500, err
	}
	source, _ := old.(object)
	merged := mergeObjects(source, doc)
	if equalJSON(source, merged) && body.get("detect_noop") != false {
		return have, "noop", 200, nil
	}
	return r.put(w, s, have, appendJSON(nil, merged, -1))
}

// mergeObjects puts the members of b into a, objects into objects.
func mergeObjects(a, b object) object {
	out := append(object(nil), a...)
	for _, m := range b {
		if inner, ok := m.value.(object); ok {
			if have := out.object(m.key); have != nil {
				out = out.set(m.key, mergeObjects(have, inner))
				continue
			}
		}
		out = out.set(m.key, m.value)
	}
	return out
}

func indexDocument(r *request) (answer, error) {
	op := "index"
	if r.params["op_type"] == "create" {
		op = "create"
	}
	return r.writeOne(op)
}

func createDocument(r *request) (answer, error) { return r.writeOne("create") }
func updateDocument(r *request) (answer, error) { return r.writeOne("update") }
func deleteDocument(r *request) (answer, error) { return r.writeOne("delete") }

func (r *request) writeOne(op string) (answer, error) {
	if len(r.Body) == 0 && op != "delete" {
		return answer{}, badRequest("parse_exception", "request body is required")
	}
	ix, err := r.one(r.vars["index"], op != "delete")
	if err != nil {
		return answer{}, err
	}
	w := &write{op: op, ix: ix, id: r.vars["id"], routing: r.params["routing"], body: r.Body}
	if w.id == "" {
		w.id = r.c.store.newDocID()
	}
	d, result, status, err := r.apply(w)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: status}
	if status == 201 {
		a.header = []string{"Location: /" + ix.name + "/_doc/" + url.PathEscape(w.id)}
	}
	a.value = r.result(w, d, result, result != "noop" && r.refreshed(ix))
	return a, nil
}

// bulk applies the lines of a bulk request one after the other; each has its own outcome.
func bulk(r *request) (answer, error) {
	if len(r.Body) == 0 {
		return answer{}, badRequest("parse_exception", "request body is required")
	}
	if !bytes.HasSuffix(r.Body, []byte("\n")) {
		return answer{}, illegalArgument(`The bulk request must be terminated by a newline [\n]`)
	}
	lines := bytes.Split(bytes.TrimSuffix(r.Body, []byte("\n")), []byte("\n"))
	var list []*write
	var names []string
	for i := 0; i < len(lines); i++ {
		if len(bytes.TrimSpace(lines[i])) == 0 {
			continue
		}
		w, name, err := r.bulkAction(lines[i], i+1)
		if err != nil {
			return answer{}, err
		}
		if w.op != "delete" {
			i++
			if i >= len(lines) {
				return answer{}, illegalArgument("Malformed action/metadata line [%d], expected a source line", i)
			}
			w.body = lines[i]
		}
		list = append(list, w)
		names = append(names, name)
	}
	if len(list) == 0 {
		return answer{}, badRequest("action_request_validation_exception", "Validation Failed: 1: no requests added;")
	}
	items := make([]any, len(list))
	results := make([]func(forced bool) object, len(list))
	touched := map[string]*index{}
	failed := false
	for i, w := range list {
		var err error
		results[i], err = r.bulkItem(w, names[i])
		failed = failed || err != nil
		if err == nil {
			touched[w.ix.name] = w.ix
		}
	}
	forced := r.refreshed(sortedIndices(touched)...)
	for i, w := range list {
		items[i] = object{{w.op, results[i](forced)}}
	}
	return answer{value: object{{"took", r.took()}, {"errors", failed}, {"items", items}}}, nil
}

// bulkAction reads an action line and returns the write and the name of its index.
func (r *request) bulkAction(line []byte, number int) (*write, string, error) {
	v, err := parseJSON(line)
	if err != nil {
		return nil, "", err
	}
	o, _ := v.(object)
	if len(o) != 1 {
		return nil, "", illegalArgument("Malformed action/metadata line [%d], expected START_OBJECT or END_OBJECT but found [%s]", number, tokenName(v))
	}
	w := &write{op: o[0].key}
	switch w.op {
	case "index", "create", "update", "delete":
	default:
		return nil, "", illegalArgument("Malformed action/metadata line [%d], expected one of [create, delete, index, update] but found [%s]", number, w.op)
	}
	meta, ok := o[0].value.(object)
	if !ok {
		return nil, "", illegalArgument("Malformed action/metadata line [%d], expected START_OBJECT but found [%s]", number, tokenName(o[0].value))
	}
	name := r.vars["index"]
	for _, m := range meta {
		switch m.key {
		case "_index":
			name = meta.string("_index")
		case "_id":
			w.id = meta.string("_id")
		case "routing", "_routing":
			w.routing = meta.string(m.key)
		case "_type", "retry_on_conflict", "require_alias", "pipeline", "version", "version_type", "if_seq_no", "if_primary_term", "dynamic_templates", "_source":
		default:
			return nil, "", illegalArgument("Action/metadata line [%d] contains an unknown parameter [%s]", number, m.key)
		}
	}
	if name == "" {
		return nil, "", badRequest("action_request_validation_exception", "Validation Failed: 1: index is missing;")
	}
	if w.id == "" {
		if w.op == "update" || w.op == "delete" {
			return nil, "", badRequest("action_request_validation_exception", "Validation Failed: 1: id is missing;")
		}
		w.id = r.c.store.newDocID()
	}
	return w, name, nil
}

// bulkItem applies a write and returns what makes its item once it is known whether the request refreshed.
func (r *request) bulkItem(w *write, name string) (item func(forced bool) object, err error) {
	w.ix, err = r.one(name, w.op != "delete")
	if err == nil {
		var d *document
		var result string
		var status int
		if d, result, status, err = r.apply(w); err == nil {
			return func(forced bool) object {
				return append(r.result(w, d, result, forced && result != "noop"), member{"status", status})
			}, nil
		}
	}
	e := asAPIError(err)
	named := w.ix
	if named == nil {
		named = &index{name: name}
	}
	o := append(r.identity(named, w.id), member{"status", e.status}, member{"error", e.object(r.c.details.order)})
	return func(bool) object { return o }, err
}

// find returns a document as realtime reads see it, or nil.
func (r *request) find(ix *index, id string) (*document, error) {
	s, _ := ix.shardOf(id, r.params["routing"])
	d := s.live[id]
	filter, err := r.userFilter(ix)
	if d == nil || err != nil || filter == nil {
		return d, err
	}
	if _, ok := filter(d); !ok {
		return nil, nil
	}
	return d, nil
}

// documentObject is the body about a document that was asked for by its id.
func (r *request) documentObject(ix *index, id string, d *document, source sourceFilter) object {
	o := r.identity(ix, id)
	if d == nil {
		return append(o, member{"found", false})
	}
	o = append(o, member{"_version", d.version}, member{"_seq_no", d.seqNo}, member{"_primary_term", 1}, member{"found", true})
	if text, ok := source.apply(d.source); ok {
		o = append(o, member{"_source", text})
	}
	return o
}

func getDocument(r *request) (answer, error) {
	ix, err := r.one(r.vars["index"], false)
	if err != nil {
		return answer{}, err
	}
	d, err := r.find(ix, r.vars["id"])
	if err != nil {
		return answer{}, err
	}
	a := answer{value: r.documentObject(ix, r.vars["id"], d, r.sourceParams(sourceFilter{}))}
	if d == nil {
		a.status = 404
	}
	return a, nil
}

func getSource(r *request) (answer, error) {
	ix, err := r.one(r.vars["index"], false)
	if err != nil {
		return answer{}, err
	}
	d, err := r.find(ix, r.vars["id"])
	if err != nil {
		return answer{}, err
	}
	if d == nil {
		name := "[" + ix.name + "]/[" + r.vars["id"] + "]"
		if r.c.details.types {
			name = "[" + ix.name + "]/[_doc]/[" + r.vars["id"] + "]"
		}
		return answer{}, &apiError{status: 404, typ: "resource_not_found_exception", reason: "Document not found " + name}
	}
	source, _ := r.sourceParams(sourceFilter{}).apply(d.source)
	return answer{value: source}, nil
}

func multiGet(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	list, _ := body.get("docs").([]any)
	if ids, ok := body.get("ids").([]any); ok {
		for _, id := range ids {
			list = append(list, object{{"_id", id}})
		}
	}
	if len(list) == 0 {
		return answer{}, badRequest("action_request_validation_exception", "Validation Failed: 1: no documents to get;")
	}
	docs := []any{}
	for _, e := range list {
		one, ok := e.(object)
		if !ok {
			one = object{{"_id", e}}
		}
		name := r.vars["index"]
		if one.has("_index") {
			name = one.string("_index")
		}
		id := one.string("_id")
		if name == "" || id == "" {
			missing := "index"
			if name != "" {
				missing = "id"
			}
			return answer{}, badRequest("action_request_validation_exception", "Validation Failed: 1: %s is missing for doc 0;", missing)
		}
		docs = append(docs, r.multiGetItem(name, id, one))
	}
	return answer{value: object{{"docs", docs}}}, nil
}

func (r *request) multiGetItem(name, id string, one object) object {
	ix, err := r.one(name, false)
	var d *document
	if err == nil {
		d, err = r.find(ix, id)
	}
	if err != nil {
		e := asAPIError(err)
		o := object{{"_index", name}}
		if r.c.details.types {
			o = append(o, member{"_type", nil})
		}
		return append(o, member{"_id", id}, member{"error", e.full(r.c.details.order)})
	}
	source := r.sourceParams(sourceFilter{})
	if one.has("_source") {
		source = newSourceFilter(one.get("_source"))
	}
	return r.documentObject(ix, id, d, source)
}

func deleteByQuery(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	if !body.has("query") && r.params["q"] == "" {
		return answer{}, badRequest("action_request_validation_exception", "Validation Failed: 1: query is missing;")
	}
	s := &searchSpec{query: body.object("query")}
	if err := s.override(r); err != nil {
		return answer{}, err
	}
	s.from, s.size = 0, 0
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	f, err := r.run(indices, s)
	if err != nil {
		return answer{}, err
	}
	for _, h := range f.hits {
		shard := h.ix.shards[h.shard]
		if shard.live[h.doc.id] == h.doc {
			r.change(shard, &document{id: h.doc.id})
			delete(shard.live, h.doc.id)
			shard.deleted++
		}
	}
	r.refreshed(indices...)
	n := len(f.hits)
	batches := 0
	if n > 0 {
		batches = 1
	}
	return answer{value: object{
		{"took", r.took()},
		{"timed_out", false},
		{"total", n},
		{"deleted", n},
		{"batches", batches},
		{"version_conflicts", 0},
		{"noops", 0},
		{"retries", object{{"bulk", 0}, {"search", 0}}},
		{"throttled_millis", 0},
		{"requests_per_second", -1.0},
		{"throttled_until_millis", 0},
		{"failures", []any{}},
	}}, nil
}

// size counts the fields of the mapping, so that a growth is noticed.
func (m *mapping) size() int {
	n := 0
	var walk func(map[string]*property)
	walk = func(properties map[string]*property) {
		n += len(properties)
		for _, p := range properties {
			walk(p.properties)
		}
	}
	walk(m.properties)
	return n
}
