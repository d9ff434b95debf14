package generation

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/elastic/query"
)

// A Write is an exchange with the cluster of which it is to be noted what it changed.
type Write struct {
	Call   *api.Call
	Method []byte
	Query  []byte // raw
	Body   []byte // of the request; nil if it was not kept
	Status int    // of the answer; 0 if there was none, and nobody knows what happened
	Answer []byte // body of the answer; nil if it was not kept
}

// Changes tells whether the exchange may have changed what searches find, now or later.
func (w *Write) Changes() bool {
	c := w.Call
	switch c.Class {
	case api.ClassInspect, api.ClassCursor:
		return false
	case api.ClassSearch:
		// Elasticsearch has no statement that writes, OpenSearch has.
		if c.Idempotency >= api.Cursor && !query.Writes(c.Name, w.Query, w.Body) {
			return false
		}
	case api.ClassUnknown:
		if string(w.Method) == "GET" || string(w.Method) == "HEAD" {
			return false
		}
	}
	return !w.refused()
}

// refused tells whether the answer is a refusal of which it is sure that nothing was written. Deleting what is not there is
// written and refreshes like any other write; what works on many documents may stop half-way, and then has the status of
// what stopped it; a bulk that cannot be read to its end has done what stood before (rest.incremental_bulk).
func (w *Write) refused() bool {
	if w.Status < 400 || w.Status >= 500 { // 0 included
		return false
	}
	switch w.Status {
	case 401, 405, 406, 415: // judged before the request is carried out
		return true
	}
	if w.Call.Class == api.ClassAdmin {
		return true // the state of the cluster is changed as a whole or not at all
	}
	switch w.Call.Name {
	case "index", "create", "update", "delete":
		// One that cannot be read or taken in may have had its index made for it.
		return w.Status != 400 && w.Status != 404 && w.Status != 409 && w.Status != 429
	case "bulk":
		// Once it has begun, what is refused is said of each item.
		return (w.Status == 403 || w.Status == 429) && w.failed()
	}
	return w.Status == 403 && w.failed()
}

// failed tells whether the answer says nothing but an error, instead of what was done and what was not.
func (w *Write) failed() bool {
	body, ok := bytes.CutPrefix(bytes.TrimLeft(w.Answer, " \t\r\n"), []byte{'{'})
	return ok && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte(`"error"`))
}

// Note notes what an exchange changed. It must be called before the answer is given to the client, so that who has got it
// finds no answer from before.
func (t *Tracker) Note(w *Write) {
	if !w.Changes() {
		return
	}
	visible := refreshes(w.Query)
	var names []string
	known := false
	switch w.Call.Name {
	case "index", "create", "update", "delete":
		if w.Status == 400 || w.Status == 429 {
			// Nothing was written, but the index was made first if there was none (action.auto_create_index).
			if names, known = expression(w.Call); known {
				t.made(names)
				return
			}
		}
		names, known = t.written(w)
	case "bulk":
		names, known = t.written(w)
	case "delete_by_query", "update_by_query":
		names, known = expression(w.Call)
	case "indices.refresh":
		names, known = expression(w.Call)
		visible = true
	default:
		if w.revokes() {
			t.revoked.Add(1)
		}
		// A setting, an alias, a mapping, a role: in force when it is acknowledged. Whom it concerns is not worked out.
		visible = w.Call.Class == api.ClassAdmin
	}
	if !known {
		names = nil
	}
	t.changed(names, visible)
}

// revokes tells whether the exchange may have taken rights from somebody.
func (w *Write) revokes() bool {
	return w.Call.Class == api.ClassAdmin && strings.HasPrefix(w.Call.Name, "security.") && !granting[w.Call.Name]
}

// granting are calls of the security plug-ins that give somebody credentials, or say who somebody is, and take nothing away. Kibana
// makes them at each login.
var granting = map[string]bool{
	"security.activate_user_profile": true, "security.update_user_profile_data": true, "security.get_token": true,
	"security.grant_api_key": true, "security.create_api_key": true, "security.clone_api_key": true,
	"security.create_cross_cluster_api_key": true, "security.create_service_token": true, "security.delegate_pki": true,
	"security.enroll_kibana": true, "security.enroll_node": true, "security.oidc_authenticate": true,
	"security.oidc_prepare_authentication": true, "security.saml_authenticate": true, "security.saml_prepare_authentication": true,
	"security.authtoken": true, "security.generate_obo_token": true, "security.generate_user_token": true,
	"security.generate_user_token_legacy": true,
}

// refreshes tells whether a write is visible to searches once it is answered.
func refreshes(query []byte) bool {
	value, ok := api.QueryValue(query, "refresh")
	return ok && string(value) != "false"
}

// expression returns the parts of the index expression of a call.
func expression(c *api.Call) ([]string, bool) {
	names, err := c.Indices(nil)
	return names, err == nil && len(names) > 0
}

// written returns the indices that documents were written to, and whether it knows. The answer tells, if it is all there and can
// be read. Of one that is coded, that filter_path cut down as shippers ask for, or that does not come, only what it happens to
// name is known, and what the request names, from which an ingest pipeline may have put documents elsewhere.
func (t *Tracker) written(w *Write) (names []string, ok bool) {
	names, ok = answered(w.Answer)
	if ok && w.told() {
		return names, true
	}
	asked, piped, ok := w.asked()
	if !ok || piped {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range asked {
		if t.known[name].piped {
			return nil, false
		}
	}
	return append(names, asked...), true
}

// told tells whether the answer is JSON that says of everything what became of it.
func (w *Write) told() bool {
	if _, cut := api.QueryValue(w.Query, "filter_path"); cut {
		return false
	}
	body := bytes.TrimSpace(w.Answer)
	return bytes.HasPrefix(body, []byte{'{'}) && bytes.HasSuffix(body, []byte{'}'}) && !w.failed()
}

var indexMember = []byte(`"_index"`)

// answered returns the indices that the answer to a write names, and whether it names any. What looks like a name inside of a
// document that the answer holds is taken for one too.
func answered(body []byte) (names []string, ok bool) {
	seen := map[string]bool{}
	for {
		i := bytes.Index(body, indexMember)
		if i < 0 {
			return slices.Collect(maps.Keys(seen)), len(seen) > 0
		}
		body = bytes.TrimLeft(body[i+len(indexMember):], " \t\r\n")
		if len(body) == 0 || body[0] != ':' {
			continue
		}
		body = bytes.TrimLeft(body[1:], " \t\r\n")
		if len(body) == 0 || body[0] != '"' {
			continue
		}
		end := bytes.IndexByte(body[1:], '"')
		if end < 0 {
			return nil, false
		}
		name := body[1 : 1+end]
		if bytes.IndexByte(name, '\\') >= 0 {
			return nil, false // no index is called so
		}
		if !seen[string(name)] {
			seen[string(name)] = true
		}
	}
}

// asked returns the indices that the request names, whether it names an ingest pipeline, and whether all could be read.
func (w *Write) asked() (names []string, piped, ok bool) {
	_, piped = api.QueryValue(w.Query, "pipeline")
	if w.Call.Name != "bulk" {
		names, ok = expression(w.Call)
		return names, piped, ok
	}
	if len(w.Body) == 0 {
		return nil, piped, false
	}
	var s bulk.Scanner
	s.Reset(w.Body)
	seen, otherwise := map[string]bool{}, api.DecodeSegment(nil, w.Call.Index)
	for s.Next() {
		name := otherwise
		if index := s.Action().Index; index != nil {
			name = index
		}
		if len(name) == 0 {
			return nil, piped, false
		}
		piped = piped || s.Action().Pipeline
		if !seen[string(name)] {
			seen[string(name)] = true
		}
	}
	return slices.Collect(maps.Keys(seen)), piped, s.Err() == nil && len(seen) > 0
}

// made counts that the indices with these names may have been made, empty, where they are not known.
func (t *Tracker) made(names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if _, ok := t.known[name]; ok {
			continue
		}
		for _, s := range t.scopes {
			if s.mayName(name) {
				s.version.Add(1)
				t.metrics.writes.Inc()
			}
		}
	}
}

// changed counts a change of the indices with these names, which may be patterns; of all if there are none. visible says
// that searches see it already.
func (t *Tracker) changed(names []string, visible bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	until := t.at(time.Now()) + int64(Settle)
	if !visible {
		t.unseen = until
	}
	count := func(s *Scope) {
		s.version.Add(1)
		if !visible {
			s.dirty.Store(until)
		}
		t.metrics.writes.Inc()
	}
	if names == nil {
		for _, s := range t.scopes {
			count(s)
			t.forget(s) // an alias may have been moved, and what is written next may be written behind it
		}
		t.shaped++
		return
	}
	for _, name := range names {
		for _, s := range t.concerned(name) {
			count(s)
		}
	}
}

// concerned returns the scopes that a change of an index concerns. t.mu is held.
func (t *Tracker) concerned(name string) []*Scope {
	if list, ok := t.byName[name]; ok {
		return list
	}
	// An alias, a pattern, a data stream, or an index that is new: nobody knows what it stands for.
	_, concrete := t.known[name]
	var list []*Scope
	for _, s := range t.scopes {
		if !concrete || s.names == nil || s.names[name] || s.mayName(name) {
			list = append(list, s)
		}
	}
	if len(t.byName) >= maxNames {
		clear(t.byName)
	}
	t.byName[strings.Clone(name)] = list
	return list
}

// mayName tells whether the expression, taken as names and patterns, can name the index.
func (s *Scope) mayName(index string) bool {
	for _, p := range s.parts {
		if api.OverlapsIndex(p, index) {
			return true
		}
	}
	return false
}
