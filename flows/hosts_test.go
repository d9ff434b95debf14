package flows

import "testing"

func TestHostsInRules(t *testing.T) {
	f := func(pattern, host string, want bool) {
		t.Helper()
		x := Explaining("GET", "/", "Host", host)
		c := &subject{key: "host", patterns: hostPatterns([]string{pattern})}
		if got := c.Match(x); got != want {
			t.Errorf("host: %s and Host: %s: %v", pattern, host, got)
		}
	}
	for _, host := range []string{"admin.example", "ADMIN.example", "admin.example:8000", "admin.example.", "Admin.Example.:80"} {
		f("admin.example", host, true)
		f("Admin.Example:9200", host, true)
		f("*.example", host, true)
		f("other.example", host, false)
	}
	f("[::1]", "[::1]:8000", true)
	f("[::1]:9200", "[::1]", true)
	f("admin.example", "xadmin.example", false)
}
