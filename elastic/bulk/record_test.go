package bulk

import (
	"bytes"
	"strings"
	"testing"
)

func recordsOf(t testing.TB, body, index, id string) []string {
	t.Helper()
	var s Scanner
	var out []string
	s.Reset([]byte(body))
	for s.Next() {
		out = append(out, string(AppendRecord(nil, []byte(body), s.Action(), []byte(index), []byte(id))))
	}
	return out
}

func TestRecord(t *testing.T) {
	f := func(body, index, id, want string) {
		t.Helper()
		got := recordsOf(t, body, index, id)
		if len(got) != 1 || got[0] != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
	f(`{"index":{}}`+"\n{}\n", "", "", `{"index":{}}`+"\t{}")
	f(`{"index":{}}`+"\n{}\n", "i", "1", `{"index":{"_index":"i","_id":"1"}}`+"\t{}")
	f(`{"create":{"_id":"x"}}`+"\n{\"a\":\t1}\n", "i", "1", `{"create":{"_index":"i","_id":"x"}}`+"\t{\"a\":\t1}")
	f(`{"index":{"_index":"b","routing":"r"}}`+"\r\n{}\r\n", "i", "1", `{"index":{"_id":"1","_index":"b","routing":"r"}}`+"\t{}")
	f(" {\t\"index\" : { \"pipeline\":\"p\" } }\n{}\n", "i", "", ` { "index" : {"_index":"i", "pipeline":"p" } }`+"\t{}")
	f(`{"delete":{"_id":"1"}}`+"\n", "i", "2", `{"delete":{"_index":"i","_id":"1"}}`)
	f(`{"delete":{}}`+"\n", "i", "2", `{"delete":{"_index":"i"}}`) // for the node to refuse
	f(`{"update":{"_id":"1"}}`+"\n{\"doc\":{}}\n", "i", "2", `{"update":{"_index":"i","_id":"1"}}`+"\t{\"doc\":{}}")
	f(`{"index":{}}`+"\n{}\n", `a"\`+"\x01é", "", `{"index":{"_index":"a\"\\\u0001é"}}`+"\t{}")
}

func TestRecordsMakeTheBodyAgain(t *testing.T) {
	body := `{"index":{"_index":"a","_id":"1"}}` + "\n{\"t\":\"x\ty\"}\n" + `{"delete":{"_index":"a","_id":"2"}}` + "\n" + `{"foo":{"_id":"3"}}` + "\n{}\n"
	var again []byte
	for _, r := range recordsOf(t, body, "", "") {
		if strings.Contains(r, "\n") {
			t.Errorf("%q is not one line", r)
		}
		again = AppendAction(again, []byte(r))
	}
	if string(again) != body {
		t.Errorf("%q became %q", body, again)
	}
}

// FuzzRecord holds that a record reads as the action that it was made of.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"index":{"_index":"b","_id":"1"}}`+"\n"+`{"a":1}`+"\n"+`{"delete":{}}`+"\n"), "i", "7")
	f.Add([]byte("\xef\xbb\xbf{\t\"create\"\t:\t{\t}\t} x\r\n{}\r\n"), "<l-{now/d}>", "\"")
	f.Add([]byte(`{"update":{"_id":null,"_index":""}}`+"\n{}\n"), "", "")
	f.Fuzz(func(t *testing.T, body []byte, index, id string) {
		var s, again Scanner
		s.Reset(body)
		for s.Next() {
			a := s.Action()
			record := AppendRecord(nil, body, a, []byte(index), []byte(id))
			if bytes.IndexByte(record, '\n') >= 0 {
				t.Fatalf("%q is not one line", record)
			}
			made := AppendAction(nil, record)
			again.Reset(made)
			if !again.Next() {
				t.Fatalf("%q: no action: %v", made, again.Err())
			}
			b := again.Action()
			if a.Verb != b.Verb || a.Conditional != b.Conditional || !bytes.Equal(a.Source, b.Source) || b.End != len(made) ||
				len(a.ID) > 0 && !bytes.Equal(a.ID, b.ID) || len(a.Index) > 0 && !bytes.Equal(a.Index, b.Index) {
				t.Fatalf("%+v became %+v by %q", a, b, record)
			}
		}
	})
}
