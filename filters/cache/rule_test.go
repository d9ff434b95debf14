package cache

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weir/flows"
	"weir/internal/simtime"
)

// rulesOf returns the flow main, in both spellings, with these times to live.
func rulesOf(ttl, nowTTL string) []string {
	return []string{
		fmt.Sprintf(`[{name: main, filter: [{cache: {ttl: %s, now_ttl: %s}}, {node: {}}]}]`, ttl, nowTTL),
		fmt.Sprintf(`[{name: main, filter: [{get_cache: {}}, {node: {}}, {set_cache: {cache_ttl: %s, now_ttl: %s}}]}]`, ttl, nowTTL),
	}
}

// What was stored before a reload is given for as long as the configuration says after it, counted from its search.
func TestReloadedTimesCountForWhatIsStored(t *testing.T) {
	const moving = `{"query":{"range":{"t":{"gte":"now-15m"}}}}`
	for spelling := range 2 {
		simtime.Test(t, func(t *testing.T) {
			r := newRig(t, rulesOf("1h", "30m")[spelling])
			f := func(body, want string) {
				t.Helper()
				if x := r.ask("/i/_search", body); !strings.HasPrefix(field(x, "cache-status"), want) {
					t.Errorf("%s after %s: %s, want %s", body, field(x, "age"), field(x, "cache-status"), want)
				}
			}
			f(`{}`, "weir; fwd=miss; stored")
			f(moving, "weir; fwd=miss; stored")
			<-time.After(10 * time.Minute)
			f(`{}`, "weir; hit; ttl=")
			f(moving, "weir; hit; ttl=")
			r.load(rulesOf("20m", "1m")[spelling])
			f(`{}`, "weir; hit; ttl=")
			f(moving, "weir; fwd=stale; stored")
			<-time.After(12*time.Minute + time.Second)
			f(`{}`, "weir; fwd=stale; stored")
			r.load(rulesOf("1m", "1m")[spelling])
			<-time.After(2 * time.Minute)
			r.load(rulesOf("1h", "1h")[spelling])
			f(`{}`, "weir; hit; ttl=") // it is kept, and may be that old again
		})
	}
}

// A configuration that did not come into force leaves no trace, and neither does one that drains.
func TestTheNewestRuleInForceCounts(t *testing.T) {
	r := &rule{}
	f := func(want time.Duration) {
		t.Helper()
		if got := r.current.Load().of(false); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	leaveFirst := r.use(lifetime{ttl: 1})
	leaveSecond := r.use(lifetime{ttl: 2})
	f(2)
	leaveSecond() // it failed to start
	f(1)
	leaveThird := r.use(lifetime{ttl: 3})
	f(3)
	leaveFirst()
	f(3)
	leaveThird()
	f(3) // what is stored still needs one
}

// Filters of one kind in one flow have rules of their own, whatever is written between them.
func TestEachFilterHasItsRule(t *testing.T) {
	flow := func(first, second, between string) string {
		return `[{name: main, filter: [{get_cache: {}}, {node: {}}, {set_cache: {cache_ttl: ` + first + `, when: {path: /a/_search}}}, ` +
			between + `{set_cache: {cache_ttl: ` + second + `}}]}]`
	}
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, flow("1h", "1h", ""))
		r.ask("/a/_search", `{}`)
		r.ask("/b/_search", `{}`)
		<-time.After(10 * time.Minute)
		r.load(flow("1m", "1h", "{limit: {}}, "))
		wantStatus(t, r.ask("/a/_search", `{}`), "weir; fwd=stale; stored")
		if x := r.ask("/b/_search", `{}`); x.Trace.Outcome != flows.Hit {
			t.Errorf("/b: %s", field(x, "cache-status"))
		}
	})
}

// The time that a search takes is a part of the age of its answer, so that none is older than its time to live.
func TestSlowSearchesDoNotLiveLonger(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, rulesOf("10s", "10s")[0])
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			<-time.After(8 * time.Second)
			return whole(x, call)
		}
		r.ask("/i/_search", `{}`)
		if x := r.ask("/i/_search", `{}`); x.Trace.Outcome != flows.Hit || field(x, "age") != "8" {
			t.Errorf("%s, Age %s", field(x, "cache-status"), field(x, "age"))
		}
		<-time.After(3100 * time.Millisecond)
		wantStatus(t, r.ask("/i/_search", `{}`), "weir; fwd=stale; stored")
	})
}
