package wire

import (
	"bytes"
	"errors"
)

// Faults of a request line (RFC 9112 section 3).
var (
	ErrRequestLine = errors.New("malformed request line")
	ErrVersion     = errors.New("HTTP version other than 1.0 and 1.1")
)

// A RequestLine is the first line of a request. Its slices point into the line.
type RequestLine struct {
	Method, Target []byte
	Minor          byte // 0 for HTTP/1.0, 1 for HTTP/1.1
}

// ParseRequestLine reads a request line without its line end: a method, one space, a target without spaces and control
// characters, one space, a version. Bytes above 0x7f in the target are left to the node to judge.
func ParseRequestLine(line []byte) (RequestLine, error) {
	var r RequestLine
	space := bytes.IndexByte(line, ' ')
	if space < 1 {
		return r, ErrRequestLine
	}
	r.Method = line[:space]
	if !ValidToken(r.Method) {
		return r, ErrRequestLine
	}
	rest := line[space+1:]
	end := len(rest) - len(" HTTP/1.1")
	if end < 1 || string(rest[end:end+6]) != " HTTP/" || rest[end+7] != '.' {
		return r, ErrRequestLine
	}
	r.Target = rest[:end]
	for _, c := range r.Target {
		if c <= ' ' || c == 0x7f {
			return r, ErrRequestLine
		}
	}
	minor := rest[end+8]
	if rest[end+6] != '1' || minor != '0' && minor != '1' {
		return r, ErrVersion
	}
	r.Minor = minor - '0'
	return r, nil
}

// Head finds the end of a message's head, looking at each byte once while the head comes in pieces. The zero value is
// ready for a head.
type Head struct {
	seen int // bytes that were looked at
	line int // where the line begins that is being looked at
	end  int // length of the first line with its line end, 0 until it has come
}

// Scan looks at buf, which begins with the head and holds all of it that has come. It returns the length of the head with
// the empty line at its end, or 0 if that has not come yet, and ErrBareLineFeed if a line ends otherwise than with CRLF.
func (h *Head) Scan(buf []byte) (int, error) {
	for {
		i := bytes.IndexByte(buf[h.seen:], '\n')
		if i < 0 {
			h.seen = len(buf)
			return 0, nil
		}
		at := h.seen + i
		if at == h.line || buf[at-1] != '\r' {
			return 0, ErrBareLineFeed
		}
		h.seen = at + 1
		if at == h.line+1 && h.end > 0 {
			return at + 1, nil
		}
		if h.end == 0 {
			h.end = at + 1
		}
		h.line = at + 1
	}
}

// FirstLine returns the length of the first line with its line end, or 0 if it has not come whole.
func (h *Head) FirstLine() int { return h.end }
