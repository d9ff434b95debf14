package wire

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
)

func TestParseRequestLine(t *testing.T) {
	f := func(line, method, target string, minor byte) {
		t.Helper()
		r, err := ParseRequestLine([]byte(line))
		if err != nil || string(r.Method) != method || string(r.Target) != target || r.Minor != minor {
			t.Errorf("%q: %q %q %d, %v", line, r.Method, r.Target, r.Minor, err)
		}
	}
	f("GET / HTTP/1.1", "GET", "/", 1)
	f("PURGE //i//_search?q=%zz;a HTTP/1.0", "PURGE", "//i//_search?q=%zz;a", 0)
	f("OPTIONS * HTTP/1.1", "OPTIONS", "*", 1)
	f("GET /€\xff HTTP/1.1", "GET", "/€\xff", 1)
	f("GET HTTP/1.1 HTTP/1.1", "GET", "HTTP/1.1", 1)
	g := func(line string, want error) {
		t.Helper()
		if r, err := ParseRequestLine([]byte(line)); !errors.Is(err, want) {
			t.Errorf("%q: %q %q, %v, want %v", line, r.Method, r.Target, err, want)
		}
	}
	for _, line := range []string{
		"", "GET", "GET /", "GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET / HTTP/1.1 ", " GET / HTTP/1.1", "GET\t/ HTTP/1.1", "GET /a b HTTP/1.1",
		"GET /\x00 HTTP/1.1", "GET /\x7f HTTP/1.1", "G(T / HTTP/1.1", "GET / http/1.1", "GET / HTTP/11", "GET / HTTP/1,1", "GET / HTTPS/1.1", "GET HTTP/1.1",
		"/ HTTP/1.1", "\x16\x03\x01\x02\x00\x01\x00", "GET /\r HTTP/1.1",
	} {
		g(line, ErrRequestLine)
	}
	for _, line := range []string{"PRI * HTTP/2.0", "GET / HTTP/1.2", "GET / HTTP/0.9", "GET / HTTP/1.x"} {
		g(line, ErrVersion)
	}
}

func TestHead(t *testing.T) {
	f := func(text string, want, first int, err error) {
		t.Helper()
		for step := 1; step <= len(text); step++ {
			var h Head
			for n := step; ; n = min(n+step, len(text)) {
				got, gotErr := h.Scan([]byte(text[:n]))
				if got == 0 && gotErr == nil && n < len(text) {
					continue
				}
				if got != want || !errors.Is(gotErr, err) || err == nil && h.FirstLine() != first {
					t.Errorf("%q by %d: %d, first line %d, %v", text, step, got, h.FirstLine(), gotErr)
				}
				break
			}
		}
	}
	f("GET / HTTP/1.1\r\n\r\nrest", 18, 16, nil)
	f("GET / HTTP/1.1\r\nA: b\r\n\r\n\r\n", 24, 16, nil)
	f("GET / HTTP/1.1\r\nA: b\r\n", 0, 16, nil)
	f("GET / HTTP/1.1", 0, 0, nil)
	f("GET / HTTP/1.1\n\r\n", 0, 0, ErrBareLineFeed)
	f("GET / HTTP/1.1\r\nA: b\n\r\n", 0, 0, ErrBareLineFeed)
	f("GET / HTTP/1.1\r\n\n", 0, 0, ErrBareLineFeed)
	f("\nGET", 0, 0, ErrBareLineFeed)
}

// FuzzRequestHead holds that a head which is taken here is read in the same way by net/http, where that reads it at all.
func FuzzRequestHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST /i/_search?q=a%20b HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "GET / HTTP/1.1\r\nHost: a\r\nX-A : 1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", "GET /\x80 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var head Head
		n, err := head.Scan(raw)
		if err != nil || n == 0 {
			return
		}
		line, err := ParseRequestLine(raw[:head.FirstLine()-2])
		if err != nil {
			return
		}
		var h Header
		if ParseFields(&h, raw[head.FirstLine():n]) != nil {
			return
		}
		framing, err := FramingOf(&h)
		if err != nil {
			return
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return // it refuses more, such as methods and hosts
		}
		if theirs.Method != string(line.Method) || theirs.RequestURI != string(line.Target) || theirs.ProtoMinor != int(line.Minor) {
			t.Fatalf("we read %q %q, net/http %q %q", line.Method, line.Target, theirs.Method, theirs.RequestURI)
		}
		length := framing.Length
		switch {
		case framing.Chunked:
			length = -1
			if line.Minor == 0 {
				return // refused by the front
			}
		case length < 0:
			length = 0
		}
		if theirs.ContentLength != length {
			t.Fatalf("length %d, net/http %d", length, theirs.ContentLength)
		}
		for _, f := range h.Fields() {
			if strings.EqualFold(string(f.Name), "host") || strings.EqualFold(string(f.Name), "transfer-encoding") {
				continue
			}
			found := false
			for name, values := range theirs.Header {
				for _, v := range values {
					found = found || strings.EqualFold(name, string(f.Name)) && v == string(f.Value)
				}
			}
			if !found && len(theirs.Trailer) == 0 {
				t.Fatalf("net/http does not see %q: %q in %v", f.Name, f.Value, theirs.Header)
			}
		}
	})
}
