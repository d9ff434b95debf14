package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
)

// dechunk decodes a body that comes in pieces of at most step bytes. It returns the data, what stood behind the body, and
// whether the body ended.
func dechunk(raw []byte, step int) (data, behind []byte, done bool, err error) {
	var c Chunks
	var in []byte
	for {
		n, err := c.Frame(in)
		if err != nil {
			return data, nil, false, err
		}
		in = in[n:]
		switch {
		case c.Done():
			return data, append(in, raw...), true, nil
		case c.Left() > 0 && len(in) > 0:
			m := min(int(c.Left()), len(in))
			data = append(data, in[:m]...)
			c.Took(m)
			in = in[m:]
		case len(raw) == 0:
			return data, nil, false, nil
		default:
			m := min(step, len(raw))
			in, raw = append(bytes.Clone(in), raw[:m]...), raw[m:]
		}
	}
}

func TestChunks(t *testing.T) {
	f := func(raw, want, behind string) {
		t.Helper()
		for _, step := range []int{1, 2, 3, 7, 1000} {
			data, rest, done, err := dechunk([]byte(raw), step)
			if err != nil || !done || string(data) != want || string(rest) != behind {
				t.Errorf("%q by %d: %q and %q behind, done %v, %v", raw, step, data, rest, done, err)
			}
		}
	}
	f("0\r\n\r\n", "", "")
	f("3\r\nabc\r\n0\r\n\r\nGET", "abc", "GET")
	f("3;x=y\r\nabc\r\n00A\r\n0123456789\r\n000\r\n\r\n", "abc0123456789", "")
	f("1\r\na\r\n0\r\nX: a\r\nY:\r\n\r\nz", "a", "z")
	f("a\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", "\r\n\r\n\r\n\r\n\r\n", "")
}

func TestMalformedChunks(t *testing.T) {
	f := func(raw string, want error) {
		t.Helper()
		for _, step := range []int{1, 1000} {
			if data, _, done, err := dechunk([]byte(raw), step); !errors.Is(err, want) || done {
				t.Errorf("%q by %d: %q, done %v, %v, want %v", raw, step, data, done, err, want)
			}
		}
	}
	for _, size := range []string{"", " ", "x", "+3", "-1", "0x3", "3 ", " 3", "3,3", "1234567890123456", "3;a\rb", ";", "\r"} {
		f(size+"\r\nabc\r\n0\r\n\r\n", ErrChunk)
	}
	f("3\nabc\r\n0\r\n\r\n", ErrChunk)
	f("3\r\nabcd\r\n0\r\n\r\n", ErrChunk)
	f("3\r\nabc\n0\r\n\r\n", ErrChunk)
	f("0\r\n\n", ErrChunk)
	f("0\r\n folded: a\r\n\r\n", ErrFolded)
	f("0\r\nX : a\r\n\r\n", ErrFieldName)
	f("0\r\n: a\r\n\r\n", ErrFieldName)
	f("0\r\nX\r\n\r\n", ErrFieldName)
	f("0\r\nX: \x00\r\n\r\n", ErrFieldValue)
	f("3;"+strings.Repeat("a", 2000), ErrChunk)
	f("0\r\n"+strings.Repeat("X: "+strings.Repeat("a", 100)+"\r\n", 1000)+"\r\n", ErrChunk)
}

func TestFrameChunk(t *testing.T) {
	for _, n := range []int{1, 15, 16, 255, 256, 4096, 70_000} {
		buf := make([]byte, ChunkRoom+n+ChunkEnd)
		for i := range n {
			buf[ChunkRoom+i] = byte(i)
		}
		want := bytes.Clone(buf[ChunkRoom : ChunkRoom+n])
		data, behind, done, err := dechunk(append(bytes.Clone(FrameChunk(buf, n)), "0\r\n\r\n"...), 1000)
		if err != nil || !done || !bytes.Equal(data, want) || len(behind) > 0 {
			t.Errorf("%d bytes: got %d, %d behind, done %v, %v", n, len(data), len(behind), done, err)
		}
	}
}

// FuzzChunks holds that what this decoder takes, the one of net/http reads in the same way, and that the sizes of the pieces
// in which a body comes make no difference.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "1;x\r\na\r\n0\r\nT: 1\r\n\r\nrest", "3\nabc", "ffffffffffffffff\r\n", "0\r\n\r", "2\r\nab\r\n"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, raw []byte, step int) {
		data, behind, done, err := dechunk(raw, max(1, step))
		whole, rest, wholeDone, wholeErr := dechunk(raw, len(raw)+1)
		if done != wholeDone || (err == nil) != (wholeErr == nil) || done && (!bytes.Equal(data, whole) || !bytes.Equal(behind, rest)) {
			t.Fatalf("in pieces: %q, %q, %v, %v; at once: %q, %q, %v, %v", data, behind, done, err, whole, rest, wholeDone, wholeErr)
		}
		if !done {
			return
		}
		r := bufio.NewReader(bytes.NewReader(raw))
		theirs, err := io.ReadAll(httputil.NewChunkedReader(r))
		if err != nil || !bytes.Equal(theirs, data) {
			t.Fatalf("we read %q, net/http %q, %v", data, theirs, err)
		}
	})
}
