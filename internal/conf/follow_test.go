package conf

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func texts(p *Problems) []string {
	var out []string
	for _, q := range p.Sorted() {
		out = append(out, q.String())
	}
	return out
}

func TestFollowKeepsWhatIsWrongByItself(t *testing.T) {
	n, p := Parse("a.yml", "whole:\n  number: x\n  word: y\n", nil)
	whole := n.Get("whole")
	p.Errorf(whole.Get("number"), "no number")
	p.In("outer").Follow(whole, func() {
		p.Errorf(whole, "neither this nor that")
		p.Errorf(whole.Get("missing"), "without a place")
		p.Errorf(whole.Get("number"), "must be above 0")
		p.Errorf(whole.Get("word"), "dangling")
		p.Warnf(whole.Get("word"), "old")
	})
	want := []string{"a.yml:2:11: no number", "a.yml:3:9: dangling", "a.yml:3:9: warning: old"}
	if diff := cmp.Diff(want, texts(p)); diff != "" {
		t.Error(diff)
	}
}

func TestAtFindsEveryWayOfWritingAField(t *testing.T) {
	f := func(text, want string, names ...string) {
		t.Helper()
		n, p := Parse("a.yml", text, nil)
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		if got := n.At(names...).Pos().String(); got != want {
			t.Errorf("%v of %s is at %s, want %s", names, text, got, want)
		}
	}
	f("{a: 1, b: 2}", "a.yml:1:11", "b")
	f("{a: 1, b: 2}", "a.yml:1:11", "c", "b")
	f("{a: {b: 2}}", "a.yml:1:9", "a.b")
	f("{a.b: 2}", "a.yml:1:7", "a.b")
	f("{a: {c: 2}}", "a.yml:1:5", "a.b")
	f("{c: 2}", "a.yml:1:1", "a.b")
}

func TestItemIsTheValueThatStandsForAList(t *testing.T) {
	n, _ := Parse("a.yml", "{list: [x, y], one: z}", nil)
	if got := n.Get("list").Item(1).Scalar() + n.Get("one").Item(0).Scalar(); got != "yz" {
		t.Errorf("found %q", got)
	}
}

func TestVariableInQuotesFillsWhatIsNoText(t *testing.T) {
	type config struct {
		Number   int      `conf:"number"`
		Switch   bool     `conf:"switch"`
		Share    float64  `conf:"share"`
		Duration Duration `conf:"duration"`
		Counted  Duration `conf:"counted,unit=ms"`
		Text     string   `conf:"text"`
	}
	env := map[string]string{"N": "8125", "T": "true", "D": "2s"}
	files := map[string]string{"main.yml": `{number: "${N}", switch: '$[[env.T]]', share: "${N}", duration: "${D}", counted: "${N}", text: "${N}"}`}
	n, p := loadFiles(files, env)
	var c config
	Decode(n, &c, p)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	want := config{8125, true, 8125, 2_000_000_000, 8125_000_000, "8125"}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	// What is more than one variable is text.
	for _, text := range []string{`"${N}0"`, `" ${N}"`, `"$${N}"`, `"${N}${N}"`, `!!str ${N}`} {
		n, p := loadFiles(map[string]string{"main.yml": "number: " + text}, env)
		Decode(n, &c, p)
		if !p.HasErrors() {
			t.Errorf("%s is read as a number", text)
		}
	}
}

func TestFileNamedTwiceIsAWarning(t *testing.T) {
	read := func(string) ([]byte, error) { return []byte("list: [1]\n"), nil }
	n, p := Load(Options{Files: []string{"a.yml", "./a.yml"}, ReadFile: read})
	want := []string{"./a.yml: warning: the file is named twice; it is read once"}
	if diff := cmp.Diff(want, texts(p)); diff != "" {
		t.Error(diff)
	}
	if n.Get("list").Len() != 1 {
		t.Error("the file was read twice")
	}
}

func TestIncompleteWhereAPartCouldNotBeRead(t *testing.T) {
	f := func(files map[string]string, want bool) {
		t.Helper()
		if _, p := loadFiles(files, nil); p.Incomplete() != want {
			t.Errorf("%v: %v", files, p.Sorted())
		}
	}
	f(map[string]string{"main.yml": "a: 1\n"}, false)
	f(map[string]string{"main.yml": "a: 1\na: 2\n"}, false)
	f(map[string]string{"main.yml": "include: gone.yml\n"}, true)
	f(map[string]string{"main.yml": "include: x.yml\n", "x.yml": "a: ["}, true)
	f(map[string]string{"main.yml": "include: '['\n"}, true)
}

func TestMistakeLeavesAPointerNil(t *testing.T) {
	var c struct {
		Burst *int `conf:"burst" min:"1"`
	}
	n, p := Parse("a.yml", "burst: 0", nil)
	Decode(n, &c, p)
	if c.Burst != nil {
		t.Errorf("burst is %d", *c.Burst)
	}
}
