package estest

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxWindow is the most hits that from and size may reach (index.max_result_window).
const maxWindow = 10_000

// A hit is a document found, with what orders it among the others.
type hit struct {
	ix    *index
	shard int
	at    int // place within the shard
	doc   *document
	score float32
	keys  []sortKey
}

type sortKey struct {
	missing bool
	v       value
	out     any
}

// A searchSpec is a search as asked for by body and parameters.
type searchSpec struct {
	query          object
	postFilter     object
	aggs           object
	from, size     int
	sorts          []sortSpec
	after          []any
	source         sourceFilter
	trackTotal     int // hits to count exactly: -1 for all, 0 for none
	totalAsInt     bool
	version        bool
	seqNo          bool
	queryString    string
	hasQueryString bool
	defaultAnd     bool
	defaultField   string
	scores         bool // track_scores
	minScore       float64
}

type sortSpec struct {
	field        string
	descending   bool
	missingFirst bool
	unmapped     bool
}

// sourceFilter says which part of _source goes into the answer.
type sourceFilter struct {
	off              bool
	include, exclude paths
}

func (f sourceFilter) apply(source []byte) (raw, bool) {
	if f.off {
		return nil, false
	}
	if len(f.include)+len(f.exclude) == 0 {
		return source, true
	}
	v, err := parseJSON(source)
	if err != nil {
		return source, true
	}
	if len(f.include) > 0 {
		kept, ok := f.include.keep(v)
		if !ok {
			kept = object{}
		}
		v = kept
	}
	return appendJSON(nil, f.exclude.drop(v), -1), true
}

func newSourceFilter(v any) sourceFilter {
	var f sourceFilter
	switch v := v.(type) {
	case bool:
		f.off = !v
	case string:
		f.include, _ = parsePaths(strings.Split(v, ","))
	case []any:
		f.include, _ = parsePaths(stringList(v))
	case object:
		for _, m := range v {
			list, _ := parsePaths(stringList(m.value))
			if m.key == "excludes" || m.key == "exclude" {
				f.exclude = list
			} else {
				f.include = list
			}
		}
	}
	return f
}

// sourceParams reads _source, _source_includes and _source_excludes from the URL, where they come before the body.
func (r *request) sourceParams(otherwise sourceFilter) sourceFilter {
	f := otherwise
	if v, ok := r.params["_source"]; ok {
		switch v {
		case "true", "":
			f = sourceFilter{}
		case "false":
			f = sourceFilter{off: true}
		default:
			f = newSourceFilter(v)
		}
	}
	if v, ok := r.params["_source_includes"]; ok {
		f.include, _ = parsePaths(strings.Split(v, ","))
	}
	if v, ok := r.params["_source_excludes"]; ok {
		f.exclude, _ = parsePaths(strings.Split(v, ","))
	}
	return f
}

// ignoredSearchKeys are members of a search body that do not change what this package finds.
var ignoredSearchKeys = []string{
	"timeout", "terminate_after", "stats", "profile", "explain", "stored_fields", "docvalue_fields", "script_fields", "highlight",
	"indices_boost", "fields", "rescore", "ext", "runtime_mappings", "search_pipeline",
}

func (r *request) searchSpec(body object) (*searchSpec, error) {
	s := &searchSpec{size: 10, trackTotal: maxWindow}
	for _, m := range body {
		var err error
		o, isObject := m.value.(object)
		switch m.key {
		case "query", "post_filter", "aggs", "aggregations":
			if !isObject {
				return nil, parsing("Unknown key for a %s in [%s].", tokenName(m.value), m.key)
			}
			switch m.key {
			case "query":
				s.query = o
			case "post_filter":
				s.postFilter = o
			default:
				s.aggs = o
			}
		case "from":
			s.from, err = wholeNumber(m.value)
		case "size":
			s.size, err = wholeNumber(m.value)
		case "sort":
			s.sorts, err = parseSort(m.value)
		case "search_after":
			s.after, _ = m.value.([]any)
		case "_source":
			s.source = newSourceFilter(m.value)
		case "track_total_hits":
			s.trackTotal, err = trackTotal(scalarText(m.value))
		case "version":
			s.version = m.value == true
		case "seq_no_primary_term":
			s.seqNo = m.value == true
		case "track_scores":
			s.scores = m.value == true
		case "min_score":
			s.minScore, err = strconv.ParseFloat(scalarText(m.value), 64)
		default:
			if !slices.Contains(ignoredSearchKeys, m.key) {
				return nil, parsing("Unknown key for a %s in [%s].", tokenName(m.value), m.key)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return s, s.override(r)
}

// override puts the URL's parameters over what the body says, as nodes do.
func (s *searchSpec) override(r *request) (err error) {
	if s.from, err = r.int("from", s.from); err != nil {
		return err
	}
	if s.size, err = r.int("size", s.size); err != nil {
		return err
	}
	if v, ok := r.params["sort"]; ok {
		var list []any
		for one := range strings.SplitSeq(v, ",") {
			if field, order, ok := strings.Cut(one, ":"); ok {
				list = append(list, object{{field, order}})
			} else {
				list = append(list, one)
			}
		}
		if s.sorts, err = parseSort(list); err != nil {
			return err
		}
	}
	s.source = r.sourceParams(s.source)
	if v, ok := r.params["track_total_hits"]; ok {
		if s.trackTotal, err = trackTotal(v); err != nil {
			return err
		}
	}
	s.queryString, s.hasQueryString = r.params["q"]
	s.defaultAnd = strings.EqualFold(r.params["default_operator"], "and")
	s.defaultField = r.params["df"]
	s.totalAsInt = r.flag("rest_total_hits_as_int")
	if s.totalAsInt {
		s.trackTotal = -1
	}
	s.version = s.version || r.flag("version")
	s.seqNo = s.seqNo || r.flag("seq_no_primary_term")
	if s.size == -1 && r.c.o.Flavor == Elasticsearch7 { // deprecated there, and refused since
		s.size = 10
	}
	if s.size < 0 || s.from < 0 {
		name, n := "size", s.size
		if s.from < 0 {
			name, n = "from", s.from
		}
		return illegalArgument("[%s] parameter cannot be negative, found [%d]", name, n)
	}
	return nil
}

func wholeNumber(v any) (int, error) {
	text := scalarText(v)
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, badRequest("number_format_exception", "For input string: %q", text)
	}
	return int(f), nil
}

func trackTotal(text string) (int, error) {
	switch text {
	case "true", "":
		return -1, nil
	case "false":
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, illegalArgument("Failed to parse value [%s] as only [true] or [false] are allowed.", text)
	}
	return n, nil
}

func parseSort(v any) ([]sortSpec, error) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var sorts []sortSpec
	for _, e := range list {
		switch e := e.(type) {
		case string:
			sorts = append(sorts, sortSpec{field: e, descending: e == "_score"})
		case object:
			for _, m := range e {
				s := sortSpec{field: m.key, descending: m.key == "_score"}
				order := scalarText(m.value)
				if o, ok := m.value.(object); ok {
					order = o.string("order")
					s.missingFirst = o.string("missing") == "_first"
					s.unmapped = o.has("unmapped_type")
				}
				switch order {
				case "asc":
					s.descending = false
				case "desc":
					s.descending = true
				case "":
				default:
					return nil, illegalArgument("Unknown SortOrder [%s]", order)
				}
				sorts = append(sorts, s)
			}
		default:
			return nil, illegalArgument("malformed sort format, within the sort array, an object, or an actual string are allowed")
		}
	}
	return sorts, nil
}

// compile makes the matcher of a search for one index, the user's filter included.
func (r *request) compile(ix *index, s *searchSpec) (matcher, error) {
	c := compiler{ix.mapping, r.now}
	m := matcher(matchAll)
	var err error
	switch {
	case s.hasQueryString:
		var fields []string
		if s.defaultField != "" {
			fields = []string{s.defaultField}
		}
		m, err = c.parseQueryString(s.queryString, fields, s.defaultAnd)
	case s.query != nil:
		m, err = c.query(s.query)
	}
	if err != nil {
		return nil, err
	}
	filter, err := r.userFilter(ix)
	if err != nil || filter == nil {
		return m, err
	}
	return func(d *document) (float32, bool) {
		if _, ok := filter(d); !ok {
			return 0, false
		}
		return m(d)
	}, nil
}

// A found is what a search found before it is cut to a page.
type found struct {
	hits     []hit // ordered, after post_filter
	matched  []hit // for aggregations
	shards   int
	failures []any
	failed   int
}

// run searches the indices. An error of the shards of some indices makes their shards fail; one of all indices, or in the
// query itself, is returned.
func (r *request) run(indices []*index, s *searchSpec) (*found, error) {
	f := &found{}
	if _, err := r.compile(&index{mapping: newMapping()}, s); err != nil && !isShardError(err) {
		return nil, err
	}
	var last error
	for _, ix := range indices {
		ix.searched(r.now)
		f.shards += len(ix.shards)
		if err := r.runIndex(f, ix, s); err != nil {
			if !isShardError(err) {
				return nil, err
			}
			last = err
			f.failed += len(ix.shards)
			f.failures = append(f.failures, r.shardFailure(ix, err))
		}
	}
	if f.failed > 0 && f.failed == f.shards {
		return nil, r.allShardsFailed(f.failures, asAPIError(last))
	}
	if n := min(r.fault.FailedShards, f.shards); n > 0 && len(indices) > 0 {
		f.failed = max(f.failed, n)
		f.failures = append(f.failures, r.shardFailure(indices[0], &apiError{
			status: 500, typ: "node_disconnected_exception", reason: "disconnected",
		}))
	}
	slices.SortFunc(f.hits, s.compare)
	return f, nil
}

func isShardError(err error) bool {
	return asAPIError(err).shard
}

func (r *request) runIndex(f *found, ix *index, s *searchSpec) error {
	m, err := r.compile(ix, s)
	if err != nil {
		return err
	}
	var post matcher
	if s.postFilter != nil {
		if post, err = (compiler{ix.mapping, r.now}).query(s.postFilter); err != nil {
			return err
		}
	}
	if s.from+s.size > maxWindow {
		e := illegalArgument("Result window is too large, from + size must be less than or equal to: [%d] but was [%d]. See the scroll api for a more efficient way to request large data sets. This limit can be set by changing the [index.max_result_window] index level setting.", maxWindow, s.from+s.size)
		e.shard = true
		return e
	}
	keys, err := s.sortFields(ix)
	if err != nil {
		return err
	}
	for number, shard := range ix.shards {
		for at, d := range shard.visible {
			score, ok := m(d)
			if !ok || float64(score) < s.minScore {
				continue
			}
			h := hit{ix: ix, shard: number, at: at, doc: d, score: score}
			if s.aggs != nil {
				f.matched = append(f.matched, h)
			}
			if post != nil {
				if _, ok := post(d); !ok {
					continue
				}
			}
			h.keys = keys(d, score, at)
			f.hits = append(f.hits, h)
		}
	}
	return nil
}

// sortFields returns a function that works out what a document of the index is sorted by.
func (s *searchSpec) sortFields(ix *index) (func(d *document, score float32, at int) []sortKey, error) {
	fields := make([]*property, len(s.sorts))
	for i, sort := range s.sorts {
		if strings.HasPrefix(sort.field, "_") {
			continue
		}
		p := ix.mapping.field(sort.field)
		if p == nil && !sort.unmapped {
			e := badRequest("query_shard_exception", "No mapping found for [%s] in order to sort on", sort.field)
			e.meta, e.shard = object{{"index_uuid", ix.uuid}, {"index", ix.name}}, true
			return nil, e
		}
		if p != nil && p.isText() {
			return nil, textField(sort.field)
		}
		fields[i] = p
	}
	return func(d *document, score float32, at int) []sortKey {
		keys := make([]sortKey, len(s.sorts))
		for i, sort := range s.sorts {
			switch sort.field {
			case "_score":
				keys[i] = sortKey{v: value{f: float64(score)}, out: score}
			case "_doc", "_shard_doc":
				keys[i] = sortKey{v: value{f: float64(at)}, out: at}
			case "_id":
				keys[i] = sortKey{v: value{s: d.id}, out: d.id}
			default:
				keys[i] = sort.key(fields[i], d.values[sort.field])
			}
		}
		return keys
	}, nil
}

// key takes the smallest of a field's values to sort upwards, and the greatest to sort downwards. A document without one
// shows the number that puts it at the end where it belongs.
func (s sortSpec) key(p *property, values []value) sortKey {
	if p == nil {
		return sortKey{missing: true}
	}
	if len(values) == 0 {
		low := s.descending != s.missingFirst
		switch {
		case p.isWhole() && low:
			return sortKey{missing: true, out: int64(math.MinInt64)}
		case p.isWhole():
			return sortKey{missing: true, out: int64(math.MaxInt64)}
		case p.isFloat() && low:
			return sortKey{missing: true, out: "-Infinity"}
		case p.isFloat():
			return sortKey{missing: true, out: "Infinity"}
		}
		return sortKey{missing: true}
	}
	v := slices.MinFunc(values, p.compareValues)
	if s.descending {
		v = slices.MaxFunc(values, p.compareValues)
	}
	switch {
	case p.isWhole():
		return sortKey{v: v, out: v.i}
	case p.isFloat():
		return sortKey{v: v, out: v.f}
	}
	return sortKey{v: v, out: v.s}
}

func (k sortKey) compare(o sortKey) int {
	if a, ok := k.out.(int64); ok {
		if b, ok := o.out.(int64); ok {
			return cmp.Compare(a, b)
		}
	}
	return cmp.Or(cmp.Compare(k.v.f, o.v.f), cmp.Compare(k.v.s, o.v.s))
}

// compare orders hits: by the sort fields, or by score; then by shard and by age, as nodes do. No two hits are equal.
func (s *searchSpec) compare(a, b hit) int {
	for i, sort := range s.sorts {
		if order := sort.compare(a.keys[i], b.keys[i]); order != 0 {
			return order
		}
	}
	if len(s.sorts) == 0 {
		if order := cmp.Compare(b.score, a.score); order != 0 {
			return order
		}
	}
	return cmp.Or(cmp.Compare(a.ix.name, b.ix.name), cmp.Compare(a.shard, b.shard), cmp.Compare(a.at, b.at))
}

func (s sortSpec) compare(a, b sortKey) int {
	if a.missing != b.missing {
		if a.missing == s.missingFirst {
			return -1
		}
		return 1
	}
	if a.missing {
		return 0
	}
	if s.descending {
		return b.compare(a)
	}
	return a.compare(b)
}

// skipTo drops the hits up to the one that search_after names.
func (s *searchSpec) skipTo(hits []hit) []hit {
	if len(s.after) != len(s.sorts) || len(s.after) == 0 {
		return hits
	}
	for at, h := range hits {
		for i, sort := range s.sorts {
			want := sortKey{missing: s.after[i] == nil}
			switch v := s.after[i].(type) {
			case string:
				want.v.s, want.out = v, v
				want.missing = strings.HasSuffix(v, "Infinity")
			case json.Number:
				want.v.f, _ = v.Float64()
				if n, err := v.Int64(); err == nil {
					want.out = n
					want.missing = n == math.MaxInt64 || n == math.MinInt64
				}
			}
			order := sort.compare(h.keys[i], want)
			if order > 0 {
				return hits[at:]
			}
			if order < 0 {
				break
			}
		}
	}
	return nil
}

func (r *request) shardFailure(ix *index, err error) object {
	reason := asAPIError(err)
	if reason.typ == "query_shard_exception" && reason.meta == nil {
		with := *reason
		with.meta = object{{"index_uuid", ix.uuid}, {"index", ix.name}}
		reason = &with
	}
	return object{{"shard", 0}, {"index", ix.name}, {"node", r.node.id}, {"reason", reason.object(r.c.details.order)}}
}

// allShardsFailed wraps the error of the shards. As in nodes, one of Java's own exceptions is told once more as the cause.
func (r *request) allShardsFailed(failures []any, last *apiError) error {
	root := *last
	if root.typ == "query_shard_exception" && root.meta == nil {
		reason := failures[0].(object).object("reason")
		root.meta = object{{"index_uuid", reason.get("index_uuid")}, {"index", reason.get("index")}}
	}
	e := &apiError{
		status: root.status, typ: "search_phase_execution_exception", reason: "all shards failed", root: &root,
		meta: object{{"phase", "query"}, {"grouped", true}, {"failed_shards", failures}},
	}
	switch root.typ {
	case "illegal_argument_exception":
		inner := apiError{typ: root.typ, reason: root.reason}
		e.cause = &apiError{typ: root.typ, reason: root.reason, cause: &inner}
	case "search_context_missing_exception":
		e.cause = &apiError{typ: root.typ, reason: root.reason}
	}
	return e
}

func (f *found) shardsObject() object {
	o := object{{"total", f.shards}, {"successful", f.shards - f.failed}, {"skipped", 0}, {"failed", f.failed}}
	if len(f.failures) > 0 {
		o = append(o, member{"failures", f.failures})
	}
	return o
}

func search(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	o, err := r.search(r.vars["index"], body)
	return answer{value: o}, err
}

func (r *request) search(expr string, body object) (object, error) {
	s, err := r.searchSpec(body)
	if err != nil {
		return nil, err
	}
	keep, scrolling := r.params["scroll"]
	if scrolling && s.from > 0 {
		return nil, badRequest("action_request_validation_exception", "Validation Failed: 1: using [from] is not allowed in a scroll context;")
	}
	if scrolling && s.size == 0 {
		return nil, badRequest("action_request_validation_exception", "Validation Failed: 1: [size] cannot be [0] in a scroll context;")
	}
	indices, err := r.resolve(expr)
	if err != nil {
		return nil, err
	}
	f, err := r.run(indices, s)
	if err != nil {
		return nil, err
	}
	var o object
	if scrolling {
		id, err := r.openScroll(keep, s, f)
		if err != nil {
			return nil, err
		}
		o = object{{"_scroll_id", id}}
	}
	hits := s.skipTo(f.hits)
	hits = hits[min(s.from, len(hits)):]
	hits = hits[:min(s.size, len(hits))]
	o = append(o, r.searchAnswer(s, f, hits)...)
	if s.aggs != nil {
		results, err := r.aggregate(s.aggs, f.matched)
		if err != nil {
			if isShardError(err) && len(indices) > 0 {
				return nil, r.allShardsFailed([]any{r.shardFailure(indices[0], err)}, asAPIError(err))
			}
			return nil, err
		}
		if len(indices) > 0 {
			o = append(o, member{"aggregations", results})
		}
	}
	return o, nil
}

// searchAnswer is the answer of a search or a scroll without its aggregations.
func (r *request) searchAnswer(s *searchSpec, f *found, page []hit) object {
	o := object{{"took", r.took()}, {"timed_out", r.fault.TimedOut}}
	if r.earlyTermination(s) {
		o = append(o, member{"terminated_early", true})
	}
	return append(o, member{"_shards", f.shardsObject()}, member{"hits", r.hitsObject(s, f, page)})
}

// took counts from the arrival of the call, so that a delay by a fault shows in it.
func (r *request) took() int64 {
	return max(0, (r.c.clock.Now().UnixNano()-r.started)/int64(time.Millisecond))
}

// earlyTermination is a peculiarity of OpenSearch 3.9: it says terminated_early for every complete answer of size 0 with
// aggregations and no query.
func (r *request) earlyTermination(s *searchSpec) bool {
	if r.c.o.Flavor != OpenSearch3 || s.size > 0 || s.aggs == nil || s.hasQueryString {
		return false
	}
	return s.query == nil || s.query.has("match_all")
}

func (r *request) hitsObject(s *searchSpec, f *found, page []hit) object {
	o := object{}
	total := len(f.hits)
	switch {
	case s.totalAsInt:
		o = append(o, member{"total", total})
	case s.trackTotal != 0:
		relation := "eq"
		if s.trackTotal > 0 && total > s.trackTotal {
			total, relation = s.trackTotal, "gte"
		}
		o = append(o, member{"total", object{{"value", total}, {"relation", relation}}})
	}
	scored := len(s.sorts) == 0 || s.scores
	var best any
	switch {
	case f.shards == 0:
		best = float32(0)
	case scored && s.size > 0 && len(f.hits) > 0:
		best = f.hits[0].score
	}
	list := make([]any, len(page))
	for i, h := range page {
		list[i] = r.hitObject(s, h, scored)
	}
	return append(o, member{"max_score", best}, member{"hits", list})
}

func (r *request) hitObject(s *searchSpec, h hit, scored bool) object {
	o := r.identity(h.ix, h.doc.id)
	if s.version {
		o = append(o, member{"_version", h.doc.version})
	}
	if s.seqNo {
		o = append(o, member{"_seq_no", h.doc.seqNo}, member{"_primary_term", 1})
	}
	if scored || slices.ContainsFunc(s.sorts, func(k sortSpec) bool { return k.field == "_score" }) {
		o = append(o, member{"_score", h.score})
	} else {
		o = append(o, member{"_score", nil})
	}
	if source, ok := s.source.apply(h.doc.source); ok {
		o = append(o, member{"_source", source})
	}
	if len(s.sorts) > 0 {
		list := make([]any, len(h.keys))
		for i, k := range h.keys {
			list[i] = k.out
		}
		o = append(o, member{"sort", list})
	}
	return o
}

// identity is how every answer about a document begins.
func (r *request) identity(ix *index, id string) object {
	if r.c.details.types {
		return object{{"_index", ix.name}, {"_type", "_doc"}, {"_id", id}}
	}
	return object{{"_index", ix.name}, {"_id", id}}
}

func count(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	for _, m := range body {
		if m.key != "query" {
			return answer{}, parsing("request does not support [%s]", m.key)
		}
	}
	s := &searchSpec{query: body.object("query")}
	if err := s.override(r); err != nil {
		return answer{}, err
	}
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	f, err := r.run(indices, s)
	if err != nil {
		return answer{}, err
	}
	return answer{value: object{{"count", len(f.hits)}, {"_shards", f.shardsObject()}}}, nil
}
