package cache

import "weir/elastic/query"

// Reasons that this package adds to those of package query.
const (
	reasonPass       query.Reason = "pass-pattern"    // the configuration says so
	reasonPath       query.Reason = "path"            // in a spelling that nodes read differently
	reasonCoding     query.Reason = "accept-encoding" // the caller refuses plain answers
	reasonMemory     query.Reason = "memory"          // no room to buffer a body
	reasonFault      query.Reason = "fault"           // the cache itself failed
	reasonTooLarge   query.Reason = "too-large"
	reasonTooSmall   query.Reason = "too-small"
	reasonNotOffered query.Reason = "no-set-cache"  // no filter below offered the answer to the cache
	reasonWarning    query.Reason = "warning"       // to a _msearch: nobody knows about which of its searches
	reasonUnanswered query.Reason = "failed"        // there is no answer, but an error
	reasonCluster    query.Reason = "other-cluster" // another cluster answered than the one that the request was to go to
	reasonPurged     query.Reason = "purged"        // the cache was purged while the node was asked
)

// bypassReasons are all reasons for which a request passes the cache by.
var bypassReasons = [...]query.Reason{
	query.ReasonAPI, query.ReasonMethod, query.ReasonNoCache, query.ReasonRequestCache, query.ReasonNoStore,
	query.ReasonOrigin, query.ReasonRequestCoding, query.ReasonRequestType, query.ReasonAccept, query.ReasonFormat,
	query.ReasonFilterPath, query.ReasonArguments, query.ReasonRepeated, query.ReasonSource, query.ReasonScroll,
	query.ReasonSearchType, query.ReasonBody, query.ReasonDuplicateKey, query.ReasonBodySize, query.ReasonSearches, query.ReasonSlice,
	query.ReasonPIT, query.ReasonProfile, query.ReasonScript, query.ReasonScriptedMetric, query.ReasonSampler,
	query.ReasonRandom, query.ReasonWrapper, query.ReasonStatement, query.ReasonAsyncArguments, query.ReasonAsyncKept, query.ReasonAsyncID,
	reasonPass, reasonPath, reasonCoding, reasonMemory, reasonFault,
}

// unstoredReasons are all reasons for which an answer is not stored.
var unstoredReasons = [...]query.Reason{
	query.ReasonStatus, query.ReasonContentType, query.ReasonContentCoding, query.ReasonSetCookie,
	query.ReasonCacheControl, query.ReasonVary, query.ReasonMalformed, query.ReasonTimedOut, query.ReasonShards,
	query.ReasonEndedEarly, query.ReasonError, query.ReasonCursor, query.ReasonClusters, query.ReasonProfile,
	query.ReasonRunning, query.ReasonFilterPath, reasonTooLarge, reasonTooSmall, reasonMemory, reasonFault, reasonNotOffered, reasonWarning,
	reasonUnanswered, reasonPurged, reasonCluster,
}

// passing tells whether a reason says something about one answer only, and not about all answers to such a request.
func passing(why query.Reason) bool {
	switch why {
	case query.ReasonStatus, query.ReasonMalformed, query.ReasonTimedOut, query.ReasonShards, query.ReasonEndedEarly,
		query.ReasonError, query.ReasonClusters, reasonMemory, reasonFault, reasonUnanswered, reasonPurged, reasonCluster:
		return true
	}
	return false
}
