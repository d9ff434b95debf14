// Package flows is the kernel: it turns a request on a listener into an exchange, routes it to a flow of filters, and
// writes the answer.
//
// The way of a request, top to bottom: Entry accepts a connection (entry.go), which reads a head (conn.go), serve makes an
// Exchange of it (serve.go), a Router picks a Flow (router.go), the Flow runs its filters (flow.go), the entry writes the
// response or the error (answer.go), and when that is written the router's tracing flow runs on the exchange (serve.go).
//
// The package does not know Elasticsearch's balancing, caches or limits: those are filters, registered from outside
// (filter.go). It trades generality for a short way: one allocation-free exchange per request, memory that is valid
// only inside Serve, and everything that outlives it copied.
package flows
