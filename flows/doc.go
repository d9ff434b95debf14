// Package flows is the kernel: it turns a request on a listener into an exchange, routes it to a flow of filters, and
// writes the answer.
//
// The way of a request, top to bottom: Entry accepts and frames it (entry.go, conn.go), handle makes an Exchange of it
// (serve.go), a Router picks a Flow (router.go), the Flow runs its filters (flow.go), the entry writes the response or
// the error (serve.go), and when the answer has been written the router's tracing flow runs on a snapshot
// (snapshot.go).
//
// The package does not know Elasticsearch's balancing, caches or limits: those are filters, registered from outside
// (registry.go). It trades generality for a short way: one allocation-free exchange per request, memory that is valid
// only inside Serve, and everything that outlives it copied.
package flows
