package log

import (
	"unicode/utf8"
	"unsafe"
)

// appendText appends b as a JSON string (RFC 8259), at most its first limit bytes. Invalid UTF-8
// becomes U+FFFD, so that whatever a client sends makes a record that can be stored.
func appendText(dst, b []byte, limit int) []byte {
	const hex = "0123456789abcdef"
	b = whole(b, limit)
	dst = append(dst, '"')
	from := 0 // b[from:i] needs no escape
	for i := 0; i < len(b); {
		c := b[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(b[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
		}
		dst = append(dst, b[from:i]...)
		switch {
		case c >= utf8.RuneSelf:
			dst = append(dst, "\uFFFD"...)
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(dst, b[from:]...), '"')
}

// whole returns the first n bytes of b, or a few less, so that no character is cut.
func whole(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	b = b[:n]
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		if last := b[len(b)-back:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-back]
			}
			break
		}
	}
	return b
}

// bytesOf returns the bytes of s without a copy. They must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// stringOf returns b as a string without a copy. It is valid as long as b does not change.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
