package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/elastic/estest"
)

func TestClassicFile(t *testing.T) {
	testClassicFile(t, estest.New(t, estest.Options{}).URL())
}

// testClassicFile runs the classic file in front of a cluster.
func testClassicFile(t *testing.T, cluster string) {
	client := newClient(t)
	deleteRecords(t, client, cluster)
	fill(t, client, cluster, "medcl", "others")
	packets := listenStatsD(t)
	g := newSite(t, cluster, toStatsD(packets.addr)).start()

	t.Run("repeated search is a hit", func(t *testing.T) { testHit(t, g) })
	t.Run("fourth search of a second is refused", func(t *testing.T) { testLimit(t, g) })
	t.Run("requests with CACHE are logged", func(t *testing.T) { testRecords(t, g, cluster) })
	t.Run("statsd", func(t *testing.T) { packets.check(t, "gateway.", "gateway.http_requests") })
}

// fill creates indices with some documents.
func fill(tb testing.TB, client *http.Client, cluster string, indices ...string) {
	tb.Helper()
	for _, index := range indices {
		if _, err := ask(tb.Context(), client, http.MethodDelete, cluster+"/"+index, ""); err != nil {
			tb.Fatal(err)
		}
		must(tb, client, http.MethodPut, cluster+"/"+index, `{"settings":{"number_of_shards":1,"number_of_replicas":0}}`)
		var bulk strings.Builder
		for i := range 20 {
			fmt.Fprintf(&bulk, "{\"index\":{\"_id\":\"%d\"}}\n{\"n\":%d,\"text\":\"é \\u00e9 %d\",\"big\":9007199254740993}\n", i, i, i)
		}
		must(tb, client, http.MethodPost, cluster+"/"+index+"/_bulk?refresh=true", bulk.String())
	}
}

func testHit(t *testing.T, g *gateway) {
	first := g.get("/medcl/_search")
	if got := first.header.Get("Cache-Status"); first.status != http.StatusOK || !strings.HasPrefix(got, "weir; fwd=") {
		t.Fatalf("first search: status %d, Cache-Status %q, want 200 and a miss: %s", first.status, got, first.body)
	}
	if !bytes.Contains(first.body, []byte("9007199254740993")) {
		t.Errorf("answer lost the digits of a long number: %s", first.body)
	}
	for range 3 { // hits cost the limit of three a second nothing
		again := g.get("/medcl/_search")
		if got := again.header.Get("Cache-Status"); again.status != http.StatusOK || !strings.HasPrefix(got, "weir; hit") {
			t.Fatalf("repeated search: status %d, Cache-Status %q, want 200 and a hit", again.status, got)
		}
		if !bytes.Equal(first.body, again.body) {
			t.Errorf("hit has other bytes:\n%s\nwant\n%s", again.body, first.body)
		}
	}
}

// testLimit sends different searches until four of them came within the time in which the limit of three a second does not
// grow by one: a slow machine may need more than one attempt.
func testLimit(t *testing.T, g *gateway) {
	four := func(ctx context.Context, index string) (statuses [4]int, last answer, took time.Duration, err error) {
		select {
		case <-time.After(1200 * time.Millisecond): // the limit is at rest again, whatever came before
		case <-ctx.Done():
			return statuses, last, 0, ctx.Err()
		}
		began := time.Now()
		for i := range statuses {
			last, err = g.ask(ctx, http.MethodGet, fmt.Sprintf("%s/%s/_search?preference=%d", g.url, index, time.Now().UnixNano()), "")
			if err != nil {
				return statuses, last, 0, err
			}
			statuses[i] = last.status
		}
		return statuses, last, time.Since(began), nil
	}
	until(t, time.Minute, func(ctx context.Context) error {
		got, last, took, err := four(ctx, "medcl")
		switch {
		case err != nil:
			return err
		case got == [4]int{200, 200, 200, 429}:
			if want := "Hey, You just reached our request limit!"; !bytes.Contains(last.body, []byte(want)) || last.header.Get("Retry-After") == "" {
				t.Errorf("refusal %s with Retry-After %q, want the message %q", last.body, last.header.Get("Retry-After"), want)
			}
			return nil
		case got == [4]int{200, 200, 200, 200} && took < 300*time.Millisecond:
			t.Fatalf("four searches within %s were all answered", took)
		}
		return fmt.Errorf("statuses are %v after %s", got, took)
	})
	if got, last, _, err := four(t.Context(), "others"); err != nil || got != [4]int{200, 200, 200, 200} {
		t.Errorf("four searches of another index: %v, %v: %s", got, err, last.body)
	}
}

// testRecords sends many requests at once, of which half ask for a record.
func testRecords(t *testing.T, g *gateway, cluster string) {
	const requests, senders = 400, 8
	mark := func(n int) string { return fmt.Sprintf("record-%d", n) }
	statuses := make([]int, requests)
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for n := s; n < requests; n += senders {
				path := "/others/_search?preference=" + mark(n) // one in a while is refused, and logged as such
				if n%5 == 0 {
					path = "/others/_doc/" + fmt.Sprint(n%40) + "?preference=" + mark(n) // half of them do not exist
				}
				cached := "CACHE: true"
				if n%2 == 1 {
					cached = "X-Other: true"
				}
				a, err := g.ask(t.Context(), http.MethodGet, g.url+path, "", cached)
				if err != nil {
					t.Error(err)
					return
				}
				statuses[n] = a.status
			}
		})
	}
	all.Wait()
	var marks map[string][]record
	until(t, time.Minute, func(ctx context.Context) (err error) {
		if marks, err = readRecords(ctx, g.client, cluster); err != nil {
			return err
		}
		if have := len(marks); have < requests/2 {
			return fmt.Errorf("%d of %d records have come", have, requests/2)
		}
		return nil
	})
	for n := range requests {
		got := marks[mark(n)]
		switch {
		case n%2 == 1 && len(got) > 0:
			t.Errorf("request %d did not ask for a record and has %d", n, len(got))
		case n%2 == 0 && len(got) != 1:
			t.Errorf("request %d has %d records, want one", n, len(got))
		case n%2 == 0 && got[0].HTTP.Response.Status != statuses[n]:
			t.Errorf("record of request %d has status %d, the client saw %d", n, got[0].HTTP.Response.Status, statuses[n])
		}
	}
	if got := g.metrics().sum("weir_queue_put_records_total", `queue="request_logging"`); got != requests/2 {
		t.Errorf("%v records were put into the queue, want %d", got, requests/2)
	}
}

// statsD is a server that keeps the lines that it is sent.
type statsD struct {
	addr  *net.UDPAddr
	mu    sync.Mutex
	lines []string
}

// listenStatsD starts a StatsD server for a test.
func listenStatsD(tb testing.TB) *statsD {
	tb.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		tb.Fatal(err)
	}
	s := &statsD{addr: c.LocalAddr().(*net.UDPAddr)}
	var reader sync.WaitGroup
	reader.Go(func() {
		packet := make([]byte, 64<<10)
		for {
			n, err := c.Read(packet)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.lines = append(s.lines, strings.Split(strings.TrimSuffix(string(packet[:n]), "\n"), "\n")...)
			s.mu.Unlock()
		}
	})
	tb.Cleanup(func() {
		c.Close()
		reader.Wait()
	})
	return s
}

// check waits for a line that begins with want and checks that all lines begin with the namespace.
func (s *statsD) check(t *testing.T, namespace, want string) {
	until(t, 30*time.Second, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		found := false
		for _, l := range s.lines {
			if !strings.HasPrefix(l, namespace) {
				t.Fatalf("line %q does not begin with %q", l, namespace)
			}
			found = found || strings.HasPrefix(l, want)
		}
		if !found {
			return fmt.Errorf("%d lines have come, none begins with %s", len(s.lines), want)
		}
		return nil
	})
}

func TestClassicFileWithEntryOnOtherRouter(t *testing.T) {
	g := newSite(t, estest.New(t, estest.Options{}).URL(), swap("    router: default\n", "    router: not_found\n")).start()
	for _, path := range []string{"/", "/medcl/_search", "/_bulk"} {
		if a := g.get(path); a.status != http.StatusOK || string(a.body) != `{"message":"not found"}` {
			t.Errorf("GET %s: %d %s, want the echo", path, a.status, a.body)
		}
	}
}

const (
	clusterOn   = "elasticsearch:\n  - name: default\n    enabled: true\n"
	pipelineOn  = "  - name: pipeline\n    enabled: true\n"
	switchedOff = "cluster [default] is switched off"
)

func TestClassicFileWithClusterSwitchedOff(t *testing.T) {
	c := estest.New(t, estest.Options{})
	g := newSite(t, c.URL(), swap(clusterOn, strings.Replace(clusterOn, "true", "false", 1))).start()
	a := g.get("/medcl/_search", "CACHE: true")
	var failed struct {
		Status int
		Error  struct{ Type, Reason string }
	}
	if err := json.Unmarshal(a.body, &failed); err != nil {
		t.Fatalf("answer %s: %v", a.body, err)
	}
	if a.status != http.StatusServiceUnavailable || failed.Status != a.status || !strings.Contains(failed.Error.Reason, switchedOff) {
		t.Errorf("answer with %d is %s, want 503 and %q", a.status, a.body, switchedOff)
	}
	g.stop()
	if calls := c.Calls(); len(calls) > 0 {
		t.Errorf("a cluster that is switched off was called: %v", calls)
	}
}

func TestClassicFileWithPipelineSwitchedOff(t *testing.T) {
	c := estest.New(t, estest.Options{})
	client := newClient(t)
	fill(t, client, c.URL(), "others")
	s := newSite(t, c.URL())
	on := s.text
	s.text = swap(pipelineOn, strings.Replace(pipelineOn, "true", "false", 1))(t, on)
	s.write("gateway.yml", s.text)
	g := s.start()
	if a := g.get("/others/_search?preference=kept", "CACHE: true"); a.status != http.StatusOK {
		t.Errorf("search is answered with %d: %s", a.status, a.body)
	}
	g.stop()
	if n := c.Count("*_bulk") - 1; n != 0 { // fill sent one
		t.Errorf("a pipeline that is switched off sent %d bulk requests", n)
	}
	// What it would have sent is kept for the day when it is switched on.
	s.write("gateway.yml", on)
	s.start()
	until(t, 30*time.Second, func(ctx context.Context) error {
		marks, err := readRecords(ctx, client, c.URL())
		if err == nil && len(marks["kept"]) != 1 {
			err = errors.New("the record has not come")
		}
		return err
	})
}
