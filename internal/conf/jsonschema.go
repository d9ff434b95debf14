package conf

import (
	"maps"
	"strconv"
)

// JSONSchema returns s as a JSON Schema of draft 2020-12, for editors: to be marshalled as it is. Like Decode it accepts
// variables and arithmetic where numbers are wanted, sections by dotted keys, and old names; like Decode it accepts
// nothing that no field has.
func JSONSchema(s Schema) any {
	root := jsonSchema(s)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	return root
}

func jsonSchema(s Schema) map[string]any {
	out := make(map[string]any)
	switch {
	case s.Fields != nil && !s.lenient:
		section(out, s.Fields)
	case s.Elem != nil && s.named:
		out["type"], out["additionalProperties"] = nullable("object"), jsonSchema(*s.Elem)
	case s.Elem != nil:
		out["type"], out["items"] = nullable("array"), jsonSchema(*s.Elem)
	default:
		maps.Copy(out, s.json)
	}
	if s.Doc != "" {
		out["description"] = s.Doc
	}
	if s.Default != "" {
		n, _ := Parse("", s.Default, nil)
		out["default"] = n.Any()
	}
	if s.Deprecated != "" {
		out["deprecated"] = true
	}
	return out
}

func section(out map[string]any, fields []Schema) {
	properties, dotted := make(map[string]any), make(map[string]any)
	var required []any
	for _, f := range fields {
		schema := jsonSchema(f)
		properties[f.Name] = schema
		names := []string{f.Name}
		for _, alias := range f.Aliases {
			old := jsonSchema(f)
			old["deprecated"] = true
			properties[alias] = old
			names = append(names, alias)
		}
		if f.Fields != nil {
			for _, name := range names {
				dotted["^"+name+`\.`] = map[string]any{}
			}
		}
		if f.Required {
			required = append(required, anyOf(names))
		}
	}
	out["type"], out["properties"], out["additionalProperties"] = nullable("object"), properties, false
	if len(dotted) > 0 {
		out["patternProperties"] = dotted
	}
	if required != nil {
		out["allOf"] = required
	}
}

// anyOf says that one of the names of a field is there.
func anyOf(names []string) map[string]any {
	present := make([]any, len(names))
	for i, name := range names {
		present[i] = map[string]any{"required": []string{name}}
	}
	return map[string]any{"anyOf": present}
}

// nullable allows the key without a value, which Decode takes as not given.
func nullable(kind string) []string { return []string{kind, "null"} }

// orVariable allows text with a variable instead of what schema says.
func orVariable(schema map[string]any) map[string]any {
	return map[string]any{"anyOf": []any{schema, map[string]any{"type": "string", "pattern": `\$\{|\$\[\[`}}}
}

// orArithmetic allows arithmetic and text with a variable instead of the number that schema and the limits of f say.
func orArithmetic(schema map[string]any, f field) map[string]any {
	for name, limit := range map[string]string{"minimum": f.min, "maximum": f.max} {
		if n, err := strconv.ParseFloat(limit, 64); err == nil {
			schema[name] = n
		}
	}
	return orVariable(map[string]any{"anyOf": []any{schema, map[string]any{"type": "string", "pattern": "^[-+*/() 0-9]+$"}}})
}

// JSONSchema implements Shaper.
func (Duration) JSONSchema() map[string]any {
	return orVariable(map[string]any{"type": []string{"string", "integer"}, "pattern": `^-?([0-9.]+[a-zµ]+)+$|^0$`, "maximum": 0})
}

// JSONSchema implements Shaper.
func (Bytes) JSONSchema() map[string]any {
	return orArithmetic(map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9.]+ ?[a-zA-Z]+$`}, field{})
}

// JSONSchema implements Shaper.
func (Rate) JSONSchema() map[string]any {
	return orVariable(map[string]any{"type": "string", "pattern": "/"})
}

// JSONSchema implements Shaper.
func (Amount) JSONSchema() map[string]any {
	return orArithmetic(map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9.]+ ?[a-zA-Z]+([0-9.]+[a-z]+)*$`, "minimum": 1}, field{})
}

// JSONSchema implements Shaper.
func (Percent) JSONSchema() map[string]any {
	return orVariable(map[string]any{"type": "string", "pattern": "%$"})
}

// JSONSchema implements Shaper.
func (Strings) JSONSchema() map[string]any {
	return map[string]any{"type": []string{"string", "number", "boolean", "array"}, "items": map[string]any{"type": []string{"string", "number", "boolean"}}}
}

// JSONSchema implements Shaper.
func (Secret) JSONSchema() map[string]any {
	return map[string]any{"type": []string{"string", "number", "boolean"}}
}

// JSONSchema implements Shaper.
func (Regexp) JSONSchema() map[string]any { return map[string]any{"type": "string", "format": "regex"} }

// JSONSchema implements Shaper.
func (Network) JSONSchema() map[string]any { return map[string]any{"type": "string"} }
