// Package filters holds the filters that a configuration may name, one package a family, and registers them.
//
// A family imports no other family, and nothing registers itself: what is not named here does not exist.
package filters

import (
	"weir/filters/cache"
	"weir/filters/debug"
	"weir/filters/enqueue"
	"weir/filters/limit"
	"weir/filters/log"
	"weir/filters/route"
	"weir/filters/transform"
	"weir/filters/upstream"
	"weir/flows"
)

// Registry returns a registry of all filters.
func Registry() *flows.Registry {
	r := flows.NewRegistry()
	Register(r)
	return r
}

// Register adds all filters to r.
func Register(r *flows.Registry) {
	flows.Register(r, cache.GetCache())
	flows.Register(r, cache.SetCache())
	flows.Register(r, cache.Cache())
	flows.Register(r, debug.Echo())
	flows.Register(r, debug.Drop())
	flows.Register(r, enqueue.Queue())
	flows.Register(r, enqueue.RetryLimiter())
	flows.Register(r, limit.RateLimit())
	flows.Register(r, limit.Concurrency())
	flows.Register(r, limit.RequestPathLimiter())
	flows.Register(r, limit.RequestClientIPLimiter())
	flows.Register(r, limit.RequestUserLimiter())
	flows.Register(r, limit.RequestHostLimiter())
	flows.Register(r, limit.RequestAPIKeyLimiter())
	flows.Register(r, limit.ContextLimiter())
	flows.Register(r, limit.BulkRequestThrottle())
	flows.Register(r, log.RequestLogging())
	flows.Register(r, log.TraceContext())
	flows.Register(r, route.Flow())
	flows.Register(r, transform.Mount())
	flows.Register(r, transform.RequestHeaderFilter())
	flows.Register(r, transform.RewriteAddresses())
	flows.Register(r, transform.SetRequestHeader())
	flows.Register(r, transform.SetResponseHeader())
	flows.Register(r, upstream.Elasticsearch())
}

// Publish adds the pages of the filters whose state keeper holds to the admin listener. route finds the flows of a request
// that somebody wants explained.
func Publish(mux cache.Mux, keeper *flows.Keeper, route cache.Route) {
	cache.Publish(mux, keeper, route)
	mux.Handle("GET /_weir/limits", limit.Handler(keeper))
}
