package cache

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/estest"
	"weir/flows"
	"weir/internal/simtime"
)

// skewed is a clock that is wrong.
type skewed time.Duration

func (s skewed) Now() time.Time                       { return time.Now().Add(time.Duration(s)) }
func (skewed) After(d time.Duration) <-chan time.Time { return time.After(d) }

// nowRig is a cache over a scripted cluster with a document for each hour around now, whose clock may be wrong.
func nowRig(t *testing.T, settings string, skew time.Duration) (r *rig, direct func(body string) string) {
	cluster := estest.New(t, estest.Options{InMemory: true, Clock: skewed(skew)})
	client := &http.Client{Transport: &http.Transport{DialContext: cluster.Dial}}
	t.Cleanup(client.CloseIdleConnections)
	r = newRig(t, `[{name: main, filter: [{cache: {`+settings+`}}, {node: {}}]}]`)
	m := &model{rig: r, cluster: cluster, http: client}
	r.node = func(x *flows.Exchange, _ int64) error {
		body, err := x.Request.Body.Bytes(1 << 20)
		if err != nil {
			return err
		}
		status, text, header, err := m.send("", string(x.Request.Method), string(x.Request.Target), string(body))
		x.Reply(status, header.Get("Content-Type"), []byte(text))
		return err
	}
	m.direct("PUT", "/i", `{"mappings":{"properties":{"t":{"type":"date"},"title":{"type":"text"}}}}`)
	var bulk strings.Builder
	for hour := range 80 {
		fmt.Fprintf(&bulk, "{\"index\":{}}\n{\"t\":%d,\"title\":\"now\"}\n", time.Now().Add(time.Duration(hour-20)*time.Hour).UnixMilli())
	}
	m.direct("POST", "/i/_bulk?refresh=true", bulk.String())
	return r, func(body string) string {
		_, text, _, err := m.send("", "POST", "/i/_count", body)
		if err != nil {
			t.Fatal(err)
		}
		return countOf(t, text)
	}
}

func countOf(t *testing.T, text string) string {
	t.Helper()
	var a struct{ Count *int }
	if err := json.Unmarshal([]byte(text), &a); err != nil || a.Count == nil {
		t.Fatalf("%s: %v", text, err)
	}
	return fmt.Sprint(*a.Count)
}

const (
	sinceMidnight = `{"query":{"range":{"t":{"gte":"now/d","time_zone":"Pacific/Auckland"}}}}`
	sinceTheHour  = `{"query":{"range":{"t":{"gte":"now-15m/h"}}}}`
)

// An answer that counts from a rounded now is given until the rounding changes, and not a moment longer.
func TestRoundedNow(t *testing.T) {
	for _, body := range []string{sinceMidnight, sinceTheHour} {
		for settings, most := range map[string]int{"ttl: 12h, rounded_now: still": 2*4*26 + 5, "ttl: 12h, now_ttl: 1h": 4*26 + 5} {
			simtime.Test(t, func(t *testing.T) {
				r, direct := nowRig(t, settings, 0)
				<-time.After(7*time.Minute + 3*time.Second)
				seen := map[string]bool{}
				for range 26 * 18 {
					x := r.ask("/i/_count", body)
					got, want := countOf(t, bodyOf(x)), direct(body)
					if got != want {
						t.Fatalf("%s: at %s: %s, %s, the cluster says %s", settings, time.Now().UTC(), got, field(x, "cache-status"), want)
					}
					seen[got] = true
					<-time.After(200 * time.Second)
				}
				if n := r.calls.Load(); n > int64(most) || len(seen) < 2 {
					t.Errorf("%s: %s: %d calls in 26 hours, want at most %d; %d different answers", settings, body, n, most, len(seen))
				}
			})
		}
	}
}

// No window behind its time lets an answer be given when its rounding has changed.
func TestRoundedNowIsNeverStale(t *testing.T) {
	stale(t, "rounded_now: still, stale_while_revalidate: 1h, stale_if_error: 1h", func(t *testing.T, r *rig) {
		<-time.After(7 * time.Minute)
		ask := func() *flows.Exchange { return r.ask("/i/_search", sinceTheHour) }
		ask()
		<-time.After(5 * time.Minute)
		if x := ask(); answeredBy(t, x) != 1 || !strings.HasSuffix(field(x, "cache-status"), "detail=stale-while-revalidate") {
			t.Errorf("before the quarter of the hour: %s %s", bodyOf(x), field(x, "cache-status"))
		}
		synctest.Wait()
		<-time.After(5 * time.Minute)
		if x := ask(); answeredBy(t, x) != 3 || x.Trace.Outcome != flows.Upstream {
			t.Errorf("after it: %s %s", bodyOf(x), field(x, "cache-status"))
		}
		<-time.After(15 * time.Minute)
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 503, `{"error":{}}`); return nil }
		if x := ask(); x.Response.Status != 503 {
			t.Errorf("after the next, while the cluster fails: %s %s", bodyOf(x), field(x, "cache-status"))
		}
	})
}

// A clock that is a little wrong makes answers wrong for a little.
func TestRoundedNowOfAWrongClock(t *testing.T) {
	const nowTTL = 10 * time.Second
	for _, skew := range []time.Duration{-5 * time.Second, 5 * time.Second} {
		simtime.Test(t, func(t *testing.T) {
			r, direct := nowRig(t, "ttl: 12h, now_ttl: 10s, rounded_now: still", skew)
			auckland, err := time.LoadLocation("Pacific/Auckland")
			if err != nil {
				t.Skipf("no time zones here: %v", err)
			}
			year, month, day := time.Now().In(auckland).Date()
			<-time.After(time.Until(time.Date(year, month, day+1, 0, 0, 0, 0, auckland)) - time.Minute)
			before := direct(sinceMidnight)
			wrong := 0
			for range 240 {
				if countOf(t, bodyOf(r.ask("/i/_count", sinceMidnight))) != direct(sinceMidnight) {
					wrong++
				}
				<-time.After(time.Second)
			}
			if wrong > int(nowTTL.Seconds()*1.1)+5 {
				t.Errorf("with a clock that is off by %s answers are wrong for %d s", skew, wrong)
			}
			if direct(sinceMidnight) == before {
				t.Error("midnight changed nothing")
			}
		})
	}
}

// Other searches are not taken for such ones, nor such ones for others.
func TestNowAsAWord(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r, direct := nowRig(t, "ttl: 1h, now_ttl: 10s, rounded_now: still", 0)
		f := func(body string, want flows.Outcome) {
			t.Helper()
			r.ask("/i/_count", body)
			<-time.After(5 * time.Minute)
			x := r.ask("/i/_count", body)
			if got := countOf(t, bodyOf(x)); got != direct(body) || (x.Trace.Outcome == flows.Hit) != (want == flows.Hit) {
				t.Errorf("%s: %s, %s", body, got, field(x, "cache-status"))
			}
		}
		<-time.After(time.Minute)
		f(`{"query":{"match":{"title":"now and then"}}}`, flows.Hit)
		f(`{"query":{"match":{"title":"now"}}}`, flows.Upstream) // the title might be a date
		f(`{"query":{"range":{"t":{"gte":"now-15m"}}}}`, flows.Upstream)
		f(`{"query":{"query_string":{"query":"t:[now-1h TO now]"}}}`, flows.Upstream)
	})
}

// Nodes are asked for the ranges that were sent, to the byte, wherever they stand and whatever the cache is told of time; also in
// the background, and in a _msearch of which a part is there.
func TestRangesAreNeverRewritten(t *testing.T) {
	bodies := []string{
		`{"query":{"range":{"t":{"gte":"now-15m","lte":"now"}}}}`,
		`{"query":{"bool":{"filter":[{"range":{"t":{"gt":"now-1d/d","lt":"now/d","time_zone":"Pacific/Auckland"}}}],"must_not":{"bool":{"should":{"range":{"t":{"to":"now/h"}}}}}}}}`,
		`{"query":{"bool":{"filter":{"range":{"t":{"gte":1700000000123,"lt":1.700000001234e12,"format":"epoch_millis","_name":"last"}}}}}}`,
		`{"query":{"range":{"t":{"from":"2024-03-01T00:00:00.000000001Z","to":"01/03/2024","include_upper":false,"format":"strict_date_optional_time||dd/MM/yyyy"}}}}`,
		`{"size":0,"query":{"range":{"t":{"gte":"2024-03-01T00:00:17.123Z","lte":"2024-03-01T00:15:17.123Z"}}},"aggs":{"h":{"date_histogram":{"field":"t","fixed_interval":"30s","extended_bounds":{"min":1709251217123,"max":1709252117123},"offset":"+1h"}}}}`,
		`{"aggs":{"r":{"date_range":{"field":"t","ranges":[{"from":"now-10d/d","to":"now"},{"to":"2024-03-01"}]}},"f":{"filters":{"filters":{"a":{"range":{"t":{"gte":"now-7s"}}}}}}}}`,
		`{ "query" : {"query_string":{"query":"t:[now-1h TO now] AND t:>2024-03-01"}} }`,
	}
	for _, settings := range []string{"", "rounded_now: still", "now_ttl: 1s", "stale_while_revalidate: 1h, now_ttl: 1s"} {
		simtime.Test(t, func(t *testing.T) {
			r := newRig(t, `[{name: main, filter: [{cache: {`+settings+`}}, {node: {}}]}]`)
			var asked []string
			node := multiNode(&asked)
			r.node = func(x *flows.Exchange, call int64) error {
				err := node(x, call)
				asked[len(asked)-1] = string(x.Request.Target) + " " + asked[len(asked)-1]
				return err
			}
			f := func(target, body, want string) {
				t.Helper()
				asked = nil
				r.ask(target, body)
				synctest.Wait() // for what goes on in the background
				if len(asked) != 1 || asked[0] != want {
					t.Errorf("%s: the node was asked %q, want %q", settings, asked, want)
				}
			}
			there := lines(head, `{}`)
			f("/_msearch", there, "/_msearch "+there)
			for _, body := range bodies {
				f("/i/_search", body, "/i/_search "+body)
				other := lines(`{"index":"j"}`, body)
				f("/_msearch", there+other, "/_msearch "+other)
			}
			const q = "/i/_search?q=t:%5Bnow-90s+TO+2024-03-01T00:00:17%5D"
			f(q, "", q+" ")
			<-time.After(3 * time.Minute) // past all times, not past what is given meanwhile
			for _, body := range bodies {
				f("/i/_search", body, "/i/_search "+body)
			}
		})
	}
}

// An explanation says until when an answer would be given.
func TestExplainRoundedNow(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{cache: {ttl: 12h, rounded_now: still}}, {node: {}}]}]`)
		<-time.After(7 * time.Minute)
		e, ok := Explain([]*flows.Flow{r.flows["main"]}, request("/i/_count", sinceMidnight))
		if want := time.Now().Truncate(15 * time.Minute).Add(15 * time.Minute).UTC().Format(time.RFC3339); !ok || e.Until != want || e.AgeBounds != "" || e.TTL != "12h0m0s" {
			t.Errorf("until %q, want %q; age bounds %q, ttl %s", e.Until, want, e.AgeBounds, e.TTL)
		}
	})
}
