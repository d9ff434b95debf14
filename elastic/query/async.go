package query

import (
	"bytes"
	"net/url"
	"strconv"
	"time"
)

// An Async is a request to begin an async search: POST _async_search of Elasticsearch, or POST _plugins/_asynchronous_search
// of OpenSearch. The zero value is ready; its memory is used again.
type Async struct {
	// Index is the index expression as the path of a _search would spell it.
	Index []byte
	// RawQuery are the parameters that a _search for the same would have.
	RawQuery []byte
	// Wait is how long the caller waits for the end of the search, and KeepAlive how long the search is there after its
	// beginning.
	Wait, KeepAlive time.Duration
	// Keep tells that the answer is to be kept on the node under an id, although it is there in time.
	Keep bool
	// Typed tells that the answer is to have typed_keys. Who asks for it later says so again.
	Typed bool
	// Rendered tells that the answer is rendered as who asks for it later cannot ask for.
	Rendered bool

	raw, index []byte
}

const (
	asyncWait = time.Second // where wait_for_completion_timeout is not given
	// How long searches are there where keep_alive is not given.
	asyncKeepElastic, asyncKeepOpenSearch = 5 * 24 * time.Hour, 24 * time.Hour
	// What nodes refuse: a shorter keep_alive, and on OpenSearch, with its default settings, longer ones.
	leastAsyncKeep     = time.Minute
	mostAsyncKeep      = 5 * 24 * time.Hour
	mostAsyncWait      = time.Minute
	openSearchAsyncAPI = "asynchronous_search.search"
)

// BeginsAsync tells whether an API begins an async search.
func BeginsAsync(api string) bool { return api == "async_search.submit" || api == openSearchAsyncAPI }

// FetchesAsync tells whether an API asks for an async search by its id.
func FetchesAsync(api string) bool {
	return api == "async_search.get" || api == "asynchronous_search.get"
}

// Read reads a request to an API that begins async searches. It returns why the request is not to be answered from a cache,
// or "". Requests that nodes would refuse, although they would not refuse the same _search, are among those.
func (a *Async) Read(api string, index, rawQuery, body []byte) Reason {
	openSearch := api == openSearchAsyncAPI
	*a = Async{Index: index, Wait: asyncWait, KeepAlive: asyncKeepElastic, raw: a.raw[:0], index: a.index[:0]}
	if openSearch {
		a.KeepAlive = asyncKeepOpenSearch
	}
	seen := asyncParam(0)
	for len(rawQuery) > 0 {
		pair := rawQuery
		var name, value []byte
		name, value, rawQuery = nextArg(rawQuery)
		pair = bytes.TrimRight(pair[:len(pair)-len(rawQuery)], "&;")
		p, why := a.param(name, value, openSearch)
		switch {
		case why != "":
			return why
		case p&seen != 0:
			return ReasonRepeated
		case p&asyncOwn == 0 && len(name) > 0:
			a.raw = append(append(a.raw, pair...), '&')
		}
		seen |= p
	}
	if seen&asyncMinimize == 0 && isRemote(a.Index) {
		// A _search asks each cluster for its share at once unless told otherwise, which makes other terms and scores.
		a.raw = append(a.raw, "ccs_minimize_roundtrips=false&"...)
	}
	a.RawQuery = bytes.TrimSuffix(a.raw, []byte{'&'})
	switch {
	case a.Wait < 0, a.KeepAlive < leastAsyncKeep, openSearch && (a.Wait > mostAsyncWait || a.KeepAlive > mostAsyncKeep):
		return ReasonAsyncArguments
	}
	return judgeAsyncBody(body)
}

// An asyncParam is a URL parameter that means something to async searches.
type asyncParam uint16

const (
	asyncWaits asyncParam = 1 << iota
	asyncKeeps
	asyncKeptOn
	asyncIndex
	asyncMinimize

	asyncOwn = asyncWaits | asyncKeeps | asyncKeptOn | asyncIndex // a _search does not have them
)

// param reads a parameter of the URL.
func (a *Async) param(name, value []byte, openSearch bool) (p asyncParam, why Reason) {
	ok := true
	switch string(name) {
	case "wait_for_completion_timeout":
		p = asyncWaits
		a.Wait, ok = durationOf(value)
	case "keep_alive":
		p = asyncKeeps
		a.KeepAlive, ok = durationOf(value)
	case "keep_on_completion":
		p = asyncKeptOn
		a.Keep, ok = flagOf(value)
	case "index":
		if openSearch {
			p = asyncIndex
			ok = a.readIndex(value)
		}
	case "typed_keys":
		a.Typed, ok = flagOf(value)
	case "rest_total_hits_as_int", "include_named_queries_score", "error_trace":
		var asked bool
		asked, ok = flagOf(value)
		a.Rendered = a.Rendered || asked
	case "pre_filter_shard_size":
		ok = string(value) == "1" // nodes refuse others
	case "ccs_minimize_roundtrips":
		p = asyncMinimize
		ok = string(value) == "false" // some nodes refuse true
	case "source", "source_content_type":
		return 0, ReasonSource
	case "filter_path":
		return 0, ReasonFilterPath
	case "format", "pretty", "human":
		// What stands around the answer of the search would be written otherwise too.
		if string(value) != "json" && string(value) != "false" {
			return 0, ReasonFormat
		}
	default:
		ok = bytes.IndexByte(name, '%') < 0 // one of the above, perhaps
	}
	if !ok {
		return 0, ReasonAsyncArguments
	}
	return p, ""
}

// readIndex takes the index expression out of the URL's parameters, where OpenSearch has it.
func (a *Async) readIndex(value []byte) bool {
	text, _, ok := unescape(make([]byte, 0, len(value)), value, true)
	if !ok || len(a.Index) > 0 {
		return false
	}
	a.index = append(a.index, url.PathEscape(string(text))...)
	a.Index = a.index
	return true
}

// isRemote tells whether an index expression, as a path spells it, may name another cluster.
func isRemote(index []byte) bool {
	return bytes.IndexByte(index, ':') >= 0 || bytes.Contains(index, []byte("%3A")) || bytes.Contains(index, []byte("%3a"))
}

func flagOf(value []byte) (set, ok bool) {
	switch string(value) {
	case "", "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// judgeAsyncBody looks for what nodes refuse in an async search only: one that does nothing but suggest.
func judgeAsyncBody(body []byte) Reason {
	if len(body) == 0 {
		return ""
	}
	why := Reason("")
	_, ok := eachMember(body, skipSpace(body, 0), func(name, _ []byte) bool {
		if string(name) == "suggest" || bytes.IndexByte(name, '\\') >= 0 {
			why = ReasonAsyncArguments
		}
		return why == ""
	})
	if !ok && why == "" {
		return ReasonBody
	}
	return why
}

// ReadFetch reads the parameters of a request that asks for an async search by its id. It returns whether the answer is to have
// typed_keys, and false if it is rendered otherwise than the one to the request that began the search would be.
func ReadFetch(rawQuery []byte) (typed, ok bool) {
	for len(rawQuery) > 0 {
		var name, value []byte
		name, value, rawQuery = nextArg(rawQuery)
		switch string(name) {
		case "wait_for_completion_timeout", "keep_alive", "":
		case "typed_keys":
			var fine bool
			if typed, fine = flagOf(value); !fine {
				return false, false
			}
		default:
			return false, false
		}
	}
	return typed, true
}

// An AsyncAnswer is what a node says of an async search. Its slices point into the answer.
type AsyncAnswer struct {
	// ID is the name of the search, as JSON spells it without quotes; nil if the answer has none.
	ID []byte
	// Response is the answer of the search, as _search gives it; nil if there is none.
	Response []byte
	// Form is how the answer is written.
	Form AsyncForm

	running, partial, state, failure []byte
}

// An AsyncForm is how a node writes that an async search is complete: which members stand around the answer of the search,
// and in what order. Versions differ in that. The zero value is none.
type AsyncForm struct {
	members [8]asyncMember
	state   string
}

// An asyncMember is a member of an answer.
type asyncMember uint8

const (
	memberNone asyncMember = iota
	memberID
	memberPartial
	memberRunning
	memberState
	memberStart
	memberExpiration
	memberCompletion
	memberResponse
	memberError
)

var asyncMembers = map[string]asyncMember{
	"id": memberID, "is_partial": memberPartial, "is_running": memberRunning, "state": memberState,
	"start_time_in_millis": memberStart, "expiration_time_in_millis": memberExpiration, "completion_time_in_millis": memberCompletion,
	"response": memberResponse, "error": memberError,
}

// ReadAsync reads an answer about an async search. It returns false for anything else, also for such an answer with a member
// that it does not know.
func ReadAsync(body []byte) (a AsyncAnswer, ok bool) {
	seen, n := 0, 0
	whole := wholeObject(body, func(name, value []byte) bool {
		m := asyncMembers[string(name)]
		if m == memberNone || seen&(1<<m) != 0 {
			return false
		}
		seen |= 1 << m
		switch m {
		case memberID:
			if len(value) < 3 || value[0] != '"' {
				return false
			}
			a.ID = value[1 : len(value)-1]
			return true
		case memberError:
			a.failure = value
			return true
		case memberPartial:
			a.partial = value
		case memberRunning:
			a.running = value
		case memberState:
			a.state = value
		case memberResponse:
			a.Response = value
		default:
			if !isCount(value) {
				return false
			}
		}
		if n == len(a.Form.members) {
			return false
		}
		a.Form.members[n] = m
		n++
		return true
	})
	a.Form.state = string(a.state)
	const elastic, openSearch = 1<<memberPartial | 1<<memberRunning, 1 << memberState
	kind := seen & (elastic | openSearch)
	return a, whole && seen&(1<<memberStart) != 0 && (kind == elastic || kind == openSearch)
}

// Judge tells whether the search is over and nothing of its answer is missing, as far as the node says: is_partial is false of
// a search that lost shards (elastic/elasticsearch#98725), so Complete must judge Response too. inTime tells that the answer
// is one to the request that began the search, and came before that had waited as long as it would. OpenSearch says then that
// the search is closed, as it says also of one that was ended on its way.
func (a *AsyncAnswer) Judge(inTime bool) Reason {
	switch string(a.state) {
	case "":
		switch {
		case string(a.running) != "false":
			return ReasonRunning
		case string(a.partial) != "false":
			return ReasonShards
		}
	case `"INIT"`, `"RUNNING"`:
		return ReasonRunning
	case `"SUCCEEDED"`, `"PERSISTING"`, `"PERSIST_SUCCEEDED"`, `"PERSIST_FAILED"`, `"STORE_RESIDENT"`:
	case `"CLOSED"`:
		if !inTime {
			return ReasonShards
		}
	default:
		return ReasonError
	}
	switch {
	case a.failure != nil:
		return ReasonError
	case a.Response == nil:
		return ReasonMalformed
	}
	return ""
}

// Append appends the answer about a search that was over as soon as it began, at start. It has no id: nothing is kept on the
// node.
func (f *AsyncForm) Append(dst, response []byte, start time.Time, keep time.Duration) []byte {
	dst = append(dst, '{')
	for i, m := range f.members {
		if m == memberNone {
			break
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		switch m {
		case memberPartial:
			dst = append(dst, `"is_partial":false`...)
		case memberRunning:
			dst = append(dst, `"is_running":false`...)
		case memberState:
			dst = append(append(dst, `"state":`...), f.state...)
		case memberStart:
			dst = strconv.AppendInt(append(dst, `"start_time_in_millis":`...), start.UnixMilli(), 10)
		case memberExpiration:
			dst = strconv.AppendInt(append(dst, `"expiration_time_in_millis":`...), start.Add(keep).UnixMilli(), 10)
		case memberCompletion:
			dst = strconv.AppendInt(append(dst, `"completion_time_in_millis":`...), start.UnixMilli(), 10)
		case memberResponse:
			dst = append(append(dst, `"response":`...), response...)
		}
	}
	return append(dst, '}')
}
