package limit

import (
	"encoding/base64"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/flows"
)

// TestClassicNames holds that the classic filters limit whom they are for, each caller for itself, and nobody else.
func TestClassicNames(t *testing.T) {
	key := func(id string) []string {
		return []string{"Authorization", "ApiKey " + base64.StdEncoding.EncodeToString([]byte(id+":secret"))}
	}
	f := func(filter string, limited, other func(int) *flows.Exchange, otherPasses int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
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
	f(`- request_client_ip_limiter: {max_bytes: 300, action: drop}`, with("PUT", "/i/_doc/1", strings.Repeat("x", 100)), get("/"), 6)
	f(`- request_client_ip_limiter: {max_requests: 6, interval: 2s, burst_requests: 3, action: drop}`, get("/"), get("/"), 0)
}

// TestClassicRetryWaits holds that without action: drop requests wait.
func TestClassicRetryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	f(`context_limiter: {max_requests: 1}`, `"context" is missing`)
	f(`context_limiter: {max_requests: 1, context: [_ctx.request.pth]}`, `did you mean "_ctx.request.path"?`)
	f(`context_limiter: {max_requests: 1, context: [_ctx.response.status]}`, "no property that a limit can be by")
}
