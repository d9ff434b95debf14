package api

import "bytes"

// The query string is read as the nodes read it: seen on Elasticsearch 7.17, OpenSearch 2.19 and 3.9. Both & and ; separate
// parameters, names and values are percent-decoded, a plus is a space, a name may stand without a value, and of a repeated
// parameter the last one counts. Escapes that are none, which the nodes refuse, are kept as written.

// QueryValue returns the value of a parameter of a raw query, not decoded, and whether the query has it. Of a repeated one it
// is the last value, which is the one the nodes take. The name is compared decoded.
func QueryValue(rawQuery []byte, name string) (value []byte, ok bool) {
	for rest := rawQuery; len(rest) > 0; {
		var n, v []byte
		n, v, rest = nextParam(rest)
		if queryEqual(n, name) {
			value, ok = v, true
		}
	}
	return value, ok
}

// EachParam calls f with every parameter of a raw query in its order, name and value not decoded. Empty parameters (a&&b)
// are left out.
func EachParam(rawQuery []byte, f func(rawName, rawValue []byte)) {
	for rest := rawQuery; len(rest) > 0; {
		var n, v []byte
		n, v, rest = nextParam(rest)
		if len(n) > 0 || len(v) > 0 {
			f(n, v)
		}
	}
}

// DecodeQuery appends to dst the decoded form of a name or value of a raw query and returns it.
func DecodeQuery(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		b, n := unescapeQuery(raw[i:])
		dst = append(dst, b)
		i += n
	}
	return dst
}

// RemoveParam appends to dst the raw query without the parameter of a name, wherever and however often it stands, and
// returns it. A removed parameter takes the separator before it along, the first one that after it. Everything else stays
// byte for byte.
func RemoveParam(dst, rawQuery []byte, name string) []byte {
	kept := false
	for pos := 0; pos <= len(rawQuery); {
		end := pos + paramLen(rawQuery[pos:])
		if n, _, _ := bytes.Cut(rawQuery[pos:end], equals); !queryEqual(n, name) {
			start := pos
			if kept {
				start-- // the separator
			}
			dst = append(dst, rawQuery[start:end]...)
			kept = true
		}
		pos = end + 1
	}
	return dst
}

var equals = []byte{'='}

// nextParam cuts the first parameter off a raw query that is not empty.
func nextParam(q []byte) (name, value, rest []byte) {
	end := paramLen(q)
	name, value, _ = bytes.Cut(q[:end:end], equals)
	if end < len(q) {
		rest = q[end+1:]
	}
	return name, value, rest
}

func paramLen(q []byte) int {
	for i, b := range q {
		if b == '&' || b == ';' {
			return i
		}
	}
	return len(q)
}

func unescapeQuery(b []byte) (byte, int) {
	if b[0] == '+' {
		return ' ', 1
	}
	return unescape(b)
}

// queryEqual tells whether raw decodes to s.
func queryEqual(raw []byte, s string) bool {
	for len(s) > 0 {
		if len(raw) == 0 {
			return false
		}
		b, n := unescapeQuery(raw)
		if b != s[0] {
			return false
		}
		raw, s = raw[n:], s[1:]
	}
	return len(raw) == 0
}
