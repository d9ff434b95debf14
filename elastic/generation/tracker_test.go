package generation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"weir/elastic/api"
	"weir/elastic/estest"
	"weir/internal/obs"
	"weir/internal/simtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const every = 5 * time.Second

// rig is a tracker of a scripted cluster.
type rig struct {
	t       *testing.T
	cluster *estest.Cluster
	http    *http.Client
	tracker *Tracker
	down    atomic.Bool // the cluster cannot be reached
	polls   atomic.Int64
	during  atomic.Pointer[func()] // happens once, between the next answer about the indices and its arrival
}

// inBubble runs f with a rig in which time passes as fast as it can.
func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	simtime.Test(t, func(t *testing.T) {
		r := &rig{t: t, cluster: estest.New(t, estest.Options{InMemory: true})}
		transport := &http.Transport{DialContext: r.cluster.Dial, DisableKeepAlives: true}
		r.http = &http.Client{Transport: transport}
		r.tracker = New(Options{Cluster: "c", Metrics: obs.NewMetrics(), Logger: slog.New(slog.DiscardHandler)})
		defer r.tracker.Close()
		defer r.tracker.Use(r)()
		f(r)
	})
}

// Perform implements Client.
func (r *rig) Perform(req *http.Request) (*http.Response, error) {
	r.polls.Add(1)
	if r.down.Load() {
		return nil, errors.New("down")
	}
	req.URL.Scheme, req.URL.Host = "http", r.cluster.Node(0).Addr()
	resp, err := r.http.Do(req)
	if strings.Contains(req.URL.Path, "_stats") {
		if f := r.during.Swap(nil); f != nil {
			(*f)()
		}
	}
	return resp, err
}

// do sends a call that the tracker does not see.
func (r *rig) do(method, target, body string) []byte {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.cluster.URL()+target, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.http.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode > 299 {
		r.t.Fatalf("%s %s: %d %s %v", method, target, resp.StatusCode, answer, err)
	}
	return answer
}

func (r *rig) stamp(index string) *Stamp {
	s := r.tracker.Stamp([]byte(index), []byte("pretty&expand_wildcards=all"), every)
	return &s
}

// wait lets time pass, and everything that comes with it.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// proven returns a stamp of which polls can prove that nothing changed.
func (r *rig) proven(index string) *Stamp {
	r.t.Helper()
	r.stamp(index)
	wait(time.Millisecond)
	s := r.stamp(index)
	if !s.Proven(time.Now()) {
		r.t.Fatalf("no poll has proven %s", index)
	}
	return s
}

func TestChangesByOthersAreNoticedByPolls(t *testing.T) {
	f := func(index string, change func(r *rig), want bool) {
		t.Helper()
		inBubble(t, func(r *rig) {
			r.do("PUT", "/a-1", `{"settings":{"number_of_replicas":1},"aliases":{"a":{}}}`)
			r.do("PUT", "/b", `{}`)
			r.do("PUT", "/b/_doc/1?refresh=true", `{"n":1}`)
			s := r.proven(index)
			change(r)
			wait(2 * every)
			if got := s.Changed(); got != want {
				t.Errorf("%s: changed is %v, want %v", index, got, want)
			}
			if s.Proven(time.Now()) == want {
				t.Errorf("%s: proven is %v", index, !want)
			}
		})
	}
	call := func(method, target, body string) func(*rig) {
		return func(r *rig) { r.do(method, target, body) }
	}
	put := call("PUT", "/a-1/_doc/1?refresh=true", `{"n":1}`)
	f("a-1", func(*rig) {}, false)
	f("a-1", put, true)
	f("a", put, true)
	f("a*", put, true)
	f("%61-1", put, true)
	f("", put, true)
	f("b", put, false)
	f("b,-a*", put, false)
	f("*,-a*", put, false)
	f("a-1", call("PUT", "/a-1/_mapping", `{"properties":{"x":{"type":"long"}}}`), true)
	f("b", call("PUT", "/a-1/_mapping", `{"properties":{"x":{"type":"long"}}}`), false)
	f("a", call("POST", "/_aliases", `{"actions":[{"remove":{"index":"a-1","alias":"a"}},{"add":{"index":"b","alias":"a"}}]}`), true)
	f("a", call("POST", "/_aliases", `{"actions":[{"add":{"index":"b","alias":"a"}}]}`), true)
	f("a", call("POST", "/_aliases", `{"actions":[{"add":{"index":"a-1","alias":"a","filter":{"term":{"n":1}}}}]}`), true)
	f("a*", call("PUT", "/a-2", `{}`), true)
	f("b", func(r *rig) { // the same counters, another index
		r.do("DELETE", "/b", "")
		r.do("PUT", "/b", `{}`)
		r.do("PUT", "/b/_doc/1?refresh=true", `{"n":2}`)
	}, true)
	f("b", call("DELETE", "/b", ""), true)
	f("a-1,b", call("DELETE", "/b", ""), true)
	f("a-1", func(r *rig) { // a shard moves
		if _, err := r.cluster.AddNode(); err != nil {
			r.t.Error(err)
		}
	}, true)
}

// A cache that answers all searches keeps an index from being searched, and then from being refreshed.
func TestWritesToAnIndexThatNobodySearches(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.do("PUT", "/a", `{}`)
		r.do("GET", "/a/_search", "")
		wait(time.Minute)
		refreshes := func() string {
			return string(r.do("GET", "/a/_stats/refresh?filter_path=_all.total.refresh.external_total", ""))
		}
		s := r.proven("a")
		before := refreshes()
		r.do("PUT", "/a/_doc/1", `{"n":1}`)
		wait(2 * every)
		if after := refreshes(); after != before {
			t.Fatalf("the index refreshes although nobody searches it: %s, then %s", before, after)
		}
		if !s.Changed() {
			t.Error("the write was not noticed")
		}
	})
}

// A poll from before a write vouches for nothing that is found while the write is on its way to be visible, however long
// ago the write was.
func TestPollsFromBeforeAWriteProveNothingAfterIt(t *testing.T) {
	for _, later := range []time.Duration{0, Settle / 2, Settle + time.Millisecond} {
		inBubble(t, func(r *rig) {
			r.do("PUT", "/a", `{"settings":{"refresh_interval":"30s"}}`)
			r.proven("a")
			var c api.Call
			api.Classify(&c, []byte("PUT"), []byte("/a/_doc/1"), nil)
			r.do("PUT", "/a/_doc/1", `{"n":1}`)
			r.tracker.Note(&Write{Call: &c, Method: []byte("PUT"), Status: 201, Answer: []byte(`{"_index":"a"}`)})
			wait(later)
			s := r.stamp("a")
			wait(every - later - 10*time.Millisecond)
			if s.Changed() || s.Proven(time.Now()) {
				t.Errorf("%s after the write: changed is %v and proven %v by a poll from before it", later, s.Changed(), s.Proven(time.Now()))
			}
			wait(every)
			if s = r.stamp("a"); !s.Proven(time.Now()) {
				t.Errorf("%s: a poll that knows the write proves nothing", later)
			}
		})
	}
}

// scripted answers polls of one index whose counters stand still, with what the cluster's state says of its node and copies.
type scripted struct{ state atomic.Pointer[string] }

// Perform implements Client.
func (c *scripted) Perform(req *http.Request) (*http.Response, error) {
	state := *c.state.Load()
	w := httptest.NewRecorder()
	switch req.URL.Path {
	case "/_cluster/state/version":
		fmt.Fprintf(w, `{"version":%d,"state_uuid":"s"}`, len(state))
	case "/_cluster/state/metadata,nodes":
		fmt.Fprint(w, state)
	case "/_alias":
		fmt.Fprint(w, `{}`)
	default:
		fmt.Fprint(w, `{"_shards":{"failed":0},"indices":{"a":{"uuid":"u","shards":{"0":[{"routing":{"node":"n"},"seq_no":{"max_seq_no":1},"refresh":{"external_total":2}}]}}}}`)
	}
	return w.Result(), nil
}

// A shard that is opened again shows what it had not shown yet, with the counters of before.
func TestCountersThatBeginAnewWhereTheyWere(t *testing.T) {
	f := func(node, terms, copies string, want bool) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			state := func(node, terms, copies string) *string {
				s := fmt.Sprintf(`{"metadata":{"indices":{"a":{"primary_terms":{"0":%s},"in_sync_allocations":{"0":[%s]}}}},"nodes":{"n":{"ephemeral_id":%q}}}`, terms, copies, node)
				return &s
			}
			c := &scripted{}
			c.state.Store(state("p", "1", `"c"`))
			r := &rig{t: t, tracker: New(Options{Cluster: "c", Metrics: obs.NewMetrics(), Logger: slog.New(slog.DiscardHandler)})}
			defer r.tracker.Close()
			defer r.tracker.Use(c)()
			s := r.proven("a")
			c.state.Store(state(node, terms, copies))
			wait(2 * every)
			if got := s.Changed(); got != want {
				t.Errorf("%s %s %s: changed is %v, want %v", node, terms, copies, got, want)
			}
		})
	}
	f("p", "1", `"c"`, false)
	f("other", "1", `"c"`, true)
	f("p", "12", `"c"`, true)
	f("p", "1", `"c","d"`, true)
}

// What is found between a write and the refresh that shows it is outdated by the refresh.
func TestRefreshAfterThePollThatSawTheWrite(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.do("PUT", "/a", `{"settings":{"refresh_interval":"30s"}}`)
		r.do("PUT", "/a/_doc/1", `{"n":1}`)
		s := r.proven("a")
		wait(2 * every)
		if s.Changed() || !s.Proven(time.Now()) {
			t.Error("nothing has happened since")
		}
		wait(30 * time.Second)
		r.do("GET", "/a/_search", "")
		if wait(2 * every); !s.Changed() {
			t.Error("the refresh was not noticed")
		}
	})
}

// What an alias with a filter finds may change with the clock, or with another index.
func TestFiltersThatMoveAreNeverProven(t *testing.T) {
	f := func(filter, index string, want bool) {
		t.Helper()
		inBubble(t, func(r *rig) {
			r.do("PUT", "/a-1", `{"aliases":{"recent":{"filter":`+filter+`},"all":{}}}`)
			r.stamp(index)
			wait(time.Millisecond)
			s := r.stamp(index)
			wait(every)
			if got := s.Proven(time.Now()); got != want || s.Changed() {
				t.Errorf("%s with %s: proven is %v, want %v; changed is %v", index, filter, got, want, s.Changed())
			}
			if s.scope.names == nil {
				t.Errorf("%s: nobody knows what it stands for", index)
			}
		})
	}
	const now = `{"range":{"t":{"gte":"now-15s"}}}`
	f(now, "recent", false)
	f(now, "rec*", false)
	f(now, "a-1,%72ecent", false)
	f(now, "all", true)
	f(now, "a-1", true)
	f(`{"range":{"t":{"gte":"2020-01-01"}}}`, "recent", true)
	f(`{"terms":{"k":{"index":"users","id":"1","path":"x"}}}`, "recent", false)
	f(`{"script":{"script":"doc.t.value > 1"}}`, "recent", false)
	f(`{"match":{"k":"know now"}}`, "recent", true)
	// The filter comes to an alias that was proven.
	inBubble(t, func(r *rig) {
		r.do("PUT", "/a-1", `{"aliases":{"recent":{}}}`)
		s := r.proven("recent")
		r.do("PUT", "/a-1/_alias/recent", `{"filter":`+now+`}`)
		wait(2 * every)
		if !s.Changed() || s.Proven(time.Now()) {
			t.Error("the filter was not noticed")
		}
	})
}

func TestNothingIsProvenWithoutPolls(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.do("PUT", "/a", `{}`)
		first := r.stamp("a")
		if wait(2 * every); first.Proven(time.Now()) {
			t.Error("a stamp from before the first token is proven")
		}
		s := r.proven("a")
		r.down.Store(true)
		if wait(2*every + time.Millisecond); s.Changed() || s.Proven(time.Now()) {
			t.Errorf("changed is %v and proven %v while the cluster is down", s.Changed(), s.Proven(time.Now()))
		}
		r.down.Store(false)
		if wait(every); !s.Proven(time.Now()) {
			t.Error("nothing has changed, and polls show it again")
		}
		if s := r.tracker.Stamp([]byte("other:a"), nil, every); s.scope.polled() {
			t.Error("an index of another cluster is polled")
		}
	})
}

func TestPollsEndWhenNobodyAsks(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.do("PUT", "/a", `{}`)
		r.proven("a")
		wait(2 * idleAfter)
		before := r.polls.Load()
		wait(10 * time.Hour)
		if n := r.polls.Load() - before; n != 0 {
			t.Errorf("%d polls in ten hours in which nobody asked", n)
		}
	})
}

func TestScopesAreBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.down.Store(true)
		first := r.tracker.Stamp([]byte("a"), nil, 0)
		wait(time.Millisecond)
		for i := range maxScopes {
			r.tracker.Stamp(fmt.Appendf(nil, "i-%d", i), nil, 0)
		}
		if n := len(r.tracker.scopes); n != maxScopes {
			t.Errorf("%d scopes", n)
		}
		if !first.Changed() {
			t.Error("nothing notices changes of a scope that gave way, so it must count as changed")
		}
	})
}

func TestWritesSeen(t *testing.T) {
	const item = `{"took":1,"errors":false,"items":[{"index":{"_index":"a-1","_id":"1","status":201}},{"delete" : { "_index" : "a-1" , "status":200}}]}`
	const refusal, done = `{"error":{"type":"x"},"status":400}`, `{"took":1,"updated":3,"failures":[{"index":"a-1","status":400}]}`
	// f tells which of these expressions a write changes.
	exprs := []string{"a-1", "a", "a*", "b", "*", ",", "ne*", "never-resolved"}
	f := func(method, target, body string, status int, answer string, want ...string) {
		t.Helper()
		inBubble(t, func(r *rig) {
			r.do("PUT", "/a-1", `{"aliases":{"a":{}}}`)
			r.do("PUT", "/b", `{}`)
			r.do("PUT", "/piped", `{"settings":{"default_pipeline":"p"}}`)
			r.do("PUT", "/plain", `{"settings":{"default_pipeline":"_none"}}`)
			stamps := map[string]*Stamp{}
			for _, e := range exprs[:len(exprs)-1] {
				r.stamp(e)
			}
			wait(time.Millisecond)
			for _, e := range exprs {
				stamps[e] = r.stamp(e)
			}
			var c api.Call
			path, query, _ := bytes.Cut([]byte(target), []byte("?"))
			api.Classify(&c, []byte(method), path, query)
			r.tracker.Note(&Write{Call: &c, Method: []byte(method), Query: query, Body: []byte(body), Status: status, Answer: []byte(answer)})
			var got []string
			for _, e := range exprs {
				if stamps[e].Changed() {
					got = append(got, e)
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%s %s: changed %q, want %q", method, target, got, want)
			}
		})
	}
	touched := []string{"a-1", "a", "a*", "*", ",", "never-resolved"}
	f("POST", "/_bulk?refresh=true", "", 200, item, touched...)
	f("POST", "/a/_bulk", "", 200, item, touched...)
	f("PUT", "/a/_doc/1", "", 201, `{"_index":"a-1","result":"created"}`, touched...)
	f("POST", "/a/_update/1?pretty", "", 200, "{\n  \"_index\" : \"a-1\"\n}", touched...)
	f("DELETE", "/a-1/_doc/1", "", 200, `{"_index":"a-1","result":"deleted"}`, touched...)
	// Answers that name nothing: then the request does.
	f("POST", "/_bulk?filter_path=errors", "{\"index\":{\"_index\":\"a-1\"}}\n{}\n", 200, `{"errors":false}`, touched...)
	f("POST", "/a-1/_bulk", "{\"index\":{}}\n{}\n", 200, "\x1f\x8b", touched...)
	// Answers that do not name all.
	const two = "{\"index\":{\"_index\":\"b\"}}\n{}\n{\"delete\":{\"_index\":\"a-1\",\"_id\":\"1\"}}\n"
	both := []string{"a-1", "a", "a*", "b", "*", ",", "never-resolved"}
	f("POST", "/_bulk?filter_path=items.index._index", two, 200, `{"items":[{"index":{"_index":"b"}}]}`, both...)
	f("POST", "/_bulk?filter%5Fpath=items.index._index", two, 200, `{"items":[{"index":{"_index":"b"}}]}`, both...)
	f("POST", "/_bulk?filter_path=items.*.get", "{\"update\":{\"_index\":\"a-1\",\"_id\":\"1\"}}\n{}\n", 200, `{"items":[{"update":{"get":{"_source":{"_index":"b"}}}}]}`, both...)
	f("POST", "/_bulk?format=yaml", two, 200, "---\nx: {\"_index\":\"b\"}\n", both...)
	f("POST", "/_bulk", two, 200, `{"items":[{"index":{"_index":"b"}},`, both...)
	f("POST", "/_bulk", two, 503, `{"error":{"x":{"_index":"b"}},"status":503}`, both...)
	// An ingest pipeline may have put the document elsewhere.
	f("PUT", "/piped/_doc/1", "", 201, `{"_index":"a-1"}`, touched...)
	f("PUT", "/piped/_doc/1", "", 201, "\x1f\x8b", exprs...)
	f("PUT", "/piped/_doc/1?filter_path=result", "", 201, `{"result":"created"}`, exprs...)
	f("PUT", "/plain/_doc/1", "", 201, "\x1f\x8b", "*", ",", "never-resolved")
	f("PUT", "/a-1/_doc/1?pipeline=p", "", 201, "\x1f\x8b", exprs...)
	f("POST", "/_bulk", "{\"index\":{\"_index\":\"a-1\",\"pipeline\":\"p\"}}\n{}\n", 200, "\x1f\x8b", exprs...)
	f("POST", "/piped/_bulk", "{\"index\":{}}\n{}\n", 200, "\x1f\x8b", exprs...)
	// The index may have been made before the document was refused.
	f("PUT", "/new/_doc/1", "", 400, refusal, "*", ",", "ne*")
	f("PUT", "/new/_create/1", "", 429, refusal, "*", ",", "ne*")
	f("PUT", "/a-1/_doc/1", "", 500, ``, touched...)
	f("PUT", "/a-1/_doc/1", "", 0, ``, touched...)
	f("POST", "/a-1/_delete_by_query", "", 409, ``, touched...)
	f("PUT", "/a-1/_create/1", "", 409, `{"error":{"index":"a-1"}}`, touched...)
	f("DELETE", "/a-1/_doc/1?refresh=true", "", 404, `{"_index":"a-1","result":"not_found"}`, touched...)
	f("POST", "/a-1/_refresh", "", 200, `{}`, touched...)
	// What the name stands for is not known.
	f("POST", "/_bulk", "", 200, `{}`, exprs...)
	f("POST", "/_bulk?filter_path=errors", "{\"index\":{\"_index\":\"a\"}}\n{}\n", 200, `{"errors":false}`, exprs...)
	f("POST", "/_bulk", "", 200, `{"items":[{"index":{"_index":"new"}}]}`, exprs...)
	f("POST", "/a/_update_by_query", "", 200, `{}`, exprs...)
	f("POST", "/_reindex", `{"dest":{"index":"a-1"}}`, 200, `{}`, exprs...)
	f("POST", "/_aliases", "", 200, `{}`, exprs...)
	f("DELETE", "/b", "", 200, `{}`, exprs...)
	f("PUT", "/b/_mapping", "", 200, `{}`, exprs...)
	f("POST", "/a/_rollover", "", 200, `{}`, exprs...)
	f("PUT", "/_security/user/u", "", 200, `{}`, exprs...)
	f("POST", "/_plugins/_some/_thing", "", 200, `{}`, exprs...)
	// Part of it was done before it was refused.
	f("POST", "/a-1/_delete_by_query", "", 400, done, touched...)
	f("POST", "/a-1/_update_by_query", "", 429, done, touched...)
	f("POST", "/a-1/_update_by_query?filter_path=failures", "", 403, `{"failures":[{"status":403}]}`, touched...)
	f("POST", "/a-1/_update_by_query", "", 429, refusal, touched...)
	f("POST", "/_reindex", "", 400, done, exprs...)
	f("POST", "/_reindex", "", 429, done, exprs...)
	f("POST", "/_reindex", "", 403, ``, exprs...)
	f("POST", "/a-1/_bulk", "{\"index\":{}}\n{}\n", 400, refusal, touched...)
	f("POST", "/_bulk", "{\"index\":{\"_index\":\"a-1\"}}\n{}\n{", 400, refusal, exprs...)
	f("POST", "/_some/_thing", "", 400, refusal, exprs...)
	// Statements that may write.
	f("POST", "/_plugins/_sql", `{"query":"DELETE FROM a-1"}`, 200, `{}`, exprs...)
	f("POST", "/_plugins/_sql", `{"query":"DELETE FROM a-1"}`, 400, `{}`, exprs...)
	f("POST", "/_plugins/_sql", ``, 200, `{}`, exprs...)
	// Nothing happened.
	f("POST", "/_plugins/_sql", `{"query":"DELETE FROM a-1"}`, 403, refusal)
	f("POST", "/_plugins/_sql", `{"query":"select 1"}`, 200, `{}`)
	f("POST", "/_plugins/_sql", `{"cursor":"x"}`, 200, `{}`)
	f("POST", "/_sql", "\xbf\x65", 200, `{}`)
	f("POST", "/_plugins/_ppl", `{"query":"source=a-1"}`, 200, `{}`)
	f("POST", "/_aliases", "", 404, `{}`)
	f("PUT", "/a-1/_doc/1", "", 400, `{}`)
	f("PUT", "/a-1/_doc/1", "", 429, `{"error":{"type":"es_rejected_execution_exception"},"status":429}`)
	f("POST", "/_reindex", "", 403, refusal)
	f("POST", "/a-1/_update_by_query", "", 401, refusal)
	f("POST", "/_bulk", "", 403, refusal)
	f("POST", "/_bulk", "", 429, refusal)
	f("POST", "/_some/_thing", "", 403, refusal)
	f("POST", "/_aliases", "", 400, refusal)
	f("POST", "/a-1/_search", "", 200, `{"hits":{"hits":[{"_index":"a-1"}]}}`)
	f("POST", "/a-1/_search?scroll=1m", "", 200, `{}`)
	f("POST", "/_msearch", "", 200, `{}`)
	f("DELETE", "/_search/scroll", "", 200, `{}`)
	f("GET", "/a-1/_mapping", "", 200, `{}`)
	f("GET", "/_some/_thing", "", 200, `{}`)
}

// After an alias was moved through this process, a write to the index behind it concerns the alias, polled again or not.
func TestWritesBehindAnAliasThatWasMoved(t *testing.T) {
	for _, during := range []bool{false, true} {
		inBubble(t, func(r *rig) {
			r.do("PUT", "/a", `{"aliases":{"al":{}}}`)
			r.do("PUT", "/b", `{}`)
			r.stamp("al")
			wait(time.Millisecond)
			move := func() {
				r.do("POST", "/_aliases", `{"actions":[{"remove":{"index":"a","alias":"al"}},{"add":{"index":"b","alias":"al"}}]}`)
				r.note("POST", "/_aliases", `{"acknowledged":true}`)
			}
			if during { // a poll that has asked before and gets its answer after
				r.during.Store(&move)
				wait(every + time.Second)
			} else {
				move()
			}
			s := r.stamp("al")
			r.note("PUT", "/b/_doc/1?refresh=true", `{"_index":"b","result":"created"}`)
			if !s.Changed() {
				t.Errorf("a write to the index behind the alias was not seen; moved during a poll: %t", during)
			}
		})
	}
}

// note tells the tracker of a call that it saw.
func (r *rig) note(method, target, answer string) {
	var c api.Call
	path, query, _ := strings.Cut(target, "?")
	api.Classify(&c, []byte(method), []byte(path), []byte(query))
	r.tracker.Note(&Write{Call: &c, Method: []byte(method), Query: []byte(query), Status: 200, Answer: []byte(answer)})
}

// What an expression stands for may change while it is not polled, and then a write to any index may concern it.
func TestWritesBehindAnExpressionThatIsNotPolled(t *testing.T) {
	f := func(name string, change func(r *rig)) {
		t.Helper()
		inBubble(t, func(r *rig) {
			r.do("PUT", "/a-1", `{"aliases":{"al":{}}}`)
			r.do("PUT", "/b", `{}`)
			r.proven("al")
			change(r)
			s := r.stamp("al")
			r.note("PUT", "/b/_doc/1?refresh=true", `{"_index":"b","result":"created"}`)
			if !s.Changed() {
				t.Errorf("%s: a write to the index behind the alias was not seen", name)
			}
			wait(2 * every)
			if s = r.stamp("al"); !s.Proven(time.Now()) {
				t.Errorf("%s: the alias is not polled", name)
			}
		})
	}
	move := func(r *rig) {
		r.do("POST", "/_aliases", `{"actions":[{"remove":{"index":"a-1","alias":"al"}},{"add":{"index":"b","alias":"al"}}]}`)
	}
	f("moved while nobody asked", func(r *rig) {
		wait(2 * idleAfter)
		move(r)
	})
	f("known to the poll of another expression", func(r *rig) {
		wait(every / 2)
		r.proven("a-1")
		wait(3 * every / 4)
		r.do("PUT", "/a-2", `{}`)
		move(r)
		wait(every / 2)
	})
	f("moved while the cluster was out of reach", func(r *rig) {
		r.down.Store(true)
		wait(3 * every / 2)
		move(r)
		r.down.Store(false)
	})
}

func TestExpressionsThatAreAskedForAgainArePolled(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.do("PUT", "/a", `{}`)
		old := r.proven("a")
		wait(2 * idleAfter)
		if old.Proven(time.Now()) {
			t.Fatal("a poll of minutes ago proves something")
		}
		r.proven("a")
	})
}

func TestWritesWithoutRefreshLeaveIndicesUnsettled(t *testing.T) {
	f := func(query string, want bool) {
		t.Helper()
		inBubble(t, func(r *rig) {
			var c api.Call
			api.Classify(&c, []byte("PUT"), []byte("/a/_doc/1"), []byte(query))
			r.stamp("a")
			r.tracker.Note(&Write{Call: &c, Method: []byte("PUT"), Query: []byte(query), Status: 200, Answer: []byte(`{"_index":"a"}`)})
			if got := r.stamp("a").Dirty(); got != want {
				t.Errorf("%s: dirty is %v", query, got)
			}
			if got := r.stamp("a*").Dirty(); got != want {
				t.Errorf("%s: dirty is %v of an expression that is new", query, got)
			}
			if wait(Settle); r.stamp("a").Dirty() || r.stamp("a*").Dirty() || r.stamp("*").Dirty() {
				t.Errorf("%s: dirty after it had time to refresh", query)
			}
		})
	}
	f("", true)
	f("refresh=false", true)
	f("refresh", false)
	f("refresh=true", false)
	f("refresh=wait_for", false)
}

// Whatever stands in the answer to a write, the indices that its items name are found.
func FuzzAnswered(f *testing.F) {
	f.Add([]byte(`{"items":[{"index":{"_index":"a","_id":"\"_index\":\"x\""}},{"create":{"_index" :"b"}}]}`))
	f.Add([]byte(`{"_index":"a\u0062"}`))
	f.Add([]byte(`"_index":`))
	f.Fuzz(func(t *testing.T, body []byte) {
		names, ok := answered(body)
		if ok != (len(names) > 0) {
			t.Fatalf("%q: %q %v", body, names, ok)
		}
		for _, n := range names {
			if !bytes.Contains(body, []byte(`"`+n+`"`)) {
				t.Errorf("%q does not name %q", body, n)
			}
		}
	})
}
