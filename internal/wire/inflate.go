package wire

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"

	"github.com/klauspost/compress/zlib" // that of the standard library allocates with each use
)

// ErrContentCoding says that a content coding is none that an Inflater knows.
var ErrContentCoding = errors.New("unknown content coding")

// An Inflater unpacks bodies as nodes do, and keeps its memory from one to the next. The zero value is ready.
type Inflater struct {
	body bytes.Reader
	gzip gzip.Reader
	zlib io.ReadCloser // made by zlib, a zlib.Resetter
	raw  io.ReadCloser // made by flate, a flate.Resetter
}

// Open returns a reader of what body is in a content coding: none, identity, gzip or deflate, with or without x- before them. It
// reads body, and is good, until the next call. The error is ErrContentCoding for any other coding, and else what is wrong with the
// beginning of body; what is wrong with the rest the reader tells.
//
// What HTTP calls deflate is the format of zlib. Clients have sent the bare stream under that name (RFC 9110 section 8.4.1.2), and
// nodes read it as well.
func (f *Inflater) Open(coding, body []byte) (io.Reader, error) {
	f.body.Reset(body)
	switch {
	case len(coding) == 0, EqualFold(coding, "identity"):
		return &f.body, nil
	case EqualFold(coding, "gzip"), EqualFold(coding, "x-gzip"):
		return &f.gzip, f.gzip.Reset(&f.body)
	case !EqualFold(coding, "deflate") && !EqualFold(coding, "x-deflate"):
		return nil, ErrContentCoding
	case len(body) > 2 && body[0]&0x0f == 8 && (int(body[0])<<8|int(body[1]))%31 == 0: // RFC 1950 section 2.2
		if again, ok := f.zlib.(zlib.Resetter); ok {
			return f.zlib, again.Reset(&f.body, nil)
		}
		r, err := zlib.NewReader(&f.body)
		if err == nil {
			f.zlib = r
		}
		return r, err
	}
	if again, ok := f.raw.(flate.Resetter); ok {
		return f.raw, again.Reset(&f.body, nil)
	}
	f.raw = flate.NewReader(&f.body)
	return f.raw, nil
}

// BinaryMedia tells whether a media type is one of objects that are no text: nodes take bulks in SMILE and CBOR too, whose documents
// no line feed separates.
func BinaryMedia(mediaType []byte) bool {
	for _, format := range [...]string{"smile", "cbor"} {
		for i := 0; i+len(format) <= len(mediaType); i++ {
			if EqualFold(mediaType[i:i+len(format)], format) {
				return true
			}
		}
	}
	return false
}
