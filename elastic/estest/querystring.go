package estest

import (
	"slices"
	"strings"
)

// queryString compiles query_string: field:value, words, "phrases", AND, OR, NOT, + and -, brackets, ranges and
// wildcards. Fuzziness, boosts and regular expressions are not understood.
func (c compiler) queryString(o object) (matcher, error) {
	if !o.has("query") {
		return nil, parsing("[query_string] must be provided with a [query]")
	}
	fields := stringList(o.get("fields"))
	if f := o.string("default_field"); f != "" {
		fields = []string{f}
	}
	return c.parseQueryString(o.string("query"), fields, strings.EqualFold(o.string("default_operator"), "and"))
}

func (c compiler) parseQueryString(text string, fields []string, and bool) (matcher, error) {
	p := &queryParser{c: c, rest: text, fields: fields, and: and}
	m, err := p.clauses(fields)
	if err == nil && strings.TrimSpace(p.rest) != "" {
		err = errSyntax
	}
	if err == errSyntax {
		return nil, &apiError{
			status: 400, typ: "query_shard_exception", reason: "Failed to parse query [" + text + "]", shard: true,
			cause: badRequest("parse_exception", "Cannot parse '%s'", text),
		}
	}
	return m, err
}

var errSyntax = badRequest("parse_exception", "syntax error")

type queryParser struct {
	c      compiler
	rest   string
	fields []string
	and    bool // words side by side must all match
	depth  int  // of brackets
}

// maxBrackets is how deep brackets may be nested.
const maxBrackets = 100

// clauses parses up to the end or a closing bracket. Lucene's grammar has no precedence: AND marks the clauses at its
// sides as required.
func (p *queryParser) clauses(fields []string) (matcher, error) {
	type clause struct {
		m    matcher
		mark byte // '+' required, '-' forbidden, 0 optional
	}
	var list []clause
	joined := false // the last word was AND
	for {
		p.rest = strings.TrimLeft(p.rest, " \t\r\n")
		if p.rest == "" || p.rest[0] == ')' {
			break
		}
		mark := byte(0)
		if p.and || joined {
			mark = '+'
		}
		joined = false
		switch {
		case p.word("AND"), p.word("&&"):
			if len(list) == 0 {
				return nil, errSyntax
			}
			if last := &list[len(list)-1]; last.mark == 0 {
				last.mark = '+'
			}
			joined = true
			continue
		case p.word("OR"), p.word("||"):
			if last := len(list) - 1; last >= 0 && p.and && list[last].mark == '+' {
				list[last].mark = 0
			}
			continue
		case p.word("NOT"), p.word("!"):
			mark = '-'
		case p.rest[0] == '+' || p.rest[0] == '-':
			mark = p.rest[0]
			p.rest = p.rest[1:]
		}
		m, err := p.clause(fields)
		if err != nil {
			return nil, err
		}
		list = append(list, clause{m, mark})
	}
	if joined || len(list) == 0 {
		return nil, errSyntax
	}
	var must, should, not []matcher
	for _, cl := range list {
		switch cl.mark {
		case '+':
			must = append(must, cl.m)
		case '-':
			not = append(not, cl.m)
		default:
			should = append(should, cl.m)
		}
	}
	return func(d *document) (float32, bool) {
		if anyMatches(not, d) {
			return 0, false
		}
		var score float32
		for _, m := range must {
			s, ok := m(d)
			if !ok {
				return 0, false
			}
			score += s
		}
		found := false
		for _, m := range should {
			if s, ok := m(d); ok {
				found = true
				score += s
			}
		}
		return score, found || len(must) > 0 || len(should) == 0
	}, nil
}

// word takes an operator, which must be followed by something that ends it.
func (p *queryParser) word(operator string) bool {
	rest, ok := strings.CutPrefix(p.rest, operator)
	if ok && (operator == "!" || rest == "" || strings.ContainsAny(rest[:1], " \t(")) {
		p.rest = rest
		return true
	}
	return false
}

// clause parses a bracket, a field with a value, or a value for the default fields.
func (p *queryParser) clause(fields []string) (matcher, error) {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	if p.rest == "" {
		return nil, errSyntax
	}
	if p.rest[0] == '(' {
		return p.bracket(fields)
	}
	if strings.HasPrefix(p.rest, "*:*") {
		p.rest = p.rest[3:]
		return matchAll, nil
	}
	if end := strings.IndexAny(p.rest, ": \t()\"[]{}<>="); end > 0 && p.rest[end] == ':' && p.rest[end-1] != '\\' {
		field := strings.ReplaceAll(p.rest[:end], `\`, "")
		p.rest = p.rest[end+1:]
		if field == "_exists_" {
			name, _ := p.token()
			return p.c.hasField(name), nil
		}
		return p.value([]string{field}, true)
	}
	return p.value(fields, false)
}

func (p *queryParser) bracket(fields []string) (matcher, error) {
	p.rest = p.rest[1:]
	if p.depth++; p.depth > maxBrackets {
		return nil, errSyntax
	}
	m, err := p.clauses(fields)
	if err != nil {
		return nil, err
	}
	p.depth--
	if p.rest == "" {
		return nil, errSyntax
	}
	p.rest = p.rest[1:]
	return m, nil
}

// value parses what may follow "field:". Without a named field the value is looked for in all fields, and values that do
// not fit a field's type do not count.
func (p *queryParser) value(fields []string, named bool) (matcher, error) {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	if p.rest == "" {
		return nil, errSyntax
	}
	compile := func(one func(field string) (matcher, error)) (matcher, error) {
		names := fields
		if len(names) == 0 || len(names) == 1 && names[0] == "*" {
			names = p.c.mapping.leaves()
		}
		var some []matcher
		for _, name := range names {
			m, err := one(name)
			if err != nil {
				if named {
					return nil, err
				}
				continue
			}
			some = append(some, m)
		}
		return matchWhen(func(d *document) bool { return anyMatches(some, d) }), nil
	}
	switch c := p.rest[0]; {
	case c == '(':
		return p.bracket(fields)
	case c == '"':
		end := strings.IndexByte(p.rest[1:], '"')
		if end < 0 {
			return nil, errSyntax
		}
		phrase := p.rest[1 : 1+end]
		p.rest = p.rest[2+end:]
		return compile(func(f string) (matcher, error) { return p.c.matchText(f, phrase, true, true) })
	case c == '[' || c == '{':
		return p.interval(compile)
	case c == '<' || c == '>':
		operator := "lt"
		if c == '>' {
			operator = "gt"
		}
		p.rest = p.rest[1:]
		if strings.HasPrefix(p.rest, "=") {
			p.rest = p.rest[1:]
			operator += "e"
		}
		bound, err := p.token()
		if err != nil {
			return nil, err
		}
		return compile(func(f string) (matcher, error) { return p.c.bounds(f, object{{operator, bound}}) })
	}
	word, err := p.token()
	if err != nil {
		return nil, err
	}
	if word == "*" {
		return compile(func(f string) (matcher, error) { return p.c.hasField(f), nil })
	}
	if strings.ContainsAny(word, "*?") {
		return compile(func(f string) (matcher, error) {
			return p.c.like("wildcard", f, false, func(s string) bool { return wildcardMatch(word, s) })
		})
	}
	text := word + p.moreWords()
	return compile(func(f string) (matcher, error) { return p.c.matchText(f, text, false, p.and) })
}

// moreWords takes the plain words that follow. Words side by side are one text for the field's analysis: tag:(a b) looks
// for the keyword "a b".
func (p *queryParser) moreWords() string {
	text := ""
	for {
		next := &queryParser{rest: strings.TrimLeft(p.rest, " \t\r\n")}
		if next.rest == "" || strings.ContainsRune("+-!<>", rune(next.rest[0])) {
			return text
		}
		word, err := next.token()
		if err != nil || slices.Contains([]string{"AND", "OR", "NOT", "&&", "||"}, word) || strings.ContainsAny(word, `*?:\`) {
			return text
		}
		text += " " + word
		p.rest = next.rest
	}
}

// interval parses [a TO b], with { } for bounds that do not belong to it.
func (p *queryParser) interval(compile func(func(string) (matcher, error)) (matcher, error)) (matcher, error) {
	end := strings.IndexAny(p.rest, "]}")
	if end < 0 {
		return nil, errSyntax
	}
	words := strings.Fields(p.rest[1:end])
	if len(words) != 3 || words[1] != "TO" {
		return nil, errSyntax
	}
	lower, upper := "gte", "lte"
	if p.rest[0] == '{' {
		lower = "gt"
	}
	if p.rest[end] == '}' {
		upper = "lt"
	}
	p.rest = p.rest[end+1:]
	var bounds object
	if words[0] != "*" {
		bounds = append(bounds, member{lower, strings.Trim(words[0], `"`)})
	}
	if words[2] != "*" {
		bounds = append(bounds, member{upper, strings.Trim(words[2], `"`)})
	}
	return compile(func(f string) (matcher, error) { return p.c.bounds(f, bounds) })
}

func (c compiler) bounds(field string, bounds object) (matcher, error) {
	p := c.mapping.field(field)
	if p == nil {
		return matchNone, nil
	}
	return c.between(field, p, bounds)
}

// token takes a word up to a space or a bracket; a backslash takes the next character as it is.
func (p *queryParser) token() (string, error) {
	var word []byte
	i := 0
	for ; i < len(p.rest) && !strings.ContainsRune(" \t\r\n()[]{}\"", rune(p.rest[i])); i++ {
		if p.rest[i] == '\\' && i+1 < len(p.rest) {
			i++
		}
		word = append(word, p.rest[i])
	}
	p.rest = p.rest[i:]
	if len(word) == 0 {
		return "", errSyntax
	}
	return string(word), nil
}

// leaves returns the names of all fields that hold values, without multi-fields.
func (m *mapping) leaves() []string {
	var names []string
	var walk func(properties map[string]*property, prefix string)
	walk = func(properties map[string]*property, prefix string) {
		for name, p := range properties {
			if len(p.properties) > 0 {
				walk(p.properties, prefix+name+".")
			} else if p.typ != "object" {
				names = append(names, prefix+name)
			}
		}
	}
	walk(m.properties, "")
	slices.Sort(names)
	return names
}
