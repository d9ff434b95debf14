package limit

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/simtime"
)

// TestClassicNames holds that the classic filters limit whom they are for, each caller for itself, and nobody else.
func TestClassicNames(t *testing.T) {
	key := func(id string) []string {
		return []string{"Authorization", "ApiKey " + base64.StdEncoding.EncodeToString([]byte(id+":secret"))}
	}
	f := func(filter string, limited, other func(int) *flows.Exchange, otherPasses int) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, filter)
			if n := g.passes(6, limited); n != 3 {
				t.Errorf("%s: %d of 6 passed, want 3", filter, n)
			}
			if n := g.passes(6, other); n != otherPasses {
				t.Errorf("%s: %d of 6 others passed, want %d", filter, n, otherPasses)
			}
			<-time.After(1001 * time.Millisecond)
			if n := g.passes(6, limited); n != 3 {
				t.Errorf("%s: %d of 6 passed a second later, want 3", filter, n)
			}
		})
	}
	f(`- request_path_limiter: {rules: [{pattern: "/(?P<i>medcl)/_search", max_qps: 3, group: i}]}`, get("/medcl/_search"), get("/x/_search"), 6)
	f(`- request_client_ip_limiter: {max_requests: 3, action: drop}`, get("/"), get("/"), 0)
	f(`- request_client_ip_limiter: {ip: [192.0.2.1], max_requests: 3, action: drop}`, get("/"), get("/"), 0)
	f(`- request_user_limiter: {max_requests: 3, action: drop}`, as("ann"), as("bob"), 3)
	f(`- request_user_limiter: {max_requests: 3, action: drop}`, as("ann"), as(""), 6)
	f(`- request_user_limiter: {user: [ann], max_requests: 3, action: drop}`, as("ann"), as("bob"), 6)
	f(`- request_host_limiter: {host: es.example, max_requests: 3, action: drop}`, get("/", "Host", "ES.example:9200"), get("/", "Host", "x"), 6)
	f(`- request_api_key_limiter: {id: [one], max_requests: 3, action: drop}`, get("/", key("one")...), get("/", key("two")...), 6)
	f(`- request_api_key_limiter: {max_requests: 3, action: drop}`, get("/", key("one")...), get("/", key("two")...), 3)
	f(`- context_limiter: {context: [_ctx.request.path, _ctx.request.header.Env], max_requests: 3, action: drop}`,
		get("/a", "Env", "x"), get("/a", "Env", "y"), 3)
	f(`- context_limiter: {context: [_ctx.request.path, _ctx.request.header.Env], max_requests: 3, action: drop}`, get("/a"), get("/b"), 3)
	f(`- request_client_ip_limiter: {max_bytes: 300, action: drop}`, with("PUT", "/i/_doc/1", strings.Repeat("x", 100)), get("/"), 6)
	f(`- request_client_ip_limiter: {max_requests: 6, interval: 2s, burst_requests: 3, action: drop}`, get("/"), get("/"), 0)
}

// TestBulkRequestThrottle tells how many of 20 bulks pass at once.
func TestBulkRequestThrottle(t *testing.T) {
	const classic = `
- bulk_request_throttle:
    indices:
      test: {max_requests: 5, action: drop, message: "test writing too fast", status: 503}
      file*: {max_requests: 2, action: drop, message: "files writing too fast"}
      filebeat-*: {max_bytes: 99, action: drop}
      filebeat-9: {max_bytes: 330, burst_bytes: 210, interval: 2s, action: drop}
`
	f := func(method, target, body string, want int) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			if n := newGateway(t, classic).passes(20, with(method, target, body)); n != want {
				t.Errorf("%s %s: %d of 20 pass, want %d", target, body, n, want)
			}
		})
	}
	f("POST", "/_bulk", lines("other"), 20)
	f("POST", "/test/_bulk", lines("other"), 20)
	f("POST", "/_bulk", lines("filex"), 2)
	f("POST", "/_bulk", lines("filex", "filey"), 2) // each has a budget of its own
	f("POST", "/_bulk", lines("filex", "filex"), 1)
	f("POST", "/_bulk", lines("filebeat-1"), 2) // the first pattern counts
	f("POST", "/_bulk", lines("filebeat-9"), 5) // of 42 bytes; its name counts
	f("POST", "/filex/_bulk", "{\"index\":{}}\n{}\n", 2)
	f("POST", "/filex/_doc", "{}", 20) // no bulk

	// Neither a long list nor what cannot be read hides an index.
	var filler []string
	for i := range maxIndices - 1 {
		filler = append(filler, "x"+strconv.Itoa(i))
	}
	f("POST", "/_bulk", lines(append(filler, "filex")...), 2)
	f("POST", "/_bulk", lines(append(filler, "filex", "x")...), 0)
	f("POST", "/_bulk", "{\"delete\":/**/{\"_index\":\"x\"}}\n"+lines("filex"), 0)
	f("GET", "/"+strings.Join(filler, ",")+",x,y/_search", "", 20) // no bulk
	f("POST", "/filex/_search", "{}", 20)
}

// TestBulkRequestThrottleRefuses holds that each limit has its own answer.
func TestBulkRequestThrottleRefuses(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `
- bulk_request_throttle:
    indices:
      test: {max_requests: 1, action: drop, message: "test writing too fast", status: 503}
      other: {max_requests: 1, action: drop}
`)
		f := func(index string, status int, reason string) {
			t.Helper()
			var e *elastic.Error
			for range 2 {
				err := g.flow.Serve(with("POST", "/_bulk", lines(index))(0))
				if err != nil && !errors.As(err, &e) {
					t.Fatal(err)
				}
			}
			if e == nil || e.Status != status || e.Reason != reason || e.RetryAfterSeconds() != 1 {
				t.Errorf("%s: refused with %+v, want %d %s", index, e, status, reason)
			}
		}
		f("test", 503, "test writing too fast")
		f("other", 429, "[other:requests] 1/s exceeded; retry in 1s")
	})
}

// TestBulkRequestThrottleWaits holds that bulks wait for their indices if each of them lets them, and are refused at once if one does
// not.
func TestBulkRequestThrottleWaits(t *testing.T) {
	f := func(second string, passed bool, at time.Duration) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, `
- bulk_request_throttle:
    indices:
      patient: {max_requests: 1, interval: 2s}
      hasty: {max_requests: 1, interval: 2s, retry_delay_in_ms: 100, max_retry_times: 15}
      drop: {max_requests: 1, interval: 2s, action: drop}
`)
			g.serve(with("POST", "/_bulk", lines("patient", "hasty", "drop"))(0))
			<-time.After(400 * time.Millisecond)
			c := crowd{g: g, start: time.Now()}
			c.comes(with("POST", "/_bulk", second)(0))
			if got := c.all()[0]; got.ok != passed || got.at != at {
				t.Errorf("%s: %+v, want passed %v after %s", second, got, passed, at)
			}
		})
	}
	f(lines("patient"), true, 1600*time.Millisecond)
	f(lines("other"), true, 0)
	f(lines("patient", "other"), true, 1600*time.Millisecond)
	f(lines("hasty"), false, 0)
	f(lines("patient", "hasty"), false, 0)
	f(lines("patient", "drop"), false, 0)
}

// TestClassicRetryWaits holds that without action: drop requests wait.
func TestClassicRetryWaits(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- request_client_ip_limiter: {max_requests: 2, burst_requests: 1, retry_delay_in_ms: 100, max_retry_times: 11}`)
		c := crowd{g: g, start: time.Now()}
		for range 5 {
			c.comes(as("a")(0))
		}
		got := c.all()
		for i, a := range got {
			if want := min(time.Duration(i)*500*time.Millisecond, 1100*time.Millisecond); a.ok != (i < 3) || a.at != want {
				t.Errorf("answer %d: %+v, want passed %v after %s", i, a, i < 3, want)
			}
		}
	})
}

func TestClassicMistakes(t *testing.T) {
	f := func(filter, want string) {
		t.Helper()
		_, p := build(t, "- "+filter, func(*rateLimit) {})
		all := ""
		for _, q := range p.Sorted() {
			all += q.String() + "\n"
		}
		if !strings.Contains(all, want) {
			t.Errorf("%s: problems %q, want %q", filter, all, want)
		}
	}
	f(`request_path_limiter: {}`, `"rules" is missing`)
	f(`request_path_limiter: {rules: [{pattern: x, max_qps: 0}]}`, "must be above 0")
	f(`request_user_limiter: {}`, "neither max_requests nor max_bytes")
	f(`request_user_limiter: {max_requests: 0}`, "at least 1")
	f(`request_user_limiter: {max_requests: 1, burst_bytes: 3}`, "burst_bytes without max_bytes")
	f(`request_user_limiter: {max_requests: 1, action: wait}`, "not one of retry, drop")
	f(`request_user_limiter: {max_requests: 1, failed_retry_message: x}`, "has no effect")
	f(`request_client_ip_limiter: {ip: [nowhere], max_requests: 1}`, "is no address")
	f(`bulk_request_throttle: {}`, `"indices" is missing`)
	f(`bulk_request_throttle: {indices: {}}`, "no indices")
	f(`bulk_request_throttle: {indices: {A: {max_requests: 1, max_bytes: 1kb}}}`, `"A" matches no index`)
	f(`bulk_request_throttle: {indices: {a: {action: drop}}}`, "neither max_requests nor max_bytes for a")
	f(`bulk_request_throttle: {indices: {a: {max_request: 1}}}`, `did you mean "max_requests"?`)
	f(`bulk_request_throttle: {indices: {a: {max_requests: 1, burst_bytes: 3}}}`, "test.yml:4:73: flow main: bulk_request_throttle: burst_bytes without max_bytes")
	f(`bulk_request_throttle: {indices: {a: {max_requests: 1, failed_retry_message: x}}}`, "has no effect")
	f(`context_limiter: {max_requests: 1}`, `"context" is missing`)
	f(`context_limiter: {max_requests: 1, context: [_ctx.request.pth]}`, `did you mean "_ctx.request.path"?`)
	f(`context_limiter: {max_requests: 1, context: [_ctx.response.status]}`, "no property that a limit can be by")
}
