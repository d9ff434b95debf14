package pipeline

import (
	"github.com/cespare/xxhash/v2"

	"weir/elastic/bulk"
)

// BulkIndexingConfig is the configuration of bulk_indexing.
type BulkIndexingConfig struct {
	BulkConfig `conf:",inline"`
}

// BulkIndexing declares the processor bulk_indexing.
func BulkIndexing() Factory[BulkIndexingConfig] {
	return Factory[BulkIndexingConfig]{
		Name: "bulk_indexing",
		Summary: "Takes actions of bulk requests off a queue, as `weir queue import --bulk` puts them there, and sends them in bulk requests. " +
			"Actions upon one document keep their order.",
		Default: func() BulkIndexingConfig { return BulkIndexingConfig{defaultBulk()} },
		Build: func(b *Builder, c BulkIndexingConfig) Processor {
			return b.bulk(c.BulkConfig, func() form { return new(actionForm) })
		},
		Examples: []Example{{
			Title: "Load what was imported",
			YAML:  "- {name: load, bulk_indexing: {elasticsearch: default, input_queue: load, worker_size: 4}}",
		}},
	}
}

// actionForm sends records that are actions in the form of bulk.AppendRecord.
type actionForm struct {
	scratch []byte
	scan    bulk.Scanner
}

// action implements form.
func (f *actionForm) action(body, record []byte) ([]byte, bulk.Verb, bool) {
	from := len(body)
	body = bulk.AppendAction(body, record)
	f.scan.Reset(body[from:])
	if !f.scan.Next() || f.scan.Action().End != len(body)-from {
		return body[:from], bulk.Other, false
	}
	return body, f.scan.Action().Verb, true
}

// overhead implements form.
func (f *actionForm) overhead() int { return 1 }

// key implements orderedForm.
func (f *actionForm) key(record []byte) uint64 {
	f.scratch = bulk.AppendAction(f.scratch[:0], record)
	f.scan.Reset(f.scratch)
	if !f.scan.Next() {
		return 0 // it will be put aside
	}
	a := f.scan.Action()
	return xxhash.Sum64(a.ID) ^ 31*xxhash.Sum64(a.Index)
}

// index implements form: the answer tells it.
func (f *actionForm) index() string { return "" }
