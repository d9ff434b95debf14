package upstream_test

import (
	"slices"
	"strings"
	"testing"

	"weir/flows/flowstest"
)

func TestClassicMeanings(t *testing.T) {
	t.Setenv("PASSWORD", "x") // which is not in clear text
	f := func(cluster, parameters string, wants ...string) {
		t.Helper()
		_, _, p := flowstest.Build(registry(), "elasticsearch: [{name: c, endpoint: 'http://localhost:9200'"+cluster+"}]\n"+
			flowstest.Main("{elasticsearch: {elasticsearch: c"+parameters+"}}"))
		var got []string
		for _, q := range p.Sorted() {
			got = append(got, q.Severity.String()+" "+q.Message)
		}
		if !slices.EqualFunc(got, wants, strings.HasPrefix) {
			t.Errorf("%s with %s: got %q, want %q", parameters, cluster, got, wants)
		}
	}
	const user = `, basic_auth: {username: u, password: "${PASSWORD}"}`
	f("", "")
	f(user, "", "warning basic_auth of c was also sent for callers without credentials")
	f(user, ", credentials: caller")
	f(user, ", credentials: gateway", "warning everybody who reaches this flow")
	f("", ", discovery: {enabled: true}")
	f("", ", discovery: {refresh: {enabled: true, interval: 10s}}")
	f("", ", discovery: {refresh: {enabled: false}}", "warning without discovery.refresh nodes were looked for once")
}
