// Package message holds the form in which requests lie in queues: each is one line of JSON, which people can read with
// `weir queue peek` and write with `weir queue import`.
//
// It does not decide what of a request is kept, nor what becomes of it. It trades some bytes for that line: a body, the
// value of a header field and a user are text in it, or base64 if they are no UTF-8.
package message

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unicode/utf8"

	"weir/internal/wire"
)

// A Field is a header field of a request.
type Field struct {
	Name  string
	Value string
}

// A Message is a request that waits in a queue.
type Message struct {
	Time     time.Time  // when the request came
	Method   string     // GET, POST, …
	Target   string     // path and query as they were sent
	Host     string     // the client named; may be empty
	ClientIP netip.Addr // the caller's; may be invalid
	User     string     // that the caller named, unproven; may be empty
	Fields   []Field    // header fields, in order
	Body     []byte
}

// line is a Message as it is written. Where a member and its twin of base64 stand for one value, the twin is that of bytes that
// are no UTF-8, which JSON does not have.
type line struct {
	Time       time.Time  `json:"@timestamp,omitzero"`
	Method     string     `json:"method"`
	Target     string     `json:"target"`
	Host       string     `json:"host,omitempty"`
	ClientIP   netip.Addr `json:"client_ip,omitzero"`
	User       string     `json:"user,omitempty"`
	UserBinary []byte     `json:"user_base64,omitempty"`
	Fields     []field    `json:"headers,omitempty"`
	Body       string     `json:"body,omitempty"`
	BodyBinary []byte     `json:"body_base64,omitempty"`
}

// field is a Field as it is written.
type field struct {
	Name        string `json:"name"`
	Value       string `json:"value"`
	ValueBinary []byte `json:"value_base64,omitempty"`
}

// AppendTo appends m as one line of JSON, without its end. A method, target or host that is no UTF-8 is an error: a URL has such
// bytes percent-encoded.
func (m *Message) AppendTo(dst []byte) ([]byte, error) {
	for _, s := range []string{m.Method, m.Target, m.Host} {
		if !utf8.ValidString(s) {
			return dst, fmt.Errorf("write a request into a queue: %q is no UTF-8", s)
		}
	}
	l := line{Time: m.Time.UTC().Truncate(time.Millisecond), Method: m.Method, Target: m.Target, Host: m.Host, ClientIP: m.ClientIP}
	l.User, l.UserBinary = split([]byte(m.User))
	l.Body, l.BodyBinary = split(m.Body)
	for _, f := range m.Fields {
		text, binary := split([]byte(f.Value))
		l.Fields = append(l.Fields, field{f.Name, text, binary})
	}
	out := bytes.NewBuffer(dst)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	if err := e.Encode(l); err != nil {
		return dst, fmt.Errorf("write a request into a queue: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

// Parse reads what AppendTo wrote, or somebody else: what could not have come over a connection is an error.
func Parse(record []byte) (Message, error) {
	var l line
	if err := json.Unmarshal(record, &l); err != nil {
		return Message{}, fmt.Errorf("read a request of a queue: %w", err)
	}
	m := Message{Time: l.Time, Method: l.Method, Target: l.Target, Host: l.Host, ClientIP: l.ClientIP}
	user, one := join(l.User, l.UserBinary)
	body, two := join(l.Body, l.BodyBinary)
	if !one || !two {
		return Message{}, errors.New("read a request of a queue: it has both body and body_base64, or both user and user_base64")
	}
	m.User, m.Body = string(user), body
	for _, f := range l.Fields {
		value, ok := join(f.Value, f.ValueBinary)
		if !ok {
			return Message{}, fmt.Errorf("read a request of a queue: the header field %q has both value and value_base64", f.Name)
		}
		m.Fields = append(m.Fields, Field{f.Name, string(value)})
	}
	if reason := m.malformed(); reason != "" {
		return Message{}, fmt.Errorf("read a request of a queue: %s", reason)
	}
	return m, nil
}

// Carries tells whether a message may have a header field of that name.
func Carries(name []byte) bool {
	return !wire.HopByHop(name) && !wire.EqualFold(name, "content-length")
}

// split returns b as text, or as it is if it is no UTF-8.
func split(b []byte) (text string, binary []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

// join returns what split was given, and false for both text and bytes.
func join(text string, binary []byte) ([]byte, bool) {
	if text == "" {
		return binary, true
	}
	return []byte(text), binary == nil
}

// malformed returns what no connection would have let through: bytes that would end a line of the request, above all.
func (m *Message) malformed() string {
	switch {
	case !wire.ValidToken([]byte(m.Method)):
		return fmt.Sprintf("the method %q is none", m.Method)
	case len(m.Target) == 0 || m.Target[0] != '/':
		return fmt.Sprintf("the target %q is no path", m.Target)
	case m.Time.UTC().Year() < 0 || m.Time.UTC().Year() > 9999:
		return fmt.Sprintf("the time %s cannot be written in UTC", m.Time)
	case m.Host != "" && !wire.ValidHost([]byte(m.Host)):
		return fmt.Sprintf("the host %q is none", m.Host)
	}
	for _, c := range []byte(m.Target) {
		if c <= ' ' || c == 0x7f {
			return fmt.Sprintf("the target %q has a space or a control character", m.Target)
		}
	}
	for _, f := range m.Fields {
		if !wire.ValidToken([]byte(f.Name)) || !wire.ValidValue([]byte(f.Value)) {
			return fmt.Sprintf("the header field %q has a malformed name or value", f.Name)
		}
		if !Carries([]byte(f.Name)) {
			return fmt.Sprintf("the header field %s is about a connection, or follows from the body", f.Name)
		}
	}
	return ""
}
