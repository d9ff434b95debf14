package log

import (
	"bytes"
	"math"
	"math/rand/v2"

	"github.com/cespare/xxhash/v2"

	"weir/elastic/api"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/wire"
)

const (
	// maxCredentials bounds credentials, in bytes, that are looked into for the id of an API key.
	maxCredentials = 1 << 10
	// maxFamily bounds the name of a program, in bytes: what is longer is no product (RFC 9110 section 10.1.5).
	maxFamily = 64
	// maxShape bounds the shape of a search in a record, in bytes.
	maxShape = 1 << 10
	// maxShaped bounds the bodies, in bytes, whose shape is worked out: it costs some 2 ns a byte.
	maxShaped = 64 << 10
)

// caller writes the one name by which dashboards tell callers apart, and where in Kibana a request came from.
func (e *encoder) caller(r *flows.Request, head *fields) {
	kind, id := "address", []byte(nil)
	if len(r.User) == 0 && len(head.authorization) > 0 {
		var room [maxCredentials]byte
		e.scratch = append(e.scratch[:0], flows.APIKeyID(room[:0], head.authorization)...)
		id = e.scratch
	}
	switch {
	case len(r.User) > 0:
		kind, id = "user", r.User
	case len(id) > 0:
		kind = "api_key"
	case r.Cert != nil && r.Cert.Subject.CommonName != "":
		kind, id = "certificate", bytesOf(r.Cert.Subject.CommonName)
	case r.ClientIP.IsValid():
		id = e.buf[e.ip[0]:e.ip[1]]
	default:
		return
	}
	e.raw(`,"caller":{"kind":"`)
	e.raw(kind)
	e.raw(`","id":`)
	e.text(id)
	// Kibana since 7.16 writes the id of its own request there and, behind a semicolon, the application, dashboard and panel
	// for which it asks (elastic/kibana#102626).
	if _, context, found := bytes.Cut(head.opaqueID, semicolon); found && len(context) > 0 {
		e.raw(`,"context":`)
		e.text(withoutUser(context))
	}
	e.raw(`}`)
}

var semicolon = []byte{';'}

// appendFamily appends the name of the program that a User-Agent field tells, without its version and in small letters.
// Browsers, which all begin with the same product, are browser.
func appendFamily(dst, agent []byte) []byte {
	start := len(dst)
	for _, c := range agent {
		if c <= ' ' || c == '/' || c == '(' || c == ';' || len(dst)-start == maxFamily {
			break
		}
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		dst = append(dst, c)
	}
	switch string(dst[start:]) {
	case "mozilla":
		return append(dst[:start], "browser"...)
	case "":
		return append(dst, "unknown"...)
	}
	return dst
}

// headers writes header fields that the configuration asks for, each as one text.
func (e *encoder) headers(r *flows.Request, names []string) {
	first := true
	for _, name := range names {
		for _, h := range r.Header.Fields() {
			if !wire.EqualFold(h.Name, name) {
				continue
			}
			if first {
				e.raw(`,"headers":[`)
			} else {
				e.raw(`,`)
			}
			first = false
			e.scratch = append(append(e.scratch[:0], name...), ": "...)
			parameters := separator(h.Value, "?#") // of the URL that Referer is
			e.scratch = append(e.scratch, h.Value[:parameters]...)
			e.scratch = appendQuery(e.scratch, h.Value[parameters:])
			e.text(withoutUser(e.scratch))
		}
	}
	if !first {
		e.raw(`]`)
	}
}

// A shaper works out what searches look like without their values. It keeps its memory from search to search.
type shaper struct {
	canon     query.Canon
	canonical []byte
	text      []byte
}

// of returns the shape of the search that x asks for, and a number that tells shapes and APIs apart. The number is 0 for what
// is no search, and for bodies that are not in memory, compressed, too long or no JSON.
func (s *shaper) of(x *flows.Exchange, coding []byte) (uint64, []byte) {
	call := x.Call()
	if call.Class != api.ClassSearch {
		return 0, nil
	}
	s.text = s.text[:0]
	if call.Name == "msearch" {
		data := plainJSON(&x.Request.Body, coding)
		if len(data) == 0 || len(data) > maxShaped {
			return 0, nil
		}
		// Lines are in turn headers and searches. Neighbours of the same shape are one.
		last := -1
		for n, rest := 0, data; len(rest) > 0; n++ {
			var line []byte
			line, rest, _ = bytes.Cut(rest, newline)
			if n%2 == 0 {
				continue
			}
			start := len(s.text)
			if last >= 0 {
				s.text = append(s.text, '\n')
			}
			at := len(s.text)
			if !s.append(line) {
				return 0, nil
			}
			if last >= 0 && bytes.Equal(s.text[at:], s.text[last:start]) {
				s.text = s.text[:start]
				continue
			}
			last = at
		}
	} else {
		var data []byte
		if x.Request.Body.Len() != 0 {
			if data = plainJSON(&x.Request.Body, coding); len(data) == 0 || len(data) > maxShaped {
				return 0, nil
			}
		}
		if !s.append(data) {
			return 0, nil
		}
	}
	return max(1, xxhash.Sum64(s.text)^31*xxhash.Sum64String(call.Name)), s.text
}

var newline = []byte{'\n'}

// append appends the shape of one search.
func (s *shaper) append(body []byte) bool {
	var err error
	s.canonical, _, err = s.canon.Body(s.canonical[:0], body)
	if err != nil {
		return false
	}
	s.text = query.Shape(s.text, s.canonical)
	return true
}

// appendHex appends n in 16 hexadecimal digits.
func appendHex(dst []byte, n uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[n>>shift&15])
	}
	return dst
}

// A sampler picks the exchanges that have a record.
type sampler struct {
	share float64
	below uint64 // of 64 random bits
}

func newSampler(share float64) sampler {
	s := sampler{share: share}
	if share < 1 {
		s.below = uint64(share * math.MaxUint64)
	}
	return s
}

// picks tells whether an exchange has a record. All requests of a trace have one or none has, whatever gateway they come
// through, so that a chain of calls can be read.
func (s *sampler) picks(x *flows.Exchange) bool {
	if s.share >= 1 {
		return true
	}
	if trace, _ := traceOf(x.Request.Header.Get("traceparent")); trace != nil {
		return xxhash.Sum64(trace) < s.below
	}
	return rand.Uint64() < s.below
}
