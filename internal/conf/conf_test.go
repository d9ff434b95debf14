package conf

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rootConfig is shaped like the configuration of Weir, with every kind of field.
type rootConfig struct {
	Path struct {
		Data string `conf:"data"`
		Logs string `conf:"logs"`
	} `conf:"path"`
	Entry   []entryConfig   `conf:"entry"`
	Flow    []flowConfig    `conf:"flow"`
	Cluster []clusterConfig `conf:"elasticsearch"`
	Queue   queueConfig     `conf:"queue"`
	Limit   *limitConfig    `conf:"limit"`
}

type commonConfig struct {
	Name    string `conf:"name,required,alias=old_name"`
	Enabled bool   `conf:"enabled"`
}

type entryConfig struct {
	Common  commonConfig `conf:",inline"`
	Router  string       `conf:"router"`
	Network struct {
		Binding   string `conf:"binding"`
		ReusePort bool   `conf:"reuse_port"`
	} `conf:"network"`
	Timeout  Duration   `conf:"timeout"`
	Balancer string     `conf:"balancer" enum:"weight,least,random"`
	Share    Percent    `conf:"share"`
	Weight   int        `conf:"weight" min:"1" max:"1000"`
	Port     uint16     `conf:"port"`
	Ratio    float64    `conf:"ratio"`
	MaxQPS   Rate       `conf:"max_qps"`
	Methods  []string   `conf:"methods" enum:"GET,POST"`
	Address  netip.Addr `conf:"address"`
	Legacy   int        `conf:"legacy" deprecated:"use weight instead"`
}

type flowConfig struct {
	Name   string  `conf:"name"`
	Filter []*Node `conf:"filter"`
}

type clusterConfig struct {
	Name      string  `conf:"name,required"`
	Endpoint  Strings `conf:"endpoint"`
	Version   string  `conf:"version"`
	BasicAuth *struct {
		Username string `conf:"username"`
		Password Secret `conf:"password"`
	} `conf:"basic_auth"`
}

type queueConfig struct {
	MaxBytesPerFile Bytes    `conf:"max_bytes_per_file"`
	MaxMsgSize      Bytes    `conf:"max_msg_size" min:"1"`
	MaxResponseSize Bytes    `conf:"max_response_size" min:"-1"`
	ThresholdInMS   int      `conf:"threshold_in_ms"`
	Delay           Duration `conf:"delay,unit=ms"`
	Extra           any      `conf:"extra"`
}

type limitConfig struct {
	Pattern Regexp            `conf:"pattern"`
	Labels  map[string]string `conf:"labels"`
	Inner   *limitConfig      `conf:"inner,hidden"`
}

var wantComment = regexp.MustCompile(`# want (\d+):(\d+) (.*)$`)

// TestCorpus holds each file in testdata against the comments beside its faults: nothing more and nothing less is found.
func TestCorpus(t *testing.T) {
	names, err := filepath.Glob("testdata/*.yml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			n, p := Load(Options{Files: []string{name}, LookupEnv: noVariables})
			var c rootConfig
			Decode(n, &c, p)
			got := p.Sorted()
			for line := range strings.Lines(string(text)) {
				m := wantComment.FindStringSubmatch(strings.TrimSpace(line))
				if m == nil {
					continue
				}
				i := slices.IndexFunc(got, func(q Problem) bool {
					return strconv.Itoa(q.Line) == m[1] && strconv.Itoa(q.Col) == m[2] && strings.Contains(q.String(), m[3])
				})
				if i < 0 {
					t.Errorf("not found: %s:%s %s", m[1], m[2], m[3])
					continue
				}
				got = slices.Delete(got, i, i+1)
			}
			for _, q := range got {
				t.Errorf("not wanted: %s", q)
			}
		})
	}
}

func noVariables(string) (string, bool) { return "", false }

// load loads from files in memory, decodes the first one, and fails the test on errors.
func load(t *testing.T, files map[string]string, env map[string]string, into any) *Node {
	t.Helper()
	n, p := loadFiles(files, env)
	Decode(n, into, p)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// loadFiles loads main.yml from files in memory.
func loadFiles(files, env map[string]string) (*Node, *Problems) {
	return Load(Options{
		Files: []string{"main.yml"},
		ReadFile: func(name string) ([]byte, error) {
			if text, ok := files[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		},
		Glob: func(pattern string) (matches []string, err error) {
			for name := range files {
				ok, err := filepath.Match(pattern, name)
				if err != nil {
					return nil, err
				}
				if ok {
					matches = append(matches, name)
				}
			}
			return matches, nil
		},
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
}

func TestClassicFormDecodes(t *testing.T) {
	n, p := Load(Options{Files: []string{"testdata/classic.yml"}})
	var c rootConfig
	Decode(n, &c, p)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	var entry entryConfig
	entry.Common = commonConfig{Name: "es_gateway", Enabled: true}
	entry.Router, entry.Timeout = "default", Duration(90*time.Minute)
	entry.Network.Binding, entry.Network.ReusePort = "0.0.0.0:8000", true
	if diff := cmp.Diff([]entryConfig{entry}, c.Entry, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("entry:\n%s", diff)
	}
	queue := queueConfig{MaxBytesPerFile: 50 << 30, MaxMsgSize: 500_000_000, MaxResponseSize: -1, ThresholdInMS: 250}
	if diff := cmp.Diff(queue, c.Queue); diff != "" {
		t.Errorf("queue:\n%s", diff)
	}
	if c.Path.Data != "data" || c.Path.Logs != "log" {
		t.Errorf("dotted keys: %+v", c.Path)
	}
	if got := c.Cluster[0].Version + " " + c.Cluster[0].BasicAuth.Password.Reveal(); got != "7.6.0 changeme" {
		t.Errorf("cluster: %s", got)
	}
	rule := c.Flow[0].Filter[0].Get("parameters").Get("rules").Items()[0]
	if diff := cmp.Diff([]string{"pattern", "max_qps", "group"}, rule.Keys()); diff != "" {
		t.Errorf("a raw node:\n%s", diff)
	}
}

func TestDefaultsStayWhereNothingIsGiven(t *testing.T) {
	shared := &limitConfig{Labels: map[string]string{"a": "default"}}
	c := rootConfig{Limit: shared, Queue: queueConfig{MaxMsgSize: 5}}
	shared.Inner = &limitConfig{}
	load(t, map[string]string{"main.yml": "limit: {labels: {b: given}}\nqueue:\n  max_msg_size:\n"}, nil, &c)
	if c.Queue.MaxMsgSize != 5 {
		t.Errorf("a key without a value replaced the default: %v", c.Queue.MaxMsgSize)
	}
	if diff := cmp.Diff(map[string]string{"b": "given"}, c.Limit.Labels); diff != "" {
		t.Errorf("a map that is given replaces the default:\n%s", diff)
	}
	if c.Limit.Inner != shared.Inner {
		t.Error("a field that is not given, of a pointer that is, lost its default")
	}
	if shared.Labels["a"] != "default" || len(shared.Labels) != 1 {
		t.Errorf("the default was changed in place: %v", shared.Labels)
	}
}

func TestDecodeKinds(t *testing.T) {
	f := func(text string, into any, want any) {
		t.Helper()
		n, p := Parse("f.yml", text, noVariables)
		Decode(n, into, p)
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, into, cmp.Comparer(Secret.Equal), cmp.Comparer(Regexp.Equal)); diff != "" {
			t.Errorf("%s:\n%s", text, diff)
		}
	}
	f("[1, 0x10, 2*(3+4), -5]", new([]int), &[]int{1, 16, 14, -5})
	f("[1, 1.5, 2*2]", new([]float64), &[]float64{1, 1.5, 4})
	f("[1.10, true, '3', a b]", new([]string), &[]string{"1.10", "true", "3", "a b"})
	f("a", new(Strings), &Strings{"a"})
	f("[a, 2]", new(Strings), &Strings{"a", "2"})
	f("{a: {x: 1}}", new(map[string]map[string]int8), new(map[string]map[string]int8{"a": {"x": 1}}))
	f("{a: [1, 2.5, yes, true, null, '7']}", new(any), new(any(map[string]any{"a": []any{int64(1), 2.5, "yes", true, nil, "7"}})))
	f("{delay: 1500}", new(queueConfig), &queueConfig{Delay: 1_500_000_000})
	f("{delay: 1500us}", new(queueConfig), &queueConfig{Delay: 1_500_000})
}

// TestMistakesKeepTheRest holds that checks which come after decoding still see what was right.
func TestMistakesKeepTheRest(t *testing.T) {
	n, p := Parse("f.yml", "entry: [{name: a, weight: x}, {name: b}]\nlimit: {labels: {a: [], b: c}}\nqueue: {delay: x}", noVariables)
	c := rootConfig{Queue: queueConfig{Delay: 7}}
	Decode(n, &c, p)
	if errs, _ := p.Count(); errs != 3 {
		t.Errorf("want 3 errors, found %v", p.Sorted())
	}
	if len(c.Entry) != 2 || c.Entry[0].Common.Name != "a" || c.Limit.Labels["b"] != "c" || c.Queue.Delay != 7 {
		t.Errorf("got %+v, %+v, %v", c.Entry, c.Limit, c.Queue.Delay)
	}
}

type switched struct {
	On bool `conf:"on"`
}

func (s *switched) SetDefaults() { s.On = true }

func TestElementsBeginWithDefaults(t *testing.T) {
	var c struct {
		List []switched          `conf:"list"`
		Map  map[string]switched `conf:"map"`
		Ptr  *switched           `conf:"ptr"`
	}
	n, p := Parse("a.yml", "{list: [{}, {on: false}], map: {a: {}, b: {on: false}}, ptr: {}}", nil)
	Decode(n, &c, p)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	if !c.List[0].On || c.List[1].On || !c.Map["a"].On || c.Map["b"].On || !c.Ptr.On {
		t.Errorf("got %+v", c)
	}
	if got := Describe(c, nil).Fields[0].Elem.Fields[0].Default; got != "true" {
		t.Errorf("described default %q", got)
	}
}
