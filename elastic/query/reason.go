package query

// A Reason says in one word why a request is not answered from a cache, why an answer is not stored, or why it may not
// outlive its time. It is one of the constants below, so it serves as the label of a metric and as the detail of a
// Cache-Status field (RFC 9211 section 2.8).
type Reason string

// Why a request passes the cache by.
const (
	ReasonAPI            Reason = "api"               // not a search, a count or several searches
	ReasonMethod         Reason = "method"            // neither GET nor POST
	ReasonNoCache        Reason = "no-cache-argument" // ?no_cache
	ReasonRequestCache   Reason = "request-cache"     // ?request_cache=false
	ReasonNoStore        Reason = "no-store"          // Cache-Control: no-store
	ReasonOrigin         Reason = "origin"            // a CORS request: nodes answer it per origin
	ReasonRequestCoding  Reason = "request-encoding"  // a compressed body
	ReasonRequestType    Reason = "request-type"      // a body that does not say it is JSON
	ReasonAccept         Reason = "accept"            // an answer other than JSON is asked for
	ReasonFormat         Reason = "format"            // ?format other than json
	ReasonFilterPath     Reason = "filter-path"       // ?filter_path may hide that an answer is incomplete
	ReasonArguments      Reason = "arguments"         // too many URL parameters
	ReasonRepeated       Reason = "repeated-argument" // a URL parameter that comes twice
	ReasonSource         Reason = "source"            // ?source beside a body, or empty
	ReasonScroll         Reason = "scroll"            // a cursor: each call moves it
	ReasonSearchType     Reason = "search-type"       // ?search_type=dfs_query_then_fetch
	ReasonBody           Reason = "body"              // no canonical form
	ReasonDuplicateKey   Reason = "duplicate-key"     // a node answers 400
	ReasonBodySize       Reason = "body-size"         // larger than Options.MaxBody
	ReasonSearches       Reason = "searches"          // over 256 in one _msearch
	ReasonSlice          Reason = "slice"
	ReasonPIT            Reason = "pit"
	ReasonProfile        Reason = "profile"
	ReasonScript         Reason = "script"
	ReasonScriptedMetric Reason = "scripted-metric"
	ReasonSampler        Reason = "sampler"
	ReasonRandom         Reason = "random-score"
	ReasonWrapper        Reason = "wrapper"
	ReasonStatement      Reason = "statement"       // in SQL or PPL, that may change something
	ReasonAsyncArguments Reason = "async-arguments" // of an async search, that nodes may refuse or that cannot be read
	ReasonAsyncKept      Reason = "async-kept"      // an async search that is to be kept on the node when it is over
	ReasonAsyncID        Reason = "async-id"        // an async search of which it is not known what it searches for
)

// Why an answer may live for its time only: no counter of the indices named can prove it fresh.
const (
	ReasonExplain        Reason = "explain"
	ReasonPreference     Reason = "preference" // certain shards or copies only
	ReasonNow            Reason = "now"
	ReasonRemote         Reason = "remote-cluster"
	ReasonTerminateAfter Reason = "terminate-after"
	ReasonForeign        Reason = "other-index" // documents of an index that the path may not name
	ReasonExternal       Reason = "external"    // a model, a rule set or a plug-in has a say
	ReasonSearchPipeline Reason = "search-pipeline"
	ReasonOther          Reason = "other-api" // neither a search nor a count
)

// Why an answer is not stored.
const (
	ReasonStatus        Reason = "status"
	ReasonContentType   Reason = "content-type"
	ReasonContentCoding Reason = "content-encoding"
	ReasonSetCookie     Reason = "set-cookie"
	ReasonCacheControl  Reason = "cache-control"
	ReasonVary          Reason = "vary"
	ReasonMalformed     Reason = "malformed"
	ReasonTimedOut      Reason = "timed-out"
	ReasonShards        Reason = "shards"
	ReasonEndedEarly    Reason = "terminated-early"
	ReasonError         Reason = "error"
	ReasonCursor        Reason = "cursor"
	ReasonClusters      Reason = "clusters"
	ReasonRunning       Reason = "running" // an async search that is not over
)
