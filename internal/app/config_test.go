package app

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/conf"
	"weir/queue/disk"
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
	f("max_msg_size: 500000000", "t.yml:1:23: warning: queue: max_msg_size 500000000b is more than a queue of max_bytes 2gb has room for: 256mb is used")
	f("max_bytes_per_file: 50*1024*1024*1024", "warning: queue: max_bytes_per_file 50gb is more than a queue of max_bytes 2gb has room for: 512mb is used")
	f("max_bytes: 4gb, max_msg_size: 500000000")
	f("max_bytes: 1mb") // the defaults are lowered with it, and nobody asked for them
	f("block_size: 32mb, max_bytes: 64mb", "t.yml:1:21: warning: queue: block_size 32mb is more than a queue of max_bytes 64mb has room for: 8mb is used")
	f("block_size: 1gb", "t.yml:1:21: queue.block_size: want at most 64mb")
	f("max_bytes: 1kb", "t.yml:1:20: queue.max_bytes: want at least 1mb")
	f("max_bytes: 0", "t.yml:1:20: queue.max_bytes: want at least 1mb")
	f("max_msg_size: 0", "t.yml:1:23: queue.max_msg_size: want at least 1b")
	f("max_msg_size: 10b, min_msg_size: 100b", "t.yml:1:42: queue: no queue can be opened: the smallest record, 100 bytes, is larger than the largest, 10 bytes")
	f("max_bytes: 1mb, min_msg_size: 1mb", "t.yml:1:39: queue: no queue can be opened: ")
	f("max_msg_sise: 1", `unknown field "max_msg_sise"; did you mean "max_msg_size"?`)
}

func TestSyncOfQueues(t *testing.T) {
	f := func(text string, want disk.Sync, interval time.Duration) {
		t.Helper()
		n, p := conf.Parse("t.yml", "queue: {"+text+"}", nil)
		c := DefaultConfig()
		conf.Decode(n, &c, p)
		if p.HasErrors() {
			t.Error(p.Err())
		}
		if o := c.Queue.Options(); o.Sync != want || o.SyncInterval != interval {
			t.Errorf("%s: sync %d, interval %s, want %d, %s", text, o.Sync, o.SyncInterval, want, interval)
		}
	}
	f("", disk.SyncBlock, 2*time.Second)
	f("sync: never", disk.SyncNever, 2*time.Second)
	f("sync: interval, sync_interval: 1s", disk.SyncInterval, time.Second)
	f("sync_every_in_seconds: 30", disk.SyncInterval, 30*time.Second)
	f("sync_every_in_seconds: 30, sync_timeout_in_seconds: 10", disk.SyncInterval, 10*time.Second)
	f("sync_every_in_seconds: 30, sync: block", disk.SyncBlock, 2*time.Second)
}

func TestQueueHasASchema(t *testing.T) {
	text, err := json.Marshal(QueueConfig{}.JSONSchema())
	if err != nil || !strings.Contains(string(text), `"max_msg_size"`) || strings.Contains(string(text), "$schema") {
		t.Errorf("%s %v", text, err)
	}
}

// TestTheClassicFileIsWarnedOf holds that what docs/migration.md promises is told of a file in the classic form.
func TestTheClassicFileIsWarnedOf(t *testing.T) {
	page, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	plan, p := Load(conf.Options{Files: []string{"../e2e/testdata/classic-gateway.yml"}})
	if plan == nil {
		t.Fatal(p.Err())
	}
	var warnings strings.Builder
	if err := p.WriteText(&warnings); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"basic_auth", "pass_patterns", "hash_factor.header", "hash_factor.query_args", "must_cache", "timeout_in_ms",
		"num_of_messages", "bulk_size", "max_msg_size", "max_bytes_per_file", "sync_every_in_seconds", "sync_timeout_in_seconds",
		"read_chan_buffer",
	} {
		if !strings.Contains(warnings.String(), name) {
			t.Errorf("no warning names %s:\n%s", name, &warnings)
		}
		if !strings.Contains(string(page), name+"`") {
			t.Errorf("the page does not name %s", name)
		}
	}
}

func TestTheExampleHasNoWarnings(t *testing.T) {
	if plan, p := Load(conf.Options{Files: []string{"../../gateway.yml"}}); plan == nil || len(p.Sorted()) > 0 {
		t.Errorf("%v", p.Sorted())
	}
}
