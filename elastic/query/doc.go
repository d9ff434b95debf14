// Package query says which searches are the same search, which answers may be kept, and for whom: canonical JSON, cache
// keys, and the gate that an answer must pass before it is stored.
//
// It is not a cache and does no I/O: it keeps no answers, knows no clock, and never changes what is forwarded. It is not
// a parser of the query language either: it looks at a body only as far as deciding needs.
//
// It trades hits for safety. What it does not know goes into the key; what it cannot read, and what depends on more than
// the indices named, is not answered from a cache or at least never outlives its time. A key is SHA-256 over
// length-prefixed parts, because a caller who can build a collision of a faster hash could read another caller's answer.
package query
