package estest

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// A scroll is an open cursor: the hits that are left of a search.
type scroll struct {
	spec    *searchSpec
	found   *found
	next    int
	keep    time.Duration
	expires time.Time
}

func (r *request) openScroll(keep string, s *searchSpec, f *found) (string, error) {
	d, ok := parseTimeValue(keep)
	if !ok {
		return "", illegalArgument("failed to parse setting [scroll] with value [%s] as a time value: unit is missing or unrecognized", keep)
	}
	r.dropScrolls()
	r.c.store.scrollsOpened++
	// Nodes write the ids of the nodes that hold the contexts into it.
	id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "estest-scroll-%d-%s", r.c.store.scrollsOpened, r.node.id))
	r.c.store.scrolls[id] = &scroll{spec: s, found: f, next: s.size, keep: d, expires: r.now.Add(d)}
	return id, nil
}

func (r *request) dropScrolls() {
	for id, sc := range r.c.store.scrolls {
		if sc.expires.Before(r.now) {
			delete(r.c.store.scrolls, id)
		}
	}
}

// scrollIDs reads the ids of a request: path, URL or body.
func (r *request) scrollIDs(body object) []string {
	if id := r.vars["scroll_id"]; id != "" {
		return strings.Split(id, ",")
	}
	if id := r.params["scroll_id"]; id != "" {
		return strings.Split(id, ",")
	}
	return stringList(body.get("scroll_id"))
}

func checkScrollID(id string) error {
	decoded, err := base64.StdEncoding.DecodeString(id)
	if err != nil || !strings.HasPrefix(string(decoded), "estest-scroll-") {
		return illegalArgument("Cannot parse scroll id")
	}
	return nil
}

func nextScroll(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	ids := r.scrollIDs(body)
	if len(ids) == 0 {
		return answer{}, badRequest("action_request_validation_exception", "Validation Failed: 1: scrollId is missing;")
	}
	if err := checkScrollID(ids[0]); err != nil {
		return answer{}, err
	}
	r.dropScrolls()
	sc := r.c.store.scrolls[ids[0]]
	if sc == nil {
		reason := fmt.Sprintf("No search context found for id [%s]", strings.TrimRight(ids[0], "="))
		missing := &apiError{status: 404, typ: "search_context_missing_exception", reason: reason}
		failure := object{{"shard", -1}, {"index", nil}, {"reason", missing.object(nil)}}
		return answer{}, r.allShardsFailed([]any{failure}, missing)
	}
	keep := r.params["scroll"]
	if body.has("scroll") {
		keep = body.string("scroll")
	}
	if d, ok := parseTimeValue(keep); ok {
		sc.keep = d
	}
	sc.expires = r.now.Add(sc.keep)
	hits := sc.found.hits[min(sc.next, len(sc.found.hits)):]
	hits = hits[:min(sc.spec.size, len(hits))]
	sc.next += len(hits)
	return answer{value: append(object{{"_scroll_id", ids[0]}}, r.searchAnswer(sc.spec, sc.found, hits)...)}, nil
}

func clearScroll(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	ids := r.scrollIDs(body)
	freed := 0
	for _, id := range ids {
		if id == "_all" {
			freed = len(r.c.store.scrolls)
			clear(r.c.store.scrolls)
			return answer{value: object{{"succeeded", true}, {"num_freed", freed}}}, nil
		}
		if err := checkScrollID(id); err != nil {
			return answer{}, err
		}
	}
	for _, id := range ids {
		if _, ok := r.c.store.scrolls[id]; ok {
			delete(r.c.store.scrolls, id)
			freed++
		}
	}
	status := 200
	if freed == 0 {
		status = 404
	}
	return answer{status: status, value: object{{"succeeded", true}, {"num_freed", freed}}}, nil
}
