package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func canonical(t testing.TB, body string) string {
	t.Helper()
	var c Canon
	out, _, err := c.Body(nil, []byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return string(out)
}

func TestBodySameSearch(t *testing.T) {
	f := func(a, b string) {
		t.Helper()
		if ca, cb := canonical(t, a), canonical(t, b); ca != cb {
			t.Errorf("%s and %s are one search, got\n%s\n%s", a, b, ca, cb)
		}
	}
	f(``, `{}`)
	f(`{}`, ` { } `)
	f(`{"size":1,"from":2}`, "{ \"from\" : 2,\n\"size\":\t1 }")
	f(`{"query":{"bool":{"must":[{"term":{"b":1,"a":2}}],"filter":[]}}}`, `{"query":{"bool":{"filter":[],"must":[{"term":{"a":2,"b":1}}]}}}`)
	f(`{"query":{"term":{"a":"\u0061\/\u00e9\n"}}}`, `{"query":{"term":{"\u0061":"a/é\u000A"}}}`)
	f(`{"a":"\ud83d\ude00"}`, `{"a":"😀"}`)
	f(`{"a":"\u0022\u005c\b\f\r\t"}`, `{"a":"\"\\\u0008\u000c\u000d\u0009"}`)
	f(`{"a":"\u007f\u2028"}`, "{\"a\":\"\x7f\u2028\"}")
	f(`{"timeout":"1s","size":1}`, `{"size":1}`)
	f(`{"stats":["a","b"],"timeout":"30ms"}`, `{}`)
	f(`{"size":1,"\u0074imeout":"1s","from":0}`, `{"from":0,"size":1}`)
	f(`{"query":{"range":{"t":{"lte":5,"gte":1}}}}`, `{"query":{"range":{"t":{"gte":1,"lte":5}}}}`)
}

func TestBodyOtherSearch(t *testing.T) {
	f := func(a, b string) {
		t.Helper()
		if ca, cb := canonical(t, a), canonical(t, b); ca == cb {
			t.Errorf("%s and %s are two searches, both got %s", a, b, ca)
		}
	}
	// Elasticsearch sorts by the first name first.
	f(`{"sort":{"a":"asc","b":"desc"}}`, `{"sort":{"b":"desc","a":"asc"}}`)
	f(`{"sort":[{"a":"asc","b":"desc"}]}`, `{"sort":[{"b":"desc","a":"asc"}]}`)
	f(`{"s\u006frt":{"a":"asc","b":"desc"}}`, `{"sort":{"b":"desc","a":"asc"}}`)
	f(`{"aggs":{"x":{"top_hits":{"sort":{"a":"asc","b":"desc"}}}}}`, `{"aggs":{"x":{"top_hits":{"sort":{"b":"desc","a":"asc"}}}}}`)
	f(`{"indices_boost":{"a*":1,"ab":2}}`, `{"indices_boost":{"ab":2,"a*":1}}`)
	f(`{"aggs":{"x":{"terms":{"order":{"a":"asc","b":"asc"}}}}}`, `{"aggs":{"x":{"terms":{"order":{"b":"asc","a":"asc"}}}}}`)
	// The last of two names for one thing counts.
	f(`{"query":{"range":{"t":{"gt":5,"gte":1}}}}`, `{"query":{"range":{"t":{"gte":1,"gt":5}}}}`)
	f(`{"query":{"range":{"t":{"to":5,"lt":1}}}}`, `{"query":{"range":{"t":{"lt":1,"to":5}}}}`)
	f(`{"aggs":{"a":{}},"aggregations":{"b":{}}}`, `{"aggregations":{"b":{}},"aggs":{"a":{}}}`)
	f(`{"query":{"term":{"a":{"term":1,"value":2}}}}`, `{"query":{"term":{"a":{"value":2,"term":1}}}}`)
	// Literals are text.
	f(`{"query":{"term":{"k":1}}}`, `{"query":{"term":{"k":1.0}}}`)
	f(`{"query":{"term":{"k":1}}}`, `{"query":{"term":{"k":1e0}}}`)
	f(`{"query":{"term":{"k":1}}}`, `{"query":{"term":{"k":"1"}}}`)
	f(`{"query":{"term":{"k":0}}}`, `{"query":{"term":{"k":-0}}}`)
	f(`{"query":{"term":{"k":"true"}}}`, `{"query":{"term":{"k":true}}}`)
	f(`{"query":{"term":{"id":9007199254740992}}}`, `{"query":{"term":{"id":9007199254740993}}}`)
	// Arrays are lists.
	f(`{"search_after":[1,2]}`, `{"search_after":[2,1]}`)
	// What a node refuses stays, and so does what is not at the top.
	f(`{"timeout":"banana"}`, `{}`)
	f(`{"timeout":5}`, `{}`)
	f(`{"stats":"a"}`, `{}`)
	f(`{"query":{"term":{"timeout":"1s"}}}`, `{"query":{"term":{}}}`)
	f(`{"a":"\\u0061"}`, `{"a":"\u0061"}`)
}

func TestBodyRefused(t *testing.T) {
	f := func(body string, want NotCanonical) {
		t.Helper()
		var c Canon
		out, facts, err := c.Body([]byte("before"), []byte(body))
		if !errors.Is(err, want) {
			t.Errorf("%.80q: got error %v, want %v", body, err, want)
		}
		if string(out) != "before" || facts != (Facts{}) {
			t.Errorf("%.80q: got %q and %+v beside the error", body, out, facts)
		}
	}
	f(`{"a":1,"a":1}`, DuplicateKey)
	f(`{"a":1,"b":2,"\u0061":3}`, DuplicateKey)
	f(`{"1":{"2":{"3":{"4":{"a":1,"c":1,"b":2,"a":3}}}}}`, DuplicateKey)
	f(`{"sort":{"a":1,"b":2,"a":3}}`, DuplicateKey)
	f(`{"timeout":"1s","timeout":"1s"}`, DuplicateKey)
	f(`{"timeout":"1s","timeout":"banana"}`, DuplicateKey)
	f(`{"stats":["a"],"stats":["a"]}`, DuplicateKey)
	f(`{"size":1 /* comment */}`, NotJSON)
	f(" \n\t\r", NotJSON)
	f("{\"size\":1} // comment", TrailingData)
	f("\ufeff{}", NotJSON)
	f(`{"a":NaN}`, NotJSON)
	f(`{"a":01}`, NotJSON)
	f(`{"a":1.}`, NotJSON)
	f(`{"a":.5}`, NotJSON)
	f(`{"a":1e}`, NotJSON)
	f(`{"a":+1}`, NotJSON)
	f(`{"a":tru}`, NotJSON)
	f(`{'a':1}`, NotJSON)
	f(`{a:1}`, NotJSON)
	f(`{"a":1,}`, NotJSON)
	f(`{"a":[1,]}`, NotJSON)
	f(`{,}`, NotJSON)
	f(`{"a" 1}`, NotJSON)
	f(`{"a":}`, NotJSON)
	f(`{"a":1`, NotJSON)
	f(`{"a":"`, NotJSON)
	f(`{"a":"\x"}`, NotJSON)
	f(`{"a":"\u12"}`, NotJSON)
	f("{\"a\":\"\n\"}", NotJSON)
	f("{\"a\":\"\xff\"}", BadText)
	f(`{"a":"\ud83d"}`, BadText)
	f(`{"a":"\ude00\ud83d"}`, BadText)
	f(`{"a":"\ud83d\u0041"}`, BadText)
	f(`{"\udfff":1}`, BadText)
	f(`{}{}`, TrailingData)
	f(`{}x`, TrailingData)
	f("{}\x00", TrailingData)
	f(`[]`, NotObject)
	f(`"a"`, NotObject)
	f(`null`, NotObject)
	f(`nul`, NotJSON)
	f(`{"a":`+strings.Repeat("[", maxDepth)+strings.Repeat("]", maxDepth)+"}", TooDeep)
	f(strings.Repeat(`{"a":`, 200), TooDeep)

	var b strings.Builder
	b.WriteString(`{"a":1`)
	for i := range maxMembers {
		fmt.Fprintf(&b, `,"%d":1`, i)
	}
	b.WriteString("}")
	f(b.String(), TooManyMembers)
}

func TestBodyDeepest(t *testing.T) {
	body := `{"a":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + "}"
	if got := canonical(t, body); got != body {
		t.Errorf("got %s", got)
	}
}

func TestDropped(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		var c Canon
		if _, _, err := c.Body(nil, []byte(body)); err != nil {
			t.Fatal(err)
		}
		if got := string(c.Dropped(nil)); got != want {
			t.Errorf("%s: dropped %q, want %q", body, got, want)
		}
	}
	f(`{}`, ``)
	f(`{"size":1}`, ``)
	f(`{"timeout":"1s","size":1}`, `"timeout":"1s",`)
	f(`{"stats":["a" , "b"],"timeout":"1s"}`, `"timeout":"1s","stats":["a","b"],`)
	f(`{"timeout":"1s","stats":["a","b"]}`, `"timeout":"1s","stats":["a","b"],`)
}

func TestCanonForgets(t *testing.T) {
	var c Canon
	if _, facts, err := c.Body(nil, []byte(`{"timeout":"1s","profile":true,"b":{"c":[`)); err == nil || facts != (Facts{}) {
		t.Fatalf("got %v, %+v", err, facts)
	}
	out, facts, err := c.Body([]byte("x"), []byte(`{"b":1,"a":2}`))
	if err != nil || string(out) != `x{"a":2,"b":1}` || facts != (Facts{}) || len(c.Dropped(nil)) != 0 {
		t.Errorf("got %s, %+v, %v, dropped %q", out, facts, err, c.Dropped(nil))
	}
}

// A node is a JSON value that renders its members in any order.
type node struct {
	text    string // of a scalar
	array   bool
	names   []string
	members []node
}

func genNode(names []string) *rapid.Generator[node] {
	var gen func(depth int) *rapid.Generator[node]
	gen = func(depth int) *rapid.Generator[node] {
		return rapid.Custom(func(t *rapid.T) node {
			kind := rapid.IntRange(0, 2).Draw(t, "kind")
			if depth == 0 {
				kind = 2
			}
			switch kind {
			case 0:
				n := node{names: rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 6, rapid.ID).Draw(t, "names")}
				for range n.names {
					n.members = append(n.members, gen(depth-1).Draw(t, "member"))
				}
				return n
			case 1:
				return node{array: true, members: rapid.SliceOfN(gen(depth-1), 0, 4).Draw(t, "array")}
			}
			return node{text: rapid.SampledFrom([]string{`1`, `1.0`, `-0`, `"a"`, `"\n"`, `"é"`, `true`, `null`, `9007199254740993`}).Draw(t, "scalar")}
		})
	}
	return rapid.Custom(func(t *rapid.T) node {
		n := node{names: rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 8, rapid.ID).Draw(t, "names")}
		for range n.names {
			n.members = append(n.members, gen(4).Draw(t, "member"))
		}
		return n
	})
}

// render writes n with the members of each object in an order of t's choice, unless t is nil.
func (n node) render(b *bytes.Buffer, t *rapid.T) {
	switch {
	case n.text != "":
		b.WriteString(n.text)
	case n.array:
		b.WriteByte('[')
		for i, m := range n.members {
			if i > 0 {
				b.WriteString(" , ")
			}
			m.render(b, t)
		}
		b.WriteByte(']')
	default:
		order := make([]int, len(n.members))
		for i := range order {
			order[i] = i
		}
		if t != nil {
			order = rapid.Permutation(order).Draw(t, "order")
		}
		b.WriteByte('{')
		for i, at := range order {
			if i > 0 {
				b.WriteString(",\n")
			}
			name, _ := json.Marshal(n.names[at])
			b.Write(name)
			b.WriteString(": ")
			n.members[at].render(b, t)
		}
		b.WriteByte('}')
	}
}

func TestBodyPermuted(t *testing.T) {
	names := []string{"a", "b", "B", "ab", "é", "\n", `"`, "", "query", "bool", "gte", "lte", "x1", "x2", "x3", "x4", "x5", "😀"}
	rapid.Check(t, func(t *rapid.T) {
		n := genNode(names).Draw(t, "body")
		var a, b bytes.Buffer
		n.render(&a, nil)
		n.render(&b, t)
		var c Canon
		ca, fa, err := c.Body(nil, a.Bytes())
		if err != nil {
			t.Fatalf("%s: %v", a.Bytes(), err)
		}
		cb, fb, err := c.Body(nil, b.Bytes())
		if err != nil {
			t.Fatalf("%s: %v", b.Bytes(), err)
		}
		if !bytes.Equal(ca, cb) || fa != fb {
			t.Fatalf("%s\nand %s\ngot %s\nand %s", a.Bytes(), b.Bytes(), ca, cb)
		}
	})
}

func TestBodyKeepsOrderInSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := genNode([]string{"a", "b", "c", "d"}).Draw(t, "sort")
		var plain, permuted bytes.Buffer
		n.render(&plain, nil)
		n.render(&permuted, t)
		var c Canon
		ca, _, err := c.Body(nil, []byte(`{"sort":`+plain.String()+`}`))
		if err != nil {
			t.Fatal(err)
		}
		cb, _, err := c.Body(nil, []byte(`{"sort":`+permuted.String()+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if same := plain.String() == permuted.String(); same != bytes.Equal(ca, cb) {
			t.Fatalf("%s\nand %s\ngot %s\nand %s", plain.String(), permuted.String(), ca, cb)
		}
	})
}

// model judges a body the slow way: with encoding/json.
func model(body []byte) (value any, ok bool) {
	if len(body) == 0 {
		return map[string]any{}, true
	}
	if !json.Valid(body) || !bytes.Equal(bytes.ToValidUTF8(body, nil), body) || loneSurrogate(body) {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	value, ok = distinct(d, 0)
	if _, object := value.(map[string]any); !object {
		return nil, false
	}
	return value, ok
}

// distinct decodes a value and refuses objects with two members of one name.
func distinct(d *json.Decoder, depth int) (any, bool) {
	tok, err := d.Token()
	if err != nil || depth > maxDepth {
		return nil, false
	}
	switch tok {
	case json.Delim('{'):
		if depth == maxDepth {
			return nil, false
		}
		m := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, false
			}
			if _, ok := m[key.(string)]; ok {
				return nil, false
			}
			v, ok := distinct(d, depth+1)
			if !ok {
				return nil, false
			}
			m[key.(string)] = v
		}
		_, err := d.Token()
		return m, err == nil
	case json.Delim('['):
		if depth == maxDepth {
			return nil, false
		}
		a := []any{}
		for d.More() {
			v, ok := distinct(d, depth+1)
			if !ok {
				return nil, false
			}
			a = append(a, v)
		}
		_, err := d.Token()
		return a, err == nil
	}
	return tok, true
}

// loneSurrogate looks for half a pair of surrogates in valid JSON.
func loneSurrogate(body []byte) bool {
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		i++
		if body[i] != 'u' {
			continue
		}
		r, _ := hex4(body, i+1)
		i += 4
		if r < 0xd800 || r >= 0xe000 {
			continue
		}
		if r >= 0xdc00 || i+2 >= len(body) || body[i+1] != '\\' || body[i+2] != 'u' {
			return true
		}
		if low, _ := hex4(body, i+3); low < 0xdc00 || low >= 0xe000 {
			return true
		}
		i += 6
	}
	return false
}

func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		``, ` `, `{}`, `[]`, `{"a":1}`, `{"b":{"d":[1,2,{"z":1,"y":2}],"c":null},"a":"x"}`,
		`{"sort":{"b":"asc","a":{"order":"desc"}},"size":0}`, `{"a":1,"a":2}`, `{"a":"\ud83d\ude00\u0000\/"}`, `{"a":"\ud83d"}`,
		`{"timeout":"1s","stats":["x"],"size":1.50e+10}`, `{"a":-0.0e-1,"b":01}`, `{"query":{"range":{"t":{"gt":5,"gte":1}}}}`,
		"\ufeff{}", `{"a":1}/**/`, "{\"\xff\":1}", `{"a":tru}`, grafanaBody,
	} {
		f.Add([]byte(seed))
	}
	var c Canon
	f.Fuzz(func(t *testing.T, body []byte) {
		want, valid := model(body)
		out, facts, err := c.Body(nil, body)
		if (err == nil) != valid {
			t.Fatalf("got error %v, encoding/json says valid: %v", err, valid)
		}
		if err != nil {
			return
		}
		got, ok := model(out)
		if !ok {
			t.Fatalf("canonical form %q is not canonical", out)
		}
		top := want.(map[string]any)
		for _, name := range []string{"timeout", "stats"} {
			if _, kept := got.(map[string]any)[name]; !kept {
				delete(top, name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("canonical form means something else (-body +canonical):\n%s", diff)
		}
		again, factsAgain, err := c.Body(nil, out)
		if err != nil || !bytes.Equal(again, out) || factsAgain != facts {
			t.Fatalf("canonical form of %q is %q, facts %+v and %+v, error %v", out, again, facts, factsAgain, err)
		}
	})
}

func FuzzSkipValue(f *testing.F) {
	for _, seed := range []string{`{}`, `[1,{"a":[]},"\u00e9"]`, `{"a":{"b":[1,2,{}]}}`, `[1,]`, `{"a":1,}`, `{"a"}`, `[}`, `1e5`, `-`, `"\x"`, "\"\xff\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		end, ok := skipValue(body, 0)
		got := ok && skipSpace(body, end) == len(body)
		if want := json.Valid(body); got != want && !strings.Contains(string(body), strings.Repeat("[", 100)) {
			t.Fatalf("got %v, encoding/json says %v", got, want)
		}
	})
}

// grafanaBody is a search of 800 bytes as Grafana sends it for one panel.
const grafanaBody = `{"size":0,"query":{"bool":{"filter":[{"range":{"@timestamp":{"gte":1726000000000,"lte":1726003600000,"format":"epoch_millis"}}},{"query_string":{"analyze_wildcard":true,"query":"service.name:checkout AND http.response.status_code:[500 TO 599]"}},{"term":{"deployment.environment":"production"}},{"terms":{"cloud.region":["eu-central-1","eu-west-1"]}},{"exists":{"field":"event.duration"}}]}},"aggs":{"3":{"terms":{"field":"host.name","size":10,"order":{"_key":"desc"},"min_doc_count":1},"aggs":{"2":{"date_histogram":{"field":"@timestamp","min_doc_count":0,"extended_bounds":{"min":1726000000000,"max":1726003600000},"format":"epoch_millis","fixed_interval":"15s"},"aggs":{"1":{"percentiles":{"field":"event.duration","percents":["25","50","75","95","99","99.9"]}}}}}}},"track_total_hits":true}`

func BenchmarkBody(b *testing.B) {
	var c Canon
	var dst []byte
	body := []byte(grafanaBody)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, _, err = c.Body(dst[:0], body); err != nil {
			b.Fatal(err)
		}
	}
}

func TestBodyAllocs(t *testing.T) {
	var c Canon
	var dst []byte
	body := []byte(grafanaBody)
	if n := testing.AllocsPerRun(100, func() { dst, _, _ = c.Body(dst[:0], body) }); n != 0 {
		t.Errorf("%v allocations a body", n)
	}
}
