package estest_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
)

// submit begins a search that runs for so long.
func submit(t testing.TB, c *estest.Cluster, cl *client, target string, running time.Duration) reply {
	t.Helper()
	defer c.Inject(estest.Fault{Path: "*async*", Running: running}).Remove()
	return cl.do("POST", target, `{"size":1}`)
}

func asyncStart(t testing.TB, o estest.Options) (*estest.Cluster, *client, *estest.ManualClock) {
	t.Helper()
	clock := estest.NewManualClock(noon)
	o.Clock = clock
	c, cl := start(t, o)
	if len(o.Users) > 0 {
		cl.user = [2]string{o.Users[0].Name, o.Users[0].Password}
	}
	cl.do("PUT", "/i/_doc/1?refresh=true", `{"a":1}`)
	return c, cl, clock
}

// A search that ends in time has no id, unless it is to be kept; its answer is that of _search.
func TestAsyncSearchThatEndsInTime(t *testing.T) {
	_, cl, _ := asyncStart(t, estest.Options{})
	direct := cl.do("POST", "/i/_search", `{"size":1}`).body
	got := cl.do("POST", "/i/_async_search", `{"size":1}`)
	want := `{"is_partial":false,"is_running":false,"start_time_in_millis":1772712000000,"expiration_time_in_millis":1773144000000,"response":` + direct + `}`
	if got.body != want {
		t.Errorf("got %s, want %s", got.body, want)
	}
	kept := cl.do("POST", "/i/_async_search?keep_on_completion=true&keep_alive=2m", `{"size":1}`)
	id, _ := kept.get(t, "id").(string)
	if id == "" || kept.get(t, "is_running") != false {
		t.Fatalf("kept: %s", kept.body)
	}
	if again := cl.do("GET", "/_async_search/"+id, ""); again.body != kept.body {
		t.Errorf("asked again: %s, want %s", again.body, kept.body)
	}
}

// A search that takes longer has an id, under which it says how far it is, and finds what was there when it began.
func TestAsyncSearchThatTakesLonger(t *testing.T) {
	c, cl, clock := asyncStart(t, estest.Options{Flavor: estest.Elasticsearch8})
	running := submit(t, c, cl, "/i/_async_search?wait_for_completion_timeout=0s", 10*time.Second)
	id, _ := running.get(t, "id").(string)
	if id == "" || running.get(t, "is_running") != true || running.get(t, "is_partial") != true ||
		running.header.Get("X-Elasticsearch-Async-Is-Running") != "?1" || running.header.Get("X-Elasticsearch-Async-Id") != id {
		t.Fatalf("submitted: %s %v", running.body, running.header)
	}
	cl.do("PUT", "/i/_doc/2?refresh=true", `{"a":2}`)
	clock.Advance(5 * time.Second)
	if half := cl.do("GET", "/_async_search/"+id, ""); half.get(t, "is_running") != true || strings.Contains(half.body, `"_id"`) {
		t.Errorf("half-way: %s", half.body)
	}
	if status := cl.do("GET", "/_async_search/status/"+id, ""); status.get(t, "is_running") != true || status.get(t, "response") != nil {
		t.Errorf("status: %s", status.body)
	}
	clock.Advance(5 * time.Second)
	done := cl.do("GET", "/_async_search/"+id, "")
	if done.get(t, "is_running") != false || done.get(t, "response", "hits", "total", "value") != 1.0 ||
		done.get(t, "completion_time_in_millis") != 1772712010000.0 || done.header.Get("X-Elasticsearch-Async-Is-Running") != "?0" {
		t.Errorf("at the end: %s", done.body)
	}
	if r := cl.do("DELETE", "/_async_search/"+id, ""); r.status != 200 {
		t.Errorf("delete: %s", r.body)
	}
	if r := cl.do("GET", "/_async_search/"+id, ""); r.status != 404 {
		t.Errorf("after the delete: %d %s", r.status, r.body)
	}
}

// A caller waits as long as it says, by the cluster's clock.
func TestAsyncSearchIsWaitedFor(t *testing.T) {
	f := func(running, wait, passes time.Duration, want any) {
		t.Helper()
		c, cl, clock := asyncStart(t, estest.Options{})
		done := make(chan reply, 1)
		c.Inject(estest.Fault{Path: "*async*", Running: running})
		go func() {
			r, _ := cl.try("POST", "/i/_async_search?wait_for_completion_timeout="+wait.String(), `{}`, "Content-Type", "application/json")
			done <- r
		}()
		awaited(t, clock)
		clock.Advance(passes - time.Millisecond)
		select {
		case r := <-done:
			t.Fatalf("answered too early: %s", r.body)
		default:
		}
		clock.Advance(time.Millisecond)
		select {
		case r := <-done:
			if r.get(t, "is_running") != want {
				t.Errorf("running %v, wait %v: %s", running, wait, r.body)
			}
		case <-time.After(limit):
			t.Fatal("no answer")
		}
	}
	f(3*time.Second, 10*time.Second, 3*time.Second, false)
	f(30*time.Second, 10*time.Second, 10*time.Second, true)
}

// awaited waits until somebody waits for the clock.
func awaited(t testing.TB, clock *estest.ManualClock) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for clock.Waiting() == 0 {
		runtime.Gosched()
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
	}
}

// Only who submitted a search has it, and only for a while.
func TestAsyncSearchBelongsToItsSubmitter(t *testing.T) {
	users := []estest.User{{Name: "alice", Password: "a"}, {Name: "bob", Password: "b"}}
	c, alice, clock := asyncStart(t, estest.Options{Users: users})
	bob := *alice
	bob.user = [2]string{"bob", "b"}
	id, _ := submit(t, c, alice, "/i/_async_search?wait_for_completion_timeout=0s&keep_alive=1m", time.Second).get(t, "id").(string)
	for _, method := range []string{"GET", "DELETE"} {
		if r := bob.do(method, "/_async_search/"+id, ""); r.status != 404 {
			t.Errorf("%s by another: %d %s", method, r.status, r.body)
		}
	}
	if r := alice.do("GET", "/_async_search/"+id, ""); r.status != 200 {
		t.Errorf("by the submitter: %d %s", r.status, r.body)
	}
	clock.Advance(time.Minute + time.Millisecond)
	if r := alice.do("GET", "/_async_search/"+id, ""); r.status != 404 {
		t.Errorf("expired: %d %s", r.status, r.body)
	}
}

// A search that lost shards is not partial, as nodes see it (elastic/elasticsearch#98725).
func TestAsyncSearchThatLostShards(t *testing.T) {
	c, cl, _ := asyncStart(t, estest.Options{})
	c.Inject(estest.Fault{Path: "*async*", FailedShards: 1})
	r := cl.do("POST", "/i/_async_search", `{}`)
	if r.get(t, "is_partial") != false || r.get(t, "response", "_shards", "failed") != 1.0 {
		t.Errorf("got %s", r.body)
	}
}

func TestAsyncSearchIsRefused(t *testing.T) {
	f := func(target, body, want string) {
		t.Helper()
		_, cl, _ := asyncStart(t, estest.Options{})
		if r := cl.do("POST", target, body); r.status < 400 || !strings.Contains(r.body, want) {
			t.Errorf("%s: %d %s, want %s", target, r.status, r.body, want)
		}
	}
	f("/i/_async_search?scroll=1m", `{}`, "[scroll] queries are not supported")
	f("/i/_async_search?keep_alive=59s", `{}`, "[keep_alive] must be greater than 1 minute")
	f("/i/_async_search?pre_filter_shard_size=2", `{}`, "[pre_filter_shard_size] cannot be changed")
	f("/i/_async_search?keep_alive=x", `{}`, "failed to parse setting [keep_alive]")
	f("/none/_async_search", `{}`, "index_not_found_exception")
	f("/i/_async_search", `{"x":1}`, "parsing_exception")
	f("/_plugins/_asynchronous_search", `{}`, "no handler found")
}

// OpenSearch names a search also when it has forgotten it.
func TestAsynchronousSearchOfOpenSearch(t *testing.T) {
	c, cl, clock := asyncStart(t, estest.Options{Flavor: estest.OpenSearch2})
	over := cl.do("POST", "/_plugins/_asynchronous_search?index=i", `{}`)
	id, _ := over.get(t, "id").(string)
	if over.get(t, "state") != "CLOSED" || over.get(t, "response", "hits", "total", "value") != 1.0 {
		t.Errorf("in time: %s", over.body)
	}
	if r := cl.do("GET", "/_plugins/_asynchronous_search/"+id, ""); r.status != 404 {
		t.Errorf("asked again: %d %s", r.status, r.body)
	}
	running := submit(t, c, cl, "/_plugins/_asynchronous_search?index=i&wait_for_completion_timeout=0s", time.Second)
	id, _ = running.get(t, "id").(string)
	if running.get(t, "state") != "RUNNING" {
		t.Errorf("running: %s", running.body)
	}
	clock.Advance(time.Second)
	if r := cl.do("GET", "/_plugins/_asynchronous_search/"+id, ""); r.get(t, "state") != "STORE_RESIDENT" {
		t.Errorf("at the end: %s", r.body)
	}
	if r := cl.do("POST", "/i/_async_search", `{}`); r.status == 200 {
		t.Errorf("as in Elasticsearch: %s", r.body)
	}
}
