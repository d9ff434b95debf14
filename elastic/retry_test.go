package elastic

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/api"
	"weir/elastic/estest"
	"weir/elastic/transport"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/simtime"
	"weir/internal/wire"
)

// bubble runs f in simulated time with a cluster in memory; text is further configuration, edit changes the options of the
// pool.
func bubble(t *testing.T, nodes int, text string, edit func(*PoolOptions), f func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer)) {
	t.Helper()
	simtime.Test(t, func(t *testing.T) {
		es := estest.New(t, estest.Options{InMemory: true, Nodes: nodes})
		d := Deps{Dial: es.Dial}
		within(t, es, ", endpoints: ["+strings.Join(es.URLs(), ", ")+"]"+text, d, edit, f)
	})
}

// within runs f with a cluster of this configuration, in a bubble that the caller has made.
func within(t *testing.T, es *estest.Cluster, text string, d Deps, edit func(*PoolOptions), f func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer)) {
	t.Helper()
	n, p := conf.Parse("test.yml", "[{name: test"+text+"}]", nil)
	c := DecodeClusters(n, p)["test"]
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	logs := new(logBuffer)
	o := DefaultPool()
	o.Discovery = c.Discovery
	if edit != nil {
		edit(&o)
	}
	d.Metrics, d.Logger = obs.NewMetrics(), slog.New(slog.NewTextHandler(logs, nil))
	k, err := NewCluster(c, o, d)
	if err != nil {
		t.Fatal(err)
	}
	k.Start()
	defer k.Close()
	synctest.Wait()
	es.Forget()
	f(t, es, k, logs)
}

const (
	created = "PUT /i/_doc/1" // the same state when it runs twice
	posted  = "POST /i/_doc"  // another document when it runs twice
	plain   = "POST /_search"
	opened  = "POST /i/_search?scroll=1m"
	scroll  = "POST /_search/scroll"
)

func TestRetriesByWhatAnAPIDoes(t *testing.T) {
	rejected := estest.Fault{Status: 429}
	blocked := estest.Fault{Status: 503}
	proxy := estest.Fault{Status: 502}
	reset := estest.Fault{Cut: estest.ResetAfterRequest}
	partly := estest.Fault{Status: 429, Body: []byte(`{"took":1,"updated":3,"failures":[{"status":429,"cause":{"type":"es_rejected_execution_exception"}}]}`)}
	f := func(text, request string, fault estest.Fault, want int) {
		t.Helper()
		bubble(t, 3, ", discovery: {enabled: false}"+text, nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
			method, target, _ := strings.Cut(request, " ")
			path, _, _ := strings.Cut(target, "?")
			fault.Path = path
			es.Inject(fault)
			_, _ = send(k, method, target, "{}")
			// A pooled connection that is reset may have died before: then what may be repeated goes to the node once more.
			most := want
			if fault.Cut != 0 && want > 1 {
				most *= 2
			}
			if n := es.Count(path); n < want || n > most {
				t.Errorf("%s: %+v: sent %d times, want %d", request, fault, n, want)
			}
			if k.budget.inFlight.Load() != 0 || k.budget.spent.Load() != 0 || inFlight(k) != 0 {
				t.Error("something is still in flight")
			}
		})
	}
	f("", plain, rejected, 3)
	f("", opened, rejected, 3)
	f("", scroll, rejected, 3)
	f("", created, rejected, 3)
	f("", posted, rejected, 3)
	f("", "POST /i/_update_by_query", partly, 1)
	f("", "POST /i/_forcemerge", proxy, 1)

	f("", plain, blocked, 2)
	f("", opened, blocked, 2)
	f("", scroll, blocked, 2)
	f("", created, blocked, 1)
	f("", posted, blocked, 1)
	f("", "POST /_bulk", blocked, 1)

	for _, lost := range []estest.Fault{proxy, reset} {
		f("", plain, lost, 3)
		f("", opened, lost, 1)
		f("", scroll, lost, 1)
		f("", posted, lost, 1)
		f(", retry: {writes: idempotent}", created, lost, 3)
		f(", retry: {writes: idempotent}", posted, lost, 1)
	}
	f("", created, proxy, 1)
	f(", retry: {max: 0}", plain, proxy, 1)
	f("", plain, estest.Fault{Status: 404}, 1)
	f("", plain, estest.Fault{Status: 500}, 1)
}

func TestRetryAfterIsHonoured(t *testing.T) {
	f := func(text, field string, calls int, least, most time.Duration) {
		t.Helper()
		bubble(t, 2, ", discovery: {enabled: false}"+text, nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
			fault := estest.Fault{Path: "/_search", Status: 429, Times: 1}
			if field != "" {
				fault.Header = []string{field}
			}
			es.Inject(fault)
			start := time.Now()
			_, _ = send(k, "POST", "/_search", "{}")
			if d := time.Since(start); d < least || d > most || es.Count("/_search") != calls {
				t.Errorf("%q: %d calls in %v", field, es.Count("/_search"), d)
			}
		})
	}
	f("", "", 2, 0, 25*time.Millisecond)
	f("", "Retry-After: 1", 2, time.Second, time.Second)
	f("", "Retry-After: 3", 1, 0, 0)
	f("", "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT", 1, 0, 0)
	f("", "RateLimit: \"search\";r=0;t=2", 2, 2*time.Second, 2*time.Second)
	f("", "RateLimit: \"search\";r=0;t=60", 1, 0, 0)
	f(", retry: {max_retry_after: 10s}", "Retry-After: 3", 2, 3*time.Second, 3*time.Second)
}

// The only node of a cluster is asked again after a pause when it had no room.
func TestOnlyNodeIsAskedAgain(t *testing.T) {
	bubble(t, 1, "", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
		es.Inject(estest.Fault{Path: "/_search", Status: 429, Times: 1})
		if status, err := send(k, "POST", "/_search", "{}"); err != nil || status != 200 {
			t.Errorf("%d, %v", status, err)
		}
	})
}

func TestRetriesEndWithDeadlineAndClient(t *testing.T) {
	bubble(t, 3, ", discovery: {enabled: false}, retry: {backoff: 10s, max_backoff: 10s}", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
		es.Inject(estest.Fault{Path: "/_search", Status: 502})
		start := time.Now()
		r, resp := call("POST", "/_search", "{}"), new(transport.Response)
		r.Deadline = start.Add(time.Second)
		for range 20 { // a pause that happens to be short may fit
			r.Attempts, r.spent = 0, 0
			if err := k.Do(r, resp); err != nil || resp.Status != 502 {
				t.Errorf("%d, %v", resp.Status, err)
			}
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("went on for %v past the deadline", d)
		}
		r = call("POST", "/_search", "{}")
		r.Cancel = new(wire.Cancel)
		time.AfterFunc(time.Millisecond, r.Cancel.Fire)
		start = time.Now()
		_ = k.Do(r, resp)
		if d := time.Since(start); d > time.Second {
			t.Errorf("went on for %v after the client had left", d)
		}
	})
}

// When everything fails, retries add a fifth to the load and not more.
func TestRetriesStayWithinTheBudget(t *testing.T) {
	for _, fault := range []estest.Fault{{Status: 502}, {Cut: estest.ResetAfterRequest, Header: []string{"Connection: close"}}} {
		fault.Path, fault.Delay = "/_search", 10*time.Millisecond
		totalFailure(t, fault)
	}
}

func totalFailure(t *testing.T, fault estest.Fault) {
	t.Helper()
	bubble(t, 3, ", discovery: {enabled: false}", func(o *PoolOptions) { o.MaxConns = 1000 }, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
		es.Inject(fault)
		const exchanges = 200
		var wg sync.WaitGroup
		for i := range exchanges {
			wg.Go(func() {
				// All are in flight together, and fail one by one: how many a picker learns of at the same time would be chance.
				<-time.After(time.Duration(i) * time.Microsecond)
				status, err := send(k, "POST", "/_search", "{}")
				if err != nil {
					status = AsError(err).Status
				}
				if status != 502 {
					t.Errorf("%d, %v", status, err)
				}
			})
		}
		wg.Wait()
		most := exchanges*12/10 + 3
		if fault.Cut != 0 {
			most += 2 * 3 // moved before all nodes had failed, or sent again to see whether a pooled connection was dead
		}
		if n := es.Count("/_search"); n > most || n <= exchanges {
			t.Errorf("%d calls for %d exchanges", n, exchanges)
		}
		if k.budget.inFlight.Load() != 0 || k.budget.spent.Load() != 0 {
			t.Errorf("%d in flight, %d spent", k.budget.inFlight.Load(), k.budget.spent.Load())
		}
	})
}

// One of three nodes dies with a third of what is in flight: reads move to the others, all of them.
func TestNodeThatDiesLosesNothing(t *testing.T) {
	bubble(t, 3, ", discovery: {enabled: false}", func(o *PoolOptions) { o.MaxConns = 1000 }, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
		es.Inject(estest.Fault{Path: "/_search", Delay: 100 * time.Millisecond})
		var wg sync.WaitGroup
		for range 300 {
			wg.Go(func() {
				if status, err := send(k, "POST", "/_search", "{}"); err != nil || status != 200 {
					t.Errorf("%d, %v", status, err)
				}
			})
		}
		<-time.After(50 * time.Millisecond)
		es.Node(1).Stop()
		wg.Wait()
		if n := es.Count("/_search"); n < 350 || n > 450 {
			t.Errorf("%d calls for 300 exchanges: the node had too few or too many of them", n)
		}
	})
}

// Exchanges that find all nodes full wait in turn, and are refused when too many do.
func TestFullNodes(t *testing.T) {
	limits := func(o *PoolOptions) { o.MaxConns, o.MaxWaiting, o.WaitTimeout = 1, 2, time.Second }
	bubble(t, 2, ", discovery: {enabled: false}", limits, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
		hold := make(chan struct{})
		es.Inject(estest.Fault{Path: "/_search", Hold: hold})
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[string]int{}
		for range 5 {
			wg.Go(func() {
				status, err := send(k, "POST", "/_search", "{}")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					status = AsError(err).Status
				}
				got[fmt.Sprint(status)]++
			})
		}
		<-time.After(500 * time.Millisecond)
		synctest.Wait()
		if k.Status().Queued != 2 || es.Count("/_search") != 2 || got["429"] != 1 {
			t.Errorf("%+v, %d at the nodes, %v", k.Status(), es.Count("/_search"), got)
		}
		k.checkAll() // there is always a connection for that
		for _, m := range k.picker.Members() {
			if m.State().Failures > 0 {
				t.Error("a full node is taken for a failing one")
			}
		}
		<-time.After(time.Second)
		close(hold)
		wg.Wait()
		if got["429"] != 3 || got["200"] != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// A node that hangs keeps its connections open. Reads go elsewhere within three seconds; a write waits on, and is sent once;
// long searches do not make a node hang.
func TestNodeThatHangs(t *testing.T) {
	bubble(t, 3, "", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer) {
		resume := make(chan struct{})
		es.Inject(estest.Fault{Path: "/long/_search", Delay: 20 * time.Second})
		hung := es.Node(0)
		hang := hung.Inject(estest.Fault{Hold: resume})
		var wg sync.WaitGroup
		read := func(path string, most time.Duration) {
			wg.Go(func() {
				start := time.Now()
				r, resp := call("POST", path, "{}"), new(transport.Response)
				r.Cancel = new(wire.Cancel)
				err := k.Do(r, resp)
				if d := time.Since(start); err != nil || d > most {
					t.Errorf("%s: %v after %v", path, err, d)
				}
			})
		}
		for range 6 {
			read("/_search", 3*time.Second)
			wg.Go(func() {
				if status, err := send(k, "POST", "/i/_doc", "{}"); err != nil || status != 201 {
					t.Errorf("write: %d, %v", status, err)
				}
			})
			read("/long/_search", 25*time.Second)
		}
		<-time.After(4 * time.Second)
		for _, m := range k.picker.Members() {
			if m.Out() != (m.Name == hung.Addr()) {
				t.Errorf("%s: out %v", m.Name, m.Out())
			}
		}
		for range 20 { // nobody waits for it any more
			start := time.Now()
			if _, err := send(k, "POST", "/_search", "{}"); err != nil || time.Since(start) > 0 {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		}
		close(resume)
		hang.Remove()
		wg.Wait()
		if n := es.Count("/i/_doc"); n != 6 {
			t.Errorf("6 writes were sent %d times", n)
		}
		<-time.After(10 * time.Second)
		if strings.Count(logs.String(), "node is out") != 1 || strings.Count(logs.String(), "node is back") != 1 {
			t.Errorf("log:\n%s", logs)
		}
	})
}

func TestWhatA503SaysOfANode(t *testing.T) {
	const noMaster = `{"error":{"root_cause":[{"type":"master_not_discovered_exception","reason":null}],"type":"master_not_discovered_exception","reason":null},"status":503}`
	const noShards = `{"error":{"root_cause":[],"type":"search_phase_execution_exception","reason":"all shards failed"},"status":503}`
	f := func(body string, everywhere, out bool) {
		t.Helper()
		bubble(t, 3, ", discovery: {enabled: false}", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, logs *logBuffer) {
			fault := estest.Fault{Path: "/_search", Status: 503, Body: []byte(body), ContentType: "application/json"}
			if everywhere {
				es.Inject(fault)
			} else {
				es.Node(0).Inject(fault)
			}
			for range 300 {
				_, _ = send(k, "POST", "/_search", "{}")
				<-time.After(100 * time.Millisecond) // what a failure makes of its latency is forgotten in half a minute
			}
			if got := strings.Contains(logs.String(), "node is out"); got != out {
				t.Errorf("%s, everywhere %v: ejected %v", body, everywhere, got)
			}
		})
	}
	f("<html>", false, true)
	f(noMaster, false, true)
	f(noMaster, true, false)
	f(noShards, false, false)
}

// A body that came as a stream cannot be sent again, unless nobody has read from it.
func TestStreamsAreNotRepeated(t *testing.T) {
	bubble(t, 3, ", discovery: {enabled: false}", nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
		for _, fault := range []estest.Fault{{Status: 502}, {Status: 429}, {Status: 503}, {Cut: estest.ResetAfterRequest}} {
			es.Forget()
			fault.Path, fault.Times = "/_search", 1
			es.Inject(fault)
			r := call("POST", "/_search", "")
			r.Idempotency = api.Read
			r.Stream, r.StreamLength = io.LimitReader(strings.NewReader("{}"), 2), 2
			_ = k.Do(r, new(transport.Response))
			if n := es.Count("/_search"); n != 1 || r.Attempts != 1 {
				t.Errorf("%+v: sent %d times in %d attempts", fault, n, r.Attempts)
			}
		}
	})
}
