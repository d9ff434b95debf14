package conf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIncludesMerge(t *testing.T) {
	files := map[string]string{
		"main.yml":         "configs: [configs/*.yml, extra.yml]\nflow: [{name: a}]\nstatsd: {host: h}\n",
		"configs/2.yml":    "flow: [{name: c}]\nstatsd: {port: 1}\n",
		"configs/1.yml":    "flow: [{name: b}]\ninclude: ../extra.yml\n",
		"configs/skip.txt": "flow: [{name: x}]\n",
		"extra.yml":        "statsd.host: h\n",
	}
	n, p := loadFiles(files, nil)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"flow":   []any{map[string]any{"name": "a"}, map[string]any{"name": "b"}, map[string]any{"name": "c"}},
		"statsd": map[string]any{"host": "h", "port": int64(1)},
	}
	if diff := cmp.Diff(want, n.Any()); diff != "" {
		t.Error(diff)
	}
	wantFiles := []string{"main.yml", "configs/*.yml", "configs/1.yml", "extra.yml", "configs/2.yml"}
	if diff := cmp.Diff(wantFiles, n.Files()); diff != "" {
		t.Errorf("files to watch:\n%s", diff)
	}
}

func TestLoadProblems(t *testing.T) {
	f := func(files, env map[string]string, want ...string) {
		t.Helper()
		_, p := loadFiles(files, env)
		var got []string
		for _, q := range p.Sorted() {
			got = append(got, q.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	// Both files are read to the end, and the place in an included file says who included it.
	f(map[string]string{"main.yml": "include: [a.yml, b.yml]\n", "a.yml": "x: [\n", "b.yml": "y: 1\ny: 2\n"}, nil,
		"a.yml:2:1 (included from main.yml:1:11): did not find expected node content while parsing a flow node",
		`b.yml:2:1 (included from main.yml:1:18): the key "y" stands twice; the first is at line 1, column 1`)
	f(map[string]string{"main.yml": "include: a.yml\nhost: x\n", "a.yml": "host: y\n"}, nil,
		"a.yml:1:7 (included from main.yml:1:10): host is given twice; the other value stands at main.yml:2:7")
	f(map[string]string{"main.yml": "include: a.yml\nflow: []\n", "a.yml": "flow: {}\n"}, nil,
		"a.yml:1:7 (included from main.yml:1:10): flow is given twice; the other value stands at main.yml:2:7")
	f(map[string]string{"main.yml": "include: [gone.yml, 'none/*.yml', '[', {}]\n"}, nil,
		"main.yml:1:11: cannot read gone.yml: file does not exist",
		`main.yml:1:35: "[" is no pattern for files: syntax error in pattern`,
		"main.yml:1:40: want the path or pattern of a file, found a map")
	f(map[string]string{}, nil, "main.yml: cannot read the file: file does not exist")
	f(map[string]string{"main.yml": "a: b\nc: \x01\n"}, nil, "main.yml:2:4: control characters are not allowed (value: 1)")
	f(map[string]string{"main.yml": "a: ä\xff\n"}, nil, "main.yml:1:5: invalid leading UTF-8 octet (value: 255)")
	f(map[string]string{"main.yml": "include: a.yml\n", "a.yml": "include: b.yml\n", "b.yml": "- 1\n"}, nil,
		"b.yml:1:1 (included from a.yml:1:10) (included from main.yml:1:10): want a map at the top of a file, found a list")
	f(map[string]string{"main.yml": "include: '*.yml'\n"}, nil)
	f(map[string]string{"main.yml": "", "unread.yml": "["}, nil)
}

func TestVariables(t *testing.T) {
	env := map[string]string{
		"PORT": "9200", "WORD": "{a: [1]} # ${PORT}\nb: c", "EMPTY": "", "BAD": "hunter2", "TRUE": "true",
	}
	f := func(text string, want any) {
		t.Helper()
		n, p := loadFiles(map[string]string{"main.yml": "x: " + text}, env)
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, n.Get("x").Any()); diff != "" {
			t.Errorf("%s:\n%s", text, diff)
		}
	}
	f("${PORT}", int64(9200))
	f("$[[env.PORT]]", int64(9200))
	f("'${PORT}'", "9200")
	f("${TRUE}", true)
	f("http://h:${PORT}/$[[env.PORT]]", "http://h:9200/9200")
	f("${WORD}", env["WORD"])
	f("${EMPTY}", "")
	f("$${PORT} $$[[env.PORT]] $PORT $ $$", "${PORT} $[[env.PORT]] $PORT $ $$")
	f("|\n  ${PORT}\n  $${x}\n", "9200\n${x}\n")

	n, p := loadFiles(map[string]string{"main.yml": "queue:\n  threshold_in_ms: ${BAD}\n  max_msg_size: ${BAD}\n  delay: x${BAD}\n" +
		"limit:\n  pattern: (${BAD}\nentry:\n- name: a\n  weight: ${PORT}\n  balancer: ${BAD}\n"}, env)
	var c rootConfig
	Decode(n, &c, p)
	if errs, _ := p.Count(); errs != 6 {
		t.Errorf("want 6 errors, found %v", p.Sorted())
	}
	for _, q := range p.Sorted() {
		if strings.Contains(q.String(), "hunter2") || strings.Contains(q.String(), "9200") {
			t.Errorf("the message shows what a variable holds: %s", q)
		}
	}
}

func TestSecretFromVariableIsNoWarning(t *testing.T) {
	f := func(password string, warnings int) {
		t.Helper()
		files := map[string]string{"main.yml": "elasticsearch: [{name: a, basic_auth: {password: '" + password + "'}}]"}
		n, p := loadFiles(files, map[string]string{"PW": "x", "SELF": "${SELF}"})
		var c rootConfig
		Decode(n, &c, p)
		if errs, got := p.Count(); errs != 0 || got != warnings {
			t.Errorf("%s: %v", password, p.Sorted())
		}
	}
	f("x", 1)
	f("$${PW}", 1)
	f("${PW}", 0)
	f("${SELF}", 0)
	f("file:/run/pw", 0)
	f("", 0)
}

func TestAnchorsAndMergeKeys(t *testing.T) {
	n, p := loadFiles(map[string]string{"main.yml": `
base: &base {a: 1, b: 2}
more: &more {b: 3, c: 4}
x: {<<: *base, b: own}
y: {<<: [*base, *more]}
z: *base
"<<": plain
`}, nil)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	n = n.Without("base", "more")
	want := map[string]any{
		"x":  map[string]any{"a": int64(1), "b": "own"},
		"y":  map[string]any{"a": int64(1), "b": int64(2), "c": int64(4)},
		"z":  map[string]any{"a": int64(1), "b": int64(2)},
		"<<": "plain",
	}
	if diff := cmp.Diff(want, n.Any()); diff != "" {
		t.Error(diff)
	}
}

func TestRepeatedMistakeOfAnAnchorIsReportedOnce(t *testing.T) {
	n, p := loadFiles(map[string]string{"main.yml": "entry:\n- &a {name: a, wight: 1}\n- *a\n- *a\n"}, nil)
	var c rootConfig
	Decode(n, &c, p)
	if got := p.Sorted(); len(got) != 1 || got[0].Suggestion != "weight" {
		t.Errorf("found %v", got)
	}
}

func TestLimits(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		_, p := loadFiles(map[string]string{"main.yml": text}, nil)
		if got := p.Sorted(); len(got) != 1 || !strings.Contains(got[0].Message, want) || got[0].Line == 0 {
			t.Errorf("want %q once, found %v", want, got)
		}
	}
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	f(bomb, "more than 100000 values")
	f("a: "+strings.Repeat("[", 200)+strings.Repeat("]", 200), "nested deeper than 100")
	deep := "a0: &a0 [x]\n"
	for i := 1; i < 150; i++ {
		deep += fmt.Sprintf("a%d: &a%d [*a%d]\n", i, i, i-1)
	}
	_, p := loadFiles(map[string]string{"main.yml": deep}, nil)
	if got := p.Sorted(); len(got) != 1 || !strings.Contains(got[0].Message, "nested deeper than 100") {
		t.Errorf("depth by aliases: %v", got)
	}

	_, p = loadFiles(map[string]string{"main.yml": strings.Repeat("#", maxFileBytes+1)}, nil)
	if got := p.Sorted(); len(got) != 1 || got[0].Code != CodeLimit {
		t.Errorf("size of a file: %v", got)
	}
	files := map[string]string{"main.yml": "include: '*.yml'"}
	for i := range maxFiles + 10 {
		files[fmt.Sprintf("%d.yml", i)] = ""
	}
	n, p := loadFiles(files, nil)
	if got := p.Sorted(); len(got) != 1 || got[0].Code != CodeLimit || len(n.Files()) != maxFiles+1 {
		t.Errorf("number of files: %v, %d files", got, len(n.Files()))
	}
}

func TestProblemsRender(t *testing.T) {
	n, p := loadFiles(map[string]string{"main.yml": "include: a.yml\n", "a.yml": "x: 1\ny: <2>\n"}, nil)
	in := p.In("flow search").In("rate_limit")
	in.Errorf(n.Get("y"), "unknown field %q", "brust").Suggestion = "burst"
	q := in.Warnf(n.Get("x"), "a warning")
	q.Code = "mine"
	p.Errorf(nil, "no place")

	var text, js bytes.Buffer
	if err := p.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	wantText := `no place
a.yml:1:4 (included from main.yml:1:10): warning: flow search: rate_limit: a warning
a.yml:2:4 (included from main.yml:1:10): flow search: rate_limit: unknown field "brust"; did you mean "burst"?
`
	if diff := cmp.Diff(wantText, text.String()); diff != "" {
		t.Error(diff)
	}
	if err := p.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(js.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"severity": "error", "message": "no place"},
		{
			"severity": "warning", "file": "a.yml", "line": 1.0, "column": 4.0, "included_from": "main.yml:1:10",
			"where": "flow search: rate_limit", "message": "a warning", "code": "mine",
		},
		{
			"severity": "error", "file": "a.yml", "line": 2.0, "column": 4.0, "included_from": "main.yml:1:10",
			"where": "flow search: rate_limit", "message": `unknown field "brust"`, "suggestion": "burst",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if errs, warnings := p.Count(); errs != 2 || warnings != 1 || !p.HasErrors() || !in.HasErrors() {
		t.Errorf("%d errors, %d warnings", errs, warnings)
	}
	if err := p.Err(); err == nil || strings.Contains(err.Error(), "warning") {
		t.Errorf("Err: %v", err)
	}
	if err := new(Problems).Err(); err != nil {
		t.Errorf("no problems are an error: %v", err)
	}
}

func TestNilNodeIsSafe(t *testing.T) {
	var n *Node
	if n.Kind() != Missing || !n.IsZero() || n.Get("a").Get("b") != nil || n.Keys() != nil || n.Items() != nil ||
		n.Scalar() != "" || n.Len() != 0 || n.Pos() != (Pos{}) || n.KeyPos("a") != (Pos{}) || n.Any() != nil ||
		n.Files() != nil || n.Plain() || n.FromVariable() || n.Without("a") != nil {
		t.Error("a missing node is not empty")
	}
	var p Problems
	Decode(nil, new(queueConfig), &p)
	if p.HasErrors() {
		t.Errorf("an absent section takes the defaults: %v", p.Sorted())
	}
	Decode(nil, new(clusterConfig), &p)
	if !p.HasErrors() {
		t.Error("an absent section lacks its required fields")
	}
}

func TestDefaultsOfVariables(t *testing.T) {
	files := map[string]string{
		"a.yml": "env: {HOST: here, PORT: 9200, X: '${HOST}'}\nconfigs: b.yml\nurl: http://${HOST}:$[[env.PORT]]\nx: ${X}\n",
		"b.yml": "env: {HOST: there, B: b}\nb: ${HOST}${B}\n",
	}
	load := func(env map[string]string) *Node {
		n, p := Load(Options{
			Files:     []string{"a.yml"},
			ReadFile:  func(name string) ([]byte, error) { return []byte(files[name]), nil },
			LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		})
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	f := func(n *Node, key, want string) {
		t.Helper()
		if got := n.Get(key).Scalar(); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	n := load(nil)
	f(n, "url", "http://here:9200")
	f(n, "x", "${HOST}")
	f(n, "b", "hereb")
	if n.Get("env") != nil {
		t.Error("the section is still there")
	}
	f(load(map[string]string{"HOST": "set"}), "url", "http://set:9200")
}
