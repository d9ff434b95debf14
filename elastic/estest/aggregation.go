package estest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBuckets is the most buckets that an answer may have (search.max_buckets).
const maxBuckets = 65_535

func textField(name string) error {
	e := illegalArgument("Text fields are not optimised for operations that require per-document field data like aggregations and sorting, so these operations are disabled by default. Please use a keyword field instead. Alternatively, set fielddata=true on [%s] in order to load field data by uninverting the inverted index. Note that this can use significant memory.", name)
	e.shard = true
	return e
}

// aggregate works out the aggregations over the hits, in the order in which they were asked for.
func (r *request) aggregate(aggs object, hits []hit) (object, error) {
	out := object{}
	for _, m := range aggs {
		def, ok := m.value.(object)
		if !ok {
			return nil, parsing("Found [%s] under [%s], expected [START_OBJECT]", tokenName(m.value), m.key)
		}
		var kind string
		var body, sub object
		for _, part := range def {
			switch part.key {
			case "aggs", "aggregations":
				sub, _ = part.value.(object)
			case "meta":
			default:
				kind = part.key
				body, _ = part.value.(object)
			}
		}
		result, err := r.aggregation(m.key, kind, body, sub, hits)
		if err != nil {
			return nil, err
		}
		if meta := def.object("meta"); meta != nil {
			result = append(object{{"meta", meta}}, result...)
		}
		out = append(out, member{m.key, result})
	}
	return out, nil
}

func (r *request) aggregation(name, kind string, body, sub object, hits []hit) (object, error) {
	switch kind {
	case "terms":
		return r.termsAggregation(body, sub, hits)
	case "date_histogram":
		return r.dateHistogram(body, sub, hits)
	case "filter":
		kept, err := r.filterHits(body, hits)
		if err != nil {
			return nil, err
		}
		return r.bucket(object{}, sub, kept)
	case "avg", "sum", "min", "max", "stats", "value_count", "cardinality":
		return r.metric(kind, body, hits)
	case "percentiles":
		return percentiles(body, hits)
	case "":
		return nil, parsing("Missing definition for aggregation [%s]", name)
	}
	e := parsing("Unknown aggregation type [%s]", kind)
	e.cause = badRequest("named_object_not_found_exception", "[1:1] unknown field [%s]", kind)
	return nil, e
}

// bucket appends doc_count and the sub-aggregations to the key of a bucket.
func (r *request) bucket(key, sub object, hits []hit) (object, error) {
	b := append(key, member{"doc_count", len(hits)})
	results, err := r.aggregate(sub, hits)
	return append(b, results...), err
}

func (r *request) filterHits(query object, hits []hit) ([]hit, error) {
	matchers := map[*index]matcher{}
	var kept []hit
	for _, h := range hits {
		m := matchers[h.ix]
		if m == nil {
			var err error
			if m, err = (compiler{h.ix.mapping, r.now}).query(query); err != nil {
				return nil, err
			}
			matchers[h.ix] = m
		}
		if _, ok := m(h.doc); ok {
			kept = append(kept, h)
		}
	}
	return kept, nil
}

// fieldOf returns the field that an aggregation is about, nil if no index of the hits has it.
func fieldOf(field, kind string, hits []hit, numeric bool) (*property, error) {
	if field == "" {
		return nil, illegalArgument("Required one of fields [field, script], but none were specified. ")
	}
	var last *index
	var p *property
	for _, h := range hits {
		if h.ix == last {
			continue
		}
		last = h.ix
		if found := h.ix.mapping.field(field); found != nil {
			p = found
		}
	}
	switch {
	case p == nil:
		return nil, nil
	case p.isText():
		return nil, textField(field)
	case numeric && !p.isNumber() && !p.isDate() && p.typ != "boolean":
		e := illegalArgument("Field [%s] of type [%s] is not supported for aggregation [%s]", field, p.typ, kind)
		e.shard = true
		return nil, e
	}
	return p, nil
}

func (r *request) metric(kind string, body object, hits []hit) (object, error) {
	field := body.string("field")
	p, err := fieldOf(field, kind, hits, kind != "value_count" && kind != "cardinality")
	if err != nil {
		return nil, err
	}
	count := 0
	sum := 0.0
	var low, high any
	distinct := map[groupKey]bool{}
	for _, h := range hits {
		for _, v := range h.doc.values[field] {
			count++
			sum += v.f
			if low == nil || v.f < low.(float64) {
				low = v.f
			}
			if high == nil || v.f > high.(float64) {
				high = v.f
			}
			distinct[groupKey{v.s, v.i, v.f}] = true
		}
	}
	var avg any
	if count > 0 {
		avg = sum / float64(count)
	}
	switch kind {
	case "value_count":
		return object{{"value", count}}, nil
	case "cardinality":
		return object{{"value", len(distinct)}}, nil
	case "stats":
		return object{{"count", count}, {"min", low}, {"max", high}, {"avg", avg}, {"sum", sum}}, nil
	}
	var result any = sum
	switch kind {
	case "avg":
		result = avg
	case "min":
		result = low
	case "max":
		result = high
	}
	o := object{{"value", result}}
	if f, ok := result.(float64); ok && p != nil && p.isDate() {
		o = append(o, member{"value_as_string", formatDate(int64(f), cmp.Or(body.string("format"), p.options.string("format")), time.UTC)})
	}
	return o, nil
}

// percentiles computes them exactly. Nodes approximate them with a digest, which is exact for few values.
func percentiles(body object, hits []hit) (object, error) {
	field := body.string("field")
	if _, err := fieldOf(field, "percentiles", hits, true); err != nil {
		return nil, err
	}
	percents := []float64{1, 5, 25, 50, 75, 95, 99}
	if body.has("percents") {
		list, _ := body.get("percents").([]any)
		percents = percents[:0]
		for _, v := range list {
			p, err := strconv.ParseFloat(fmt.Sprint(v), 64)
			if err != nil || p < 0 || p > 100 {
				return nil, illegalArgument("percent must be in [0,100], got [%v]: [percents]", v)
			}
			percents = append(percents, p)
		}
	}
	var values []float64
	for _, h := range hits {
		for _, v := range h.doc.values[field] {
			values = append(values, v.f)
		}
	}
	slices.Sort(values)
	result := object{}
	for _, p := range percents {
		var value any
		if n := len(values); n > 0 {
			at := p / 100 * float64(n-1)
			low := int(at)
			value = values[low] + (at-float64(low))*(values[min(low+1, n-1)]-values[low])
		}
		key := strconv.FormatFloat(p, 'f', -1, 64)
		if !strings.Contains(key, ".") {
			key += ".0"
		}
		result = append(result, member{key, value})
	}
	return object{{"values", result}}, nil
}

// groupKey is the comparable part of a value.
type groupKey struct {
	s string
	i int64
	f float64
}

// A group is a bucket in the making.
type group struct {
	key  value
	hits []hit
}

// groups sorts hits into buckets by the key that each value of the field has. A hit is in a bucket once.
func groups(field string, hits []hit, key func(value) value) []*group {
	byKey := map[groupKey]*group{}
	var list []*group
	for at := range hits {
		for _, v := range hits[at].doc.values[field] {
			k := key(v)
			id := groupKey{k.s, k.i, k.f}
			g := byKey[id]
			if g == nil {
				g = &group{key: k}
				byKey[id] = g
				list = append(list, g)
			}
			if n := len(g.hits); n == 0 || g.hits[n-1].doc != hits[at].doc {
				g.hits = append(g.hits, hits[at])
			}
		}
	}
	return list
}

func (r *request) termsAggregation(body, sub object, hits []hit) (object, error) {
	field := body.string("field")
	p, err := fieldOf(field, "terms", hits, false)
	if err != nil {
		return nil, err
	}
	size := 10
	if body.has("size") {
		if size, err = wholeNumber(body.get("size")); err != nil {
			return nil, err
		}
		if size <= 0 {
			return nil, illegalArgument("[size] must be greater than 0. Found [%d] in [terms]", size)
		}
	}
	list := groups(field, hits, func(v value) value { return value{s: v.s, i: v.i, f: v.f} })
	if p != nil {
		if err := r.orderGroups(list, p, body.get("order"), sub); err != nil {
			return nil, err
		}
	}
	if n, err := wholeNumber(body.get("min_doc_count")); err == nil && body.has("min_doc_count") {
		list = slices.DeleteFunc(list, func(g *group) bool { return len(g.hits) < n })
	}
	buckets := []any{}
	other := 0
	for i, g := range list {
		if i >= size {
			other += len(g.hits)
			continue
		}
		b, err := r.bucket(p.bucketKey(g.key, body.string("format")), sub, g.hits)
		if err != nil {
			return nil, err
		}
		buckets = append(buckets, b)
	}
	return object{{"doc_count_error_upper_bound", 0}, {"sum_other_doc_count", other}, {"buckets", buckets}}, nil
}

func (p *property) bucketKey(v value, format string) object {
	switch {
	case p.typ == "boolean":
		return object{{"key", v.i}, {"key_as_string", strconv.FormatBool(v.i == 1)}}
	case p.isDate():
		return object{{"key", v.i}, {"key_as_string", formatDate(v.i, cmp.Or(format, p.options.string("format")), time.UTC)}}
	case p.isWhole():
		return object{{"key", v.i}}
	case p.isFloat():
		return object{{"key", v.f}}
	}
	return object{{"key", v.s}}
}

// orderGroups sorts by the order asked for (_count, _key, or a metric below the bucket), and then by the key.
func (r *request) orderGroups(list []*group, p *property, order any, sub object) error {
	type rule struct {
		by         string
		descending bool
	}
	rules := []rule{{"_count", true}}
	if order != nil {
		rules = nil
		orders, ok := order.([]any)
		if !ok {
			orders = []any{order}
		}
		for _, e := range orders {
			o, _ := e.(object)
			for _, m := range o {
				rules = append(rules, rule{m.key, scalarText(m.value) == "desc"})
			}
		}
	}
	metrics := map[*group]map[string]float64{}
	for _, rule := range rules {
		if strings.HasPrefix(rule.by, "_") {
			continue
		}
		name, part, _ := strings.Cut(rule.by, ".")
		for _, g := range list {
			results, err := r.aggregate(object{{name, sub.get(name)}}, g.hits)
			if err != nil {
				return err
			}
			result := results.object(name)
			f, _ := result.get(cmp.Or(part, "value")).(float64)
			if n, ok := result.get(cmp.Or(part, "value")).(int); ok {
				f = float64(n)
			}
			if metrics[g] == nil {
				metrics[g] = map[string]float64{}
			}
			metrics[g][rule.by] = f
		}
	}
	slices.SortStableFunc(list, func(a, b *group) int {
		for _, rule := range rules {
			var c int
			switch rule.by {
			case "_count":
				c = cmp.Compare(len(a.hits), len(b.hits))
			case "_key", "_term":
				c = p.compareValues(a.key, b.key)
			default:
				c = cmp.Compare(metrics[a][rule.by], metrics[b][rule.by])
			}
			if rule.descending {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return p.compareValues(a.key, b.key)
	})
	return nil
}

// calendarUnits maps the names of calendar intervals to units of date math; q is a quarter.
var calendarUnits = map[string]byte{
	"minute": 'm', "1m": 'm', "hour": 'h', "1h": 'h', "day": 'd', "1d": 'd', "week": 'w', "1w": 'w', "month": 'M', "1M": 'M',
	"quarter": 'q', "1q": 'q', "year": 'y', "1y": 'y', "second": 's', "1s": 's',
}

// A grid puts instants into the intervals of a date histogram.
type grid struct {
	zone *time.Location
	unit byte          // calendar unit, or
	step time.Duration // fixed interval
}

func newGrid(body object) (g grid, err error) {
	if g.zone, err = parseZone(body.string("time_zone")); err != nil {
		return g, err
	}
	calendar, fixed := body.string("calendar_interval"), body.string("fixed_interval")
	if old := body.string("interval"); old != "" { // before Elasticsearch 8 and still in OpenSearch
		if _, ok := calendarUnits[old]; ok {
			calendar = old
		} else {
			fixed = old
		}
	}
	if calendar != "" {
		g.unit = calendarUnits[calendar]
		if g.unit == 0 {
			return g, badRequest("x_content_parse_exception", "[1:1] [date_histogram] failed to parse field [calendar_interval]: The supplied interval [%s] could not be parsed as a calendar interval.", calendar)
		}
		return g, nil
	}
	step, ok := parseTimeValue(fixed)
	if !ok || step < time.Millisecond {
		return g, badRequest("x_content_parse_exception", "[1:1] [date_histogram] failed to parse field [fixed_interval]")
	}
	g.step = step
	return g, nil
}

// floor returns the start of the interval that ms lies in. Fixed intervals count from 1970 in local time.
func (g grid) floor(ms int64) int64 {
	t := time.UnixMilli(ms).In(g.zone)
	if g.unit != 0 {
		return startOf(t, g.unit).UnixMilli()
	}
	_, offset := t.Zone()
	local := ms + int64(offset)*1000
	step := g.step.Milliseconds()
	rest := local % step
	if rest < 0 {
		rest += step
	}
	return ms - rest
}

func (g grid) next(ms int64) int64 {
	if g.unit == 0 {
		return ms + g.step.Milliseconds()
	}
	t := time.UnixMilli(ms).In(g.zone)
	if g.unit == 'q' {
		return addMonths(t, 3).UnixMilli()
	}
	return addUnits(t, g.unit, 1).UnixMilli()
}

func (r *request) dateHistogram(body, sub object, hits []hit) (object, error) {
	field := body.string("field")
	p, err := fieldOf(field, "date_histogram", hits, true)
	if err != nil {
		return nil, err
	}
	g, err := newGrid(body)
	if err != nil {
		return nil, err
	}
	minimum := 0
	if body.has("min_doc_count") {
		if minimum, err = wholeNumber(body.get("min_doc_count")); err != nil {
			return nil, err
		}
	}
	byStart := map[int64]*group{}
	var starts []int64
	for _, one := range groups(field, hits, func(v value) value { return value{i: g.floor(v.i)} }) {
		byStart[one.key.i] = one
		starts = append(starts, one.key.i)
	}
	if bounds := body.object("extended_bounds"); bounds != nil && minimum == 0 {
		for _, end := range []string{"min", "max"} {
			if !bounds.has(end) {
				continue
			}
			ms, err := parseDate(scalarText(bounds.get(end)), body.string("format"), r.now, g.zone, false)
			if err != nil {
				return nil, err
			}
			starts = append(starts, g.floor(ms))
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	if minimum == 0 && len(starts) > 1 {
		if starts, err = g.fill(starts[0], starts[len(starts)-1]); err != nil {
			return nil, err
		}
	}
	format := body.string("format")
	if p != nil {
		format = cmp.Or(format, p.options.string("format"))
	}
	buckets := []any{}
	for _, start := range starts {
		var inside []hit
		if one := byStart[start]; one != nil {
			inside = one.hits
		}
		if len(inside) < minimum {
			continue
		}
		key := object{{"key_as_string", formatDate(start, format, g.zone)}, {"key", start}}
		b, err := r.bucket(key, sub, inside)
		if err != nil {
			return nil, err
		}
		buckets = append(buckets, b)
	}
	if body.object("order").string("_key") == "desc" {
		slices.Reverse(buckets)
	}
	return object{{"buckets", buckets}}, nil
}

func (g grid) fill(from, to int64) ([]int64, error) {
	var starts []int64
	for at := from; at <= to; at = g.next(at) {
		if len(starts) >= maxBuckets {
			e := &apiError{
				status: 400, typ: "too_many_buckets_exception", shard: true, meta: object{{"max_buckets", maxBuckets}},
				reason: "Trying to create too many buckets. Must be less than or equal to: [" + strconv.Itoa(maxBuckets) + "].",
			}
			return nil, e
		}
		starts = append(starts, at)
	}
	return starts, nil
}
