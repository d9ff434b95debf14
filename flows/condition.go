package flows

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weir/elastic/api"
	"weir/internal/conf"
	"weir/internal/wire"
)

// A Condition is a compiled predicate over an exchange. It allocates nothing.
type Condition interface {
	Match(x *Exchange) bool
	String() string
}

// conditionKeys are the words that a condition may be made of, for suggestions.
var conditionKeys = []string{
	"all", "any", "not", "method", "path", "host", "api", "class", "index", "header", "query", "ip", "user", "status", "flow",
}

// ParseCondition compiles a condition: a tree whose keys must all hold.
//
//	when:
//	  api: [search, msearch]        # any of the listed
//	  index: "logs-*"               # every index named in the path, or else the query, matches one of the patterns
//	  header: {x-team: [a, b]}      # the field has one of the values; "*" for any value
//	  not: {ip: 10.0.0.0/8}
//	  any: [{user: alice}, {query: {pretty: "*"}}]
//
// Strings may hold * for any run of characters, other than names of APIs, classes and flows. Problems are reported to p; the
// result is then nil.
func ParseCondition(n *conf.Node, p *conf.Problems) Condition {
	if n.Len() == 0 || n.Kind() != conf.Map {
		p.Errorf(n, "a condition is a mapping such as `when: {api: [search]}`")
		return nil
	}
	var all conjunction
	for _, key := range n.Keys() {
		if c := parseKey(key, n, p); c != nil {
			all = append(all, c)
		}
	}
	switch {
	case len(all) < n.Len(): // what is wrong with the others has been said
		return nil
	case len(all) == 1:
		return all[0]
	}
	return all
}

// Condition compiles a condition of the filter or rule being built, and reports names of flows that there are not.
func (b *Builder) Condition(n *conf.Node, p *conf.Problems) Condition {
	b.checkFlows(n, p)
	return ParseCondition(n, p)
}

// checkFlows looks for the word flow in a condition.
func (b *Builder) checkFlows(n *conf.Node, p *conf.Problems) {
	EachWord(n, "flow", func(v *conf.Node) {
		for i := range max(1, len(v.Items())) {
			if name := v.Item(i); name.Kind() == conf.Scalar && b.flows[name.Scalar()] == nil {
				b.dangling("flow", name.Scalar(), slices.Collect(maps.Keys(b.flows)), name, p)
			}
		}
	})
}

// EachWord calls f with what stands behind a word in a condition and in those that it is made of.
func EachWord(n *conf.Node, word string, f func(v *conf.Node)) {
	for _, item := range n.Items() {
		EachWord(item, word, f)
	}
	for _, key := range n.Keys() {
		switch key {
		case word:
			f(n.Get(key))
		case "all", "any", "not":
			EachWord(n.Get(key), word, f)
		}
	}
}

// parseKey compiles what stands under key in n.
func parseKey(key string, n *conf.Node, p *conf.Problems) Condition {
	v := n.Get(key)
	switch key {
	case "all", "any":
		var list []Condition
		for _, item := range v.Items() {
			if c := ParseCondition(item, p); c != nil {
				list = append(list, c)
			}
		}
		switch {
		case v.Len() == 0 || v.Kind() != conf.List:
			p.Errorf(v, "%s takes a list of conditions", key)
			return nil
		case len(list) < v.Len():
			return nil
		case key == "all":
			return conjunction(list)
		}
		return disjunction(list)
	case "not":
		if c := ParseCondition(v, p); c != nil {
			return negation{c}
		}
		return nil
	case "header", "query":
		return parsePairs(key, v, p)
	case "ip":
		return parseNetworks(v, p)
	case "method", "path", "host", "api", "class", "index", "user", "status", "flow":
		return parseSubject(key, v, p)
	}
	q := p.Add(conf.Problem{Pos: n.KeyPos(key), Message: fmt.Sprintf("unknown word %q in a condition", key)})
	if near, ok := conf.Nearest(key, conditionKeys); ok {
		q.Suggestion = near
	} else {
		q.Message += ": known are " + strings.Join(conditionKeys, ", ")
	}
	return nil
}

// patternsOf returns the patterns of a word, or nil if they cannot be read or there are none, which would never hold.
func patternsOf(v *conf.Node, p *conf.Problems) []string {
	var list conf.Strings
	if !decode(v, &list, p) {
		return nil
	}
	if v.Kind() == conf.List && v.Len() == 0 {
		p.Errorf(v, "an empty list matches nothing")
	}
	return list
}

// parseSubject compiles one of the words that compare a property of the exchange with patterns.
func parseSubject(key string, v *conf.Node, p *conf.Problems) Condition {
	patterns := patternsOf(v, p)
	ok := len(patterns) > 0
	for i, word := range patterns {
		if key == "method" {
			patterns[i] = upperMethod(word, v.Item(i), p)
		}
		ok = checkWord(key, patterns[i], v.Item(i), p) && ok
	}
	if !ok {
		return nil
	}
	if key == "host" {
		patterns = hostPatterns(patterns)
	}
	return &subject{key: key, patterns: patterns}
}

// methods are those that nodes know.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"}

// upperMethod returns a method as requests spell it.
func upperMethod(word string, n *conf.Node, p *conf.Problems) string {
	upper := strings.ToUpper(word)
	if word != upper {
		p.Warnf(n, "methods are case-sensitive; %s is read in capitals", n.Quoted())
	}
	return upper
}

// checkWord tells whether a pattern of a word can hold for any request or answer. A guard that never holds guards nothing,
// so that one that cannot is an error.
func checkWord(key, word string, n *conf.Node, p *conf.Problems) bool {
	var known []string
	switch key {
	case "method":
		known = methods
		if slices.ContainsFunc(known, func(m string) bool { return Glob(word, []byte(m)) }) {
			return true
		}
	case "class":
		known = api.ClassNames()
		if slices.Contains(known, word) {
			return true
		}
	case "api":
		if _, ok := api.ID(word); ok || word == api.Name(0) {
			return true
		}
		unknownAPI(word, n, p)
		return false
	case "status":
		for status := 100; status < 600; status++ {
			if matchStatus([]string{word}, status) {
				return true
			}
		}
		p.Errorf(n, "%s is no status such as 404, 5xx or 4*", n.Quoted()).Code = conf.CodeValue
		return false
	case "path":
		if word != "" && (word[0] == '/' || word[0] == '*') {
			return true
		}
		p.Errorf(n, "%s matches no path: one begins with /", n.Quoted()).Code = conf.CodeValue
		return false
	default:
		return true
	}
	q := p.Errorf(n, "%s is not one of %s", n.Quoted(), strings.Join(known, ", "))
	q.Code = conf.CodeEnum
	if !n.FromVariable() {
		q.Suggestion, _ = conf.Nearest(word, known)
	}
	return false
}

// unknownAPI reports a name that no API has. Of names in two parts the second is what people remember.
func unknownAPI(word string, n *conf.Node, p *conf.Problems) {
	if strings.Contains(word, "*") {
		p.Errorf(n, "%s is no API: they are named in full; a group of them is a class", n.Quoted()).Code = conf.CodeEnum
		return
	}
	q := p.Errorf(n, "%s is no API", n.Quoted())
	q.Code = conf.CodeEnum
	if n.FromVariable() {
		return
	}
	names := api.Names()
	for _, name := range names {
		if strings.HasSuffix(name, "."+word) {
			q.Suggestion = name
			return
		}
	}
	q.Suggestion, _ = conf.Nearest(word, names)
}

func parsePairs(key string, v *conf.Node, p *conf.Problems) Condition {
	if v.Len() == 0 || v.Kind() != conf.Map {
		p.Errorf(v, "%s takes a mapping of names to values", key)
		return nil
	}
	var all conjunction
	for _, name := range v.Keys() {
		patterns := patternsOf(v.Get(name), p)
		if len(patterns) == 0 {
			continue
		}
		if key == "header" {
			if !wire.ValidToken([]byte(name)) {
				p.Add(conf.Problem{Pos: v.KeyPos(name), Message: fmt.Sprintf("%q is not the name of a header field: no request has it", name), Code: conf.CodeValue})
				continue
			}
			name = strings.ToLower(name)
		}
		all = append(all, &pair{key: key, name: name, patterns: patterns})
	}
	if len(all) < v.Len() {
		return nil
	}
	return all
}

func parseNetworks(v *conf.Node, p *conf.Problems) Condition {
	var c networks
	list := patternsOf(v, p)
	for i, s := range list {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			addr, aerr := netip.ParseAddr(s)
			if aerr != nil {
				p.Errorf(v.Item(i), "%s is neither an address nor a network such as 10.0.0.0/8", v.Item(i).Quoted())
				continue
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		c = append(c, prefix)
	}
	if len(c) == 0 || len(c) < len(list) {
		return nil
	}
	return c
}

type conjunction []Condition

func (c conjunction) Match(x *Exchange) bool {
	for _, each := range c {
		if !each.Match(x) {
			return false
		}
	}
	return true
}

func (c conjunction) String() string { return join([]Condition(c), " and ") }

type disjunction []Condition

func (c disjunction) Match(x *Exchange) bool {
	for _, each := range c {
		if each.Match(x) {
			return true
		}
	}
	return false
}

func (c disjunction) String() string { return "(" + join([]Condition(c), " or ") + ")" }

func join(list []Condition, sep string) string {
	parts := make([]string, len(list))
	for i, c := range list {
		parts[i] = c.String()
	}
	return strings.Join(parts, sep)
}

type negation struct{ c Condition }

func (n negation) Match(x *Exchange) bool { return !n.c.Match(x) }
func (n negation) String() string         { return "not (" + n.c.String() + ")" }

// subject compares one property of the exchange with patterns.
type subject struct {
	key      string
	patterns []string
}

func (s *subject) String() string { return s.key + " is " + strings.Join(s.patterns, " or ") }

func (s *subject) Match(x *Exchange) bool {
	switch s.key {
	case "method":
		return matchAny(s.patterns, x.Request.Method)
	case "path":
		return matchAny(s.patterns, x.DecodedPath())
	case "host":
		return matchAny(s.patterns, x.HostName())
	case "user":
		return x.Request.User != nil && matchAny(s.patterns, x.Request.User)
	case "api":
		return slices.Contains(s.patterns, x.Call().String())
	case "class":
		return slices.Contains(s.patterns, x.Call().Class.String())
	case "flow":
		return matchFlow(s.patterns, x.Trace.Flow)
	case "status":
		return matchStatus(s.patterns, x.Response.Status)
	case "index":
		return matchIndices(s.patterns, x)
	}
	return false
}

// matchFlow tells whether one of the names is that of a flow that the router chose, which may be several with commas
// between them.
func matchFlow(names []string, chosen string) bool {
	for more := true; more; {
		var one string
		one, chosen, more = strings.Cut(chosen, ",")
		if slices.Contains(names, one) {
			return true
		}
	}
	return false
}

// matchStatus compares a status with patterns such as 404, 5xx and 4*.
func matchStatus(patterns []string, status int) bool {
	digits := [3]byte{byte('0' + status/100%10), byte('0' + status/10%10), byte('0' + status%10)}
	for _, p := range patterns {
		if len(p) == 3 && p[1:] == "xx" && p[0] == digits[0] || Glob(p, digits[:]) {
			return true
		}
	}
	return false
}

// matchIndices tells whether the request names indices outside its body and each of them matches a pattern. An expression that
// cannot be read matches nothing.
func matchIndices(patterns []string, x *Exchange) bool {
	if x.Call().Index == nil && len(x.Request.Query) == 0 {
		return false
	}
	names, err := x.Indices(nil)
	if err != nil || len(names) == 0 {
		return false
	}
	for _, name := range names {
		if !slices.ContainsFunc(patterns, func(p string) bool { return api.MatchIndex(p, name) }) {
			return false
		}
	}
	return true
}

// pair compares a header field or a query parameter with patterns.
type pair struct {
	key, name string
	patterns  []string
}

func (c *pair) String() string {
	return fmt.Sprintf("%s %s is %s", c.key, c.name, strings.Join(c.patterns, " or "))
}

func (c *pair) Match(x *Exchange) bool {
	if c.key == "query" {
		v, ok := api.QueryValue(x.Request.Query, c.name)
		return ok && matchAny(c.patterns, v)
	}
	for _, f := range x.Request.Header.Fields() {
		if wire.EqualFold(f.Name, c.name) && matchAny(c.patterns, f.Value) {
			return true
		}
	}
	return false
}

type networks []netip.Prefix

func (n networks) Match(x *Exchange) bool {
	for _, p := range n {
		if p.Contains(x.Request.ClientIP) {
			return true
		}
	}
	return false
}

func (n networks) String() string {
	parts := make([]string, len(n))
	for i, p := range n {
		parts[i] = p.String()
	}
	return "ip in " + strings.Join(parts, ", ")
}

func matchAny(patterns []string, s []byte) bool {
	for _, p := range patterns {
		if Glob(p, s) {
			return true
		}
	}
	return false
}

// Glob tells whether s matches pattern, in which * stands for any run of bytes. It runs in linear time and allocates
// nothing.
func Glob(pattern string, s []byte) bool {
	star := strings.IndexByte(pattern, '*')
	if star < 0 {
		return string(s) == pattern
	}
	if len(s) < star || string(s[:star]) != pattern[:star] {
		return false
	}
	s, pattern = s[star:], pattern[star+1:]
	for {
		star = strings.IndexByte(pattern, '*')
		if star < 0 {
			return len(s) >= len(pattern) && string(s[len(s)-len(pattern):]) == pattern
		}
		i := bytes.Index(s, bytesOf(pattern[:star]))
		if i < 0 {
			return false
		}
		s, pattern = s[i+star:], pattern[star+1:]
	}
}

// hostPatterns returns patterns in the form of Exchange.HostName. A port says nothing: clients send one where it is not the
// usual one, and a guard must not depend on it.
func hostPatterns(patterns []string) []string {
	out := make([]string, len(patterns))
	for i, p := range patterns {
		out[i] = string(wire.AppendHostName(nil, []byte(p)))
	}
	return out
}
