package cache

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic"
	"weir/elastic/estest"
	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/simtime"
)

// An asyncRig is flows at work over a scripted cluster that has async searches.
type asyncRig struct {
	*rig
	cluster *estest.Cluster
	http    *http.Client
	tracker *generation.Tracker
	submits string // path of the API
}

// Perform implements generation.Client.
func (r *asyncRig) Perform(req *http.Request) (*http.Response, error) {
	req.URL.Scheme, req.URL.Host = "http", r.cluster.Node(0).Addr()
	req.Header.Set("Authorization", basic("weir"))
	return r.http.Do(req)
}

// forward is what the filter elasticsearch does with an exchange.
func (r *asyncRig) forward(x *flows.Exchange, _ int64) error {
	body, err := x.Request.Body.Bytes(1 << 20)
	if err != nil {
		return err
	}
	if a := flows.Stamps.Get(x); a != nil {
		a.Fill(r.tracker)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), string(x.Request.Method), r.cluster.URL()+string(x.Request.Target), strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	for _, f := range x.Request.Header.Fields() {
		req.Header.Set(string(f.Name), string(f.Value))
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	r.tracker.Note(&generation.Write{
		Call: x.Call(), Method: x.Request.Method, Query: x.Request.Query, Body: body, Status: resp.StatusCode, Answer: answer,
	})
	x.Reply(resp.StatusCode, resp.Header.Get("Content-Type"), answer)
	for name, values := range resp.Header {
		if strings.HasPrefix(name, "X-") {
			x.Response.Header.AddString(name, values[0])
		}
	}
	return nil
}

// asyncs runs f in a bubble of its own time, over both kinds of filters. options are those of the filter that looks for answers.
func asyncs(t *testing.T, flavor estest.Flavor, options string, f func(t *testing.T, r *asyncRig)) {
	t.Helper()
	for name, text := range map[string]string{
		"get_cache and set_cache": `[{name: main, filter: [{get_cache: {` + options + `}}, {limit: {}}, {node: {}}, {set_cache: {}}]}]`,
		"cache":                   `[{name: main, filter: [{cache: {` + options + `}}, {limit: {}}, {node: {}}]}]`,
	} {
		t.Run(name, func(t *testing.T) {
			simtime.Test(t, func(t *testing.T) {
				r := &asyncRig{rig: newRig(t, text), submits: "/i/_async_search?"}
				if flavor == estest.OpenSearch2 {
					r.submits = "/_plugins/_asynchronous_search?index=i&"
				}
				r.cluster = estest.New(t, estest.Options{Flavor: flavor, InMemory: true, Users: []estest.User{
					{Name: "alice", Password: modelSecret, Filter: `{"term":{"team":"a"}}`}, {Name: "bob", Password: modelSecret}, {Name: "weir", Password: modelSecret},
				}})
				r.http = &http.Client{Transport: &http.Transport{DialContext: r.cluster.Dial}}
				r.tracker = generation.New(generation.Options{Cluster: "c", Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler)})
				defer r.tracker.Close()
				defer r.http.CloseIdleConnections()
				defer r.tracker.Use(r)()
				r.node = r.forward
				r.as("weir", "PUT", "/i", modelMapping)
				r.as("weir", "PUT", "/i/_doc/1?refresh=true", `{"team":"a","n":1}`)
				r.as("weir", "PUT", "/i/_doc/2?refresh=true", `{"team":"b","n":9007199254740993}`)
				r.calls.Store(0)
				f(t, r)
			})
		})
	}
}

// as sends a request through the flow.
func (r *asyncRig) as(user, method, target, body string, fields ...string) *flows.Exchange {
	r.t.Helper()
	x := request(target, body, append([]string{"Authorization", basic(user)}, fields...)...)
	x.Request.Method = []byte(method)
	if err := r.serve("main", x); err != nil {
		r.t.Fatalf("%s %s: %v", method, target, err)
	}
	return x
}

// submit begins an async search.
func (r *asyncRig) submit(user, params string) *flows.Exchange {
	r.t.Helper()
	return r.as(user, "POST", r.submits+params, asyncBody)
}

// fetch asks for an async search by its id.
func (r *asyncRig) fetch(user, id, params string) *flows.Exchange {
	r.t.Helper()
	path, _, _ := strings.Cut(strings.TrimPrefix(r.submits, "/i"), "?")
	return r.as(user, "GET", path+"/"+id+params, "")
}

// runs makes the async searches that are submitted run for so long until the function that it returns is called.
func (r *asyncRig) runs(d time.Duration) (end func()) {
	return r.cluster.Inject(estest.Fault{Path: "*async*", Running: d}).Remove
}

const asyncBody = `{"size":5,"sort":["n"]}`

// foundBy returns the answer of the search in an answer about an async search.
func foundBy(t *testing.T, x *flows.Exchange) string {
	t.Helper()
	a, ok := query.ReadAsync([]byte(bodyOf(x)))
	if !ok {
		t.Fatalf("no answer about an async search: %s", bodyOf(x))
	}
	return string(a.Response)
}

func idOf(t *testing.T, x *flows.Exchange) string {
	t.Helper()
	a, ok := query.ReadAsync([]byte(bodyOf(x)))
	if !ok || a.ID == nil {
		t.Fatalf("no id: %s", bodyOf(x))
	}
	return string(a.ID)
}

func wantDetail(t *testing.T, x *flows.Exchange, want string) {
	t.Helper()
	if got := field(x, "cache-status"); !strings.HasPrefix(got, want) {
		t.Errorf("%s: Cache-Status %q, want %q", x.Request.Target, got, want)
	}
}

// Searches and async searches have the same answers, and each says it in its own shape.
func TestAsyncSearchesShareAnswersWithSearches(t *testing.T) {
	for _, flavor := range []estest.Flavor{estest.Elasticsearch7, estest.Elasticsearch8} {
		asyncs(t, flavor, "", func(t *testing.T, r *asyncRig) {
			first := r.submit("bob", "keep_alive=2m&ignore_unavailable=true")
			wantDetail(t, first, "weir; fwd=miss; stored")
			again := r.submit("bob", "ignore_unavailable=true&keep_alive=120s&wait_for_completion_timeout=200ms&keep_on_completion=false")
			wantDetail(t, again, "weir; hit; ttl=")
			if got, want := bodyOf(again), bodyOf(first); got != want { // at the same moment
				t.Errorf("hit %s, want %s", got, want)
			}
			if got, want := field(again, "x-elasticsearch-async-is-running"), field(first, "x-elasticsearch-async-is-running"); got != want {
				t.Errorf("the hit says %q, the node %q", got, want)
			}
			search := r.as("bob", "GET", "/i/_search?ignore_unavailable=true", asyncBody)
			wantDetail(t, search, "weir; hit; ttl=")
			if got, want := bodyOf(search), foundBy(t, first); got != want {
				t.Errorf("_search is answered with %s, want %s", got, want)
			}
			r.wantCalls(1)

			r.as("bob", "POST", "/i/_search", asyncBody)
			<-time.After(time.Second)
			other := r.submit("bob", "")
			wantDetail(t, other, "weir; hit; ttl=")
			if foundBy(t, other) != bodyOf(search) {
				t.Errorf("got %s, want %s", foundBy(t, other), bodyOf(search))
			}
			now := time.Now().UnixMilli()
			if want := fmt.Sprintf(`"start_time_in_millis":%d,"expiration_time_in_millis":%d`, now, now+5*24*3600*1000); !strings.Contains(bodyOf(other), want) {
				t.Errorf("got %s, want %s", bodyOf(other), want)
			}
			r.wantCalls(2)
		})
	}
}

// How a node writes that a search is over is not known before one has said it.
func TestAsyncFormIsLearned(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		r.as("bob", "POST", "/i/_search", asyncBody)
		wantDetail(t, r.submit("bob", ""), "weir; fwd=miss; stored")
		wantDetail(t, r.submit("bob", ""), "weir; hit")
		r.wantCalls(2)
	})
}

// A search that runs is its submitter's own; when the submitter has fetched it, others are given what it has found.
func TestAsyncSearchThatRuns(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		end := r.runs(5 * time.Second)
		running := r.submit("bob", "")
		end()
		wantStatus(t, running, "weir; fwd=miss; detail=running")
		id := idOf(t, running)
		if got := r.count("weir_cache_async_searches"); got != 1 {
			t.Errorf("%v searches run", got)
		}
		wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=miss; detail=running")
		wantStatus(t, r.fetch("alice", id, ""), "weir; fwd=bypass; detail=async-id")
		<-time.After(4 * time.Second)
		if x := r.fetch("alice", id, ""); x.Response.Status != 404 {
			t.Errorf("alice is given bob's search: %s", bodyOf(x))
		}
		wantStatus(t, r.fetch("bob", id, "?typed_keys=true"), "weir; fwd=bypass; detail=async-id")
		wantStatus(t, r.fetch("bob", id, "?filter_path=response"), "weir; fwd=bypass; detail=async-arguments")
		done := r.fetch("bob", id, "?wait_for_completion_timeout=1s&keep_alive=1m")
		wantStatus(t, done, "weir; fwd=miss; stored")
		calls := r.calls.Load()
		hit := r.submit("bob", "")
		wantDetail(t, hit, "weir; hit; ttl=") // counted from the submission
		if field(hit, "age") != "5" || foundBy(t, hit) != foundBy(t, done) || strings.Contains(bodyOf(hit), id) {
			t.Errorf("age %s: %s, want %s", field(hit, "age"), bodyOf(hit), bodyOf(done))
		}
		if got := r.count("weir_cache_async_searches"); got != 0 {
			t.Errorf("%v searches run at the end", got)
		}
		r.wantCalls(calls)
		wantStatus(t, r.as("bob", "DELETE", "/_async_search/"+id, ""), "weir; fwd=bypass; detail=api")
		wantDetail(t, r.submit("bob", ""), "weir; hit") // the answer is there although the search is not
	})
}

// Who fetches an answer in another form than the search was submitted for fetches it alone.
func TestAsyncAnswersInAnotherForm(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		defer r.runs(time.Second)()
		const vendor = "application/vnd.elasticsearch+json; compatible-with=8"
		id := idOf(t, r.as("bob", "POST", "/i/_async_search?wait_for_completion_timeout=0", asyncBody, "Accept", vendor))
		<-time.After(time.Second)
		wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=miss; detail=content-type")

		id = idOf(t, r.submit("bob", "wait_for_completion_timeout=0&rest_total_hits_as_int=true"))
		<-time.After(time.Second)
		wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=bypass; detail=async-id")

		id = idOf(t, r.as("bob", "POST", "/i/_async_search?wait_for_completion_timeout=0", asyncBody, "Accept", vendor))
		<-time.After(time.Second)
		path := "/_async_search/" + id
		wantStatus(t, r.as("bob", "GET", path, "", "Accept", vendor), "weir; fwd=miss; stored")
		wantDetail(t, r.as("bob", "POST", "/i/_async_search", asyncBody, "Accept", vendor), "weir; hit")
		wantDetail(t, r.submit("bob", "wait_for_completion_timeout=0"), "weir; fwd=miss; detail=running")
	})
}

// What a search finds is as old as its beginning, so that one that ran for too long is not kept.
func TestAsyncSearchThatRunsForLong(t *testing.T) {
	asyncs(t, estest.Elasticsearch7, "proven_ttl: 20s", func(t *testing.T, r *asyncRig) {
		end := r.runs(30 * time.Second)
		id := idOf(t, r.submit("bob", ""))
		end()
		<-time.After(30 * time.Second)
		wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=bypass; detail=async-id")
	})
}

// Who fetches the answer has proven then who it is, however long ago it was when the search began.
func TestFetchProvesCredentials(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "proven_ttl: 5m, auth_ttl: 20s", func(t *testing.T, r *asyncRig) {
		r.as("bob", "POST", "/i/_search", `{}`)
		<-time.After(15 * time.Second) // polls have seen the index
		end := r.runs(40 * time.Second)
		id := idOf(t, r.submit("bob", ""))
		end()
		<-time.After(40 * time.Second)
		wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=miss; stored")
		hit := r.submit("bob", "")
		wantDetail(t, hit, "weir; hit")
		if age := field(hit, "age"); age != "41" {
			t.Errorf("age %s", age)
		}
	})
}

// What happens while a search runs counts as after it.
func TestAsyncSearchAndChanges(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		r.submit("bob", "")
		<-time.After(time.Millisecond)
		r.as("weir", "PUT", "/i/_doc/3?refresh=true", `{"team":"b","n":3}`)
		fresh := r.submit("bob", "")
		wantDetail(t, fresh, "weir; fwd=stale; stored")
		if !strings.Contains(foundBy(t, fresh), `"_id":"3"`) {
			t.Errorf("got %s", foundBy(t, fresh))
		}

		<-time.After(time.Millisecond)
		r.as("weir", "PUT", "/i/_doc/4?refresh=true", `{"team":"b","n":4}`)
		end := r.runs(2 * time.Second)
		id := idOf(t, r.submit("bob", ""))
		end()
		<-time.After(time.Millisecond)
		r.as("weir", "PUT", "/i/_doc/5?refresh=true", `{"team":"b","n":5}`)
		<-time.After(2 * time.Second)
		r.fetch("bob", id, "") // does not find it
		if x := r.submit("bob", ""); !strings.Contains(foundBy(t, x), `"_id":"5"`) {
			t.Errorf("what was written while a search ran is not found: %s", bodyOf(x))
		}

		end = r.runs(2 * time.Second)
		id = idOf(t, r.as("bob", "POST", "/i/_async_search", `{"size":1}`))
		end()
		r.shared().purge(func(query.Key, *Entry) bool { return true })
		<-time.After(2 * time.Second)
		wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=miss; detail=purged")
	})
}

// An answer that is not complete is passed on and not kept, whatever stands around it; is_partial is false of a search that lost
// shards (elastic/elasticsearch#98725).
func TestIncompleteAsyncAnswersAreNotKept(t *testing.T) {
	f := func(detail string, fault estest.Fault) {
		t.Helper()
		asyncs(t, estest.Elasticsearch7, "", func(t *testing.T, r *asyncRig) {
			fault := fault
			r.submit("alice", "") // the form is known
			fault.Path = "*async*"
			i := r.cluster.Inject(fault)
			wantStatus(t, r.submit("bob", ""), "weir; fwd=miss; detail="+detail)
			i.Remove()
			wantDetail(t, r.submit("bob", ""), "weir; fwd=miss; stored")

			fault.Running = time.Second
			fault.Status, fault.Body = 0, nil
			if fault.FailedShards > 0 || fault.TimedOut {
				i = r.cluster.Inject(fault)
				id := idOf(t, r.as("bob", "POST", "/i/_async_search?wait_for_completion_timeout=0s", `{"size":2}`))
				i.Remove()
				<-time.After(time.Second)
				wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=miss; detail="+detail)
				wantStatus(t, r.fetch("bob", id, ""), "weir; fwd=bypass; detail=async-id") // it is over
				wantDetail(t, r.as("bob", "POST", "/i/_search", `{"size":2}`), "weir; fwd=miss; stored")
			}
		})
	}
	const whole = `"response":{"took":1,"timed_out":false,"_shards":{"total":1,"successful":1,"skipped":0,"failed":0},"hits":{"hits":[]}}`
	const times = `"start_time_in_millis":1,"expiration_time_in_millis":2,`
	f("shards", estest.Fault{FailedShards: 1})
	f("timed-out", estest.Fault{TimedOut: true})
	f("status", estest.Fault{Status: 503})
	f("shards", estest.Fault{Body: []byte(`{"is_partial":true,"is_running":false,` + times + whole + `}`)})
	f("running", estest.Fault{Body: []byte(`{"id":"x","is_partial":false,"is_running":true,` + times + whole + `}`)})
	f("error", estest.Fault{Body: []byte(`{"is_partial":false,"is_running":false,` + times + whole + `,"error":{"type":"x"}}`)})
	f("malformed", estest.Fault{Body: []byte(`{"is_partial":false,"is_running":false,` + times[:len(times)-1] + `}`)})
	f("malformed", estest.Fault{Body: []byte(`{"is_partial":false,"is_running":false,"news":1,` + times + whole + `}`)})
	f("malformed", estest.Fault{Body: []byte(`{"is_partial":true,"is_partial":false,"is_running":false,` + times + whole + `}`)})
	f("malformed", estest.Fault{Body: []byte(`{"is_running":false,` + times + whole + `}`)})
	f("malformed", estest.Fault{Body: []byte(`{"is_partial":false,"is_running":false,` + times + whole)})
}

// Who asks the same at once waits for one answer. Of a search that is not over in time each has one of its own, and nobody
// waits the next time.
func TestAsyncSearchesAtOnce(t *testing.T) {
	at := func(r *asyncRig, params string) (answers []*flows.Exchange) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				x := r.submit("bob", params)
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, x)
			})
		}
		wg.Wait()
		return answers
	}
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		defer r.runs(500 * time.Millisecond)()
		answers := at(r, "")
		r.wantCalls(1)
		shared := 0
		for _, x := range answers {
			if foundBy(t, x) != foundBy(t, answers[0]) || x.Response.Status != 200 {
				t.Errorf("got %s", bodyOf(x))
			}
			if field(x, "cache-status") == "weir; fwd=miss; collapsed" {
				shared++
			}
		}
		if shared != 4 {
			t.Errorf("%d of 5 were given the answer of another", shared)
		}
	})
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		defer r.runs(10 * time.Second)()
		ids := map[string]bool{}
		for _, x := range at(r, "wait_for_completion_timeout=200ms") {
			ids[idOf(t, x)] = true
		}
		if len(ids) != 5 {
			t.Errorf("%d ids of 5 searches", len(ids))
		}
		r.wantCalls(5)
		begun := time.Now()
		at(r, "wait_for_completion_timeout=200ms")
		if took := time.Since(begun); took != 200*time.Millisecond {
			t.Errorf("it took %v to be told that the search runs", took)
		}
		r.wantCalls(10)
	})
	// A failure is shared, unless it names a search.
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		r.cluster.Inject(estest.Fault{Path: "*async*", Delay: 100 * time.Millisecond, Status: 503})
		for _, x := range at(r, "") {
			if x.Response.Status != 503 {
				t.Errorf("status %d", x.Response.Status)
			}
		}
		r.wantCalls(1)
	})
	asyncs(t, estest.Elasticsearch8, "async_ids: not_needed", func(t *testing.T, r *asyncRig) {
		r.cluster.Inject(estest.Fault{
			Path: "*async*", Delay: 100 * time.Millisecond, Status: 500,
			Body: []byte(`{"id":"x","is_partial":true,"is_running":false,"start_time_in_millis":1,"expiration_time_in_millis":2,"error":{}}`),
		})
		at(r, "keep_on_completion=true")
		r.wantCalls(5)
	})
	// So is an answer that lost shards not: the next one may be whole.
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		r.cluster.Inject(estest.Fault{Path: "*async*", Delay: 100 * time.Millisecond, FailedShards: 1})
		at(r, "")
		r.wantCalls(5)
	})
}

// Who leaves takes the search along, and one of those who waited for it begins another.
func TestLeaderOfAnAsyncSearchLeaves(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		r.node = func(x *flows.Exchange, call int64) error {
			if call > 1 {
				return r.forward(x, call)
			}
			<-x.Cancel().Done()
			return elastic.Errorf(502, "answer_exception", "cut off")
		}
		leader := request("/i/_async_search", asyncBody, "Authorization", basic("bob"))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.serve("main", leader); err == nil {
				t.Error("who has left is answered")
			}
		})
		synctest.Wait()
		for range 4 {
			wg.Go(func() { foundBy(t, r.submit("bob", "")) })
		}
		synctest.Wait()
		r.wantCalls(1)
		leader.Cancel().Fire()
		wg.Wait()
		r.wantCalls(2)
	})
}

// Nobody is given what another caller may see.
func TestAsyncSearchesByCaller(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		defer r.runs(100 * time.Millisecond)()
		for range 3 {
			var wg sync.WaitGroup
			for i := range 8 {
				user, docs := "alice", 1
				if i%2 == 0 {
					user, docs = "bob", 2
				}
				wg.Go(func() {
					if got := strings.Count(foundBy(t, r.submit(user, "")), `"_id"`); got != docs {
						t.Errorf("%s finds %d documents, want %d", user, got, docs)
					}
				})
			}
			wg.Wait()
		}
		r.wantCalls(2)
		if x := r.as("eve", "POST", "/i/_async_search", asyncBody); x.Response.Status != 401 {
			t.Errorf("status %d for a caller that is not known", x.Response.Status)
		}
	})
}

// What is to be kept on the node passes by, unless the configuration says that nobody needs it.
func TestAsyncSearchesThatAreKept(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		for range 2 {
			x := r.submit("bob", "keep_on_completion=true")
			wantStatus(t, x, "weir; fwd=bypass; detail=async-kept")
			idOf(t, x)
		}
		r.wantCalls(2)
	})
	asyncs(t, estest.Elasticsearch8, "async_ids: not_needed", func(t *testing.T, r *asyncRig) {
		first := r.submit("bob", "keep_on_completion")
		id := idOf(t, first)
		hit := r.submit("bob", "keep_on_completion=true")
		wantDetail(t, hit, "weir; hit")
		if foundBy(t, hit) != foundBy(t, first) || strings.Contains(bodyOf(hit), id) || field(hit, "x-elasticsearch-async-id") != "" {
			t.Errorf("hit %s, first %s", bodyOf(hit), bodyOf(first))
		}
		r.wantCalls(1)
	})
}

// An async search that nodes refuse is refused although the same _search is kept.
func TestAsyncSearchesThatPassBy(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		f := func(why, params, body string, fields ...string) {
			t.Helper()
			calls := r.calls.Load()
			x := r.as("bob", "POST", "/i/_async_search"+params, body, fields...)
			wantStatus(t, x, "weir; fwd=bypass; detail="+why)
			r.wantCalls(calls + 1)
		}
		r.submit("bob", "")
		r.as("bob", "POST", "/i/_search", `{}`)
		f("async-arguments", "?keep_alive=59s", `{}`)
		f("async-arguments", "?keep_alive=-1", `{}`)
		f("async-arguments", "?keep_alive=1", `{}`)
		f("async-arguments", "?wait_for_completion_timeout=-1", `{}`)
		f("async-arguments", "?keep_on_completion=maybe", `{}`)
		f("async-arguments", "?pre_filter_shard_size=2", `{}`)
		f("async-arguments", "?ccs_minimize_roundtrips=true", `{}`)
		f("async-arguments", "?keep%5Falive=1s", `{}`)
		f("async-arguments", "", `{"suggest":{}}`)
		f("async-arguments", "", `{"\u0073uggest":{}}`)
		f("repeated-argument", "?keep_alive=1m&keep_alive=2m", `{}`)
		f("repeated-argument", "?size=1&size=2", `{}`)
		f("filter-path", "?filter_path=response", `{}`)
		f("format", "?pretty", `{}`)
		f("format", "?human=true", `{}`)
		f("source", "?source={}&source_content_type=application/json", ``)
		f("scroll", "?scroll=1m", `{}`)
		f("request-cache", "?request_cache=false", `{}`)
		f("no-store", "", `{}`, "Cache-Control", "no-store")
		f("body", "", `{`)
		f("pit", "", `{"pit":{"id":"x"}}`)
		f("accept-encoding", "", `{}`, "Accept-Encoding", "gzip, identity;q=0")
	})
}

// What a caller says with Cache-Control holds for async searches too.
func TestAsyncSearchesAndCacheControl(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		r.submit("bob", "")
		<-time.After(2 * time.Second)
		say := func(directive string) *flows.Exchange {
			return r.as("bob", "POST", "/i/_async_search", asyncBody, "Cache-Control", directive)
		}
		wantDetail(t, say("only-if-cached"), "weir; hit")
		wantDetail(t, say("max-age=1"), "weir; fwd=request; stored")
		wantDetail(t, say("no-cache"), "weir; fwd=request; stored")
		r.wantCalls(3)
		x := request("/i/_async_search", `{"size":3}`, "Authorization", basic("bob"), "Cache-Control", "only-if-cached")
		if err := r.serve("main", x); err == nil {
			t.Errorf("got %s", bodyOf(x))
		}
		r.wantCalls(3)
	})
}

// A search is given when the cluster cannot answer, in the shape of an async search.
func TestStaleAsyncAnswers(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "stale_if_error: 1m, stale_while_revalidate: 20s, proven_ttl: 0s", func(t *testing.T, r *asyncRig) {
		first := r.submit("bob", "")
		<-time.After(15 * time.Second)
		wantDetail(t, r.submit("bob", ""), "weir; fwd=stale; stored") // in the background nobody would fetch it
		r.cluster.Inject(estest.Fault{Path: "*async*", Status: 503})
		<-time.After(15 * time.Second)
		x := r.submit("bob", "")
		if !strings.HasSuffix(field(x, "cache-status"), "detail=stale-if-error") || foundBy(t, x) != foundBy(t, first) {
			t.Errorf("%s: %s", field(x, "cache-status"), bodyOf(x))
		}
	})
}

// OpenSearch says of a search that was over in time, and of one that was ended on its way, that it is closed.
func TestAsynchronousSearchesOfOpenSearch(t *testing.T) {
	asyncs(t, estest.OpenSearch2, "", func(t *testing.T, r *asyncRig) {
		first := r.submit("bob", "")
		wantDetail(t, first, "weir; fwd=miss; stored")
		hit := r.submit("bob", "keep_alive=1d")
		wantDetail(t, hit, "weir; hit")
		if foundBy(t, hit) != foundBy(t, first) || strings.Contains(bodyOf(hit), `"id"`) {
			t.Errorf("hit %s, first %s", bodyOf(hit), bodyOf(first))
		}
		wantDetail(t, r.as("bob", "POST", "/i/_plugins/_asynchronous_search", asyncBody), "weir; hit")
		wantDetail(t, r.as("bob", "POST", "/i/_search", asyncBody), "weir; fwd=miss; stored") // it takes another right
		r.wantCalls(2)

		end := r.runs(2 * time.Second)
		x := r.as("bob", "POST", "/_plugins/_asynchronous_search?index=i&wait_for_completion_timeout=1s", `{"size":2}`)
		wantStatus(t, x, "weir; fwd=miss; detail=running")
		end()
		<-time.After(time.Second)
		wantStatus(t, r.fetch("bob", idOf(t, x), ""), "weir; fwd=miss; stored")
		wantDetail(t, r.as("bob", "POST", "/_plugins/_asynchronous_search?index=i", `{"size":2}`), "weir; hit")

		r.cluster.Inject(estest.Fault{Path: "*async*", Delay: time.Second, Body: []byte(bodyOf(first))}) // which is closed
		wantStatus(t, r.as("bob", "POST", "/_plugins/_asynchronous_search?index=i", `{"size":3}`), "weir; fwd=miss; detail=shards")
		for _, params := range []string{"keep_alive=6d", "wait_for_completion_timeout=61s", "index=j"} {
			wantStatus(t, r.submit("bob", params), "weir; fwd=bypass; detail=async-arguments")
		}
	})
}

// A hit copies the answer into memory of the exchange, and allocates nothing.
func TestAsyncHitDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := newRig(t, short)
	r.node = func(x *flows.Exchange, call int64) error {
		reply(x, 200, `{"is_partial":false,"is_running":false,"start_time_in_millis":1,"expiration_time_in_millis":2,"response":`+complete(x, call)+`}`)
		return nil
	}
	const target = "/i/_async_search?wait_for_completion_timeout=200ms&keep_alive=60000ms&keep_on_completion=false&batched_reduce_size=64"
	r.ask(target, asyncBody)
	x := request(target, asyncBody, "Authorization", "Basic YTpi", "Accept-Encoding", "gzip")
	flow := r.flows["main"]
	for range 3 {
		if err := flow.Serve(x); err != nil {
			t.Fatal(err)
		}
	}
	if x.Trace.Outcome != flows.Hit {
		t.Fatalf("not a hit: %s", x.Trace.Cache)
	}
	if n := testing.AllocsPerRun(200, func() {
		if err := flow.Serve(x); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a hit makes %v allocations", n)
	}
}

// More searches than are remembered make others give way.
func TestPendingsAreBounded(t *testing.T) {
	var ps pendings
	now := time.Now()
	for i := range maxPendings + 10 {
		p := &pending{until: now.Add(time.Minute)}
		p.id[0], p.id[1] = byte(i), byte(i>>8)
		ps.put(p, now)
		if ps.get(p.id, now) != p {
			t.Fatal("the newest is not there")
		}
	}
	if n := ps.count(); n != maxPendings {
		t.Errorf("%d are remembered", n)
	}
	p := &pending{until: now.Add(time.Hour)}
	p.id[2] = 1
	ps.put(p, now.Add(2*time.Minute))
	if n := ps.count(); n != 1 {
		t.Errorf("%d are remembered of which one counts", n)
	}
	if ps.get(p.id, now.Add(2*time.Hour)) != nil || ps.count() != 0 {
		t.Error("one whose time is over is found")
	}
}

// A running search is not kept up for others when its submitter leaves: nobody would have its id.
func TestSubmitterLeavesTheSocket(t *testing.T) {
	r := newRig(t, classic)
	release, cancelled := r.held()
	e := r.listen()
	const target = "/i/_async_search?wait_for_completion_timeout=30s"
	leader := dial(t, e, target, `{}`)
	until(t, "the leader", func() bool { return r.calls.Load() == 1 })
	waiter := dial(t, e, target, `{}`)
	until(t, "the waiter", func() bool { return r.count("weir_cache_waiting_requests") == 1 })
	_ = leader.Close()
	if got := <-cancelled; got != "/i/_async_search" {
		t.Fatalf("%s was cancelled", got)
	}
	until(t, "the waiter's own search", func() bool { return r.calls.Load() == 2 })
	close(release)
	if resp, body := answerOf(t, waiter); resp.StatusCode != 200 {
		t.Errorf("the waiter got %v %s", resp.Header, body)
	}
}

// Who ends a search ends its own, whoever asked for the same at the same time.
func TestDeleteByOneOfTwo(t *testing.T) {
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		end := r.runs(5 * time.Second)
		first := idOf(t, r.submit("bob", "wait_for_completion_timeout=0"))
		second := idOf(t, r.submit("bob", "wait_for_completion_timeout=0"))
		alices := idOf(t, r.submit("alice", "wait_for_completion_timeout=0"))
		end()
		if x := r.as("alice", "DELETE", "/_async_search/"+second, ""); x.Response.Status != 404 {
			t.Errorf("alice ends bob's search: %d", x.Response.Status)
		}
		if x := r.as("bob", "DELETE", "/_async_search/"+first, ""); x.Response.Status != 200 {
			t.Errorf("bob cannot end his search: %s", bodyOf(x))
		}
		<-time.After(5 * time.Second)
		if x := r.fetch("bob", first, ""); x.Response.Status != 404 {
			t.Errorf("what was ended is there: %s", bodyOf(x))
		}
		for id, user := range map[string]string{second: "bob", alices: "alice"} {
			wantStatus(t, r.fetch(user, id, ""), "weir; fwd=miss; stored")
		}
	})
}

// An explanation of an async search is that of the search, with what is kept for it.
func TestExplanationOfAnAsyncSearch(t *testing.T) {
	r := newRig(t, short)
	r.ask("/i/_search?ignore_unavailable=true", asyncBody)
	f := func(method, target string) Explanation {
		t.Helper()
		x := request(target, asyncBody)
		x.Request.Method = []byte(method)
		e, ok := Explain([]*flows.Flow{r.flows["main"]}, x)
		if !ok {
			t.Fatal("no filter")
		}
		return e
	}
	e := f("POST", "/i/_async_search?ignore_unavailable=true&keep_alive=1m&batched_reduce_size=64")
	search := f("POST", "/i/_search?ignore_unavailable=true")
	if !e.Cacheable || e.API != "async_search.submit" || e.Key != search.Key || e.Entry == nil || e.Body != search.Body || strings.Join(e.Dropped, " ") != "batched_reduce_size=64" {
		t.Errorf("got %+v, and for the same _search %+v", e, search)
	}
	for target, why := range map[string]query.Reason{
		"POST /i/_async_search?keep_on_completion=true": query.ReasonAsyncKept,
		"POST /i/_async_search?keep_alive=1s":           query.ReasonAsyncArguments,
		"GET /_async_search/x":                          query.ReasonAsyncID,
		"DELETE /_async_search/x":                       query.ReasonAPI,
	} {
		method, path, _ := strings.Cut(target, " ")
		if e := f(method, path); e.Cacheable || e.Reason != string(why) || e.Because != sentences[why] {
			t.Errorf("%s: %+v", target, e)
		}
	}
}
