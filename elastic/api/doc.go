// Package api is the one table that knows the REST API of Elasticsearch and OpenSearch: it maps a method and a raw path to
// the API's name, its class, the indices that the path names, and how safely the request may be sent twice. It also holds
// the reading of paths and query strings as the nodes read them.
//
// It is not for rewriting requests (nothing here is sent anywhere, the bytes that came are forwarded), not for targets
// named in bodies, and no check whether a node will accept a request. It decides by whole path segments, never by
// substrings, so an index named my_search is not a search.
//
// What it trades: the table joins endpoints of Elasticsearch 6 to 9 and OpenSearch 1 to 3, which do not agree everywhere.
// Where one spelling means different things to different versions, the entry takes the name of the heavier meaning and
// the idempotency of the more dangerous one. Unknown calls are unsafe.
//
// The table is apis.tsv; table_gen.go is made from it.
package api

//go:generate go run ./gen -in apis.tsv -out table_gen.go
