package bulk

import (
	"fmt"
	"strconv"
)

// maxID is the most bytes of a document's id.
const maxID = 512

// The types of errors with which nodes refuse a bulk as a whole.
const (
	illegalArgument = "illegal_argument_exception"
	Validation      = "action_request_validation_exception" // a request that was read, and makes no sense
	unreadable      = "x_content_parse_exception"
)

// Versions is what a write says about the version that it is upon, as it is spelled. What it does not say is nil.
type Versions struct {
	Version, Type, SeqNo, Term []byte
}

// said tells whether any of it is said.
func (v *Versions) said() bool {
	return v.Version != nil || v.Type != nil || v.SeqNo != nil || v.Term != nil
}

func (v *Versions) internal() bool { return v.Type == nil || string(v.Type) == "internal" }

// Invalid returns why nodes refuse a write with these versions and this id, nil for one that the node would make, without having
// looked at the document, or "". All of Elasticsearch 7.17 and OpenSearch 2.19 and 3.9 do, in these words.
func (v *Versions) Invalid(verb Verb, id []byte) string {
	switch {
	case (verb == Index || verb == Create) && len(id) > maxID:
		return fmt.Sprintf("id [%s] is too long, must be no longer than %d bytes but was: %d", id, maxID, len(id))
	case !v.said():
		return ""
	case verb == Create && !v.internal():
		return "create operations only support internal versioning. use index instead"
	case verb == Create && v.Version != nil:
		return "create operations do not support explicit versions. use index instead"
	case verb == Create && (v.SeqNo != nil || v.Term != nil):
		return "create operations do not support compare and set. use index instead"
	case verb == Index && id == nil && (v.Version != nil || !v.internal()):
		return "an id must be provided if version type or value are set"
	case v.internal() && v.Version != nil && !anyVersion(v.Version), verb == Update && !v.internal():
		return "internal versioning can not be used for optimistic concurrency control. Please use `if_seq_no` and `if_primary_term` instead"
	case !v.internal() && v.Version == nil:
		return fmt.Sprintf("illegal version value [-3] for version type [%s]", v.Type)
	case v.SeqNo != nil && v.Term == nil:
		return "ifSeqNo is set, but primary term is [0]"
	case v.SeqNo == nil && v.Term != nil:
		return fmt.Sprintf("ifSeqNo is unassigned, but primary term is [%s]", v.Term)
	}
	return ""
}

// anyVersion tells whether a version is one of those by which nodes mean any (-3), or none (-4).
func anyVersion(version []byte) bool { return string(version) == "-3" || string(version) == "-4" }

// IsVersionType tells whether b is a type of versions.
func IsVersionType(b []byte) bool {
	switch string(b) {
	case "internal", "external", "external_gt", "external_gte":
		return true
	}
	return false
}

// A fault is the first thing of an action line that nodes refuse.
type fault struct {
	kind        faultKind
	name, value []byte
}

type faultKind uint8

const (
	noFault faultKind = iota
	unknownName
	objectValue
	arrayValue
	noBoolean
	noNumber
	noVersionType
	negative
)

// faultOf looks at a member of an action's object, whose value begins with the byte first and is not null. What only some of the
// supported versions know is none: _type is a parameter of Elasticsearch 7, list_executed_pipelines and require_data_stream of 8.
func faultOf(name, value []byte, first byte) faultKind {
	if first == '[' {
		return arrayValue
	}
	if first == '{' {
		if n := string(name); n == "_source" || n == "dynamic_templates" {
			return noFault
		}
		return objectValue
	}
	switch string(name) {
	case "_index", "_id", "_type", "routing", "op_type", "pipeline", "_source", "dynamic_templates":
		return noFault
	case "require_alias", "require_data_stream", "list_executed_pipelines":
		if v := string(value); v != "true" && v != "false" {
			return noBoolean
		}
	case "version", "if_primary_term", "retry_on_conflict":
		if _, err := strconv.ParseFloat(string(value), 64); err != nil { // fractions are cut off
			return noNumber
		}
	case "if_seq_no":
		n, err := strconv.ParseFloat(string(value), 64)
		switch {
		case err != nil:
			return noNumber
		case n < 0:
			return negative
		}
	case "version_type":
		if !IsVersionType(value) {
			return noVersionType
		}
	default:
		return unknownName
	}
	return noFault
}

// describe says what is wrong with the action line of that number, counted from 1.
func (f *fault) describe(line int) string {
	switch f.kind {
	case unknownName:
		return fmt.Sprintf("Action/metadata line [%d] contains an unknown parameter [%s]", line, f.name)
	case objectValue, arrayValue:
		token := "START_OBJECT"
		if f.kind == arrayValue {
			token = "START_ARRAY"
		}
		return fmt.Sprintf("Malformed action/metadata line [%d], expected a simple value for field [%s] but found [%s]", line, f.name, token)
	case noBoolean:
		return fmt.Sprintf("Failed to parse value [%s] as only [true] or [false] are allowed.", f.value)
	case noNumber:
		return fmt.Sprintf("For input string: %q", f.value)
	case noVersionType:
		return fmt.Sprintf("No version type match [%s]", f.value)
	}
	return fmt.Sprintf("sequence numbers must be non negative. got [%s].", f.value)
}

// Refusal returns the type and the reason of the error with which nodes refuse a whole bulk because of this action, or "". line is
// the number of its first line and number its own, both counted from 1; index is that of the URL. Documents are not looked at, and
// what only some of the supported versions refuse is not told.
func (a *Action) Refusal(line, number int, index []byte) (typ, reason string) {
	if a.Verb == Other {
		return illegalArgument, fmt.Sprintf("Malformed action/metadata line [%d], expected field [create], [delete], [index] or [update]", line)
	}
	if a.fault.kind != noFault {
		return illegalArgument, a.fault.describe(line)
	}
	if a.Verb == Update && (a.versions.Version != nil || !a.versions.internal()) {
		return illegalArgument, "Update requests do not support versioning. Please use `if_seq_no` and `if_primary_term` instead"
	}
	if a.Verb == Update {
		if typ, reason = UpdateRefusal(a.Source); typ == unreadable {
			return typ, reason
		}
	}
	if missing := a.Missing(index); missing != "" {
		return Validation, fmt.Sprintf("Validation Failed: %d: %s is missing;", number, missing)
	}
	if invalid := a.versions.Invalid(a.Verb, a.ID); invalid != "" {
		return Validation, fmt.Sprintf("Validation Failed: %d: %s;", number, invalid)
	}
	if reason != "" {
		return typ, fmt.Sprintf("Validation Failed: %d: %s;", number, reason)
	}
	return "", ""
}

// UpdateRefusal returns the type and the reason of the error with which nodes refuse an update because of its body, or "". The type
// Validation goes with a reason that the number of the action belongs in front of. The document and the script are not read, and
// comments, which nodes let stand, are refused.
func UpdateRefusal(body []byte) (typ, reason string) {
	var s Scanner
	l := lexer{b: body}
	malformed := func(why string) (string, string) { return unreadable, "[UpdateRequest] " + why }
	if !l.take('{') {
		return malformed("Expected START_OBJECT")
	}
	var document, script bool
	for first := true; !l.take('}'); first = false {
		if !first && !l.take(',') {
			return malformed("no comma between fields")
		}
		name, ok := s.text(&l)
		if !ok || !l.take(':') {
			return malformed("no name of a field")
		}
		c := l.peek()
		if _, ok = s.value(&l); !ok {
			return malformed(fmt.Sprintf("failed to parse field [%s]", name))
		}
		switch string(name) {
		case "doc", "upsert":
			if c != '{' {
				return malformed(fmt.Sprintf("%s is no object", name))
			}
			document = document || string(name) == "doc"
		case "script":
			if c != '{' && c != '"' {
				return malformed("script is neither an object nor a string")
			}
			script = true
		case "scripted_upsert", "doc_as_upsert", "detect_noop", "_source", "if_seq_no", "if_primary_term":
		default:
			return malformed(fmt.Sprintf("unknown field [%s]", name))
		}
	}
	switch {
	case document && script:
		return Validation, "can't provide both script and doc"
	case !document && !script:
		return Validation, "script or doc is missing"
	}
	return "", ""
}
