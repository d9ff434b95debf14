package cache

import (
	"bytes"

	"weir/internal/wire"
)

// A codings says which forms of an answer a request takes (RFC 9110 section 12.5.3).
type codings struct {
	plain bool // without a coding
	gzip  bool // compressed, and no less welcome than plain
}

// codingsOf reads the Accept-Encoding of a request. What cannot be read refuses nothing and asks for nothing.
func codingsOf(h *wire.Header) codings {
	gzip, identity, others := weight(-1), weight(-1), weight(-1) // below 0: not named
	for _, f := range h.Fields() {
		if !wire.EqualFold(f.Name, "accept-encoding") {
			continue
		}
		for rest := f.Value; len(rest) > 0; {
			var coding []byte
			coding, rest, _ = bytes.Cut(rest, []byte{','})
			name, params, _ := bytes.Cut(coding, []byte{';'})
			switch name = bytes.TrimSpace(name); {
			case wire.EqualFold(name, "gzip"), wire.EqualFold(name, "x-gzip"):
				gzip = weightOf(params)
			case wire.EqualFold(name, "identity"):
				identity = weightOf(params)
			case string(name) == "*":
				others = weightOf(params)
			}
		}
	}
	if gzip < 0 {
		gzip = others
	}
	if identity < 0 && others == 0 {
		identity = 0
	}
	return codings{plain: identity != 0, gzip: gzip > 0 && gzip >= identity}
}

// A weight is a quality value in thousandths (RFC 9110 section 12.4.2).
type weight int

// weightOf returns the weight that the parameters of a coding give it. One that cannot be read is the least.
func weightOf(params []byte) weight {
	name, value, ok := bytes.Cut(bytes.TrimSpace(params), []byte{'='})
	if !ok || !wire.EqualFold(bytes.TrimSpace(name), "q") {
		return 1000
	}
	whole, fraction, _ := bytes.Cut(bytes.TrimSpace(value), []byte{'.'})
	if len(whole) != 1 || whole[0] != '0' && whole[0] != '1' || len(fraction) > 3 {
		return 1
	}
	w := weight(whole[0]-'0') * 1000
	for i, unit := 0, weight(100); i < len(fraction); i, unit = i+1, unit/10 {
		if fraction[i] < '0' || fraction[i] > '9' {
			return 1
		}
		w += weight(fraction[i]-'0') * unit
	}
	return min(w, 1000)
}
