package query

import "strings"

// An Account says how a key came about, for people.
type Account struct {
	// Body is the canonical form of the body; empty if there is none, or if the request had no key before the body was
	// looked at.
	Body string
	// Args are the URL parameters in the key, and Dropped those that are not, and members of the body left out; as
	// name=value, decoded.
	Args, Dropped []string
	// Identity names the header fields that say who asks. Their values are nobody's business.
	Identity []string
}

// Explain returns what Key returns, and how it came about. It is not for the way of a request.
func (k *Keyer) Explain(r *Request) (Key, Verdict, Account) {
	key, v := k.Key(r)
	var a Account
	s, _ := k.states.Get().(*state)
	defer k.release(s)
	s.body, s.args = s.body[:0], s.args[:0]
	s.canon.timeout, s.canon.stats = nil, nil
	again := Verdict{MaxAge: -1}
	s.parts, s.dropped = s.parts[:0], s.dropped[:0]
	k.assemble(s, r, &again)
	a.Body = string(s.body)
	for i := range s.args {
		arg := &s.args[i]
		text := string(arg.name) + "=" + string(arg.keyValue())
		if arg.dropped {
			a.Dropped = append(a.Dropped, text)
		} else {
			a.Args = append(a.Args, text)
		}
	}
	for _, member := range []string{string(s.canon.timeout), string(s.canon.stats)} {
		if r.API == "search" && member != "" {
			a.Dropped = append(a.Dropped, "body "+strings.TrimSuffix(member, ","))
		}
	}
	for _, f := range r.Header.Fields() {
		if h, extra := k.hear(r, lower(&s.name, f.Name)); h == hearIdentity || h == hearAddress || extra {
			a.Identity = append(a.Identity, strings.ToLower(string(f.Name)))
		}
	}
	return key, v, a
}
