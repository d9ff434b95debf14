package cache

import (
	"encoding/base64"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/flows"
)

// An identity is a way to say who asks.
type identity struct {
	name   string
	fields []string
	status int
	sees   string // ids of the documents that it may see, in their order
}

func keyField(s string) []string {
	return []string{"Authorization", "ApiKey " + base64.StdEncoding.EncodeToString([]byte(s))}
}

func basicField(s string) []string {
	return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(s))}
}

// identities are the ways to ask the cluster of newIdentities.
var identities = []identity{
	{"alice", basicField("alice:" + modelSecret), 200, "1"},
	{"bob", basicField("bob:" + modelSecret), 200, "12"},
	{"a wrong password", basicField("alice:wrong"), 401, ""},
	{"a user that is none", basicField("eve:" + modelSecret), 401, ""},
	{"nobody", nil, 401, ""},
	{"another scheme", []string{"Authorization", "Bearer x"}, 401, ""},
	{"bob as alice", append(basicField("bob:"+modelSecret), "es-security-runas-user", "alice"), 200, "1"},
	{"alice as bob", append(basicField("alice:"+modelSecret), "es-security-runas-user", "bob"), 403, ""},
	{"bob as weir", append(basicField("bob:"+modelSecret), "es-security-runas-user", "weir"), 403, ""},
	{"bob's key", keyField("k1:s"), 200, "12"},
	{"bob's narrow key", keyField("k2:s"), 200, "2"},
	{"a key with a wrong secret", keyField("k1:x"), 401, ""},
	{"a key as a password", basicField("k1:s"), 401, ""},
}

// identified runs f over a cluster in which each of identities sees what it says.
func identified(t *testing.T, f func(t *testing.T, r *asyncRig, users []estest.User)) {
	t.Helper()
	asyncs(t, estest.Elasticsearch8, "", func(t *testing.T, r *asyncRig) {
		users := []estest.User{
			{Name: "alice", Password: modelSecret, Filter: `{"term":{"team":"a"}}`},
			{Name: "bob", Password: modelSecret, RunAs: []string{"alice"}, Keys: []estest.Key{{ID: "k1", Secret: "s"}, {ID: "k2", Secret: "s", Filter: `{"term":{"team":"b"}}`}}},
			{Name: "weir", Password: modelSecret},
		}
		if err := r.cluster.SetUsers(users...); err != nil {
			t.Fatal(err)
		}
		f(t, r, users)
	})
}

// identifiedCalls are the calls by which documents are found.
var identifiedCalls = []struct{ target, body, contentType string }{
	{"/i/_search", asyncBody, "application/json"},
	{"/i/_async_search", asyncBody, "application/json"},
	{"/_msearch", `{"index":"i"}` + "\n" + asyncBody + "\n", "application/x-ndjson"},
	{"/i/_search?from=0", asyncBody, "application/json"}, // not asked by anybody before
}

// ask sends a call for somebody, and checks what comes.
func (r *asyncRig) identify(who identity, call int) *flows.Exchange {
	r.t.Helper()
	c := identifiedCalls[call]
	x := flows.Explaining("POST", c.target, append([]string{"Content-Type", c.contentType}, who.fields...)...)
	x.Request.Body.Replace([]byte(c.body))
	if err := r.serve("main", x); err != nil {
		r.t.Errorf("%s: %v", who.name, err)
		return x
	}
	var sees strings.Builder
	for _, part := range strings.Split(bodyOf(x), `"_id":"`)[1:] {
		sees.WriteString(part[:1])
	}
	if x.Response.Status != who.status || sees.String() != who.sees {
		r.t.Errorf("%s %s: %d, documents %q, want %d, %q (%s)", c.target, who.name, x.Response.Status, sees.String(), who.status, who.sees,
			field(x, "cache-status"))
	}
	return x
}

// Whoever asks after whomever is given what a node would give, by each API, and never what the other one may see.
func TestIdentityMatrix(t *testing.T) {
	identified(t, func(t *testing.T, r *asyncRig, _ []estest.User) {
		for call := range identifiedCalls {
			for _, first := range identities {
				for _, second := range identities {
					r.identify(first, call)
					r.identify(second, call)
				}
			}
		}
		// A good answer was asked for once by each, of _search and _async_search and _msearch together; a refusal each time.
		good := 0
		for _, who := range identities {
			if who.status == 200 {
				good++
			}
		}
		hits := r.count("weir_cache_requests_total", "main", "hit")
		if n := len(identities); hits < float64(len(identifiedCalls)*(2*n*good-good)) {
			t.Errorf("%v hits", hits)
		}
	})
}

// The same at once: who waits for an answer waits for that of the same caller.
func TestIdentitiesAtOnce(t *testing.T) {
	identified(t, func(t *testing.T, r *asyncRig, _ []estest.User) {
		for call := range identifiedCalls {
			i := r.cluster.Inject(estest.Fault{Delay: 50 * time.Millisecond})
			var wg sync.WaitGroup
			for range 10 {
				for _, who := range identities {
					wg.Go(func() { r.identify(who, call) })
				}
			}
			wg.Wait()
			i.Remove()
		}
	})
}

// A password or a key that was taken back is good for as long as auth_ttl says, and for those answers only that were there.
func TestRevokedCredentials(t *testing.T) {
	identified(t, func(t *testing.T, r *asyncRig, users []estest.User) {
		key, narrow := identities[9], identities[10]
		r.identify(key, 0)
		r.identify(narrow, 0)
		users[1].Keys = users[1].Keys[1:]
		if err := r.cluster.SetUsers(users...); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second)
		r.identify(key, 0) // the bound that is published
		revoked := key
		revoked.status, revoked.sees = 401, ""
		r.identify(revoked, 3)
		<-time.After(time.Minute)
		r.identify(revoked, 0)
		r.identify(narrow, 0)
	})
}

// Fields that look the same when they are strung together are those of different callers.
func TestFieldsOfCallersDoNotRunTogether(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		for _, fields := range [][]string{
			{"X-Proxy-User", "ab", "X-Proxy-Roles", "c"},
			{"X-Proxy-User", "a", "X-Proxy-Roles", "bc"},
			{"X-Proxy-User", "abc", "X-Proxy-Roles", ""},
			{"X-Proxy-User", "ab", "X-Proxy-User", "c"},
			{"X-Proxy-User", "ab,c"},
			{"X-Proxy-Roles", "ab", "X-Proxy-User", "c"},
			{"Authorization", "ab", "es-security-runas-user", "c"},
			{"Authorization", "a", "es-security-runas-user", "bc"},
			{"Authorization", "ab", "securitytenant", "c"},
			{"Authorization", "abc"},
			{"Cookie", "abc"},
		} {
			wantStatus(t, r.ask("/i/_search", `{}`, fields...), "weir; fwd=miss; stored")
		}
		r.wantCalls(11)
	})
}
