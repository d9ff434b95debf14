package conf

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A Schema describes a configurable value: the root of a configuration, a field, or an element of a list or map. The
// reference pages, the JSON Schema and the command line are made from it.
type Schema struct {
	Name       string   // of the field; empty for what is no field
	Type       string   // in the user's words: "duration", "list of string", "section"
	Example    string   // a value, for types that have one
	Doc        string   // prose, in which the field is called by Name
	Default    string   // as a user would write it; empty where nothing, or nothing that can be written, is the default
	Enum       []string // the values allowed; nil where any is
	Min, Max   string   // the limits, as a user would write them
	Required   bool
	Hidden     bool     // not for the reference pages
	Deprecated string   // what to use instead; empty for a field that is not deprecated
	Aliases    []string // old names
	Fields     []Schema // of a section
	Elem       *Schema  // of a list or map

	named   bool           // a map by names, where there is an Elem; otherwise a list
	lenient bool           // a section that decodes itself, and may accept what Fields do not say
	json    map[string]any // the JSON Schema of a value that has no Fields and no Elem
}

// A Shaper is a type that decodes itself and says which JSON it accepts, as a JSON Schema.
type Shaper interface {
	JSONSchema() map[string]any
}

// Describe returns the schema of the value zero, of which what it holds is the default. prose has the texts by
// "package/path.Type" and "package/path.Type.Field", as package prose collects them; it may be nil. Mistakes in tags
// leave out what they concern; Decode reports them.
func Describe(zero any, prose map[string]string) Schema {
	d := describer{prose: prose}
	v := reflect.ValueOf(zero)
	s := d.describe(v.Type(), v, typeKey(v.Type()), field{})
	s.Doc = prose[typeKey(indirect(v.Type()))]
	return s
}

type describer struct {
	prose map[string]string
	open  []reflect.Type // the structs being described, which may contain themselves
}

// typeKey returns the key of a named type in the prose. The arguments of generic types are not part of it.
func typeKey(t reflect.Type) string {
	name, _, _ := strings.Cut(t.Name(), "[")
	return t.PkgPath() + "." + name
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// describe describes a value of type t with the default v, which is invalid where there is none. key is the prose key of
// t, for structs without a name.
func (d *describer) describe(t reflect.Type, v reflect.Value, key string, f field) Schema {
	s := Schema{
		Name: f.name, Required: f.required, Hidden: f.hidden, Deprecated: f.deprecated, Aliases: f.aliases,
		Enum: f.enum, Min: f.min, Max: f.max,
	}
	if v.IsValid() && !f.required {
		s.Default = written(v)
	}
	if t == nodeType {
		s.Type = "any"
		return s
	}
	if t.Kind() == reflect.Pointer {
		t = indirect(t)
		for v.IsValid() && v.Kind() == reflect.Pointer {
			v = v.Elem() // of a nil pointer: invalid, which is no default
		}
	}
	if t.Name() != "" {
		key = typeKey(t)
	}
	if doc, ok := reflect.Zero(t).Interface().(Documenter); ok {
		s.Type, s.Example = doc.TypeDoc()
	}
	if shaper, ok := reflect.Zero(t).Interface().(Shaper); ok {
		s.json = shaper.JSONSchema()
	}
	if f.unit != 0 {
		s.json = map[string]any{"type": []string{"integer", "string"}}
	}
	decodesItself := reflect.PointerTo(t).Implements(decoderType)
	switch {
	case s.Type != "":
		if t == stringsType && f.enum != nil {
			one := orVariable(map[string]any{"enum": f.enum})
			s.json = map[string]any{"anyOf": []any{one, map[string]any{"type": "array", "items": one}}}
		}
		return s
	case decodesItself && t.Kind() == reflect.Struct:
		s.Type, s.lenient = "section", true
		d.fields(&s, t, v, key)
		return s
	case decodesItself:
		s.Type = "any"
		return s
	case reflect.PointerTo(t).Implements(textType):
		s.Type, s.json = "string", map[string]any{"type": "string"}
		return s
	}
	switch t.Kind() {
	case reflect.Struct:
		s.Type = "section"
		d.fields(&s, t, v, key)
	case reflect.Slice, reflect.Map:
		elem := d.describe(t.Elem(), elementDefaults(t.Elem()), key, field{enum: f.enum})
		s.Elem, s.Enum = &elem, nil
		s.named = t.Kind() == reflect.Map
		if s.Type = "list of " + elem.Type; s.named {
			s.Type = "map of " + elem.Type
		}
	case reflect.String:
		s.Type, s.json = "string", map[string]any{"type": []string{"string", "number", "boolean"}}
		if f.enum != nil {
			s.json = orVariable(map[string]any{"enum": f.enum})
		}
	case reflect.Bool:
		s.Type, s.json = "boolean", orVariable(map[string]any{"type": "boolean"})
	case reflect.Float32, reflect.Float64:
		s.Type, s.json = "number", orArithmetic(map[string]any{"type": "number"}, f)
	case reflect.Interface:
		s.Type = "any"
	default:
		s.Type, s.json = "integer", orArithmetic(map[string]any{"type": "integer"}, f)
	}
	return s
}

// elementDefaults returns what elements of type t begin with, or nothing where they begin empty.
func elementDefaults(t reflect.Type) reflect.Value {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[Defaulter]()) {
		return fresh(t)
	}
	return reflect.Value{}
}

func (d *describer) fields(s *Schema, t reflect.Type, v reflect.Value, key string) {
	if slices.Contains(d.open, t) {
		s.Type = "section like the one that it stands in"
		return
	}
	d.open = append(d.open, t)
	defer func() { d.open = d.open[:len(d.open)-1] }()
	if !v.IsValid() {
		v = reflect.Zero(t)
	}
	fields, err := fieldsOf(t)
	if err != nil {
		return
	}
	s.Fields = make([]Schema, 0, len(fields))
	for _, f := range fields {
		fieldKey := key
		if f.owner.Name() != "" {
			fieldKey = typeKey(f.owner)
		}
		fieldKey += "." + f.goName
		sub := d.describe(f.typ, v.FieldByIndex(f.index), fieldKey, f)
		sub.Doc = d.prose[fieldKey]
		if rest, ok := strings.CutPrefix(sub.Doc, f.goName+" "); ok {
			sub.Doc = "`" + f.name + "` " + rest
		}
		s.Fields = append(s.Fields, sub)
	}
}

// written returns v as a user would write it, and "" for what is empty or cannot be written in a line.
func written(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() || v.Type() == nodeType {
			return ""
		}
		return written(v.Elem())
	}
	if s, ok := v.Interface().(fmt.Stringer); ok {
		switch v.Interface().(type) {
		case Secret:
			return ""
		case Regexp:
			return writtenText(s.String())
		}
		return s.String()
	}
	switch v.Kind() {
	case reflect.String:
		return writtenText(v.String())
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			if items[i] = written(v.Index(i)); items[i] == "" {
				return ""
			}
		}
		return inBrackets("[", items, "]")
	case reflect.Map:
		items := make([]string, 0, v.Len())
		for entry := v.MapRange(); entry.Next(); {
			value := written(entry.Value())
			if value == "" {
				return ""
			}
			items = append(items, writtenText(entry.Key().String())+": "+value)
		}
		slices.Sort(items)
		return inBrackets("{", items, "}")
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return fmt.Sprint(v.Interface())
	}
	return ""
}

func inBrackets(open string, items []string, end string) string {
	if len(items) == 0 {
		return ""
	}
	return open + strings.Join(items, ", ") + end
}

// writtenText returns text as a YAML scalar that is read as the same text.
func writtenText(text string) string {
	if text == "" {
		return ""
	}
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/."
	if strings.Trim(text, safe) == "" && text != "null" {
		return text
	}
	return strconv.Quote(strings.NewReplacer("${", "$${", "$[[", "$$[[").Replace(text))
}
