package cache

import (
	"bytes"
	"sync"

	"github.com/klauspost/compress/gzip"

	"weir/elastic/query"
)

const (
	// leastCoded is the smallest answer that is worth compressing: it fits into the first packets of a connection.
	leastCoded = 1 << 10
	// codedLevel is the gzip level. Answers of searches shrink to a tenth at any level; the quickest is good enough.
	codedLevel = gzip.BestSpeed
)

// gzipWriters holds writers between answers: one takes hundreds of kilobytes.
var gzipWriters = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, codedLevel) // fails for an unknown level only
	return w
}}

// compress returns e with its compressed form, which it puts into the store, or e if that is not worth it. Only the first
// caller does the work; those who come while it lasts get the plain form.
func (s *store) compress(key *query.Key, e *Entry) *Entry {
	if len(e.body) < leastCoded || e.coded.Swap(true) {
		return e
	}
	w, _ := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	_, err := w.Write(e.body)
	if err == nil {
		err = w.Close()
	}
	if err != nil || out.Len() > len(e.body)*9/10 {
		return e
	}
	fresh := &Entry{
		status: e.status, fields: e.fields, body: e.body, gzip: bytes.Clone(out.Bytes()), source: e.source,
		asked: e.asked, rule: e.rule, spread: e.spread, moves: e.moves, until: e.until, stamp: e.stamp, timed: e.timed,
	}
	fresh.coded.Store(true)
	fresh.hits.Store(e.hits.Load())
	fresh.renewed.Store(e.renewed.Load())
	s.replace(key, e, fresh)
	return fresh
}
