package limit

import (
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// gram is the number of bytes by which literals are looked up.
const gram = 4

// A prefilter names the patterns that a path may match, in one pass over the path: those of which a literal text that each
// match must hold stands in it, and those without such a text.
type prefilter struct {
	always []uint64 // a bit for each pattern
	grams  map[uint32][]literal
}

// A literal is a text that pattern needs, with the place in it of the gram that it is looked up by.
type literal struct {
	text    string
	at      int
	pattern int
}

// newPrefilter returns the prefilter of regular expressions that compile. Each is looked up by the gram that the fewest of
// them have: /_search, which all of them may end with, tells them least apart.
func newPrefilter(patterns []string) prefilter {
	f := prefilter{always: make([]uint64, (len(patterns)+63)/64), grams: map[uint32][]literal{}}
	required := make([][]string, len(patterns))
	uses := map[uint32]int{}
	for i, p := range patterns {
		required[i] = requiredLiterals(p)
		for _, text := range required[i] {
			for at := range len(text) - gram + 1 {
				uses[gramAt(text, at)]++
			}
		}
	}
	for i := range patterns {
		rarest := literal{pattern: i}
		for _, text := range required[i] {
			for at := range len(text) - gram + 1 {
				if rarest.text == "" || uses[gramAt(text, at)] < uses[gramAt(rarest.text, rarest.at)] {
					rarest.text, rarest.at = text, at
				}
			}
		}
		if rarest.text == "" {
			f.always[i/64] |= 1 << (i % 64)
			continue
		}
		g := gramAt(rarest.text, rarest.at)
		f.grams[g] = append(f.grams[g], rarest)
	}
	return f
}

// candidates sets in mask the bits of the patterns that path may match.
func (f *prefilter) candidates(mask []uint64, path []byte) {
	copy(mask, f.always)
	if len(f.grams) == 0 {
		return
	}
	for i := range len(path) - gram + 1 {
		for _, l := range f.grams[gramAt(path, i)] {
			from := i - l.at
			if from >= 0 && len(path)-from >= len(l.text) && string(path[from:from+len(l.text)]) == l.text {
				mask[l.pattern/64] |= 1 << (l.pattern % 64)
			}
		}
	}
}

func gramAt[T string | []byte](s T, i int) uint32 {
	return uint32(s[i]) | uint32(s[i+1])<<8 | uint32(s[i+2])<<16 | uint32(s[i+3])<<24
}

// requiredLiterals returns texts that stand in everything that expr matches.
func requiredLiterals(expr string) []string {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil
	}
	var r required
	r.walk(re.Simplify())
	r.cut()
	return r.texts
}

// required gathers literal texts. run is the text that everything matched holds just before the place that was reached.
type required struct {
	texts []string
	run   strings.Builder
}

// cut ends the run.
func (r *required) cut() {
	if r.run.Len() > 0 {
		r.texts = append(r.texts, r.run.String())
		r.run.Reset()
	}
}

func (r *required) walk(re *syntax.Regexp) {
	switch re.Op {
	case syntax.OpLiteral:
		for _, c := range re.Rune {
			// U+FFFD in an expression matches bytes that are no UTF-8, whatever they are.
			if c == utf8.RuneError || re.Flags&syntax.FoldCase != 0 {
				r.cut()
				continue
			}
			r.run.WriteRune(c)
		}
	case syntax.OpCapture:
		r.walk(re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			r.walk(sub)
		}
	case syntax.OpPlus:
		r.walk(re.Sub[0])
		r.cut()
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
	default:
		r.cut()
	}
}
