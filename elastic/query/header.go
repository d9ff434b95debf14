package query

import (
	"bytes"
	"slices"
	"time"

	"weir/internal/wire"
)

// A hearing says what a request header field means for caching.
type hearing uint8

const (
	hearNothing  hearing = iota // unknown, and taken to change no answer
	hearInert                   // known to change no answer: of one hop, of one caller's trace, of the coding
	hearIdentity                // who asks
	hearAddress                 // where the caller sits
	hearShape                   // changes how the answer is rendered, or its warnings
	hearCacheControl
	hearPragma
	hearAccept
	hearContentType
	hearContentEncoding
	hearOrigin
)

// hear classifies a field name in lower case.
func hear(name []byte) hearing {
	switch string(name) {
	case "authorization", "proxy-authorization", "cookie",
		"es-security-runas-user", "es-secondary-authorization", "es-client-authentication",
		"es-secondary-x-client-authentication", "x-client-authentication",
		"opendistro_security_impersonate_as", "securitytenant", "security_tenant",
		"sg_impersonate_as", "sgtenant", "sg_tenant":
		return hearIdentity
	case "x-forwarded-for", "forwarded", "x-real-ip":
		return hearAddress
	case "x-elastic-product-origin", "x-elastic-internal-origin", "x-opensearch-product-origin":
		return hearShape // whether warnings about system indices are sent
	case "cache-control":
		return hearCacheControl
	case "pragma":
		return hearPragma
	case "accept":
		return hearAccept
	case "content-type":
		return hearContentType
	case "content-encoding":
		return hearContentEncoding
	case "origin":
		return hearOrigin
	case "accept-charset", "accept-encoding", "accept-language", "baggage", "b3", "connection", "content-length", "date",
		"dnt", "elastic-apm-traceparent", "expect", "host", "keep-alive", "max-forwards", "priority", "proxy-connection",
		"referer", "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "uber-trace-id", "upgrade",
		"user-agent", "via", "x-amzn-trace-id", "x-cloud-trace-context", "x-correlation-id", "x-elastic-client-meta",
		"x-opaque-id", "x-request-id", "x-trace-id":
		return hearInert
	}
	switch {
	case bytes.HasPrefix(name, []byte("x-proxy-")): // user, roles and attributes that a trusted proxy vouches for
		return hearIdentity
	case bytes.HasPrefix(name, []byte("x-b3-")), bytes.HasPrefix(name, []byte("x-forwarded-")),
		bytes.HasPrefix(name, []byte("sec-")):
		return hearInert
	}
	return hearNothing
}

// hear returns what the field name, in lower case, means under the Keyer's options, and whether the options add it to
// the key.
func (k *Keyer) hear(name []byte) (h hearing, extra bool) {
	h = hear(name)
	extra = k.everyHeader && (h == hearNothing || h == hearIdentity) || slices.ContainsFunc(k.extraHeaders, func(e string) bool {
		return string(name) == e
	})
	switch {
	case h == hearIdentity && k.options.Identity == Shared,
		h == hearAddress && !k.options.ByAddress:
		h = hearNothing
	}
	return h, extra
}

// lower writes name in lower case to buf and returns it. A name that does not fit is cut: no field that is heard by name
// is that long.
func lower(buf *[64]byte, name []byte) []byte {
	n := copy(buf[:], name)
	for i, c := range buf[:n] {
		if 'A' <= c && c <= 'Z' {
			buf[i] = c | 0x20
		}
	}
	return buf[:n]
}

// A media is a media type reduced to what changes an answer.
type media struct {
	json bool   // it is JSON, in Elasticsearch's own or the plain type
	any  bool   // it leaves the choice to the node
	text []byte // what stands in the key
}

// What stands in the key for the common media types. A version is its digits; everything else has a slash.
var (
	textJSON   = []byte("json")
	textVendor = []byte("vnd")
)

// mediaOf reduces one value of Accept or Content-Type. A value with anything unusual stands in the key as it is.
func mediaOf(value []byte) media {
	switch string(value) { // as most callers write it
	case "application/json":
		return media{json: true, text: textJSON}
	case "*/*":
		return media{any: true}
	}
	if bytes.IndexByte(value, ',') >= 0 {
		return media{text: value}
	}
	name, rest, hasParams := bytes.Cut(value, []byte{';'})
	name = bytes.TrimSpace(name)
	m := media{text: value}
	vendor := false
	switch {
	case wire.EqualFold(name, "application/json"):
		m.json = true
	case wire.EqualFold(name, "application/vnd.elasticsearch+json"):
		m.json, vendor = true, true
	case wire.EqualFold(name, "*/*"), wire.EqualFold(name, "application/*"):
		m.any = true
	default:
		return m
	}
	switch {
	case !hasParams && m.json && !vendor:
		m.text = textJSON
	case !hasParams && m.any:
		m.text = nil
	case vendor && !hasParams:
		m.text = textVendor
	case vendor:
		const param = "compatible-with="
		rest = bytes.TrimSpace(rest)
		if len(rest) > len(param) && wire.EqualFold(rest[:len(param)], param) && skipDigits(rest, len(param)) == len(rest) {
			m.text = rest[len(param):]
		}
	}
	return m
}

// isUTF8JSON tells whether a Content-Type names JSON without a charset, or with UTF-8.
func isUTF8JSON(value []byte) bool {
	if !mediaOf(value).json {
		return false
	}
	_, rest, _ := bytes.Cut(value, []byte{';'})
	for len(rest) > 0 {
		var param []byte
		param, rest, _ = bytes.Cut(rest, []byte{';'})
		name, charset, _ := bytes.Cut(bytes.TrimSpace(param), []byte{'='})
		if wire.EqualFold(name, "charset") && !wire.EqualFold(bytes.Trim(charset, `"`), "utf-8") {
			return false
		}
	}
	return true
}

// cacheControl reads a request's Cache-Control (RFC 9111 section 5.2.1) and tells whether it says no-store.
func (v *Verdict) cacheControl(value []byte) (noStore bool) {
	for len(value) > 0 {
		var directive []byte
		directive, value, _ = bytes.Cut(value, []byte{','})
		name, arg, _ := bytes.Cut(bytes.TrimSpace(directive), []byte{'='})
		switch {
		case wire.EqualFold(name, "no-store"):
			noStore = true
		case wire.EqualFold(name, "no-cache"):
			v.Refresh = true
		case wire.EqualFold(name, "only-if-cached"):
			v.OnlyIfCached = true
		case wire.EqualFold(name, "max-age"):
			age, ok := seconds(bytes.Trim(arg, `"`))
			if !ok {
				v.Refresh = true // unreadable: the caller wants something fresher than anything
			} else if v.MaxAge < 0 || age < v.MaxAge {
				v.MaxAge = age
			}
		}
	}
	return noStore
}

// seconds reads delta-seconds; numbers beyond those of RFC 9111 section 1.2.2 become its largest.
func seconds(b []byte) (time.Duration, bool) {
	if len(b) == 0 || skipDigits(b, 0) != len(b) {
		return 0, false
	}
	const most = 1 << 31
	n := int64(0)
	for _, c := range b {
		if n = n*10 + int64(c-'0'); n > most {
			n = most
		}
	}
	return time.Duration(n) * time.Second, true
}
