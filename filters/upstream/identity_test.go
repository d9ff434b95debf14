package upstream

import (
	"testing"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
)

// What was answered with rights that the gateway lent is not for callers after the rights, or the loan, have changed: caches
// tell generations apart by what they depend on.
func TestLentRightsAreDependedOn(t *testing.T) {
	digest := func(auth, filter string) string {
		t.Helper()
		root, p := conf.Parse("test.yml", "elasticsearch: [{name: up, endpoint: \"http://127.0.0.1:1\", "+auth+"}]\n"+
			"flow: [{name: main, filter: [{elasticsearch: {elasticsearch: up"+filter+"}}]}]\n", nil)
		reg := flows.NewRegistry()
		flows.Register(reg, Elasticsearch())
		b := flows.NewBuilder(reg, p)
		for name, c := range elastic.DecodeClusters(root.Get("elasticsearch"), p) {
			b.Provide("elasticsearch", name, c, nil)
		}
		b.Define(root.Get("flow"))
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		rt := &flows.Runtime{}
		b.Generation(1, nil, rt, flows.NewKeeper()).Abandon()
		return rt.Resources
	}
	const one, other = "basic_auth: {username: u, password: a}", "basic_auth: {username: u, password: b}"
	const lent, missing = ", credentials: gateway", ", credentials: if_missing"
	first, again := digest(one, lent), digest(one, lent)
	if first != again || digest(one, "") != digest(other, "") {
		t.Error("the digest depends on something else")
	}
	seen := map[string]bool{}
	for _, d := range []string{first, digest(other, lent), digest(one, missing), digest(one, "")} {
		if seen[d] {
			t.Error("a change of whose rights callers get makes no difference")
		}
		seen[d] = true
	}
}
