package limit

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/simtime"
)

// explained asks for what the admin listener tells.
func (g *gateway) explained() []FilterStatus {
	g.t.Helper()
	w := httptest.NewRecorder()
	Handler(g.keeper).ServeHTTP(w, httptest.NewRequest("GET", "/_weir/limits", nil))
	var out struct{ Filters []FilterStatus }
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		g.t.Fatalf("%s: %v", w.Body, err)
	}
	return out.Filters
}

func TestHandler(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		const filters = `
- rate_limit:
    name: people
    limits:
      - {name: a, key: [user, "header:authorization"], rate: 1/s, burst: 10, overrides: [{key: [loader, ""], rate: 1/s, burst: 20}]}
      - {name: b, key: [ip/24], unit: took, rate: 20s/s}
- concurrency: {max: 2, key: [identity]}
`
		g := newGateway(t, filters)
		g.passes(9, as("ann"))
		g.passes(4, as("bob"))
		g.passes(5, as("loader"))
		secret := as("eve")(0)
		secret.Request.Header.AddString("Authorization", "Basic secret")
		g.serve(secret)
		c := crowd{g: g, start: time.Now()}
		c.comes(working("x", time.Second))
		c.comes(working("x", time.Second))
		c.comes(working("x", 0))
		keys := 5
		want := []FilterStatus{
			{Flow: "main", Filter: "concurrency", Kind: "concurrency", Mode: "enforce", Waiting: 1, Concurrency: &ConcurrencyStatus{
				Max: 2, Places: 4, InFlight: 2,
				Top: []GateStatus{{Key: []string{"user:x"}, InFlight: 2, Waiting: map[string]int{"interactive": 1}, Callers: 1}},
			}},
			{Flow: "main", Filter: "people", Kind: "rate_limit", Mode: "enforce", Keys: &keys, Limits: []LimitStatus{
				{Name: "a", Unit: "requests", Rate: "1/s", Burst: 10, Keys: 5, Near: 1, Top: []KeyStatus{
					{Key: []string{"ann", "(none)"}, Used: 0.9, Rest: 9},
					{Key: []string{"bob", "(none)"}, Used: 0.4, Rest: 4},
					{Key: []string{"x", "(none)"}, Used: 0.3, Rest: 3},
					{Key: []string{"loader", "(none)"}, Used: 0.25, Rest: 5},
					{Key: []string{"eve", "Basic ***"}, Used: 0.1, Rest: 1},
				}},
				{Name: "b", Unit: "took", Rate: "20s/s", Burst: 20_000, Top: []KeyStatus{}},
			}},
		}
		if d := cmp.Diff(want, g.explained()); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		c.all()
		g.load(strings.Replace(filters, "max: 2", "max: 7", 1))
		got := g.explained()
		if len(got) != 2 || got[0].Concurrency.Max != 7 {
			t.Errorf("after a reload %+v, want the two filters in force", got)
		}
	})
}

// TestSecretsOfKeysAreHidden holds that no value is told that may be a secret, wherever a limit has it from.
func TestSecretsOfKeysAreHidden(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{name: a, rate: 1/s, key: ["query:token", "query:api_key", "query:pass", "query:team",
    "header:X-Vault-Token", "header:X-Team", "cookie:sid", "query:url"]}]}`)
		x := exchange("GET", "/i/_search?token=s3cret&api_key=s3cret&pass=s3cret&team=t-1&url=http://u:s3cret@h/",
			"X-Vault-Token", "s3cret", "X-Team", "t-2", "Cookie", "sid=s3cret")
		if err := g.serve(x); err != nil {
			t.Fatal(err)
		}
		want := []string{"***", "***", "***", "t-1", "***", "t-2", "***", "http://***@h/"}
		if d := cmp.Diff(want, g.explained()[0].Limits[0].Top[0].Key); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

// TestManyKeysAreCut holds that of many keys those are told that used most.
func TestManyKeysAreCut(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{name: a, key: [user], rate: 1/s, burst: 100}]}`)
		for i := range 50 {
			g.passes(1+i, as(strings.Repeat("u", 1+i)))
		}
		l := g.explained()[0].Limits[0]
		if l.Keys != 50 || len(l.Top) != topKeys {
			t.Fatalf("%d keys, %d of them told", l.Keys, len(l.Top))
		}
		for i, k := range l.Top {
			if want := 50 - i; len(k.Key[0]) != want {
				t.Errorf("key %d is that of %d requests, want %d", i, len(k.Key[0]), want)
			}
		}
	})
}
