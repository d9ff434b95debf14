package query

import (
	"bytes"
	"slices"
)

// others are the APIs that have keys when Options.Others names them. Nothing of the indices proves their answers fresh: what a
// query in another language or a stored template reads cannot be seen from outside, and nodes answer for mappings with what
// they know of the cluster at the moment.
var others = [...]string{"esql.query", "field_caps", "indices.get_mapping", "ppl.query", "search_template", "sql.query"}

// Others returns the names of the APIs that have keys only on demand.
func Others() []string { return slices.Clone(others[:]) }

// has tells whether requests of an API have keys.
func (k *Keyer) has(api string) bool {
	return api == "search" || api == "count" || slices.Contains(k.options.Others, api)
}

// readers are the words that statements begin with that change nothing, by the API that runs them. OpenSearch runs DELETE in
// SQL where plugins.sql.delete.enabled is set, and trains models in PPL.
var readers = map[string][]string{
	"sql.query": {"select", "show", "describe", "desc", "explain"},
	"ppl.query": {"source", "search", "index", "show", "describe", "explain"},
}

// Writes tells whether a request to an API that takes statements may change something: whether it is not sure that its one
// statement only reads. It is false for all other APIs.
func Writes(api string, rawQuery, body []byte) bool {
	words, ok := readers[api]
	if !ok {
		return false
	}
	if len(body) > 0 && body[0]>>5 == 5 {
		return false // a map in CBOR, as drivers send it to Elasticsearch, whose SQL has no statement that writes
	}
	for len(rawQuery) > 0 {
		var param []byte
		// A statement in the URL, as Open Distro takes it, or what may be one when it is decoded.
		if param, _, rawQuery = nextArg(rawQuery); string(param) == "sql" || bytes.IndexByte(param, '%') >= 0 {
			return true
		}
	}
	statements, reads := 0, true
	whole := wholeObject(body, func(name, value []byte) bool {
		switch {
		case bytes.IndexByte(name, '\\') >= 0:
			reads = false // query, perhaps
		case string(name) == "query":
			statements++
			reads = reads && readsOnly(value, words) && (api != "ppl.query" || !trains(value))
		case string(name) == "cursor": // the next page of a statement that was read
			statements++
		}
		return true
	})
	return !whole || statements != 1 || !reads
}

// readsOnly tells whether a statement, as the JSON string that it stands in, begins with one of the words, and is the only one.
func readsOnly(value []byte, words []string) bool {
	if len(value) < 2 || value[0] != '"' {
		return false
	}
	text := value[1 : len(value)-1]
	for {
		trimmed := bytes.TrimLeft(text, " (")
		for _, space := range []string{`\n`, `\r`, `\t`} {
			trimmed = bytes.TrimPrefix(trimmed, []byte(space))
		}
		if len(trimmed) == len(text) {
			break
		}
		text = trimmed
	}
	n := 0
	for n < len(text) && ('a' <= text[n]|0x20 && text[n]|0x20 <= 'z') {
		n++
	}
	if i := bytes.IndexByte(text, ';'); i >= 0 && len(bytes.TrimLeft(text[i:], "; ")) > 0 {
		return false
	}
	return slices.ContainsFunc(words, func(w string) bool { return len(w) == n && bytes.EqualFold(text[:n], []byte(w)) })
}

// trains tells whether a statement in PPL hands its rows on to the command that may make a model of them.
func trains(text []byte) bool {
	for part := range bytes.SplitSeq(text, []byte{'|'}) {
		part = bytes.TrimLeft(part, ` \nrt`)
		if len(part) > 2 && bytes.EqualFold(part[:2], []byte("ml")) && !wordByte(part[2]) {
			return true
		}
	}
	return false
}

// judgeOther tells why a request of an API other than search and count has no key. body is its canonical form.
func judgeOther(r *Request, body []byte, v *Verdict) Reason {
	v.lives(ReasonOther)
	v.NowBound = true // NOW() and templates are not looked into
	if Writes(r.API, r.RawQuery, body) {
		return ReasonStatement
	}
	why := Reason("")
	eachMember(body, 0, func(name, value []byte) bool {
		switch string(name) {
		case "cursor", "wait_for_completion_timeout", "keep_on_completion", "keep_alive":
			why = ReasonScroll // state on the node
		case "profile":
			if string(value) != "false" {
				why = ReasonProfile
			}
		}
		return why == ""
	})
	return why
}

// otherRule returns what a URL parameter does to the key of another API: whatever the table knows of searches, it is in the
// key, unless it keeps a request out.
func otherRule(row param) param {
	switch row.rule {
	case ruleSwitch, ruleSource, ruleSourceType, ruleScroll, ruleProfile, ruleFormat:
		return row
	case ruleFilterPath:
		return param{rule: ruleHides}
	}
	return param{}
}
