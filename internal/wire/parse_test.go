package wire

import (
	"bufio"
	"bytes"
	"errors"
	"net/textproto"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseFields(t *testing.T) {
	f := func(raw string, wantErr error, want ...string) {
		t.Helper()
		h := &Header{}
		if err := ParseFields(h, []byte(raw)); !errors.Is(err, wantErr) {
			t.Errorf("ParseFields(%q): error %v, want %v", raw, err, wantErr)
		} else if err == nil {
			if diff := cmp.Diff(append([]string{}, want...), pairsOf(h)); diff != "" {
				t.Errorf("ParseFields(%q): -want +got\n%s", raw, diff)
			}
		}
	}
	f("", nil)
	f("\r\n", nil)
	f("A: 1\r\n", nil, "A", "1")
	f("A: 1\r\nb:\t2 \r\nA:3\r\n\r\n", nil, "A", "1", "b", "2", "A", "3")
	f("A:\r\n", nil, "A", "")
	f("A: b:c \xff\r\n", nil, "A", "b:c \xff")
	f("A: 1\n", ErrBareLineFeed)
	f("A: 1", ErrBareLineFeed)
	f("A: 1\r\n\r\nB: 2\r\n", ErrBareLineFeed)
	f("A: 1\r\n b\r\n", ErrFolded)
	f("A: 1\r\n\tb\r\n", ErrFolded)
	f("A\r\n", ErrFieldName)
	f(": 1\r\n", ErrFieldName)
	f("A : 1\r\n", ErrFieldName)
	f("A\x00: 1\r\n", ErrFieldName)
	f("A: 1\x00\r\n", ErrFieldValue)
	f("A: 1\r2\r\n", ErrFieldValue)
	f("A: \x7f\r\n", ErrFieldValue)
}

func TestFramingOf(t *testing.T) {
	f := func(h *Header, want Framing, wantErr error) {
		t.Helper()
		got, err := FramingOf(h)
		if !errors.Is(err, wantErr) || err == nil && got != want {
			t.Errorf("FramingOf(%q) = %+v, %v; want %+v, %v", pairsOf(h), got, err, want, wantErr)
		}
	}
	f(headerOf(), Framing{Length: -1}, nil)
	f(headerOf("content-LENGTH", "12"), Framing{Length: 12}, nil)
	f(headerOf("Transfer-Encoding", "Chunked"), Framing{Length: -1, Chunked: true}, nil)
	f(headerOf("Content-Length", "1", "Content-Length", "1"), Framing{}, ErrTwoLengths)
	f(headerOf("Content-Length", "1, 1"), Framing{}, ErrLength)
	f(headerOf("Content-Length", "+1"), Framing{}, ErrLength)
	f(headerOf("Content-Length", ""), Framing{}, ErrLength)
	f(headerOf("Content-Length", "9999999999999999999"), Framing{}, ErrLength)
	f(headerOf("Transfer-Encoding", "gzip, chunked"), Framing{}, ErrCoding)
	f(headerOf("Transfer-Encoding", "chunked", "Transfer-Encoding", "chunked"), Framing{}, ErrCoding)
	f(headerOf("Transfer-Encoding", "identity"), Framing{}, ErrCoding)
	f(headerOf("Transfer-Encoding", "chunked", "Content-Length", "1"), Framing{}, ErrLengthChunked)
	f(headerOf("Content-Length", "1", "Transfer-Encoding", "chunked"), Framing{}, ErrLengthChunked)
}

func TestParseStatusLine(t *testing.T) {
	f := func(line string, minor byte, status int, reason string) {
		t.Helper()
		s, err := ParseStatusLine([]byte(line))
		if status == 0 {
			if !errors.Is(err, ErrStatusLine) {
				t.Errorf("ParseStatusLine(%q): error %v", line, err)
			}
			return
		}
		if err != nil || s.Minor != minor || s.Status != status || string(s.Reason) != reason {
			t.Errorf("ParseStatusLine(%q) = %+v, %v", line, s, err)
		}
	}
	f("HTTP/1.1 200 OK", 1, 200, "OK")
	f("HTTP/1.0 404 Not Found", 0, 404, "Not Found")
	f("HTTP/1.1 200 ", 1, 200, "")
	f("HTTP/1.1 200", 1, 200, "")
	f("HTTP/1.1 099 x", 0, 0, "")
	f("HTTP/1.1 20x OK", 0, 0, "")
	f("HTTP/1.1 2000", 0, 0, "")
	f("HTTP/1.1  200 OK", 0, 0, "")
	f("HTTP/2.0 200 OK", 0, 0, "")
	f("http/1.1 200 OK", 0, 0, "")
	f("", 0, 0, "")
}

func TestHopByHop(t *testing.T) {
	for _, name := range []string{
		"Connection", "keep-alive", "TE", "Trailer", "Upgrade", "Transfer-Encoding", "Proxy-Connection",
		"Proxy-Authenticate", "PROXY-AUTHORIZATION",
	} {
		if !HopByHop([]byte(name)) {
			t.Errorf("%s is hop-by-hop", name)
		}
	}
	for _, name := range []string{"", "Host", "Authorization", "Via", "Content-Length", "Xrailer", "ET"} {
		if HopByHop([]byte(name)) {
			t.Errorf("%s is not hop-by-hop", name)
		}
	}
}

// FuzzParseFields holds that whatever is accepted is what textproto's reader, the lenient model, reads too, and that
// nothing of the block is lost.
func FuzzParseFields(f *testing.F) {
	for _, s := range []string{
		"", "\r\n", "A: 1\r\nB: 2\r\n\r\n", "A: 1\r\n b\r\n", "A:1\nB:2\n", "Warning: 299 x \"y\"\r\n", "A : 1\r\n",
		"Content-Length: 1\r\ncontent-length: 2\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		h := &Header{}
		if ParseFields(h, raw) != nil {
			return
		}
		block := bytes.TrimSuffix(raw, []byte("\r\n\r\n"))
		block = append(bytes.TrimSuffix(bytes.Clone(block), []byte("\r\n")), "\r\n\r\n"...)
		if h.Len() == 0 {
			block = []byte("\r\n")
		}
		model, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(block))).ReadMIMEHeader()
		if err != nil {
			t.Fatalf("accepted %q, model says %v", raw, err)
		}
		n := 0
		for _, values := range model {
			n += len(values)
		}
		if n != h.Len() {
			t.Fatalf("%d fields, model has %d in %q", h.Len(), n, raw)
		}
		for _, field := range h.Fields() {
			found := false
			for _, v := range model[textproto.CanonicalMIMEHeaderKey(string(field.Name))] {
				found = found || v == string(field.Value)
			}
			if !found {
				t.Fatalf("model does not have %q: %q", field.Name, field.Value)
			}
		}
	})
}

// FuzzParseStatusLine holds that an accepted line is made of the parts found in it.
func FuzzParseStatusLine(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK", "HTTP/1.0 404", "HTTP/1.1 500 ", "HTTP/2 200", "HTTP/1.1 2x0 "} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		s, err := ParseStatusLine(line)
		if err != nil {
			return
		}
		if s.Status < 100 || s.Status > 999 || s.Minor > 1 || !bytes.HasSuffix(line, s.Reason) {
			t.Fatalf("%q gave %+v", line, s)
		}
	})
}
