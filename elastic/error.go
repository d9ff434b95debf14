package elastic

import (
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"weir/internal/wire"
)

// An Error is an answer in Elasticsearch's shape that the gateway gives by itself. Filters return it; only the entry
// writes it. A failure of the gateway is never 404, 410 or 401: clients act upon those as facts of the cluster
// (elastic/kibana#135542).
type Error struct {
	Status     int           // HTTP status, 400 to 599
	Type       string        // as in Elasticsearch's errors, snake_case ending in _exception
	Reason     string        // for people: the value, the limit and the way out; never a secret
	RetryAfter time.Duration // written as Retry-After in whole seconds, rounded up, when positive
	Cause      error         // logged, never shown to the client
	Fields     []wire.Field  // further header fields of the answer; neither they nor their bytes change

	body, retryAfter []byte // see Prepared
}

// Prepared returns a copy of e that makes its body and the value of Retry-After only once, for answers that are given again
// and again. Status, Type, Reason and RetryAfter of the copy must not be changed.
func (e *Error) Prepared() *Error {
	c := *e
	c.body, c.retryAfter = e.AppendBody(nil), e.RetryAfterValue()
	return &c
}

// Body returns the JSON body of e, which must not be changed.
func (e *Error) Body() []byte {
	if e.body != nil {
		return e.body
	}
	return e.AppendBody(nil)
}

// Errorf makes an Error with a formatted reason.
func Errorf(status int, typ, format string, args ...any) *Error {
	return &Error{Status: status, Type: typ, Reason: fmt.Sprintf(format, args...)}
}

// Because returns a copy of e whose Cause is cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.Cause = cause
	return &c
}

func (e *Error) Error() string {
	s := strconv.Itoa(e.Status) + " " + e.Type + ": " + e.Reason
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// AsError returns err as an Error: itself if it is one, otherwise a 500 with err as the cause.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Status: 500, Type: "gateway_exception", Reason: "the gateway failed to handle the request", Cause: err}
}

// AppendBody appends the JSON body of e to dst.
func (e *Error) AppendBody(dst []byte) []byte {
	cause := AppendString(append([]byte(nil), `"type":`...), e.Type)
	cause = AppendString(append(cause, `,"reason":`...), e.Reason)
	dst = append(append(append(dst, `{"error":{"root_cause":[{`...), cause...), `}],`...)
	dst = append(append(dst, cause...), `},"status":`...)
	return append(strconv.AppendInt(dst, int64(e.Status), 10), '}')
}

// RetryAfterValue returns the value of Retry-After, which must not be changed, or nil for none.
func (e *Error) RetryAfterValue() []byte {
	s := e.RetryAfterSeconds()
	if e.retryAfter != nil || s <= 0 {
		return e.retryAfter
	}
	return strconv.AppendInt(nil, int64(s), 10)
}

// RetryAfterSeconds returns the value of Retry-After: whole seconds, rounded up, or 0 for none.
func (e *Error) RetryAfterSeconds() int { return int((e.RetryAfter + time.Second - 1) / time.Second) }

// AppendString appends s as a JSON string (RFC 8259). Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029:
			dst = append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
