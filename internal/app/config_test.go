package app

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"weir/internal/conf"
)

func TestQueueLengthsThatDoNotFit(t *testing.T) {
	f := func(text string, wants ...string) {
		t.Helper()
		n, p := conf.Parse("t.yml", "queue: {"+text+"}", nil)
		c := DefaultConfig()
		conf.Decode(n, &c, p)
		var got []string
		for _, q := range p.Sorted() {
			got = append(got, q.String())
		}
		if !slices.EqualFunc(got, wants, strings.Contains) {
			t.Errorf("%s: got %q, want %q", text, got, wants)
		}
	}
	f("")
	f("max_msg_size: 256mb, max_bytes_per_file: 512mb")
	f("max_msg_size: 500000000", "t.yml:1:23: warning: queue: 500000000b is more than a queue of max_bytes 2gb has room for: 256mb is used")
	f("max_bytes_per_file: 50*1024*1024*1024", "warning: queue: 50gb is more than a queue of max_bytes 2gb has room for: 512mb is used")
	f("max_bytes: 4gb, max_msg_size: 500000000")
	f("max_bytes: 1mb") // the defaults are lowered with it, and nobody asked for them
	f("max_msg_sise: 1", `unknown field "max_msg_sise"; did you mean "max_msg_size"?`)
}

func TestQueueHasASchema(t *testing.T) {
	text, err := json.Marshal(QueueConfig{}.JSONSchema())
	if err != nil || !strings.Contains(string(text), `"max_msg_size"`) || strings.Contains(string(text), "$schema") {
		t.Errorf("%s %v", text, err)
	}
}
