package enqueue

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"weir/elastic"
	"weir/elastic/bulk"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
	"weir/queue/message"
	"weir/queue/queuetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a flow of one filter queue, at work.
type rig struct {
	*testing.T
	filter  flows.Filter
	blocks  queue.Consumer
	passed  int
	metrics *obs.Metrics
}

func newRig(t *testing.T, o disk.Options, shape func(*QueueConfig)) *rig {
	t.Helper()
	c := Queue().Default()
	c.QueueName = "writes"
	if shape != nil {
		shape(&c)
	}
	p := new(conf.Problems)
	b := flows.NewBuilder(flows.NewRegistry(), p)
	b.Provide("queues", "default", queue.Opener(queuetest.New(t, nil, nil, o)), nil)
	r := &rig{T: t, filter: Queue().Build(b, c), metrics: obs.NewMetrics()}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	f, _ := r.filter.(*enqueuer)
	if err := f.Start(&flows.Runtime{Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	consumers, err := f.Queue.Consumers(1)
	if err != nil {
		t.Fatal(err)
	}
	r.blocks = consumers[0]
	return r
}

// failed returns how many messages are counted as failed.
func (r *rig) failed() float64 {
	r.Helper()
	all, err := r.metrics.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, family := range all {
		if family.GetName() != "weir_queue_messages_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "failed" {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

// Serve is the end of the flow.
func (r *rig) Serve(x *flows.Exchange) error {
	r.passed++
	x.Reply(http.StatusOK, "", nil)
	return nil
}

// jsonField is what ask declares a body as.
var jsonField = message.Field{Name: "Content-Type", Value: "application/json"}

// ask sends a request through the filter and returns status and body of the answer. A body is JSON unless the fields say otherwise.
func (r *rig) ask(method, target, body string, fields ...string) (int, string) {
	r.Helper()
	if body != "" && !slices.ContainsFunc(fields, func(f string) bool { return strings.EqualFold(f, jsonField.Name) }) {
		fields = append(fields, jsonField.Name, jsonField.Value)
	}
	x := flows.Explaining(method, target, fields...)
	x.Request.Body.Replace([]byte(body))
	if err := r.filter.Serve(x, r); err != nil {
		e := elastic.AsError(err)
		return e.Status, string(e.Body())
	}
	answer, err := x.Response.Body.Bytes(1 << 20)
	if err != nil {
		r.Fatal(err)
	}
	return x.Response.Status, string(answer)
}

// messages returns what is in the queue.
func (r *rig) messages(want int) []message.Message {
	r.Helper()
	var out []message.Message
	for len(out) < want {
		b, err := r.blocks.Peek(r.Context())
		if err != nil {
			r.Fatal(err)
		}
		for record := range b.Records() {
			m, err := message.Parse(record)
			if err != nil {
				r.Fatalf("%v in %s", err, record)
			}
			out = append(out, m)
		}
		if err := r.blocks.Advance(); err != nil {
			r.Fatal(err)
		}
	}
	if len(out) != want {
		r.Fatalf("%d messages, want %d", len(out), want)
	}
	return out
}

// result is an answer to a write.
type result struct {
	Index  string `json:"_index"`
	ID     string `json:"_id"`
	Result string
	Status int
	Error  struct{ Type string }
}

func parse[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

func TestOneDocument(t *testing.T) {
	f := func(method, target string, status int, result string, wantTarget string) {
		t.Helper()
		r := newRig(t, disk.Options{}, nil)
		const sent = `{"doc":{"a":1}}`
		got, body := r.ask(method, target, sent)
		if got != status || !strings.Contains(body, `"result":"`+result+`"`) || !strings.HasPrefix(body, `{"_index":"a b","_id":"`) {
			t.Errorf("%s %s: %d %s", method, target, got, body)
		}
		m := r.messages(1)[0]
		id := parse[struct {
			ID string `json:"_id"`
		}](t, body).ID
		if want := strings.ReplaceAll(wantTarget, "ID", id); m.Target != want || m.Method != method || string(m.Body) != sent {
			t.Errorf("%s %s with %s in the queue, want %s", m.Method, m.Target, m.Body, want)
		}
	}
	f("PUT", "/a%20b/_doc/1?routing=x&pretty", 201, "created", "/a%20b/_doc/1?routing=x")
	f("PUT", "/a%20b/_create/1", 201, "created", "/a%20b/_create/1")
	f("POST", "/a%20b/_doc", 201, "created", "/a%20b/_doc/ID?op_type=create")
	f("POST", "/a%20b/_doc/?op_type=index&refresh=true", 201, "created", "/a%20b/_doc/ID?op_type=create&refresh=true")
	f("POST", "/a%20b/_update/1", 200, "updated", "/a%20b/_update/1")
	f("DELETE", "/a%20b/_doc/1?filter_path=_id", 200, "deleted", "/a%20b/_doc/1")
}

// Lines of JSON do not have such bytes: the document would get another id than the client named.
func TestTargetThatIsNoUTF8(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	f := func(method, target string) {
		t.Helper()
		status, body := r.ask(method, target, "{\"index\":{\"_index\":\"i\"}}\n{}\n")
		if status != 400 || !strings.Contains(body, `"illegal_argument_exception"`) || !strings.Contains(body, "percent-encoded") {
			t.Errorf("%s %q: %d %s", method, target, status, body)
		}
	}
	f("PUT", "/i/_doc/\xe9")
	f("POST", "/i\xe9/_doc")
	f("POST", "/i/_doc?routing=\xe9")
	f("POST", "/i\xe9/_bulk")
	if s := r.filter.(*enqueuer).Queue.Stats(); s.Put != 0 {
		t.Errorf("%d messages in the queue", s.Put)
	}
	for _, target := range []string{"/i/_doc/%E9", "/i/_doc/é"} {
		if status, body := r.ask("PUT", target, "{}"); status != 201 {
			t.Errorf("%s: %d %s", target, status, body)
		}
		if m := r.messages(1)[0]; m.Target != target {
			t.Errorf("%s is in the queue, want %s", m.Target, target)
		}
	}
}

func TestOthersPass(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	for _, target := range []string{"/a/_search", "/_cluster/health", "/a/_delete_by_query", "/a", "/a/_doc/1/x/y"} {
		if status, _ := r.ask("POST", target, ""); status != 200 {
			t.Errorf("%s: %d", target, status)
		}
	}
	x := flows.NewReplay(flows.Replay{Queue: "writes"}, "PUT", "/a/_doc/1", "h", x().Request.ClientIP, "")
	if err := r.filter.Serve(x, r); err != nil {
		t.Error(err)
	}
	if r.passed != 6 {
		t.Errorf("%d passed, want 6", r.passed)
	}
	other := flows.NewReplay(flows.Replay{Queue: "others"}, "DELETE", "/a/_doc/1", "h", x.Request.ClientIP, "")
	if err := r.filter.Serve(other, r); err != nil {
		t.Error(err)
	}
	r.messages(1)
}

func x() *flows.Exchange { return flows.Explaining("GET", "/") }

// A bulk is answered action by action, in the client's words, and what is in the queue has ids.
func TestBulk(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	body := "{\"index\":{}}\n{\"a\":1}\n{\"create\":{\"_index\":\"b\",\"_id\":\"7\"}}\n{\"a\":2}\n\n" +
		"{\"delete\":{\"_id\":\"8\"}}\r\n{\"update\":{\"_id\":9,\"routing\":\"x\"}}\n{\"doc\":{\"delete\":1}}\n"
	status, answer := r.ask("POST", "/a/_bulk?pipeline=p", body)
	got := parse[struct {
		Took   *int
		Errors bool
		Items  []map[string]result
	}](t, answer)
	if status != 200 || got.Took == nil || got.Errors || len(got.Items) != 4 {
		t.Fatalf("%d %s", status, answer)
	}
	id := got.Items[0]["index"].ID
	want := []map[string]result{
		{"index": {Index: "a", ID: id, Result: "created", Status: 201}},
		{"create": {Index: "b", ID: "7", Result: "created", Status: 201}},
		{"delete": {Index: "a", ID: "8", Result: "deleted", Status: 200}},
		{"update": {Index: "a", ID: "9", Result: "updated", Status: 200}},
	}
	if diff := cmp.Diff(want, got.Items); diff != "" || len(id) < 20 {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	m := r.messages(1)[0]
	queued := `{"index":{"_id":"` + id + "\"}}\n{\"a\":1}\n{\"create\":{\"_index\":\"b\",\"_id\":\"7\"}}\n{\"a\":2}\n" +
		"{\"delete\":{\"_id\":\"8\"}}\n{\"update\":{\"_id\":9,\"routing\":\"x\"}}\n{\"doc\":{\"delete\":1}}\n"
	if diff := cmp.Diff(queued, string(m.Body)); diff != "" || m.Target != "/a/_bulk?pipeline=p" {
		t.Errorf("%s in the queue (-want +got):\n%s", m.Target, diff)
	}
}

func TestAccepted(t *testing.T) {
	r := newRig(t, disk.Options{}, func(c *QueueConfig) { c.Answer = "accepted" })
	if status, body := r.ask("PUT", "/a/_doc/1", "{}"); status != 202 || !strings.Contains(body, `"result":"accepted"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := r.ask("POST", "/a/_bulk", "{\"delete\":{\"_id\":\"8\"}}\n"); status != 200 || !strings.Contains(body, `"result":"accepted","status":202`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestCompressedBulk(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	const text = "{\"delete\":{\"_id\":\"8\"}}\n"
	f := func(coding string, pack func(io.Writer) (io.WriteCloser, error)) {
		t.Helper()
		var packed bytes.Buffer
		w, err := pack(&packed)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, text)
		_ = w.Close()
		if status, body := r.ask("POST", "/a/_bulk", packed.String(), "Content-Encoding", coding); status != 200 {
			t.Fatalf("%s: %d %s", coding, status, body)
		}
		if m := r.messages(1)[0]; !cmp.Equal(m.Fields, []message.Field{jsonField}) || string(m.Body) != text {
			t.Errorf("%s: %+v", coding, m)
		}
	}
	f("gzip", func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil })
	f("x-deflate", func(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil })
	f("deflate", func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	for coding, want := range map[string]int{"gzip": 400, "zstd": 415, "deflate": 400} {
		if status, body := r.ask("POST", "/a/_bulk", "plain\n", "Content-Encoding", coding); status != want {
			t.Errorf("%s: %d %s, want %d", coding, status, body, want)
		}
	}
	if status, _ := r.ask("POST", "/a/_bulk", "x", "Content-Type", "application/smile"); status != 406 {
		t.Errorf("smile: %d", status)
	}
}

// A coding that is named for one document goes with it, and one without a body is none. What cannot be unpacked makes nodes close the
// connection without an answer, so that it would be made again for ever, and hold up all that comes behind it.
func TestCodingOfOneDocument(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	f := func(method, body string) {
		t.Helper()
		if status, answer := r.ask(method, "/a/_doc/1", body, "Content-Encoding", "gzip"); status/100 != 2 {
			t.Fatalf("%s: %d %s", method, status, answer)
		}
		m := r.messages(1)[0]
		want := []message.Field{{Name: "Content-Encoding", Value: "gzip"}}
		if body != "" {
			want = append(want, jsonField)
		}
		if string(m.Body) != body || !cmp.Equal(m.Fields, want) {
			t.Errorf("%s: %+v", method, m)
		}
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(`{"a":1}`))
	_ = z.Close()
	f("PUT", zipped.String())
	f("DELETE", "")
	for _, broken := range []string{"\x1f\x8b\x08\x00\xff", `{"a":1}`, zipped.String()[:zipped.Len()-4]} {
		if status, answer := r.ask("PUT", "/a/_doc/1", broken, "Content-Encoding", "gzip"); status != 400 || !strings.Contains(answer, "the request's body is no gzip") {
			t.Errorf("%q: %d %s", broken, status, answer)
		}
	}
	if status, answer := r.ask("PUT", "/a/_doc/1", `{"a":1}`, "Content-Encoding", "br"); status != 415 {
		t.Errorf("br: %d %s", status, answer)
	}
	if status, answer := r.ask("POST", "/a/_bulk", "", "Content-Encoding", "gzip"); status != 400 || !strings.Contains(answer, "request body is required") {
		t.Errorf("bulk: %d %s", status, answer)
	}
}

// A filter for some indices takes the writes whose every line goes there, however it is said, and lets all others pass as they came.
func TestQueueForSomeIndices(t *testing.T) {
	r := newRig(t, disk.Options{}, func(c *QueueConfig) { c.Index = conf.Strings{"logs-*", "audit"} })
	f := func(method, target, body string, taken bool, fields ...string) {
		t.Helper()
		passed := r.passed
		status, answer := r.ask(method, target, body, fields...)
		if status/100 != 2 || (r.passed == passed) != taken {
			t.Errorf("%s %s %q: %d %s, passed %t", method, target, body, status, answer, r.passed > passed)
		}
		if taken && r.passed == passed {
			r.messages(1)
		}
	}
	line := func(index string) string { return `{"index":{"_index":"` + index + `","_id":"1"}}` + "\n{}\n" }
	const bare = `{"index":{"_id":"1"}}` + "\n{}\n"
	f("PUT", "/logs-1/_doc/1", "{}", true)
	f("PUT", "/l%6fgs-1/_doc/1", "{}", true)
	f("PUT", "/other/_doc/1", "{}", false)
	f("DELETE", "/audit/_doc/1", "", true)
	f("POST", "/_bulk", line("logs-1")+line("audit"), true)
	f("POST", "/_bulk", line("logs-1")+line("other"), false)
	f("POST", "/_bulk", line(`\u006cogs-1`), true)
	f("POST", "/logs-1/_bulk", bare, true)
	f("POST", "/logs-1/_bulk", bare+line("other"), false)
	f("POST", "/other/_bulk", line("logs-1"), true)
	f("POST", "/other/_bulk", bare, false)
	f("POST", "/_bulk?index=logs-1", bare, true)
	f("POST", "/_bulk?index=other", bare, false)
	f("POST", "/other/_bulk?index=logs-1", bare, false)
	f("POST", "/_bulk?unknown=x", line("other"), false) // for the node to judge
	f("POST", "/_bulk", bare, false)                    // the same
	f("POST", "/_bulk", "", false)                      // the same
	f("POST", "/_bulk", line("logs-1")+"[]\n{}\n", false)

	gzipped := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
		return b.String()
	}
	f("POST", "/_bulk", gzipped(line("logs-1")), true, "Content-Encoding", "gzip")
	packed := gzipped(line("other"))
	x := flows.Explaining("POST", "/_bulk", "Content-Encoding", "gzip")
	x.Request.Body.Replace([]byte(packed))
	if err := r.filter.Serve(x, r); err != nil {
		t.Fatal(err)
	}
	if body, err := x.Request.Body.Bytes(1 << 10); err != nil || string(body) != packed {
		t.Errorf("what passes is %q, %v", body, err)
	}
}

// Where an action goes is said by its line or else by the URL, whatever the name looks like, and parameters hold for all.
func TestTargetsOfABulk(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	var body string
	names := []string{"b", ".ds-x", "<l-{now/d}>", "my.index.v1"}
	for _, name := range names {
		body += fmt.Sprintf("{\"create\":{\"_index\":%q,\"_id\":\"1\",\"_type\":\"t\",\"require_alias\":true}}\n{}\n", name)
	}
	body += "{\"create\":{\"_id\":\"1\"}}\n{}\n"
	status, answer := r.ask("POST", "/a/_bulk?pipeline=p", body)
	got := parse[struct{ Items []map[string]result }](t, answer)
	if status != 200 || len(got.Items) != len(names)+1 {
		t.Fatalf("%d %s", status, answer)
	}
	for i, name := range append(names, "a") {
		if index := got.Items[i]["create"].Index; index != name {
			t.Errorf("action %d is answered for %q, want %q", i, index, name)
		}
	}
	if m := r.messages(1)[0]; m.Target != "/a/_bulk?pipeline=p" || string(m.Body) != body {
		t.Errorf("%s with\n%s", m.Target, m.Body)
	}
}

// A small body may be a huge one.
func TestBulkThatUnpacksToTooMuch(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	f := r.filter.(*enqueuer)
	f.mostInflated = 1 << 20
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(bytes.Repeat([]byte("{\"delete\":{\"_id\":\"8\"}}\n"), 50000))
	_ = z.Close()
	if status, body := r.ask("POST", "/a/_bulk", zipped.String(), "Content-Encoding", "gzip"); status != 413 || !strings.Contains(body, "over 1048576 bytes when it is unpacked") {
		t.Errorf("%d %s", status, body)
	}
	if s := f.Queue.Stats(); s.Put != 0 {
		t.Errorf("%d messages in the queue", s.Put)
	}
}

// What a node refuses as a whole is refused before any of it is in the queue.
func TestBulkThatNodesRefuse(t *testing.T) {
	r := newRig(t, disk.Options{}, func(c *QueueConfig) { c.MaxBytes = 1 << 10 })
	long := strings.Repeat("{\"index\":{\"_index\":\"a\"}}\n{\"x\":\""+strings.Repeat("x", 600)+"\"}\n", 3)
	f := func(target, tail string, want int, reason string) {
		t.Helper()
		if status, body := r.ask("POST", target, long+tail); status != want || !strings.Contains(body, reason) {
			t.Errorf("%d %s, want %d %s", status, body, want, reason)
		}
	}
	f("/_bulk", "{\"index\":{}}\n{}\n", 400, "Validation Failed: 4: index is missing;")
	f("/_bulk", "{\"delete\":{\"_index\":\"a\"}}\n", 400, "Validation Failed: 4: id is missing;")
	f("/_bulk", "{\"index\":{}}\n{}", 400, "index is missing")
	f("/a/_bulk", "{\"index\":{}}\n{}", 400, "must be terminated by a newline")
	f("/a/_bulk", "{\"frobnicate\":{}}\n{}\n", 400, "Malformed action/metadata line [7]")
	f("/a/_bulk", "nothing\n", 400, "Malformed action/metadata line")
	f("/a/_bulk?colour=red", "", 400, "request [/a/_bulk] contains unrecognized parameter: [colour]")
	if status, body := r.ask("POST", "/a/_bulk", ""); status != 400 || !strings.Contains(body, "request body is required") {
		t.Errorf("%d %s", status, body)
	}
	if s := r.filter.(*enqueuer).Queue.Stats(); s.Put != 0 {
		t.Errorf("%d messages in the queue", s.Put)
	}
}

// What is wrong with a request whatever is in its documents is told by nodes before they write anything.
func TestRequestThatNodesRefuse(t *testing.T) {
	r := newRig(t, disk.Options{}, nil)
	const bulk, document, update = "{\"index\":{}}\n{}\n", `{"x":1}`, `{"doc":{}}`
	f := func(method, target, body string, want int, reason string, fields ...string) {
		t.Helper()
		if status, answer := r.ask(method, target, body, fields...); status != want || !strings.Contains(answer, reason) {
			t.Errorf("%s %s: %d %s, want %d %s", method, target, status, answer, want, reason)
		}
	}
	for _, media := range []string{"text/plain", "", "application/x-www-form-urlencoded", "*/*"} {
		f("POST", "/a/_bulk", bulk, 406, "Content-Type header ["+media+"] is not supported", "Content-Type", media)
		f("PUT", "/a/_doc/1", document, 406, "is not supported", "Content-Type", media)
	}
	f("POST", "/a/_bulk", bulk, 406, "as JSON only", "Content-Type", "application/yaml")
	f("POST", "/a/_bulk", "\n", 400, "Validation Failed: 1: no requests added;")
	f("POST", "/a/_bulk", "{\"index\":{\"foo\":\"b\"}}\n{}\n", 400, "Action/metadata line [1] contains an unknown parameter [foo]")
	f("POST", "/a/_bulk", bulk+"\n\n{\"update\":{\"_id\":\"1\",\"foo\":\"b\"}}\n{}\n", 400, "Action/metadata line [5] contains an unknown parameter [foo]")
	f("POST", "/a/_bulk", bulk+"{\"update\":{\"_id\":\"1\"}}\n{}\n", 400, "Validation Failed: 2: script or doc is missing;")
	f("POST", "/a/_bulk?refresh=maybe", bulk, 400, "Unknown value for refresh: [maybe].")
	f("POST", "/a/_bulk?timeout=5", bulk, 400, "failed to parse setting [timeout] with value [5] as a time value")
	f("POST", "/a/_bulk?wait_for_active_shards=foo", bulk, 400, "cannot parse ActiveShardCount[foo]")
	f("POST", "/a/_bulk?require_alias=foo", bulk, 400, "as only [true] or [false] are allowed")
	f("POST", "/a/_bulk?pretty=foo", bulk, 400, "as only [true] or [false] are allowed")
	f("POST", "/a/_bulk?op_type=index", bulk, 400, "unrecognized parameter: [op_type]")
	f("POST", "/a/_bulk?pipeline=", bulk, 400, "pipeline cannot be an empty string")
	f("POST", "/a/_doc", "", 400, "request body is required")
	f("PUT", "/a/_doc/1?op_type=foo", document, 400, "opType must be 'create' or 'index', found: [foo]")
	f("PUT", "/a/_create/1?op_type=index", document, 400, "opType must be 'create', found: [index]")
	f("PUT", "/a/_doc/1?version=abc", document, 400, "Failed to parse long parameter [version] with value [abc]")
	f("PUT", "/a/_doc/1?version_type=foo", document, 400, "No version type match [foo]")
	f("PUT", "/a/_doc/1?if_seq_no=-3", document, 400, "sequence numbers must be non negative")
	f("PUT", "/a/_doc/1?if_seq_no=3", document, 400, "Validation Failed: 1: ifSeqNo is set, but primary term is [0];")
	f("POST", "/a/_doc?version=5&version_type=external", document, 400, "create operations only support internal versioning")
	f("PUT", "/a/_doc/1?op_type=Create&if_seq_no=3&if_primary_term=1", document, 400, "create operations do not support compare and set")
	f("PUT", "/a/_doc/"+strings.Repeat("x", 513), document, 400, "is too long, must be no longer than 512 bytes but was: 513")
	f("PUT", "/a/_doc/1?_source=true", document, 400, "unrecognized parameter: [_source]")
	f("PUT", "/a/_doc/1?pipeline=", document, 400, "pipeline cannot be an empty string")
	f("DELETE", "/a/_doc/1?pipeline=p", "", 400, "unrecognized parameter: [pipeline]")
	f("POST", "/a/_update/1", "", 400, "Validation Failed: 1: script or doc is missing;")
	f("POST", "/a/_update/1", "{}", 400, "Validation Failed: 1: script or doc is missing;")
	f("POST", "/a/_update/1", document, 400, "[UpdateRequest] unknown field [x]")
	f("POST", "/a/_update/1?retry_on_conflict=x", update, 400, "Failed to parse int parameter [retry_on_conflict] with value [x]")
	if s := r.filter.(*enqueuer).Queue.Stats(); s.Put != 0 {
		t.Errorf("%d messages in the queue", s.Put)
	}
	f("POST", "/a/_bulk?timeout=1S&wait_for_active_shards=all&refresh&type=_doc", bulk, 200, "created",
		"Content-Type", "application/vnd.elasticsearch+x-ndjson;compatible-with=7")
	f("PUT", "/a/_doc/1?version=5&version_type=external_gte&timeout=-1", document, 201, "created", "Content-Type", "Application/JSON; charset=utf-8")
	f("POST", "/a/_update/1", "\xa1", 200, "updated", "Content-Type", "application/cbor")
	f("POST", "/a/_update/1?_source=true&doc_as_upsert=true", update, 200, "updated")
	f("DELETE", "/a/_doc/1", "", 200, "deleted", "Content-Type", "text/plain")
}

// manyActions returns a bulk of n actions of about 200 bytes.
func manyActions(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"index\":{\"_id\":\"%d\"}}\n{\"x\":%q}\n", i, strings.Repeat("x", 170))
	}
	return b.String()
}

func TestLongBulkIsSeveralMessages(t *testing.T) {
	r := newRig(t, disk.Options{}, func(c *QueueConfig) { c.MaxBytes = 1 << 10 })
	if status, body := r.ask("POST", "/a/_bulk", manyActions(12)); status != 200 || !strings.Contains(body, `"errors":false`) {
		t.Fatalf("%d %s", status, body)
	}
	var whole []byte
	for _, m := range r.messages(3) {
		if len(m.Body) > 1<<10 {
			t.Errorf("a message of %d bytes", len(m.Body))
		}
		whole = append(whole, m.Body...)
	}
	if string(whole) != manyActions(12) {
		t.Errorf("the messages are not the bulk:\n%s", whole)
	}
}

func TestActionThatIsTooLarge(t *testing.T) {
	r := newRig(t, disk.Options{MaxRecord: 1 << 10}, nil)
	large := "{\"index\":{\"_id\":\"large\"}}\n{\"x\":\"" + strings.Repeat("x", 2000) + "\"}\n"
	status, body := r.ask("POST", "/a/_bulk", large+manyActions(9))
	got := parse[struct {
		Errors bool
		Items  []map[string]result
	}](t, body)
	if status != 200 || !got.Errors || len(got.Items) != 10 || got.Items[0]["index"].Status != 413 {
		t.Fatalf("%d %s", status, body)
	}
	for _, i := range got.Items[1:] {
		if i["index"].Status != 201 {
			t.Errorf("%+v", i)
		}
	}
	if n := r.failed(); n != 1 {
		t.Errorf("%v messages are counted as failed, want the one that is not in the queue", n)
	}
	if status, body := r.ask("POST", "/a/_bulk", large); status != 413 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := r.ask("PUT", "/a/_doc/1", strings.Repeat("x", 2000)); status != 413 {
		t.Errorf("%d %s", status, body)
	}
}

// A full queue refuses as a full node does; of a bulk, what is in the queue is not refused, and nothing overtakes.
func TestFullQueue(t *testing.T) {
	r := newRig(t, disk.Options{MaxBytes: 16 << 10, MaxRecord: 2 << 10, BlockSize: 2 << 10}, func(c *QueueConfig) { c.MaxBytes = 1 << 10 })
	status, body := r.ask("POST", "/a/_bulk", manyActions(120))
	got := parse[struct {
		Errors bool
		Items  []map[string]result
	}](t, body)
	if status != 200 || !got.Errors || len(got.Items) != 120 {
		t.Fatalf("%d %s", status, body)
	}
	taken := 0
	for n, i := range got.Items {
		switch i["index"].Status {
		case 201:
			if taken++; taken != n+1 {
				t.Errorf("action %d is taken behind one that is not", n)
			}
		case 429:
		default:
			t.Errorf("%+v", i)
		}
	}
	if taken == 0 || taken == 120 {
		t.Errorf("%d of 120 are taken", taken)
	}
	for _, target := range []string{"/a/_bulk", "/a/_doc/1"} {
		const lines = 4
		for status, body = r.ask("PUT", target, manyActions(lines)); status < 300 && taken < 1000; status, body = r.ask("PUT", target, manyActions(lines)) {
			taken += lines
		}
		if status != 429 || !strings.Contains(body, "es_rejected_execution_exception") {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
	inQueue := 0
	for r.filter.(*enqueuer).Queue.Stats().Depth > 0 {
		b, err := r.blocks.Peek(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for record := range b.Records() {
			m, _ := message.Parse(record)
			var s bulk.Scanner
			for s.Reset(m.Body); s.Next(); {
				inQueue++
			}
		}
		_ = r.blocks.Advance()
	}
	if inQueue != taken {
		t.Errorf("%d actions in the queue, clients were told of %d", inQueue, taken)
	}
}

func TestSecretsStayOutOfTheQueue(t *testing.T) {
	r := newRig(t, disk.Options{}, func(c *QueueConfig) { c.RequestHeaders = conf.Strings{"X-Team"} })
	r.ask("PUT", "/a/_doc/1", "{}", "Authorization", "Basic c2VjcmV0", "Cookie", "sid=secret", "X-Api-Key", "secret", "es-secondary-authorization", "secret",
		"X-Unknown", "secret", "X-Team", "blue", "X-Opaque-Id", "42", "User-Agent", "bot (+http://ann:secret@h/)", "Content-Type", "application/json")
	if status, _ := r.ask("PUT", "/a/_doc/1?apikey=secret", "{}"); status != 400 {
		t.Errorf("a parameter that is none of the API: %d", status)
	}
	m := r.messages(1)[0]
	want := []message.Field{
		{Name: "X-Team", Value: "blue"},
		{Name: "X-Opaque-Id", Value: "42"},
		{Name: "User-Agent", Value: "bot (+http://***@h/)"},
		{Name: "Content-Type", Value: "application/json"},
	}
	if diff := cmp.Diff(want, m.Fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

// Nodes refuse a request that has Content-Type, X-Opaque-Id or User-Agent twice, long after its client was told that it is done.
func TestFieldsThatAreKeptAnywayAreKeptOnce(t *testing.T) {
	r := newRig(t, disk.Options{}, func(c *QueueConfig) {
		c.RequestHeaders = conf.Strings{"X-Team", "x-team"}
		for _, name := range keptFields {
			c.RequestHeaders = append(c.RequestHeaders, strings.ToUpper(name))
		}
	})
	var sent []string
	want := []message.Field{{Name: "X-Team", Value: "blue"}, {Name: "X-Team", Value: "red"}}
	for _, name := range keptFields {
		value := jsonField.Value
		if name == "content-encoding" {
			value = "identity"
		}
		sent = append(sent, name, value)
		want = append(want, message.Field{Name: name, Value: value})
	}
	sent = append([]string{"X-Team", "blue", "X-Team", "red"}, sent...)
	if status, body := r.ask("PUT", "/a/_doc/1", "{}", sent...); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if diff := cmp.Diff(want, r.messages(1)[0].Fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestConfigurationThatCannotWork(t *testing.T) {
	f := func(c QueueConfig, want string) {
		t.Helper()
		p := new(conf.Problems)
		b := flows.NewBuilder(flows.NewRegistry(), p)
		b.Provide("queues", "default", queue.Opener(new(queuetest.Queues)), nil)
		Queue().Build(b, c)
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(QueueConfig{QueueName: "a/b"}, `queue name "a/b"`)
	f(QueueConfig{QueueName: "a", RequestHeaders: conf.Strings{"Authorization"}}, "never put into a queue")
	f(QueueConfig{QueueName: "a", RequestHeaders: conf.Strings{"Connection"}}, "about a connection")
	f(QueueConfig{QueueName: "a", RequestHeaders: conf.Strings{"Content-Length"}}, "follows from the body")
	f(QueueConfig{QueueName: "a", RequestHeaders: conf.Strings{"a b"}}, "not the name")
}

func TestStopWithoutStart(*testing.T) {
	new(enqueuer).Stop()
	new(retryLimiter).Stop()
}
