package cache

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/query"
	"weir/flows"
	"weir/internal/simtime"
)

// multiNode answers _search and _msearch as a node does. Each answer says what was searched and in which call. A body with
// "fail" is an item with an error, one with "partial" has lost a shard, and one with "refuse" makes the whole request a 400.
func multiNode(sent *[]string) func(x *flows.Exchange, call int64) error {
	return func(x *flows.Exchange, call int64) error {
		body, err := x.Request.Body.Bytes(1 << 20)
		if err != nil {
			return err
		}
		if sent != nil {
			*sent = append(*sent, string(body))
		}
		if x.Call().Name != "msearch" {
			reply(x, 200, searched(string(x.Call().Index), string(body), call))
			return nil
		}
		if bytes.Contains(body, []byte("refuse")) {
			reply(x, 400, `{"error":{"type":"parsing_exception"},"status":400}`)
			return nil
		}
		lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
		var items []string
		for i := 0; i+1 < len(lines); i += 2 {
			item := searched("i", lines[i+1], call)
			switch {
			case strings.Contains(lines[i+1], "fail"):
				items = append(items, `{"error":{"type":"index_not_found_exception"},"status":404}`)
				continue
			case strings.Contains(lines[i+1], "partial"):
				item = strings.Replace(item, `"failed":0`, `"failed":1`, 1)
			}
			items = append(items, strings.TrimSuffix(item, "}")+`,"status":200}`)
		}
		reply(x, 200, fmt.Sprintf(`{"took":%d,"responses":[%s]}`, call, strings.Join(items, ",")))
		return nil
	}
}

// searched is a complete answer. Numbers in it are such that decoding and encoding them would change them.
func searched(index, body string, call int64) string {
	return fmt.Sprintf(`{"took":%d,"timed_out":false,"_shards":{"total":2,"successful":2,"skipped":0,"failed":0},"hits":{"hits":[`+
		`{"_index":%q,"_source":{"asked":%q,"id":742241735434043391,"x":[1.0,1e2,-0,0.1000]},"sort":[9223372036854775807]}]}}`, call, index, body)
}

// items returns the items of the answer to a _msearch.
func items(t *testing.T, x *flows.Exchange) []string {
	t.Helper()
	body := bodyOf(x)
	_, rest, ok := strings.Cut(body, `,"responses":[`)
	if !ok || !strings.HasPrefix(body, `{"took":`) || !strings.HasSuffix(rest, "]}") {
		t.Fatalf("no answer to a _msearch: %s", body)
	}
	return strings.Split(strings.ReplaceAll(strings.TrimSuffix(rest, "]}"), `},{"took"`, "}\n"+`{"took"`), "\n")
}

// wantHit checks that x was answered from the store.
func wantHit(t *testing.T, x *flows.Exchange) {
	t.Helper()
	if got := field(x, "cache-status"); !strings.HasPrefix(got, "weir; hit; ttl=") || x.Trace.Outcome != flows.Hit {
		t.Errorf("%s: Cache-Status %q, outcome %s, want a hit", x.Request.Target, got, x.Trace.Outcome)
	}
}

func lines(list ...string) string { return strings.Join(list, "\n") + "\n" }

const head = `{"index":"i"}`

func TestMultiSearchIsAnsweredPerSearch(t *testing.T) {
	for _, flow := range []string{classic, short} {
		r := newRig(t, flow)
		var sent []string
		r.node = multiNode(&sent)
		first := r.ask("/_msearch", lines(head, `{"size":1,"from":2}`, head, `{"size":2}`))
		wantStatus(t, first, "weir; fwd=miss; stored")
		want := items(t, first)

		// The same panels in another order and spelling, as a dashboard sends them (elastic/kibana#9636).
		second := r.ask("/_msearch", lines(`{ "index" : ["i"] }`, ` {"size": 2}`, head, `{"from":2,"size":1}`))
		wantHit(t, second)
		if diff := cmp.Diff([]string{want[1], want[0]}, items(t, second)); diff != "" {
			t.Errorf("answers that were stored differ (-first +second):\n%s", diff)
		}
		r.wantCalls(1)

		// Only what is missing is asked for, in its order and as it was spelled.
		third := r.ask("/_msearch?max_concurrent_searches=5", lines(head, `{"size":3}`, head, `{"size":2}`, `{"index":"j"}`, `{"size" :2}`))
		wantStatus(t, third, `weir; fwd=partial; detail="1/3"`)
		if got, want := sent[1], lines(head, `{"size":3}`, `{"index":"j"}`, `{"size" :2}`); got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
		got := items(t, third)
		if len(got) != 3 || got[1] != want[1] || !strings.Contains(got[0], `\"size\":3`) || !strings.Contains(got[2], `\"size\" :2`) {
			t.Errorf("got %q", got)
		}
		if body, _ := third.Request.Body.Bytes(1 << 20); !bytes.Contains(body, []byte(`{"size":2}`)) {
			t.Errorf("the request is another one afterwards: %s", body)
		}
		if hits, misses := r.count("weir_cache_searches_total", "main", "hit"), r.count("weir_cache_searches_total", "main", "miss"); hits != 3 || misses != 4 {
			t.Errorf("%v hits and %v misses are counted", hits, misses)
		}
	}
}

func TestMultiSearchSharesEntriesWithSearch(t *testing.T) {
	r := newRig(t, short)
	r.node = multiNode(nil)
	one := bodyOf(r.ask("/a,b/_search?ignore_unavailable=true", `{"size":1}`))
	two := r.ask("/_msearch?max_concurrent_shard_requests=5", lines(
		`{"ignore_unavailable":true,"index":["a","b"],"search_type":"query_then_fetch"}`, `{"size":1}`))
	wantHit(t, two)
	if got, want := items(t, two)[0], strings.TrimSuffix(one, "}")+`,"status":200}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	r.ask("/a/_msearch?typed_keys=true", lines(`{"preference":"_local"}`, `{"size":2}`))
	three := r.ask("/a/_search?preference=_local&typed_keys", `{"size":2}`)
	wantHit(t, three)
	if got := bodyOf(three); !strings.HasSuffix(got, `"sort":[9223372036854775807]}]}}`) {
		t.Errorf("got %s", got)
	}
	r.wantCalls(2)
	// The line's own parameters come over those of the URL, and its index over that of the path.
	wantHit(t, r.ask("/c/_msearch?ignore_unavailable=false", lines(`{"index":"a,b","ignore_unavailable":true}`, `{"size":1}`)))
	for _, other := range []string{
		`{"index":"b,a","ignore_unavailable":true}`, `{"index":"a,b"}`, `{"index":"a,b","ignore_unavailable":true,"routing":"x"}`,
		`{"index":"a,b","ignore_unavailable":true,"expand_wildcards":["open"]}`, `{}`,
	} {
		wantStatus(t, r.ask("/c/_msearch", lines(other, `{"size":1}`)), "weir; fwd=miss; stored")
	}
	ndjson := flows.Explaining("POST", "/_msearch", "Content-Type", "application/x-ndjson")
	ndjson.Request.Body.Replace([]byte(lines(`{"index":"a,b","ignore_unavailable":true}`, `{"size":1}`)))
	if err := r.serve("main", ndjson); err != nil {
		t.Fatal(err)
	}
	wantHit(t, ndjson)
	bob := r.ask("/_msearch", lines(`{"index":"a,b","ignore_unavailable":true}`, `{"size":1}`), "Authorization", "Basic bob")
	wantStatus(t, bob, "weir; fwd=miss; stored")
}

// An empty first line of a search stands for no parameters, but not where it is the first of a body: nodes skip it there. So the
// second of these searches cannot be asked for as it came once the first is known.
func TestMultiSearchWithoutParametersIsAskedForByItself(t *testing.T) {
	r := newRig(t, short)
	var sent []string
	r.node = multiNode(&sent)
	r.ask("/i/_msearch", lines(`{}`, `{"size":1}`))
	wantStatus(t, r.ask("/i/_msearch", lines(`{}`, `{"size":1}`, ``, `{"size":2}`)), `weir; fwd=partial; detail="1/2"`)
	wantHit(t, r.ask("/i/_msearch", lines(`{}`, `{"size":1}`, ``, `{"size":2}`)))
	if want := lines(`{}`, `{"size":2}`); len(sent) != 2 || sent[1] != want {
		t.Errorf("sent %q, want %q", sent, want)
	}
	wantStatus(t, r.ask("/i/_msearch", lines(``, `{"size":1}`)), "weir; fwd=bypass; detail=body")
}

func TestMultiSearchAsksOnceForWhatItHasTwice(t *testing.T) {
	r := newRig(t, short)
	var sent []string
	r.node = multiNode(&sent)
	x := r.ask("/_msearch", lines(head, `{"size":1}`, head, `{"size":2}`, head, `{ "size":1}`))
	got := items(t, x)
	if len(got) != 3 || got[0] != got[2] || got[0] == got[1] {
		t.Errorf("got %q", got)
	}
	if want := lines(head, `{"size":1}`, head, `{"size":2}`); sent[0] != want {
		t.Errorf("sent %q, want %q", sent[0], want)
	}
}

// Searches that differ in what changes no complete answer are each asked for, since the answer to one may be incomplete on its
// account. A complete one is there for both.
func TestMultiSearchSharesNoIncompleteAnswer(t *testing.T) {
	f := func(target string, hasty, patient [2]string) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			r := newRig(t, short)
			node := multiNode(nil)
			r.node = func(x *flows.Exchange, call int64) error {
				<-time.After(time.Second)
				if err := node(x, call); err != nil {
					return err
				}
				body, _ := x.Request.Body.Bytes(1 << 20)
				answer := []byte(bodyOf(x))
				if bytes.HasPrefix(body, []byte(lines(hasty[:]...))) {
					answer = bytes.Replace(answer, []byte(`"timed_out":false`), []byte(`"timed_out":true`), 1)
				}
				x.Response.Body.Replace(answer)
				return nil
			}
			body := lines(hasty[0], hasty[1], patient[0], patient[1], hasty[0], hasty[1])
			x := r.ask(target, body)
			got := items(t, x)
			if len(got) != 3 || !strings.Contains(got[0], `"timed_out":true`) || strings.Contains(got[1], `"timed_out":true`) || got[2] != got[0] {
				t.Errorf("%s: got %q", body, got)
			}
			r.wantCalls(1)
			wantHit(t, r.ask(target, body))
			if n := r.shared().flights.count(); n != 0 {
				t.Errorf("%d flights are left", n)
			}

			// Nobody but its client waits for the request: when that leaves, it ends.
			r.shared().purge(func(query.Key, *Entry) bool { return true })
			left := request(target, body)
			var wg sync.WaitGroup
			wg.Go(func() { _ = r.serve("main", left) })
			synctest.Wait()
			if n := r.shared().flights.waiting.Load(); n != 0 {
				t.Errorf("%d wait, want none: it is one request", n)
			}
			wg.Wait()
		})
	}
	f("/_msearch", [2]string{head, `{"size":0,"timeout":"1ms"}`}, [2]string{head, `{"size":0}`})
	f("/_msearch", [2]string{`{"index":"i","allow_partial_search_results":true}`, `{"size":0}`},
		[2]string{`{"index":"i","allow_partial_search_results":false}`, `{"size":0}`})
	f("/i/_msearch?timeout=1ms", [2]string{`{"preference":"a"}`, `{"size":0}`}, [2]string{`{"preference":"b"}`, `{"size":0}`})
}

// What the node refuses a _msearch, as a whole or in one item, is not given from the store to a search either.
func TestMultiSearchRefusalEndsWhatIsKept(t *testing.T) {
	f := func(settings string, status int, answer string, ends, staysItem bool) {
		t.Helper()
		stale(t, settings, func(t *testing.T, r *rig) {
			node := multiNode(nil)
			r.node = node
			one, two := `{"size":1}`, `{"size":2}`
			r.ask("/i/_search", one)
			r.ask("/i/_search", two)
			r.node = func(x *flows.Exchange, _ int64) error {
				reply(x, status, answer)
				x.Response.Header.AddString("Warning", `299 Elasticsearch "deprecated"`)
				return nil
			}
			r.ask("/_msearch", lines(head, one, head, two), "Cache-Control", "no-cache")
			r.node = node
			if hit := r.ask("/i/_search", one).Trace.Outcome == flows.Hit; hit == ends {
				t.Errorf("%d %s: the stored answer is given: %t", status, answer, hit)
			}
			if hit := r.ask("/i/_search", two).Trace.Outcome == flows.Hit; hit != staysItem {
				t.Errorf("%d %s: the stored answer to the second is given: %t", status, answer, hit)
			}
		})
	}
	const good = `{"took":1,"timed_out":false,"_shards":{"total":2,"successful":2,"failed":0},"hits":{"hits":[]},"status":200}`
	item := func(end string) string {
		return `{"took":1,"responses":[{"error":{"type":"e"}` + end + `},` + good + `]}`
	}
	for _, status := range []int{401, 403, 404} {
		f("", 200, item(fmt.Sprintf(`,"status":%d`, status)), true, true)
		f("", status, `{"error":{}}`, true, false)
	}
	f("", 200, item(`,"status":503`), false, true)
	f("", 200, item(`,"status":429`), false, true)
	f("", 200, item(``), false, true)
	f("", 503, `{"error":{}}`, false, true)
	f("", 429, `{"error":{}}`, false, true)
	f("identity: shared", 200, item(`,"status":403`), false, true)
	f("identity: shared", 200, item(`,"status":404`), true, true)
	f("identity: shared", 403, `{"error":{}}`, false, true)
}

func TestMultiSearchKeepsNoFailures(t *testing.T) {
	r := newRig(t, short)
	var sent []string
	r.node = multiNode(&sent)
	body := lines(head, `{"fail":1}`, head, `{"size":1}`, head, `{"partial":1}`)
	first := items(t, r.ask("/_msearch", body))
	x := r.ask("/_msearch", body)
	wantStatus(t, x, `weir; fwd=partial; detail="1/3"`)
	second := items(t, x)
	if want := lines(head, `{"fail":1}`, head, `{"partial":1}`); sent[1] != want {
		t.Errorf("sent %q, want %q", sent[1], want)
	}
	if second[0] != first[0] || second[1] != first[1] || second[2] == first[2] || !strings.Contains(second[2], `"failed":1`) {
		t.Errorf("got %q, then %q", first, second)
	}
}

func TestMultiSearchIsRefusedAsAWhole(t *testing.T) {
	r := newRig(t, short)
	r.node = multiNode(nil)
	r.ask("/_msearch", lines(head, `{"size":1}`))
	x := r.ask("/_msearch", lines(head, `{"size":1}`, head, `{"refuse":1}`))
	if x.Response.Status != 400 {
		t.Errorf("status %d, want that of the node", x.Response.Status)
	}
	wantStatus(t, x, "weir; fwd=miss; detail=status")
	wantHit(t, r.ask("/_msearch", lines(head, `{"size":1}`)))
}

// An answer that does not fit what was asked is not put together with stored ones.
func TestMultiSearchWithAnAnswerThatDoesNotFit(t *testing.T) {
	for _, answer := range []string{
		`{"took":1,"responses":[]}`, `{"took":1,"responses":[{"status":200},{"status":200}]}`, `{"took":1}`, `{"took":1,"responses":{}}`,
		`{"took":1,"responses":[{}],"_shards":{}}`, `{"took":1,"responses":[{}]`, `<html>`, `{"took":1,"responses":[{]}`, `{"took":1,"responses":[`,
	} {
		r := newRig(t, short)
		var sent []string
		node := multiNode(&sent)
		r.node = node
		r.ask("/_msearch", lines(head, `{"size":1}`))
		r.node = func(x *flows.Exchange, call int64) error {
			if call == 2 {
				reply(x, 200, answer)
				return nil
			}
			return node(x, call)
		}
		body := lines(head, `{"size":1}`, head, `{"size":2}`)
		x := r.ask("/_msearch", body)
		if got := items(t, x); len(got) != 2 || sent[len(sent)-1] != body {
			t.Errorf("%s: sent %q, got %q", answer, sent, got)
		}
		r.wantCalls(3)
		wantStatus(t, x, "weir; fwd=miss; detail=malformed")
		if n := r.count("weir_cache_searches_total", "main", "hit"); n != 0 {
			t.Errorf("%s: %v hits are counted of an answer that was asked for as a whole", answer, n)
		}
	}
}

func TestMultiSearchSaysWhyNothingIsKept(t *testing.T) {
	f := func(search, why string) {
		t.Helper()
		r := newRig(t, short)
		r.node = multiNode(nil)
		wantStatus(t, r.ask("/_msearch", lines(head, search)), "weir; fwd=miss; detail="+why)
	}
	f(`{"fail":1}`, "status")
	f(`{"partial":1}`, "shards")
}

// White space between an answer's last members does not keep it from being stored, and a second status does.
func TestMultiSearchReadsItsItems(t *testing.T) {
	f := func(end, want string) {
		t.Helper()
		r := newRig(t, short)
		node := multiNode(nil)
		r.node = func(x *flows.Exchange, call int64) error {
			if err := node(x, call); err != nil {
				return err
			}
			x.Response.Body.Replace(bytes.ReplaceAll([]byte(bodyOf(x)), []byte(`,"status":200}`), []byte(end)))
			return nil
		}
		wantStatus(t, r.ask("/_msearch", lines(head, `{"size":1}`)), want)
	}
	f(", \"status\" : 200 }", "weir; fwd=miss; stored")
	f(`,"status":404,"status":200}`, "weir; fwd=miss; detail=status")
	f(`,"status":200,"more":1}`, "weir; fwd=miss; detail=status")
}

func TestMultiSearchPassesBy(t *testing.T) {
	r := newRig(t, short)
	r.node = multiNode(nil)
	f := func(target, body, why string, fields ...string) {
		t.Helper()
		for range 2 {
			wantStatus(t, r.ask(target, body, fields...), "weir; fwd=bypass; detail="+why)
		}
	}
	good := lines(head, `{"size":1}`)
	f("/_msearch?filter_path=responses.hits", good, "filter-path")
	f("/_msearch?filter%5fpath=responses.hits", good, "arguments")
	f("/_msearch?pretty", good, "format")
	f("/_msearch?format=yaml", good, "format")
	f("/_msearch", strings.TrimSuffix(good, "\n"), "body")
	f("/_msearch", lines(head), "body")
	f("/_msearch", lines(head, ``), "body")
	f("/_msearch", lines(`{"index":"i","unknown":1}`, `{}`), "arguments")
	f("/_msearch", lines(`{"index":"i","index":"j"}`, `{}`), "arguments")
	f("/_msearch", lines(`{"index":null}`, `{}`), "arguments")
	f("/_msearch", lines(`{"index":["i",1]}`, `{}`), "arguments")
	f("/_msearch", lines(`{"index":"i"`, `{}`), "arguments")
	f("/_msearch", lines(head, `{"pit":{"id":"x"}}`), "pit")
	f("/_msearch", lines(head, `{"size":1,"size":2}`), "duplicate-key")
	f("/_msearch", good, "no-store", "Cache-Control", "no-store")
	f("/_msearch", good, "origin", "Origin", "http://a")
	f("/_msearch", strings.Repeat(good, 257), "searches")
	f("/_msearch?scroll=1m", good, "scroll")
}

// What one search is refused for does not keep the others from being stored.
func TestMultiSearchWithASearchThatPassesBy(t *testing.T) {
	r := newRig(t, short)
	var sent []string
	r.node = multiNode(&sent)
	body := lines(head, `{"profile":true}`, head, `{"size":1}`)
	r.ask("/_msearch", body)
	wantStatus(t, r.ask("/_msearch", body), `weir; fwd=partial; detail="1/2"`)
	if want := lines(head, `{"profile":true}`); sent[1] != want {
		t.Errorf("sent %q, want %q", sent[1], want)
	}
}

func TestMultiSearchHeaders(t *testing.T) {
	r := newRig(t, short)
	node := multiNode(nil)
	warn := false
	r.node = func(x *flows.Exchange, call int64) error {
		err := node(x, call)
		if warn {
			x.Response.Header.AddString("Warning", `299 Elasticsearch "deprecated"`)
		}
		x.Response.Header.AddString("Traceparent", "00-1")
		return err
	}
	body := lines(head, `{"size":1}`)
	r.ask("/_msearch", body, "X-Opaque-Id", "a")
	x := r.ask("/_msearch", body, "X-Opaque-Id", "b")
	if got := field(x, "x-opaque-id"); got != "b" || x.Response.Header.Count("x-opaque-id") != 1 {
		t.Errorf("X-Opaque-Id %q", got)
	}
	if field(x, "traceparent") != "" || field(x, "x-elastic-product") != "Elasticsearch" || field(x, "content-type") == "" {
		t.Errorf("header %q", x.Response.Header.Fields())
	}
	// Nobody knows about which of the searches a warning is.
	warn = true
	warned := lines(head, `{"size":2}`, head, `{"size":3}`)
	for range 2 {
		wantStatus(t, r.ask("/_msearch", warned), "weir; fwd=miss; detail=warning")
	}
	// A search by itself keeps its warning, which is its own.
	r.ask("/i/_search", `{"size":4}`)
	if x := r.ask("/_msearch", lines(head, `{"size":4}`)); x.Trace.Outcome == flows.Hit {
		t.Error("the warning of a stored answer is lost")
	}
	x = request("/_msearch", body, "Cache-Control", "only-if-cached")
	if err := r.serve("main", x); err != nil {
		t.Errorf("what is stored is not given to one who wants nothing else: %v", err)
	}
	x = request("/_msearch", lines(head, `{"size":9}`), "Cache-Control", "only-if-cached")
	if err := r.serve("main", x); err == nil {
		t.Error("only-if-cached was asked for, and nothing is stored")
	}
	wantStatus(t, r.ask("/_msearch", body, "Cache-Control", "no-cache"), "weir; fwd=miss; detail=warning")
}

// Requests that have searches in common ask for each once, and never wait for each other for ever.
func TestMultiSearchesWaitForEachOther(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, short)
		node := multiNode(nil)
		var searches atomic.Int64
		r.node = func(x *flows.Exchange, call int64) error {
			body, _ := x.Request.Body.Bytes(1 << 20)
			searches.Add(int64(max(1, bytes.Count(body, []byte(head)))))
			<-time.After(time.Second)
			return node(x, call)
		}
		search := func(n int) string { return fmt.Sprintf(`{"size":%d}`, n) }
		asked := []*flows.Exchange{
			request("/_msearch", lines(head, search(1), head, search(2))),
			request("/_msearch", lines(head, search(2), head, search(3))),
			request("/_msearch", lines(head, search(3), head, search(1))),
			request("/i/_search", search(1)),
			request("/i/_search", search(4)),
			request("/_msearch", lines(head, search(4), head, search(2))),
		}
		var wg sync.WaitGroup
		for _, x := range asked {
			wg.Go(func() {
				if err := r.serve("main", x); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if n := searches.Load(); n != 4 {
			t.Errorf("%d searches were asked for, want 4", n)
		}
		if got := asked[5]; got.Trace.Outcome != flows.Shared || len(items(t, got)) != 2 {
			t.Errorf("outcome %s, %s", got.Trace.Outcome, bodyOf(got))
		}
	})
}

// When the request that others wait for fails, each of them still gets its answer.
func TestMultiSearchWaitsForOneThatFails(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, short)
		node := multiNode(nil)
		r.node = func(x *flows.Exchange, call int64) error {
			<-time.After(time.Second)
			if call == 1 {
				reply(x, 503, `{"error":{},"status":503}`)
				return nil
			}
			return node(x, call)
		}
		first := request("/_msearch", lines(head, `{"size":1}`))
		second := request("/_msearch", lines(head, `{"size":1}`, head, `{"size":2}`))
		var wg sync.WaitGroup
		for _, x := range []*flows.Exchange{first, second} {
			wg.Go(func() {
				if err := r.serve("main", x); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if got := items(t, second); first.Response.Status != 503 || second.Response.Status != 200 || len(got) != 2 {
			t.Errorf("%d, and %d %q", first.Response.Status, second.Response.Status, got)
		}
		if n := r.shared().flights.count(); n != 0 {
			t.Errorf("%d flights are left", n)
		}
	})
}

// A search whose answer can never be stored is not waited for again, whether it came alone or in a _msearch.
func TestSearchesThatCannotBeStoredAreMarked(t *testing.T) {
	marks := func(r *rig) (n int) {
		t.Helper()
		s, err := sharedOf(r.rt)
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.flights.shards {
			n += len(s.flights.shards[i].marks)
		}
		return n
	}
	r := newRig(t, `[{name: main, filter: [{cache: {max_entry: 400b}}, {node: {}}]}]`)
	r.node = multiNode(nil)
	r.ask("/_msearch", lines(head, `{"size":1}`, head, `{"size":2,"_source":"`+strings.Repeat("x", 200)+`"}`))
	if n := marks(r); n != 1 {
		t.Errorf("%d of two searches are marked, want the one whose answer is too large", n)
	}
}
