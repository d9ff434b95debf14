package conf

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
)

// A Secret is text that is never printed: neither by fmt, nor in JSON, nor in logs. In the configuration it is the text
// itself, best filled in from a variable, or file:/path for the contents of a file that is read when the secret is
// needed. The zero value is no secret.
type Secret struct {
	// text is behind a pointer because fmt prints the fields of a Secret that stands in an unexported field without
	// asking for its String method.
	text *string
}

const filePrefix = "file:"

// NewSecret returns a secret with the given text, or none for "".
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// IsZero tells whether there is no secret.
func (s Secret) IsZero() bool { return s.text == nil }

// Reveal returns the text, and "" for no secret and for one that is kept in a file: see Resolve.
func (s Secret) Reveal() string {
	if s.text == nil || s.File() != "" {
		return ""
	}
	return *s.text
}

// File returns the path of the file that keeps the secret, or "".
func (s Secret) File() string {
	if s.text == nil {
		return ""
	}
	path, is := strings.CutPrefix(*s.text, filePrefix)
	if !is {
		return ""
	}
	return path
}

// Resolve returns the text, read with readFile where the secret is kept in a file. A line end after it is left out, since
// editors add one.
func (s Secret) Resolve(readFile func(name string) ([]byte, error)) (string, error) {
	path := s.File()
	if path == "" {
		return s.Reveal(), nil
	}
	content, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	text := strings.TrimRight(string(content), "\r\n")
	if text == "" {
		return "", fmt.Errorf("read secret: %s is empty", path)
	}
	return text, nil
}

// Equal tells whether two secrets are written the same.
func (s Secret) Equal(o Secret) bool {
	if s.text == nil || o.text == nil {
		return s.text == o.text
	}
	return *s.text == *o.text
}

// String returns "***", or "" for no secret.
func (s Secret) String() string {
	if s.text == nil {
		return ""
	}
	return "***"
}

// GoString returns what String returns.
func (s Secret) GoString() string { return s.String() }

// MarshalJSON writes what String returns.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// TypeDoc implements Documenter.
func (Secret) TypeDoc() (name, example string) { return "secret", "${PASSWORD}" }

// DecodeConf implements Decoder. A secret that stands in the file itself is a warning.
func (s *Secret) DecodeConf(n *Node, p *Problems) {
	if n.Kind() != Scalar {
		wrongType(n, p, "a secret")
		return
	}
	*s = NewSecret(n.text)
	if n.text == filePrefix {
		p.Errorf(n, "%q names no file; write file:/path", filePrefix).Code = CodeValue
		return
	}
	if !s.IsZero() && s.File() == "" && !n.FromVariable() {
		p.Warnf(n, "the secret stands in clear text; write ${NAME} for an environment variable, or file:/path").Code = CodeClearText
	}
}
