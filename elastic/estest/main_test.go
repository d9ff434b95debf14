package estest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/elastic/estest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds every wait of these tests.
const limit = 10 * time.Second

// start starts a cluster and returns it with a client that keeps no connection after the test.
func start(t testing.TB, o estest.Options) (*estest.Cluster, *client) {
	t.Helper()
	c := estest.New(t, o)
	transport := &http.Transport{DisableCompression: true}
	if o.InMemory {
		transport.DialContext = c.Dial
	}
	t.Cleanup(transport.CloseIdleConnections)
	return c, &client{t: t, http: &http.Client{Transport: transport}, url: c.URL()}
}

type client struct {
	t    testing.TB
	http *http.Client
	url  string
	user [2]string
}

type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request and fails the test if there is no whole answer.
func (c *client) do(method, target, body string) reply {
	c.t.Helper()
	r, err := c.try(method, target, body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, target, err)
	}
	return r
}

func (c *client) try(method, target, body string, header ...string) (reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+target, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if c.user[0] != "" {
		req.SetBasicAuth(c.user[0], c.user[1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(data)}, err
}

// get returns the member of a JSON body at a path of keys.
func (r reply) get(t testing.TB, path ...string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatalf("body %q: %v", r.body, err)
	}
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("no member %v in %s", path, r.body)
		}
		v = m[key]
	}
	return v
}

// exchange writes bytes on a connection of its own and returns what comes until the node closes, or until marker has come.
func exchange(t testing.TB, c *estest.Cluster, request, marker string) string {
	t.Helper()
	conn := dial(t, c)
	write(t, conn, request)
	return readUntil(t, conn, marker)
}

func dial(t testing.TB, c *estest.Cluster) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Node(0).Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func write(t testing.TB, conn net.Conn, data string) {
	t.Helper()
	if _, err := io.WriteString(conn, data); err != nil {
		t.Fatal(err)
	}
}

func readUntil(t testing.TB, conn net.Conn, marker string) string {
	t.Helper()
	var got bytes.Buffer
	buf := make([]byte, 4096)
	for marker == "" || !strings.Contains(got.String(), marker) {
		n, err := conn.Read(buf)
		got.Write(buf[:n])
		if err == io.EOF && marker == "" {
			break
		}
		if err != nil {
			t.Fatalf("read: %v after %q", err, got.String())
		}
	}
	return got.String()
}

// wait waits for a call and fails the test if it does not come.
func wait(t testing.TB, c *estest.Cluster, match func(*estest.Call) bool) *estest.Call {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	call, err := c.WaitCall(ctx, match)
	if err != nil {
		t.Fatal(err)
	}
	return call
}

func closes(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(limit):
		t.Fatalf("%s did not happen", what)
	}
}
