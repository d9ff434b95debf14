package cache

import (
	"bytes"

	"weir/internal/wire"
)

// refusesPlain tells whether a request's Accept-Encoding rules out an answer without a coding (RFC 9110 section 12.5.3):
// by identity;q=0, or by *;q=0 when identity is not named.
func refusesPlain(h *wire.Header) bool {
	named, plain, others := false, true, true
	for _, f := range h.Fields() {
		if !wire.EqualFold(f.Name, "accept-encoding") {
			continue
		}
		for rest := f.Value; len(rest) > 0; {
			var coding []byte
			coding, rest, _ = bytes.Cut(rest, []byte{','})
			name, params, _ := bytes.Cut(coding, []byte{';'})
			switch name = bytes.TrimSpace(name); {
			case wire.EqualFold(name, "identity"):
				named, plain = true, !isZeroWeight(params)
			case string(name) == "*":
				others = !isZeroWeight(params)
			}
		}
	}
	if named {
		return !plain
	}
	return !others
}

// isZeroWeight tells whether the parameters of a coding are q=0.
func isZeroWeight(params []byte) bool {
	name, value, ok := bytes.Cut(bytes.TrimSpace(params), []byte{'='})
	if !ok || !wire.EqualFold(bytes.TrimSpace(name), "q") {
		return false
	}
	value = bytes.TrimSpace(value)
	return len(value) > 0 && len(bytes.Trim(value, "0.")) == 0
}
