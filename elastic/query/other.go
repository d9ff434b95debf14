package query

import "slices"

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

// judgeOther tells why a request of an API other than search and count has no key. body is its canonical form.
func judgeOther(body []byte, v *Verdict) Reason {
	v.lives(ReasonOther)
	v.NowBound = true // NOW() and templates are not looked into
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
