package upstream

import (
	"slices"
	"strings"
	"testing"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
)

func TestClassicMeanings(t *testing.T) {
	f := func(cluster, parameters string, wants ...string) {
		t.Helper()
		root, p := conf.Parse("t.yml", "clusters: [{name: c, endpoint: 'http://localhost:9200'"+cluster+"}]\n"+
			"flow: [{name: main, filter: [{elasticsearch: {elasticsearch: c"+parameters+"}}]}]", func(string) (string, bool) { return "x", true })
		reg := flows.NewRegistry()
		flows.Register(reg, Elasticsearch())
		b := flows.NewBuilder(reg, p)
		for name, c := range elastic.DecodeClusters(root.Get("clusters"), p) {
			b.Provide("elasticsearch", name, c, nil)
		}
		b.Define(root.Get("flow"))
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
