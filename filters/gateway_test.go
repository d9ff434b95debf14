package filters_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/elastic/estest"
	"weir/filters"
	"weir/flows/flowstest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// serve runs an entry over the flow main of text, with the cluster up at url, and returns the entry's address.
func serve(t testing.TB, text, url string) string {
	t.Helper()
	return flowstest.New(t, filters.Registry(), "elasticsearch: [{name: up, endpoint: "+url+"}]\n"+text, flowstest.Options{}).Addr()
}

// asker sends one request again and again over one connection, without allocating.
type asker struct {
	conn    net.Conn
	r       *bufio.Reader
	request []byte
	body    []byte
}

func newAsker(t testing.TB, addr, request string) *asker {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &asker{c, bufio.NewReaderSize(c, 64<<10), []byte(request), make([]byte, 0, 1<<20)}
}

// ask makes one round trip and returns the answer's status and Cache-Status. The answer must have a length.
func (a *asker) ask(t testing.TB) (status, cache []byte) {
	if _, err := a.conn.Write(a.request); err != nil {
		t.Fatal(err)
	}
	a.body = a.body[:0]
	length := 0
	for {
		line, err := a.r.ReadSlice('\n')
		if err != nil {
			t.Fatal(err)
		}
		start := len(a.body)
		a.body = append(a.body, bytes.TrimRight(line, "\r\n")...)
		kept := a.body[start:]
		switch {
		case len(kept) == 0:
			a.body = a.body[:len(a.body)+length]
			if _, err := io.ReadFull(a.r, a.body[len(a.body)-length:]); err != nil {
				t.Fatal(err)
			}
			return status, cache
		case status == nil:
			status = kept[9:12]
		case bytes.HasPrefix(kept, []byte("Content-Length: ")):
			for _, c := range kept[16:] {
				length = length*10 + int(c-'0')
			}
		case bytes.HasPrefix(kept, []byte("Cache-Status: ")):
			cache = kept[14:]
		}
	}
}

const searchBody = `{"size":3,"query":{"term":{"service":"cart"}}}`

// search returns a request for documents of the sample.
func search() string {
	return "POST /shop/_search HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(searchBody)) + "\r\n\r\n" + searchBody
}

// cluster returns a cluster in memory with a few documents.
func cluster(t testing.TB) *estest.Cluster {
	t.Helper()
	es := estest.New(t, estest.Options{})
	a := newAsker(t, es.Node(0).Addr(), "")
	for body := range estest.Sample("shop", 50, 1, time.Unix(1_700_000_000, 0)) {
		a.request = []byte("POST /_bulk?refresh=true HTTP/1.1\r\nHost: es\r\nContent-Type: application/json\r\nContent-Length: " +
			strconv.Itoa(len(body)) + "\r\n\r\n" + string(body))
		if status, _ := a.ask(t); string(status) != "200" {
			t.Fatalf("bulk answered %s", status)
		}
	}
	return es
}

// TestChainsAllocateNothing counts all allocations of the process while a request goes from socket to socket: the
// server, the chain of filters and the metrics.
func TestChainsAllocateNothing(t *testing.T) {
	if raced {
		t.Skip("sync.Pool forgets on purpose under the race detector")
	}
	f := func(name, text, request, wantCache string) {
		t.Run(name, func(t *testing.T) {
			a := newAsker(t, serve(t, text, cluster(t).URL()), request)
			for range 100 {
				a.ask(t)
			}
			status, cache := a.ask(t)
			if string(status) != "200" || !bytes.HasPrefix(cache, []byte(wantCache)) {
				t.Fatalf("got %s with Cache-Status %q", status, cache)
			}
			if n := testing.AllocsPerRun(2000, func() { a.ask(t) }); n > 0 {
				t.Errorf("%v allocations a request", n)
			}
		})
	}
	f("echo", flowstest.Main("{echo: {message: hello}}"), "GET / HTTP/1.1\r\nHost: weir.test\r\n\r\n", "")
	f("hit", flowstest.Main("{get_cache: {}}, {elasticsearch: {elasticsearch: up}}, {set_cache: {cache_ttl: 1h}}"),
		"GET /shop/_search?q=service:cart HTTP/1.1\r\nHost: weir.test\r\n\r\n", "weir; hit")
	f("short hit", flowstest.Main("{cache: {ttl: 1h}}, {elasticsearch: {elasticsearch: up}}"), search(), "weir; hit")
}
