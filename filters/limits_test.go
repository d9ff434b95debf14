package filters_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/flows/flowstest"
)

// limited runs an entry whose answers, of 10,000 bytes, stand behind filters.
func limited(t *testing.T, filters string) string {
	t.Helper()
	return serve(t, flowstest.Main(filters+", {echo: {message: "+strings.Repeat("x", 10_000)+"}}"), "http://127.0.0.1:1")
}

// TestBytesAreCharged holds that bytes which nobody could know before are charged: those of answers, and those of requests that
// announce no length.
func TestBytesAreCharged(t *testing.T) {
	f := func(filters string, body func() io.Reader, passes int) {
		t.Helper()
		addr := limited(t, filters)
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		n := 0
		for range 6 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/i/_doc", body())
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			switch resp.StatusCode {
			case 200:
				n++
			case 429:
			default:
				t.Fatalf("status %d", resp.StatusCode)
			}
		}
		if n != passes {
			t.Errorf("%s: %d of 6 passed, want %d", filters, n, passes)
		}
	}
	none := func() io.Reader { return nil }
	f("{rate_limit: {limits: [{unit: response_bytes, rate: 1kb/h, burst: 25000}]}}", none, 3)
	// Hidden behind another type the length is not known to the client either.
	unknown := func() io.Reader { return struct{ io.Reader }{strings.NewReader(strings.Repeat("y", 10_000))} }
	f("{rate_limit: {limits: [{unit: request_bytes, rate: 1kb/h, burst: 25000}]}}, {concurrency: {max: 9}}", unknown, 3)
}

// TestRefusalOfABodyOnItsWay holds that a client which sends a large body over a limit reads the 429, whether or not it looks for
// it before it has sent everything (valyala/fasthttp#1348, elastic/elasticsearch#120934).
func TestRefusalOfABodyOnItsWay(t *testing.T) {
	const size = 20 << 20
	addr := limited(t, "{rate_limit: {limits: [{key: [global], rate: 1/h}]}}")
	piece := []byte(strings.Repeat("z", 1<<20))
	for i := range 20 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST /_bulk HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n", size); err != nil {
			t.Fatal(err)
		}
		for sent := 0; sent < size; sent += len(piece) {
			if _, err := conn.Write(piece); err != nil {
				break // the gateway may stop reading, but what it has answered must still be there
			}
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		want := 429
		if i == 0 {
			want = 200
		}
		if resp.StatusCode != want {
			t.Errorf("request %d is answered with %d, want %d", i, resp.StatusCode, want)
		}
		_ = conn.Close()
	}
}
