package cache

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/estest"
	"weir/elastic/generation"
	"weir/flows"
)

// jwt is an Authorization with an unsigned token of these claims.
func jwt(claims string) []string {
	return []string{"Authorization", "Bearer e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"}
}

func tokenOf(fields []string) string { return strings.TrimPrefix(fields[1], "Bearer ") }

// The credentials of the cluster of named.
var (
	bobNow, bobLater = jwt(`{"sub":"bob","exp":1,"jti":"a"}`), jwt(`{"jti":"b","sub":"bob","exp":2}`)
	bobElsewhere     = jwt(`{"sub":"bob","groups":["x"],"exp":1}`)
	bobsToken        = []string{"Authorization", "Bearer one"}
	bobsOtherToken   = []string{"Authorization", "Bearer two"}
	alicesToken      = []string{"Authorization", "Bearer alice"}
	alicesJWT        = jwt(`{"sub":"alice","exp":1}`)
)

// named runs f over a cluster that says who its callers are, and a cache that asks it.
func named(t *testing.T, flavor estest.Flavor, f func(t *testing.T, r *asyncRig, users []estest.User)) {
	t.Helper()
	asyncs(t, flavor, "identity: principal, ", func(t *testing.T, r *asyncRig) {
		users := []estest.User{
			{
				Name: "alice", Password: modelSecret, Roles: []string{"r"}, Filter: `{"term":{"team":"a"}}`,
				Tokens: []string{"alice", tokenOf(alicesJWT)},
			},
			{
				Name: "bob", Password: modelSecret, Roles: []string{"r", "q"}, RunAs: []string{"alice"},
				Keys:   []estest.Key{{ID: "k1", Secret: "s"}, {ID: "k2", Secret: "s", Filter: `{"term":{"team":"b"}}`}},
				Tokens: []string{"one", "two", tokenOf(bobNow), tokenOf(bobLater), tokenOf(bobElsewhere)},
			},
			{Name: "weir", Password: modelSecret},
		}
		r.setUsers(users)
		f(t, r, users)
	})
}

func (r *asyncRig) setUsers(users []estest.User) {
	r.t.Helper()
	if err := r.cluster.SetUsers(users...); err != nil {
		r.t.Fatal(err)
	}
}

// by sends a search with these fields, and checks which documents it finds.
func (r *asyncRig) by(target string, fields []string, sees string) *flows.Exchange {
	r.t.Helper()
	x := request(target, asyncBody, fields...)
	if err := r.serve("main", x); err != nil {
		r.t.Fatal(err)
	}
	var found strings.Builder
	for _, part := range strings.Split(bodyOf(x), `"_id":"`)[1:] {
		found.WriteString(part[:1])
	}
	if found.String() != sees {
		r.t.Errorf("%s %q: %d, documents %q, want %q (%s)", target, fields, x.Response.Status, found.String(), sees, field(x, "cache-status"))
	}
	return x
}

// Who shares answers with whom: callers of one kind, and of no two. Those of the kind "" share with nobody.
func TestPrincipalsShareAnswers(t *testing.T) {
	type caller struct {
		kind   string
		fields []string
		sees   string
	}
	runAs := func(fields []string) []string { return append(fields[:2:2], "es-security-runas-user", "alice") }
	elastic := []caller{
		{"alice", basicField("alice:" + modelSecret), "1"},
		{"alice by token", alicesToken, "1"},
		{"alice by JWT", alicesJWT, "1"},
		{"bob", basicField("bob:" + modelSecret), "12"},
		{"bob by token", bobsToken, "12"},
		{"bob by token", bobsOtherToken, "12"},
		{"bob by JWT", bobNow, "12"},
		{"bob by JWT", bobLater, "12"},
		{"bob by JWT of a group", bobElsewhere, "12"},
		{"as alice by token", runAs(bobsToken), "1"},
		{"as alice by token", runAs(bobsOtherToken), "1"},
		{"as alice", runAs(basicField("bob:" + modelSecret)), "1"},
		{"", keyField("k1:s"), "12"},
		{"", keyField("k2:s"), "2"},
		{"", append([]string{"X-Team", "a"}, bobsToken...), "12"},
		{"", append([]string{"X-Team", "b"}, bobsToken...), "12"},
		{"", append(bobsToken[:2:2], bobsOtherToken...), "12"},
	}
	// There nobody says whether the attributes of another token are the same.
	openSearch := []caller{
		{"alice", basicField("alice:" + modelSecret), "1"},
		{"", bobsToken, "12"},
		{"", bobsOtherToken, "12"},
		{"bob by JWT", bobNow, "12"},
		{"bob by JWT", bobLater, "12"},
		{"", bobElsewhere, "12"},
		{"", keyField("k1:s"), "12"},
		{"", keyField("k2:s"), "2"},
	}
	f := func(flavor estest.Flavor, callers []caller) {
		t.Helper()
		named(t, flavor, func(t *testing.T, r *asyncRig, _ []estest.User) {
			for i, first := range callers {
				for j, second := range callers {
					target := fmt.Sprintf("/i/_search?size=%d", 100+i*len(callers)+j) // asked by nobody before
					r.by(target, first.fields, first.sees)
					hit := r.by(target, second.fields, second.sees).Trace.Outcome == flows.Hit
					if alike := i == j || first.kind == second.kind && first.kind != ""; hit != alike {
						t.Errorf("%q after %q: a hit: %t", second.fields, first.fields, hit)
					}
				}
			}
		})
	}
	f(estest.Elasticsearch8, elastic)
	f(estest.OpenSearch2, openSearch)
}

// asks counts the questions who somebody is.
func (r *asyncRig) asks() *int {
	n, whole := 0, r.node
	var mu sync.Mutex
	r.node = func(x *flows.Exchange, call int64) error {
		if strings.Contains(string(x.Request.Path), "_security") {
			mu.Lock()
			n++
			mu.Unlock()
		}
		return whole(x, call)
	}
	return &n
}

// The cluster is asked once in auth_ttl for each caller, and never about credentials that such a call might use up or that say
// nothing beyond themselves.
func TestClustersAreAskedWhoSomebodyIs(t *testing.T) {
	named(t, estest.OpenSearch2, func(t *testing.T, r *asyncRig, _ []estest.User) {
		n := r.asks()
		f := func(want int, fields ...string) {
			t.Helper()
			*n = 0
			for i := range 5 {
				x := request(fmt.Sprintf("/i/_search?size=%d", i), asyncBody, fields...)
				if err := r.serve("main", x); err != nil {
					t.Fatal(err)
				}
			}
			if synctest.Wait(); *n != want {
				t.Errorf("%q: asked %d times, want %d", fields, *n, want)
			}
		}
		f(2, bobNow...) // by Elasticsearch's API first
		f(1, bobLater...)
		f(0, bobNow...)
		f(0, keyField("k1:s")...)
		f(0, "Authorization", "Negotiate abc")
		f(0, "Authorization", "AWS4-HMAC-SHA256 Credential=a")
		f(0)
		*n = 0
		if err := r.serve("main", request("/i/_search", asyncBody, append(alicesJWT[:2:2], "Cache-Control", "only-if-cached")...)); err == nil || *n != 0 {
			t.Errorf("only-if-cached: %v, asked %d times", err, *n)
		}
		<-time.After(61 * time.Second)
		f(1, bobNow...)
		*n = 0
		r.by("/i/_search?size=9&jwt=x", bobLater, "") // refused: an unknown parameter
		if *n != 0 {
			t.Error("a caller is asked about who has a token in the URL too")
		}
	})
}

// While the cluster does not say who somebody is, credentials tell callers apart, and it is not asked each time.
func TestPrincipalsThatCannotBeFound(t *testing.T) {
	faults := map[string]func(x *flows.Exchange){
		"503":           func(x *flows.Exchange) { reply(x, 503, `{}`) },
		"429":           func(x *flows.Exchange) { reply(x, 429, `{}`) },
		"nobody":        func(x *flows.Exchange) { reply(x, 200, `{"username":""}`) },
		"no JSON":       func(x *flows.Exchange) { reply(x, 200, `<html>`) },
		"no API":        func(x *flows.Exchange) { reply(x, 400, `{}`) },
		"a limit":       func(x *flows.Exchange) { reply(x, 200, bobsAnswer); x.Trace.Outcome = flows.Limited },
		"other cluster": func(x *flows.Exchange) { reply(x, 200, bobsAnswer); x.Trace.Cluster = "other" },
		"nothing":       func(*flows.Exchange) {},
	}
	for name, fault := range faults {
		named(t, estest.Elasticsearch8, func(t *testing.T, r *asyncRig, _ []estest.User) {
			whole, asked := r.node, 0
			r.node = func(x *flows.Exchange, call int64) error {
				if strings.Contains(string(x.Request.Path), "_security") {
					asked++
					fault(x)
					return nil
				}
				return whole(x, call)
			}
			for range 2 {
				for _, fields := range [][]string{bobsToken, bobsOtherToken, alicesToken} {
					sees := "12"
					if fields[1] == alicesToken[1] {
						sees = "1"
					}
					r.by("/i/_search", fields, sees)
				}
			}
			if r.count("weir_cache_requests_total", "main", "hit") != 3 || r.count("weir_cache_requests_total", "main", "miss") != 3 {
				t.Errorf("%s: not each caller has an answer of its own", name)
			}
			want := 3
			if name == "no API" {
				want *= 2
			}
			if asked != want {
				t.Errorf("%s: asked %d times, want %d", name, asked, want)
			}
			r.node = whole
			<-time.After(61 * time.Second)
			r.by("/i/_search", bobsToken, "12")
			if x := r.by("/i/_search", bobsOtherToken, "12"); x.Trace.Outcome != flows.Hit {
				t.Errorf("%s: afterwards: %s", name, field(x, "cache-status"))
			}
		})
	}
}

const bobsAnswer = `{"username":"bob","roles":[],"metadata":{},"enabled":true,"authentication_realm":{"name":"n","type":"native"},
	"lookup_realm":{"name":"n","type":"native"},"authentication_type":"token"}`

// Roles that were taken away, and tokens that were, count for auth_ttl at most, and no longer than until a node refuses them.
func TestPrincipalsThatChange(t *testing.T) {
	named(t, estest.Elasticsearch8, func(t *testing.T, r *asyncRig, users []estest.User) {
		n := r.asks()
		r.by("/i/_search?size=1&from=0", bobsToken, "1")
		users[1].Roles, users[1].Filter = []string{"r"}, `{"term":{"team":"b"}}`
		users[1].Tokens = []string{"one"}
		r.setUsers(users)
		<-time.After(5 * time.Second)
		if x := r.by("/i/_search?size=1&from=0", bobsToken, "1"); x.Trace.Outcome != flows.Hit {
			t.Errorf("within the bound: %s", field(x, "cache-status"))
		}
		<-time.After(56 * time.Second)
		r.by("/i/_search?size=1&from=0", bobsToken, "2")
		if *n != 2 {
			t.Errorf("asked %d times, want 2", *n)
		}

		// A node that knows a token no longer ends its part in what others are given, and not theirs.
		users[1].Tokens = []string{"one", "two"}
		r.setUsers(users)
		r.by("/i/_search?size=2", bobsToken, "2")
		r.by("/i/_search?size=2", bobsOtherToken, "2")
		users[1].Tokens = []string{"two"}
		r.setUsers(users)
		r.by("/i/_search?size=2", bobsToken, "2")
		r.by("/i/_search?size=2", append(bobsToken[:2:2], "Cache-Control", "no-cache"), "")
		r.by("/i/_search?size=2", bobsToken, "")
		if x := r.by("/i/_search?size=2", bobsOtherToken, "2"); x.Trace.Outcome != flows.Hit {
			t.Errorf("the other token: %s", field(x, "cache-status"))
		}

		// What a node may not show any more may be so because the caller is somebody else by now.
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			switch string(x.Request.Path) {
			case "/j/_search":
				reply(x, 403, `{}`)
				return nil
			case "/_security/user/eve":
				reply(x, 200, `{}`)
				r.tracker.Note(&generation.Write{Call: x.Call(), Method: x.Request.Method, Status: 200, Answer: []byte(`{}`)})
				return nil
			}
			return whole(x, call)
		}
		before := *n
		r.by("/i/_search?size=2", bobsOtherToken, "2")
		r.by("/j/_search", bobsOtherToken, "")
		r.by("/i/_search?size=2", bobsOtherToken, "2")
		if *n != before+1 {
			t.Errorf("asked %d times since, want once", *n-before)
		}
		// A change of users through the gateway counts at once.
		r.as("weir", "PUT", "/_security/user/eve", `{}`)
		r.by("/i/_search?size=2", bobsOtherToken, "2")
		if *n != before+2 {
			t.Errorf("asked %d times since", *n-before)
		}
	})
}

// A refusal is for the caller who was refused: who waits for the same answer with good credentials asks anew.
func TestRefusalsAreNotSharedByPrincipals(t *testing.T) {
	named(t, estest.Elasticsearch8, func(t *testing.T, r *asyncRig, users []estest.User) {
		r.by("/i/_search?size=3", bobsToken, "12")
		r.by("/i/_search?size=3", bobsOtherToken, "12")
		users[1].Tokens = []string{"two"}
		r.setUsers(users)
		delay := r.cluster.Inject(estest.Fault{Delay: 50 * time.Millisecond})
		var wg sync.WaitGroup
		wg.Go(func() { r.by("/i/_search", bobsToken, "") })
		synctest.Wait()
		for range 3 {
			wg.Go(func() { r.by("/i/_search", bobsOtherToken, "12") })
		}
		wg.Wait()
		delay.Remove()
	})
}

// Callers who ask at once wait for one answer who they are, and for one answer to what all of them ask.
func TestPrincipalsAtOnce(t *testing.T) {
	named(t, estest.Elasticsearch8, func(t *testing.T, r *asyncRig, _ []estest.User) {
		n := r.asks()
		delay := r.cluster.Inject(estest.Fault{Delay: 50 * time.Millisecond})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { r.by("/i/_search", bobsToken, "12") })
			wg.Go(func() { r.by("/i/_search", bobsOtherToken, "12") })
			wg.Go(func() { r.by("/i/_search", alicesToken, "1") })
		}
		left := request("/i/_search", asyncBody, bobsToken...)
		wg.Go(func() {
			if err := r.serve("main", left); err == nil {
				t.Error("who left is answered")
			}
		})
		synctest.Wait()
		left.Cancel().Fire()
		wg.Wait()
		delay.Remove()
		if calls := r.calls.Load(); *n != 3 || calls != 3+2 {
			t.Errorf("%d questions in %d calls, want 3 in 5", *n, calls)
		}
	})
}

// What one flow makes of a caller is nothing to another, which may send other credentials.
func TestPrincipalsOfFlows(t *testing.T) {
	named(t, estest.Elasticsearch8, func(t *testing.T, r *asyncRig, _ []estest.User) {
		r.load(`[{name: main, filter: [{cache: {identity: principal}}, {node: {}}]}, {name: other, filter: [{cache: {identity: principal}}, {node: {}}]}]`)
		elevated, whole := false, r.node
		r.node = func(x *flows.Exchange, call int64) error {
			if elevated {
				x.Request.Header.Set("Authorization", bobsToken[1])
			}
			return whole(x, call)
		}
		r.by("/i/_search", bobsToken, "12")
		elevated = true
		x := request("/i/_search", asyncBody, alicesToken...)
		if err := r.serve("other", x); err != nil {
			t.Fatal(err)
		}
		elevated = false
		r.by("/i/_search", alicesToken, "1")
	})
}

// Searches of a _msearch are shared likewise, and so are the answers of async searches, but not these while they run.
func TestPrincipalsOfOtherSearches(t *testing.T) {
	named(t, estest.Elasticsearch8, func(t *testing.T, r *asyncRig, _ []estest.User) {
		r.by("/i/_search", bobsToken, "12")
		multi := func(fields []string, sees string) *flows.Exchange {
			t.Helper()
			x := flows.Explaining("POST", "/_msearch", append([]string{"Content-Type", "application/x-ndjson"}, fields...)...)
			x.Request.Body.Replace([]byte(`{"index":"i"}` + "\n" + asyncBody + "\n"))
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(bodyOf(x), `"_id"`); n != len(sees) {
				t.Errorf("%q: %s", fields, bodyOf(x))
			}
			return x
		}
		if x := multi(bobsOtherToken, "12"); x.Trace.Outcome != flows.Hit {
			t.Errorf("_msearch: %s", field(x, "cache-status"))
		}
		if x := multi(alicesToken, "1"); x.Trace.Outcome == flows.Hit {
			t.Errorf("_msearch: %s", field(x, "cache-status"))
		}
		submit := func(fields []string) *flows.Exchange {
			t.Helper()
			x := request("/i/_async_search?wait_for_completion_timeout=0", asyncBody, fields...)
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			return x
		}
		submit(alicesToken) // the form is learned
		if x := submit(bobsOtherToken); x.Trace.Outcome != flows.Hit {
			t.Errorf("_async_search: %s", field(x, "cache-status"))
		}
		end := r.runs(time.Second)
		x := request("/i/_async_search?wait_for_completion_timeout=0&size=7", asyncBody, bobsToken...)
		if err := r.serve("main", x); err != nil {
			t.Fatal(err)
		}
		end()
		<-time.After(2 * time.Second)
		fetch := func(fields []string, want string) {
			t.Helper()
			x := flows.Explaining("GET", "/_async_search/"+idOf(t, x), fields...)
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			wantStatus(t, x, want)
		}
		fetch(bobsOtherToken, "weir; fwd=bypass; detail=async-id")
		fetch(bobsToken, "weir; fwd=miss; stored")
	})
}

// What a running gateway says of who shares an answer.
func TestExplainPrincipals(t *testing.T) {
	named(t, estest.Elasticsearch8, func(t *testing.T, r *asyncRig, _ []estest.User) {
		f := func(fields []string, want string) string {
			t.Helper()
			e, ok := Explain([]*flows.Flow{r.flows["main"]}, request("/i/_search", asyncBody, fields...))
			if !ok || e.SharedBy != want {
				t.Errorf("%q: %q, want %q", fields, e.SharedBy, want)
			}
			return e.Key
		}
		const unknown = "callers who are the same principal to the cluster; who that is it has not been asked lately"
		f(bobsToken, unknown)
		r.by("/i/_search", bobsToken, "12")
		r.by("/i/_search", bobsOtherToken, "12")
		key := f(bobsToken, "callers who are the same principal to the cluster, bob")
		if f(bobsOtherToken, "callers who are the same principal to the cluster, bob") != key {
			t.Error("two tokens of one principal have two keys")
		}
		f(keyField("k1:s"), "callers with the same credentials")
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 400, `{}`); return nil }
		if err := r.serve("main", request("/i/_search", asyncBody, alicesToken...)); err != nil {
			t.Fatal(err)
		}
		f(alicesToken, "callers with the same credentials: the cluster does not say who that is, or leaves open what rights that one has")
	})
}
