package bulk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir/elastic/api"
)

// actions scans a body into one line an action: verb, index, id, range.
func actions(body string) ([]string, error) {
	var s Scanner
	var got []string
	s.Reset([]byte(body))
	for s.Next() {
		a := s.Action()
		text := fmt.Sprintf("%s %s/%s %d-%d", a.Verb, orNil(a.Index), orNil(a.ID), a.Start, a.End)
		if a.Source != nil {
			text += " " + string(a.Source)
		}
		if a.Conditional {
			text += " conditional"
		}
		got = append(got, text)
	}
	return got, s.Err()
}

func orNil(b []byte) string {
	if b == nil {
		return "nil"
	}
	return string(b)
}

func TestScanner(t *testing.T) {
	f := func(body string, want ...string) {
		t.Helper()
		got, err := actions(body)
		if err != nil {
			t.Errorf("%q: %v", body, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: (-want +got)\n%s", body, d)
		}
	}
	f("")
	f("\n")
	f(`{"index":{"_index":"b","_id":"1"}}`+"\n"+`{"a":1}`+"\n", `index b/1 0-43 {"a":1}`)
	f(`{"index":{}}`+"\n{}\n", "index nil/nil 0-16 {}")

	// A delete has no second line.
	f(`{"delete":{"_id":"1"}}`+"\n", "delete nil/1 0-23")
	f(`{"index":{}}`+"\n{}\n"+`{"delete":{"_id":"1"}}`+"\n"+`{"create":{}}`+"\n{}\n",
		"index nil/nil 0-16 {}", "delete nil/1 16-39", "create nil/nil 39-56 {}")
	f(`{"update":{"_id":"1"}}`+"\n"+`{"doc":{"delete":{}}}`+"\n", `update nil/1 0-45 {"doc":{"delete":{}}}`)

	// Lines.
	f(`{"index":{}}`+"\r\n{}\r\n", "index nil/nil 0-18 {}")
	f("\n\n"+`{"delete":{}}`+"\n \t\r\n\n"+`{"delete":{}}`+"\n\n", "delete nil/nil 2-16", "delete nil/nil 21-35")
	f(`{"index":{}}`+"\n\n", "index nil/nil 0-14 ") // an empty document, for the node to refuse
	f(`{"index":{}}` + "\n")                        // the nodes do not see an action without its document
	f(`{"delete":{}}`+"\n"+`{"index":{}}`+"\n", "delete nil/nil 0-14")
	f("\xef\xbb\xbf"+`{"delete":{}}`+"\n", "delete nil/nil 0-17")

	// Unknown verbs are passed on with their second line.
	f(`{"foo":{"_id":"1"}}`+"\n{}\n"+`{"delete":{}}`+"\n", "other nil/1 0-23 {}", "delete nil/nil 23-37")
	f(`{"Index":{}}`+"\n{}\n", "other nil/nil 0-16 {}")

	// Values.
	f(`{"delete":{"_id":7}}`+"\n", "delete nil/7 0-21")
	f(`{"delete":{"_id":1e1}}`+"\n", "delete nil/1e1 0-23")
	f(`{"delete":{"_id":true}}`+"\n", "delete nil/true 0-24")
	f(`{"delete":{"_id":null,"_index":null}}`+"\n", "delete nil/nil 0-38")
	f(`{"delete":{"_id":""}}`+"\n", "delete nil/ 0-22")
	f(`{"d\u0065lete":{"_\u0069d":"\u0041\"\\\/\b\f\n\r\t\ud83d\ude00\ud83dx\u00E9"}}`+"\n",
		"delete nil/A\"\\/\b\f\n\r\t😀\ufffdxé 0-79")
	f(`{"delete":{"_index":"\u0061","_id":"\u0062"}}`+"\n", "delete a/b 0-46")
	f(`{"delete":{"_index":"<l-{now/d}>","_id":"}{\"]"}}`+"\n", `delete <l-{now/d}>/}{"] 0-50`)
	f(`{"delete":{"_source":{"_id":"x","s":"}\"]"},"l":[1,[{}]],"routing":"r","pipeline":"p","_id":"1"}}`+"\n",
		"delete nil/1 0-98")
	f(` { "delete" : { "_id" : "1" , "_index" : "b" } } `+"\n", "delete b/1 0-50")

	// What the nodes do not look at.
	f(`{"delete":{"_id":"1"}} junk`+"\n", "delete nil/1 0-28")
	f(`{"delete":{"_id":"1"}`+"\n", "delete nil/1 0-22")
	f(`{"delete":{"_id":"1"},"create":{}}`+"\n", "delete nil/1 0-35")

	// Conditions.
	f(`{"index":{"op_type":"create"}}`+"\n{}\n", "create nil/nil 0-34 {}")
	f(`{"index":{"op_type":"index"}}`+"\n{}\n", "index nil/nil 0-33 {}")
	f(`{"delete":{"op_type":"create"}}`+"\n", "delete nil/nil 0-32")
	f(`{"delete":{"if_seq_no":1}}`+"\n", "delete nil/nil 0-27 conditional")
	f(`{"delete":{"if_primary_term":1}}`+"\n", "delete nil/nil 0-33 conditional")
	f(`{"delete":{"version":1}}`+"\n", "delete nil/nil 0-25 conditional")
	f(`{"delete":{"version_type":"external"}}`+"\n", "delete nil/nil 0-39 conditional")
	f(`{"delete":{"version":null}}`+"\n", "delete nil/nil 0-28")
}

func TestMissing(t *testing.T) {
	f := func(line, index, want string) {
		t.Helper()
		var s Scanner
		s.Reset([]byte(line + "\n{}\n"))
		if !s.Next() || s.Action().Missing([]byte(index)) != want {
			t.Errorf("%s at %q lacks %q, want %q", line, index, s.Action().Missing([]byte(index)), want)
		}
	}
	f(`{"index":{}}`, "", "index")
	f(`{"index":{"_index":""}}`, "", "index")
	f(`{"index":{}}`, "i", "")
	f(`{"create":{"_index":"i"}}`, "", "")
	f(`{"update":{"_index":"i"}}`, "", "id")
	f(`{"delete":{"_id":""}}`, "i", "id")
	f(`{"delete":{"_id":"1"}}`, "", "index")
	f(`{"delete":{"_id":"1"}}`, "i", "")
}

func TestVerbOfCall(t *testing.T) {
	f := func(name, query string, want Verb) {
		t.Helper()
		if got := VerbOfCall(name, []byte(query)); got != want {
			t.Errorf("%s?%s: %s, want %s", name, query, got, want)
		}
	}
	f("index", "", Index)
	f("index", "op_type=index&refresh", Index)
	f("index", "refresh&op%5Ftype=create", Create)
	f("create", "", Create)
	f("update", "op_type=create", Update)
	f("delete", "op_type=create", Delete)
	f("bulk", "op_type=create", Other)
	f("", "", Other)
}

func TestScannerWithoutLastNewline(t *testing.T) {
	f := func(body string, want ...string) {
		t.Helper()
		got, err := actions(body)
		if !errors.Is(err, ErrNoNewline) {
			t.Errorf("%q: error %v", body, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: (-want +got)\n%s", body, d)
		}
	}
	f(`{"index":{}}`+"\n{}", "index nil/nil 0-15 {}")
	f(`{"delete":{}}`, "delete nil/nil 0-13")
	f(`{"index":{}}`)
	f(`{"delete":{}}`+"\n ", "delete nil/nil 0-14")
}

func TestScannerSyntaxError(t *testing.T) {
	f := func(line string) {
		t.Helper()
		got, err := actions(`{"delete":{}}` + "\n" + line + "\n" + `{"delete":{}}` + "\n")
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || syntax.Offset != 14 {
			t.Errorf("%q: error %v", line, err)
		}
		if len(got) != 1 {
			t.Errorf("%q: %d actions", line, len(got))
		}
	}
	f("junk")
	f("[]")
	f("\x00")
	f("{}")
	f(`{"delete"}`)
	f(`{"delete":null}`)
	f(`{"delete":"x"}`)
	f(`{delete:{}}`)
	f(`/* c */{"delete":{}}`)
	f(`{"delete":{"_id"}}`)
	f(`{"delete":{"_id":}}`)
	f(`{"delete":{"_id":"1",`)
	f(`{"delete":{"_id":"1"`)
	f(`{"delete":{"_id":"1" "x":2}}`)
	f(`{"delete":{"_id":"1`)
	f(`{"delete":{"_id":"\x"}}`)
	f(`{"delete":{"_id":"\u12"}}`)
	f(`{"delete":{"_id":{"a":"}}`)
	f(`{"delete":{"_id":[1}`)
}

func TestScannerDoesNotAllocate(t *testing.T) {
	body := []byte(strings.Repeat(`{"index":{"_index":"b","_id":"1\n"}}`+"\n{}\n"+`{"delete":{"_id":"1"}}`+"\n", 10))
	var s Scanner
	found := 0
	if n := testing.AllocsPerRun(100, func() {
		s.Reset(body)
		for s.Next() {
			found++
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if found != 101*20 || s.Err() != nil {
		t.Errorf("%d actions, %v", found, s.Err())
	}
}

func TestScannerMemoryIsOfOneAction(t *testing.T) {
	var s Scanner
	s.Reset(bytes.Repeat([]byte(`{"delete":{"_id":"\n234567890"}}`+"\n"), 1000))
	for s.Next() {
	}
	if cap(s.scratch) > 1000 {
		t.Errorf("%d bytes for ids of ten", cap(s.scratch))
	}
}

func TestIdempotency(t *testing.T) {
	f := func(body string, want api.Idempotency) {
		t.Helper()
		if got := Idempotency([]byte(body)); got != want {
			t.Errorf("%q is %s, want %s", body, got, want)
		}
	}
	const indexed, deleted = `{"index":{"_id":"1"}}` + "\n{}\n", `{"delete":{"_id":"1"}}` + "\n"
	f(indexed, api.Idempotent)
	f(deleted, api.Idempotent)
	f(indexed+deleted+"\n", api.Idempotent)
	f("", api.Unsafe)
	f(`{"index":{}}`+"\n{}\n", api.Unsafe)
	f(`{"index":{"_id":""}}`+"\n{}\n", api.Unsafe)
	f(`{"index":{"_id":null}}`+"\n{}\n", api.Unsafe)
	f(`{"index":{"_id":"1","op_type":"create"}}`+"\n{}\n", api.Unsafe)
	f(`{"index":{"_id":"1","version":3}}`+"\n{}\n", api.Unsafe)
	f(`{"delete":{"_id":"1","if_seq_no":3}}`+"\n", api.Unsafe)
	f(indexed+`{"create":{"_id":"1"}}`+"\n{}\n", api.Unsafe)
	f(indexed+`{"update":{"_id":"1"}}`+"\n{}\n", api.Unsafe)
	f(indexed+`{"foo":{"_id":"1"}}`+"\n{}\n", api.Unsafe)
	f(indexed+"junk\n", api.Unsafe)
	f(strings.TrimSuffix(indexed, "\n"), api.Unsafe)
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte(`{"index":{"_index":"b","_id":"1"}}` + "\n" + `{"a":1}` + "\n" + `{"delete":{"_id":"2"}}` + "\n"))
	f.Add([]byte("\r\n" + `{"create":{"_id":"\ud83d\ude00\n"}} x` + "\r\n{}\r\n\n" + `{"update":{"_source":{"a":[1]},"version":null}}` + "\n{}"))
	f.Add([]byte(`{"foo":{"_id":1e1,"l":[{"}":"]"}]}}` + "\n\n" + "\xef\xbb\xbf" + `{"delete":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var s Scanner
		actions := 0
		var joined []byte
		s.Reset(body)
		end := 0
		for s.Next() {
			a := s.Action()
			if a.Start < end || a.End <= a.Start || a.End > len(body) {
				t.Fatalf("range %d-%d after %d in %d bytes", a.Start, a.End, end, len(body))
			}
			if between := bytes.ReplaceAll(body[end:a.Start], utf8BOM, nil); len(bytes.Trim(between, " \t\r\n")) != 0 {
				t.Fatalf("%q lies between actions", between)
			}
			if lines := bytes.Count(body[a.Start:a.End], []byte("\n")); a.End < len(body) && (lines == 1) != (a.Verb == Delete) {
				t.Fatalf("a %s of %d lines", a.Verb, lines)
			}
			compareWithJSON(t, a, body[a.Start:a.End])
			end = a.End
			joined = append(joined, body[a.Start:a.End]...)
			actions++
		}
		if s.Err() == nil && len(body) > 0 && body[len(body)-1] != '\n' {
			t.Errorf("no error without the last line feed")
		}
		if len(joined) > 0 && joined[len(joined)-1] != '\n' {
			joined = append(joined, '\n')
		}
		again := 0
		for s.Reset(joined); s.Next(); again++ {
		}
		if again != actions || s.Err() != nil {
			t.Errorf("%d actions became %d, %v", actions, again, s.Err())
		}
		Idempotency(body)
	})
}

// compareWithJSON reads an action line with encoding/json, where that can read it, and where no key is given twice or in
// another case, on which the library has a view of its own.
func compareWithJSON(t *testing.T, a *Action, action []byte) {
	line, _, _ := bytes.Cut(action, []byte("\n"))
	var want map[string]map[string]any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if d.Decode(&want) != nil || len(want) != 1 || bytes.Contains(line, []byte(`\u`)) || bytes.Contains(line, []byte("\ufffd")) {
		return
	}
	for verb, fields := range want {
		if bytes.Count(line, []byte(`"`)) != 2+quotes(fields) || !json.Valid(bytes.ToValidUTF8(line, nil)) || !bytes.Equal(line, bytes.ToValidUTF8(line, nil)) {
			return
		}
		if verb := verbOf([]byte(verb)); verb != a.Verb && (verb != Index || fields["op_type"] != "create") {
			t.Errorf("verb of %s is %s", line, a.Verb)
		}
		for name, got := range map[string][]byte{"_index": a.Index, "_id": a.ID} {
			switch v := fields[name].(type) {
			case nil:
				if got != nil {
					t.Errorf("%s of %s is %q", name, line, got)
				}
			case string, json.Number, bool:
				if string(got) != fmt.Sprint(v) {
					t.Errorf("%s of %s is %q", name, line, got)
				}
			}
		}
	}
}

// quotes counts the quotes that simple fields need, so that lines with repeated keys or quoted quotes show.
func quotes(fields map[string]any) int {
	n := 0
	for _, v := range fields {
		n += 2
		if _, ok := v.(string); ok {
			n += 2
		}
	}
	return n
}

func BenchmarkScanner(b *testing.B) {
	body := []byte(strings.Repeat(`{"index":{"_index":"logs-2024.05","_id":"abcdefghijkl"}}`+"\n"+
		`{"@timestamp":"2024-05-01T00:00:00Z","message":"`+strings.Repeat("x", 400)+`"}`+"\n", 100))
	var s Scanner
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		for s.Reset(body); s.Next(); {
		}
	}
}

func TestReadLine(t *testing.T) {
	var s Scanner
	f := func(line string, want Action, ok bool) {
		t.Helper()
		a, readable := s.ReadLine([]byte(line))
		if readable != ok {
			t.Fatalf("%s: readable %v, want %v", line, readable, ok)
		}
		if d := cmp.Diff(want, *a, cmpopts.IgnoreUnexported(Action{})); ok && d != "" {
			t.Errorf("%s (-want +got):\n%s", line, d)
		}
	}
	f(`{"delete":{"_id":"1","_index":"a"}}`, Action{Verb: Delete, Index: []byte("a"), ID: []byte("1")}, true)
	f("\xef\xbb\xbf"+`{"index":{"_index":"\u0061"}}`+"\r", Action{Verb: Index, Index: []byte("a")}, true)
	f(`{"index":{}}`, Action{Verb: Index}, true)
	f(`{"index":{"_index":`, Action{}, false)
	f(``, Action{}, false)
}
