package estest_test

import (
	"encoding/base64"
	"testing"

	"weir/elastic/estest"
)

// Keys narrow what their users see, and who may act as another sees what that one does.
func TestCallers(t *testing.T) {
	alice := estest.User{
		Name: "alice", Password: "a", Filter: `{"term":{"a":1}}`, RunAs: []string{"bob", "nobody"},
		Keys: []estest.Key{{ID: "k1", Secret: "s"}, {ID: "k2", Secret: "s", Filter: `{"term":{"b":1}}`}},
	}
	bob := estest.User{Name: "bob", Password: "b", Keys: []estest.Key{{ID: "k3", Secret: "s", Filter: `{"term":{"b":1}}`}}}
	c, cl := start(t, estest.Options{Users: []estest.User{alice, bob}})
	cl.user = [2]string{"bob", "b"}
	cl.do("PUT", "/i/_doc/1?refresh=true", `{"a":1,"b":1}`)
	cl.do("PUT", "/i/_doc/2?refresh=true", `{"a":1,"b":2}`)
	cl.do("PUT", "/i/_doc/3?refresh=true", `{"a":2,"b":1}`)
	cl.user = [2]string{}
	f := func(authorization, runAs string, status int, count any) {
		t.Helper()
		r, err := cl.try("GET", "/i/_count", "", "Authorization", authorization, "es-security-runas-user", runAs)
		if err != nil {
			t.Fatal(err)
		}
		if r.status != status || r.get(t, "count") != count {
			t.Errorf("%s as %q: %d %s, want %d, %v", authorization, runAs, r.status, r.body, status, count)
		}
	}
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	key := func(s string) string { return "ApiKey " + base64.StdEncoding.EncodeToString([]byte(s)) }
	f(basic("alice:a"), "", 200, 2.0)
	f(basic("bob:b"), "", 200, 3.0)
	f(basic("alice:a"), "bob", 200, 3.0)
	f(basic("bob:b"), "alice", 403, nil)
	f(basic("alice:a"), "nobody", 403, nil)
	f(key("k1:s"), "", 200, 2.0)
	f(key("k2:s"), "", 200, 1.0)
	f(key("k3:s"), "", 200, 2.0)
	f(key("k3:x"), "", 401, nil)
	f(basic("k3:s"), "", 401, nil)
	f(key("alice:a"), "", 401, nil)
	f("Bearer x", "", 401, nil)

	alice.Password, alice.Keys = "new", nil
	if err := c.SetUsers(alice); err != nil {
		t.Fatal(err)
	}
	f(basic("alice:a"), "", 401, nil)
	f(basic("alice:new"), "", 200, 2.0)
	f(basic("alice:new"), "bob", 403, nil)
	f(key("k1:s"), "", 401, nil)
	if err := c.SetUsers(estest.User{Name: "eve", Keys: []estest.Key{{Filter: `{"foo":{}}`}}}); err == nil {
		t.Error("a filter that is no query is taken")
	}
	f(basic("alice:new"), "", 200, 2.0)
}
