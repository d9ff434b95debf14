package upstream_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/obs"
)

// A wish is what a caller asks for; everything about it follows from its id.
type wish struct {
	id             string
	method, target string
	body           []byte
	chunked        bool
	unsafe         bool // must reach a node once at most
	status         int
	answer         []byte
	coding         string
}

func draw(r *rand.Rand, id string) wish {
	pad := func(n int) string { return strings.Repeat(id+" ", n/len(id)) }
	large := 1<<20 + 1000*r.IntN(200) // more than is kept for another node, or buffered of an answer
	w := wish{id: id, method: "POST", target: "/i/_search", status: 200}
	w.body = fmt.Appendf(nil, `{"query":{"term":{"id":%q}}}`, id)
	size := 100
	switch r.IntN(40) % 18 {
	default:
		size = 1 + r.IntN(20_000)
	case 3:
		w.method, w.body = "GET", nil
	case 4:
		w.method, w.target, w.unsafe = "PUT", "/_bulk", true
		w.body = fmt.Appendf(nil, "{\"index\":{\"_index\":\"i\"}}\n{\"id\":%q}\n", id)
	case 5:
		w.target, w.unsafe, w.status = "/i/_doc", true, 201
	case 6: // each action has an id: it may run twice
		w.target = "/_bulk"
		w.body = fmt.Appendf(nil, "{\"index\":{\"_index\":\"i\",\"_id\":\"1\"}}\n{\"id\":%q}\n", id)
	case 7:
		w.method, w.target, w.body, w.status = "HEAD", "/i/_doc/1", nil, []int{200, 404}[r.IntN(2)]
	case 8:
		w.method, w.target, w.body, w.status, size = "GET", "/i/_doc/1", nil, []int{204, 304}[r.IntN(2)], 0
	case 9:
		w.target, w.unsafe = "/_bulk", true
		w.body = fmt.Appendf(nil, "{\"index\":{\"_index\":\"i\"}}\n{\"pad\":\"%s\"}\n", pad(large))
	case 10:
		size = large
	case 11:
		w.coding = "gzip"
	}
	w.chunked = len(w.body) > 0 && r.IntN(3) == 0
	if size > 0 {
		w.answer = fmt.Appendf(nil, `{"id":"%s","pad":"%s"}`, id, pad(size))
	}
	if w.coding != "" {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(w.answer) // a Buffer takes everything
		_ = z.Close()
		w.answer = b.Bytes()
	}
	return w
}

const surplus = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nfor somebody"

// mishap is the fault, drawn from r, of a node that is asked for w.
func mishap(r *rand.Rand, w *wish) *estest.Fault {
	f := &estest.Fault{Status: w.status, Body: w.answer, Header: []string{"X-Id: " + w.id}}
	if w.answer == nil {
		f.Body = []byte{}
	}
	if w.coding != "" {
		f.Header = append(f.Header, "Content-Encoding: "+w.coding)
	}
	if r.IntN(3) == 0 {
		f.Chunk = len(f.Body)/10 + r.IntN(100) + 1
	}
	if r.IntN(8) == 0 {
		f.Interim = []int{100, 103}
	}
	if r.IntN(4) > 0 {
		return f
	}
	hasBody := w.method != "HEAD" && len(f.Body) > 0
	switch r.IntN(9) {
	case 0:
		f.Cut = estest.ResetBeforeBody
	case 1:
		f.Cut = estest.ResetAfterRequest
	case 2:
		f.Cut = estest.CloseAfterRequest
	case 3:
		f.Cut = estest.CloseAfterAnswer
	case 4:
		f.Hold = make(chan struct{}) // for ever
	case 5:
		f.Early = true
	case 6:
		f.Raw = []byte([]string{"", "HTTP/1.1 200 OK\r\nContent-Le", "\x15\x03\x01\x00\x02", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"}[r.IntN(4)])
		if len(f.Raw) == 0 {
			f.Raw, f.Status, f.Body = nil, []int{502, 503, 504, 429}[r.IntN(4)], nil
		}
	case 7:
		if hasBody {
			f.Missing = 1 + r.IntN(len(f.Body))
		}
	case 8:
		if hasBody && f.Chunk == 0 {
			if r.IntN(2) == 0 {
				f.LengthOff = 1 + r.IntN(100)
			} else if len(f.Body) < 3000 {
				f.Body, f.LengthOff = append(bytes.Clone(f.Body), surplus...), -len(surplus)
			}
		}
	}
	return f
}

func (w *wish) send(c net.Conn) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: gw.test\r\nContent-Type: application/x-ndjson\r\nX-Id: %s\r\n", w.method, w.target, w.id)
	switch {
	case w.chunked:
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for rest := w.body; len(rest) > 0; {
			n := min(len(rest), 1+len(w.body)/3)
			fmt.Fprintf(&b, "%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		b.WriteString("0\r\n\r\n")
	case w.body != nil:
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(w.body), w.body)
	default:
		b.WriteString("\r\n")
	}
	_, err := c.Write(b.Bytes())
	return err
}

// A tally counts what became of the wishes.
type tally struct{ good, gateway, node, cut atomic.Int64 }

// take reads the answer to w and judges it. It returns false if the connection is over.
func (n *tally) take(t *testing.T, w *wish, r *bufio.Reader) bool {
	resp, err := http.ReadResponse(r, &http.Request{Method: w.method})
	if err != nil {
		n.cut.Add(1)
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	whole := err == nil
	if bytes.Contains(body, []byte("somebody")) {
		t.Errorf("%s: got what was for somebody else", w.id)
	}
	switch id := resp.Header.Get("X-Id"); {
	case resp.Header.Get("X-Weir-Error") != "":
		n.gateway.Add(1)
		if resp.StatusCode != 502 && resp.StatusCode != 503 && resp.StatusCode != 504 && resp.StatusCode != 429 {
			t.Errorf("%s: the gateway answered %d %s", w.id, resp.StatusCode, body)
		}
	case id != w.id:
		t.Errorf("%s: got the answer of %q: %d %.200s", w.id, id, resp.StatusCode, body)
	case resp.StatusCode == 502 || resp.StatusCode == 503 || resp.StatusCode == 504 || resp.StatusCode == 429:
		n.node.Add(1)
	case resp.StatusCode != w.status:
		t.Errorf("%s: status %d, want %d", w.id, resp.StatusCode, w.status)
	case !whole && !bytes.HasPrefix(w.answer, body):
		t.Errorf("%s: the part of an answer that came is wrong", w.id)
	case !whole:
		n.cut.Add(1)
	case w.method != "HEAD" && !bytes.Equal(body, w.answer):
		t.Errorf("%s: %d bytes %.100q are not the answer of %d bytes", w.id, len(body), body, len(w.answer))
	default:
		n.good.Add(1)
	}
	return whole && !resp.Close
}

// sum adds the values of a metric.
func sum(t *testing.T, m *obs.Metrics, name string) float64 {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, v := range f.GetMetric() {
				total += v.GetGauge().GetValue() + v.GetCounter().GetValue()
			}
		}
	}
	return total
}

// TestMixedRequestsWhileNodesFail sends 2,000 requests of many kinds while a quarter of the exchanges with nodes goes
// wrong and nodes are killed and started again: no answer may reach the wrong caller or be wrong, no unsafe write may be
// sent twice, and in the end nothing may be left of it all. WEIR_SEED repeats a run, as far as time allows.
func TestMixedRequestsWhileNodesFail(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("WEIR_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("WEIR_SEED=%d", seed)
	const callers, each = 10, 200
	es := estest.New(t, estest.Options{Nodes: 3})
	t.Cleanup(func() {
		for _, n := range es.Nodes() {
			for end := time.Now().Add(10 * time.Second); ; {
				open, _ := n.Conns()
				if open == 0 {
					break
				}
				if time.Now().After(end) {
					t.Errorf("%d connections to a node are open after the gateway has ended", open)
					break
				}
				<-time.After(time.Millisecond)
			}
		}
	})
	var wishes sync.Map // by id
	var mu sync.Mutex
	heard := map[string]int{} // how often a node saw the head of a wish
	ran := map[string]int{}   // how often one did not refuse it
	es.Script(func(c *estest.Call) *estest.Fault {
		id := c.Header.Get("X-Id")
		v, ok := wishes.Load(id)
		if !ok {
			return nil // the gateway's own
		}
		mu.Lock()
		heard[id]++
		h := fnv.New64()
		h.Write([]byte(id))
		w := v.(wish)
		fault := mishap(rand.New(rand.NewPCG(seed^h.Sum64(), uint64(heard[id]))), &w)
		if fault.Status != 429 {
			ran[id]++
		}
		mu.Unlock()
		return fault
	})
	addr, metrics := gateway(t, endpoints(es.URLs()...), ", timeout: 300ms, timeouts: {idle: 200ms}")
	var n tally
	var sent atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			var c net.Conn
			var in *bufio.Reader
			for j := range each {
				w := draw(r, fmt.Sprintf("w%d-%d", i, j))
				wishes.Store(w.id, w)
				if c == nil {
					var err error
					if c, err = net.Dial("tcp", addr); err != nil {
						t.Error(err)
						return
					}
					in = bufio.NewReader(c)
				}
				_ = c.SetDeadline(time.Now().Add(30 * time.Second))
				_ = w.send(c) // an early answer may come although not all was taken
				if !n.take(t, &w, in) {
					c.Close()
					c = nil
				}
				if k := sent.Add(1); k%200 == 100 {
					node := es.Node(int(k/200) % 3)
					node.Stop()
					if err := node.Start(); err != nil {
						t.Error(err)
					}
				}
			}
			if c != nil {
				c.Close()
			}
		})
	}
	wg.Wait()
	t.Logf("%d good, %d refused by the gateway, %d by nodes, %d cut off", n.good.Load(), n.gateway.Load(), n.node.Load(), n.cut.Load())
	if n.good.Load() < callers*each*6/10 || n.gateway.Load() == 0 {
		t.Error("the mixture is not what it should be")
	}
	more := 0
	mu.Lock()
	for id, times := range heard {
		if times > 1 {
			more++
		}
		if v, _ := wishes.Load(id); v.(wish).unsafe && ran[id] > 1 {
			t.Errorf("%s, an unsafe write, ran %d times", id, ran[id])
		}
	}
	mu.Unlock()
	if more == 0 {
		t.Error("no read was repeated")
	}
	for _, c := range es.Calls() {
		if v, ok := wishes.Load(c.Header.Get("X-Id")); ok && c.Status() == v.(wish).status && len(c.Body) > 0 && !bytes.Equal(c.Body, v.(wish).body) {
			t.Errorf("%s: a node got %d bytes that are not the %d sent", c.Header.Get("X-Id"), len(c.Body), len(v.(wish).body))
		}
	}
	for _, name := range []string{"weir_upstream_connections_in_use", "weir_upstream_waiting"} {
		for end := time.Now().Add(10 * time.Second); sum(t, metrics, name) != 0; <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s is %v in the end", name, sum(t, metrics, name))
				break
			}
		}
	}
}
