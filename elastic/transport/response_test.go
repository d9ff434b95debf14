package transport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/wire"
)

// withoutLength takes the line out that Response.Length repeats.
func withoutLength(fields string) string {
	out := ""
	for line := range strings.Lines(fields) {
		if !strings.HasPrefix(strings.ToLower(line), "content-length:") {
			out += line
		}
	}
	return out
}

// answer is what a test expects of a Response.
type answer struct {
	Status int
	Reason string
	Header string
	Length int64
	Body   string
	Stream bool
	Pooled bool // the connection went back to the pool
}

func read(t testing.TB, n *Node, resp *Response) answer {
	t.Helper()
	a := answer{
		Status: resp.Status, Reason: string(resp.Reason), Header: withoutLength(fieldsOf(&resp.Header)), Length: resp.Length,
		Body: string(resp.Body), Stream: resp.Stream != nil,
	}
	if resp.Stream != nil {
		b, err := io.ReadAll(resp.Stream)
		if err != nil {
			t.Errorf("read the stream: %v", err)
		}
		a.Body = string(b)
	}
	a.Pooled = n.Stats().Idle == 1
	return a
}

func TestAnswerBuffered(t *testing.T) {
	f := func(method, raw string, want answer) {
		t.Helper()
		n := node(t, Options{Addr: once(t, strings.ReplaceAll(raw, "\n", "\r\n"))})
		req := get("/")
		req.Method = []byte(method)
		if diff := cmp.Diff(want, read(t, n, do(t, n, req))); diff != "" {
			t.Errorf("%s, %q: -want +got\n%s", method, raw, diff)
		}
	}
	// Order, spelling and values of fields stay, nothing is made up, and what belongs to the connection goes.
	f("GET", "HTTP/1.1 200 OK\nx-elastic-product: Elasticsearch\nWarning: 299 a\nconnection: X-Hop\nx-hop: 1\nwarning: 299 b\n"+
		"location: /x\ncontent-length: 2\nkeep-alive: 3\n\nok",
		answer{Status: 200, Reason: "OK", Header: "x-elastic-product: Elasticsearch\nWarning: 299 a\nwarning: 299 b\nlocation: /x\n", Length: 2, Body: "ok", Pooled: true})
	f("GET", "HTTP/1.1 404 \nContent-Length: 0\n\n", answer{Status: 404, Pooled: true})
	f("GET", "HTTP/1.1 200\nContent-Length: 1\n\nx", answer{Status: 200, Length: 1, Body: "x", Pooled: true})

	// Chunked.
	f("GET", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nab\nA;x=y\n0123456789\n0\n\n",
		answer{Status: 200, Reason: "OK", Length: 12, Body: "ab0123456789", Pooled: true})
	f("GET", "HTTP/1.1 200 OK\ntransfer-encoding: Chunked\nTrailer: Took\n\n1\na\n000\nTook: 5\nx: y\n\n",
		answer{Status: 200, Reason: "OK", Length: 1, Body: "a", Pooled: true})
	f("GET", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n0\n\n", answer{Status: 200, Reason: "OK", Pooled: true})

	// Ended by the end of the connection, which is therefore gone.
	f("GET", "HTTP/1.1 200 OK\n\nabc", answer{Status: 200, Reason: "OK", Length: 3, Body: "abc"})
	f("GET", "HTTP/1.0 200 OK\nContent-Length: 3\nConnection: keep-alive\n\nabc", answer{Status: 200, Reason: "OK", Length: 3, Body: "abc"})
	f("GET", "HTTP/1.1 200 OK\nContent-Length: 3\nConnection: x, Close\n\nabc", answer{Status: 200, Reason: "OK", Length: 3, Body: "abc"})

	// Answers without a body, whatever their fields say (RFC 9112 section 6.3; valyala/fasthttp#1824).
	f("HEAD", "HTTP/1.1 200 OK\nContent-Length: 543\n\n", answer{Status: 200, Reason: "OK", Length: 543, Pooled: true})
	f("HEAD", "HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n", answer{Status: 200, Reason: "OK", Length: -1, Pooled: true})
	f("HEAD", "HTTP/1.1 404 Not Found\n\n", answer{Status: 404, Reason: "Not Found", Length: -1, Pooled: true})
	f("GET", "HTTP/1.1 204 No Content\n\n", answer{Status: 204, Reason: "No Content", Pooled: true})
	f("GET", "HTTP/1.1 304 Not Modified\nContent-Length: 9\nEtag: x\n\n", answer{Status: 304, Reason: "Not Modified", Header: "Etag: x\n", Length: 9, Pooled: true})

	// Interim answers are skipped with their fields.
	f("GET", "HTTP/1.1 100 Continue\n\nHTTP/1.1 103 Early Hints\nLink: </x>\n\nHTTP/1.1 200 OK\nContent-Length: 1\n\nx",
		answer{Status: 200, Reason: "OK", Length: 1, Body: "x", Pooled: true})

	// Bytes behind the answer make the connection unusable.
	f("GET", "HTTP/1.1 200 OK\nContent-Length: 1\n\nxy", answer{Status: 200, Reason: "OK", Length: 1, Body: "x"})
	f("HEAD", "HTTP/1.1 200 OK\nContent-Length: 1\n\nx", answer{Status: 200, Reason: "OK", Length: 1})
	f("GET", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n0\n\nHTTP/1.1 200 OK\nContent-Length: 0\n\n", answer{Status: 200, Reason: "OK"})

	// Answers after which a node falls silent.
	silent := `{"error":{"type":"too_long_http_header_exception"},"status":400}`
	f("GET", fmt.Sprintf("HTTP/1.1 400 Bad Request\nContent-Length: %d\n\n%s", len(silent), silent),
		answer{Status: 400, Reason: "Bad Request", Length: int64(len(silent)), Body: silent})
	f("GET", "HTTP/1.1 400 Bad Request\nContent-Encoding: gzip\nContent-Length: 1\n\nx",
		answer{Status: 400, Reason: "Bad Request", Header: "Content-Encoding: gzip\n", Length: 1, Body: "x"})
	f("GET", "HTTP/1.1 400 Bad Request\nContent-Length: 2\n\n{}", answer{Status: 400, Reason: "Bad Request", Length: 2, Body: "{}", Pooled: true})
}

func TestAnswerStreamed(t *testing.T) {
	f := func(raw string, want answer) {
		t.Helper()
		n := node(t, Options{Addr: once(t, strings.ReplaceAll(raw, "\n", "\r\n")), MaxBufferedBody: 3})
		want.Status, want.Reason, want.Stream = 200, "OK", true
		if diff := cmp.Diff(want, read(t, n, do(t, n, get("/")))); diff != "" {
			t.Errorf("%q: -want +got\n%s", raw, diff)
		}
	}
	f("HTTP/1.1 200 OK\nContent-Length: 4\n\nabcd", answer{Length: 4, Body: "abcd", Pooled: true})
	f("HTTP/1.1 200 OK\nContent-Length: 4\n\nabcde", answer{Length: 4, Body: "abcd"})
	f("HTTP/1.1 200 OK\nContent-Length: 4\nConnection: close\n\nabcd", answer{Length: 4, Body: "abcd"})
	f("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n2\nde\n0\nT: 1\n\n", answer{Length: -1, Body: "abcde", Pooled: true})
	f("HTTP/1.1 200 OK\n\nabcdefgh", answer{Length: -1, Body: "abcdefgh"})
	f("HTTP/1.1 200 OK\nContent-Type: Text/Event-Stream;charset=utf-8\nContent-Length: 2\n\nab",
		answer{Header: "Content-Type: Text/Event-Stream;charset=utf-8\n", Length: 2, Body: "ab", Pooled: true})
}

func TestFaultyAnswers(t *testing.T) {
	f := func(raw string, want error) {
		t.Helper()
		n := node(t, Options{Addr: once(t, raw), MaxHeadBytes: 16 << 10})
		// An answer that came, faulty or not, must not make the request run again.
		req := get("/")
		req.Reuse = RetryFresh
		e := fails(t, n, req)
		if !errors.Is(e, want) || e.Answered != (raw != "") || e.Written == 0 {
			t.Errorf("%.80q: error %v of %+v, want %v", raw, e, *e, want)
		}
		if s := n.Stats(); s.Open != 0 || s.Dials != 1 {
			t.Errorf("%.80q: %+v", raw, s)
		}
	}
	ok := "HTTP/1.1 200 OK\r\n"
	f("", io.EOF)
	f("HTTP/1.1 2", io.ErrUnexpectedEOF)
	f(ok+"A: b\r\n", io.ErrUnexpectedEOF)
	f("\r\n"+ok+"Content-Length: 0\r\n\r\n", wire.ErrStatusLine)
	f("\x00\x00\x12\x04\x00\x00\r\n\r\n", wire.ErrStatusLine) // a node that speaks HTTP/2 only
	f("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", ErrUpgrade)
	f(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxInterim)+ok+"\r\n", ErrInterim)
	f("HTTP/1.1 200 OK\nContent-Length: 0\n\n", wire.ErrBareLineFeed)
	f(ok+"A: b\r\n c\r\n\r\n", wire.ErrFolded)
	f(ok+"A : b\r\n\r\n", wire.ErrFieldName)
	f(ok+"A: \x01\r\n\r\n", wire.ErrFieldValue)
	f(ok+"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", wire.ErrTwoLengths)
	f(ok+"Content-Length: -1\r\n\r\nx", wire.ErrLength)
	f(ok+"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", wire.ErrLengthChunked)
	f(ok+"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", wire.ErrCoding)
	f("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", wire.ErrCoding)
	f(ok+"X: "+strings.Repeat("x", 17<<10)+"\r\n\r\n", ErrHeadTooLong)
	f(ok+strings.Repeat("X: "+strings.Repeat("x", 100)+"\r\n", 170)+"\r\n", ErrHeadTooLong)

	// Bodies that end early.
	f(ok+"Content-Length: 100\r\n\r\n{\"took\":1", io.ErrUnexpectedEOF)
	chunked := ok + "Transfer-Encoding: chunked\r\n\r\n"
	f(chunked, io.ErrUnexpectedEOF)
	f(chunked+"5\r\nab", io.ErrUnexpectedEOF)
	f(chunked+"2\r\nab\r\n", io.ErrUnexpectedEOF)
	f(chunked+"0\r\n", io.ErrUnexpectedEOF)
	f(chunked+"0\r\nT: 1\r\n", io.ErrUnexpectedEOF)

	// Chunks that others would read in another way.
	f(chunked+"2\nab\r\n0\r\n\r\n", wire.ErrChunk)
	f(chunked+"2\r\nab\n0\r\n\r\n", wire.ErrChunk)
	f(chunked+"2\r\nabc\r\n0\r\n\r\n", wire.ErrChunk)
	f("\x00\x00\x12\x04\x00", wire.ErrStatusLine) // HTTP/2, and no end of a line in sight
	f(chunked+"\r\n\r\n", wire.ErrChunk)
	f(chunked+";x\r\n\r\n", wire.ErrChunk)
	f(chunked+"0x2\r\nab\r\n0\r\n\r\n", wire.ErrChunk)
	f(chunked+"+2\r\nab\r\n0\r\n\r\n", wire.ErrChunk)
	f(chunked+"2 \r\nab\r\n0\r\n\r\n", wire.ErrChunk)
	f(chunked+"2;\rx\r\nab\r\n0\r\n\r\n", wire.ErrChunk)
	f(chunked+"fffffffffffffffff\r\n", wire.ErrChunk)
	f(chunked+"2;"+strings.Repeat("x", 2<<10)+"\r\nab\r\n0\r\n\r\n", wire.ErrChunk)
	f(chunked+"0\r\nT : 1\r\n\r\n", wire.ErrFieldName)
	f(chunked+"0\r\n"+strings.Repeat("T: "+strings.Repeat("x", 100)+"\r\n", 170)+"\r\n", wire.ErrChunk)
}

// room is a Memory of so many bytes.
type room struct{ left int64 }

func (r *room) Acquire(n int64) bool {
	if n > r.left {
		return false
	}
	r.left -= n
	return true
}

func (r *room) Release(n int64) { r.left += n }

// An answer for which there is no memory passes as a stream, and what was taken comes back.
func TestAnswersWithinMemory(t *testing.T) {
	f := func(head, body string, memory int64, streamed bool) {
		t.Helper()
		n := node(t, Options{Addr: script(t, "HTTP/1.1 200 OK\r\n"+head+"\r\n\r\n"+body)})
		m := &room{memory}
		req := get("/")
		req.Memory = m
		resp := do(t, n, req)
		got := resp.Body
		if resp.Stream != nil {
			var err error
			if got, err = io.ReadAll(resp.Stream); err != nil {
				t.Error(err)
			}
		}
		if (resp.Stream != nil) != streamed || len(got) != 200_000 {
			t.Errorf("%s with %d bytes of memory: streamed %v, %d bytes", head, memory, resp.Stream != nil, len(got))
		}
		if resp.Reset(); m.left != memory {
			t.Errorf("%s: %d of %d bytes of memory came back", head, m.left, memory)
		}
	}
	plain := strings.Repeat("x", 200_000)
	chunked := "30d40\r\n" + plain + "\r\n0\r\n\r\n"
	for _, memory := range []int64{0, 100_000, 150_000} {
		f("Content-Length: 200000", plain, memory, true)
		f("Transfer-Encoding: chunked", chunked, memory, true)
	}
	f("Content-Length: 200000", plain, 200_000, false)
	f("Transfer-Encoding: chunked", chunked, 1<<20, false)
}

func TestTruncatedStream(t *testing.T) {
	f := func(raw, want string) {
		t.Helper()
		n := node(t, Options{Addr: once(t, raw), MaxBufferedBody: 2})
		resp := do(t, n, get("/"))
		got, err := io.ReadAll(resp.Stream)
		var e *Error
		if string(got) != want || !errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &e) || e.Phase != Body {
			t.Errorf("%q: read %q, %v", raw, got, err)
		}
		if _, again := resp.Stream.Read(make([]byte, 1)); !errors.Is(again, io.ErrUnexpectedEOF) {
			t.Errorf("%q: the error did not stay: %v", raw, again)
		}
		if s := n.Stats(); s.Open != 0 {
			t.Errorf("%q: %+v", raw, s)
		}
	}
	f("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"took\":1", "{\"took\":1")
	f("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n5\r\nef", "abcdef")
	f("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n", "abcd")
}

func TestWarningsAreDroppedOverTheLimit(t *testing.T) {
	warnings := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "Warning: 299 x \"field %04d is deprecated and will be removed\"\r\n", i)
		}
		return b.String()
	}
	f := func(limit, count, wantDropped, wantKept int) {
		t.Helper()
		raw := "HTTP/1.1 200 OK\r\nX-A: 1\r\n" + warnings(count) + "X-B: 2\r\nContent-Length: 4\r\n\r\nbody"
		n := node(t, Options{Addr: script(t, raw), MaxHeadBytes: limit})
		for range 2 {
			resp := do(t, n, get("/"))
			if got := resp.WarningsDropped; got != wantDropped && wantDropped >= 0 || wantDropped < 0 && got == 0 {
				t.Errorf("limit %d: %d warnings dropped, want %d", limit, got, wantDropped)
			}
			if got := resp.Header.Count("warning"); got+resp.WarningsDropped != count {
				t.Errorf("limit %d: %d warnings kept and %d dropped of %d", limit, got, resp.WarningsDropped, count)
			}
			if string(resp.Header.Get("x-a")) != "1" || string(resp.Header.Get("x-b")) != "2" || string(resp.Body) != "body" {
				t.Errorf("limit %d: the answer lost something else: %q %q", limit, fieldsOf(&resp.Header), resp.Body)
			}
		}
		if s := n.Stats(); s.Dials != 1 || wantDropped == 0 != (s.WarningsDropped == 0) {
			t.Errorf("limit %d: %+v", limit, s)
		}
	}
	f(0, 400, 0, 400)
	f(0, 1000, 0, 1000) // 60 KB
	f(16<<10, 400, -1, 0)
	f(16<<10, 3000, -1, 0)

	n := node(t, Options{Addr: serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := readRequest(r); err != nil {
			return
		}
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for err == nil {
			_, err = io.WriteString(c, warnings(100))
		}
	}), MaxHeadBytes: 16 << 10})
	if e := fails(t, n, get("/")); !errors.Is(e, ErrHeadTooLong) {
		t.Errorf("a head without end gave %v", e)
	}
}

func TestBodyMemoryChangesHands(t *testing.T) {
	n := node(t, Options{Addr: script(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")})
	resp := do(t, n, get("/"))
	first := resp.TakeBody()
	if resp.Body != nil {
		t.Error("TakeBody left the body")
	}
	if err := n.Do(get("/"), resp); err != nil {
		t.Fatal(err)
	}
	if &first[0] == &resp.Body[0] {
		t.Error("memory that was taken was used again")
	}
	given := make([]byte, 0, 64)
	resp.TakeBody()
	resp.GiveBody(given)
	if err := n.Do(get("/"), resp); err != nil {
		t.Fatal(err)
	}
	if &given[:1][0] != &resp.Body[0] {
		t.Error("memory that was given was not used")
	}
	resp.TakeBody()
	resp.GiveBody(make([]byte, 2<<20))
	if cap(resp.buf) != 0 {
		t.Error("a large buffer was kept")
	}

	n = node(t, Options{
		Addr: script(t, "HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n"+strings.Repeat("x", 2_000_000)), MaxBufferedBody: 2 << 20,
	})
	resp = do(t, n, get("/"))
	resp.Reset()
	if cap(resp.buf) != 0 {
		t.Error("the buffer of a large body was kept")
	}
}

func TestLargeBodies(t *testing.T) {
	f := func(size int, chunked bool, limit int64) {
		t.Helper()
		body := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		var raw bytes.Buffer
		raw.WriteString("HTTP/1.1 200 OK\r\n")
		if chunked {
			raw.WriteString("Transfer-Encoding: chunked\r\n\r\n")
			for rest := body; len(rest) > 0; {
				k := min(len(rest), 8000)
				fmt.Fprintf(&raw, "%x\r\n%s\r\n", k, rest[:k])
				rest = rest[k:]
			}
			raw.WriteString("0\r\n\r\n")
		} else {
			fmt.Fprintf(&raw, "Content-Length: %d\r\n\r\n%s", size, body)
		}
		n := node(t, Options{Addr: script(t, raw.String()), MaxBufferedBody: limit})
		resp := &Response{}
		for range 3 {
			if err := n.Do(get("/"), resp); err != nil {
				t.Fatal(err)
			}
			if resp.Stream != nil == (int64(size) <= limit) {
				t.Errorf("%d bytes, limit %d: stream %v", size, limit, resp.Stream != nil)
			}
			if a := read(t, n, resp); a.Body != string(body) || !a.Pooled {
				t.Errorf("%d bytes, chunked %v: got %d bytes, pooled %v", size, chunked, len(a.Body), a.Pooled)
			}
		}
		if s := n.Stats(); s.Dials != 1 {
			t.Errorf("%+v", s)
		}
	}
	for _, chunked := range []bool{false, true} {
		f(100_000, chunked, 1<<20)
		f(100_000, chunked, 100_000)
		f(100_000, chunked, 99_999)
		f(2<<20, chunked, 1<<20)
	}
}
