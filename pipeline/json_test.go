package pipeline

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestIDOf(t *testing.T) {
	f := func(record, want string) {
		t.Helper()
		if got := string(idOf([]byte(record))); got != want {
			t.Errorf("%s: %s, want %s", record, got, want)
		}
	}
	f(`{"event":{"id":"a"}}`, `"a"`)
	f(`{"event.id":"a"}`, `"a"`)
	f(` { "x" : [ {"event":{"id":"no"}}, "}" ] , "event" : { "kind":"k", "id" : "a\"b" } }`, `"a\"b"`)
	f(`{"x":-1.5e3,"y":null,"event":{"id":"a"}}`, `"a"`)
	f(`{"event":{"id":7}}`, ``)
	f(`{"event":{"id":""}}`, ``)
	f(`{"event":{"id":"`+strings.Repeat("x", 513)+`"}}`, ``)
	f(`{"event":"id"}`, ``)
	f(`{"event":{"id":"a`, ``)
	f(`{"event":{}}`, ``)
	f(`{}`, ``)
	f(`[]`, ``)
	f(`"event"`, ``)
	f(``, ``)
}

func FuzzMember(f *testing.F) {
	f.Add(`{"event":{"id":"a"},"x":[1,{"y":"]"}]}`, "x")
	f.Add(`{"a\"b":"\\","b":-1.5e3 , "c":null}`, "b")
	f.Add(`{"a":"unfinished`, "a")
	f.Add("{\"a\"\t:\r{}}", "a")
	f.Fuzz(func(t *testing.T, text, name string) {
		got := member([]byte(text), name)
		var o map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &o) != nil || o == nil || strings.Contains(text, `\`) {
			return // it must not crash, and says of other texts whatever it likes
		}
		want, there := o[name]
		if there != (got != nil) {
			t.Fatalf("%q in %s: %q, want %q", name, text, got, want)
		}
		if there && strings.Count(text, `"`+name+`"`) == 1 && string(got) != strings.Trim(string(want), " \t\r\n") {
			t.Fatalf("%q in %s: %q, want %q", name, text, got, want)
		}
	})
}
