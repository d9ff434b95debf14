package docs

// A word is one of those that a condition is made of.
type word struct {
	name, takes, doc string
	schema           func() map[string]any
}

// words are the vocabulary of conditions, in the order of the reference. A test compares it with what is understood.
var words = []word{
	{"all", "list of conditions", "All of them hold.", list},
	{"any", "list of conditions", "One of them holds.", list},
	{"not", "condition", "It does not hold.", one},
	{"method", "patterns", "The method, in capitals.", patterns},
	{"path", "patterns", "The path, decoded and with single slashes.", patterns},
	{"host", "patterns", "The field Host.", patterns},
	{"api", "patterns", "The name of the API that the request calls, such as `search`, `msearch` or `bulk`.", patterns},
	{"class", "patterns", "The class of that API: `search`, `cursor`, `write`, `inspect`, `admin`, or `unknown` of a call that is no known API.", patterns},
	{"index", "index patterns", "Every index that the request names in its path, or else in the parameter `index`, matches one of them. Bodies are not read.", patterns},
	{"header", "map of patterns by field", "Each of the header fields is there with one of the values; `*` is any value.", pairs},
	{"query", "map of patterns by parameter", "Each of the query parameters is there with one of the values.", pairs},
	{"ip", "addresses or networks", "The address that the client connects from.", patterns},
	{"user", "patterns", "The user name of Basic credentials, as the caller gives it.", patterns},
	{"status", "patterns", "The status of the answer, once there is one: `404`, `5xx`.", patterns},
	{"flow", "names", "The flow that the router picked.", patterns},
}

func patterns() map[string]any {
	scalar := map[string]any{"type": []string{"string", "number", "boolean"}}
	return map[string]any{"anyOf": []any{scalar, map[string]any{"type": "array", "items": scalar, "minItems": 1}}}
}

func pairs() map[string]any {
	return map[string]any{"type": "object", "minProperties": 1, "additionalProperties": patterns()}
}

func one() map[string]any { return ref("condition") }

func list() map[string]any {
	return map[string]any{"type": "array", "minItems": 1, "items": ref("condition")}
}

// conditionSchema is the JSON Schema of a condition.
func conditionSchema() map[string]any {
	properties := map[string]any{}
	for _, w := range words {
		s := w.schema()
		s["description"] = w.doc
		properties[w.name] = s
	}
	return map[string]any{
		"type": "object", "minProperties": 1, "properties": properties, "additionalProperties": false,
		"description": "A condition: all that is given must hold. In patterns * stands for any run of characters.",
	}
}
