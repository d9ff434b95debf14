// Package wire holds what the front and the transport share of HTTP/1.1: header fields as they came, strict parsing of
// heads, the framing of chunks, and the handle by which a waiting exchange is cut off.
//
// It is not an HTTP library: it neither reads nor opens connections. It trades convenience for exactness: fields
// keep their order, spelling and bytes, and slices point into the buffer that was parsed.
package wire

import (
	"bytes"
	"strings"
)

// A Field is one header line. Name and Value point into memory that somebody else owns.
type Field struct{ Name, Value []byte }

// A Header is a list of fields in the order in which they came. The zero value is empty and ready. Names compare
// without case; their spelling is kept.
type Header struct{ fields []Field }

// Reset empties h and keeps its memory.
func (h *Header) Reset() {
	clear(h.fields)
	h.fields = h.fields[:0]
}

// Fields returns the fields in order. The slice is valid until h changes.
func (h *Header) Fields() []Field { return h.fields }

// Len returns the number of fields.
func (h *Header) Len() int { return len(h.fields) }

// Add appends a field. It keeps name and value, it does not copy them.
func (h *Header) Add(name, value []byte) { h.fields = append(h.fields, Field{name, value}) }

// AddString appends a field of strings, which are copied.
func (h *Header) AddString(name, value string) { h.Add([]byte(name), []byte(value)) }

// Get returns the value of the first field called name, or nil. name must be in lower case.
func (h *Header) Get(name string) []byte {
	for i := range h.fields {
		if EqualFold(h.fields[i].Name, name) {
			return h.fields[i].Value
		}
	}
	return nil
}

// Has tells whether there is a field called name, which must be in lower case.
func (h *Header) Has(name string) bool { return h.Count(name) > 0 }

// Count returns how many fields are called name, which must be in lower case.
func (h *Header) Count(name string) int {
	n := 0
	for i := range h.fields {
		if EqualFold(h.fields[i].Name, name) {
			n++
		}
	}
	return n
}

// Del removes all fields called name, which must be in lower case.
func (h *Header) Del(name string) {
	h.Filter(func(f Field) bool { return !EqualFold(f.Name, name) })
}

// Set replaces the first field called name by value, in its place, removes further ones, and appends the field if there
// was none. name is looked up without case and written as given.
func (h *Header) Set(name, value string) {
	lower, found := strings.ToLower(name), false
	out := h.fields[:0]
	for _, f := range h.fields {
		if EqualFold(f.Name, lower) {
			if found {
				continue
			}
			f, found = Field{[]byte(name), []byte(value)}, true
		}
		out = append(out, f)
	}
	clear(h.fields[len(out):])
	h.fields = out
	if !found {
		h.AddString(name, value)
	}
}

// Filter keeps the fields for which keep returns true.
func (h *Header) Filter(keep func(Field) bool) {
	out := h.fields[:0]
	for _, f := range h.fields {
		if keep(f) {
			out = append(out, f)
		}
	}
	clear(h.fields[len(out):])
	h.fields = out
}

// EqualFold tells whether name equals lower without regard to ASCII case. lower must be in lower case.
func EqualFold(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i := 0; i < len(lower); i++ {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// HasToken tells whether the comma-separated list value holds token (lower case) without regard to ASCII case.
func HasToken(value []byte, token string) bool {
	for len(value) > 0 {
		var part []byte
		part, value, _ = bytes.Cut(value, []byte{','})
		if EqualFold(trim(part), token) {
			return true
		}
	}
	return false
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}
