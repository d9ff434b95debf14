package conf

import (
	"bytes"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzLoad holds that no text makes loading and decoding panic, and that every problem lies within the file.
func FuzzLoad(f *testing.F) {
	names, err := filepath.Glob("testdata/*.yml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("include: [a, '*', main.yml]\npath.data.x: ${A}$[[env.A]]\npath.data: 1")
	f.Add("queue: {delay: 1*2, extra: {a: [1, 2.5]}, max_msg_size: 0x7fffffffffffffff+1}\n")
	f.Fuzz(func(t *testing.T, text string) {
		n, p := Load(Options{
			Files: []string{"main.yml"},
			ReadFile: func(name string) ([]byte, error) {
				if name == "main.yml" {
					return []byte(text), nil
				}
				return nil, os.ErrNotExist
			},
			Glob:      func(string) ([]string, error) { return []string{"main.yml"}, nil },
			LookupEnv: func(name string) (string, bool) { return "1", name == "A" },
		})
		var c rootConfig
		Decode(n, &c, p)
		// YAML also ends lines at these; the last line may be empty, and a file in UTF-16 has its bytes apart.
		lines := 2
		for _, end := range []string{"\n", "\r", "\x85", "\u2028", "\u2029"} {
			lines += strings.Count(text, end)
		}
		for _, q := range p.Sorted() {
			if q.File != "main.yml" || q.Line < 0 || q.Line > lines || q.Line > 0 && (q.Col < 1 || q.Col > len(text)+1) {
				t.Errorf("%q: not in the file: %s", text, q)
			}
			if q.Message == "" || strings.Contains(q.Message, "%!") {
				t.Errorf("%q: no message: %#v", text, q)
			}
		}
		var out bytes.Buffer
		if err := p.WriteJSON(&out); err != nil {
			t.Error(err)
		}
	})
}

// FuzzArithmetic holds that a value that is worked out is the one that the Go compiler works out, without overflow.
func FuzzArithmetic(f *testing.F) {
	for _, text := range []string{
		"1", "-1", "50*1024*1024*1024", "(1+2)*3-4/2", "0x1F+0o17+0b11+1_000", "9223372036854775807+1", "-9223372036854775808",
		"-(-9223372036854775808)", "1/0", "7/2", "- - 1", "((((1))))", "1 +", "010", "", "(-9223372036854775808)/-1", "-1*-9223372036854775808",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := evaluate(text)
		if err != nil {
			return
		}
		// To Go, two signs without a space are one token.
		spaced := strings.NewReplacer("-", " - ", "+", " + ").Replace(text)
		want, err := types.Eval(token.NewFileSet(), nil, token.NoPos, spaced)
		if err != nil {
			t.Fatalf("%q is %d, but to Go: %v", text, got, err)
		}
		if value, exact := constant.Int64Val(want.Value); !exact || value != got {
			t.Errorf("%q is %d, but to Go %s", text, got, want.Value)
		}
	})
}

// FuzzUnits holds that what is read as a duration, an amount, a rate or a share is written as the same.
func FuzzUnits(f *testing.F) {
	for _, text := range []string{"1.5s", "1h30m", "2d", "500micros", "-1w", "10mb", "1.5 TiB", "50*1024", "100/s", "10mb/1h", "12.5%", "1e3%", "0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseDuration(text); err == nil {
			if again, err := ParseDuration(d.String()); err != nil || again != d {
				t.Errorf("%q: %s is read as %s, %v", text, d, again, err)
			}
		}
		if b, err := ParseBytes(text); err == nil {
			if again, err := ParseBytes(b.String()); err != nil || again != b {
				t.Errorf("%q: %s is read as %s, %v", text, b, again, err)
			}
		}
		if r, err := ParseRate(text); err == nil {
			if again, err := ParseRate(r.String()); err != nil || again != r || r.Events < 1 || r.Per < 1 {
				t.Errorf("%q: %s is read as %s, %v", text, r, again, err)
			}
		}
		if c, err := ParsePercent(text); err == nil {
			if again, err := ParsePercent(c.String()); err != nil || again != c {
				t.Errorf("%q: %s is read as %s, %v", text, c, again, err)
			}
		}
	})
}
