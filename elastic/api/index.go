package api

import (
	"fmt"
	"strings"
)

// Indices appends to dst the index expressions that the path names, decoded, in their order, and returns it. Nothing
// appended means every index: the path names none, or only empty ones (Elasticsearch and OpenSearch search everything for
// GET /,/_search). The list is split at every comma after decoding, inside date math too, as the nodes do.
//
// An expression may be a name, a wildcard (logs-*), an exclusion (-logs-1), date math (<logs-{now/d}>), one of another
// cluster (remote:logs-1), or _all. A broken percent escape is an error: the nodes refuse it.
func (c *Call) Indices(dst []string) ([]string, error) {
	expr, err := strictDecode(c.Index)
	if err != nil {
		return dst, fmt.Errorf("read index expression %q: %w", c.Index, err)
	}
	for part := range strings.SplitSeq(expr, ",") {
		if part != "" {
			dst = append(dst, part)
		}
	}
	return dst, nil
}

func strictDecode(raw []byte) (string, error) {
	for i := 0; i < len(raw); {
		_, n := unescape(raw[i:])
		if raw[i] == '%' && n == 1 {
			return "", fmt.Errorf("percent sign at offset %d begins no escape", i)
		}
		i += n
	}
	return string(DecodeSegment(nil, raw)), nil
}

// MatchIndex tells whether every index that an expression may name matches a pattern, in which * stands for any number of
// characters. Both may name another cluster (remote:logs-*); a pattern without one matches local indices only, as in
// Elasticsearch, where * does not reach other clusters. A date math expression counts as a name with wildcards in the place
// of its dates, _all as *. An exclusion names nothing and does not match.
//
// This is the question of a rule that permits. One that limits asks OverlapsIndex.
func MatchIndex(pattern, index string) bool { return compareIndex(pattern, index, covers) }

// OverlapsIndex tells whether some index may both be named by an expression and match a pattern: logs-* and *-2024 overlap,
// and so do logs-1 and the expression _all. Everything else is as for MatchIndex.
func OverlapsIndex(pattern, index string) bool { return compareIndex(pattern, index, overlaps) }

func compareIndex(pattern, index string, compare func(p, e string) bool) bool {
	if strings.HasPrefix(index, "-") {
		return false
	}
	patternCluster, pattern := splitCluster(pattern)
	cluster, index := splitCluster(index)
	if (patternCluster == "") != (cluster == "") || cluster != "" && !compare(patternCluster, cluster) {
		return false
	}
	return compare(plain(pattern), plain(index))
}

// splitCluster cuts the name of another cluster off. A double colon belongs to a selector (logs::failures), not to a cluster,
// and date math may hold a colon in a time zone.
func splitCluster(s string) (cluster, index string) {
	i := strings.IndexByte(s, ':')
	if i <= 0 || s[0] == '<' || strings.HasPrefix(s[i:], "::") {
		return "", s
	}
	return s[:i], s[i+1:]
}

// plain turns an expression into a name with wildcards.
func plain(s string) string {
	if i := strings.Index(s, "::"); i > 0 {
		s = s[:i]
	}
	if s == "_all" {
		return "*"
	}
	if len(s) < 2 || s[0] != '<' || s[len(s)-1] != '>' {
		return s
	}
	var b strings.Builder
	depth := 0
	for i := 1; i < len(s)-1; i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s)-1:
			i++
			if depth == 0 {
				b.WriteByte(s[i])
			}
		case c == '{':
			if depth == 0 {
				b.WriteByte('*')
			}
			depth++
		case c == '}' && depth > 0:
			depth--
		case depth == 0:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// covers tells whether pattern p matches all that e matches. The stars of e are characters like others to p's literals, which
// hold none, so only a star of p can take them in, and it takes in whatever they stand for.
func covers(p, e string) bool {
	prefix, rest, star := strings.Cut(p, "*")
	if !star {
		return p == e
	}
	e, ok := strings.CutPrefix(e, prefix)
	if !ok {
		return false
	}
	for {
		var part string
		part, rest, star = strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(e, part)
		}
		i := strings.Index(e, part)
		if i < 0 {
			return false
		}
		e = e[i+len(part):]
	}
}

// overlaps tells whether some string matches both. Two patterns with stars meet as soon as their ends agree: what stands
// between can be strung together.
func overlaps(p, e string) bool {
	pFirst, eFirst := strings.IndexByte(p, '*'), strings.IndexByte(e, '*')
	switch {
	case eFirst < 0:
		return covers(p, e)
	case pFirst < 0:
		return covers(e, p)
	}
	pLast, eLast := p[strings.LastIndexByte(p, '*')+1:], e[strings.LastIndexByte(e, '*')+1:]
	p, e = p[:pFirst], e[:eFirst]
	return (strings.HasPrefix(p, e) || strings.HasPrefix(e, p)) &&
		(strings.HasSuffix(pLast, eLast) || strings.HasSuffix(eLast, pLast))
}
