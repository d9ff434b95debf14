package obs

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// maxLogValue bounds one value of a log line in bytes: enough for an error with the reasons of some shards, too little
// for a query of a megabyte to fill the log.
const maxLogValue = 8 << 10

// NewLogger returns a logger that writes one line a record to w, as text (key=value) or json, from level on; a
// *slog.LevelVar lets a reload change it. Whatever is logged, values of attributes named like credentials are hidden, so
// are the user parts of URLs in messages, strings and errors, and no value is longer than 8 KiB.
func NewLogger(w io.Writer, level slog.Leveler, format string) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: clean}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: not text or json", format)
}

func clean(_ []string, a slog.Attr) slog.Attr {
	switch {
	case isSecretName(a.Key):
		if text := a.Value.String(); text != "" {
			a.Value = slog.StringValue(RedactHeader(a.Key, text))
		}
	case a.Value.Kind() == slog.KindString:
		a.Value = slog.StringValue(shorten(RedactText(a.Value.String())))
	case a.Value.Kind() == slog.KindAny:
		a.Value = cleanAny(a.Value)
	}
	return a
}

func cleanAny(v slog.Value) slog.Value {
	switch x := v.Any().(type) {
	case slog.Level:
		return v
	case error:
		// fmt survives an Error method that panics on a nil receiver.
		return slog.StringValue(shorten(redactErrorText(x, fmt.Sprint(x))))
	case url.URL: // as a value it has no String method, and fmt shows its user part
		return slog.StringValue(shorten(RedactURL(x.String())))
	case *url.Userinfo:
		return slog.StringValue(Redacted)
	case http.Header:
		safe := make(http.Header, len(x))
		for name, values := range x {
			for _, value := range values {
				safe[name] = append(safe[name], shorten(RedactHeader(name, value)))
			}
		}
		return slog.AnyValue(safe)
	default:
		text := fmt.Sprintf("%+v", x)
		if len(text) <= maxLogValue && !strings.Contains(text, "://") {
			return v
		}
		return slog.StringValue(shorten(RedactText(text)))
	}
}

// shorten cuts a text between two characters and says how much is missing.
func shorten(s string) string {
	if len(s) <= maxLogValue {
		return s
	}
	n := maxLogValue
	for n > maxLogValue-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s… (%d bytes more)", s[:n], len(s)-n)
}
