package estest

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// An asyncSearch is a search that was submitted and is asked after by its id. What it finds was there when it began.
type asyncSearch struct {
	id, user string
	begun    time.Time
	ends     time.Time // from then on it is complete
	keep     time.Duration
	expires  time.Time
	result   object // the answer of _search
	shards   int
	failure  error // of all shards, instead of a result
	stored   bool  // by keep_on_completion, or since its submitter did not see the end
}

const (
	asyncParams = "wait_for_completion_timeout keep_on_completion keep_alive "
	// leastKeepAlive is the shortest keep_alive that nodes take.
	leastKeepAlive = time.Minute
	asyncPrefix    = "estest-async-"
)

// onlyOn returns a handler that is there on one of both products only.
func onlyOn(opensearch bool, h func(*request) (answer, error)) func(*request) (answer, error) {
	return func(r *request) (answer, error) {
		if r.c.details.opensearch != opensearch {
			return answer{}, r.noHandler()
		}
		return h(r)
	}
}

// caller returns whose a search is: a user's or an API key's.
func (r *request) caller() string {
	if r.user == nil {
		return ""
	}
	return r.user.Name + " " + r.user.key
}

// time returns a parameter as a time value.
func (r *request) time(name string, otherwise time.Duration) (time.Duration, error) {
	text, ok := r.params[name]
	if !ok {
		return otherwise, nil
	}
	d, ok := parseTimeValue(text)
	if !ok {
		return 0, illegalArgument("failed to parse setting [%s] with value [%s] as a time value: unit is missing or unrecognized", name, text)
	}
	return d, nil
}

// checkAsync refuses what _search takes and nodes do not run in the background.
func (r *request) checkAsync(keep time.Duration) error {
	var faults []string
	if _, ok := r.params["scroll"]; ok {
		faults = append(faults, "[scroll] queries are not supported")
	}
	if keep < leastKeepAlive {
		faults = append(faults, fmt.Sprintf("[keep_alive] must be greater than 1 minute, got:%v", r.params["keep_alive"]))
	}
	if size, ok := r.params["pre_filter_shard_size"]; ok && size != "1" {
		faults = append(faults, "[pre_filter_shard_size] cannot be changed for async search queries")
	}
	if len(faults) == 0 {
		return nil
	}
	text := "Validation Failed: "
	for i, fault := range faults {
		text += fmt.Sprintf("%d: %s;", i+1, fault)
	}
	return badRequest("action_request_validation_exception", "%s", text)
}

// submitAsync begins a search and waits for its end as long as the caller wants to.
func submitAsync(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	wait, err := r.time("wait_for_completion_timeout", time.Second)
	if err != nil {
		return answer{}, err
	}
	keep, err := r.time("keep_alive", 5*24*time.Hour)
	if err != nil {
		return answer{}, err
	}
	if err := r.checkAsync(keep); err != nil {
		return answer{}, err
	}
	expr := cmp.Or(r.vars["index"], r.params["index"]) // OpenSearch takes both
	result, err := r.search(expr, body)
	if err != nil && asAPIError(err).typ != "search_phase_execution_exception" {
		return answer{}, err // before any shard was asked
	}
	s := r.c.store.newAsync(r, keep)
	s.result, s.failure, s.stored = result, err, r.flag("keep_on_completion")
	if result != nil {
		s.result = result.set("took", r.took()+r.fault.Running.Milliseconds())
		s.shards = int(result.object("_shards").get("total").(int))
	}
	if s.running(r.now) && wait > 0 {
		return answer{pause: min(wait, r.fault.Running), later: func() (answer, error) { return r.submitted(s) }, abandoned: func() {
			delete(r.c.store.async, s.id) // a node cancels a search whose submitter leaves
		}}, nil
	}
	return r.submitted(s)
}

// newAsync makes a search that begins now.
func (s *store) newAsync(r *request, keep time.Duration) *asyncSearch {
	s.dropAsync(r.now)
	s.asyncBegun++
	a := &asyncSearch{begun: r.now, ends: r.now.Add(r.fault.Running), keep: keep, expires: r.now.Add(keep)}
	// Nodes write into it where the search runs.
	a.id = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s%d-%s", asyncPrefix, s.asyncBegun, r.node.id))
	a.user = r.caller()
	s.async[a.id] = a
	return a
}

// dropAsync forgets what has expired.
func (s *store) dropAsync(now time.Time) {
	for id, a := range s.async {
		if a.expires.Before(now) {
			delete(s.async, id)
		}
	}
}

func (s *asyncSearch) running(now time.Time) bool { return now.Before(s.ends) }

// submitted is the answer to who has begun a search. One that is over by then and is not to be kept is forgotten.
func (r *request) submitted(s *asyncSearch) (answer, error) {
	if s.running(r.now) {
		s.stored = true
	}
	a := r.asyncAnswer(s, s.stored)
	if !s.stored {
		delete(r.c.store.async, s.id)
	}
	return a, nil
}

// asyncAnswer says how far a search is.
func (r *request) asyncAnswer(s *asyncSearch, withID bool) answer {
	d := r.c.details
	a := answer{}
	o := object{}
	running := s.running(r.now)
	if withID || d.opensearch { // which names the search although it has forgotten it
		o = append(o, member{"id", s.id})
	}
	if d.opensearch {
		o = append(o, member{"state", s.state(running, withID)})
	} else {
		o = append(o, member{"is_partial", running || s.failure != nil}, member{"is_running", running})
	}
	o = append(o, member{"start_time_in_millis", s.begun.UnixMilli()}, member{"expiration_time_in_millis", s.expires.UnixMilli()})
	if d.asyncCompletion && !running {
		o = append(o, member{"completion_time_in_millis", s.ends.UnixMilli()})
	}
	switch {
	case running:
		o = append(o, member{"response", s.progress(r.now)})
	case s.failure != nil:
		e := asAPIError(s.failure)
		o = append(o, member{"error", e.object(d.order)})
		if !d.opensearch {
			a.status = e.status
		}
	default:
		o = append(o, member{"response", s.result})
	}
	if d.asyncHeaders {
		flag := "?0"
		if running {
			flag = "?1"
		}
		a.header = append(a.header, "X-Elasticsearch-Async-Is-Running: "+flag)
		if withID {
			a.header = append(a.header, "X-Elasticsearch-Async-Id: "+s.id)
		}
	}
	a.value = o
	return a
}

// state is what the plug-in of OpenSearch says.
func (s *asyncSearch) state(running, withID bool) string {
	switch {
	case running:
		return "RUNNING"
	case s.failure != nil:
		return "FAILED"
	case withID:
		return "STORE_RESIDENT"
	}
	return "CLOSED"
}

// progress is the answer as far as it is there: some of the shards, and no hits before the end.
func (s *asyncSearch) progress(now time.Time) object {
	done := int(float64(s.shards) * float64(now.Sub(s.begun)) / float64(s.ends.Sub(s.begun)))
	return object{
		{"took", now.Sub(s.begun).Milliseconds()},
		{"timed_out", false},
		{"num_reduce_phases", 0},
		{"_shards", object{{"total", s.shards}, {"successful", done}, {"skipped", 0}, {"failed", 0}}},
		{"hits", object{{"total", object{{"value", 0}, {"relation", "gte"}}}, {"max_score", nil}, {"hits", []any{}}}},
	}
}

// async returns the search that the path names. To others than who submitted it there is none.
func (r *request) async() (*asyncSearch, error) {
	id := r.vars["id"]
	decoded, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || !strings.HasPrefix(string(decoded), asyncPrefix) {
		return nil, illegalArgument("invalid id: [%s]", id)
	}
	r.c.store.dropAsync(r.now)
	s := r.c.store.async[id]
	if s == nil || s.user != r.caller() {
		return nil, &apiError{status: 404, typ: "resource_not_found_exception", reason: id}
	}
	return s, nil
}

// getAsync says how far a search is, or waits for its end.
func getAsync(r *request) (answer, error) {
	s, err := r.async()
	if err != nil {
		return answer{}, err
	}
	wait, err := r.time("wait_for_completion_timeout", 0)
	if err != nil {
		return answer{}, err
	}
	if s.keep, err = r.time("keep_alive", s.keep); err != nil {
		return answer{}, err
	}
	if _, ok := r.params["keep_alive"]; ok {
		s.expires = r.now.Add(s.keep)
	}
	if s.running(r.now) && wait > 0 {
		return answer{
			pause: min(wait, s.ends.Sub(r.now)), later: func() (answer, error) { return r.asyncAnswer(s, true), nil }, abandoned: func() {},
		}, nil
	}
	return r.asyncAnswer(s, true), nil
}

// asyncStatus says how far a search is without what it has found.
func asyncStatus(r *request) (answer, error) {
	s, err := r.async()
	if err != nil {
		return answer{}, err
	}
	running := s.running(r.now)
	shards := s.result.object("_shards")
	if running || s.failure != nil {
		shards = s.progress(r.now).object("_shards")
	}
	o := object{
		{"id", s.id},
		{"is_running", running},
		{"is_partial", running || s.failure != nil},
		{"start_time_in_millis", s.begun.UnixMilli()},
		{"expiration_time_in_millis", s.expires.UnixMilli()},
		{"_shards", shards},
	}
	if !running {
		status := 200
		if s.failure != nil {
			status = asAPIError(s.failure).status
		}
		o = append(o, member{"completion_status", status})
	}
	return answer{value: o}, nil
}

// deleteAsync ends a search, and forgets it.
func deleteAsync(r *request) (answer, error) {
	s, err := r.async()
	if err != nil {
		return answer{}, err
	}
	delete(r.c.store.async, s.id)
	return answer{value: acknowledged}, nil
}
