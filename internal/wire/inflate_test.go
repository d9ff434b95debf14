package wire

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"testing"
)

// packedBy returns text as a writer of package compress packs it.
func packedBy(t *testing.T, text string, to func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var b bytes.Buffer
	w := to(&b)
	_, err := io.WriteString(w, text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestInflater(t *testing.T) {
	zipped := packedBy(t, "text", func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) })
	deflated := packedBy(t, "text", func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) })
	bare := packedBy(t, "text", func(w io.Writer) io.WriteCloser {
		z, _ := flate.NewWriter(w, flate.BestSpeed) // a level that there is
		return z
	})
	var inflater Inflater // the same memory for all
	f := func(coding string, body []byte, want string) {
		t.Helper()
		r, err := inflater.Open([]byte(coding), body)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(r)
		}
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v, want %q", coding, got, err, want)
		}
	}
	fails := func(coding string, body []byte, want error) {
		t.Helper()
		r, err := inflater.Open([]byte(coding), body)
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%q of %q: %v, want an error, %v", coding, body, err, want)
		}
	}
	for range 2 {
		f("", []byte("text"), "text")
		f("Identity", []byte("text"), "text")
		f("gzip", zipped, "text")
		f("X-GZIP", append(zipped[:len(zipped):len(zipped)], zipped...), "texttext") // RFC 1952 section 2.2
		f("deflate", deflated, "text")
		f("x-deflate", deflated, "text")
		f("deflate", bare, "text")
		f("x-deflate", bare, "text")
		fails("zstd", zipped, ErrContentCoding)
		fails("gzip, gzip", zipped, ErrContentCoding)
		fails("gzip", []byte("text that is not packed"), gzip.ErrHeader)
		fails("gzip", zipped[:len(zipped)-1], io.ErrUnexpectedEOF)
		fails("deflate", []byte("text"), nil)
		fails("deflate", []byte{0x78, 0x9c}, nil)
		fails("deflate", deflated[:len(deflated)-1], io.ErrUnexpectedEOF)
		fails("deflate", append(deflated[:len(deflated)-1:len(deflated)-1], 'x'), zlib.ErrChecksum)
		fails("deflate", []byte{0x78, 0x20 | 0x1f - (0x7820 % 31), 0, 0}, nil) // asks for a dictionary
		fails("deflate", bare[:len(bare)-1], io.ErrUnexpectedEOF)
	}
}

func TestInflaterDoesNotAllocate(t *testing.T) {
	var f Inflater
	holds := func(coding string, body []byte) {
		t.Helper()
		name, to := []byte(coding), make([]byte, 100)
		if n := testing.AllocsPerRun(10, func() {
			r, err := f.Open(name, body)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = r.Read(to)
		}); n > 0 {
			t.Errorf("%s: %v allocations", coding, n)
		}
	}
	holds("gzip", packedBy(t, "text", func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }))
	holds("deflate", packedBy(t, "text", func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }))
}

func TestBinaryMedia(t *testing.T) {
	f := func(mediaType string, want bool) {
		t.Helper()
		if got := BinaryMedia([]byte(mediaType)); got != want {
			t.Errorf("%q: %v", mediaType, got)
		}
	}
	f("", false)
	f("application/x-ndjson", false)
	f("application/Smile", true)
	f("application/vnd.elasticsearch+cbor; compatible-with=8", true)
}
