package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/elastic/estest"
)

// queued is a configuration whose writes go through a queue. upstream is the cluster that they get to.
func queued(t *testing.T, upstream string) string {
	t.Helper()
	return fmt.Sprintf(`
path.data: %s
entry: [{name: main, router: default, network: {binding: "127.0.0.1:0"}}]
flow: [{name: writes, filter: [{queue: {queue_name: writes}}, {elasticsearch: {elasticsearch: up}}]}]
router: [{name: default, default_flow: writes}]
elasticsearch: [{name: up, endpoint: "%s"}]
pipeline: [{name: writes, queue_consumer: {input_queue: writes, flow: writes}}]
queue: {reserve: 0}
admin: {enabled: false}
limits: {drain: 10s}
`, dataOf(t), upstream)
}

// write sends a write with credentials and returns status and body of the answer.
func write(t *testing.T, addr, method, target, body string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.SetBasicAuth("somebody", "marked-secret")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// documents returns the bodies of the writes that reached c, but those that were answered with an error.
func documents(c *estest.Cluster) []string {
	var out []string
	for _, call := range c.Calls() {
		if call.Method == "PUT" && call.Status() < 300 {
			out = append(out, string(call.Body))
		}
	}
	return out
}

func wait(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// A logText keeps what is logged.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Writes in a queue that was renamed in the configuration are still there, and the log says so.
func TestQueueThatNothingReadsIsTold(t *testing.T) {
	es := estest.New(t, estest.Options{})
	es.Inject(estest.Fault{Method: "PUT", Status: http.StatusServiceUnavailable})
	text := queued(t, es.URL())
	log := new(logText)
	a, f := launch(t, text, slog.NewTextHandler(log, nil))
	t.Cleanup(func() { _ = a.Shutdown(context.Background()) }) // it delivers nothing
	if status, body := write(t, a.Addr("main"), "PUT", "/i/_doc/1", "{}"); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	const want = `msg="a queue holds records and nothing in the configuration reads it: name it as an input_queue, or see ` + "`weir queue`" + `" queue=writes folder=`
	if strings.Contains(log.String(), want) {
		t.Error("told of a queue that is read")
	}
	f.set(strings.NewReplacer("queue_name: writes", "queue_name: others", "input_queue: writes", "input_queue: others").Replace(text))
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), want) {
		t.Errorf("log:\n%s", log.String())
	}
}

// Writes are taken while the cluster is away, outlive the process and a reload, and arrive once, in their order.
func TestWritesOutliveTheCluster(t *testing.T) {
	one, two := estest.New(t, estest.Options{}), estest.New(t, estest.Options{})
	away := one.Inject(estest.Fault{Method: "PUT", Status: http.StatusServiceUnavailable})
	a, _ := launch(t, queued(t, one.URL()), slog.DiscardHandler)
	send := func(n int) {
		t.Helper()
		if status, body := write(t, a.Addr("main"), "PUT", "/i/_doc/1", fmt.Sprintf(`{"n":%d}`, n)); status != http.StatusCreated {
			t.Fatalf("%d %s", status, body)
		}
	}
	send(1)
	send(2)
	if status, body := write(t, a.Addr("main"), "GET", "/", ""); status != 200 || !strings.Contains(body, "cluster_uuid") {
		t.Errorf("a read: %d %s", status, body)
	}
	wait(t, "an attempt", func() bool { return one.Count("/i/*") > 0 })

	data := dataOf(t)
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte("marked-secret")) {
			t.Errorf("%s holds the caller's password", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := a.Shutdown(ctx); err != nil {
		t.Fatalf("shutdown while the cluster is away: %v", err)
	}
	var f *files
	a, f = start(t, queued(t, one.URL()))
	send(3)
	f.set(queued(t, two.URL()))
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	send(4)
	away.Remove()
	wait(t, "the last write", func() bool { return len(documents(one))+len(documents(two)) >= 4 })
	want := `{"n":1} {"n":2} {"n":3} {"n":4}`
	if got := strings.Join(documents(two), " "); got != want {
		t.Errorf("the cluster of the new configuration got %s, want %s", got, want)
	}
}

// A process that ends delivers what it can: the flows are there until the consumers have ended.
func TestShutdownDeliversQueuedWrites(t *testing.T) {
	c := estest.New(t, estest.Options{})
	hold := make(chan struct{})
	c.Inject(estest.Fault{Method: "PUT", Hold: hold, Times: 1})
	a, _ := launch(t, queued(t, c.URL()), slog.DiscardHandler)
	for n := range 5 {
		write(t, a.Addr("main"), "PUT", fmt.Sprintf("/i/_doc/%d", n), `{}`)
	}
	wait(t, "the first write", func() bool { return c.Count("/i/*") > 0 })
	ended := make(chan error, 1)
	go func() { ended <- a.Shutdown(context.WithoutCancel(t.Context())) }()
	wait(t, "the end", a.ending.Load)
	close(hold)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := len(documents(c)); n != 5 {
		t.Errorf("%d writes were delivered, want 5", n)
	}
}

// A node that hangs holds the end up until the drain time is over, and no longer. Pipelines that have nothing in hand end in order.
func TestShutdownEndsWithinTheDrainTime(t *testing.T) {
	c := estest.New(t, estest.Options{})
	hold := make(chan struct{})
	c.Inject(estest.Fault{Method: "PUT", Hold: hold})
	t.Cleanup(func() { close(hold) })
	text := strings.Replace(queued(t, c.URL()), "drain: 10s", "drain: 1s", 1)
	text = strings.Replace(text, "pipeline: [", "pipeline: [{name: idle, queue_consumer: {input_queue: others, flow: writes}}, ", 1)
	log := new(logText)
	a, _ := launch(t, text, slog.NewTextHandler(log, nil))
	if status, body := write(t, a.Addr("main"), "PUT", "/i/_doc/1", "{}"); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	wait(t, "the write", func() bool { return c.Count("/i/*") > 0 })
	began := time.Now()
	if err := a.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second { // four seconds for a machine that is busy
		t.Errorf("the end took %s", took)
	}
	const cut = "pipeline did not end in time"
	if text := log.String(); strings.Count(text, cut) != 1 || !strings.Contains(text, "stop pipeline writes") {
		t.Errorf("log:\n%s", text)
	}
}

// A limit above the filter queue is for what clients send: it has counted a write when it came, so that it neither counts nor holds
// up what comes out of the queue. One below it, or in another flow, is for what the cluster gets.
func TestLimitAboveTheQueueCountsWritesOnce(t *testing.T) {
	const three = "{rate_limit: {limits: [{key: [ip], rate: 1/h, burst: 3}]}}"
	f := func(filters, flow, outcome string) {
		t.Helper()
		c := estest.New(t, estest.Options{})
		log := new(logText)
		text := strings.NewReplacer(
			"{queue: {queue_name: writes}}, {elasticsearch: {elasticsearch: up}}]}", filters+"]},"+
				" {name: inner, filter: [{queue: {queue_name: writes}}, {elasticsearch: {elasticsearch: up}}]},"+
				" {name: outer, filter: ["+three+", {elasticsearch: {elasticsearch: up}}]}",
			"flow: writes}}]", "flow: "+flow+"}}]",
		).Replace(queued(t, c.URL()))
		a, _ := launch(t, text, slog.NewTextHandler(log, nil))
		t.Cleanup(func() { _ = a.Shutdown(context.Background()) })
		for n := range 3 {
			if status, body := write(t, a.Addr("main"), "PUT", fmt.Sprintf("/i/_doc/%d", n), "{}"); status != http.StatusCreated {
				t.Fatalf("%s: %d %s", filters, status, body)
			}
		}
		wait(t, filters+": three writes", func() bool { return len(documents(c)) == 3 })
		status, body := write(t, a.Addr("main"), "PUT", "/i/_doc/3", "{}")
		if outcome == "refused" && status != http.StatusTooManyRequests || outcome == "held up" && status != http.StatusCreated {
			t.Errorf("%s: the fourth: %d %s", filters, status, body)
		}
		if outcome == "held up" {
			wait(t, filters+": a refusal of what the queue holds", func() bool { return strings.Contains(log.String(), "cause=\"status 429\"") })
		}
		if n := len(documents(c)); n != 3 {
			t.Errorf("%s: %d writes, want 3", filters, n)
		}
	}
	f(three+", {queue: {queue_name: writes}}, {elasticsearch: {elasticsearch: up}}", "writes", "refused")
	f(three+", {flow: {flow: inner}}", "writes", "refused")
	f("{queue: {queue_name: writes}}, "+three+", {elasticsearch: {elasticsearch: up}}", "writes", "held up")
	f("{flow: {flow: inner}}", "outer", "held up")
}

// What is made good out of the queue goes whole to the node that is left (caddyserver/caddy#7547).
func TestQueuedWriteMovesWithItsBody(t *testing.T) {
	c := estest.New(t, estest.Options{Nodes: 2})
	hold := make(chan struct{})
	c.Node(0).Inject(estest.Fault{Method: "PUT", Hold: hold, Cut: estest.ResetBeforeBody})
	text := strings.Replace(queued(t, c.URL()), fmt.Sprintf("endpoint: %q", c.URL()),
		"discovery: {enabled: false}, balance: {policy: first}, endpoints: ["+strings.Join(c.URLs(), ", ")+"]", 1)
	a, _ := start(t, text)
	body := `{"text":"` + strings.Repeat("x", 200<<10) + `"}`
	if status, answer := write(t, a.Addr("main"), "PUT", "/i/_doc/1", body); status != http.StatusCreated {
		t.Fatalf("%d %s", status, answer)
	}
	wait(t, "the first attempt", func() bool { return c.Count("/i/*") > 0 })
	c.Node(0).Stop()
	close(hold)
	var got []*estest.Call
	wait(t, "the write", func() bool {
		got = slices.DeleteFunc(c.Node(1).Calls(), func(call *estest.Call) bool { return call.Method != "PUT" })
		return len(got) > 0
	})
	if string(got[0].Body) != body || got[0].Header.Get("Content-Length") != fmt.Sprint(len(body)) || got[0].Status() != http.StatusCreated {
		t.Errorf("the write came with %d bytes, said to be %s, want %d", len(got[0].Body), got[0].Header.Get("Content-Length"), len(body))
	}
}

func TestQueueConsumerNeedsItsFlow(t *testing.T) {
	f := &files{text: strings.Replace(queued(t, "http://127.0.0.1:1"), "flow: writes}}]", "flow: wirtes}}]", 1)}
	_, problems := f.load()
	if err := problems.Err(); err == nil || !strings.Contains(err.Error(), `no flow called "wirtes"; did you mean "writes"?`) {
		t.Errorf("%v", err)
	}
}
