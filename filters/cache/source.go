package cache

import (
	"bytes"
	"strings"
	"time"
	"unsafe"

	"weir/elastic/api"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
)

// StoredConfig says where answers are kept and what they are known by. All cache filters that store have it.
type StoredConfig struct {
	// Name of a budget of its own. Filters with the same store, limits and pool share their memory; one pool a flow, or a
	// cluster, keeps the answers of one from pushing out those of another.
	Pool string `conf:"pool"`
	// Words by which stored answers can be purged.
	Tags conf.Strings `conf:"tags"`
}

// A source says where an answer comes from, for people who look at the cache and for purges. It never changes.
type source struct {
	flow, api string
	index     string // the expression in the path, decoded; empty means every index
	elsewhere bool   // it may hold documents of indices that the path does not name
	request   string // method and target, secrets removed
	body      string // the beginning of the request's body
	tags      []string
	took      time.Duration // that the upstream call took
}

const (
	maxSourceTarget = 256 // bytes of a target that are kept
	maxSourceBody   = 512 // and of a body
)

// newSource returns the source of an answer to x, or to the one search r of x.
func newSource(x *flows.Exchange, r *query.Request, v *query.Verdict, tags []string, took time.Duration) *source {
	o := &source{
		flow: x.Trace.Flow, api: r.API, index: string(api.DecodeSegment(nil, r.Index)), tags: tags, took: took,
		elsewhere: v.Elsewhere,
	}
	o.request = text(appendTarget(append(bytes.Clone(x.Request.Method), ' '), &x.Request), maxSourceTarget)
	o.body = text(r.Body, maxSourceBody)
	return o
}

// text returns the beginning of b.
func text(b []byte, most int) string {
	return strings.ToValidUTF8(string(b[:min(len(b), most)]), "")
}

// appendTarget appends the target of a request without the values of parameters that no search knows: one may be a token.
func appendTarget(dst []byte, r *flows.Request) []byte {
	dst = append(dst, r.Path...)
	separator := byte('?')
	api.EachParam(r.Query, func(name, value []byte) {
		dst = append(append(dst, separator), name...)
		separator = '&'
		switch {
		case len(value) == 0:
		case query.Known(api.DecodeQuery(nil, name)):
			dst = append(append(dst, '='), value...)
		default:
			dst = append(append(dst, '='), obs.Redacted...)
		}
	})
	return dst
}

func (o *source) size() int64 {
	if o == nil {
		return 0
	}
	return int64(unsafe.Sizeof(*o)) + int64(len(o.index)+len(o.request)+len(o.body))
}

// touches tells whether documents of an index may have a part in the answer. What the path names by an alias is known by
// the alias only.
func (o *source) touches(index string) bool {
	if o.elsewhere || o.index == "" {
		return true
	}
	named := false
	for part := range strings.SplitSeq(o.index, ",") {
		if part == "" {
			continue
		}
		named = true
		if api.OverlapsIndex(index, part) {
			return true
		}
	}
	return !named
}
