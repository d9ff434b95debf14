package query

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/wire"
)

var testSecret = []byte("0123456789abcdef")

func newTestKeyer(t testing.TB, o Options) *Keyer {
	t.Helper()
	if o.Secret == nil {
		o.Secret = testSecret
	}
	k, err := NewKeyer(o)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// ask makes a request of one line, such as "POST search logs?size=1 {}", and header lines "Name: value". A body is sent
// as JSON unless the header says otherwise.
func ask(line string, header ...string) *Request {
	head, body, _ := strings.Cut(line, " {")
	if body != "" {
		body = "{" + body
	}
	words := strings.SplitN(head, " ", 3)
	r := &Request{Method: []byte(words[0]), API: words[1], Body: []byte(body), Header: &wire.Header{}}
	if len(words) > 2 {
		index, rawQuery, _ := strings.Cut(words[2], "?")
		r.Index, r.RawQuery = []byte(index), []byte(rawQuery)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.AddString(name, value)
	}
	if body != "" && !r.Header.Has("content-type") {
		r.Header.AddString("Content-Type", "application/json")
	}
	return r
}

func mustKey(t testing.TB, k *Keyer, r *Request) (Key, Verdict) {
	t.Helper()
	key, v := k.Key(r)
	if !v.Cacheable() {
		t.Fatalf("%s %s %s?%s %s: bypass %s", r.Method, r.API, r.Index, r.RawQuery, r.Body, v.Bypass)
	}
	return key, v
}

func TestKeySame(t *testing.T) {
	f := func(a, b *Request) {
		t.Helper()
		k := newTestKeyer(t, Options{})
		ka, va := mustKey(t, k, a)
		kb, vb := mustKey(t, k, b)
		if ka != kb {
			t.Errorf("%s %s and %s %s: keys differ", a.RawQuery, a.Body, b.RawQuery, b.Body)
		}
		if va.Dropped != vb.Dropped {
			t.Errorf("%s %s and %s %s: dropped parts differ", a.RawQuery, a.Body, b.RawQuery, b.Body)
		}
	}
	f(ask(`GET search logs`), ask(`POST search logs {}`))
	f(ask(`GET search logs`), ask(`GET search logs?no_cache=false`))
	f(ask(`GET search logs?size=1&from=2`), ask(`GET search logs?from=2&&size=1`))
	f(ask(`GET search a,b`), ask(`GET search a%2Cb`))
	f(ask(`POST search logs {"size":1,"from":0}`), ask(`GET search logs { "from":0, "size":1 }`))
	f(ask(`POST search logs {"size":1}`), ask(`GET search logs?source=%7B%22size%22%3A1%7D&source_content_type=application/json`))
	f(ask(`POST search logs {"size":1}`), ask(`POST search logs?source={"size":1}&source_content_type=application%2Fjson`))
	f(ask(`GET search logs?pretty`), ask(`GET search logs?pretty=true`))
	f(ask(`GET search logs?pretty`), ask(`GET search logs?p%72etty=`))
	f(ask(`GET search logs?q=a+b`), ask(`GET search logs?q=a%20b`))
	f(ask(`GET search logs`), ask(`GET search logs`, "X-Opaque-Id: 1", "traceparent: 2", "Accept-Encoding: gzip", "User-Agent: c"))
	f(ask(`GET search logs`), ask(`GET search logs`, "Accept: */*"))
	f(ask(`GET search logs`), ask(`GET search logs`, "accept: Application/JSON"))
	f(ask(`GET search logs`), ask(`GET search logs`, "Content-Type: application/json"))
	f(ask(`GET search logs`, "Authorization: Basic eA=="), ask(`GET search logs`, "authorization: Basic eA=="))
	f(ask(`GET search logs`, "Cache-Control: no-cache"), ask(`GET search logs`, "Cache-Control: max-age=5"))
}

// What is left out of the key is told apart by Dropped.
func TestKeyDropped(t *testing.T) {
	f := func(a, b *Request) {
		t.Helper()
		k := newTestKeyer(t, Options{})
		ka, va := mustKey(t, k, a)
		kb, vb := mustKey(t, k, b)
		if ka != kb {
			t.Errorf("%s %s and %s %s: keys differ", a.RawQuery, a.Body, b.RawQuery, b.Body)
		}
		if va.Dropped == vb.Dropped {
			t.Errorf("%s %s and %s %s: dropped parts are the same", a.RawQuery, a.Body, b.RawQuery, b.Body)
		}
	}
	for _, q := range []string{
		"timeout=1s", "allow_partial_search_results=false", "batched_reduce_size=5",
		"max_concurrent_shard_requests=5", "pre_filter_shard_size=128", "stats=a", "error_trace", "request_cache=true",
		"cancel_after_time_interval=5m",
	} {
		f(ask(`GET search logs`), ask(`GET search logs?`+q))
	}
	f(ask(`GET search logs?timeout=1s`), ask(`GET search logs?timeout=2s`))
	f(ask(`GET search logs {"timeout":"1s"}`), ask(`GET search logs {"timeout":"2s"}`))
	f(ask(`GET search logs {"timeout":"1s"}`), ask(`GET search logs {}`))
	f(ask(`GET search logs {"stats":["a"]}`), ask(`GET search logs {}`))
	f(ask(`GET search logs?size=0&preference=1`), ask(`GET search logs?size=0&preference=2`))
	f(ask(`GET search logs?preference=1 {"size":0}`), ask(`GET search logs {"size":0}`))
	f(ask(`GET count logs?preference=1`), ask(`GET count logs`))
}

func TestKeyDiffers(t *testing.T) {
	k := newTestKeyer(t, Options{})
	seen := map[Key]string{}
	f := func(r *Request) {
		t.Helper()
		key, _ := mustKey(t, k, r)
		var head strings.Builder
		for _, h := range r.Header.Fields() {
			fmt.Fprintf(&head, " %s: %s;", h.Name, h.Value)
		}
		id := fmt.Sprintf("%s %s/%s?%s %s%s", r.API, r.Index, r.Type, r.RawQuery, r.Body, head.String())
		if other, ok := seen[key]; ok {
			t.Errorf("%s\nhas the key of\n%s", id, other)
		}
		seen[key] = id
	}
	f(ask(`GET search`))
	f(ask(`GET count`))
	f(ask(`GET search logs`))
	f(ask(`GET search logs%2523`))
	f(ask(`GET search logs%23`))
	f(ask(`GET search a,b`))
	f(ask(`GET search b,a`))
	f(ask(`GET search a+b`))
	f(ask(`GET search a%20b`))
	f(ask(`GET search a%zz`))
	f(ask(`GET search a%25zz`))
	f(ask(`GET search a`))
	typed := ask(`GET search a`)
	typed.Type = []byte("b")
	f(typed)
	// Parts that would look the same without their lengths.
	f(ask(`GET search logs?ab=c`))
	f(ask(`GET search logs?a=bc`))
	f(ask(`GET search logs?abc`))
	f(ask(`GET search logs?a&bc`))
	f(ask(`GET search logs?a=1&b=2`))
	f(ask(`GET search logs?a=1%01b=2`))
	f(ask(`GET search logs?size=1`))
	f(ask(`GET search logs {"size":1}`))
	// The URL overrides the body, so both count.
	f(ask(`GET search logs?size=0 {"size":3}`))
	f(ask(`GET search logs?size=3 {"size":0}`))
	f(ask(`GET search logs?q=a {"query":{"match_all":{}}}`))
	f(ask(`GET search logs?q=a`))
	f(ask(`GET search logs?q=A`))
	f(ask(`GET search logs?unknown=1`))
	f(ask(`GET search logs?unknown`))
	f(ask(`GET search logs?unknown=true`))
	f(ask(`GET search logs?q=a;size=0`))
	f(ask(`GET search logs?q=a%3Bsize=0`))
	f(ask(`GET search logs?q=%zz`))
	f(ask(`GET search logs?q=%25zz`))
	f(ask(`GET search logs?routing=1`))
	f(ask(`GET search logs?preference=1`))
	f(ask(`GET search logs?preference=1 {"size":1}`))
	f(ask(`GET search logs?preference=1&size=1 {"size":0}`))
	f(ask(`GET search logs?size=0`))
	f(ask(`GET search logs?preference=_local&size=0`))
	f(ask(`GET search logs?preference&size=0`))
	f(ask(`GET count logs?preference=_only_local`))
	// Of these, a node takes an empty value for true only where it reads a primitive boolean, as it does for the shape of an answer.
	for _, name := range []string{"explain", "version", "seq_no_primary_term", "track_scores", "lenient", "allow_no_indices", "request_cache", "allow_partial_search_results"} {
		f(ask(`GET search logs?size=7&` + name))
		if name != "request_cache" && name != "allow_partial_search_results" {
			f(ask(`GET search logs?size=7&` + name + `=true`))
		}
	}
	// A node answers these with 400.
	f(ask(`GET search logs?timeout=banana`))
	f(ask(`GET search logs?timeout=1`))
	f(ask(`GET search logs?timeout=%zz`))
	f(ask(`GET search logs?batched_reduce_size=1`))
	f(ask(`GET search logs?batched_reduce_size=two`))
	f(ask(`GET search logs?allow_partial_search_results=yes`))
	f(ask(`GET search logs?request_cache=yes`))
	f(ask(`GET count logs`))
	f(ask(`GET count logs?timeout=1s`))
	f(ask(`GET count logs?stats=a`))
	f(ask(`GET count logs?request_cache=true`))
	f(ask(`GET count logs {"timeout":"1s"}`))
	// Shape.
	for _, q := range []string{
		"pretty", "pretty=false", "human", "typed_keys", "rest_total_hits_as_int", "format=json",
		"filter_path=-hits.hits._source", "filter_path=timed_out,_shards,terminated_early,_clusters,took",
	} {
		f(ask(`GET search logs?` + q))
	}
	f(ask(`GET search logs`, "Accept: application/vnd.elasticsearch+json;compatible-with=7"))
	f(ask(`GET search logs`, "Accept: application/vnd.elasticsearch+json; compatible-with=8"))
	f(ask(`GET search logs`, "Accept: application/vnd.elasticsearch+json"))
	f(ask(`GET search logs`, "Accept: application/json; charset=utf-8"))
	f(ask(`GET search logs`, "Accept: application/json, text/plain, */*"))
	f(ask(`GET search logs`, "Accept: text/plain, */*"))
	f(ask(`GET search logs`, "Content-Type: application/vnd.elasticsearch+json;compatible-with=7"))
	f(ask(`GET search logs {"size":2}`, "Content-Type: application/vnd.elasticsearch+json;compatible-with=7", "Accept: application/json"))
	f(ask(`GET search logs {"size":2}`))
	f(ask(`GET search logs {"size":2}`, "Accept: application/vnd.elasticsearch+json;compatible-with=7"))
	f(ask(`GET search logs`, "X-Elastic-Product-Origin: kibana"))
	noType := ask(`GET search logs {}`)
	noType.Header = &wire.Header{}
	f(noType)
}

func TestKeyIdentity(t *testing.T) {
	k := newTestKeyer(t, Options{})
	seen := map[Key][]string{}
	f := func(header ...string) {
		t.Helper()
		key, _ := mustKey(t, k, ask(`GET search logs`, header...))
		if other, ok := seen[key]; ok {
			t.Errorf("%q shares the key of %q", header, other)
		}
		seen[key] = header
	}
	f()
	f("Authorization: Basic YTpi")
	f("Authorization: Basic YTpj")
	f("Authorization: ApiKey YTpi")
	f("Authorization: ")
	f("Authorization: Basic YTpi", "Authorization: Basic YTpi")
	f("Proxy-Authorization: Basic YTpi")
	f("Cookie: Basic YTpi")
	f("Authorization: Basic YTpi", "es-security-runas-user: bob")
	f("Authorization: Basic YTpi", "es-security-runas-user: alice")
	f("Authorization: Basic YTpi", "opendistro_security_impersonate_as: bob")
	f("Authorization: Basic YTpi", "securitytenant: a")
	f("Authorization: Basic YTpi", "SecurityTenant: b")
	f("es-secondary-authorization: Basic YTpi")
	f("ES-Client-Authentication: SharedSecret x")
	f("x-proxy-user: ab", "x-proxy-roles: c")
	f("x-proxy-user: a", "x-proxy-roles: bc")
	f("x-proxy-user: a", "x-proxy-roles: b", "x-proxy-ext-team: c")
	f("x-proxy-ext-" + strings.Repeat("a", 100) + "1: c")
	f("x-proxy-ext-" + strings.Repeat("a", 100) + "2: c")

	a, b := ask(`GET search logs`), ask(`GET search logs`)
	a.Certificate, b.Certificate = []byte("alice"), []byte("bob")
	ka, _ := mustKey(t, k, a)
	kb, _ := mustKey(t, k, b)
	if ka == kb {
		t.Error("two certificates share a key")
	}
}

func TestKeyIdentityOptions(t *testing.T) {
	f := func(o Options, a, b *Request, want bool) {
		t.Helper()
		k := newTestKeyer(t, o)
		ka, _ := mustKey(t, k, a)
		kb, _ := mustKey(t, k, b)
		if same := ka == kb; same != want {
			t.Errorf("%+v: same key: %v, want %v", o, same, want)
		}
	}
	alice := ask(`GET search logs`, "Authorization: Basic alice")
	bob := ask(`GET search logs`, "Authorization: Basic bob")
	f(Options{}, alice, bob, false)
	f(Options{Identity: Shared}, alice, bob, true)
	f(Options{Identity: Shared, ExtraHeaders: []string{"*"}}, alice, bob, false)
	f(Options{Identity: Shared, ExtraHeaders: []string{"Authorization"}}, alice, bob, false)

	team1, team2 := ask(`GET search logs`, "X-Team: 1"), ask(`GET search logs`, "x-team: 2")
	f(Options{}, team1, team2, false)
	f(Options{HarmlessHeaders: []string{"X-Team"}}, team1, team2, true)
	f(Options{HarmlessHeaders: []string{"x-te*"}}, team1, team2, true)
	f(Options{Identity: Shared}, team1, team2, true)
	f(Options{Identity: Shared, ExtraHeaders: []string{"X-T*"}}, team1, team2, false)
	f(Options{Identity: Shared, ExtraHeaders: []string{"X-U*"}}, team1, team2, true)
	f(Options{ExtraHeaders: []string{"X-Team"}}, team1, team2, false)
	f(Options{ExtraHeaders: []string{"*"}}, team1, team2, false)
	trace1, trace2 := ask(`GET search logs`, "X-Opaque-Id: 1", "traceparent: 1"), ask(`GET search logs`, "X-Opaque-Id: 2")
	f(Options{ExtraHeaders: []string{"*"}}, trace1, trace2, true)
	f(Options{ExtraHeaders: []string{"x-opaque-id"}}, trace1, trace2, false)

	// What Grafana, a service mesh and tracers add to every request is of one request, not of a caller.
	f(Options{}, ask(`GET search logs`, "X-Panel-Id: 1", "X-Query-Group-Id: a", "x-envoy-attempt-count: 1", "x-datadog-trace-id: 1", "X-Forwarded-Port: 1"),
		ask(`GET search logs`), true)
	// An entry may be told who asks in a field that is harmless elsewhere.
	server1, server2 := ask(`GET search logs`, "X-Forwarded-Server: 1"), ask(`GET search logs`, "X-Forwarded-Server: 2")
	f(Options{}, server1, server2, true)
	server1.Names, server2.Names = names("x-forwarded-server"), names("x-forwarded-server")
	f(Options{}, server1, server2, false)
	f(Options{Identity: Shared}, server1, server2, true)
	// Who does not send the field is somebody else than who was not asked for it.
	before, after := ask(`GET search logs`), ask(`GET search logs`)
	before.Names, after.Names = names("x-tenant"), names("x-forwarded-server")
	f(Options{}, before, after, false)
	f(Options{}, before, ask(`GET search logs`), false)
	f(Options{}, after, after, true)
	f(Options{Identity: Shared}, before, after, true)
	for _, name := range []string{"x-real-ip", "x-forwarded-for", "forwarded"} {
		near, far := ask(`GET search logs`, name+": 10.0.0.1"), ask(`GET search logs`, name+": 10.0.0.2")
		f(Options{}, near, far, true)
		near.Names, far.Names = names(name), names(name)
		f(Options{}, near, far, false)
		f(Options{HarmlessHeaders: []string{name}}, near, far, false)
		f(Options{Identity: Shared}, near, far, true)
	}
	// Browsers say much about themselves, but only they may say it by these names.
	f(Options{}, ask(`GET search logs`, "Sec-Fetch-Site: same-origin", "Sec-CH-UA-Platform: x", "Sec-GPC: 1", "X-B3-TraceId: 1", "X-B3-Sampled: 1"),
		ask(`GET search logs`), true)

	here, there := ask(`GET search logs`), ask(`GET search logs`)
	here.Address, there.Address = []byte("10.0.0.1"), []byte("10.0.0.2")
	f(Options{}, here, there, true)
	f(Options{ByAddress: true}, here, there, false)
	f(Options{ByAddress: true}, ask(`GET search logs`, "X-Forwarded-For: 10.0.0.1"), ask(`GET search logs`, "X-Forwarded-For: 10.0.0.2"), false)

	slow, fast := ask(`GET search logs?timeout=9s`), ask(`GET search logs?timeout=1s`)
	f(Options{}, slow, fast, true)
	f(Options{ExtraArgs: []string{"timeout"}}, slow, fast, false)

	tab1, tab2 := ask(`GET search logs?preference=1`), ask(`GET search logs?preference=2`)
	f(Options{}, tab1, tab2, false)
	f(Options{Preference: PreferenceDrop}, tab1, tab2, true)
	count1, count2 := ask(`GET count logs?preference=1`), ask(`GET count logs?preference=2`)
	f(Options{}, count1, count2, true)
	f(Options{Preference: PreferenceKeep}, count1, count2, false)
}

// A preference says which copy of a shard answers. It counts wherever copies that hold the same documents may differ.
func TestPreferenceWithoutHits(t *testing.T) {
	k := newTestKeyer(t, Options{})
	f := func(target, body string, dropped bool) {
		t.Helper()
		a, va := k.Key(ask(`POST ` + target + `preference=1 ` + body))
		b, vb := k.Key(ask(`POST ` + target + `preference=2 ` + body))
		if !va.Cacheable() || !vb.Cacheable() || (a == b) != dropped {
			t.Errorf("%s %s: dropped %t, want %t (%s)", target, body, a == b, dropped, va.Bypass)
		}
	}
	const search, count = `search logs?`, `count logs?`
	f(search, `{"size":0}`, true)
	f(search, `{"size":0,"aggs":{"top_hits":{"terms":{"field":"knn"},"aggs":{"min_score":{"max":{"field":"suggest"}}}}}}`, true)
	f(search, `{"size":0,"query":{"bool":{"filter":[{"term":{"inner_hits":"suggest"}}]}},"aggs":{"a":{"percentiles":{"field":"b"}}}}`, true)
	f(count, `{"query":{"term":{"top_hits":1}}}`, true)
	f(search, `{"size":0,"aggs":{"a":{"top_hits":{"size":1}}}}`, false)
	f(search, `{"size":0,"aggs":{"a":{"terms":{"field":"b"},"aggs":{"c":{"filter":{"term":{"d":1}},"aggs":{"e":{"top_hits":{}}}}}}}}`, false)
	f(search, `{"size":0,"aggs":{"a":{"top_metrics":{"metrics":{"field":"b"},"sort":{"c":"asc"}}}}}`, false)
	f(search, `{"size":0,"aggs":{"a":{"significant_terms":{"field":"b"}}}}`, false)
	f(search, `{"size":0,"aggs":{"a":{"filter":{"nested":{"path":"p","query":{"match_all":{}},"inner_hits":{}}}}}}`, false)
	f(search, `{"size":0,"collapse":{"field":"a","inner_hits":{"name":"b"}}}`, false)
	f(search, `{"size":0,"suggest":{"a":{"text":"b","term":{"field":"c"}}}}`, false)
	f(search, `{"size":0,"min_score":1}`, false)
	f(search, `{"size":0,"query":{"function_score":{"query":{"match_all":{}},"min_score":1}}}`, false)
	f(search, `{"size":0,"query":{"knn":{"v":{"vector":[1],"k":2}}}}`, false)
	f(search, `{"size":0,"knn":{"field":"v","query_vector":[1],"k":2}}`, false)
	f(search, `{"size":0,"terminate_after":5}`, false)
	f(search, `{"size":0,"search_pipeline":"p"}`, false)
	f(`search logs?terminate_after=5&`, `{"size":0}`, false)
	f(`search logs?search_pipeline=p&`, `{"size":0}`, false)
	f(`search logs?suggest_field=a&suggest_text=b&`, `{"size":0}`, false)
	f(`count logs?min_score=1&`, `{}`, false)
}

// names is the one name of an identity field.
type names string

func (n names) Identifies(name []byte) bool { return strings.EqualFold(string(n), string(name)) }

func (n names) IdentityFields() []byte { return []byte(n) }

// What is a secret in a log says who asks.
func TestHarmlessFieldsAreNoSecrets(t *testing.T) {
	for _, name := range credentials {
		if h := hear([]byte(name)); h != hearIdentity {
			t.Errorf("%s is heard as %d", name, h)
		}
	}
	for _, name := range []string{
		"set-cookie", "api-key", "apikey", "x-csrf-token", "x-forwarded-authorization", "x-auth-request-access-token",
		"x-auth-request-user", "x-id-token", "x-forwarded-email", "x-ssl-client-s-dn", "x-client-cert", "x-jwt-assertion",
		"x-forwarded-client-cert", "x-forwarded-preferred-username", "x-grafana-user", "x-proxy-ext-team",
		"sec-authorization", "sec-fetch-user-id", "sec-ch-ua-user", "x-b3-user", "x-b3-", "sec-",
	} {
		if h := hear([]byte(name)); h != hearIdentity {
			t.Errorf("%s is heard as %d", name, h)
		}
	}
}

// Whoever has a token in the URL is a caller by it, as by one in a header.
func TestCallers(t *testing.T) {
	caller := func(o Options, r *Request) [16]byte {
		t.Helper()
		_, v := mustKey(t, newTestKeyer(t, o), r)
		return v.Caller
	}
	f := func(a, b *Request, same bool) {
		t.Helper()
		for _, r := range []*Request{a, b} {
			if caller(Options{Identity: Shared}, r) != [16]byte{} {
				t.Errorf("%s: a caller although everybody shares", r.RawQuery)
			}
		}
		if got := caller(Options{}, a) == caller(Options{}, b); got != same {
			t.Errorf("%s and %s: the same caller %t, want %t", a.RawQuery, b.RawQuery, got, same)
		}
	}
	nobody := ask(`GET search logs`)
	if caller(Options{}, nobody) != [16]byte{} {
		t.Error("a caller without credentials")
	}
	f(ask(`GET search logs?jwt=a`), nobody, false)
	f(ask(`GET search logs?jwt=a`), ask(`GET search logs?jwt=b`), false)
	f(ask(`GET search logs?jwt=a`), ask(`GET search logs?j%77t=a&size=3`), true)
	f(ask(`GET search logs?jwt=a`), ask(`GET search logs?JWT=a`), false)
	f(ask(`GET search logs?jwt=a`, "Authorization: x"), ask(`GET search logs?jwt=a`), false)
	f(ask(`GET search logs?jwt=a`, "Authorization: x"), ask(`GET search logs`, "Authorization: x"), false)
	f(ask(`GET search logs?%zz=a`), nobody, false)
	f(ask(`GET search logs?q=a&size=1&timeout=1s&routing=b&analyzer=c&pretty&source=%7B%7D&source_content_type=application/json`), nobody, true)
}

func TestKeyDependsOnSecretAndCluster(t *testing.T) {
	r := ask(`GET search logs`, "Authorization: Basic alice")
	a, _ := newTestKeyer(t, Options{}).Key(r)
	if b, _ := newTestKeyer(t, Options{Secret: []byte("another secret of")}).Key(r); a == b {
		t.Error("the secret is not in the key")
	}
	if b, _ := newTestKeyer(t, Options{ClusterID: "c"}).Key(r); a == b {
		t.Error("the cluster is not in the key")
	}
}

func TestVerdictBypass(t *testing.T) {
	f := func(r *Request, want Reason) {
		t.Helper()
		for _, memo := range []int{-1, 0} {
			k := newTestKeyer(t, Options{MemoBytes: memo, MaxBody: 1 << 10})
			for range 2 {
				key, v := k.Key(r)
				if v.Bypass != want || v.Cacheable() != (want == "") || (key == Key{}) != (want != "") {
					t.Errorf("%s %s?%s %s: got %q with key %x, want %q", r.Method, r.API, r.RawQuery, r.Body, v.Bypass, key[:4], want)
				}
			}
		}
	}
	f(ask(`GET search logs`), "")
	f(ask(`GET bulk logs`), ReasonAPI)
	f(ask(`GET async_search.submit logs`), ReasonAPI)
	f(ask(`HEAD search logs`), ReasonMethod)
	f(ask(`GET search logs?no_cache=true`), ReasonNoCache)
	f(ask(`GET search logs?no_cache`), ReasonNoCache)
	f(ask(`GET search logs?a=b&no_cache=1&c=d`), ReasonNoCache)
	f(ask(`GET search logs?x=no_cache`), "")
	f(ask(`GET search logs?request_cache=false`), ReasonRequestCache)
	f(ask(`GET search logs?scroll=1m`), ReasonScroll)
	f(ask(`GET search logs?%73croll=1m`), ReasonScroll)
	f(ask(`GET search logs?q=a;scroll=1m`), ReasonScroll)
	f(ask(`GET search logs?scroll=%zz`), ReasonScroll)
	f(ask(`GET search logs?scroll_id=a`), ReasonScroll)
	f(ask(`GET search scroll?q=scroll`), "")
	f(ask(`GET search logs?search_type=dfs_query_then_fetch`), ReasonSearchType)
	f(ask(`GET search logs?search_type=query_then_fetch`), "")
	f(ask(`GET search logs?profile=true`), ReasonProfile)
	f(ask(`GET search logs?size=1&size=1`), ReasonRepeated)
	f(ask(`GET search logs?size=1&s%69ze=2`), ReasonRepeated)
	f(ask(`GET search logs?size=1;size=2`), ReasonRepeated)
	f(ask(`GET search logs?`+strings.Repeat("a&", 1)+strings.Join(numbered(maxParams), "&")), ReasonArguments)
	f(ask(`GET search logs?format=yaml`), ReasonFormat)
	f(ask(`GET search logs?format=cbor`), ReasonFormat)
	f(ask(`GET search logs?format=json`), "")
	f(ask(`GET search logs?filter_path=hits`), "")
	f(ask(`GET search logs?filter_path=hits.hits._source,took`), "")
	f(ask(`GET search logs?filter_path=hits&pretty`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=hits&pretty=false`), "")
	f(ask(`GET search logs?filter_path=hits`, "Authorization: AWS4-HMAC-SHA256 x"), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=hits&X-Amz-Signature=1`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=*s.hits`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=**._id`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=hits._shards`), "")
	f(ask(`GET search logs?filter_path=_shards.failed,timed_out,terminated_early,_clusters`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=_shards,timed_out`), "")
	f(ask(`GET search logs?filter_path=hi%20ts`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=%zz`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=*`), "")
	f(ask(`GET search logs?filter_path=**,-timed_out`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=-_shards`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=-_shards.failed`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=-*_out`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=*,+-_clusters`), ReasonFilterPath)
	f(ask(`GET search logs?filter_path=-hits.hits._source`), "")
	f(ask(`GET search logs?filter_path=`), "")
	f(ask(`GET search logs?source={}`), ReasonSource)
	f(ask(`GET search logs?source_content_type=application/json`), ReasonSource)
	f(ask(`GET search logs?source={}&source_content_type=application/json {}`), ReasonSource)
	f(ask(`GET search logs?source=%zz&source_content_type=application/json`), ReasonSource)
	f(ask(`GET search logs?source=a&source_content_type=application/yaml`), ReasonRequestType)
	f(ask(`GET search logs`, "Origin: http://a"), ReasonOrigin)
	f(ask(`GET search logs {}`, "Content-Encoding: gzip"), ReasonRequestCoding)
	f(ask(`GET search logs {}`, "Content-Type: application/x-www-form-urlencoded"), ReasonRequestType)
	f(ask(`GET search logs {}`, "Content-Type: application/cbor"), ReasonRequestType)
	f(ask(`GET search logs {}`, "Content-Type: application/json; charset=utf-16"), ReasonRequestType)
	f(ask(`GET search logs {}`, "Content-Type: application/json", "Content-Type: application/json"), ReasonRequestType)
	f(ask(`GET search logs {}`, "Content-Type: application/json; charset=UTF-8"), "")
	f(ask(`GET search logs`, "Accept: application/yaml"), ReasonAccept)
	f(ask(`GET search logs`, "Accept: application/vnd.elasticsearch+cbor;compatible-with=8"), ReasonAccept)
	f(ask(`GET search logs`, "Cache-Control: max-age=0, No-Store"), ReasonNoStore)
	f(ask(`GET search logs {"a":1,"a":2}`), ReasonDuplicateKey)
	f(ask(`GET search logs {"a":1}/**/`), ReasonBody)
	f(ask(`GET search logs {"a":"`+strings.Repeat("x", 1<<10)+`"}`), ReasonBodySize)
	f(ask(`GET search logs {"slice":{"id":0,"max":2}}`), ReasonSlice)
	f(ask(`GET search logs {"pit":{"id":"a"}}`), ReasonPIT)
	f(ask(`GET search logs {"profile":true}`), ReasonProfile)
	f(ask(`GET search logs {"script_fields":{"a":{}}}`), ReasonScript)
	f(ask(`GET search logs {"aggs":{"a":{"scripted_metric":{}}}}`), ReasonScriptedMetric)
	f(ask(`GET search logs {"aggs":{"a":{"sampler":{}}}}`), ReasonSampler)
	f(ask(`GET search logs {"query":{"function_score":{"random_score":{}}}}`), ReasonRandom)
	f(ask(`GET search logs {"query":{"wrapper":{"query":"e30="}}}`), ReasonWrapper)
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("p", i))
	}
	return names
}

func TestVerdictDeterministicScripts(t *testing.T) {
	k := newTestKeyer(t, Options{DeterministicScripts: true})
	if _, v := k.Key(ask(`GET search logs {"query":{"script":{"script":"true"}}}`)); v.Bypass != "" || v.TTLOnly != ReasonScript {
		t.Errorf("script: got %+v", v)
	}
	if _, v := k.Key(ask(`GET search logs {"aggs":{"a":{"scripted_metric":{"init_script":""}}}}`)); v.Bypass != ReasonScriptedMetric {
		t.Errorf("scripted_metric: got %+v", v)
	}
}

func TestVerdict(t *testing.T) {
	f := func(r *Request, want Verdict) {
		t.Helper()
		_, got := newTestKeyer(t, Options{}).Key(r)
		got.Dropped = Key{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s?%s %s (-want +got):\n%s", r.Index, r.RawQuery, r.Body, diff)
		}
	}
	f(ask(`GET search logs`), Verdict{MaxAge: -1})
	f(ask(`GET search logs`, "Cache-Control: no-cache"), Verdict{MaxAge: -1, Refresh: true})
	f(ask(`GET search logs`, "Pragma: no-cache"), Verdict{MaxAge: -1, Refresh: true})
	f(ask(`GET search logs`, "Pragma: no-cache", "Cache-Control: max-age=5"), Verdict{MaxAge: 5 * time.Second})
	f(ask(`GET search logs`, "Cache-Control: max-age=5, only-if-cached"), Verdict{MaxAge: 5 * time.Second, OnlyIfCached: true})
	f(ask(`GET search logs`, "Cache-Control: max-age=7", "cache-control: MAX-AGE=\"3\""), Verdict{MaxAge: 3 * time.Second})
	f(ask(`GET search logs`, "Cache-Control: max-age=3, max-age=7"), Verdict{MaxAge: 3 * time.Second})
	f(ask(`GET search logs`, "Cache-Control: max-age=0"), Verdict{})
	f(ask(`GET search logs`, "Cache-Control: max-age=soon"), Verdict{MaxAge: -1, Refresh: true})
	f(ask(`GET search logs`, "Cache-Control: max-age=99999999999999999999"), Verdict{MaxAge: 1 << 31 * time.Second})
	f(ask(`GET search logs`, "Cache-Control: max-stale, foo=bar"), Verdict{MaxAge: -1})

	f(ask(`GET search logs?explain`), Verdict{MaxAge: -1, TTLOnly: ReasonExplain})
	f(ask(`GET search logs?explain=false`), Verdict{MaxAge: -1})
	f(ask(`GET search logs {"explain":true}`), Verdict{MaxAge: -1, TTLOnly: ReasonExplain})
	f(ask(`GET search logs?preference=_only_local`), Verdict{MaxAge: -1, TTLOnly: ReasonPreference})
	f(ask(`GET count logs?preference=_shards:1,2`), Verdict{MaxAge: -1, TTLOnly: ReasonPreference})
	f(ask(`GET search far:logs`), Verdict{MaxAge: -1, TTLOnly: ReasonRemote})
	f(ask(`GET search far%3Alogs`), Verdict{MaxAge: -1, TTLOnly: ReasonRemote})
	f(ask(`GET search logs?terminate_after=10`), Verdict{MaxAge: -1, TTLOnly: ReasonTerminateAfter, TerminateAfter: true})
	f(ask(`GET search logs?terminate_after=0`), Verdict{MaxAge: -1})
	f(ask(`GET search logs {"terminate_after":10}`), Verdict{MaxAge: -1, TTLOnly: ReasonTerminateAfter, TerminateAfter: true})
	f(ask(`GET search logs?search_pipeline=p`), Verdict{MaxAge: -1, TTLOnly: ReasonSearchPipeline})
	f(ask(`GET search logs {"query":{"terms":{"u":{"index":"users","id":"1","path":"f"}}}}`), Verdict{MaxAge: -1, TTLOnly: ReasonForeign, Elsewhere: true})
	f(ask(`GET search logs {"query":{"semantic":{"field":"a","query":"b"}}}`), Verdict{MaxAge: -1, TTLOnly: ReasonExternal})

	now := Verdict{MaxAge: -1, NowBound: true, TTLOnly: ReasonNow}
	f(ask(`GET search logs {"query":{"range":{"t":{"gte":"now-1h"}}}}`), now)
	f(ask(`GET search logs?q=t:[now-1h+TO+*]`), now)
	f(ask(`GET search logs?q=t:%3Enow-1h`), now)
	f(ask(`GET search logs?q=know`), Verdict{MaxAge: -1})
	f(ask(`GET search logs?q=NOW`), Verdict{MaxAge: -1})
	f(ask(`GET search logs?q=NOW&analyzer=simple`), now)
	f(ask(`GET search logs?analyzer=simple&q=later`), Verdict{MaxAge: -1})
	f(ask(`GET search logs {"query":{"match":{"period":"now"}}}`), now)
	f(ask(`GET search logs?q=%zznow`), now)
	f(ask(`GET search <logs-{now/d}>`), now)
	f(ask(`GET search %3Clogs-%7Bnow%2Fd%7D%3E`), now)
	f(ask(`GET search a,-%3Clogs-%7Bnow%2Fd%7Byyyy.MM.dd%7D%7D%3E`), now)
	f(ask(`GET search logs {"explain":true,"query":{"range":{"t":{"gte":"now"}}}}`), Verdict{MaxAge: -1, NowBound: true, TTLOnly: ReasonExplain})
}

func TestNewKeyerRefuses(t *testing.T) {
	f := func(o Options) {
		t.Helper()
		if _, err := NewKeyer(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	f(Options{})
	f(Options{Secret: []byte("short")})
	f(Options{Identity: Shared, ExtraHeaders: []string{"a"}})
	f(Options{Identity: 7, Secret: testSecret})
	f(Options{Preference: 7, Secret: testSecret})
	f(Options{ExtraHeaders: []string{strings.Repeat("a", 65)}, Secret: testSecret})
	for _, name := range []string{"x y", "", "x-*-id", "**", "a:"} {
		f(Options{ExtraHeaders: []string{name}, Secret: testSecret})
		f(Options{HarmlessHeaders: []string{name}, Secret: testSecret})
	}
	for _, name := range []string{"*", "x-*", "X-Remote-User", "auth*", "cookie"} {
		f(Options{HarmlessHeaders: []string{name}, Secret: testSecret})
	}
	if _, err := NewKeyer(Options{Identity: Shared}); err != nil {
		t.Error(err)
	}
}

// The caller reuses its memory, which must change nothing that is remembered.
func TestKeyKeepsNothing(t *testing.T) {
	k := newTestKeyer(t, Options{})
	r := ask(`GET search logs?size=1 {"query":{"match_all":{}}}`, "Authorization: Basic alice")
	want, _ := mustKey(t, k, r)
	other := ask(`GET search logz?size=2 {"query":{"match_all":[]}}`, "Authorization: Basic alicf")
	wantOther, _ := mustKey(t, newTestKeyer(t, Options{}), other)
	copy(r.Index, other.Index)
	copy(r.RawQuery, other.RawQuery)
	copy(r.Body, other.Body)
	copy(r.Header.Fields()[0].Value, other.Header.Fields()[0].Value)
	if got, _ := mustKey(t, k, r); got != wantOther || got == want {
		t.Error("the key of the memory's former contents came back")
	}
}

func TestKeyConcurrent(t *testing.T) {
	k := newTestKeyer(t, Options{MemoBytes: 16 << 10})
	const searches = 50
	want := make([]Key, searches)
	for i := range want {
		want[i], _ = newTestKeyer(t, Options{MemoBytes: -1}).Key(numberedSearch(i))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2000 {
				r := numberedSearch(i % searches)
				if got, _ := k.Key(r); got != want[i%searches] {
					t.Errorf("search %d: wrong key", i%searches)
					return
				}
			}
		})
	}
	wg.Wait()
}

func numberedSearch(i int) *Request {
	return ask(fmt.Sprintf(`GET search logs {"query":{"match_all":{"boost":%d}},"size":%d}`, i, i), fmt.Sprintf("Authorization: Basic %d", i%3))
}

func TestKeyAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool forgets on purpose under the race detector")
	}
	r := ask(`POST search logs?size=0&pretty&preference=1726000000000 `+grafanaBody, "Authorization: Basic alice", "Accept: */*", "X-Opaque-Id: 7")
	for name, o := range map[string]Options{"remembered": {}, "worked out": {MemoBytes: -1}} {
		k := newTestKeyer(t, o)
		if n := testing.AllocsPerRun(100, func() { k.Key(r) }); n != 0 {
			t.Errorf("%s: %v allocations a key", name, n)
		}
	}
}

func BenchmarkKey(b *testing.B) {
	r := ask(`POST search logs?size=0&pretty&preference=1726000000000 `+grafanaBody, "Authorization: Basic alice", "Accept: */*", "X-Opaque-Id: 7")
	f := func(name string, o Options) {
		b.Run(name, func(b *testing.B) {
			k := newTestKeyer(b, o)
			b.SetBytes(int64(len(r.Body)))
			b.ReportAllocs()
			for b.Loop() {
				k.Key(r)
			}
		})
	}
	f("remembered", Options{})
	f("worked out", Options{MemoBytes: -1})
	// What a cache costs that decodes the body and encodes it again, to have its members sorted: the body alone.
	b.Run("encoding json", func(b *testing.B) {
		b.SetBytes(int64(len(r.Body)))
		b.ReportAllocs()
		for b.Loop() {
			var v any
			if err := json.Unmarshal(r.Body, &v); err != nil {
				b.Fatal(err)
			}
			if _, err := json.Marshal(v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Queries that url.ParseQuery can read mean the same here.
func FuzzParseArgs(f *testing.F) {
	for _, seed := range []string{
		"", "a=b", "a", "a=&b", "&&a=1&", "a=b=c", "q=a+b%20c", "q=%zz", "%zz=1", "a;b=c", "a=1&a=2", "a=1&%61=2", "=x", "=", "q=%", "q=%4",
		"z=1&y=2&x=3", "scroll=1m&size=0",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		args, _, why := parseArgs(nil, nil, []byte(raw))
		want, err := url.ParseQuery(raw)
		if err != nil || why == ReasonArguments {
			return
		}
		got := url.Values{}
		for i, a := range args {
			if a.raw || i > 0 && string(args[i-1].name) >= string(a.name) {
				t.Fatalf("%q: got %q out of order or not decoded", raw, a.name)
			}
			got.Add(string(a.name), string(a.value))
		}
		repeated := false
		for _, values := range want {
			repeated = repeated || len(values) > 1
		}
		if repeated != (why == ReasonRepeated) {
			t.Fatalf("%q: got %q, repeated: %v", raw, why, repeated)
		}
		if repeated {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q (-url +got):\n%s", raw, diff)
		}
	})
}
