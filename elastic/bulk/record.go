package bulk

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// A record is an action on one line, as queues keep it: the action line, and for all but deletes a tab and the second line.
// Tabs in an action line, where JSON has them as blanks only, become spaces.

// AppendRecord appends the record of an action of body. index is put into the action line where it names none, and id into
// that of an index or create without one, so that sending it again stores nothing twice; both may be nil. Everything else
// of the line stays as it is.
func AppendRecord(dst, body []byte, a *Action, index, id []byte) []byte {
	line, _, _ := bytes.Cut(body[a.Start:a.End], []byte{'\n'})
	line = bytes.TrimSuffix(bytes.TrimPrefix(line, utf8BOM), carriageReturn)
	from := len(dst)
	dst = append(dst, line...)
	for i := from; i < len(dst); i++ {
		if dst[i] == '\t' {
			dst[i] = ' '
		}
	}
	var add []byte
	if a.Index == nil && len(index) > 0 {
		add = appendString(append(add, `"_index":`...), index)
	}
	if a.ID == nil && len(id) > 0 && (a.Verb == Index || a.Verb == Create) {
		if len(add) > 0 {
			add = append(add, ',')
		}
		add = appendString(append(add, `"_id":`...), id)
	}
	if len(add) > 0 {
		dst = insertMembers(dst, from, add)
	}
	if a.Verb != Delete {
		dst = append(append(dst, '\t'), a.Source...)
	}
	return dst
}

// insertMembers puts members at the beginning of the object of the action in dst[from:], which the scanner has read.
func insertMembers(dst []byte, from int, members []byte) []byte {
	l := lexer{b: dst[from:]}
	l.peek()
	l.i++ // the outer brace
	l.peek()
	l.str()
	l.peek()
	l.i++ // the colon
	l.peek()
	l.i++ // the inner brace
	at := from + l.i
	if l.peek() != '}' {
		members = append(members, ',')
	}
	dst = append(dst, members...)
	copy(dst[at+len(members):], dst[at:len(dst)-len(members)])
	copy(dst[at:], members)
	return dst
}

// appendString appends s as a JSON string.
func appendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', s[0])
		case r < ' ':
			dst = append(dst, `\u00`...)
			if r < 16 {
				dst = append(dst, '0')
			}
			dst = strconv.AppendInt(dst, int64(r), 16)
		default:
			dst = utf8.AppendRune(dst, r)
		}
		s = s[n:]
	}
	return append(dst, '"')
}

// AppendAction appends the action of a record to the body of a bulk request.
func AppendAction(body, record []byte) []byte {
	line, source, two := bytes.Cut(record, []byte{'\t'})
	body = append(append(body, line...), '\n')
	if two {
		body = append(append(body, source...), '\n')
	}
	return body
}
