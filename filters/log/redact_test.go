package log

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func paths(tb testing.TB, texts ...string) []fieldPath {
	tb.Helper()
	var out []fieldPath
	for _, text := range texts {
		p, err := parseFieldPath(text)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func TestRedact(t *testing.T) {
	hide := paths(t, "query.match.email", "user.*.ssn", "**.iban")
	f := func(in, want string) {
		t.Helper()
		if got := string(new(redactor).append(nil, []byte(in), hide)); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	f(`{"a":1,"b":[true,null,-1.5e+3],"c":"x"}`, `{"a":1,"b":[true,null,-1.5e+3],"c":"x"}`)
	f(`{"query":{"match":{"email":"me"}},"email":"shown"}`, `{"query":{"match":{"email":"***"}},"email":"shown"}`)
	f(`[{"query":{"match":{"email":{"query":"me","b":[1]}}}}]`, `[{"query":{"match":{"email":"***"}}}]`)
	f(`{"user":{"a":{"ssn":1},"b":[{"ssn":2},{"x":3}],"ssn":4}}`, `{"user":{"a":{"ssn":"***"},"b":[{"ssn":"***"},{"x":3}],"ssn":4}}`)
	f(`{"term":{"owner.iban":"x"},"a":2}`, `{"term":{"owner.iban":"***"},"a":2}`)
	f("{\"iban\" : \"x\" }\n{\"iban\":1}\n", "{\"iban\" : \"***\" }\n{\"iban\":\"***\"}\n")
	f(`{"Password":"x","access_token":["y"],"user.api-key":{"z":1},"key":"shown","code":3}`,
		`{"Password":"***","access_token":"***","user.api-key":"***","key":"shown","code":3}`)
	f(`{"ssl.key_passphrase":"x","passwordHash":"y","aws":{"access_key":"z"},"term":{"password.keyword":"v"}}`,
		`{"ssl.key_passphrase":"***","passwordHash":"***","aws":{"access_key":"***"},"term":{"password.keyword":"***"}}`)
	f(`{"tokenizer":{"token_chars":["x"]},"type":"token_count","key_as_string":"y","session":"z"}`,
		`{"tokenizer":{"token_chars":["x"]},"type":"token_count","key_as_string":"y","session":"z"}`)
	f(`{"p\u0061ssword":"x"}`, `{"p\u0061ssword":"***"}`)
	f(`{"`+strings.Repeat("x", 80)+`.password":"x"}`, `{"`+strings.Repeat("x", 80)+`.password":"***"}`)
	f(`{"a":"shown as far as it goes`, `{"a":"shown as far as it goes`)
	f(`{"iban":"cut`, `{"iban":"***"`)
	f(`{"a":1,"iba`, `{"a":1,***`)
	f(`{"a":1,/* "iban":"x" */"b":2}`, `{"a":1,***`)
	f(`{password:'x'}`, `{***`)
	f(`{"a":"x\" , password":"y"}`, `{"a":"x\" , password":"y"}`) // which is one string, and then no JSON
	f(`{"a":1}}{"iban":"x"}`, `{"a":1}***`)
	f(strings.Repeat("[", 65)+`{"iban":1}`, strings.Repeat("[", 64)+"***")
}

func TestFieldPaths(t *testing.T) {
	f := func(text string) {
		t.Helper()
		if _, err := parseFieldPath(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	f("")
	f("a..b")
	f("a.b*")
	f("**")
	f("a.**.b")
}

// FuzzRedact holds that a valid body stays valid, and shows no value under a name that is hidden.
func FuzzRedact(f *testing.F) {
	f.Add([]byte(`{"a":{"secret":{"b":[1,"x"]}},"c":[{"secret":"s3cret"}]}`))
	f.Add([]byte(`[[{"secret":null}],{"a":"\"secret\":"}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got := new(redactor).append(nil, body, nil)
		if !json.Valid(body) || bytes.Count(body, []byte("[")) > maxNesting || bytes.Count(body, []byte("{")) > maxNesting {
			return
		}
		var shown any
		if err := json.Unmarshal(got, &shown); err != nil {
			t.Fatalf("%s became %s: %v", body, got, err)
		}
		holds(t, shown)
	})
}

// holds fails if a value under a secret name is shown.
func holds(t *testing.T, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			if secretMember([]byte(name)) && inner != "***" {
				t.Fatalf("%s is %v", name, inner)
			}
			holds(t, inner)
		}
	case []any:
		for _, inner := range v {
			holds(t, inner)
		}
	}
}
