package query

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/internal/wire"
)

// A hearing says what a request header field means for caching.
type hearing uint8

const (
	hearNothing  hearing = iota // the options say that it changes no answer
	hearInert                   // known to change no answer: of one hop, of one caller's trace, of the coding
	hearIdentity                // who asks, or unknown: proxies and realms take a caller's word in fields of any name
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
	case "x-forwarded-for", "forwarded", "x-real-ip", "x-envoy-external-address":
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
		"x-opaque-id", "x-weir-explain", "x-request-id", "x-trace-id", "x-request-start", "x-ot-span-context", "newrelic", "sentry-trace",
		"cf-ray", "cf-visitor", "cdn-loop", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-forwarded-scheme",
		"x-forwarded-server", "x-forwarded-ssl", "x-scheme":
		return hearInert
	// Zipkin's trace (https://github.com/openzipkin/b3-propagation).
	case "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags":
		return hearInert
	// What browsers add that no page can set: fetch metadata (https://www.w3.org/TR/fetch-metadata/), client hints, and what they
	// ask of servers.
	case "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-user", "sec-fetch-storage-access", "sec-purpose", "sec-gpc",
		"sec-ch-ua", "sec-ch-ua-arch", "sec-ch-ua-bitness", "sec-ch-ua-form-factors", "sec-ch-ua-full-version",
		"sec-ch-ua-full-version-list", "sec-ch-ua-mobile", "sec-ch-ua-model", "sec-ch-ua-platform", "sec-ch-ua-platform-version",
		"sec-ch-ua-wow64", "sec-ch-prefers-color-scheme", "sec-ch-prefers-contrast", "sec-ch-prefers-reduced-motion",
		"sec-ch-prefers-reduced-transparency", "sec-ch-device-memory", "sec-ch-dpr", "sec-ch-width", "sec-ch-viewport-height",
		"sec-ch-viewport-width":
		return hearInert
	// What Grafana adds to the searches of a panel, beside who is logged in.
	case "x-panel-id", "x-panel-title", "x-panel-plugin-id", "x-plugin-id", "x-dashboard-uid", "x-dashboard-title",
		"x-datasource-uid", "x-query-group-id":
		return hearInert
	}
	if bytes.HasPrefix(name, []byte("x-datadog-")) || bytes.HasPrefix(name, []byte("x-envoy-")) {
		return hearInert
	}
	return hearIdentity
}

// Names are the fields that an operator has named because callers say by them who they are.
type Names interface {
	// Identifies tells whether a field of that name, in any case, is one of them.
	Identifies(name []byte) bool
	// IdentityFields returns what tells these names from others. It is the same for the same names, and must not be changed.
	IdentityFields() []byte
}

// hear returns what the field name of r, in lower case, means under the Keyer's options, and whether the options add it
// to the key.
func (k *Keyer) hear(r *Request, name []byte) (h hearing, extra bool) {
	h = hear(name)
	if h == hearIdentity && slices.ContainsFunc(k.harmless, func(p headerPattern) bool { return p.matches(name) }) {
		h = hearInert
	}
	if (h == hearInert || h == hearAddress) && r.Names != nil && r.Names.Identifies(name) {
		h = hearIdentity
	}
	extra = k.everyHeader && h == hearIdentity || slices.ContainsFunc(k.extraHeaders, func(p headerPattern) bool {
		return p.matches(name)
	})
	switch {
	case h == hearIdentity && k.options.Identity == Shared,
		h == hearAddress && !k.options.ByAddress:
		h = hearNothing
	}
	return h, extra
}

// A headerPattern is a name of header fields, or how the names of several begin, in lower case.
type headerPattern struct {
	text   string
	prefix bool
}

func (p headerPattern) matches(name []byte) bool {
	return string(name) == p.text || p.prefix && len(name) >= len(p.text) && string(name[:len(p.text)]) == p.text
}

// credentials are fields that say who asks wherever clusters have users.
var credentials = []string{
	"authorization", "proxy-authorization", "cookie", "es-security-runas-user", "es-secondary-authorization",
	"es-client-authentication", "opendistro_security_impersonate_as", "securitytenant", "x-proxy-user", "x-proxy-roles",
	"x-remote-user", "remote-user", "x-webauth-user", "x-forwarded-user", "x-forwarded-groups", "x-forwarded-access-token",
	"x-api-key", "x-auth-token", "x-amz-security-token",
}

// parseHeaderPatterns reads a list of patterns.
func parseHeaderPatterns(list []string) ([]headerPattern, error) {
	var out []headerPattern
	for _, text := range list {
		p, err := parseHeaderPattern(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// parseHeaderPattern reads a name, or the beginning of names with "*" behind it.
func parseHeaderPattern(text string) (headerPattern, error) {
	name, prefix := strings.CutSuffix(strings.ToLower(text), "*")
	switch {
	case !wire.ValidToken([]byte(name)), strings.Contains(name, "*"):
		return headerPattern{}, fmt.Errorf("%q is not the name of a header field, nor the beginning of names such as x-team-*", text)
	case len(name) > len(state{}.name):
		return headerPattern{}, fmt.Errorf("header name %q: longer than %d bytes", text, len(state{}.name))
	}
	return headerPattern{text: name, prefix: prefix}, nil
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
