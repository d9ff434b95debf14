package estest

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// authenticate finds out who calls, by basic authentication. The cluster's index of users is short, and a test of
// timing attacks is not what it is for.
func (c *Cluster) authenticate(r *request) error {
	if len(c.o.Users) == 0 {
		return nil
	}
	header := r.Header.Get("Authorization")
	scheme, credentials, _ := strings.Cut(header, " ")
	if header == "" {
		return &apiError{
			status: 401, typ: "security_exception",
			reason: fmt.Sprintf("missing authentication credentials for REST request [%s]", r.Target),
			meta:   challenge,
		}
	}
	decoded, err := base64.StdEncoding.DecodeString(credentials)
	name, password, _ := strings.Cut(string(decoded), ":")
	if err == nil && strings.EqualFold(scheme, "basic") {
		for i := range c.o.Users {
			if u := &c.o.Users[i]; u.Name == name && u.Password == password {
				r.user = u
				return nil
			}
		}
	}
	return &apiError{
		status: 401, typ: "security_exception",
		reason: fmt.Sprintf("unable to authenticate user [%s] for REST request [%s]", name, r.Target),
		meta:   challenge,
	}
}

var challenge = object{{"header", object{{"WWW-Authenticate", []any{`Basic realm="security" charset="UTF-8"`}}}}}

// authenticate answers who the caller is.
func authenticate(r *request) (answer, error) {
	if r.user == nil {
		return answer{}, r.noHandler()
	}
	roles := []any{}
	for _, role := range r.user.Roles {
		roles = append(roles, role)
	}
	return answer{value: object{
		{"username", r.user.Name},
		{"roles", roles},
		{"full_name", nil},
		{"email", nil},
		{"metadata", object{}},
		{"enabled", true},
		{"authentication_realm", object{{"name", "default_native"}, {"type", "native"}}},
		{"lookup_realm", object{{"name", "default_native"}, {"type", "native"}}},
		{"authentication_type", "realm"},
	}}, nil
}

// userFilter returns what limits the documents that the caller sees in an index, or nil.
func (r *request) userFilter(ix *index) (matcher, error) {
	if r.user == nil || r.user.Filter == "" {
		return nil, nil
	}
	v, err := parseJSON([]byte(r.user.Filter))
	if err != nil {
		return nil, err
	}
	q, _ := v.(object)
	return compiler{ix.mapping, r.now}.query(q)
}

// checkFilter refuses a user whose filter is no query.
func (c *Cluster) checkFilter(u User) error {
	r := &request{c: c, user: &u, now: c.clock.Now()}
	if _, err := r.userFilter(&index{mapping: newMapping()}); err != nil {
		return fmt.Errorf("start cluster: filter of user %q: %w", u.Name, err)
	}
	return nil
}
