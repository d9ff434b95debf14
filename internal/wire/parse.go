package wire

import (
	"bytes"
	"errors"
	"fmt"
)

// Faults of a message head. Each makes the message ambiguous to somebody on its way (RFC 9112 sections 2.2, 5 and 6.3),
// so the gateway refuses it instead of guessing.
var (
	ErrBareLineFeed  = errors.New("header line does not end with CRLF")
	ErrFolded        = errors.New("folded header line")
	ErrFieldName     = errors.New("malformed header field name")
	ErrFieldValue    = errors.New("control character in a header field value")
	ErrLength        = errors.New("malformed Content-Length")
	ErrTwoLengths    = errors.New("more than one Content-Length")
	ErrLengthChunked = errors.New("Content-Length together with Transfer-Encoding")
	ErrCoding        = errors.New("Transfer-Encoding other than chunked")
	ErrStatusLine    = errors.New("malformed status line")
	ErrTwoHosts      = errors.New("more than one Host")
)

// tokenChar marks the bytes of a token (RFC 9110 section 5.6.2).
var tokenChar = func() (t [256]bool) {
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = true, true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

// ParseFields appends to h the fields of raw, which is a block of lines that each end with CRLF, with or without the
// empty line at its end. The fields point into raw.
func ParseFields(h *Header, raw []byte) error {
	for len(raw) > 0 {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return ErrBareLineFeed
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		if len(line) == 0 {
			if len(raw) > 0 {
				return ErrBareLineFeed
			}
			return nil
		}
		if err := h.parseLine(line); err != nil {
			return err
		}
	}
	return nil
}

// parseLine appends to h the field of a line, which is not empty and has no line end.
func (h *Header) parseLine(line []byte) error {
	if line[0] == ' ' || line[0] == '\t' {
		return ErrFolded
	}
	colon := bytes.IndexByte(line, ':')
	if colon < 1 {
		return ErrFieldName
	}
	name := line[:colon]
	for _, c := range name {
		if !tokenChar[c] {
			return ErrFieldName
		}
	}
	value := trim(line[colon+1:])
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return ErrFieldValue
		}
	}
	h.Add(name, value)
	return nil
}

// Framing is how the end of a message's body is found.
type Framing struct {
	Length  int64 // bytes of the body; -1 when no Content-Length was given
	Chunked bool
}

// FramingOf works out the framing that h announces and refuses what is ambiguous.
func FramingOf(h *Header) (Framing, error) {
	f := Framing{Length: -1}
	codings := 0
	for i := range h.fields {
		name := h.fields[i].Name
		switch {
		case len(name) == len("content-length") && EqualFold(name, "content-length"):
			if f.Length >= 0 {
				return f, ErrTwoLengths
			}
			n, err := ParseLength(h.fields[i].Value)
			if err != nil {
				return f, err
			}
			f.Length = n
		case len(name) == len("transfer-encoding") && EqualFold(name, "transfer-encoding"):
			codings++
			if codings > 1 || !EqualFold(h.fields[i].Value, "chunked") {
				return f, ErrCoding
			}
			f.Chunked = true
		}
	}
	if f.Chunked && f.Length >= 0 {
		return f, ErrLengthChunked
	}
	return f, nil
}

// ParseLength reads a Content-Length: digits only, without sign or spaces, below 2^62.
func ParseLength(v []byte) (int64, error) {
	if len(v) == 0 || len(v) > 18 {
		return 0, ErrLength
	}
	var n int64
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, ErrLength
		}
		n = n*10 + int64(c-'0')
	}
	return n, nil
}

// A StatusLine is the first line of an answer.
type StatusLine struct {
	Minor  byte // 0 for HTTP/1.0, 1 for HTTP/1.1
	Status int
	Reason []byte // may be empty; points into the line
}

// BeginsStatusLine tells whether a status line can begin with b, which may be empty.
func BeginsStatusLine(b []byte) bool {
	const version = "HTTP/1."
	n := min(len(b), len(version))
	return string(b[:n]) == version[:n]
}

// ParseStatusLine reads a status line without its line end.
func ParseStatusLine(line []byte) (StatusLine, error) {
	var s StatusLine
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' || (line[7] != '0' && line[7] != '1') {
		return s, fmt.Errorf("%w %q", ErrStatusLine, clip(line))
	}
	s.Minor = line[7] - '0'
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return s, fmt.Errorf("%w %q", ErrStatusLine, clip(line))
		}
		s.Status = s.Status*10 + int(c-'0')
	}
	switch rest := line[12:]; {
	case s.Status < 100:
		return s, fmt.Errorf("%w %q", ErrStatusLine, clip(line))
	case len(rest) == 0:
	case rest[0] == ' ':
		s.Reason = rest[1:]
	default:
		return s, fmt.Errorf("%w %q", ErrStatusLine, clip(line))
	}
	return s, nil
}

func clip(b []byte) []byte { return b[:min(len(b), 64)] }

// HopByHop tells whether a field belongs to one connection only and is not passed on (RFC 9110 section 7.6.1).
// Fields that Connection names are hop-by-hop as well; see ConnectionNames.
func HopByHop(name []byte) bool {
	switch len(name) {
	case 2:
		return EqualFold(name, "te")
	case 7:
		return EqualFold(name, "upgrade") || EqualFold(name, "trailer")
	case 10:
		return EqualFold(name, "connection") || EqualFold(name, "keep-alive")
	case 14:
		return EqualFold(name, "http2-settings")
	case 16:
		return EqualFold(name, "proxy-connection")
	case 17:
		return EqualFold(name, "transfer-encoding")
	case 18:
		return EqualFold(name, "proxy-authenticate")
	case 19:
		return EqualFold(name, "proxy-authorization")
	}
	return false
}

// ConnectionNames tells whether a Connection field of h names the field called name.
func ConnectionNames(h *Header, name []byte) bool {
	for i := range h.fields {
		if EqualFold(h.fields[i].Name, "connection") {
			for rest := h.fields[i].Value; len(rest) > 0; {
				var part []byte
				part, rest, _ = bytes.Cut(rest, []byte{','})
				if bytes.EqualFold(trim(part), name) {
					return true
				}
			}
		}
	}
	return false
}

// DropHopByHop removes the fields that belong to one connection: those of HopByHop and those that Connection names.
func (h *Header) DropHopByHop() {
	if h.Has("connection") {
		for i := range h.fields {
			if f := &h.fields[i]; !EqualFold(f.Name, "connection") && ConnectionNames(h, f.Name) {
				f.Name = nil // Connection itself must stay until every name was looked up
			}
		}
	}
	h.Filter(func(f Field) bool { return f.Name != nil && !HopByHop(f.Name) })
}

// ValidHost tells whether b can be a Host (RFC 9112 section 3.2): a name or an address, and perhaps a port. A comma, which a
// name may have by the letter, is refused: two hosts that were joined look like that.
func ValidHost(b []byte) bool {
	for _, c := range b {
		if !tokenChar[c] && c != ':' && c != '[' && c != ']' && c != '(' && c != ')' && c != ';' && c != '=' || c == '#' || c == '^' || c == '`' || c == '|' {
			return false
		}
	}
	return true
}

// AppendHostName appends the name in a Host as names compare: in lower case, without the port and without a dot at the end.
func AppendHostName(dst, host []byte) []byte {
	if i := bytes.LastIndexByte(host, ':'); i >= 0 && bytes.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	for _, c := range bytes.TrimSuffix(host, []byte(".")) {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		dst = append(dst, c)
	}
	return dst
}

// ValidToken tells whether b is a token (RFC 9110 section 5.6.2), as methods and field names are.
func ValidToken(b []byte) bool {
	for _, c := range b {
		if !tokenChar[c] {
			return false
		}
	}
	return len(b) > 0
}

// ValidValue tells whether b can stand as a field value without ending the line or hiding something from a parser that
// stops at a zero byte.
func ValidValue(b []byte) bool {
	return bytes.IndexByte(b, '\r') < 0 && bytes.IndexByte(b, '\n') < 0 && bytes.IndexByte(b, 0) < 0
}

// NoHexDigit is what HexDigit returns for a byte that is none.
const NoHexDigit = 16

// HexDigit returns the value of a hexadecimal digit of either case, or NoHexDigit.
func HexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return NoHexDigit
}
