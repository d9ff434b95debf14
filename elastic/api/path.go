package api

import (
	"bytes"

	"weir/internal/wire"
)

// DecodePath appends to dst the copy of a raw path that rules and limits look at, and returns it: repeated slashes are one,
// a slash at the end is dropped (except of "/"), then each percent escape is decoded once. Escapes that are none stay as
// written. Dot segments are not resolved, since the nodes do not either (/i/_doc/.. is the document of that name), a plus
// is a plus, and what an escape made is not read again: %2F stands as a slash that separates nothing, %2541 is "%41".
//
// A path without percent signs comes out the same when decoded again. DecodePath allocates only what dst lacks.
func DecodePath(dst, raw []byte) []byte {
	from := len(dst)
	for i := 0; i < len(raw); i++ {
		if raw[i] == '/' && i > 0 && raw[i-1] == '/' {
			continue
		}
		if raw[i] == '/' && len(dst) > from && onlySlashes(raw[i:]) {
			break
		}
		b, n := unescape(raw[i:])
		dst = append(dst, b)
		i += n - 1
	}
	return dst
}

func onlySlashes(b []byte) bool { return len(bytes.TrimLeft(b, "/")) == 0 }

// DecodeSegment appends to dst the percent-decoded form of a part of a raw path (an id, a name) and returns it. Escapes
// that are none stay as written.
func DecodeSegment(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		b, n := unescape(raw[i:])
		dst = append(dst, b)
		i += n
	}
	return dst
}

// unescape returns the first byte that b stands for and how many bytes spell it. b must not be empty.
func unescape(b []byte) (byte, int) {
	if b[0] == '%' && len(b) > 2 {
		if hi, lo := wire.HexDigit(b[1]), wire.HexDigit(b[2]); hi < wire.NoHexDigit && lo < wire.NoHexDigit {
			return hi<<4 | lo, 3
		}
	}
	return b[0], 1
}

// unescapeShort decodes into buf, and tells whether it fits.
func unescapeShort(buf *[maxLabel]byte, raw []byte) ([]byte, bool) {
	out := buf[:0]
	for i := 0; i < len(raw); {
		if len(out) == len(buf) {
			return nil, false
		}
		b, n := unescape(raw[i:])
		out = append(out, b)
		i += n
	}
	return out, true
}

// pathEqual tells whether raw decodes to s.
func pathEqual(raw []byte, s string) bool {
	for len(s) > 0 {
		if len(raw) == 0 {
			return false
		}
		b, n := unescape(raw)
		if b != s[0] {
			return false
		}
		raw, s = raw[n:], s[1:]
	}
	return len(raw) == 0
}
