package conf

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Decode fills the value that into points to from n and adds every mistake to p, at its place. What into holds is the
// default of what n does not give; a list or a map that is given replaces the default one, a struct is filled field by
// field. A key without a value counts as not given. A key with a dot that names no field is read as the classic form of a
// nested one: path.data: x is path: {data: x}. Decode never changes what a pointer, slice or map in into refers to,
// so that defaults may share them. Where there was a mistake the value keeps its default.
//
// The kinds that can be decoded are: string, bool, the integers and floats, structs with conf tags, pointers, slices, maps
// by string, any, *Node (kept as it is, to be decoded by its owner) and types that implement Decoder or
// encoding.TextUnmarshaler.
func Decode(n *Node, into any, p *Problems) {
	value(n, reflect.ValueOf(into).Elem(), &field{}, p)
}

// A field is a field of a struct that takes part in decoding, or, without a name, a value that is no field.
type field struct {
	name       string
	aliases    []string
	required   bool
	hidden     bool
	unit       time.Duration // of a bare number, for a Duration; 0 where that is an error
	enum       []string
	min, max   string
	deprecated string
	index      []int // as for reflect.Value.FieldByIndex
	owner      reflect.Type
	goName     string
	typ        reflect.Type
}

var (
	nodeType     = reflect.TypeFor[*Node]()
	durationType = reflect.TypeFor[Duration]()
	rateType     = reflect.TypeFor[Rate]()
	percentType  = reflect.TypeFor[Percent]()
	stringsType  = reflect.TypeFor[Strings]()
	bytesType    = reflect.TypeFor[Bytes]()
	decoderType  = reflect.TypeFor[Decoder]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// fieldsOf returns the fields of a struct type, with those of inline structs in their place. An error is a mistake in the
// source, not in a configuration.
func fieldsOf(t reflect.Type) ([]field, error) {
	var fields []field
	for sf := range t.Fields() {
		tag, tagged := sf.Tag.Lookup("conf")
		if !tagged || tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		f := field{name: name, index: sf.Index, owner: t, goName: sf.Name, typ: sf.Type}
		inline := false
		for option := range strings.SplitSeq(options, ",") {
			key, arg, _ := strings.Cut(option, "=")
			switch key {
			case "":
			case "required":
				f.required = true
			case "alias":
				f.aliases = append(f.aliases, arg)
			case "inline":
				inline = true
			case "hidden":
				f.hidden = true
			case "unit":
				unit, known := durationUnit(arg)
				if !known || sf.Type != durationType {
					return nil, fmt.Errorf("%s.%s: unit=%s is for a Duration and a unit of one", t, sf.Name, arg)
				}
				f.unit = unit
			default:
				return nil, fmt.Errorf("%s.%s: unknown option %q", t, sf.Name, option)
			}
		}
		if enum := sf.Tag.Get("enum"); enum != "" {
			f.enum = strings.Split(enum, ",")
		}
		f.min, f.max, f.deprecated = sf.Tag.Get("min"), sf.Tag.Get("max"), sf.Tag.Get("deprecated")
		switch {
		case !sf.IsExported():
			return nil, fmt.Errorf("%s.%s: a field with a conf tag must be exported", t, sf.Name)
		case sf.Type == reflect.TypeFor[time.Duration]():
			return nil, fmt.Errorf("%s.%s: use conf.Duration, a number without a unit says nothing", t, sf.Name)
		case inline && (sf.Type.Kind() != reflect.Struct || name != ""):
			return nil, fmt.Errorf("%s.%s: inline is for a struct without a name", t, sf.Name)
		case inline:
			inner, err := fieldsOf(sf.Type)
			if err != nil {
				return nil, err
			}
			for _, g := range inner {
				g.index = slices.Concat(sf.Index, g.index)
				fields = append(fields, g)
			}
			continue
		case name == "":
			return nil, fmt.Errorf("%s.%s: the conf tag has no name", t, sf.Name)
		}
		fields = append(fields, f)
	}
	return fields, nil
}

func (f *field) hasName(key string) bool { return f.name == key || slices.Contains(f.aliases, key) }

// value decodes n into v. f holds the limits; without it there are none, not even those of the type.
func value(n *Node, v reflect.Value, f *field, p *Problems) {
	t := v.Type()
	switch {
	case n != nil && n.broken:
		return
	case t == nodeType:
		v.Set(reflect.ValueOf(n))
		return
	case t.Kind() == reflect.Pointer:
		target := fresh(t.Elem()).Addr()
		if !v.IsNil() {
			target.Elem().Set(v.Elem())
		}
		problems := len(p.collector().list)
		value(n, target.Elem(), f, p)
		if !failedSince(p, problems) || t.Elem().Kind() == reflect.Struct {
			v.Set(target)
		}
		return
	}
	decoded := reflect.New(t).Elem()
	decoded.Set(v)
	problems := len(p.collector().list)
	switch {
	case f != nil && f.unit != 0 && bareDuration(n, decoded, f.unit, p):
	case reflect.PointerTo(t).Implements(decoderType):
		decoded.Addr().Interface().(Decoder).DecodeConf(n, p)
	case reflect.PointerTo(t).Implements(textType):
		text(n, decoded, p)
	default:
		plainValue(n, decoded, f, p)
	}
	if f != nil && len(p.collector().list) == problems {
		f.check(n, decoded, p)
	}
	// What is made of parts is kept as far as it could be decoded, so that checks that come after, of references for
	// instance, do not report what is only missing because of another mistake.
	if !failedSince(p, problems) || t.Kind() == reflect.Struct || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		v.Set(decoded)
	}
}

// failedSince tells whether there is an error among the problems from the given one on.
func failedSince(p *Problems, first int) bool {
	return slices.ContainsFunc(p.collector().list[first:], func(q *Problem) bool { return q.Severity == Error })
}

// plainValue decodes what has no method for it, by kind.
func plainValue(n *Node, v reflect.Value, f *field, p *Problems) {
	switch v.Kind() {
	case reflect.Struct:
		structure(n, v, p)
	case reflect.String:
		if n.Kind() != Scalar {
			wrongType(n, p, "a string")
			return
		}
		v.SetString(n.text)
	case reflect.Bool:
		boolean(n, v, p)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		integer(n, v, p)
	case reflect.Float32, reflect.Float64:
		float(n, v, p)
	case reflect.Slice:
		slice(n, v, f, p)
	case reflect.Map:
		mapping(n, v, f, p)
	case reflect.Interface:
		if plain := n.Any(); plain != nil {
			v.Set(reflect.ValueOf(plain))
		}
	default:
		p.Errorf(n, "a Go value of type %s cannot be configured", v.Type())
	}
}

func structure(n *Node, v reflect.Value, p *Problems) {
	if n.Kind() == Scalar || n.Kind() == List {
		wrongType(n, p, "a map")
		return
	}
	fields, err := fieldsOf(v.Type())
	if err != nil {
		p.Errorf(n, "%v", err)
		return
	}
	n = undot(n, p, func(key string) bool {
		return slices.ContainsFunc(fields, func(f field) bool { return f.hasName(key) })
	})
	given := make(map[string]string, len(fields)) // names of fields to the keys that gave, or were meant to give, them
	for _, m := range membersOf(n) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.hasName(m.key) })
		if i < 0 {
			if meant := unknownField(m, fields, p); meant != "" {
				given[meant] = m.key
			}
			continue
		}
		f := &fields[i]
		if other, twice := given[f.name]; twice && f.hasName(other) {
			p.Add(Problem{Pos: m.pos, Code: CodeConflict, Message: fmt.Sprintf("%q and %q are the same field; keep one", other, m.key)})
			continue
		}
		if m.key != f.name {
			p.Add(Problem{
				Pos: m.pos, Severity: Warning, Code: CodeAlias,
				Message: fmt.Sprintf("%q is the old name of %q", m.key, f.name),
			})
		}
		if f.deprecated != "" {
			p.Add(Problem{
				Pos: m.pos, Severity: Warning, Code: CodeDeprecated,
				Message: fmt.Sprintf("%q is deprecated: %s", m.key, f.deprecated),
			})
		}
		if m.value.Kind() == Null && !m.value.broken && f.typ != nodeType {
			continue
		}
		given[f.name] = m.key
		value(m.value, v.FieldByIndex(f.index), f, p.at("."+m.key))
	}
	for i := range fields {
		if _, ok := given[fields[i].name]; fields[i].required && !ok {
			p.Errorf(n, "the required field %q is missing", fields[i].name).Code = CodeMissingField
		}
	}
}

func membersOf(n *Node) []member {
	if n == nil {
		return nil
	}
	return n.members
}

// unknownField reports a key that no field has and returns the name of the field that was probably meant: a similar one, or
// one in which a field of that name stands.
func unknownField(m member, fields []field, p *Problems) string {
	names := make([]string, 0, len(fields))
	for i := range fields {
		if !fields[i].hidden {
			names = append(names, fields[i].name)
		}
	}
	q := p.Add(Problem{Pos: m.pos, Code: CodeUnknownField, Message: fmt.Sprintf("unknown field %q", m.key)})
	if near, ok := Nearest(m.key, names); ok {
		q.Suggestion = near
		return near
	}
	for i := range fields {
		if f := &fields[i]; !f.hidden && isField(f.typ, m.key) {
			q.Suggestion = f.name + "." + m.key
			return f.name
		}
	}
	if p.elsewhere != nil {
		q.Message += p.elsewhere(m.key)
	}
	return ""
}

// IsField tells whether a struct, or what a pointer to one points to, has a field that is configured under that name.
func IsField(config any, name string) bool { return isField(reflect.TypeOf(config), name) }

func isField(t reflect.Type, name string) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	fields, err := fieldsOf(t)
	return err == nil && slices.ContainsFunc(fields, func(f field) bool { return f.name == name && !f.hidden })
}

// ItemsOf returns the items of a list that need not be there. It reports what is no list.
func ItemsOf(n *Node, p *Problems) (items []*Node) {
	if !n.IsZero() {
		Decode(n, &items, p)
	}
	return items
}

func boolean(n *Node, v reflect.Value, p *Problems) {
	if b, ok := n.boolean(); ok {
		v.SetBool(b)
		return
	}
	hint := ""
	if n.Kind() == Scalar {
		switch strings.ToLower(n.text) {
		case "true", "yes", "on", "y":
			hint = "; write true"
		case "false", "no", "off", "n":
			hint = "; write false"
		}
		if hint != "" && !n.plain {
			hint += " without quotes"
		}
	}
	p.Errorf(n, "want true or false, found %s%s", n.found(), hint).Code = CodeWrongType
}

// number works out a scalar that should be a whole number.
func number(n *Node, p *Problems) (int64, bool) {
	i, err := evaluate(n.Scalar())
	switch {
	case n.Plain() && err == nil:
		return i, true
	case n.Kind() == Scalar && err == nil:
		p.Errorf(n, "want a whole number, found %s; write it without quotes", n.found()).Code = CodeWrongType
	case n.Plain() && (isArithmetic(n.text) || looksNumeric(n.text)):
		p.Errorf(n, "%s", hidden(n, err)).Code = CodeValue
	default:
		wrongType(n, p, "a whole number")
	}
	return 0, false
}

func integer(n *Node, v reflect.Value, p *Problems) {
	i, ok := number(n, p)
	if !ok {
		return
	}
	switch {
	case v.CanInt() && !v.OverflowInt(i):
		v.SetInt(i)
	case v.CanUint() && i < 0:
		p.Errorf(n, "want at least 0, found %s", n.found()).Code = CodeRange
	case v.CanUint() && !v.OverflowUint(uint64(i)):
		v.SetUint(uint64(i))
	default:
		p.Errorf(n, "%s does not fit in %d bits", n.found(), v.Type().Bits()).Code = CodeRange
	}
}

func float(n *Node, v reflect.Value, p *Problems) {
	if n.Plain() && looksNumeric(n.text) {
		f, err := strconv.ParseFloat(n.text, v.Type().Bits())
		if err != nil {
			p.Errorf(n, "%s is too large", n.found()).Code = CodeRange
			return
		}
		v.SetFloat(f)
		return
	}
	if n.Plain() && isArithmetic(n.text) {
		if i, ok := number(n, p); ok {
			v.SetFloat(float64(i))
		}
		return
	}
	wrongType(n, p, "a number")
}

func text(n *Node, v reflect.Value, p *Problems) {
	if n.Kind() != Scalar {
		wrongType(n, p, "a string")
		return
	}
	if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.text)); err != nil {
		p.Errorf(n, "%s", hidden(n, err)).Code = CodeValue
	}
}

// bareDuration decodes a number that counts units, for fields that allow it. It returns false where n is no number.
func bareDuration(n *Node, v reflect.Value, unit time.Duration, p *Problems) bool {
	if !n.Plain() || !looksNumeric(n.text) && !isArithmetic(n.text) {
		return false
	}
	i, ok := number(n, p)
	if !ok {
		return true
	}
	i, err := calculate(i, '*', int64(unit))
	if err != nil {
		p.Errorf(n, "%s", hidden(n, errors.New(n.text+" is longer than a duration can be (292 years)"))).Code = CodeRange
		return true
	}
	v.SetInt(i)
	return true
}

// elementField returns what holds for the elements of a list or map that is the field f.
func (f *field) elementField() *field { return &field{enum: f.enum} }

func slice(n *Node, v reflect.Value, f *field, p *Problems) {
	if n.Kind() != List {
		hint := ""
		switch n.Kind() {
		case Scalar:
			hint = "; put it in brackets"
		case Map:
			hint = "; begin each item with a dash"
		}
		p.Errorf(n, "want a list, found %s%s", n.found(), hint).Code = CodeWrongType
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		if item.Kind() == Null && v.Type().Elem() != nodeType {
			p.at(fmt.Sprintf("[%d]", i)).Errorf(item, "the list item is empty").Code = CodeWrongType
			continue
		}
		list.Index(i).Set(fresh(v.Type().Elem()))
		value(item, list.Index(i), f.elementField(), p.at(fmt.Sprintf("[%d]", i)))
	}
	v.Set(list)
}

func mapping(n *Node, v reflect.Value, f *field, p *Problems) {
	t := v.Type()
	if t.Key().Kind() != reflect.String {
		p.Errorf(n, "a Go value of type %s cannot be configured", t)
		return
	}
	if n.Kind() != Map {
		wrongType(n, p, "a map")
		return
	}
	entries := reflect.MakeMapWithSize(t, len(n.members))
	for _, m := range n.members {
		entry := fresh(t.Elem())
		value(m.value, entry, f.elementField(), p.at("."+m.key))
		entries.SetMapIndex(reflect.ValueOf(m.key).Convert(t.Key()), entry)
	}
	v.Set(entries)
}

// check reports a value that is not one of those allowed, or outside of its limits.
func (f *field) check(n *Node, v reflect.Value, p *Problems) {
	if f.enum != nil && v.Kind() == reflect.String && !slices.Contains(f.enum, v.String()) {
		q := p.Errorf(n, "%s is not one of %s", n.Quoted(), strings.Join(f.enum, ", "))
		q.Code = CodeEnum
		if !n.FromVariable() {
			q.Suggestion, _ = Nearest(v.String(), f.enum)
		}
	}
	if f.enum != nil && v.Type() == stringsType {
		for i, s := range v.Interface().(Strings) {
			at := n
			if n.Kind() == List {
				at = n.items[i]
			}
			f.elementField().check(at, reflect.ValueOf(s), p)
		}
	}
	low, high := f.limits(v.Type())
	if c, err := compareTo(v, low); err != nil {
		p.Errorf(n, "%v", err)
	} else if c < 0 {
		p.Errorf(n, "want at least %s, found %s", low, n.found()).Code = CodeRange
	}
	if c, err := compareTo(v, high); err != nil {
		p.Errorf(n, "%v", err)
	} else if c > 0 {
		p.Errorf(n, "want at most %s, found %s", high, n.found()).Code = CodeRange
	}
}

// limits returns the limits of f, with those that follow from its type where it says nothing.
func (f *field) limits(t reflect.Type) (low, high string) {
	switch t {
	case durationType:
		return cmp.Or(f.min, "0s"), f.max
	case bytesType:
		return cmp.Or(f.min, "0"), f.max
	case percentType:
		return cmp.Or(f.min, "0%"), cmp.Or(f.max, "100%")
	}
	return f.min, f.max
}

// compareTo compares v with a limit as it is written in a tag. Without a limit they are equal. An error is a mistake in
// the tag.
func compareTo(v reflect.Value, limit string) (int, error) {
	if limit == "" {
		return 0, nil
	}
	var p Problems
	bound := reflect.New(v.Type()).Elem()
	value(&Node{kind: Scalar, text: limit, written: limit, plain: true}, bound, nil, &p)
	switch {
	case p.HasErrors():
		return 0, fmt.Errorf("the limit %q in the tag is no %s", limit, v.Type())
	case v.CanInt():
		return cmp.Compare(v.Int(), bound.Int()), nil
	case v.CanUint():
		return cmp.Compare(v.Uint(), bound.Uint()), nil
	case v.CanFloat():
		return cmp.Compare(v.Float(), bound.Float()), nil
	case v.Type() == rateType:
		return cmp.Compare(v.Interface().(Rate).PerSecond(), bound.Interface().(Rate).PerSecond()), nil
	}
	return 0, fmt.Errorf("limits are for numbers, not for %s", v.Type())
}
