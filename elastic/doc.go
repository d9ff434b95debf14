// Package elastic knows clusters: their nodes, how they are found and kept healthy, how an exchange reaches one of
// them, and the shape of Elasticsearch's errors.
//
// It does not know flows or configuration files. It trades a second look at every answer for never guessing: what a
// node said decides, and where nothing is known the request is treated as a write.
package elastic
