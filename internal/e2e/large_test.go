package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

// What a large answer and a large bulk are here. Nodes take bodies of 100 MB (http.max_content_length).
const (
	largeAnswer = 250 << 20
	largeBulk   = 99 << 20
	atOnce      = 20
	slowSenders = 100
	slowBulk    = 50 << 20
	// residentLimit bounds the gateway's memory, its code included, while twenty large bodies pass at once. A gateway that
	// kept bodies would need 5 GB for the answers and 2 GB for the bulks.
	residentLimit = 128 << 20
)

// Large bodies pass in pieces: what the gateway needs does not grow with them (valyala/fasthttp#1318, valyala/fasthttp#622).
func TestLargeBodiesPassInBoundedMemory(t *testing.T) {
	node := newLargeNode(t)
	s := newPlainSite(t, "http://"+node.addr, "")
	s.build = buildUnraced
	g := s.start()
	f := func(name, request string, body, answer int64) {
		t.Run(name, func(t *testing.T) {
			before := residentMemory(t, g.cmd.Process.Pid, "VmRSS")
			began := time.Now()
			var all sync.WaitGroup
			// Nobody reads or writes more than a first piece before all of them are under way.
			var underWay sync.WaitGroup
			underWay.Add(atOnce)
			for range atOnce {
				all.Go(func() {
					if err := passLarge(g.addr, request, body, answer, func() {
						underWay.Done()
						underWay.Wait()
					}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			peak := residentMemory(t, g.cmd.Process.Pid, "VmHWM")
			t.Logf("%d at once in %s: resident memory %d MB before, at most %d MB", atOnce, time.Since(began).Round(time.Millisecond), before>>20, peak>>20)
			if peak > residentLimit {
				t.Errorf("the gateway took %d MB, want at most %d MB", peak>>20, residentLimit>>20)
			}
		})
	}
	f("answers", "GET /i/_search HTTP/1.1\r\nHost: weir.test\r\n\r\n", 0, largeAnswer)
	f("chunked answers", "GET /i/_search?chunked HTTP/1.1\r\nHost: weir.test\r\n\r\n", 0, largeAnswer)
	f("bulks", fmt.Sprintf("POST /_bulk HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n", largeBulk), largeBulk, 2)
	if n := node.read.Load(); n != atOnce*largeBulk {
		t.Errorf("the node read %d bytes of bulks, want %d", n, atOnce*largeBulk)
	}
	awaitLittleMemory(t, g)
}

// restingLimit bounds the gateway's memory some time after bodies have passed.
const restingLimit = 64 << 20

// awaitLittleMemory waits until the gateway has given back what it took for bodies. The runtime looks for what is not used any
// more every two minutes when there is little to do, so it is told to.
func awaitLittleMemory(t *testing.T, g *gateway) {
	t.Helper()
	until(t, 30*time.Second, func(ctx context.Context) error {
		if n := g.metrics().sum("weir_body_budget_used_bytes"); n != 0 { // a client has its answer before the gateway has done with the body
			return fmt.Errorf("%v bytes of the budget are still taken", n)
		}
		if _, err := g.ask(ctx, http.MethodGet, g.adminURL+"/debug/pprof/heap?gc=1", ""); err != nil {
			return err
		}
		if rests := residentMemory(t, g.cmd.Process.Pid, "VmRSS"); rests > restingLimit {
			return fmt.Errorf("the gateway keeps %d MB, want at most %d MB", rests>>20, restingLimit>>20)
		}
		return nil
	})
}

// Many shippers send bulks so slowly that all of them are under way at the same time (valyala/fasthttp#622, mosn/mosn#1108).
// Where nothing has to read the bodies they pass, and others are answered beside them. Where something does, those for which
// there is memory pass, and the others are told to come again.
func TestSlowSendersOfLargeBodies(t *testing.T) {
	const budget = 128 << 20
	f := func(name, filters string, limit int64, some bool) {
		t.Run(name, func(t *testing.T) {
			node := newLargeNode(t)
			s := newPlainSite(t, "http://"+node.addr, filters, add(fmt.Sprintf("limits: {bodies: %d}\n", budget)))
			s.build = buildUnraced
			g := s.start()
			// A tenth is sent by all of them before one goes on.
			pace := meeting{expected: slowSenders, met: func() {
				if a, err := g.ask(t.Context(), http.MethodGet, g.url+"/", ""); err != nil || a.status != http.StatusOK {
					t.Errorf("a quick request beside the bulks: status %d %s, %v", a.status, a.body, err)
				}
			}}
			pace.turn.L = &pace.mu
			var passed, refused atomic.Int64
			var all sync.WaitGroup
			for range slowSenders {
				all.Go(func() {
					defer pace.leave()
					status, text, err := sendSlowly(g.addr, slowBulk, &pace)
					switch {
					case err == nil && status == http.StatusOK:
						passed.Add(1)
					case err == nil && status == http.StatusTooManyRequests && strings.Contains(text, "circuit_breaking_exception"):
						refused.Add(1)
					default:
						t.Errorf("status %d %s, %v", status, text, err)
					}
				})
			}
			all.Wait()
			peak := residentMemory(t, g.cmd.Process.Pid, "VmHWM")
			t.Logf("%d passed, %d were refused, resident memory at most %d MB", passed.Load(), refused.Load(), peak>>20)
			if peak > limit {
				t.Errorf("the gateway took %d MB, want at most %d MB", peak>>20, limit>>20)
			}
			if passed.Load() == 0 || (refused.Load() > 0) != some {
				t.Errorf("%d passed, %d were refused; some are to be: %v", passed.Load(), refused.Load(), some)
			}
			if n := node.read.Load(); n != passed.Load()*slowBulk {
				t.Errorf("the node read %d bytes, want %d", n, passed.Load()*slowBulk)
			}
			awaitLittleMemory(t, g)
		})
	}
	f("passed on", "", residentLimit, false)
	f("read", "      - rate_limit: {limits: [{key: [index], unit: bulk_docs, rate: 1000000000/s, when: {api: bulk}}]}\n", 4*budget, true)
}

// sendSlowly sends a bulk of so many bytes, in ten parts before each of which it meets the others, and reads the answer.
func sendSlowly(addr string, size int, pace *meeting) (status int, text string, err error) {
	c, err := dialWire(addr)
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "POST /i/_bulk HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n", size); err != nil {
		return 0, "", err
	}
	const line = "{\"create\":{}}\n{\"n\":12345678901}\n" // 32 bytes
	part := bytes.Repeat([]byte(line), size/10/len(line))
	for sent := 0; sent < size; {
		pace.meet()
		n, err := c.Write(part[:min(len(part), size-sent)])
		if err != nil {
			return 0, "", fmt.Errorf("after %d of %d bytes: %w", sent+n, size, err)
		}
		sent += n
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// A meeting lets nobody go on before all have come.
type meeting struct {
	met func() // is called by the last to come

	mu       sync.Mutex // guards the fields below
	turn     sync.Cond
	expected int
	here     int
	round    int
}

func (m *meeting) meet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.here++
	for round := m.round; round == m.round; {
		if m.here < m.expected {
			m.turn.Wait()
			continue
		}
		m.goOn()
	}
}

// leave is for those who come no more.
func (m *meeting) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expected--
	if m.here > 0 && m.here == m.expected {
		m.goOn()
	}
}

func (m *meeting) goOn() {
	m.met()
	m.here = 0
	m.round++
	m.turn.Broadcast()
}

// passLarge sends a request with a body of so many bytes and reads an answer of so many. meet is called when the first
// piece has been sent, or read if there is no body.
func passLarge(addr, request string, body, answer int64, meet func()) error {
	met := sync.OnceFunc(meet)
	defer met() // nobody waits for one that failed
	c, err := dialWire(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	piece := bytes.Repeat([]byte("{\"create\":{}}\n{\"n\":1}\n{\"n\":\"a\"}\n"), 2048) // 66 kB
	for sent := int64(0); sent < body; {
		n, err := c.Write(piece[:min(int64(len(piece)), body-sent)])
		if err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", sent, body, err)
		}
		sent += int64(n)
		met()
	}
	resp, err := http.ReadResponse(c.r, &http.Request{Method: http.MethodGet})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("status %d: %.300s", resp.StatusCode, text)
	}
	met()
	got, err := io.Copy(io.Discard, resp.Body)
	if err != nil || got != answer {
		return fmt.Errorf("the answer has %d bytes, want %d: %w", got, answer, err)
	}
	return nil
}

// A largeNode answers searches with many bytes and reads what it is sent.
type largeNode struct {
	addr string
	read atomic.Int64 // bytes of request bodies
}

func newLargeNode(t *testing.T) *largeNode {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &largeNode{addr: l.Addr().String()}
	server := &http.Server{Handler: http.HandlerFunc(n.serve)}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	return n
}

func (n *largeNode) serve(w http.ResponseWriter, req *http.Request) {
	read, err := io.Copy(io.Discard, req.Body)
	n.read.Add(read)
	w.Header().Set("Content-Type", "application/json")
	switch {
	case err != nil:
		return
	case req.URL.Path == "/i/_search":
		if req.URL.RawQuery != "chunked" {
			w.Header().Set("Content-Length", strconv.Itoa(largeAnswer))
		}
		piece := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
		for left := largeAnswer; left > 0; left -= len(piece) {
			if _, err := w.Write(piece[:min(left, len(piece))]); err != nil {
				return
			}
		}
	case req.URL.Path == "/":
		_, _ = io.WriteString(w, `{"cluster_uuid":"large","version":{"number":"7.17.28"}}`)
	case req.URL.Path == "/_nodes/http":
		fmt.Fprintf(w, `{"nodes":{"n":{"name":"n","roles":["data"],"http":{"publish_address":"%s"}}}}`, n.addr)
	default:
		_, _ = io.WriteString(w, "{}")
	}
}

// residentMemory reads a line of a process's status (VmRSS, VmHWM), in bytes.
func residentMemory(t *testing.T, pid int, line string) int64 {
	t.Helper()
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("resident memory is read from Linux's /proc: %v", err)
	}
	defer status.Close()
	lines := bufio.NewScanner(status)
	for lines.Scan() {
		var kb int64
		if name, value, _ := strings.Cut(lines.Text(), ":"); name == line {
			if _, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", &kb); err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no line %s in the status of process %d", line, pid)
	return 0
}

// TestLargeBodiesOfARealNode sends one bulk of nearly the size that a node takes, reads one answer of 250 MB, and lets the
// node fetch 20,000 documents from itself through the gateway (elastic/elasticsearch#22913). It also has the only node here
// that answers to other origins.
func TestLargeBodiesOfARealNode(t *testing.T) {
	c := searchtest.Own(t, searchnode.Options{
		Engine: searchnode.Elasticsearch7, Nodes: 1, Heap: "2g",
		Settings: map[string]string{
			"reindex.remote.whitelist": "127.0.0.1:*", "http.cors.enabled": "true", "http.cors.allow-origin": "http://dash.test", "http.cors.allow-headers": "X-Own,Content-Type",
		},
	})
	cluster := c.URLs()[0]
	client := newClient(t)
	g := newPlainSite(t, cluster, "").start()
	awaitNodes(t, g, 1)
	create := func(index string) {
		must(t, client, http.MethodPut, cluster+"/"+index, `{"settings":{"number_of_shards":1,"number_of_replicas":0,"refresh_interval":-1},"mappings":{"enabled":false}}`)
	}

	// Preflights and origins are for the node to judge (grafana/grafana#13328).
	t.Run("origins", func(t *testing.T) {
		direct, through := &side{letter: "a", addr: strings.TrimPrefix(cluster, "http://")}, &side{letter: "a", addr: g.addr}
		t.Cleanup(func() {
			direct.hangUp()
			through.hangUp()
		})
		for _, origin := range []string{"http://dash.test", "http://other.test", "null", ""} {
			p := probe{name: "origin " + origin, raw: []string{
				request("OPTIONS", "/none/_search", "", "Origin: "+origin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: X-Own"),
				request("GET", "/none", "", "Origin: "+origin), request("POST", "/none/_search", matchAll, "Origin: "+origin),
			}}
			want, got := undated(direct.play(p).text(p)), undated(through.play(p).text(p))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-node +gateway):\n%s", p.name, diff)
			}
			if allowed := strings.Contains(strings.ToLower(want), "access-control-allow-origin: http://dash.test"); allowed != (origin == "http://dash.test") {
				t.Errorf("origin %q: allowed is %t: %s", origin, allowed, want)
			}
		}
		// The node refuses other origins, of which it need not learn.
		untold := newPlainSite(t, cluster, "      - set_request_header: {remove: [Origin]}\n").start()
		awaitNodes(t, untold, 1)
		for via, want := range map[*gateway]int{g: http.StatusForbidden, untold: http.StatusOK} {
			if a := via.get("/", "Origin: http://other.test"); a.status != want {
				t.Errorf("another origin: status %d %s, want %d", a.status, a.body, want)
			}
		}
	})

	t.Run("reindex from remote", func(t *testing.T) {
		const documents = 20_000
		g := newPlainSite(t, cluster, "      - mount: {path: /search/es}\n").start()
		awaitNodes(t, g, 1)
		create("remote-source")
		var bulk strings.Builder
		for n := range documents {
			fmt.Fprintf(&bulk, "{\"index\":{\"_id\":\"%d\"}}\n{\"n\":%d}\n", n, n)
		}
		must(t, client, http.MethodPost, cluster+"/remote-source/_bulk?refresh=true", bulk.String())
		create("remote-copy")
		before := g.metrics().sum("weir_http_requests_total")
		a := must(t, client, http.MethodPost, cluster+"/_reindex?refresh=true",
			fmt.Sprintf(`{"source":{"remote":{"host":"%s"},"index":"remote-source","size":2000},"dest":{"index":"remote-copy"}}`, g.url+"/search/es"))
		var done struct {
			Created  int
			Failures []any
		}
		if err := json.Unmarshal(a.body, &done); err != nil {
			t.Fatal(err)
		}
		// A search, ten scrolls, and the end of the scroll, at least, and nothing beside the path.
		m := g.metrics()
		if n := m.sum("weir_http_requests_total") - before; done.Created != documents || len(done.Failures) > 0 || n < 12 {
			t.Errorf("%d documents were created by %v requests, want %d: %s", done.Created, n, documents, a.body)
		}
		if n := m.sum("weir_http_requests_total", `outcome="failed"`) + m.sum("weir_http_requests_total", `status="4xx"`); n > 0 {
			t.Errorf("%v requests did not go well", n)
		}
		a = must(t, client, http.MethodGet, cluster+"/_nodes/stats/indices/search?filter_path=nodes.*.indices.search.open_contexts", "")
		if !strings.Contains(string(a.body), `"open_contexts":0`) {
			t.Errorf("the scroll was not ended: %s", a.body)
		}
	})

	t.Run("bulk of 99 MB and answer of 250 MB", func(t *testing.T) {
		create("large")
		const document = 1 << 20
		source := `{"text":"` + strings.Repeat("0123456789abcdef", document/16) + `"}`
		var bulk bytes.Buffer
		n := 0
		for bulk.Len()+len(source)+100 < largeBulk {
			fmt.Fprintf(&bulk, "{\"index\":{\"_id\":\"%d\"}}\n%s\n", n, source)
			n++
		}
		a, err := g.ask(t.Context(), http.MethodPost, g.url+"/large/_bulk?refresh=true&filter_path=errors,items.*.status", bulk.String())
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Count(a.body, []byte(`"status":201`)); a.status != http.StatusOK || got != n {
			t.Fatalf("a bulk of %d bytes: status %d, %d of %d documents: %.500s", bulk.Len(), a.status, got, n, a.body)
		}
		body := `{"docs":[` + strings.Repeat(`{"_index":"large","_id":"7"},`, 250) + `{"_index":"large","_id":"7"}]}`
		direct := sumOf(t, client, cluster+"/_mget", body)
		through := sumOf(t, client, g.url+"/_mget", body)
		if direct != through || direct.bytes < largeAnswer {
			t.Errorf("the answer is %v through the gateway, %v from the node, want the same of %d bytes and more", through, direct, largeAnswer)
		}
	})
}

// A bodySum is what is known of a body that is too long to be kept.
type bodySum struct {
	bytes int64
	sum   string
}

// sumOf posts a request and sums up the answer.
func sumOf(t *testing.T, client *http.Client, url, body string) bodySum {
	t.Helper()
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("POST %s: status %d, %d bytes: %v", url, resp.StatusCode, n, err)
	}
	return bodySum{n, fmt.Sprintf("%x", sum.Sum(nil))}
}

// undated is a text of messages without the values of their Date fields, which differ from second to second.
func undated(text string) string { return dateField.ReplaceAllString(text, "$1") }

var dateField = regexp.MustCompile(`(?im)^(date: ).*$`)
