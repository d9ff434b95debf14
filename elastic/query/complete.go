package query

import (
	"bytes"
	"net/http"
	"time"

	"weir/internal/wire"
)

// Complete tells whether an answer may be stored, and why not: only a whole answer of all shards that nobody marked as
// somebody's own. The status alone does not tell: a search that lost shards or ran out of time is answered with 200, and
// so is one that was broken off on the way.
//
// api is the name by which the request has its key, and v the verdict on the request. body is the body of the answer without transfer coding, read
// to its declared end.
//
// An answer that says terminated_early is complete only if the request asked for no more, by terminate_after, or if
// OpenSearch 3 took aggregations from the structure of the index instead of visiting documents. Seen on 3.9: it then says
// terminated_early although it has counted everything, and only if aggregations and no hits are asked for.
func Complete(api string, v *Verdict, status int, h *wire.Header, body []byte) (bool, Reason) {
	why := ReasonStatus
	if status == 200 {
		why = storable(h)
	}
	if why == "" {
		why = completeBody(api, v.TerminateAfter || v.Precomputable && fromOpenSearch3(h), body)
	}
	return why == "", why
}

// Age returns how old an answer already was when it came: a cache between gateway and nodes says so (RFC 9111 section 5.1). It is 0
// where nobody says so.
func Age(h *wire.Header) time.Duration {
	age, _ := seconds(h.Get("age"))
	return age
}

// storable judges the header of an answer. For how long one may be kept is up to the operator, except that one that is no longer
// fresh when it comes is not kept.
func storable(h *wire.Header) Reason {
	typed := false
	own, shared := unset, unset // max-age and s-maxage
	for _, f := range h.Fields() {
		switch {
		case wire.EqualFold(f.Name, "set-cookie"):
			return ReasonSetCookie
		case wire.EqualFold(f.Name, "content-encoding"):
			return ReasonContentCoding
		case wire.EqualFold(f.Name, "content-type"):
			if typed || !isUTF8JSON(f.Value) {
				return ReasonContentType
			}
			typed = true
		case wire.EqualFold(f.Name, "cache-control"):
			if forbidsStoring(f.Value, &own, &shared) {
				return ReasonCacheControl
			}
		case wire.EqualFold(f.Name, "vary"):
			if !coveredByKey(f.Value) {
				return ReasonVary
			}
		}
	}
	if shared == unset {
		shared = own
	}
	switch {
	case !typed:
		return ReasonContentType
	case shared == 0, shared == unset && expired(h):
		return ReasonCacheControl
	}
	return ""
}

// unset is a time that is not given.
const unset time.Duration = -1

// forbidsStoring reads an answer's Cache-Control (RFC 9111 section 5.2.2) and notes for how long the answer is fresh, to its caller
// and to a cache that many share. no-cache and private may carry field names, which changes nothing here.
func forbidsStoring(value []byte, own, shared *time.Duration) bool {
	for len(value) > 0 {
		var directive []byte
		directive, value, _ = bytes.Cut(value, []byte{','})
		name, arg, _ := bytes.Cut(bytes.TrimSpace(directive), []byte{'='})
		switch name = bytes.TrimSpace(name); {
		case wire.EqualFold(name, "no-store"), wire.EqualFold(name, "private"), wire.EqualFold(name, "no-cache"):
			return true
		case wire.EqualFold(name, "max-age"):
			*own = shortest(*own, arg)
		case wire.EqualFold(name, "s-maxage"):
			*shared = shortest(*shared, arg)
		}
	}
	return false
}

// shortest returns the shorter of a time, which may be unset, and delta-seconds, of which those that cannot be read are 0.
func shortest(t time.Duration, arg []byte) time.Duration {
	given, _ := seconds(bytes.Trim(arg, "\" \t"))
	if t == unset {
		return given
	}
	return min(t, given)
}

// expired tells whether Expires says that the answer was no longer fresh when it was sent. What is no date, such as 0, says so too
// (RFC 9111 section 5.3).
func expired(h *wire.Header) bool {
	if !h.Has("expires") {
		return false
	}
	expires, err := http.ParseTime(string(h.Get("expires")))
	if err != nil {
		return true
	}
	sent, err := http.ParseTime(string(h.Get("date")))
	return err == nil && !expires.After(sent)
}

// coveredByKey tells whether every field that Vary names is one by which requests with the same key agree, or one that
// the gateway negotiates itself. Requests with Origin have no key.
func coveredByKey(value []byte) bool {
	for len(value) > 0 {
		var name []byte
		name, value, _ = bytes.Cut(value, []byte{','})
		name = bytes.TrimSpace(name)
		if len(name) > 0 && !wire.EqualFold(name, "accept-encoding") && !wire.EqualFold(name, "accept") &&
			!wire.EqualFold(name, "content-type") && !wire.EqualFold(name, "origin") {
			return false
		}
	}
	return true
}

// members seen at the top of an answer
const (
	hasTimedOut = 1 << iota
	hasShards
	hasCount
	hasEarly
	hasClusters
)

// fromOpenSearch3 tells whether OpenSearch 3 or later has answered: earlier versions do not say who they are.
func fromOpenSearch3(h *wire.Header) bool {
	return bytes.HasPrefix(h.Get("x-opensearch-version"), []byte("OpenSearch/"))
}

func completeBody(api string, mayEndEarly bool, b []byte) Reason {
	seen := 0
	why := Reason("")
	whole := wholeObject(b, func(name, value []byte) bool {
		member := 0
		switch string(name) {
		case "timed_out":
			member = hasTimedOut
			if string(value) != "false" {
				why = ReasonTimedOut
			}
		case "terminated_early":
			member = hasEarly
			if string(value) != "false" && (string(value) != "true" || !mayEndEarly) {
				why = ReasonEndedEarly
			}
		case "_shards":
			member = hasShards
			if !allShards(value) {
				why = ReasonShards
			}
		case "_clusters":
			member = hasClusters
			if !allClusters(value) {
				why = ReasonClusters
			}
		case "count":
			member = hasCount
			if !isCount(value) {
				why = ReasonMalformed
			}
		case "error":
			why = ReasonError
		case "_scroll_id", "pit_id", "cursor":
			why = ReasonCursor
		case "is_partial", "is_running":
			if string(value) != "false" {
				why = ReasonTimedOut
			}
		case "failures", "failed_shards":
			if string(value) != "[]" && string(value) != "0" {
				why = ReasonShards // of field_caps
			}
		case "profile":
			why = ReasonProfile
		}
		if seen&member != 0 || bytes.IndexByte(name, '\\') >= 0 {
			why = ReasonMalformed // a name twice, or in a spelling that hides it
		}
		seen |= member
		return why == ""
	})
	switch {
	case why != "":
		return why
	case !whole:
		return ReasonMalformed
	case seen&hasShards == 0 && (api == "search" || api == "count" || api == "search_template"):
		return ReasonShards
	case (api == "search" || api == "search_template") && seen&hasTimedOut == 0:
		return ReasonTimedOut
	case api == "count" && seen&hasCount == 0:
		return ReasonMalformed
	}
	return ""
}

// wholeObject calls f for the members of an object, as eachMember does, and tells whether b is that object and nothing else.
func wholeObject(b []byte, f func(name, value []byte) bool) bool {
	end, ok := eachMember(b, skipSpace(b, 0), f)
	return ok && skipSpace(b, end) == len(b)
}

// eachMember calls f for the members of the object at i and returns the object's end. Names and values come as they are
// spelled. It stops where f returns false or the JSON is broken, and then returns false.
func eachMember(b []byte, i int, f func(name, value []byte) bool) (int, bool) {
	if i == len(b) || b[i] != '{' {
		return i, false
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1, true
	}
	for {
		start := i
		end, ok := skipName(b, i)
		if !ok {
			return end, false
		}
		// The closing quote is the last one before the colon.
		name := b[start+1 : start+bytes.LastIndexByte(b[start:end], '"')]
		i = skipSpace(b, end)
		start = i
		if i, ok = skipValue(b, i); !ok || !f(name, b[start:i]) {
			return i, false
		}
		i = skipSpace(b, i)
		switch {
		case i == len(b):
			return i, false
		case b[i] == '}':
			return i + 1, true
		case b[i] != ',':
			return i, false
		}
		i = skipSpace(b, i+1)
	}
}

// allShards judges "_shards": every shard answered. Shards that were skipped, because they cannot match, are counted as
// successful.
func allShards(b []byte) bool {
	var total, successful, failed []byte
	fine := true
	_, ok := eachMember(b, 0, func(name, value []byte) bool {
		switch string(name) {
		case "total":
			fine = fine && total == nil
			total = value
		case "successful":
			fine = fine && successful == nil
			successful = value
		case "failed":
			fine = fine && failed == nil
			failed = value
		case "failures":
			fine = false
		}
		return fine
	})
	return ok && string(failed) == "0" && isCount(total) && bytes.Equal(total, successful)
}

// allClusters judges "_clusters", which a search across clusters has: every cluster answered in full.
func allClusters(b []byte) bool {
	var total, successful []byte
	fine := true
	_, ok := eachMember(b, 0, func(name, value []byte) bool {
		switch string(name) {
		case "total":
			fine = fine && total == nil
			total = value
		case "successful":
			fine = fine && successful == nil
			successful = value
		case "skipped", "partial", "failed", "running":
			fine = fine && string(value) == "0"
		case "details": // Elasticsearch only, since 8.10
			_, all := eachMember(value, 0, func(_, cluster []byte) bool { return wholeCluster(cluster) })
			fine = fine && all
		default:
			fine = false // nobody knows what it counts
		}
		return fine
	})
	return ok && isCount(total) && bytes.Equal(total, successful)
}

// wholeCluster judges what "_clusters" tells of one cluster. The counts beside it need not say that it lost shards.
func wholeCluster(b []byte) bool {
	var status []byte
	fine := true
	_, ok := eachMember(b, 0, func(name, value []byte) bool {
		switch string(name) {
		case "status":
			fine = fine && status == nil
			status = value
		case "timed_out", "is_partial":
			fine = fine && string(value) == "false"
		case "_shards":
			fine = fine && allShards(value)
		case "failures":
			fine = fine && string(value) == "[]"
		default:
			fine = fine && bytes.IndexByte(name, '\\') < 0 // or it may be one of them
		}
		return fine
	})
	return ok && string(status) == `"successful"`
}

func isCount(b []byte) bool { return len(b) > 0 && skipDigits(b, 0) == len(b) }
