package flows_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/flows"
	"weir/flows/flowstest"
	"weir/internal/wire"
)

// reply is a filter that answers as a node may.
type reply struct {
	status int
	reason string
	fields []string // names and values in turn
	body   string
	stream io.Reader // instead of body
	length int64     // of stream, or announced
}

func (r reply) Serve(x *flows.Exchange, _ flows.Handler) error {
	x.Response.Status = r.status
	if r.reason != "" {
		x.Response.Reason = []byte(r.reason)
	}
	for i := 0; i < len(r.fields); i += 2 {
		x.Response.Header.AddString(r.fields[i], r.fields[i+1])
	}
	switch {
	case r.stream != nil:
		x.Response.Body.ReplaceStream(r.stream, r.length)
	case r.length != 0:
		x.Response.Body.Announce(r.length)
	default:
		x.Response.Body.Replace([]byte(r.body))
	}
	return nil
}

// replying serves a flow of one filter, which next makes anew for each request.
func replying(t *testing.T, next func() reply, shape func(*flows.EntryConfig)) *flowstest.Gateway {
	t.Helper()
	reg := testRegistry(nil)
	flows.Register(reg, flows.Factory[struct{}]{
		Name: "reply", Default: func() struct{} { return struct{}{} },
		Build: func(*flows.Builder, struct{}) flows.Filter {
			return serveFunc(func(x *flows.Exchange, h flows.Handler) error { return next().Serve(x, h) })
		},
	})
	return flowstest.New(t, reg, flowstest.Main("{reply: {}}"), flowstest.Options{Entry: shape})
}

type serveFunc func(x *flows.Exchange, next flows.Handler) error

func (f serveFunc) Serve(x *flows.Exchange, next flows.Handler) error { return f(x, next) }

// An answer leaves as the node wrote it: reason, order, spelling, and the length where and how it stood.
func TestAnswersAreWrittenAsTheyAre(t *testing.T) {
	f := func(method string, r reply, want string) {
		t.Helper()
		g := replying(t, func() reply { return r }, nil)
		got := g.Dial().Send(method + " / HTTP/1.1\nHost: a\nConnection: close\n\n").Raw()
		want = strings.ReplaceAll(strings.Replace(want, "\n", "\nConnection: close\n", 1), "\n", "\r\n")
		if got != want {
			t.Errorf("%s: got %q, want %q", method, got, want)
		}
	}
	fields := []string{
		"x-elastic-product", "Elasticsearch", "Warning", "299 a", "content-type", "application/json", "warning", "299 b",
		"content-length", "99", "date", "then", "SERVER", "x", "Set-Cookie", "a", "set-cookie", "b",
	}
	const head = "x-elastic-product: Elasticsearch\nWarning: 299 a\ncontent-type: application/json\nwarning: 299 b\n" +
		"content-length: %d\ndate: then\nSERVER: x\nSet-Cookie: a\nset-cookie: b\n\n"
	f("GET", reply{status: 200, reason: "All Right", fields: fields, body: "{}"}, "HTTP/1.1 200 All Right\n"+fmt.Sprintf(head, 2)+"{}")
	f("HEAD", reply{status: 200, fields: fields, length: 77}, "HTTP/1.1 200 OK\n"+fmt.Sprintf(head, 77))
	f("HEAD", reply{status: 200, body: "abc"}, "HTTP/1.1 200 OK\nContent-Length: 3\n\n")
	f("HEAD", reply{status: 200, length: -1}, "HTTP/1.1 200 OK\n\n")
	f("GET", reply{status: 304, fields: []string{"ETag", "x"}, length: 9}, "HTTP/1.1 304 Not Modified\nETag: x\nContent-Length: 9\n\n")
	f("GET", reply{status: 304}, "HTTP/1.1 304 Not Modified\n\n")
	f("DELETE", reply{status: 204, fields: []string{"Content-Length", "0", "A", "b"}}, "HTTP/1.1 204 No Content\nA: b\n\n")
	f("GET", reply{status: 299, reason: "Odd\r\nX: y"}, "HTTP/1.1 299 \nContent-Length: 0\n\n")
	f("GET", reply{status: 200, stream: strings.NewReader("abc"), length: 3}, "HTTP/1.1 200 OK\nContent-Length: 3\n\nabc")
	f("GET", reply{status: 200, stream: strings.NewReader("abc"), length: -1},
		"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n0\n\n")
}

func TestHTTP10(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	if got := g.Dial().Send("GET / HTTP/1.0\n\n").Raw(); !strings.Contains(got, "\r\nConnection: close\r\n") {
		t.Errorf("without keep-alive: %q", got)
	}
	c := g.Dial()
	for range 2 {
		resp, body := c.Send("GET / HTTP/1.0\nConnection: Keep-Alive\n\n").Answer()
		if body != "ok" || resp.Header.Get("Connection") != "keep-alive" {
			t.Errorf("with keep-alive: %v %q", resp.Header, body)
		}
	}
	// A client of HTTP/1.0 knows no interim answers (RFC 9110 section 10.1.1).
	mirror := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(nil), nil)
	got := mirror.Dial().Send("POST / HTTP/1.0\nExpect: 100-continue\nContent-Length: 3\n\nabc").Raw()
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, "\r\n\r\nabc") {
		t.Errorf("Expect: %q", got)
	}
}

// A client that notices nothing would take half an answer for a whole one.
func TestAnswersThatBreakOffAreCut(t *testing.T) {
	f := func(version string, length int64) {
		t.Helper()
		g := replying(t, func() reply {
			return reply{status: 200, stream: io.MultiReader(strings.NewReader("half"), failing{}), length: length}
		}, nil)
		c := g.Dial().Send("GET / HTTP/" + version + "\nHost: a\n\n")
		if got, err := io.ReadAll(c.R); err == nil {
			t.Errorf("HTTP/%s with length %d: %q ended in order", version, length, got)
		}
	}
	f("1.1", 100)
	f("1.1", -1)
	f("1.0", -1)
	g := replying(t, func() reply { return reply{status: 200, stream: strings.NewReader("short"), length: 100} }, nil)
	if got, err := io.ReadAll(g.Dial().Send("GET / HTTP/1.1\nHost: a\n\n").R); err == nil {
		t.Errorf("a stream that was shorter than announced: %q ended in order", got)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestRequestsBehindAnyBody(t *testing.T) {
	mirror := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(nil), nil)
	plain := newGateway(t, oneFlow, testRegistry(nil), nil)
	big := strings.Repeat("x", 30_000)
	f := func(g *flowstest.Gateway, first, want string) {
		t.Helper()
		for _, pause := range []bool{false, true} { // the second request comes with the first, or after its answer
			c := g.Dial()
			second := "POST /second HTTP/1.1\nHost: a\nContent-Length: 1\n\n2"
			if pause {
				c.Send(first)
			} else {
				c.Send(first + second)
			}
			if _, body := c.Answer(); body != want {
				t.Errorf("%.60q: body of %d bytes, want %d", first, len(body), len(want))
			}
			if pause {
				c.Send(second)
			}
			if _, body := c.Answer(); body != "2" && body != "ok" {
				t.Errorf("%.60q: the second answer is %.60q", first, body)
			}
		}
	}
	for _, g := range []*flowstest.Gateway{mirror, plain} {
		want := func(body string) string {
			if g == plain {
				return "ok"
			}
			return body
		}
		f(g, "POST / HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc", want("abc"))
		f(g, "POST / HTTP/1.1\nHost: a\nContent-Length: 30000\n\n"+big, want(big))
		f(g, "PUT / HTTP/1.1\nHost: a\n\n", want(""))
		f(g, "\n\nGET / HTTP/1.1\nHost: a\nContent-Length: 0\n\n\n", want(""))
	}
	f(mirror, "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n0\n\n", "")
	f(mirror, "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: Chunked\n\n3;x=y\nabc\n1\nd\n0\nTrailer-A: 1\nB:\n\n", "abcd")
	f(mirror, "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n7530\n"+big+"\n0\n\n", big)
	f(mirror, "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n"+strings.Repeat("1\nx\n", 30_000)+"0\n\n", big)
	// Who does not wait for 100 Continue does not get it.
	f(mirror, "POST / HTTP/1.1\nHost: a\nExpect: 100-continue\nContent-Length: 3\n\nabc", "abc")
}

func TestMalformedLinesAreRefusedAtOnce(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), func(c *flows.EntryConfig) { c.HeaderTimeout = 60e9 })
	f := func(text string, status int) {
		t.Helper()
		c := g.Dial()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if resp, body := c.Answer(); resp.StatusCode != status || !strings.HasPrefix(body, `{"error":`) || !c.Closed() {
			t.Errorf("%q: got %d %s, want %d and the end of the connection", text, resp.StatusCode, body, status)
		}
	}
	f("GET / HTTP/1.1\n", 400)
	f("GET / HTTP/1.1\r\nHost: a\n", 400)
	f("GET / HTTP/1.1\r\nHost: a\r\n\n", 400)
	f("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400)
	f("GET /\r\n\r\n", 400)
	f("\x16\x03\x01\x02", 400)
	for _, host := range []string{"a b", "a/b", "u@b", "a,b", "\xff", "g\";x"} {
		f("GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n", 400)
	}
	f("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", 400)
	f("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400)
	f("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: 100-continue\r\n\r\n", 417)
	f("GET /"+strings.Repeat("a", 20_000), 414)
	f("GET / HTTP/1.1\r\nX: "+strings.Repeat("a", 70_000), 431)
}

func TestRefusalsOfHeadHaveNoBody(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), func(c *flows.EntryConfig) { c.HeaderTimeout = 200e6 })
	f := func(text string, status string) {
		t.Helper()
		got := g.Dial().Send(text).Raw()
		if !strings.HasPrefix(got, "HTTP/1.1 "+status+" ") || !strings.HasSuffix(got, "\r\n\r\n") || !strings.Contains(got, "Content-Length: ") {
			t.Errorf("%.40q: got %q", text, got)
		}
	}
	f("HEAD / HTTP/1.1\nHost: a\nX: "+strings.Repeat("a", 20_000)+"\n\n", "431")
	f("HEAD /"+strings.Repeat("a", 20_000)+" HTTP/1.1\nHost: a\n\n", "414")
	f("HEAD / HTTP/1.1\nHost: a\n", "408")
	f("HEAD / HTTP/1.1\nHost: a\nX : b\n\n", "400")
	f("HEAD / HTTP/3.1\nHost: a\n\n", "400")
}

// Empty lines between requests are no request: they must not keep a connection for ever.
func TestEmptyLinesAreCounted(t *testing.T) {
	g := newGateway(t, oneFlow, testRegistry(nil), nil)
	c := g.Dial()
	for range 3 {
		if _, body := c.Send("\nGET / HTTP/1.1\nHost: a\n\n\n").Answer(); body != "ok" {
			t.Fatal(body)
		}
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if _, err := io.WriteString(c, "\r\n"); err != nil {
			return
		}
	}
	t.Error("empty lines are taken without end")
}

// A client that reads only when it has sent everything gets the refusal all the same, each time (valyala/fasthttp#1348).
func TestRefusalReachesWhoIsStillSending(t *testing.T) {
	limit := func(c *flows.EntryConfig) { c.MaxBodySize = 1 << 20 }
	const size = 50 << 20
	piece := strings.Repeat("x", 1<<20)
	for _, flow := range []string{oneFlow, flowstest.Main("{answer: {mirror: true}}")} {
		g := newGateway(t, flow, testRegistry(nil), limit)
		for _, framing := range []string{fmt.Sprintf("Content-Length: %d\n\n", size), fmt.Sprintf("Transfer-Encoding: chunked\n\n%x\n", size)} {
			if flow == oneFlow && strings.HasPrefix(framing, "T") {
				continue // whose body nobody reads, so that nobody knows how long it is
			}
			for range 5 {
				c := g.Dial().Send("POST /_bulk HTTP/1.1\nHost: a\n" + framing)
				for range size / len(piece) {
					if _, err := io.WriteString(c, piece); err != nil {
						t.Fatal(err)
					}
				}
				if resp, _ := c.Answer(); resp.StatusCode != 413 || !resp.Close {
					t.Errorf("%q: got %d, close %v", framing, resp.StatusCode, resp.Close)
				}
				_ = c.Close()
			}
		}
	}
}

// FuzzRequests sends bytes to a gateway and holds that it serves no request that a strict reader of the same bytes does not
// find, in the same order, with the same body, whatever the pieces in which the bytes come.
func FuzzRequests(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
		"GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n", "\r\nGET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n",
	} {
		f.Add([]byte(s), 7)
	}
	var mu sync.Mutex
	var got []string
	reg := testRegistry(nil)
	flows.Register(reg, flows.Factory[struct{}]{
		Name: "note", Default: func() struct{} { return struct{}{} },
		Build: func(*flows.Builder, struct{}) flows.Filter {
			return serveFunc(func(x *flows.Exchange, _ flows.Handler) error {
				body, err := io.ReadAll(x.Request.Body.Reader())
				if err != nil {
					return err
				}
				mu.Lock()
				got = append(got, fmt.Sprintf("%s %s %q", x.Request.Method, x.Request.Target, body))
				mu.Unlock()
				x.Reply(200, "", nil)
				return nil
			})
		},
	})
	g := newGateway(f, flowstest.Main("{note: {}}"), reg, nil)
	f.Fuzz(func(t *testing.T, raw []byte, step int) {
		if len(raw) > 4<<10 {
			return
		}
		mu.Lock()
		got = nil
		mu.Unlock()
		nc, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		c, _ := nc.(*net.TCPConn)
		for rest, size := raw, max(1, step); len(rest) > 0; {
			n := min(size, len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				break
			}
			rest = rest[n:]
		}
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		want := strictly(raw)
		mu.Lock()
		defer mu.Unlock()
		for i, r := range got {
			if i >= len(want) || r != want[i] {
				t.Fatalf("%q: served %q, a strict reader finds %q", raw, got, want)
			}
		}
	})
}

// strictly reads the requests in raw until the first fault. It is written for being plain, not for being fast.
func strictly(raw []byte) (requests []string) {
	text := string(raw)
	for {
		for strings.HasPrefix(text, "\r\n") {
			text = text[2:]
		}
		head, rest, ok := strings.Cut(text, "\r\n\r\n")
		if !ok || strings.Contains(strings.ReplaceAll(head, "\r\n", ""), "\n") {
			return requests
		}
		lines := strings.Split(head, "\r\n")
		parts := strings.Split(lines[0], " ")
		if len(parts) != 3 || parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0" {
			return requests
		}
		fields := map[string][]string{}
		for _, l := range lines[1:] {
			name, value, ok := strings.Cut(l, ":")
			if !ok || !wire.ValidToken([]byte(name)) {
				return requests
			}
			name = strings.ToLower(name)
			fields[name] = append(fields[name], strings.Trim(value, " \t"))
		}
		lengths, codings := fields["content-length"], fields["transfer-encoding"]
		if len(lengths)+len(codings) > 1 || len(fields["host"]) > 1 || parts[2] == "HTTP/1.1" && fields["host"] == nil {
			return requests
		}
		body := ""
		switch {
		case len(codings) == 1:
			data, behind, done, err := plainChunks(rest)
			if !strings.EqualFold(codings[0], "chunked") || parts[2] == "HTTP/1.0" || err != nil || !done {
				return requests
			}
			body, rest = data, behind
		case len(lengths) == 1:
			n := 0
			for _, d := range lengths[0] {
				if d < '0' || d > '9' || n > len(rest) {
					return requests
				}
				n = n*10 + int(d-'0')
			}
			if lengths[0] == "" || n > len(rest) {
				return requests
			}
			body, rest = rest[:n], rest[n:]
		}
		target := parts[1]
		if _, path, ok := strings.Cut(target, "://"); ok && !strings.HasPrefix(target, "/") {
			i := strings.IndexAny(path, "/?")
			if i < 0 {
				path, i = "/", 0
			}
			if target = path[i:]; strings.HasPrefix(target, "?") {
				target = "/" + target
			}
		}
		requests = append(requests, fmt.Sprintf("%s %s %q", parts[0], target, body))
		text = rest
	}
}

// plainChunks reads a chunked body.
func plainChunks(text string) (data, behind string, done bool, err error) {
	for {
		line, rest, ok := strings.Cut(text, "\r\n")
		if !ok {
			return data, "", false, nil
		}
		size, _, _ := strings.Cut(line, ";")
		n := 0
		if _, err := fmt.Sscanf(size, "%x", &n); err != nil || n < 0 || strings.Trim(size, "0123456789abcdefABCDEF") != "" {
			return data, "", false, net.ErrClosed
		}
		if n == 0 {
			for {
				line, rest, ok = strings.Cut(rest, "\r\n")
				if !ok {
					return data, "", false, nil
				}
				if line == "" {
					return data, rest, true, nil
				}
			}
		}
		if n+2 > len(rest) || rest[n:n+2] != "\r\n" {
			return data, "", false, nil
		}
		data, text = data+rest[:n], rest[n+2:]
	}
}
