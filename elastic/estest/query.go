package estest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A matcher tells whether a document matches, and how well. Scores are not those of a real node: a clause that is in
// scoring context counts 1.
type matcher func(d *document) (score float32, ok bool)

// A compiler turns queries into matchers for one index.
type compiler struct {
	mapping *mapping
	now     time.Time
}

func matchAll(*document) (float32, bool)  { return 1, true }
func matchNone(*document) (float32, bool) { return 0, false }

// matchWhen is a matcher of score 1.
func matchWhen(ok func(d *document) bool) matcher {
	return func(d *document) (float32, bool) {
		if ok(d) {
			return 1, true
		}
		return 0, false
	}
}

// query compiles a query object with its one member.
func (c compiler) query(q object) (matcher, error) {
	if len(q) == 0 {
		return nil, illegalArgument("query malformed, empty clause found")
	}
	name := q[0].key
	body, isObject := q[0].value.(object)
	compile := map[string]func(object) (matcher, error){
		"match_all":           c.matchAll,
		"match_none":          func(object) (matcher, error) { return matchNone, nil },
		"term":                c.term,
		"terms":               c.terms,
		"match":               func(o object) (matcher, error) { return c.match(o, false) },
		"match_phrase":        func(o object) (matcher, error) { return c.match(o, true) },
		"range":               c.rangeQuery,
		"exists":              c.exists,
		"ids":                 c.ids,
		"prefix":              func(o object) (matcher, error) { return c.pattern("prefix", o) },
		"wildcard":            func(o object) (matcher, error) { return c.pattern("wildcard", o) },
		"bool":                c.boolQuery,
		"constant_score":      c.constantScore,
		"query_string":        c.queryString,
		"simple_query_string": c.queryString,
	}[name]
	if compile == nil {
		e := parsing("unknown query [%s]", name)
		e.cause = badRequest("named_object_not_found_exception", "[1:1] unknown field [%s]", name)
		return nil, e
	}
	if !isObject {
		return nil, parsing("[%s] query malformed, no start_object after query name", name)
	}
	if len(q) > 1 {
		return nil, parsing("[%s] malformed query, expected [END_OBJECT] but found [FIELD_NAME]", name)
	}
	return compile(body)
}

func (c compiler) matchAll(o object) (matcher, error) {
	for _, m := range o {
		if m.key != "boost" && m.key != "_name" {
			return nil, parsing("[match_all] unknown field [%s]", m.key)
		}
	}
	return matchAll, nil
}

// field reads {"FIELD": value} or {"FIELD": {"<inner>": value, …}}.
func (c compiler) field(query string, o object, inner ...string) (field string, v any, options object, err error) {
	for _, m := range o {
		if m.key == "boost" || m.key == "_name" {
			continue
		}
		if field != "" {
			return "", nil, nil, parsing("[%s] query doesn't support multiple fields, found [%s] and [%s]", query, field, m.key)
		}
		field, v = m.key, m.value
	}
	if field == "" {
		return "", nil, nil, illegalArgument("fieldName must not be null or empty")
	}
	if options, _ = v.(object); options != nil {
		v = nil
		for _, name := range inner {
			if options.has(name) {
				v = options.get(name)
			}
		}
	}
	if _, list := v.([]any); list {
		return "", nil, nil, parsing("[%s] query does not support [%s]", query, field)
	}
	return field, v, options, nil
}

func (c compiler) term(o object) (matcher, error) {
	field, v, options, err := c.field("term", o, "value")
	if err != nil {
		return nil, err
	}
	return c.equals(field, v, options.string("case_insensitive") == "true")
}

// equals matches documents that have the value in the field, a word of it in texts.
func (c compiler) equals(field string, v any, fold bool) (matcher, error) {
	if field == "_id" {
		return c.hasID([]string{scalarText(v)}), nil
	}
	p := c.mapping.field(field)
	if p == nil || v == nil {
		return matchNone, nil
	}
	if p.isDate() {
		return c.between(field, p, object{{"gte", v}, {"lte", v}})
	}
	want, err := p.value(v, c.now, false)
	if err != nil {
		if p.isWhole() && p.isNumber() { // a fraction or a number out of range is on no document, a word is an error
			if _, ferr := strconv.ParseFloat(scalarText(v), 64); ferr == nil {
				return matchNone, nil
			}
		}
		return nil, &apiError{
			status: 400, typ: "query_shard_exception", reason: "failed to create query: " + asAPIError(err).reason,
			cause: asAPIError(err), shard: true,
		}
	}
	if n, ok := v.(json.Number); ok && p.isWhole() {
		if f, _ := n.Float64(); f != want.f && want.f == float64(int64(f)) && f != float64(int64(f)) {
			return matchNone, nil
		}
	}
	return matchWhen(func(d *document) bool {
		return slices.ContainsFunc(d.values[field], func(have value) bool {
			switch {
			case p.isText():
				return slices.Contains(have.tokens, want.s)
			case fold:
				return strings.EqualFold(have.s, want.s)
			}
			return p.compareValues(have, want) == 0
		})
	}), nil
}

func (c compiler) terms(o object) (matcher, error) {
	var some []matcher
	for _, m := range o {
		if m.key == "boost" || m.key == "_name" {
			continue
		}
		list, ok := m.value.([]any)
		if !ok {
			return nil, parsing("[terms] query does not support [%s]", m.key)
		}
		for _, v := range list {
			one, err := c.equals(m.key, v, false)
			if err != nil {
				return nil, err
			}
			some = append(some, one)
		}
	}
	return matchWhen(func(d *document) bool { return anyMatches(some, d) }), nil
}

func anyMatches(list []matcher, d *document) bool {
	return slices.ContainsFunc(list, func(m matcher) bool { _, ok := m(d); return ok })
}

func (c compiler) match(o object, phrase bool) (matcher, error) {
	field, v, options, err := c.field("match", o, "query")
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, illegalArgument("[match] requires query value")
	}
	return c.matchText(field, v, phrase, strings.EqualFold(options.string("operator"), "and"))
}

func (c compiler) matchText(field string, v any, phrase, all bool) (matcher, error) {
	p := c.mapping.field(field)
	if p == nil {
		return matchNone, nil
	}
	if !p.isText() {
		return c.equals(field, v, false)
	}
	words := analyze(scalarText(v))
	return func(d *document) (float32, bool) {
		best := 0
		for _, have := range d.values[field] {
			if phrase {
				if containsPhrase(have.tokens, words) {
					best = max(best, len(words))
				}
				continue
			}
			n := 0
			for _, w := range words {
				if slices.Contains(have.tokens, w) {
					n++
				}
			}
			if !all || n == len(words) {
				best = max(best, n)
			}
		}
		return float32(best), best > 0
	}, nil
}

func containsPhrase(tokens, words []string) bool {
	for i := 0; i+len(words) <= len(tokens); i++ {
		if slices.Equal(tokens[i:i+len(words)], words) {
			return true
		}
	}
	return false
}

func (c compiler) rangeQuery(o object) (matcher, error) {
	field, _, options, err := c.field("range", o)
	if err != nil {
		return nil, err
	}
	if options == nil {
		return nil, parsing("[range] query malformed, no start_object after field name")
	}
	for _, m := range options {
		if !slices.Contains([]string{"gte", "gt", "lte", "lt", "from", "to", "include_lower", "include_upper", "format", "time_zone", "boost", "relation", "_name"}, m.key) {
			return nil, parsing("[range] query does not support [%s]", m.key)
		}
	}
	p := c.mapping.field(field)
	if p == nil {
		return matchNone, nil
	}
	return c.between(field, p, options)
}

// between compiles the bounds gte, gt, lte and lt. As in nodes, a date bound that leaves units open, or rounds, is
// rounded up by gt and lte and down by gte and lt.
func (c compiler) between(field string, p *property, bounds object) (matcher, error) {
	for _, old := range [][3]string{{"from", "include_lower", "g"}, {"to", "include_upper", "l"}} {
		if v := bounds.get(old[0]); v != nil {
			operator := old[2] + "te"
			if bounds.string(old[1]) == "false" {
				operator = old[2] + "t"
			}
			bounds = append(bounds, member{operator, v})
		}
	}
	zone, err := parseZone(bounds.string("time_zone"))
	if err != nil {
		return nil, err
	}
	format := bounds.string("format")
	if format == "" {
		format = p.options.string("format")
	}
	var tests []func(value) bool
	for _, b := range bounds {
		if !slices.Contains([]string{"gte", "gt", "lte", "lt"}, b.key) || b.value == nil {
			continue
		}
		var bound value
		if p.isDate() {
			ms, err := parseDate(scalarText(b.value), format, c.now, zone, b.key == "gt" || b.key == "lte")
			if err != nil {
				e := dateError(err)
				e.shard = true
				return nil, e
			}
			bound = value{i: ms, f: float64(ms)}
		} else if p.isNumber() {
			f, err := strconv.ParseFloat(scalarText(b.value), 64)
			if err != nil {
				return nil, &apiError{
					status: 400, typ: "query_shard_exception", shard: true,
					reason: fmt.Sprintf("failed to create query: For input string: %q", scalarText(b.value)),
				}
			}
			bound = value{f: f}
		} else if bound, err = p.value(b.value, c.now, false); err != nil {
			return nil, &apiError{status: 400, typ: "query_shard_exception", reason: "failed to create query: " + asAPIError(err).reason, shard: true}
		}
		operator := b.key
		tests = append(tests, func(have value) bool {
			order := 0
			if p.isNumber() {
				order = cmp.Compare(have.f, bound.f)
			} else {
				order = p.compareValues(have, bound)
			}
			switch operator {
			case "gte":
				return order >= 0
			case "gt":
				return order > 0
			case "lte":
				return order <= 0
			}
			return order < 0
		})
	}
	return matchWhen(func(d *document) bool {
		return slices.ContainsFunc(d.values[field], func(have value) bool {
			return !slices.ContainsFunc(tests, func(test func(value) bool) bool { return !test(have) })
		})
	}), nil
}

func (c compiler) exists(o object) (matcher, error) {
	field := o.string("field")
	if field == "" {
		return nil, parsing("[exists] must be provided with a [field]")
	}
	return c.hasField(field), nil
}

func (c compiler) hasField(field string) matcher {
	return matchWhen(func(d *document) bool {
		if len(d.values[field]) > 0 {
			return true
		}
		for name := range d.values {
			if strings.HasPrefix(name, field+".") {
				return true
			}
		}
		return false
	})
}

func (c compiler) ids(o object) (matcher, error) {
	var ids []string
	list, _ := o.get("values").([]any)
	for _, v := range list {
		ids = append(ids, scalarText(v))
	}
	return c.hasID(ids), nil
}

func (c compiler) hasID(ids []string) matcher {
	return matchWhen(func(d *document) bool { return slices.Contains(ids, d.id) })
}

// pattern compiles prefix and wildcard.
func (c compiler) pattern(kind string, o object) (matcher, error) {
	field, v, options, err := c.field(kind, o, "value", "wildcard", "prefix")
	if err != nil {
		return nil, err
	}
	fold := options.string("case_insensitive") == "true"
	pattern := scalarText(v)
	if fold {
		pattern = strings.ToLower(pattern)
	}
	if kind == "prefix" {
		return c.like(kind, field, fold, func(s string) bool { return strings.HasPrefix(s, pattern) })
	}
	return c.like(kind, field, fold, func(s string) bool { return wildcardMatch(pattern, s) })
}

// like matches documents with a value, or a word of a text, for which test returns true.
func (c compiler) like(kind, field string, fold bool, test func(string) bool) (matcher, error) {
	p := c.mapping.field(field)
	if p == nil {
		return matchNone, nil
	}
	if p.isWhole() || p.isFloat() {
		return nil, &apiError{
			status: 400, typ: "query_shard_exception", shard: true,
			reason: fmt.Sprintf("Can only use %s queries on keyword, text and wildcard fields - not on [%s] which is of type [%s]", kind, field, p.typ),
		}
	}
	return matchWhen(func(d *document) bool {
		return slices.ContainsFunc(d.values[field], func(have value) bool {
			if p.isText() {
				return slices.ContainsFunc(have.tokens, test)
			}
			if fold {
				return test(strings.ToLower(have.s))
			}
			return test(have.s)
		})
	}), nil
}

func (c compiler) boolQuery(o object) (matcher, error) {
	clauses := map[string][]matcher{}
	minimum := ""
	for _, m := range o {
		switch m.key {
		case "must", "should", "filter", "must_not", "mustNot":
			list, ok := m.value.([]any)
			if !ok {
				list = []any{m.value}
			}
			for _, e := range list {
				q, ok := e.(object)
				if !ok {
					return nil, parsing("[bool] query malformed, no start_object after query name")
				}
				one, err := c.query(q)
				if err != nil {
					return nil, err
				}
				clauses[m.key] = append(clauses[m.key], one)
			}
		case "minimum_should_match":
			minimum = o.string(m.key)
		case "boost", "_name", "adjust_pure_negative":
		default:
			return nil, parsing("[bool] query does not support [%s]", m.key)
		}
	}
	must, should, filter := clauses["must"], clauses["should"], clauses["filter"]
	not := append(clauses["must_not"], clauses["mustNot"]...)
	need := 0
	if len(must)+len(filter) == 0 && len(should) > 0 {
		need = 1
	}
	if minimum != "" {
		need = minimumShouldMatch(minimum, len(should))
	}
	allFilter := len(must)+len(should) == 0 && len(filter) > 0
	return func(d *document) (float32, bool) {
		var score float32
		for _, m := range filter {
			if _, ok := m(d); !ok {
				return 0, false
			}
		}
		for _, m := range must {
			s, ok := m(d)
			if !ok {
				return 0, false
			}
			score += s
		}
		if anyMatches(not, d) {
			return 0, false
		}
		n := 0
		for _, m := range should {
			if s, ok := m(d); ok {
				score += s
				n++
			}
		}
		if !allFilter && len(must)+len(should) == 0 {
			score = 1 // an empty bool, or one of must_not alone, matches all
			if len(not) > 0 {
				score = 0
			}
		}
		return score, n >= need
	}, nil
}

// minimumShouldMatch reads 2, -1, 75% or -25%.
func minimumShouldMatch(s string, clauses int) int {
	percent, isPercent := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(percent)
	if err != nil {
		return 0
	}
	if isPercent {
		n = clauses * n / 100
	}
	if strings.HasPrefix(s, "-") {
		n += clauses
	}
	return max(0, min(n, clauses))
}

func (c compiler) constantScore(o object) (matcher, error) {
	inner, err := c.query(o.object("filter"))
	if err != nil {
		return nil, err
	}
	return matchWhen(func(d *document) bool { _, ok := inner(d); return ok }), nil
}
