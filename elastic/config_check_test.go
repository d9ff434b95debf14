package elastic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/conf"
)

func TestAddressesThatNoNodeCanHaveAreRefused(t *testing.T) {
	f := func(endpoint string, want bool) {
		t.Helper()
		if _, err := ParseEndpoint(endpoint); (err == nil) != want {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	f("http://h:65535", true)
	f("http://h", true)
	f("https://[::1]:9200/base", true)
	f("http://h:65536", false)
	f("http://h:0", false)
	f("http://:9200", false)
}

func TestMistakesStandWhereTheyAre(t *testing.T) {
	f := func(item string, want ...string) {
		t.Helper()
		list, _ := conf.Parse("c", "- {name: a, "+item+"}", func(string) (string, bool) { return "", false })
		p := new(conf.Problems) // what is wrong with the text itself is not of interest
		DecodeClusters(list, p)
		var got []string
		for _, q := range p.Sorted() {
			if q.Severity == conf.Error {
				got = append(got, q.Pos.String())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", item, diff)
		}
	}
	f("endpoints: ['http://a:1', b, 'http://a:1', c]", "c:1:39", "c:1:56")
	f("endpoint: '${UNSET}'")
	f("enabled: true", "c:1:3")
	f("endpoints: []", "c:1:3")
	f("endpoint: ''", "c:1:3")
	f("hosts: b", "c:1:20")
	f("endpoint: 'http://a:1', bearer: x, api_key: y", "c:1:45")
	f(`endpoint: 'http://a:1', bearer: "a\r\nX: y"`, "c:1:45")
	f("endpoint: 'http://a:1', weights: {'a:1': 1000001, 'b:1': 1000000}", "c:1:54")
	f("endpoint: 'http://a:1', discovery: {exclude: {names: ['a*', '[']}}", "c:1:73")
	f("endpoint: 'srv+http://a:1'", "c:1:23")
	f("endpoint: 'http://a:1', balance: {max_ejected: 0%, zone_penalty: 0.5}", "c:1:60", "c:1:78")
	// Neither mistake hides the other, and no endpoint is missed that was only misspelled.
	f("endpiont: x, weights: {a: 1}", "c:1:13", "c:1:39")
}

func TestClusterWhoseNodesAreAllDrained(t *testing.T) {
	f := func(item string, want int) {
		t.Helper()
		list, _ := conf.Parse("c", "- {name: a, "+item+"}", func(string) (string, bool) { return "", false })
		p := new(conf.Problems)
		DecodeClusters(list, p)
		got := 0
		for _, q := range p.Sorted() {
			if q.Severity == conf.Warning && strings.Contains(q.Message, "all endpoints have the weight 0") {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %v", item, p.Sorted())
		}
	}
	f("endpoints: ['http://a:1', 'http://b:2'], weights: {'a:1': 0, 'b:2': 0}", 1)
	f("endpoints: ['http://a:1', 'http://b:1'], weights: {'a:1': 0}", 0)
	f("endpoints: ['http://a:1', 'dns+http://b:1'], weights: {'a:1': 0, 'b:1': 0}", 0)
	f("endpoint: 'http://a:1', weights: {'a:1': 1, 'b:1': 0}", 0)
	f("endpoint: 'http://a:1', weights: {'b:1': 0}", 0)
}
