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

// RedactText hides the user parts of all URLs in a text. A URL ends at white space, a double quote or an angle bracket;
// a double quote after a backslash does not end it, since errors quote URLs.
func RedactText(text string) string {
	var b strings.Builder
	done := 0 // text[:done] is in b
	for from := 0; ; {
		i := strings.Index(text[from:], "://")
		if i < 0 {
			break
		}
		from += i + len("://")
		at := userEnd(text[from : from+urlEnd(text[from:])])
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
