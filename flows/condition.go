package flows

import (
	"bytes"
	"fmt"
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
//	  index: "logs-*"               # every index named by the request matches one of the patterns
//	  header: {x-team: [a, b]}      # the field has one of the values; "*" for any value
//	  not: {ip: 10.0.0.0/8}
//	  any: [{user: alice}, {query: {pretty: "*"}}]
//
// Strings may hold * for any run of characters. Problems are reported to p; the result is then nil.
func ParseCondition(n *conf.Node, p *conf.Problems) Condition {
	var all conjunction
	for _, key := range n.Keys() {
		v := n.Get(key)
		c := parseKey(key, v, p)
		if c == nil {
			return nil
		}
		all = append(all, c)
	}
	switch len(all) {
	case 0:
		p.Errorf(n, "a condition is a mapping such as `when: {api: [search]}`")
		return nil
	case 1:
		return all[0]
	}
	return all
}

func parseKey(key string, v *conf.Node, p *conf.Problems) Condition {
	switch key {
	case "all", "any":
		var list []Condition
		for _, item := range v.Items() {
			c := ParseCondition(item, p)
			if c == nil {
				return nil
			}
			list = append(list, c)
		}
		if len(list) == 0 {
			p.Errorf(v, "%s takes a list of conditions", key)
			return nil
		}
		if key == "all" {
			return conjunction(list)
		}
		return disjunction(list)
	case "not":
		c := ParseCondition(v, p)
		if c == nil {
			return nil
		}
		return negation{c}
	case "header", "query":
		return parsePairs(key, v, p)
	case "ip":
		return parseNetworks(v, p)
	case "method", "path", "host", "api", "class", "index", "user", "status", "flow":
		pats := patternsOf(v, p)
		if pats == nil {
			return nil
		}
		return &subject{key: key, patterns: pats}
	}
	if near, ok := conf.Nearest(key, conditionKeys); ok {
		p.Errorf(v, "unknown word %q in a condition; did you mean %q?", key, near)
	} else {
		p.Errorf(v, "unknown word %q in a condition: known are %s", key, strings.Join(conditionKeys, ", "))
	}
	return nil
}

func patternsOf(v *conf.Node, p *conf.Problems) []string {
	var list conf.Strings
	if !decode(v, &list, p) {
		return nil
	}
	if len(list) == 0 {
		p.Errorf(v, "an empty list matches nothing")
		return nil
	}
	return list
}

func parsePairs(key string, v *conf.Node, p *conf.Problems) Condition {
	var all conjunction
	for _, name := range v.Keys() {
		pats := patternsOf(v.Get(name), p)
		if pats == nil {
			return nil
		}
		if key == "header" {
			name = strings.ToLower(name)
		}
		all = append(all, &pair{key: key, name: name, patterns: pats})
	}
	if len(all) == 0 {
		p.Errorf(v, "%s takes a mapping of names to values", key)
		return nil
	}
	return all
}

func parseNetworks(v *conf.Node, p *conf.Problems) Condition {
	var c networks
	for _, s := range patternsOf(v, p) {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			addr, aerr := netip.ParseAddr(s)
			if aerr != nil {
				p.Errorf(v, "%q is neither an address nor a network such as 10.0.0.0/8", s)
				return nil
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		c = append(c, prefix)
	}
	if c == nil {
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
		return matchAny(s.patterns, x.Request.Host)
	case "user":
		return x.Request.User != nil && matchAny(s.patterns, x.Request.User)
	case "api":
		return slices.Contains(s.patterns, x.Call().Name)
	case "class":
		return slices.Contains(s.patterns, x.Call().Class.String())
	case "flow":
		return slices.Contains(s.patterns, x.Trace.Flow)
	case "status":
		return matchStatus(s.patterns, x.Response.Status)
	case "index":
		return matchIndices(s.patterns, x.Call())
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

// matchIndices tells whether the request names indices and each of them matches a pattern. An expression that cannot
// be read matches nothing.
func matchIndices(patterns []string, call *api.Call) bool {
	if call.Index == nil {
		return false
	}
	names, err := call.Indices(nil)
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
