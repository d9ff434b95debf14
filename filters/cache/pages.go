package cache

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir/elastic"
	"weir/elastic/query"
	"weir/flows"
)

// A Mux serves pages: that of the admin listener.
type Mux interface {
	Handle(pattern string, h http.Handler)
}

// A Route returns the flows that a request meets that comes to an entry, and makes of the request what the entry makes of it. An
// empty name is the first entry.
type Route func(entry string, x *flows.Exchange) ([]*flows.Flow, error)

// Publish adds the pages of the caches that keeper holds to mux:
//
//	GET  /_weir/cache          stores, what passed the cache by and why, and the answers that are given most often
//	POST /_weir/cache/explain  what the cache makes of a request
//	POST /_weir/cache/purge    remove answers
func Publish(mux Mux, keeper *flows.Keeper, route Route) {
	mux.Handle("GET /_weir/cache", page(func(*http.Request) (any, error) { return overviewOf(keeper), nil }))
	mux.Handle("POST /_weir/cache/explain", page(func(r *http.Request) (any, error) { return explainPage(r, route) }))
	mux.Handle("POST /_weir/cache/purge", page(func(r *http.Request) (any, error) { return purgePage(r, keeper) }))
}

// page answers with what f returns, as JSON.
func page(f func(r *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		v, err := f(r)
		if err != nil {
			ee := elastic.AsError(err)
			w.WriteHeader(ee.Status)
			_, _ = w.Write(append(ee.AppendBody(nil), '\n'))
			return
		}
		// The client may have left; there is nobody else to tell.
		_ = json.NewEncoder(w).Encode(v)
	})
}

// topKeys is how many answers an overview lists.
const topKeys = 20

// An overview is the state of the cache, for people.
type overview struct {
	Stores []storeState `json:"stores"`
	// Why requests passed the cache by, and answers were not kept, since the start; the commonest first.
	Bypassed []reasonCount `json:"bypassed"`
	Unstored []reasonCount `json:"not_stored"`
	Top      []KeptEntry   `json:"top"` // most hits first
}

type storeState struct {
	Kind       string `json:"kind"`
	Pool       string `json:"pool"`
	Bytes      int64  `json:"bytes"`
	MaxBytes   int64  `json:"max_bytes"`
	Entries    int    `json:"entries"`
	MaxEntries int64  `json:"max_entries"`
}

type reasonCount struct {
	Reason query.Reason `json:"reason"`
	Count  int64        `json:"count"`
}

func overviewOf(keeper *flows.Keeper) overview {
	v := overview{Stores: []storeState{}, Bypassed: []reasonCount{}, Unstored: []reasonCount{}, Top: []KeptEntry{}}
	for _, s := range flows.Kept[*shared](keeper) {
		v.Bypassed, v.Unstored = s.metrics.bypasses.sorted(), s.metrics.unstored.sorted()
		var top []found
		for _, st := range *s.stores.Load() {
			l := st.limits
			v.Stores = append(v.Stores, storeState{l.kind, l.pool, st.Bytes(), l.maxBytes, st.Len(), l.maxItems})
			top = st.top(top)
		}
		now := time.Now()
		for _, f := range top {
			v.Top = append(v.Top, describe(f.key, f.entry, now))
		}
	}
	return v
}

func (t tallies) sorted() []reasonCount {
	list := []reasonCount{}
	for why, n := range t {
		if n := n.Load(); n > 0 {
			list = append(list, reasonCount{why, n})
		}
	}
	slices.SortFunc(list, func(a, b reasonCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

type found struct {
	key   query.Key
	entry *Entry
	hits  int64
}

// top puts the entries of s with the most hits among those of list, which stays sorted and short.
func (s *store) top(list []found) []found {
	s.Range(func(key query.Key, e *Entry) bool {
		hits := e.hits.Load()
		if hits == 0 || len(list) == topKeys && hits <= list[topKeys-1].hits {
			return true
		}
		at, _ := slices.BinarySearchFunc(list, hits, func(f found, hits int64) int { return cmp.Compare(hits, f.hits) })
		if list = slices.Insert(list, at, found{key, e, hits}); len(list) > topKeys {
			list = list[:topKeys]
		}
		return true
	})
	return list
}

func purgePage(r *http.Request, keeper *flows.Keeper) (any, error) {
	var s Selection
	if err := readJSON(r.Body, &s); err != nil {
		return nil, err
	}
	match, err := s.matcher()
	if err != nil {
		return nil, elastic.Errorf(400, "illegal_argument_exception", "%v", err)
	}
	n := 0
	for _, s := range flows.Kept[*shared](keeper) {
		n += s.purge(match)
	}
	return map[string]int{"purged": n}, nil
}

// A Question is a request that somebody wants to know about.
type Question struct {
	Entry  string            `json:"entry"`  // to which it comes; empty: the first one
	Method string            `json:"method"` // empty: POST
	Path   string            `json:"path"`   // request target with its query string
	Header map[string]string `json:"header"`
	Client string            `json:"client"` // address from which it comes; without it nobody is believed what the header says of callers
	Body   json.RawMessage   `json:"body"`   // an object, or text that holds it
}

// Exchange makes the request of q.
func (q *Question) Exchange() (*flows.Exchange, error) {
	if !strings.HasPrefix(q.Path, "/") {
		return nil, fmt.Errorf("path %q does not begin with /", q.Path)
	}
	body := []byte(q.Body)
	if len(body) > 0 && body[0] == '"' {
		var text string
		if err := json.Unmarshal(body, &text); err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		body = []byte(text)
	}
	x := flows.Explaining(cmp.Or(q.Method, "POST"), q.Path)
	for name, value := range q.Header {
		x.Request.Header.AddString(name, value)
	}
	x.Request.Host = x.Request.Header.Get("host")
	if len(body) > 0 && !x.Request.Header.Has("content-type") {
		x.Request.Header.AddString("Content-Type", "application/json")
	}
	if q.Client != "" {
		addr, err := netip.ParseAddr(q.Client)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		x.Request.ClientIP = addr
	}
	x.Request.Body.Replace(body)
	return x, nil
}

// ErrNoCache says that a request meets no cache filter.
var ErrNoCache = errors.New("the request meets no cache filter on its way")

// Ask explains what the cache makes of the request of q.
func (q *Question) Ask(route Route) (Explanation, error) {
	x, err := q.Exchange()
	if err != nil {
		return Explanation{}, err
	}
	way, err := route(q.Entry, x)
	if err != nil {
		return Explanation{}, err
	}
	e, ok := Explain(way, x)
	if !ok {
		return Explanation{}, ErrNoCache
	}
	return e, nil
}

func explainPage(r *http.Request, route Route) (any, error) {
	var q Question
	if err := readJSON(r.Body, &q); err != nil {
		return nil, err
	}
	e, err := q.Ask(route)
	if err != nil {
		return nil, elastic.Errorf(400, "illegal_argument_exception", "%v", err)
	}
	return e, nil
}

// readJSON reads one object strictly.
func readJSON(r io.Reader, into any) error {
	data, err := io.ReadAll(r)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		if err = d.Decode(into); err == nil && d.More() {
			err = errors.New("something stands behind the object")
		}
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return elastic.Errorf(413, "content_too_long_exception",
			"read the request: it is over the %d bytes that the admin listener reads; weir cache explain takes larger ones", tooLarge.Limit)
	}
	if err != nil {
		return elastic.Errorf(400, "parsing_exception", "read the request: %v", err)
	}
	return nil
}
