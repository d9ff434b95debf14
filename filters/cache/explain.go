package cache

import (
	"encoding/hex"
	"time"

	"weir/elastic/query"
	"weir/flows"
)

// An Explanation says what a cache filter makes of a request.
type Explanation struct {
	Flow      string `json:"flow"`   // in which the filter is configured
	Filter    string `json:"filter"` // its kind
	API       string `json:"api,omitempty"`
	Cacheable bool   `json:"cacheable"`
	Reason    string `json:"reason,omitempty"` // why not, as in Cache-Status and in metrics
	Because   string `json:"because"`          // the same in a sentence

	Key       string   `json:"key,omitempty"`        // of the answer, for the gateway as it runs
	Body      string   `json:"body,omitempty"`       // the request's body in canonical form
	Args      []string `json:"args,omitempty"`       // URL parameters in the key
	Dropped   []string `json:"dropped,omitempty"`    // what is not in the key, since it changes no complete answer
	Identity  []string `json:"identity,omitempty"`   // header fields that say who asks
	SharedBy  string   `json:"shared_by,omitempty"`  // who is given the same answer
	TTL       string   `json:"ttl,omitempty"`        // of an answer that would be stored now
	AgeBounds string   `json:"age_bounds,omitempty"` // why nothing but its age tells how good an answer is
	Until     string   `json:"until,omitempty"`      // when an answer may change with the clock, so that none of now is given any longer

	Entry *KeptEntry `json:"entry,omitempty"` // what is kept now

	Searches []Explanation `json:"searches,omitempty"` // of a _msearch, in their order
}

// A KeptEntry is a stored answer, for people.
type KeptEntry struct {
	Key     string   `json:"key"`
	Flow    string   `json:"flow"` // by which it was asked for
	API     string   `json:"api"`
	Index   string   `json:"index"`
	Request string   `json:"request"` // method and target
	Body    string   `json:"body,omitempty"`
	Tags    []string `json:"tags,omitempty"`
	Hits    int64    `json:"hits"`
	Age     float64  `json:"age_seconds"`
	TTL     float64  `json:"ttl_seconds"` // below 0 when its time is over
	Proven  bool     `json:"proven"`      // nothing has changed in its indices, as far as writes and polls tell
	Changed bool     `json:"changed"`     // something has
	Bytes   int64    `json:"bytes"`       // of memory
	Gzip    bool     `json:"gzip"`        // there is a compressed form
	Saved   float64  `json:"saved_upstream_seconds"`
}

func describe(key query.Key, e *Entry, now time.Time) KeptEntry {
	k := KeptEntry{
		Key: hex.EncodeToString(key[:]), Hits: e.hits.Load(), Age: e.age(now).Seconds(), TTL: e.left(now).Seconds(),
		Bytes: e.weight(), Gzip: e.gzip != nil, Proven: !e.timed && e.stamp.Proven(now), Changed: e.stamp.Changed(),
	}
	if o := e.source; o != nil {
		k.Flow, k.API, k.Index, k.Request, k.Body, k.Tags = o.flow, o.api, o.index, o.request, o.body, o.tags
		k.Saved = o.took.Seconds() * float64(k.Hits)
	}
	return k
}

// explainer is a filter that looks into the cache.
type explainer interface {
	explain(x *flows.Exchange, cluster string) Explanation
}

// Explain returns what the first cache filter makes of x on its way through the flows, or false if it meets none. The
// filters need not have been started; then nothing is kept, and the key is none of a running gateway.
func Explain(way []*flows.Flow, x *flows.Exchange) (Explanation, bool) {
	return explain(way, x, destination(way, x))
}

// explain is Explain for an exchange on its way to a cluster.
func explain(way []*flows.Flow, x *flows.Exchange, cluster string) (Explanation, bool) {
	for _, f := range way {
		for i, step := range f.Steps() {
			if !f.Meets(i, x) {
				continue
			}
			if c, ok := step.Filter.(explainer); ok {
				e := c.explain(x, cluster)
				e.Flow, e.Filter = f.Name(), step.Kind
				return e, true
			}
			if e, ok := explain(step.Flows, x, cluster); ok {
				return e, true
			}
		}
	}
	return Explanation{}, false
}

// destination returns the name of the cluster to which the flows would send x.
func destination(way []*flows.Flow, x *flows.Exchange) string {
	for _, f := range way {
		for i, step := range f.Steps() {
			if !f.Meets(i, x) {
				continue
			}
			if d, ok := step.Filter.(flows.Destined); ok {
				return d.Destination(x)
			}
			if cluster := destination(step.Flows, x); cluster != "" {
				return cluster
			}
		}
	}
	return ""
}

// explain says what l makes of x, on its way to a cluster, without I/O and without counting.
func (l *lookup) explain(x *flows.Exchange, cluster string) Explanation {
	probe := *l
	if probe.keyer == nil {
		o := l.options
		o.Secret, o.MemoBytes = make([]byte, 32), -1
		var err error
		if probe.keyer, err = query.NewKeyer(o); err != nil { // Build has refused such options
			return Explanation{Reason: string(reasonFault), Because: err.Error()}
		}
	}
	e := Explanation{API: x.Call().String()}
	t := ticket{cluster: cluster, routed: x.Trace.Flow}
	var m *multi
	why, err := probe.admit(x, &t)
	many := why == "" && err == nil && x.Call().Name == "msearch"
	if many {
		m, why, err = probe.judgeMulti(x, nil, &t)
	}
	switch {
	case err != nil:
		e.Reason, e.Because = string(reasonFault), err.Error()
	case why != "":
		e.Reason, e.Because = string(why), sentences[why]
	case many:
		e.Cacheable, e.Because = true, "each of its searches is looked up by itself"
		for i := range m.items {
			it, s := &m.items[i], &m.searches.List[i]
			r := query.Request{
				API: "search", Method: x.Request.Method, Header: &m.header, Index: it.index, RawQuery: s.RawQuery, Body: s.Body,
			}
			t.caller(x, l.options.ByAddress, &r)
			one := Explanation{API: "search", Reason: string(query.ReasonArguments), Because: sentences[query.ReasonArguments]}
			if !s.Unknown {
				one = probe.explainSearch(x, &t, &r)
			}
			e.Searches = append(e.Searches, one)
		}
	default:
		e = probe.explainSearch(x, &t, &t.request)
		e.API = x.Call().String()
	}
	return e
}

// sharedBy says who is given the same answer as the sender of the ticket's request.
func (l *lookup) sharedBy(t *ticket, v *query.Verdict) string {
	switch {
	case l.options.Identity == query.Shared:
		return "everybody who reaches the flow"
	case !v.Nameable:
		return "callers with the same credentials"
	case t.who.shares():
		return "callers who are the same principal to the cluster, " + t.who.name
	case t.who != nil:
		return "callers with the same credentials: the cluster does not say who that is, or leaves open what rights that one has"
	}
	return "callers who are the same principal to the cluster; who that is it has not been asked lately"
}

// explainSearch says what l makes of one search.
func (l *lookup) explainSearch(x *flows.Exchange, t *ticket, r *query.Request) Explanation {
	key, v, account := l.keyer.Explain(r)
	e := Explanation{
		API: r.API, Body: account.Body, Args: account.Args, Dropped: account.Dropped, Identity: account.Identity,
		Reason: string(v.Bypass), Because: sentences[v.Bypass],
	}
	if v.Bypass != "" {
		return e
	}
	_ = l.identify(x, nil, t, &v) // which waits for nobody
	key = l.scoped(t, key, &v, t.who)
	e.Cacheable, e.Because = true, "it has a key, and a complete answer is kept"
	e.SharedBy = l.sharedBy(t, &v)
	e.AgeBounds = string(v.TTLOnly)
	if v.Step > 0 {
		e.Until = time.Now().Truncate(v.Step).Add(v.Step).UTC().Format(time.RFC3339)
	}
	if l.keep != nil {
		e.TTL = l.keep.lifetime.of(v.NowBound).String()
	}
	if l.shared == nil {
		return e
	}
	e.Key = hex.EncodeToString(key[:])
	if _, kept := l.shared.find(&key); kept != nil {
		k := describe(key, kept, time.Now())
		e.Entry = &k
	}
	return e
}

// sentences say why a request passes the cache by.
var sentences = map[query.Reason]string{
	query.ReasonAPI:            "only the answers to _search, _msearch, _count and async searches are kept, and to what also names",
	query.ReasonMethod:         "only GET and POST are answered from the cache",
	query.ReasonNoCache:        "the caller says no_cache",
	query.ReasonRequestCache:   "the caller says request_cache=false",
	query.ReasonNoStore:        "the caller says Cache-Control: no-store",
	query.ReasonOrigin:         "it has Origin, and nodes answer CORS requests by origin",
	query.ReasonRequestCoding:  "its body is compressed",
	query.ReasonRequestType:    "its body does not say that it is JSON in UTF-8",
	query.ReasonAccept:         "an answer other than JSON is asked for",
	query.ReasonFormat:         "an answer other than JSON is asked for by format",
	query.ReasonFilterPath:     "its filter_path may leave a part of what tells whether an answer is complete, or cannot be widened and undone because of pretty or a signature; add timed_out,_shards,terminated_early,_clusters to it",
	query.ReasonArguments:      "it has too many URL parameters",
	query.ReasonRepeated:       "a URL parameter comes twice, and nodes differ in which counts",
	query.ReasonSource:         "source stands beside a body, or is empty or without source_content_type",
	query.ReasonScroll:         "it is a cursor: each call moves it",
	query.ReasonSearchType:     "search_type=dfs_query_then_fetch gathers its statistics anew each time",
	query.ReasonBody:           "its body is no JSON object that has a canonical form",
	query.ReasonDuplicateKey:   "an object in its body has a key twice, which nodes refuse",
	query.ReasonBodySize:       "its body is over max_request_size",
	query.ReasonSearches:       "it is a _msearch of over 256 searches",
	query.ReasonSlice:          "it is a slice of a scroll",
	query.ReasonPIT:            "it searches a point in time, which ends",
	query.ReasonProfile:        "profile tells how one execution went",
	query.ReasonScript:         "it has a script, which may give something else each time; scripts: deterministic says that they do not",
	query.ReasonScriptedMetric: "it has a scripted_metric, which may give something else each time",
	query.ReasonSampler:        "it samples, so that the answer differs each time",
	query.ReasonRandom:         "its random_score has no seed and field, so that the answer differs each time",
	query.ReasonWrapper:        "it hides a query in a wrapper",
	query.ReasonStatement:      "its statement is not sure to only read",
	query.ReasonAsyncArguments: "its parameters cannot be read, or nodes may refuse it as an async search",
	query.ReasonAsyncKept:      "its answer is to be kept on the node, under an id; async_ids: not_needed says that it need not",
	query.ReasonAsyncID:        "it asks for an async search; the answer is kept if this caller began the search here, and it has not run for too long",
	reasonPass:                 "the configuration keeps it out of the cache",
	reasonPath:                 "nodes read its path in another spelling differently",
	reasonCoding:               "its client refuses plain answers",
	reasonMemory:               "there is no memory for its body",
	reasonFault:                "the cache failed",
}
