package upstream_test

import (
	"testing"

	"weir/flows"
	"weir/flows/flowstest"
)

// What was answered with rights that the gateway lent is not for callers after the rights, or the loan, have changed: caches
// tell generations apart by what they depend on.
func TestLentRightsAreDependedOn(t *testing.T) {
	digest := func(auth, filter string) string {
		t.Helper()
		b, _, p := flowstest.Build(registry(), one(", endpoint: \"http://127.0.0.1:1\", "+auth, filter))
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
