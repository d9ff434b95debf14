package obs

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
)

// Redacted stands where a secret was.
const Redacted = "***"

// secretNames are header fields, and log attributes, whose values are secrets: of HTTP (RFC 9110, RFC 6265), of
// Elasticsearch and OpenSearch, of AWS, and of the proxies that often stand in front.
var secretNames = []string{
	"authorization", "proxy-authorization", "cookie", "set-cookie",
	"es-secondary-authorization", "es-client-authentication", "es-secondary-x-client-authentication",
	"x-amz-security-token", "x-api-key", "api-key", "apikey", "api_key", "x-auth-token", "x-csrf-token",
	"x-forwarded-authorization", "x-forwarded-access-token", "x-auth-request-access-token", "x-id-token",
	"password", "passwd", "passphrase", "secret", "token", "access_token", "refresh_token", "client_secret", "private_key",
}

// schemes may stay readable before credentials: they tell what a client tried and are no secret.
var schemes = []string{"Basic", "Bearer", "ApiKey", "Negotiate", "Digest", "AWS4-HMAC-SHA256", "SharedSecret"}

func isSecretName(name string) bool {
	for _, s := range secretNames {
		if len(s) == len(name) && strings.EqualFold(s, name) {
			return true
		}
	}
	return false
}

// RedactHeader returns the value of a header field as it may be logged. Of fields that carry credentials (Authorization,
// Cookie, es-secondary-authorization, x-api-key, …, in any case, and those that SecretName knows) only the authentication
// scheme stays; in others the user part of URLs is hidden, as in Referer. It allocates only when it changes something.
func RedactHeader(name, value string) string {
	if !isSecretName(name) && !SecretName(name) {
		return RedactText(value)
	}
	if value == "" {
		return value
	}
	if scheme, _, ok := strings.Cut(value, " "); ok {
		for _, s := range schemes {
			if strings.EqualFold(s, scheme) {
				return s + " " + Redacted
			}
		}
	}
	return Redacted
}

// RedactURL returns a URL with its user part hidden: https://u:p@es:9200/ is https://***@es:9200/. The scheme may be
// missing. It never fails: what is no URL is searched as far as one can tell. Secrets in a query are not known to it.
func RedactURL(raw string) string {
	start := 0
	if i := strings.Index(raw, "://"); i >= 0 {
		start = i + len("://")
	} else if strings.HasPrefix(raw, "//") {
		start = 2
	}
	at := userEnd(raw[start:])
	if at < 0 {
		return raw
	}
	return raw[:start] + Redacted + raw[start+at:]
}

// RedactText hides the user parts of all URLs in a text, also of those whose characters are percent-encoded, once or several
// times, or escaped as in JSON. A URL ends at white space, a double quote or an angle bracket; a double quote after a backslash
// does not end it, since errors quote URLs. It allocates only where there is a URL.
func RedactText(text string) string {
	var b strings.Builder
	done := 0 // text[:done] is in b
	for from := 0; ; {
		start, layers := schemeEnd(text[from:])
		if start < 0 {
			break
		}
		from += start
		at := encodedUserEnd(text[from:from+urlEnd(text[from:])], layers)
		if at < 0 {
			continue
		}
		b.WriteString(text[done:from])
		b.WriteString(Redacted)
		from += at
		done = from
	}
	if done == 0 {
		return text
	}
	b.WriteString(text[done:])
	return b.String()
}

// LastURL returns where the last URL in a text goes on after its scheme, or -1 if there is none. It knows the spellings that
// RedactText knows.
func LastURL(text string) int {
	last := -1
	for from := 0; ; {
		start, _ := schemeEnd(text[from:])
		if start < 0 {
			return last
		}
		from += start
		last = from
	}
}

// schemeEnd returns where the first :// of a text ends, however it is spelled, and how often it is percent-encoded, or -1.
func schemeEnd(text string) (end, layers int) {
	for i := 0; i < len(text); i++ {
		if c := text[i]; c != ':' && c != '%' && c != '\\' {
			continue
		}
		end, layers = i, 0
		for _, want := range "://" {
			c, n, l := spelled(text[end:])
			if c != byte(want) {
				end = -1
				break
			}
			end += n
			layers = max(layers, l)
		}
		if end >= 0 {
			return end, layers
		}
	}
	return -1, 0
}

// spelled returns the character that a text begins with, the length of its spelling, which is 0 at the end of the text, and
// how often it is percent-encoded.
func spelled(text string) (c byte, n, layers int) {
	c, n = unescaped(text)
	if n < len("%25") || c != '%' {
		if n == len("%25") {
			layers = 1
		}
		return c, n, layers
	}
	for layers = 1; ; layers++ { // %252F is %2F in another layer
		if len(text) < n+2 {
			return c, n, layers
		}
		inner, ok := hexByte(text[n : n+2])
		if !ok {
			return c, n, layers
		}
		n += 2
		if inner != '%' {
			return inner, n, layers + 1
		}
	}
}

// unescaped returns the character that a text begins with, of what one layer of encoding makes, and the length of its spelling.
func unescaped(text string) (c byte, n int) {
	switch {
	case text == "":
		return 0, 0
	case text[0] == '%' && len(text) > 2:
		if c, ok := hexByte(text[1:3]); ok {
			return c, 3
		}
	case strings.HasPrefix(text, `\/`):
		return '/', 2
	case strings.HasPrefix(text, `\u00`) && len(text) >= len(`\u0000`):
		if c, ok := hexByte(text[4:6]); ok {
			return c, 6
		}
	}
	return text[0], 1
}

func hexByte(text string) (byte, bool) {
	v, err := strconv.ParseUint(text, 16, 8)
	return byte(v), err == nil
}

// maxLayers is how many layers of encoding are looked through behind a scheme, besides its own.
const maxLayers = 3

// encodedUserEnd is userEnd for a URL that is encoded. Of what the layers below that of the scheme make of it, which may be the
// user part's own encoding, the longest user part counts.
func encodedUserEnd(raw string, layers int) int {
	longest := -1
	text := raw
	var offsets []int // where in raw each byte of text begins, if they differ
	for layer := 0; ; layer++ {
		last := layer == layers+maxLayers || !strings.ContainsAny(text, `%\`)
		if layer >= layers || last {
			if at := userEnd(text); at >= 0 {
				if offsets != nil {
					at = offsets[at]
				}
				longest = max(longest, at)
			}
		}
		if last {
			return longest
		}
		var inner []byte
		var inOffsets []int
		for i := 0; i < len(text); {
			c, n := unescaped(text[i:])
			inner = append(inner, c)
			if offsets == nil {
				inOffsets = append(inOffsets, i)
			} else {
				inOffsets = append(inOffsets, offsets[i])
			}
			i += n
		}
		if len(inner) == len(text) { // no escapes
			layer = layers + maxLayers - 1
		}
		text, offsets = string(inner), inOffsets
	}
}

func urlEnd(s string) int {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' && i > 0 && s[i-1] == '\\':
		case c == ' ', c == '\t', c == '\n', c == '\r', c == '"', c == '<', c == '>':
			return i
		}
	}
	return len(s)
}

// userEnd returns where in a URL, after its scheme, the user part ends (the index of the @), or -1 if it has none. A
// slash, question mark or hash that someone forgot to escape in a password cuts the authority short; then what stands
// after the colon is no port, and the last @ counts. A password that starts with digits and such a byte looks like a
// port and is not found.
func userEnd(s string) int {
	authority := s
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		authority = s[:i]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		return at
	}
	if strings.HasPrefix(authority, "[") {
		return -1
	}
	_, port, ok := strings.Cut(authority, ":")
	if !ok || strings.Trim(port, "0123456789") == "" {
		return -1
	}
	return strings.LastIndexByte(s, '@')
}

// RedactError returns an error whose text has no user part of a URL and which is still the same for errors.Is and
// errors.As. Errors without one are returned as they are. The reasons that net/url gives for a URL it could not parse
// quote pieces of it and are left out where the URL has a user part.
func RedactError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	clean := redactErrorText(err, text)
	if clean == text {
		return err
	}
	return &redactedError{text: clean, err: err}
}

func redactErrorText(err error, text string) string {
	var broken *url.Error
	if errors.As(err, &broken) && broken != nil && strings.Contains(broken.URL, "@") {
		safe := RedactURL(broken.URL)
		text = strings.ReplaceAll(text, broken.URL, safe)
		text = strings.ReplaceAll(text, strconv.Quote(broken.URL), strconv.Quote(safe))
		if broken.Op == "parse" && broken.Err != nil {
			if reason := broken.Err.Error(); strings.Contains(reason, `"`) {
				text = strings.ReplaceAll(text, reason, "not a valid URL")
			}
		}
	}
	return RedactText(text)
}

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }

func (e *redactedError) Unwrap() error { return e.err }
