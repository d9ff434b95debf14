package transform

import (
	"testing"

	"weir/elastic"
	"weir/flows"
)

// sees is what stands below a filter: it notes the request and answers.
type sees struct{ target, path, api, location string }

func (s *sees) Serve(x *flows.Exchange) error {
	s.target, s.path, s.api = string(x.Request.Target), string(x.DecodedPath()), x.Call().Name
	x.Reply(201, "", nil)
	x.Response.Header.AddString("Location", s.location)
	return nil
}

// Prefixes are whole segments, and what follows them stays as it is (elastic/elasticsearch#22913).
func TestMount(t *testing.T) {
	m := &mount{[]byte("/es")}
	f := func(target, want, path, api string) {
		t.Helper()
		s := &sees{location: "/i/_doc/1"}
		x := flows.Explaining("GET", target)
		x.Call() // as the router may have
		if err := m.Serve(x, s); err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		if s.target != want || s.path != path || s.api != api {
			t.Errorf("%s: %q, %q, %s; want %q, %q, %s", target, s.target, s.path, s.api, want, path, api)
		}
		if got := string(x.Response.Header.Get("location")); got != "/es/i/_doc/1" {
			t.Errorf("%s: Location %q", target, got)
		}
	}
	f("/es", "/", "/", "info")
	f("/es/", "/", "/", "info")
	f("/es?pretty", "/?pretty", "/", "info")
	f("/es/es/_doc/1", "/es/_doc/1", "/es/_doc/1", "get")
	f("/es/%3Cl-%7Bnow%2Fd%7D%3E/_search?q=%zz", "/%3Cl-%7Bnow%2Fd%7D%3E/_search?q=%zz", "/<l-{now/d}>/_search", "search")
	f("/es//i//_search", "//i//_search", "/i/_search", "search")
	for _, target := range []string{"/esindex/_search", "/", "/x/es/_search", "/e%73/_search", "/ES/_search"} {
		x := flows.Explaining("GET", target)
		if err := elastic.AsError(m.Serve(x, &sees{})); err == nil || err.Status != 503 {
			t.Errorf("%s: %v, want 503", target, err)
		}
	}
	for _, location := range []string{"http://other.test/i", "//other.test/i"} {
		x := flows.Explaining("GET", "/es/i")
		if err := m.Serve(x, &sees{location: location}); err != nil {
			t.Fatal(err)
		}
		if got := string(x.Response.Header.Get("location")); got != location {
			t.Errorf("Location %q became %q", location, got)
		}
	}
}
