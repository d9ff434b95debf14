package pipeline

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"weir/elastic"
	"weir/elastic/bulk"
)

// JSONIndexingConfig is the configuration of json_indexing.
type JSONIndexingConfig struct {
	// Index that records are put into: a name, or date math such as <gateway_requests-{now/d}>, which is resolved when a
	// record is delivered, or a data stream.
	IndexName string `conf:"index_name,required"`

	BulkConfig `conf:",inline"`
}

// JSONIndexing declares the processor json_indexing.
func JSONIndexing() Factory[JSONIndexingConfig] {
	return Factory[JSONIndexingConfig]{
		Name:    "json_indexing",
		Summary: "Takes records, each one line of JSON, off a queue and stores them in an index or data stream with bulk requests.",
		Default: func() JSONIndexingConfig { return JSONIndexingConfig{BulkConfig: defaultBulk()} },
		Build: func(b *Builder, c JSONIndexingConfig) Processor {
			f := b.jsonForm(c.IndexName)
			return b.bulk(c.BulkConfig, func() form { return &f })
		},
		Examples: []Example{
			{
				Title: "Store the records of request_logging",
				YAML:  "- {name: request_logging_index, json_indexing: {index_name: gateway_requests, elasticsearch: default, input_queue: request_logging}}",
			},
			{
				Title: "Four consumers, each with a partition of the queue",
				YAML:  "- {name: busy, consumers: 4, json_indexing: {index_name: logs-gateway-default, elasticsearch: default, input_queue: request_logging, worker_size: 2}}",
			},
		},
	}
}

// jsonForm creates records as documents of one index.
//
// Records are created, not indexed: of those that an earlier request stored, whose answer was lost, the cluster says that
// they are there already. So each needs an id that is the same when it is delivered again: the one that it brings, or else a
// digest of its bytes.
type jsonForm struct {
	name   string
	quoted []byte // the name as a JSON string
}

// jsonForm returns the form for an index, whose name the parameter index_name gives.
func (b *Builder) jsonForm(index string) jsonForm {
	if reason := badIndexName(index); reason != "" {
		b.Errorf("index_name", "index name %q %s", index, reason)
	}
	return jsonForm{name: index, quoted: elastic.AppendString(nil, index)}
}

// action implements form.
func (f *jsonForm) action(body, record []byte) ([]byte, bulk.Verb, bool) {
	body = append(append(body, `{"create":{"_index":`...), f.quoted...)
	body = append(body, `,"_id":`...)
	if id := idOf(record); id != nil {
		body = append(body, id...)
	} else {
		body = appendDigest(body, record)
	}
	return append(append(append(body, "}}\n"...), record...), '\n'), bulk.Create, true
}

// appendDigest appends a JSON string of 20 characters that tells records apart by their bytes.
func appendDigest(dst, record []byte) []byte {
	sum := sha256.Sum256(record)
	return append(base64.RawURLEncoding.AppendEncode(append(dst, '"'), sum[:15]), '"')
}

// overhead implements form.
func (f *jsonForm) overhead() int { return len(`{"create":{"_index":,"_id":""}}`) + len(f.quoted) + 30 }

// index implements form.
func (f *jsonForm) index() string { return f.name }

// badIndexName returns why a cluster would refuse an index name, or "" (as in the documentation of the create index API of
// Elasticsearch and OpenSearch).
func badIndexName(name string) string {
	switch {
	case strings.HasPrefix(name, "<") && strings.HasSuffix(name, ">") && len(name) > 2:
		return "" // date math
	case name == "." || name == "..", strings.IndexAny(name, "-_+") == 0:
		return "begins with -, _ or +, or is nothing but dots"
	case strings.ToLower(name) != name:
		return "has capital letters"
	case strings.ContainsAny(name, "\\/*?\"<>| ,#:"):
		return "has one of the characters \\ / * ? \" < > | , # : or a space"
	case len(name) > 255:
		return "is longer than 255 bytes"
	}
	return ""
}
