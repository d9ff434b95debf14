// Package transport speaks HTTP/1.1 to one Elasticsearch or OpenSearch node over pooled connections.
//
// It passes on what it is given byte for byte, and it knows of every exchange whether a byte of the request may have
// reached the node and whether a byte of an answer came back, which is what decides if a request may be repeated. It is
// not an HTTP client: it follows no redirects, decodes no content codings, keeps no cookies, adds no fields, speaks no
// HTTP/2, chooses no nodes and repeats nothing, save once on a fresh connection when a pooled one turns out to be dead
// and the request allows it. It trades leniency for certainty: an answer whose end is in doubt is an error, and a
// connection whose state is in doubt is closed.
package transport
