package bulk

import (
	"strings"
	"testing"
)

// The reasons are those of Elasticsearch 7.17 and OpenSearch 2.19 and 3.9.
func TestRefusal(t *testing.T) {
	f := func(body, typ, reason string) {
		t.Helper()
		var s Scanner
		s.Reset([]byte(body))
		if !s.Next() {
			t.Fatalf("%s: no action: %v", body, s.Err())
		}
		if gotType, got := s.Action().Refusal(3, 2, []byte("a")); gotType != typ || got != reason {
			t.Errorf("%s: %s: %s, want %s: %s", body, gotType, got, typ, reason)
		}
	}
	taken := func(body string) { t.Helper(); f(body, "", "") }
	line := func(line, reason string) { t.Helper(); f(line+"\n{}\n", illegalArgument, reason) }
	invalid := func(line, reason string) {
		t.Helper()
		f(line+"\n{}\n", Validation, "Validation Failed: 2: "+reason+";")
	}

	taken(`{"index":{"_type":"_doc","routing":5,"pipeline":"p","require_alias":"true","dynamic_templates":{"a":"b"},"_source":{"includes":["a"]}}}` + "\n{}\n")
	taken(`{"index":{"_id":"1","version":"5","version_type":"external","unknown":null,"list_executed_pipelines":true}}` + "\n{}\n")
	taken(`{"index":{"if_seq_no":0,"if_primary_term":1,"retry_on_conflict":3,"op_type":"none"}}` + "\n{}\n")
	taken(`{"create":{"_id":"1","version_type":"internal"}}` + "\n{}\n")
	taken(`{"delete":{"_id":"` + strings.Repeat("x", 513) + `"}}` + "\n")
	line(`{"index":{"foo":1}}`, "Action/metadata line [3] contains an unknown parameter [foo]")
	line(`{"index":{"_routing":"a"}}`, "Action/metadata line [3] contains an unknown parameter [_routing]")
	line(`{"index":{"routing":{"a":1}}}`, "Malformed action/metadata line [3], expected a simple value for field [routing] but found [START_OBJECT]")
	line(`{"index":{"_index":["a"]}}`, "Malformed action/metadata line [3], expected a simple value for field [_index] but found [START_ARRAY]")
	line(`{"index":{"require_alias":"foo"}}`, "Failed to parse value [foo] as only [true] or [false] are allowed.")
	line(`{"index":{"version":"abc"}}`, `For input string: "abc"`)
	line(`{"index":{"if_seq_no":-7}}`, "sequence numbers must be non negative. got [-7].")
	line(`{"index":{"version_type":"foo"}}`, "No version type match [foo]")
	line(`{"update":{"_id":"1","version":5}}`, "Update requests do not support versioning. Please use `if_seq_no` and `if_primary_term` instead")
	line(`{"none":{}}`, "Malformed action/metadata line [3], expected field [create], [delete], [index] or [update]")
	invalid(`{"create":{"_id":"1","version":3,"version_type":"external"}}`, "create operations only support internal versioning. use index instead")
	invalid(`{"index":{"_id":"1","op_type":"create","version":3}}`, "create operations do not support explicit versions. use index instead")
	invalid(`{"create":{"if_seq_no":3}}`, "create operations do not support compare and set. use index instead")
	invalid(`{"index":{"version":3,"version_type":"external"}}`, "an id must be provided if version type or value are set")
	invalid(`{"index":{"_id":"1","version_type":"external"}}`, "illegal version value [-3] for version type [external]")
	invalid(`{"index":{"_id":"1","version":3}}`,
		"internal versioning can not be used for optimistic concurrency control. Please use `if_seq_no` and `if_primary_term` instead")
	invalid(`{"index":{"if_seq_no":3}}`, "ifSeqNo is set, but primary term is [0]")
	invalid(`{"index":{"if_primary_term":1}}`, "ifSeqNo is unassigned, but primary term is [1]")
	long := strings.Repeat("x", 513)
	invalid(`{"index":{"_id":"`+long+`"}}`, "id ["+long+"] is too long, must be no longer than 512 bytes but was: 513")
	invalid(`{"update":{"_id":"1"}}`, "script or doc is missing")
}

func TestUpdateRefusal(t *testing.T) {
	f := func(body, typ, reason string) {
		t.Helper()
		if gotType, got := UpdateRefusal([]byte(body)); gotType != typ || got != reason {
			t.Errorf("%s: %s: %s, want %s: %s", body, gotType, got, typ, reason)
		}
	}
	f("{\n  \"doc\": {\"a\": [1, \"}\"]},\r\n\t\"doc_as_upsert\": true }\n", "", "")
	f(`{"script":"x","upsert":{},"scripted_upsert":true,"detect_noop":false,"_source":["a"],"if_seq_no":1,"if_primary_term":1} x`, "", "")
	f(`{}`, Validation, "script or doc is missing")
	f(`{"upsert":{}}`, Validation, "script or doc is missing")
	f(`{"doc":{},"script":{"source":"x"}}`, Validation, "can't provide both script and doc")
	f(`{"foo":1}`, unreadable, "[UpdateRequest] unknown field [foo]")
	f(`{"doc":`, unreadable, "[UpdateRequest] failed to parse field [doc]")
	f(`{"doc":{}`, unreadable, "[UpdateRequest] no comma between fields")
	f(`{"doc":null}`, unreadable, "[UpdateRequest] doc is no object")
	f(`{"script":null}`, unreadable, "[UpdateRequest] script is neither an object nor a string")
	f(``, unreadable, "[UpdateRequest] Expected START_OBJECT")
	f(`{5:1}`, unreadable, "[UpdateRequest] no name of a field")
}
