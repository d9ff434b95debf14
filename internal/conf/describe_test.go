package conf

import (
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// describedConfig has every kind of field that is described in a way of its own.
type describedConfig struct {
	Name   string           `conf:"name,required,alias=old_name"`
	Mode   string           `conf:"mode" enum:"reject,wait"`
	Modes  Strings          `conf:"modes" enum:"reject,wait"`
	Burst  int              `conf:"burst" min:"1" max:"100"`
	Wait   Duration         `conf:"wait" max:"1m"`
	Old    Duration         `conf:"old,unit=ms" deprecated:"use wait instead"`
	Paths  []string         `conf:"paths"`
	Sizes  map[string]Bytes `conf:"sizes"`
	Secret Secret           `conf:"secret"`
	On     bool             `conf:"on,hidden"`
	Raw    *Node            `conf:"raw"`
	Rules  []ruleConfig     `conf:"rules"`
	Retry  struct {
		Times int `conf:"times"`
	} `conf:"retry"`
	Inner *describedConfig `conf:"inner"`
	Own   shortForm        `conf:"own"`
	Skip  int
}

type ruleConfig struct {
	Pattern Regexp `conf:"pattern,required"`
	Rate    Rate   `conf:"rate"`
}

// shortForm is a section that may be written as a word.
type shortForm struct {
	Word string `conf:"word"`
}

func (s *shortForm) DecodeConf(n *Node, p *Problems) {
	type section shortForm
	if n.Kind() == Scalar {
		s.Word = n.Scalar()
		return
	}
	Decode(n, (*section)(s), p)
}

func described() Schema {
	c := describedConfig{
		Name: "ignored", Mode: "wait", Modes: Strings{"wait", "reject"}, Burst: 5, Wait: Duration(90 * time.Second),
		Paths: []string{"/a", "b c", "${X}"}, Sizes: map[string]Bytes{"b": 1 << 20, "a": 7}, Secret: NewSecret("hunter2"),
	}
	c.Retry.Times = 3
	return Describe(c, map[string]string{
		"weir/internal/conf.describedConfig":             "A described thing.",
		"weir/internal/conf.describedConfig.Burst":       "Burst is how many come at once.",
		"weir/internal/conf.describedConfig.Retry.Times": "Times is how often.",
		"weir/internal/conf.ruleConfig.Rate":             "The rate.",
	})
}

func TestDescribe(t *testing.T) {
	want := Schema{
		Type: "section", Doc: "A described thing.", Fields: []Schema{
			{Name: "name", Type: "string", Required: true, Aliases: []string{"old_name"}},
			{Name: "mode", Type: "string", Default: "wait", Enum: []string{"reject", "wait"}},
			{
				Name: "modes", Type: "string or list of strings", Example: "[a, b]", Default: "[wait, reject]",
				Enum: []string{"reject", "wait"},
			},
			{Name: "burst", Type: "integer", Doc: "`burst` is how many come at once.", Default: "5", Min: "1", Max: "100"},
			{Name: "wait", Type: "duration", Example: "1.5s", Default: "1m30s", Max: "1m"},
			{Name: "old", Type: "duration", Example: "1.5s", Default: "0s", Deprecated: "use wait instead"},
			{Name: "paths", Type: "list of string", Default: `[/a, "b c", "$${X}"]`, Elem: &Schema{Type: "string"}},
			{Name: "sizes", Type: "map of bytes", Default: "{a: 7b, b: 1mb}", Elem: &Schema{Type: "bytes", Example: "10mb"}},
			{Name: "secret", Type: "secret", Example: "${PASSWORD}"},
			{Name: "on", Type: "boolean", Default: "false", Hidden: true},
			{Name: "raw", Type: "any"},
			{Name: "rules", Type: "list of section", Elem: &Schema{Type: "section", Fields: []Schema{
				{Name: "pattern", Type: "regular expression", Example: `^/(?P<index>[^/]+)/_search$`, Required: true},
				{Name: "rate", Type: "rate", Example: "100/s", Doc: "The rate."},
			}}},
			{Name: "retry", Type: "section", Fields: []Schema{
				{Name: "times", Type: "integer", Default: "3", Doc: "`times` is how often."},
			}},
			{Name: "inner", Type: "section like the one that it stands in"},
			{Name: "own", Type: "section", Fields: []Schema{{Name: "word", Type: "string"}}},
		},
	}
	if diff := cmp.Diff(want, described(), cmpopts.IgnoreUnexported(Schema{})); diff != "" {
		t.Error(diff)
	}
}

// TestDefaultsThatAreDescribedAreRead holds that a default, written into a file, is the default.
func TestDefaultsThatAreDescribedAreRead(t *testing.T) {
	c := describedConfig{
		Mode: "wait", Burst: 1, Wait: Duration(time.Second), Paths: []string{"null", "true", "5", `a"\'`, "ä\n\t${X}$[[y]]", "- b: #"},
		Sizes: map[string]Bytes{"a b": 1, "null": 1 << 40},
	}
	for _, s := range Describe(c, nil).Fields {
		if s.Default == "" {
			continue
		}
		n, p := Parse("default", s.Name+": "+s.Default+"\nname: x\n", noVariables)
		got := describedConfig{Name: "x"}
		Decode(n, &got, p)
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		for _, again := range Describe(got, nil).Fields {
			if again.Name == s.Name && again.Default != s.Default {
				t.Errorf("%s: written %s, read %s", s.Name, s.Default, again.Default)
			}
		}
		if s.Name == "paths" && !cmp.Equal(got.Paths, c.Paths) || s.Name == "sizes" && !cmp.Equal(got.Sizes, c.Sizes) {
			t.Errorf("%s: got %q, %v", s.Name, got.Paths, got.Sizes)
		}
	}
}

func TestJSONSchema(t *testing.T) {
	got, err := json.MarshalIndent(JSONSchema(described()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/schema.json"
	if *update {
		if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("run go test -update and review the difference:\n%s", diff)
	}
}

func TestMistakesInTagsAreReported(t *testing.T) {
	f := func(into any) {
		t.Helper()
		n, p := Parse("f.yml", "a: 1", noVariables)
		Decode(n, into, p)
		if !p.HasErrors() {
			t.Errorf("%T: no error", into)
		}
	}
	f(new(struct {
		A time.Duration `conf:"a"`
	}))
	f(new(struct {
		A int `conf:"a,unit=ms"`
	}))
	f(new(struct {
		A int `conf:"a,optional"`
	}))
	f(new(struct {
		A int `conf:",required"`
	}))
	f(new(struct {
		A int `conf:"a" min:"x"`
	}))
	f(new(struct {
		A string `conf:"a" max:"1"`
	}))
	f(new(struct {
		A int `conf:",inline"`
	}))
	f(new(struct {
		A chan int `conf:"a"`
	}))
}
