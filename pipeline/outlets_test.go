package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/elastic/estest"
)

// delivered lets a pipeline deliver all that is on the queue, and stops it.
func (r *rig) delivered(text string) {
	r.t.Helper()
	running := r.run(r.planOf(text))
	r.drained()
	r.stop(running)
}

func TestSeveralConsumers(t *testing.T) {
	r := newRig(t, estest.Options{})
	running := r.run(r.planOf("consumers: 3, json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests, worker_size: 2}"))
	for n := range 20 {
		r.putMany(10*n, 10*n+10)
	}
	r.drained()
	r.stop(running)
	r.wantStored(200)
	r.wantRecords("stored", 200)
	// One consumer gets what several have left.
	running = r.run(r.planOf("consumers: 3, json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests}"))
	r.stop(running)
	for n := range 10 {
		r.putMany(200+10*n, 200+10*n+10)
	}
	r.delivered("json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests}")
	r.wantStored(300)
}

func TestPauseBetweenBlocks(t *testing.T) {
	r := newRig(t, estest.Options{})
	for n := range 3 {
		r.putMany(n, n+1)
	}
	start := time.Now()
	r.delivered("pause: 50ms, json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests}")
	if d := time.Since(start); d < 100*time.Millisecond {
		t.Errorf("three blocks with pauses of 50ms took %s", d)
	}
}

func TestRequestsFollowWhatTheClusterTakes(t *testing.T) {
	r := newRig(t, estest.Options{})
	busy := r.es.Inject(bulkOnly(estest.Fault{Status: 429}))
	r.putMany(0, 2000)
	running := r.run(r.planOf("json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests, worker_size: 8, bulk_size: 250}"))
	eventually(t, "fewer requests", func() bool { return r.metric("weir_pipeline_requests_allowed", "main") <= 4 })
	busy.Remove()
	r.drained()
	r.stop(running)
	r.wantStored(2000)
}

func action(verb, id, source string) string {
	a := fmt.Sprintf(`{%q:{"_index":"logs","_id":%q}}`, verb, id)
	if verb == "delete" {
		return a
	}
	return a + "\t" + source
}

const bulkIndexing = "bulk_indexing: {elasticsearch: default, input_queue: requests, worker_size: 3}"

func (r *rig) source(id string) string {
	r.t.Helper()
	var doc struct {
		Found  bool            `json:"found"`
		Source json.RawMessage `json:"_source"`
	}
	if err := json.Unmarshal(r.get("/logs/_doc/"+id), &doc); err != nil {
		r.t.Fatal(err)
	}
	return string(doc.Source)
}

func TestBulkIndexing(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.put(action("index", "1", `{"a":1}`), action("create", "2", `{"a":2}`), action("delete", "1", ""),
		action("update", "2", `{"doc":{"b":3}}`), action("index", "3", `{"text":	"a tab"}`), action("delete", "none", ""))
	r.delivered(bulkIndexing)
	r.wantStored(2)
	if got := r.source("2"); got != `{"a":2,"b":3}` {
		t.Errorf("document 2 is %s", got)
	}
	r.wantRecords("stored", 6)
	r.letters(0)
}

// What is no action, and what the cluster will never take, goes aside with the reason; a create that is there already was
// stored before.
func TestBulkIndexingPutsAside(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.do("PUT", "/logs", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	r.put(action("create", "1", `{"n":1}`), "garbage", action("index", "2", `{"n":"word"}`), action("update", "9", `{"doc":{}}`),
		action("create", "1", `{"n":1}`))
	r.delivered(bulkIndexing)
	r.wantStored(1)
	r.wantRecords("duplicate", 1)
	var kinds []string
	for _, l := range r.letters(3) {
		var letter struct {
			Error  struct{ Type string }
			Record string
		}
		if err := json.Unmarshal([]byte(l), &letter); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		kinds = append(kinds, letter.Error.Type)
	}
	slices.Sort(kinds)
	if !slices.Contains(kinds, "malformed_action") || !slices.Contains(kinds, "document_missing_exception") {
		t.Errorf("errors %v", kinds)
	}
}

// An action that the cluster had no time for must not be done after a later one upon the same document.
func TestBulkIndexingKeepsTheOrderOfADocument(t *testing.T) {
	r := newRig(t, estest.Options{})
	busy := `{"took":1,"errors":true,"items":[{"index":{"_index":"logs","_id":"1","status":429,"error":{"type":"es_rejected_execution_exception","reason":"r"}}}]}`
	r.es.Inject(bulkOnly(estest.Fault{Times: 2, Body: []byte(busy), Match: func(c *estest.Call) bool {
		return bytes.Contains(c.Body, []byte(`{"version":1}`))
	}}))
	var list []string
	for v := 1; v <= 5; v++ {
		list = append(list, action("index", "1", fmt.Sprintf(`{"version":%d}`, v)))
		list = append(list, action("index", fmt.Sprintf("other-%d", v), `{}`))
	}
	r.put(list[0])
	r.put(list[1:]...)
	r.delivered(bulkIndexing)
	r.wantStored(6)
	if got := r.source("1"); got != `{"version":5}` {
		t.Errorf("the last one was not the last: %s", got)
	}
	for _, c := range r.bulks() {
		if bytes.Count(c.Body, []byte(`"_id":"1"`)) > 1 {
			t.Errorf("a request with two actions upon a document: %s", c.Body)
		}
	}
}

func TestDeadLettersAreShown(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.do("PUT", "/logs", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	bad := `{"event":{"id":"bad"},"n":"word"}`
	r.put(bad, `{"broken`)
	r.delivered("json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests}")
	running := r.run(r.planOf("dead_letter: {elasticsearch: default, input_queue: requests.dead}"))
	eventually(t, "two letters", func() bool { return r.metric("weir_pipeline_records_total", "main", "stored") == 2 })
	r.stop(running)
	r.get("/weir-dead-letters/_refresh")
	var answer struct {
		Hits struct {
			Hits []struct {
				Source struct {
					Time   string `json:"@timestamp"`
					Error  struct{ Code, Type, Message string }
					Labels struct{ Index string }
					Event  struct{ Original string }
				} `json:"_source"`
			}
		}
	}
	if err := json.Unmarshal(r.get("/weir-dead-letters/_search"), &answer); err != nil {
		t.Fatal(err)
	}
	var originals []string
	for _, h := range answer.Hits.Hits {
		s := h.Source
		if _, err := time.Parse(time.RFC3339, s.Time); err != nil || s.Error.Code != "400" || s.Error.Type == "" || s.Error.Message == "" || s.Labels.Index != "logs" {
			t.Errorf("%+v, %v", s, err)
		}
		originals = append(originals, s.Event.Original)
	}
	slices.Sort(originals)
	if want := []string{`{"broken`, bad}; !slices.Equal(originals, want) {
		t.Errorf("originals %q, want %q", originals, want)
	}
}

func TestFileOutput(t *testing.T) {
	r := newRig(t, estest.Options{})
	path := filepath.Join(t.TempDir(), "new", "requests.ndjson")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 300<<10)
	var want []string
	for n := range 8 {
		want = append(want, fmt.Sprintf(`{"n":%d,"pad":%q}`, n, long))
		r.put(want[n])
	}
	r.delivered(fmt.Sprintf("file: {path: %q, max_size: 1mb, keep: 5, input_queue: requests}", path))
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 3 {
		t.Errorf("files %v, %v: want three of a megabyte", files, err)
	}
	slices.SortFunc(files, func(a, b string) int { // the present one is the last
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	var got []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.Split(strings.TrimSpace(string(text)), "\n")...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d lines in %v, want %d", len(got), files, len(want))
	}
	r.wantRecords("stored", 8)
}

func TestFileThatCannotBeMade(t *testing.T) {
	r := newRig(t, estest.Options{})
	_, err := r.planOf("file: {path: /proc/none/x, input_queue: requests}").Start(r.env)
	if err == nil || !strings.Contains(err.Error(), "start pipeline main") {
		t.Errorf("started: %v", err)
	}
}

// flaky fails now and then, before it has written anything.
type flaky struct {
	mu    sync.Mutex
	fails int
	b     bytes.Buffer
}

func (f *flaky) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		return 0, errors.New("broken pipe")
	}
	return f.b.Write(p)
}

func TestStdout(t *testing.T) {
	r := newRig(t, estest.Options{})
	out := &flaky{fails: 2}
	r.env.Stdout = out
	r.putMany(0, 3)
	r.putMany(3, 4)
	r.delivered("stdout: {input_queue: requests}")
	if got, want := out.b.String(), record(0)+"\n"+record(1)+"\n"+record(2)+"\n"+record(3)+"\n"; got != want {
		t.Errorf("got %q", got)
	}
}

// A block that one branch has and another one not stays on the queue; end comes after all of them.
func TestDAG(t *testing.T) {
	r := newRig(t, estest.Options{})
	out := &flaky{}
	r.env.Stdout = out
	path := filepath.Join(t.TempDir(), "records")
	text := fmt.Sprintf("dag: {input_queue: requests, parallel: [{json_indexing: {index_name: logs, elasticsearch: default}}, {file: {path: %q}}], end: [{stdout: {}}]}", path)
	injection := r.es.Inject(bulkOnly(estest.Fault{Status: 503}))
	r.putMany(0, 5)
	running := r.run(r.planOf(text))
	file := func() string {
		b, _ := os.ReadFile(path)
		return string(b)
	}
	eventually(t, "the file", func() bool { return strings.Count(file(), "\n") == 5 })
	if d := r.in.Stats().Depth; d != 1 {
		t.Errorf("%d blocks while the cluster is away", d)
	}
	out.mu.Lock()
	if out.b.Len() > 0 {
		t.Error("end came before the cluster had the records")
	}
	out.mu.Unlock()
	injection.Remove()
	r.drained()
	r.stop(running)
	r.wantStored(5)
	if file() != out.b.String() {
		t.Errorf("file %q, standard output %q", file(), out.b.String())
	}
	if got := r.metric("weir_pipeline_records_total", "main/json_indexing", "stored"); got != 5 {
		t.Errorf("%v records stored", got)
	}
}

func TestDAGThatCannotStart(t *testing.T) {
	r := newRig(t, estest.Options{})
	_, err := r.planOf("dag: {input_queue: requests, parallel: [{json_indexing: {index_name: logs, elasticsearch: default}}, {file: {path: /proc/none/x}}]}").Start(r.env)
	if err == nil {
		t.Error("started")
	}
	if _, open := r.queues.Manager.Stats()["requests.dead"]; open {
		t.Error("the queue for dead letters is still open")
	}
}

func TestDrain(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.putMany(0, 50)
	running := r.start("")
	running.Drain(t.Context())
	r.stop(running)
	r.wantStored(50)
	if s := r.in.Stats(); s.Depth+s.OpenRecords != 0 {
		t.Errorf("%+v", s)
	}

	// Nothing is waited for when the cluster is away, and not longer than asked.
	hold := make(chan struct{})
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Hold: hold}))
	r.putMany(50, 60)
	running = r.start("")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	running.Drain(ctx)
	if ctx.Err() == nil {
		t.Error("did not wait for what was under way")
	}
	r.es.Inject(bulkOnly(estest.Fault{Status: 503}))
	close(hold)
	running.Drain(t.Context())
	_ = running.Stop(expired())
}
