package estest

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// SetUsers changes who may use the cluster. It fails, and changes nothing, if a filter is no query.
func (c *Cluster) SetUsers(users ...User) error {
	for _, u := range users {
		filters := []string{u.Filter}
		for _, k := range u.Keys {
			filters = append(filters, k.Filter)
		}
		for _, f := range filters {
			u.Filter = f
			if err := c.checkFilter(u); err != nil {
				return err
			}
		}
	}
	users = slices.Clone(users)
	c.users.Store(&users)
	return nil
}

// authenticate finds out who calls. The cluster's index of users is short, and a test of timing attacks is not what it is
// for.
func (c *Cluster) authenticate(r *request) error {
	users := *c.users.Load()
	if len(users) == 0 {
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
	decoded, _ := base64.StdEncoding.DecodeString(credentials)
	name, secret, _ := strings.Cut(string(decoded), ":")
	switch {
	case strings.EqualFold(scheme, "basic"):
		r.user = userOf(users, name, secret)
	case strings.EqualFold(scheme, "apikey"):
		r.user = keyOf(users, name, secret)
	case strings.EqualFold(scheme, "bearer"):
		name, r.user = "", tokenOf(users, credentials)
	}
	if r.user == nil {
		return &apiError{
			status: 401, typ: "security_exception",
			reason: fmt.Sprintf("unable to authenticate user [%s] for REST request [%s]", name, r.Target),
			meta:   challenge,
		}
	}
	return r.runAs(users)
}

// userOf returns the user with a name and a password, or nil.
func userOf(users []User, name, password string) *User {
	for i := range users {
		if u := &users[i]; u.Name == name && u.Password == password {
			return u
		}
	}
	return nil
}

// keyOf returns the user of an API key, with the rights of the key, or nil.
func keyOf(users []User, id, secret string) *User {
	for _, u := range users {
		for _, k := range u.Keys {
			if k.ID != id || k.Secret != secret {
				continue
			}
			u.key = id
			switch {
			case u.Filter == "":
				u.Filter = k.Filter
			case k.Filter != "":
				u.Filter = fmt.Sprintf(`{"bool":{"filter":[%s,%s]}}`, u.Filter, k.Filter)
			}
			return &u
		}
	}
	return nil
}

// tokenOf returns the user of a bearer token, or nil.
func tokenOf(users []User, token string) *User {
	for _, u := range users {
		if slices.Contains(u.Tokens, token) {
			u.token = token
			return &u
		}
	}
	return nil
}

// runAs makes the caller another user, if the request says so and the caller may.
func (r *request) runAs(users []User) error {
	name := r.Header.Get("es-security-runas-user")
	if name == "" {
		return nil
	}
	if slices.Contains(r.user.RunAs, name) {
		for i := range users {
			if u := users[i]; u.Name == name {
				u.agent, u.key, u.token = r.user.Name, r.user.key, r.user.token
				r.user = &u
				return nil
			}
		}
	}
	return &apiError{
		status: 403, typ: "security_exception",
		reason: fmt.Sprintf("action [cluster:admin/xpack/security/user/authenticate] is unauthorized for user [%s] run as [%s]", r.user.Name, name),
	}
}

var challenge = object{{"header", object{{"WWW-Authenticate", []any{`Basic realm="security" charset="UTF-8"`}}}}}

// authenticate answers who the caller is.
func authenticate(r *request) (answer, error) {
	if r.user == nil {
		return answer{}, r.noHandler()
	}
	kind, realm := "realm", object{{"name", "default_native"}, {"type", "native"}}
	switch {
	case r.user.key != "":
		kind, realm = "api_key", object{{"name", "_es_api_key"}, {"type", "_es_api_key"}}
	case strings.Count(r.user.token, ".") == 2:
		realm = object{{"name", "jwt1"}, {"type", "jwt"}}
	case r.user.token != "":
		kind = "token"
	}
	lookup := realm
	if r.user.agent != "" {
		lookup = object{{"name", "default_native"}, {"type", "native"}}
	}
	return answer{value: object{
		{"username", r.user.Name},
		{"roles", list(r.user.Roles)},
		{"full_name", nil},
		{"email", nil},
		{"metadata", object{}},
		{"enabled", true},
		{"authentication_realm", realm},
		{"lookup_realm", lookup},
		{"authentication_type", kind},
	}}, nil
}

// authinfo is authenticate of OpenSearch's security plug-in.
func authinfo(r *request) (answer, error) {
	if r.user == nil {
		return answer{}, r.noHandler()
	}
	attributes := []any{}
	if strings.Count(r.user.token, ".") == 2 {
		attributes = []any{"attr.jwt.sub", "attr.jwt.exp"}
	}
	return answer{value: object{
		{"user", fmt.Sprintf("User [name=%s, backend_roles=[], requestedTenant=null]", r.user.Name)},
		{"user_name", r.user.Name},
		{"user_requested_tenant", nil},
		{"remote_address", "127.0.0.1:40000"},
		{"backend_roles", []any{}},
		{"custom_attribute_names", attributes},
		{"roles", list(r.user.Roles)},
		{"tenants", object{{r.user.Name, true}}},
		{"principal", nil},
		{"peer_certificates", "0"},
		{"sso_logout_url", nil},
	}}, nil
}

func list(names []string) []any {
	all := []any{}
	for _, name := range names {
		all = append(all, name)
	}
	return all
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
		return fmt.Errorf("filter of user %q: %w", u.Name, err)
	}
	return nil
}
