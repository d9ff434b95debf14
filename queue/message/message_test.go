package message

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := Message{
			Time:   time.UnixMilli(rapid.Int64Range(1, 1<<41).Draw(rt, "time")).UTC(),
			Method: rapid.SampledFrom([]string{"PUT", "POST", "DELETE"}).Draw(rt, "method"),
			Target: "/" + rapid.StringMatching(`[!-~é-ü<>&]*`).Draw(rt, "target"),
			Host:   rapid.SampledFrom([]string{"", "es:9200", "[::1]:9200"}).Draw(rt, "host"),
			User:   rapid.OneOf(rapid.String(), bytesWithout("")).Draw(rt, "user"),
			Body:   rapid.SliceOf(rapid.Byte()).Draw(rt, "body"),
		}
		if rapid.Bool().Draw(rt, "known") {
			m.ClientIP = netip.AddrFrom4([4]byte{10, 0, 0, 1})
		}
		if rapid.Bool().Draw(rt, "text") {
			m.Body = []byte(rapid.String().Draw(rt, "body as text"))
		}
		for range rapid.IntRange(0, 3).Draw(rt, "fields") {
			m.Fields = append(m.Fields, Field{"X-A", rapid.OneOf(rapid.StringMatching(`[ -~]*`), bytesWithout("\r\n\x00")).Draw(rt, "value")})
		}
		line, err := m.AppendTo([]byte("before"))
		if err != nil {
			rt.Fatal(err)
		}
		line, ok := bytes.CutPrefix(line, []byte("before"))
		if !ok || bytes.IndexByte(line, '\n') >= 0 {
			rt.Fatalf("no line of its own: %q", line)
		}
		got, err := Parse(line)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(m, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			rt.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// bytesWithout returns strings of any bytes, most of which are no UTF-8.
func bytesWithout(chars string) *rapid.Generator[string] {
	return rapid.Map(rapid.SliceOf(rapid.Byte().Filter(func(c byte) bool { return strings.IndexByte(chars, c) < 0 })), func(b []byte) string { return string(b) })
}

// JSON has no such bytes: they would become others, and the request one for something else.
func TestTextThatJSONDoesNotHave(t *testing.T) {
	f := func(m Message) {
		t.Helper()
		if line, err := m.AppendTo([]byte("before")); err == nil || string(line) != "before" {
			t.Errorf("%+v became %s, %v", m, line, err)
		}
	}
	f(Message{Method: "P\xe9T", Target: "/"})
	f(Message{Method: "PUT", Target: "/i/_doc/\xe9"})
	f(Message{Method: "PUT", Target: "/", Host: "\xe9"})
}

// A queue can be written by hand: nothing in it may become a second request, or half of one.
func TestWhatIsNoRequest(t *testing.T) {
	f := func(record, want string) {
		t.Helper()
		if _, err := Parse([]byte(record)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", record, err, want)
		}
	}
	f(`no JSON`, "invalid character")
	f(`{"target":"/"}`, "method")
	f(`{"method":"GET X","target":"/"}`, "method")
	f(`{"method":"GET","target":"a"}`, "no path")
	f(`{"method":"GET","target":"/","@timestamp":"0000-01-01T00:00:00+01:00"}`, "UTC")
	f(`{"method":"GET","target":"/","@timestamp":"9999-12-31T23:59:59-01:00"}`, "UTC")
	f(`{"method":"GET","target":"/a b"}`, "space")
	f(`{"method":"GET","target":"/a\r\nX: y"}`, "control character")
	f(`{"method":"GET","target":"/","host":"a b"}`, "host")
	f(`{"method":"GET","target":"/","headers":[{"name":"A","value":"b\r\nC: d"}]}`, `"A"`)
	f(`{"method":"GET","target":"/","headers":[{"name":"A:","value":"b"}]}`, `"A:"`)
	f(`{"method":"GET","target":"/","headers":[{"name":"Transfer-Encoding","value":"chunked"}]}`, "connection")
	f(`{"method":"GET","target":"/","headers":[{"name":"Content-Length","value":"3"}]}`, "Content-Length")
	f(`{"method":"GET","target":"/","body":"a","body_base64":"YQ=="}`, "both")
	f(`{"method":"GET","target":"/","user":"a","user_base64":"YQ=="}`, "both")
	f(`{"method":"GET","target":"/","headers":[{"name":"A","value":"b","value_base64":"YQ=="}]}`, "both")
	f(`{"method":"GET","target":"/","headers":[{"name":"A","value_base64":"YQ0K"}]}`, `"A"`)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"@timestamp":"2024-02-29T12:00:00Z","method":"PUT","target":"/a/_doc/1?x=y","host":"es","client_ip":"10.0.0.1","user":"u","headers":[{"name":"A","value":"b"}],"body":"{}"}`))
	f.Add([]byte(`{"method":"POST","target":"/_bulk","body_base64":"/w=="}`))
	f.Add([]byte(`{"method":"PUT","target":"/","user_base64":"/w==","headers":[{"name":"A","value_base64":"/w=="}]}`))
	f.Add([]byte(`{"@timestamp":"0000-01-01T00:00:00+01:00","method":"GET","target":"/"}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		m, err := Parse(record)
		if err != nil {
			return
		}
		line, err := m.AppendTo(nil)
		if err != nil {
			t.Fatalf("%s cannot be written again: %v", record, err)
		}
		again, err := Parse(line)
		if err != nil || again.Target != m.Target || again.User != m.User || !cmp.Equal(again.Fields, m.Fields, cmpopts.EquateEmpty()) || !bytes.Equal(again.Body, m.Body) {
			t.Errorf("%s became %s: %v", record, line, err)
		}
	})
}
