package docs

import (
	"maps"
	"slices"

	"weir/flows"
	"weir/internal/conf"
)

type object = map[string]any

// ref refers to a definition.
func ref(name string) object { return object{"$ref": "#/$defs/" + name} }

// Schema returns the JSON Schema (draft 2020-12) of a whole configuration, for editors. It accepts all that the gateway
// accepts, and cannot see what only makes no sense: names that nothing has, rules that nothing reaches.
func (r *Reference) Schema() any {
	root := object(conf.JSONSchema(r.Config()).(map[string]any))
	root["title"] = "Weir configuration"
	properties := root["properties"].(map[string]any)
	inList(properties["flow"])["filter"] = object{"type": []string{"array", "null"}, "items": ref("filter")}
	rules := inList(properties["router"])["rules"]
	inList(rules)["when"] = ref("condition")
	properties["modules"] = object{"type": []string{"array", "null"}, "items": r.moduleSchema()}
	defs := object{"condition": conditionSchema()}
	r.filterSchemas(defs)
	root["$defs"] = defs
	return root
}

// inList returns the properties of the items of a list.
func inList(schema any) object {
	return schema.(map[string]any)["items"].(map[string]any)["properties"].(map[string]any)
}

// filterSchemas puts the definition of a filter, in both forms, and those of all parameters into defs.
func (r *Reference) filterSchemas(defs object) {
	short, byType := object{}, []any{}
	for _, k := range r.registry.Kinds() {
		name := "filter_" + k.Name
		defs[name] = r.parameters(k)
		short[k.Name] = r.withHead(k)
		byType = append(byType, object{
			"if":   object{"properties": object{"type": object{"const": k.Name}}},
			"then": object{"properties": object{"parameters": ref(name)}},
		})
	}
	classic := r.headProperties()
	classic["type"] = object{"enum": r.registry.Names(), "description": "The filter."}
	classic["parameters"] = object{"description": "The filter's parameters."}
	defs["filter"] = object{
		"type": "object", "if": object{"required": []string{"type"}},
		"then": object{"properties": classic, "additionalProperties": false, "allOf": byType},
		"else": object{"properties": short, "additionalProperties": false, "minProperties": 1, "maxProperties": 1},
	}
}

func (r *Reference) headProperties() object {
	h := conf.JSONSchema(conf.Describe(head{Enabled: true}, r.prose)).(map[string]any)["properties"].(map[string]any)
	h["when"] = ref("condition")
	return h
}

// parameters returns the schema of a filter's parameters.
func (r *Reference) parameters(k *flows.Kind) object {
	s := object(conf.JSONSchema(r.Filter(k)).(map[string]any))
	delete(s, "$schema")
	s["description"] = k.Summary
	return s
}

// withHead returns the schema of a filter in the short form, in which the head stands among the parameters.
func (r *Reference) withHead(k *flows.Kind) object {
	s := r.parameters(k)
	properties, _ := s["properties"].(map[string]any)
	both := maps.Clone(properties)
	if both == nil {
		both = object{}
	}
	maps.Copy(both, r.headProperties())
	s["properties"] = both
	return s
}

// moduleSchema returns the schema of an item of the section modules: what it may hold depends on its name.
func (r *Reference) moduleSchema() object {
	var names []string
	var byName []any
	modules := r.modules()
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		s := object(conf.JSONSchema(modules[name]).(map[string]any))
		delete(s, "$schema")
		s["properties"].(map[string]any)["name"] = object{"const": name}
		names = append(names, name)
		byName = append(byName, object{
			"if": object{"properties": object{"name": object{"const": name}}}, "then": s,
		})
	}
	return object{
		"type": "object", "required": []string{"name"},
		"properties": object{"name": object{"enum": names}}, "allOf": byName,
	}
}
