package pipeline

import (
	"weir/elastic"
	"weir/elastic/bulk"
)

// DeadLetterConfig is the configuration of dead_letter.
type DeadLetterConfig struct {
	// Index for the letters.
	IndexName string `conf:"index_name"`

	BulkConfig `conf:",inline"`
}

// DeadLetter declares the processor dead_letter.
func DeadLetter() Factory[DeadLetterConfig] {
	return Factory[DeadLetterConfig]{
		Name: "dead_letter",
		Summary: "Takes what a cluster refused for good off the queue for dead letters and stores it in an index where people see it: the reason " +
			"as error.code, error.type and error.message, the index that it was meant for as labels.index, and the record as the text event.original.",
		Default: func() DeadLetterConfig {
			return DeadLetterConfig{IndexName: "weir-dead-letters", BulkConfig: defaultBulk()}
		},
		Build: func(b *Builder, c DeadLetterConfig) Processor {
			f := letterForm{b.jsonForm(c.IndexName)}
			return b.bulk(c.BulkConfig, func() form { return &f })
		},
		Examples: []Example{{
			Title: "Show what could not be stored",
			YAML:  "- {name: refused, dead_letter: {elasticsearch: default, input_queue: request_logging.dead}}",
		}},
	}
}

// letterForm makes documents of letters. The record is text in them: its fields are what the cluster did not take.
type letterForm struct{ jsonForm }

// action implements form.
func (f *letterForm) action(body, letter []byte) ([]byte, bulk.Verb, bool) {
	failed, record := member(letter, "error"), member(letter, "record")
	if failed == nil || record == nil {
		return body, bulk.Other, false
	}
	or := func(raw []byte, other string) []byte {
		if raw == nil {
			return []byte(other)
		}
		return raw
	}
	body = append(append(body, `{"create":{"_index":`...), f.quoted...)
	body = appendDigest(append(body, `,"_id":`...), letter)
	body = append(append(body, "}}\n"+`{"@timestamp":`...), or(member(letter, "@timestamp"), "null")...)
	body = append(append(body, `,"error":{"code":"`...), or(member(failed, "status"), "")...)
	body = append(append(body, `","type":`...), or(member(failed, "type"), "null")...)
	body = append(append(body, `,"message":`...), or(member(failed, "reason"), "null")...)
	body = append(append(body, `},"labels":{"index":`...), or(member(letter, "index"), "null")...)
	body = append(body, `},"event":{"original":`...)
	if record[0] == '"' {
		body = append(body, record...) // it was no JSON, and is text already
	} else {
		body = elastic.AppendString(body, string(record))
	}
	return append(body, "}}\n"...), bulk.Create, true
}

// overhead implements form.
func (f *letterForm) overhead() int { return f.jsonForm.overhead() + 100 }
