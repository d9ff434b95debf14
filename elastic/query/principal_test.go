package query

import (
	"encoding/base64"
	"strings"
	"testing"
)

func bearer(claims string) string {
	return "Bearer e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

const (
	authenticated = `{"username":"bob","roles":["a","b"],"full_name":null,"email":null,"metadata":{"team":1},"enabled":true,
		"authentication_realm":{"name":"n","type":"native"},"lookup_realm":{"name":"n","type":"native"},"authentication_type":"realm"}`
	authinfo = `{"user":"User [name=bob]","user_name":"bob","remote_address":"127.0.0.1:1","backend_roles":["x","y"],"custom_attribute_names":[],
		"roles":["a","b"],"tenants":{"bob":true}}`
)

// Each part of what a node says of a caller tells principals apart, but for what differs from one call or token to the next.
func TestPrincipalText(t *testing.T) {
	read := func(answer, authorization string) string {
		t.Helper()
		p, ok := ReadPrincipal([]byte(answer), []byte(authorization))
		if !ok || p.Name != "bob" {
			t.Fatalf("%s of %s: %q, %t", answer, authorization, p.Name, ok)
		}
		return string(p.Text)
	}
	f := func(answer, authorization, old, other string, same bool) {
		t.Helper()
		changed := strings.Replace(answer, old, other, 1)
		if changed == answer {
			t.Fatalf("%s is not in %s", old, answer)
		}
		if (read(answer, authorization) == read(changed, authorization)) != same {
			t.Errorf("%s or %s: the same principal: %t", old, other, !same)
		}
	}
	f(authenticated, "Basic x", `"a"`, `"c"`, false)
	f(authenticated, "Basic x", `"a","b"`, `"b","a"`, true)
	f(authenticated, "Basic x", `"full_name":null`, `"full_name":"B"`, false)
	f(authenticated, "Basic x", `"email":null`, `"email":"b@c"`, false)
	f(authenticated, "Basic x", `{"team":1}`, `{"team":1.0}`, false)
	f(authenticated, "Basic x", `{"team":1}`, `{"team":9007199254740993}`, false)
	f(authenticated, "Basic x", `{"name":"n","type":"native"},"auth`, `{"name":"m","type":"native"},"auth`, false)
	f(authenticated, "Basic x", `"authentication_realm":{"name":"n"`, `"authentication_realm":{"name":"m"`, false)
	f(authenticated, "Basic x", `"team":1`, `"team":1,"new":true`, false)
	jwt := bearer(`{"sub":"bob","exp":1}`)
	f(authenticated, jwt, `"team":1`, `"jwt_claim_jti":"a","oidc(iat)":3,"team":1`, true)
	f(authenticated, jwt, `"team":1`, `"jwt_claim_sub":"a","team":1`, false)
	f(authinfo, "Basic x", `"127.0.0.1:1"`, `"127.0.0.1:2"`, true)
	f(authinfo, "Basic x", `"x","y"`, `"y","x"`, true)
	f(authinfo, "Basic x", `"x","y"`, `"x"`, false)
	f(authinfo, "Basic x", `"a"`, `"c"`, false)
	f(authinfo, jwt, `"custom_attribute_names":[]`, `"custom_attribute_names":["attr.jwt.sub"]`, false)

	g := func(answer, one, other string, same bool) {
		t.Helper()
		if (read(answer, one) == read(answer, other)) != same {
			t.Errorf("%s and %s: the same principal: %t", one, other, !same)
		}
	}
	for _, answer := range []string{authenticated, authinfo} {
		g(answer, "Basic x", "basic y", true)
		g(answer, "Basic x", jwt, false)
		g(answer, jwt, bearer(`{"sub":"bob","exp":2,"nbf":3,"iat":4,"jti":"x"}`), true)
		g(answer, jwt, bearer(`{"sub":"bob","groups":["a"]}`), false)
		g(answer, bearer(`{"n":1}`), bearer(`{"n":1.0}`), false)
	}
	token := strings.Replace(authenticated, `:"realm"`, `:"token"`, 1)
	g(token, "Bearer a", "bearer  b", true)
	if read(token, jwt) == read(authenticated, jwt) {
		t.Error("rights that a token was given once are those that its user has now")
	}
}

// Where an answer leaves open what rights a caller has, there is no principal.
func TestNoPrincipal(t *testing.T) {
	f := func(answer, authorization, old, other string) {
		t.Helper()
		changed := strings.Replace(answer, old, other, 1)
		if changed == answer {
			t.Fatalf("%s is not in %s", old, answer)
		}
		if _, ok := ReadPrincipal([]byte(changed), []byte(authorization)); ok {
			t.Errorf("%s for %s: a principal", changed, authorization)
		}
	}
	jwt := bearer(`{"sub":"bob"}`)
	f(authenticated, "Basic x", `"bob"`, `""`)
	f(authenticated, "Basic x", `"username"`, `"user"`)
	f(authenticated, "Basic x", `:true`, `:false`)
	f(authenticated, "Basic x", `"authentication_type":"realm"`, `"more":1`)
	f(authenticated, "Basic x", `:"realm"`, `:"token"`)
	f(authenticated, "Basic x", `:"realm"`, `:"api_key"`)
	f(authenticated, "Basic x", `:"realm"`, `:"anonymous"`)
	f(authenticated, "Basic x", `"native"`, `"_es_api_key"`)
	f(authenticated, "Basic x", `"lookup_realm":{"name":"n","type":"native"}`, `"lookup_realm":{"name":"n","type":"_service_account"}`)
	f(authenticated, "Basic x", `"lookup_realm"`, `"other_realm"`)
	f(authenticated, "Basic x", `"enabled"`, `"api_key":{"id":"1"},"enabled"`)
	f(authenticated, "Basic x", `{"user`, `[{"user`)
	f(authenticated, "Bearer opaque", `"a"`, `"c"`)
	f(authenticated, "Bearer a.b.c", `"a"`, `"c"`)
	f(authenticated, bearer(`[]`), `"a"`, `"c"`)
	f(authenticated, jwt+".x", `"a"`, `"c"`)
	f(authinfo, "Bearer opaque", `"a"`, `"c"`)
	f(authinfo, "Basic x", `"custom_attribute_names":[]`, `"custom_attribute_names":["attr.internal.team"]`)
	f(authinfo, "Basic x", `"custom_attribute_names":[]`, `"custom_attribute_names":["attr.jwt.team"]`)
	f(authinfo, jwt, `"custom_attribute_names":[]`, `"custom_attribute_names":["attr.jwt.sub","attr.ldap.dn"]`)
	f(authinfo, "Basic x", `"custom_attribute_names":[]`, `"custom_attribute_names":null`)
	f(authinfo, "Basic x", `"custom_attribute_names":[]`, `"custom_attribute_names":[1]`)
	f(authinfo, "Basic x", `"bob","remote`, `1,"remote`)
}

// Of credentials that a cluster can name Authorization is left to the caller of Key, and nothing else is.
func TestNameableCredentials(t *testing.T) {
	k := newTestKeyer(t, Options{Identity: PerPrincipal})
	f := func(k *Keyer, nameable bool, one, other []string, target string) {
		t.Helper()
		a, va := mustKey(t, k, ask("POST search "+target+" {}", one...))
		b, vb := mustKey(t, k, ask("POST search "+target+" {}", other...))
		if va.Nameable != nameable || vb.Nameable != nameable || (a == b) != nameable {
			t.Errorf("%q and %q: nameable %t and %t, the same key: %t", one, other, va.Nameable, vb.Nameable, a == b)
		}
		if va.Caller == vb.Caller || va.Caller == [16]byte{} || nameable && va.Dropped == vb.Dropped {
			t.Errorf("%q and %q are one caller", one, other)
		}
	}
	one := func(lines ...string) []string { return lines }
	f(k, true, one("Authorization: Basic x"), one("Authorization: Basic y"), "i")
	f(k, true, one("Authorization: Basic x"), one("authorization: bearer y"), "i")
	f(k, true, one("Cookie: a", "Authorization: Basic x"), one("Authorization: Basic y", "Cookie: a"), "i")
	f(k, false, one("Authorization: ApiKey x"), one("Authorization: ApiKey y"), "i")
	f(k, false, one("Authorization: Negotiate x"), one("Authorization: AWS4-HMAC-SHA256 y"), "i")
	f(k, false, one("Authorization: Basic "), one("Authorization: Basic"), "i")
	f(k, false, one("Authorization: Basic x", "Authorization: Basic y"), one("Authorization: Basic y", "Authorization: Basic x"), "i")
	f(k, false, one("Authorization: Basic x", "Authorization: ApiKey y"), one("Authorization: ApiKey y", "Authorization: Basic x"), "i")
	f(k, false, one("Authorization: Basic x"), one("Authorization: Basic y"), "i?jwt=1")
	f(k, false, one("Proxy-Authorization: Basic x"), one("Proxy-Authorization: Basic y"), "i")
	f(newTestKeyer(t, Options{}), false, one("Authorization: Basic x"), one("Authorization: Basic y"), "i")
	f(newTestKeyer(t, Options{Identity: PerPrincipal, ExtraHeaders: []string{"authorization"}}), false, one("Authorization: Basic x"), one("Authorization: Basic y"), "i")

	with := func(lines ...string) Key {
		key, _ := mustKey(t, k, ask("POST search i {}", append(lines, "Authorization: Basic x")...))
		return key
	}
	seen := map[Key]bool{}
	for _, lines := range [][]string{{}, {"es-security-runas-user: a"}, {"securitytenant: a"}, {"Cookie: a"}, {"X-Anything: a"}, {"X-Anything: b"}} {
		seen[with(lines...)] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d keys of callers who differ in other fields, want 6", len(seen))
	}
}
