package cache

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/generation"
	"weir/flows"
	"weir/internal/simtime"
)

// wantMiss checks that an answer came from a node although one was kept.
func wantMiss(t *testing.T, x *flows.Exchange) {
	t.Helper()
	wantStatus(t, x, "weir; fwd=stale; stored")
}

// Old answers are given to whom nodes still let in.
func TestCredentialsAreProvenAnew(t *testing.T) {
	stale(t, "stale_while_revalidate: 1h, stale_if_error: 1h", func(t *testing.T, r *rig) {
		for _, who := range []string{"", "a", "b"} {
			for _, body := range []string{`{"from":1}`, `{"from":2}`} {
				r.ask("/i/_search", body, "Authorization", who)
			}
		}
		r.ask("/i/_search", `{}`)
		<-time.After(59 * time.Second)
		if x := r.ask("/i/_search", `{"from":1}`, "Authorization", "a"); x.Trace.Outcome != flows.Hit {
			t.Errorf("within auth_ttl: %s", field(x, "cache-status"))
		}
		synctest.Wait() // it was renewed, which proves a
		<-time.After(2 * time.Second)
		wantStale := func(x *flows.Exchange) {
			t.Helper()
			if !strings.HasSuffix(field(x, "cache-status"), "; detail=stale-while-revalidate") {
				t.Errorf("%s: %s", x.Request.Header.Get("authorization"), field(x, "cache-status"))
			}
			synctest.Wait()
		}
		wantStale(r.ask("/i/_search", `{"from":2}`, "Authorization", "a"))
		wantMiss(t, r.ask("/i/_search", `{"from":1}`, "Authorization", "b"))
		wantStale(r.ask("/i/_search", `{"from":2}`, "Authorization", "b")) // proven by the one before
		wantStale(r.ask("/i/_search", `{}`))                               // nobody, who has nothing to prove

		// A node that does not know them any more ends their proof, not that of others.
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			if string(x.Request.Header.Get("authorization")) == "b" {
				reply(x, 401, `{"error":{}}`)
				return nil
			}
			return whole(x, call)
		}
		<-time.After(30 * time.Second)
		r.ask("/other/_search", `{}`, "Authorization", "a")
		r.ask("/other/_search", `{}`, "Authorization", "b")
		<-time.After(40 * time.Second) // all that is kept is older than auth_ttl, and a was seen since
		wantStale(r.ask("/i/_search", `{"from":1}`, "Authorization", "a"))
		if x := r.ask("/i/_search", `{"from":1}`, "Authorization", "b"); x.Response.Status != 401 {
			t.Errorf("b is given %s", field(x, "cache-status"))
		}
		if n := r.count("weir_cache_callers"); n != 2 {
			t.Errorf("%v callers are remembered, want a, and the empty Authorization", n)
		}
	})
}

// A token in the URL is proven anew as one in a header is.
func TestTokensInURLsAreProvenAnew(t *testing.T) {
	stale(t, "stale_while_revalidate: 1h", func(t *testing.T, r *rig) {
		for _, token := range []string{"a", "b"} {
			r.ask("/i/_search?jwt="+token, `{}`)
		}
		<-time.After(61 * time.Second)
		r.ask("/other/_search?jwt=a", `{}`)
		if x := r.ask("/i/_search?jwt=a", `{}`); x.Trace.Outcome != flows.Hit {
			t.Errorf("proven a moment ago: %s", field(x, "cache-status"))
		}
		synctest.Wait()
		r.node = func(x *flows.Exchange, _ int64) error {
			reply(x, 401, `{"error":{}}`)
			return nil
		}
		if x := r.ask("/i/_search?jwt=b", `{}`); x.Response.Status != 401 {
			t.Errorf("a token that was taken back is given %s", field(x, "cache-status"))
		}
	})
}

// What lets a caller in by one flow, which may send other credentials, proves nothing for another.
func TestCredentialsAreProvenByFlow(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{cache: {ttl: 2h}}, {node: {}}]}, {name: other, filter: [{cache: {ttl: 2h}}, {node: {}}]}]`)
		r.ask("/i/_search", `{}`, "Authorization", "a")
		<-time.After(61 * time.Second)
		if err := r.serve("other", request("/i/_search", `{}`, "Authorization", "a")); err != nil {
			t.Fatal(err)
		}
		wantMiss(t, r.ask("/i/_search", `{}`, "Authorization", "a"))
	})
}

func TestTrustForEver(t *testing.T) {
	for _, settings := range []string{"auth_ttl: 0s", "identity: shared"} {
		simtime.Test(t, func(t *testing.T) {
			r := newRig(t, `[{name: main, filter: [{cache: {ttl: 2h, `+settings+`}}, {node: {}}]}]`)
			r.ask("/i/_search", `{}`, "Authorization", "a")
			<-time.After(time.Hour)
			if x := r.ask("/i/_search", `{}`, "Authorization", "a"); x.Trace.Outcome != flows.Hit {
				t.Errorf("%s: %s", settings, field(x, "cache-status"))
			}
		})
	}
}

// The searches of a _msearch are given to whom nodes still let in, too.
func TestCredentialsOfMultiSearches(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{cache: {ttl: 2h}}, {node: {}}]}]`)
		r.node = multiNode(nil)
		ask := func(want string) {
			t.Helper()
			if x := r.ask("/i/_msearch", lines(head, `{}`), "Authorization", "a"); !strings.HasPrefix(field(x, "cache-status"), want) {
				t.Errorf("got %s, want %s", field(x, "cache-status"), want)
			}
		}
		ask("weir; fwd=miss; stored")
		<-time.After(59 * time.Second)
		ask("weir; hit")
		<-time.After(2 * time.Second)
		ask("weir; fwd=miss; stored")
		ask("weir; hit")
	})
}

func TestCallersAreBounded(t *testing.T) {
	var c callers
	now := time.Now()
	for i := range 2 * shardCallers { // all in one shard
		id := callerID{cluster: "c"}
		copy(id.caller[:8], fmt.Sprint(i))
		c.accept(id, now)
		if i%1000 == 0 && !c.accepted(id, now.Add(-1)) {
			t.Fatal("the newest is forgotten")
		}
	}
	if n := c.count(); n != shardCallers {
		t.Errorf("%d callers are remembered", n)
	}
}

// What was answered before users, roles or keys were changed is not given after, whatever age answers may have.
func TestChangedRightsEndWhatIsKept(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{cache: {ttl: 1h, max_stale: 1h, stale_if_error: 1h}}, {node: {}}]}]`)
		tracker := generation.New(generation.Options{Cluster: "c", Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler)})
		defer tracker.Close()
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			if a := flows.Stamps.Get(x); a != nil {
				a.Fill(tracker)
			}
			c := x.Call()
			if c.Name == "search" {
				return whole(x, call)
			}
			reply(x, 200, `{}`)
			tracker.Note(&generation.Write{Call: c, Method: x.Request.Method, Query: x.Request.Query, Status: 200, Answer: []byte(bodyOf(x))})
			return nil
		}
		f := func(method, target string, ends bool) {
			t.Helper()
			r.ask("/i/_search", `{}`)
			<-time.After(time.Millisecond)
			x := flows.Explaining(method, target)
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			if x := r.ask("/i/_search", `{}`); (x.Trace.Outcome != flows.Hit) != ends {
				t.Errorf("%s %s: %s", method, target, field(x, "cache-status"))
			}
		}
		f("PUT", "/i/_doc/1?refresh=true", false) // max_stale
		f("GET", "/_security/user/a", false)
		f("POST", "/_security/oauth2/token", false)
		f("POST", "/_plugins/_security/api/authtoken", false)
		f("PUT", "/_security/user/a", true)
		f("DELETE", "/_security/role/a", true)
		f("DELETE", "/_security/api_key", true)
		f("DELETE", "/_security/oauth2/token", true)
		f("POST", "/_security/realm/a/_clear_cache", true)
		f("PATCH", "/_plugins/_security/api/rolesmapping/a", true)
		f("PUT", "/_opendistro/_security/api/internalusers/a", true)
	})
}
