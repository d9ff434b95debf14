package query

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestHeaderIndices(t *testing.T) {
	f := func(line, want string, readable bool) {
		t.Helper()
		var got []string
		ok := HeaderIndices([]byte(line), func(expr []byte) { got = append(got, string(expr)) })
		if ok != readable || strings.Join(got, " ") != want {
			t.Errorf("%s: %v %q, want %v %q", line, ok, got, readable, want)
		}
	}
	f(``, "", true)
	f(`{}`, "", true)
	f(` {"index": "a"} `, "a", true)
	f(`{"preference":"x","index":["a","b-*", "c,d"],"routing":null}`, "a b-* c d", true)
	f(`{"index":"a,b,"}`, "a b", true)
	f(`{"indices":["a"],"index":"b"}`, "a b", true)
	f(`{"index":"\u0061\/"}`, "a/", true)
	f(`{"index":null}`, "", true)
	f(`{"index":[]}`, "", true)
	f(`{"\u0069ndex":"a"}`, "", false)
	f(`{"index":1}`, "", false)
	f(`{"index":["a",1]}`, "a", false)
	f(`{"index":"a"`, "a", false)
	f(`{"index":"a"} /**/`, "a", false)
	f(`[]`, "", false)
}

func TestSearchIndices(t *testing.T) {
	f := func(body, want string, readable bool) {
		t.Helper()
		var got []string
		ok := SearchIndices([]byte(body), func(expr []byte) { got = append(got, string(expr)) })
		if ok != readable || strings.Join(got, " ") != want {
			t.Errorf("%q: %v %q, want %v %q", body, ok, got, readable, want)
		}
	}
	f("", "", true)
	f("{}\n{\"index\":\"a\"}\n{\"index\":\"b\"}\n{}\n{\"index\":\"c\"}", "b c", true)
	f("{\"index\":\"a\"}\n{}\n\n{}\n{\"index\":\"b\"}\n{}\n", "a b", true)
	f("\n{\"index\":\"a\"}\n{\"index\":\"b\"}\n", "a b", true)
	f("{}\n{\"\\u0061\":1}\n", "", true)
	f("{\"\\u0061\":1}\n{}\n", "", false)
}

func TestDocIndices(t *testing.T) {
	f := func(body, want string, readable bool) {
		t.Helper()
		var got []string
		ok := DocIndices([]byte(body), func(index []byte) {
			if index == nil {
				index = []byte("(path)")
			}
			got = append(got, string(index))
		})
		if ok != readable || strings.Join(got, " ") != want {
			t.Errorf("%s: %v %q, want %v %q", body, ok, got, readable, want)
		}
	}
	f(` {"docs":[{"_index":"a","_id":"1"},{"_id":"2"},{"_id":3,"_index":"b"}]} `, "a (path) b", true)
	f(`{"ids":["1","2"]}`, "(path)", true)
	f(`{"docs":["1"]}`, "(path)", true)
	f(`{"docs":[{"_index":"\u0061"}],"ids":[]}`, "a (path)", true)
	f(`{"docs":[]}`, "", true)
	f(`{}`, "", false)
	f(``, "", false)
	f(`{"docs":{}}`, "", false)
	f(`{"docs":[1]}`, "(path)", false)
	f(`{"docs":[{"\u005findex":"a"}]}`, "(path)", false)
	f(`{"docs":[{"_index":"a"}]`, "a", false)
}

func TestPointInTime(t *testing.T) {
	f := func(body string, want bool) {
		t.Helper()
		if got := PointInTime([]byte(body)); got != want {
			t.Errorf("%s: got %v", body, got)
		}
	}
	f(`{"size":1,"pit":{"id":"x"}}`, true)
	f(`{"query":{"match":{"pit":{}}}}`, false)
	f(`{"pit":null}`, false)
	f(`{"pit":{"id":"x"}`, false)
	f(``, false)
}

// FuzzNamedIndices holds what is read of a line and a body against encoding/json: whatever that finds is found.
func FuzzNamedIndices(f *testing.F) {
	f.Add(`{"index":["a","b,c"],"indices":"d"}`)
	f.Add(`{"docs":[{"_index":"a"},"x"],"ids":[1]}`)
	f.Add(`{"\u0069ndex":"a","index":"b"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var header struct {
			Index any `json:"index"`
			Docs  []struct {
				Index any `json:"_index"`
			} `json:"docs"`
		}
		var found, docs []string
		readable := HeaderIndices([]byte(text), func(expr []byte) { found = append(found, string(expr)) })
		readableDocs := DocIndices([]byte(text), func(index []byte) { docs = append(docs, string(index)) })
		var exact map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &exact) != nil || json.Unmarshal([]byte(text), &header) != nil {
			return
		}
		name, _ := header.Index.(string)
		if _, spelled := exact["index"]; spelled && readable && name != "" && strings.ToValidUTF8(text, "") == text && !strings.Contains(strings.ToLower(text), "index\":[") {
			for part := range strings.SplitSeq(name, ",") {
				if part != "" && !slices.Contains(found, part) && strings.Count(strings.ToLower(text), `index"`) == 1 {
					t.Errorf("%s: %q is not among %q", text, part, found)
				}
			}
		}
		if _, spelled := exact["docs"]; spelled && readableDocs && len(docs) < len(header.Docs) && strings.Count(strings.ToLower(text), `docs"`) == 1 {
			t.Errorf("%s: %d documents, found %q", text, len(header.Docs), docs)
		}
	})
}
