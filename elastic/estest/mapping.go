package estest

import (
	"cmp"
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A mapping is the tree of an index's fields.
type mapping struct {
	properties map[string]*property
	dynamic    string
}

// A property is a field, or an object with fields below it.
type property struct {
	typ        string // "object" when it has properties
	options    object // what else was said about it, such as format
	properties map[string]*property
	fields     map[string]*property // multi-fields
}

func newMapping() *mapping { return &mapping{properties: map[string]*property{}} }

var fieldTypes = []string{
	"keyword", "text", "long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "date",
	"date_nanos", "boolean", "ip", "object", "nested", "constant_keyword", "wildcard", "match_only_text", "unsigned_long",
	"flattened", "flat_object", "geo_point", "binary", "alias",
}

// merge adds the fields of a mapping in a request's form. The type of a field cannot change.
func (m *mapping) merge(body object) error {
	if inner := body.object("_doc"); inner != nil && !body.has("properties") {
		body = inner
	}
	if body.has("dynamic") {
		m.dynamic = body.string("dynamic")
	}
	return mergeProperties(m.properties, body.object("properties"), "")
}

func mergeProperties(into map[string]*property, body object, prefix string) error {
	for _, f := range body {
		def, _ := f.value.(object)
		typ := def.string("type")
		if typ == "" && (def.has("properties") || len(def) == 0) {
			typ = "object"
		}
		if !slices.Contains(fieldTypes, typ) {
			return badRequest("mapper_parsing_exception", "No handler for type [%s] declared on field [%s]", typ, f.key)
		}
		have := into[f.key]
		if have == nil {
			have = &property{typ: typ, properties: map[string]*property{}, fields: map[string]*property{}}
			into[f.key] = have
		}
		if have.typ != typ {
			return illegalArgument("mapper [%s] cannot be changed from type [%s] to [%s]", prefix+f.key, have.typ, typ)
		}
		for _, option := range def {
			if option.key != "type" && option.key != "properties" && option.key != "fields" {
				have.options = have.options.set(option.key, option.value)
			}
		}
		if err := mergeProperties(have.properties, def.object("properties"), prefix+f.key+"."); err != nil {
			return err
		}
		if err := mergeProperties(have.fields, def.object("fields"), prefix+f.key+"."); err != nil {
			return err
		}
	}
	return nil
}

// object writes the mapping as nodes do, fields in the order of their names.
func (m *mapping) object() object {
	o := object{}
	if m.dynamic != "" {
		o = append(o, member{"dynamic", m.dynamic})
	}
	if len(m.properties) > 0 {
		o = append(o, member{"properties", propertiesObject(m.properties)})
	}
	return o
}

func propertiesObject(properties map[string]*property) object {
	o := object{}
	for _, name := range sortedKeys(properties) {
		p := properties[name]
		def := object{}
		if p.typ != "object" {
			def = append(def, member{"type", p.typ})
		}
		if len(p.fields) > 0 {
			def = append(def, member{"fields", propertiesObject(p.fields)})
		}
		if len(p.properties) > 0 {
			def = append(def, member{"properties", propertiesObject(p.properties)})
		}
		o = append(o, member{name, append(def, p.options...)})
	}
	return o
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// field returns the field at a dotted path, multi-fields included, or nil.
func (m *mapping) field(path string) *property {
	properties := m.properties
	var p *property
	for name := range strings.SplitSeq(path, ".") {
		next := properties[name]
		if next == nil && p != nil {
			next = p.fields[name]
		}
		if next == nil {
			return nil
		}
		p, properties = next, next.properties
	}
	return p
}

// A value is one value of a field as queries see it.
type value struct {
	s      string   // text of keywords, booleans, addresses and texts
	tokens []string // words of texts
	i      int64    // whole numbers, and dates in milliseconds
	f      float64  // numbers of any kind
}

func (p *property) isText() bool { return p.typ == "text" || p.typ == "match_only_text" }
func (p *property) isDate() bool { return p.typ == "date" || p.typ == "date_nanos" }

func (p *property) isWhole() bool {
	switch p.typ {
	case "long", "integer", "short", "byte", "unsigned_long", "date", "date_nanos", "boolean":
		return true
	}
	return false
}

func (p *property) isFloat() bool {
	switch p.typ {
	case "double", "float", "half_float", "scaled_float":
		return true
	}
	return false
}

func (p *property) isNumber() bool {
	return p.isFloat() || p.isWhole() && !p.isDate() && p.typ != "boolean"
}

// compareValues orders two values of the field.
func (p *property) compareValues(a, b value) int {
	switch {
	case p.isWhole():
		return cmp.Compare(a.i, b.i)
	case p.isFloat():
		return cmp.Compare(a.f, b.f)
	}
	return cmp.Compare(a.s, b.s)
}

// analyze splits a text into lower-case words.
func analyze(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(c rune) bool {
		return !unicode.IsLetter(c) && !unicode.IsDigit(c) && c != '_'
	})
}

// scalarText is the text that a keyword field makes of a JSON value: 1 stays 1, and 1e0 becomes 1.0.
func scalarText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			if f, err := v.Float64(); err == nil {
				return javaFloat(f, 64)
			}
		}
		return v.String()
	}
	return string(appendJSON(nil, v, -1))
}

// value makes the field's value of a JSON scalar. now and roundUp matter for dates only.
func (p *property) value(v any, now time.Time, roundUp bool) (value, error) {
	text := scalarText(v)
	switch {
	case p.isText():
		return value{s: text, tokens: analyze(text)}, nil
	case p.isDate():
		ms, err := parseDate(text, p.options.string("format"), now, time.UTC, roundUp)
		return value{i: ms, f: float64(ms)}, err
	case p.typ == "boolean":
		switch text {
		case "true":
			return value{s: text, i: 1, f: 1}, nil
		case "false", "":
			return value{s: "false"}, nil
		}
		return value{}, illegalArgument("Failed to parse value [%s] as only [true] or [false] are allowed.", text)
	case p.isFloat():
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return value{}, badNumber(text)
		}
		return value{f: f}, nil
	case p.isWhole():
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			f, ferr := strconv.ParseFloat(text, 64)
			if ferr != nil || math.Abs(f) > 1<<53 {
				return value{}, badNumber(text)
			}
			i = int64(f)
		}
		return value{i: i, f: float64(i)}, nil
	case p.typ == "ip":
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return value{}, illegalArgument("'%s' is not an IP string literal.", text)
		}
		return value{s: addr.String()}, nil
	}
	return value{s: text}, nil
}

// index works out a document's values and extends the mapping by the fields that it does not know.
func (m *mapping) index(id string, source object, now time.Time) (map[string][]value, error) {
	values := map[string][]value{}
	return values, m.indexObject(values, m.properties, "", id, source, now)
}

func (m *mapping) indexObject(into map[string][]value, properties map[string]*property, prefix, id string, o object, now time.Time) error {
	for _, f := range o {
		if f.value == nil {
			continue
		}
		name, rest, dotted := strings.Cut(f.key, ".")
		v := f.value
		if dotted {
			v = object{{rest, f.value}}
		}
		p := properties[name]
		if p == nil {
			sample, ok := firstValue(v)
			if !ok || m.dynamic == "false" {
				continue
			}
			if m.dynamic == "strict" {
				return badRequest("strict_dynamic_mapping_exception", "mapping set to strict, dynamic introduction of [%s] within [%s] is not allowed", name, "_doc")
			}
			p = dynamicField(sample)
			properties[name] = p
		}
		if err := m.indexValue(into, p, prefix+name, id, v, now); err != nil {
			return err
		}
	}
	return nil
}

func (m *mapping) indexValue(into map[string][]value, p *property, path, id string, v any, now time.Time) error {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		for _, e := range v {
			if err := m.indexValue(into, p, path, id, e, now); err != nil {
				return err
			}
		}
		return nil
	case object:
		if p.typ == "object" || p.typ == "nested" {
			return m.indexObject(into, p.properties, path+".", id, v, now)
		}
		if p.typ == "flattened" || p.typ == "flat_object" || p.typ == "geo_point" {
			return nil
		}
		return p.refuse(path, id, string(appendJSON(nil, v, -1)), illegalArgument("Can't get text on a START_OBJECT"))
	}
	if p.typ == "object" || p.typ == "nested" {
		return badRequest("mapper_parsing_exception", "object mapping for [%s] tried to parse field [%s] as object, but found a concrete value", path, path)
	}
	one, err := p.value(v, now, false)
	if err != nil {
		return p.refuse(path, id, scalarText(v), err)
	}
	into[path] = append(into[path], one)
	for name, field := range p.fields {
		if err := m.indexValue(into, field, path+"."+name, id, v, now); err != nil {
			return err
		}
	}
	return nil
}

func badNumber(text string) error { return illegalArgument("For input string: %q", text) }

func (p *property) refuse(path, id, text string, why error) error {
	e := badRequest("mapper_parsing_exception", "failed to parse field [%s] of type [%s] in document with id '%s'. Preview of field's value: '%s'", path, p.typ, id, text)
	e.cause = asAPIError(why)
	return e
}

// firstValue returns the first value in lists of lists that is not null.
func firstValue(v any) (any, bool) {
	if list, ok := v.([]any); ok {
		for _, e := range list {
			if found, ok := firstValue(e); ok {
				return found, true
			}
		}
		return nil, false
	}
	return v, v != nil
}

// dynamicField returns the field that a node would make for a value that it sees first.
func dynamicField(v any) *property {
	p := &property{properties: map[string]*property{}, fields: map[string]*property{}}
	switch v := v.(type) {
	case object:
		p.typ = "object"
	case bool:
		p.typ = "boolean"
	case json.Number:
		p.typ = "long"
		if strings.ContainsAny(v.String(), ".eE") {
			p.typ = "float"
		}
	case string:
		if looksLikeDate(v) {
			p.typ = "date"
			break
		}
		p.typ = "text"
		p.fields["keyword"] = &property{typ: "keyword", options: object{{"ignore_above", 256}}}
	}
	return p
}
