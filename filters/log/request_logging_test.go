package log

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
	"weir/queue/queuetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite the golden files")

// started is a filter at work.
type started struct {
	*requestLogging
	metrics *obs.Metrics
	queue   queue.Queue
	blocks  queue.Consumer
}

func start(tb testing.TB, q *queuetest.Queues, c RequestLoggingConfig) *started {
	tb.Helper()
	c.QueueName = "requests"
	if c.Sample == 0 {
		c.Sample = 100
	}
	p := new(conf.Problems)
	b := flows.NewBuilder(flows.NewRegistry(), p)
	b.Provide("queues", "default", q, nil)
	f, _ := RequestLogging().Build(b, c).(*requestLogging)
	if err := p.Err(); err != nil {
		tb.Fatal(err)
	}
	s := &started{requestLogging: f, metrics: obs.NewMetrics()}
	if err := f.Start(&flows.Runtime{Metrics: s.metrics, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.Stop)
	var err error
	if s.queue, err = q.Open("requests"); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.queue.Close() })
	consumers, err := s.queue.Consumers(1)
	if err != nil {
		tb.Fatal(err)
	}
	s.blocks = consumers[0]
	return s
}

// handler is the end of a chain.
type handler func(x *flows.Exchange) error

func (h handler) Serve(x *flows.Exchange) error { return h(x) }

var end = handler(func(*flows.Exchange) error { return nil })

// records serves the exchanges and returns the records that came of them.
func (s *started) records(t *testing.T, next flows.Handler, xs ...*flows.Exchange) [][]byte {
	t.Helper()
	for _, x := range xs {
		_ = s.Serve(x, next)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.queue.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for len(out) < len(xs) {
		block, err := s.blocks.Peek(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for r := range block.Records() {
			out = append(out, bytes.Clone(r))
		}
		if err := s.blocks.Advance(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// record returns the fields of the record of x, flattened to dotted names.
func (s *started) record(t *testing.T, next flows.Handler, x *flows.Exchange) map[string]any {
	t.Helper()
	line := s.records(t, next, x)[0]
	var o map[string]any
	if err := json.Unmarshal(line, &o); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	flat := map[string]any{}
	flatten(flat, "", o)
	return flat
}

func flatten(into map[string]any, prefix string, o map[string]any) {
	for k, v := range o {
		if inner, ok := v.(map[string]any); ok {
			flatten(into, prefix+k+".", inner)
			continue
		}
		into[prefix+k] = v
	}
}

func (s *started) count(t *testing.T, outcome string) float64 {
	t.Helper()
	all, err := s.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == "weir_log_records_total" && m.GetLabel()[0].GetValue() == outcome {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no series for %s", outcome)
	return 0
}

// snapshot returns an exchange as a tracing flow gets it, with all that a record can hold.
func snapshot() *flows.Exchange {
	x := flows.Explaining("POST", "/logs-1,%3Clogs-%7Bnow%2Fd%7D%3E/_search?size=1&token=s3cret", "Host", "gw:8000",
		"User-Agent", `curl/8 "x"`, "X-Opaque-Id", "job-7;kibana:dashboard:sales", "X-Tenant", "t-1",
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	x.Tracing = true
	x.Start = time.Date(2024, 2, 29, 23, 59, 59, 7_000_000, time.UTC)
	x.Entry = "es"
	x.Request.Peer = netip.MustParseAddrPort("192.0.2.7:40000")
	x.Request.ClientIP = x.Request.Peer.Addr()
	x.Request.User = []byte("elastic")
	x.Request.Body.Replace([]byte(`{"query":{"match":{"a":"b"}}}`))
	x.Response.Body.Replace([]byte(`{"took":1}`))
	x.Response.Status = 502
	x.RequestBytes, x.ResponseBytes, x.WriteTime = 29, 100, 5000
	x.Trace = flows.Trace{
		Outcome: flows.Failed, Flow: "cache_first", Cache: []byte("weir; fwd=miss"), Limit: "search", Cluster: "default",
		Node: "10.0.0.1:9200", Attempts: 2, Queued: 1000, Connect: 2000, FirstByte: 3000, Upstream: 4000,
		Err: &elastic.Error{Status: 502, Type: "bad_gateway_exception", Reason: "the answer broke off", Cause: io.ErrUnexpectedEOF},
	}
	return x
}

// everything is a configuration with which records hold all that they can.
var everything = RequestLoggingConfig{
	RequestBody: 1024, ResponseBody: 1024, Shapes: true, Sample: 10, Slow: 1, RequestHeaders: []string{"X-Tenant"},
}

var volatile = regexp.MustCompile(`"id":"[0-9A-Z]{26}"|"duration":[0-9]+`)

func TestRecordOfEverything(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), everything)
	line := s.records(t, end, snapshot())[0]
	got := volatile.ReplaceAllFunc(line, func(m []byte) []byte {
		if bytes.HasPrefix(m, []byte(`"id"`)) {
			return []byte(`"id":"01HQVWXYZ0000000000000000A"`)
		}
		return []byte(`"duration":1`)
	})
	got = append(got, '\n')
	const golden = "testdata/record.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

// TestThePageIsTrue holds that docs/records.md has the fields of a record.
func TestThePageIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/records.md")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), everything)
	var described []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllSubmatch(page, -1) {
		described = append(described, string(m[1]))
	}
	slices.Sort(described)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(s.record(t, end, snapshot()))), described); diff != "" {
		t.Errorf("fields (-record +page):\n%s", diff)
	}
}

func TestRecordOfAPlainExchange(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	x := flows.Explaining("GET", "/")
	x.Tracing = true
	x.Response.Status = 200
	got := s.record(t, end, x)
	for _, volatile := range []string{"@timestamp", "event.id", "event.duration"} {
		if got[volatile] == nil {
			t.Errorf("no %s", volatile)
		}
		delete(got, volatile)
	}
	want := map[string]any{
		"event.kind": "event", "event.outcome": "success", "http.version": "1.1", "http.request.method": "GET",
		"http.request.bytes": 18.0, "http.request.body.bytes": 0.0, "http.response.status_code": 200.0, "http.response.bytes": 0.0,
		"url.path": "/", "elasticsearch.api": "info", "elasticsearch.class": "inspect", "weir.outcome": "local", "weir.write": 0.0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestClientGone(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	x := snapshot()
	x.Trace.Outcome = flows.ClientGone
	got := s.record(t, end, x)
	if got["http.response.status_code"] != 499.0 || got["event.outcome"] != "unknown" {
		t.Errorf("status %v, outcome %v; want 499, unknown", got["http.response.status_code"], got["event.outcome"])
	}
}

func TestOrdinaryFlow(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	failing := handler(func(*flows.Exchange) error { return elastic.Errorf(429, "too_many", "slow down") })
	x := flows.Explaining("GET", "/a/_search")
	if err := s.Serve(x, failing); err == nil {
		t.Error("the error did not come through")
	}
	got := s.record(t, failing, flows.Explaining("GET", "/a/_search"))
	if got["http.response.status_code"] != 429.0 || got["error.type"] != "too_many" || got["event.outcome"] != "failure" {
		t.Errorf("record of a refused exchange: %v", got)
	}
}

func TestErrorOfATracingFlowIsNotTheExchanges(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	x := flows.Explaining("GET", "/")
	x.Tracing, x.Response.Status = true, 200
	got := s.record(t, handler(func(*flows.Exchange) error { return io.ErrNoProgress }), x)
	if got["http.response.status_code"] != 200.0 || got["error.type"] != nil {
		t.Errorf("record: %v", got)
	}
}

func TestSource(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	f := func(peer, client, ip string, port any) {
		t.Helper()
		x := flows.Explaining("GET", "/")
		x.Request.Peer, x.Request.ClientIP = netip.MustParseAddrPort(peer), netip.MustParseAddr(client)
		got := s.record(t, end, x)
		if got["source.ip"] != ip || got["source.port"] != port {
			t.Errorf("%s through %s: %v, %v; want %v, %v", client, peer, got["source.ip"], got["source.port"], ip, port)
		}
	}
	f("192.0.2.7:4000", "192.0.2.7", "192.0.2.7", 4000.0)
	f("192.0.2.7:4000", "198.51.100.1", "198.51.100.1", nil) // the port is the proxy's
	f("[2001:db8::1]:4000", "::ffff:192.0.2.7", "192.0.2.7", nil)
	f("[fe80::1%eth0]:4000", "fe80::1%eth0", "fe80::1", 4000.0)
}

func TestCauseIsRedacted(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	x := snapshot()
	x.Trace.Err = x.Trace.Err.Because(errors.New("dial http://u:s3cret@h: refused"))
	if got, want := s.record(t, end, x)["error.message"], "the answer broke off: dial http://***@h: refused"; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestStopClosesTheQueue(t *testing.T) {
	q := queuetest.New(t, nil, nil, disk.Options{})
	s := start(t, q, RequestLoggingConfig{})
	if err := s.queue.Close(); err != nil { // the test's own handle
		t.Fatal(err)
	}
	s.Stop()
	s.Stop()
	if open := q.Manager.Stats(); len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
}

func TestIDsAreUnique(t *testing.T) {
	q := queuetest.New(t, nil, nil, disk.Options{})
	seen := map[string]bool{}
	for range 2 { // as after a reload
		s := start(t, q, RequestLoggingConfig{})
		var xs []*flows.Exchange
		for range 100 {
			xs = append(xs, snapshot())
		}
		for _, line := range s.records(t, end, xs...) {
			var r struct{ Event struct{ ID string } }
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatal(err)
			}
			if seen[r.Event.ID] || len(r.Event.ID) != 26 {
				t.Fatalf("id %q", r.Event.ID)
			}
			seen[r.Event.ID] = true
		}
	}
}

func TestSecretsAreHidden(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{RequestBody: 1 << 10})
	f := func(x *flows.Exchange, field string, want any) {
		t.Helper()
		x.Tracing = true
		got := s.record(t, end, x)
		if got[field] != want {
			t.Errorf("%s of %s: %v, want %v", field, x.Request.Target, got[field], want)
		}
	}
	get := func(target string, header ...string) *flows.Exchange {
		return flows.Explaining("GET", target, header...)
	}
	f(get("/_search?token=s3cret"), "url.query", "token=***")
	f(get("/_search?a=1&JWT=s3cret&b=2"), "url.query", "a=1&JWT=***&b=2")
	f(get("/_search?%74oken=s3cret"), "url.query", "%74oken=***")
	f(get("/_search?session=s3cret&key=s3cret&x-auth=s3cret"), "url.query", "session=***&key=***&x-auth=***")
	f(get("/_search?X-Amz-Signature=s3cret&my_jwt=s3cret&api_key=s3cret&Session-Id=s3cret"), "url.query",
		"X-Amz-Signature=***&my_jwt=***&api_key=***&Session-Id=***")
	f(get("/_search?"+strings.Repeat("n", 65)+"=s3cret"), "url.query", strings.Repeat("n", 65)+"=***")
	f(get("/_search?preference=a&routing=b&scroll_id=c&keyword=d&tokens=e"), "url.query", "preference=a&routing=b&scroll_id=c&keyword=d&tokens=e")
	f(get("/_search?aws_secret_access_key=s3cret&passcode=s3cret&otp=s3cret&max_tokens=5"), "url.query",
		"aws_secret_access_key=***&passcode=***&otp=***&max_tokens=5")
	f(get("/_search?a=1;token=s3;cret&b"), "url.query", "a=1;token=***&b")
	f(get("/_search?token&q=token"), "url.query", "token&q=token")
	f(get("/_search?url=http://u:s3cret@h/"), "url.query", "url=http://***@h/")
	f(get("/_search?q=http%3A%2F%2Fu%3As3cret%40h%2F&b=1"), "url.query", "q=http%3A%2F%2F***%40h%2F&b=1")
	f(get("/_search?url=http://h&token=s3@cret"), "url.query", "url=http://h&token=***")
	f(get("/_search?url=http://u:s3;token=cret@h"), "url.query", "url=http://***@h")
	f(get("/_search?url=http://h/?token=s3cret&a=?"), "url.query", "url=http://h/?token=***&a=?")
	f(get("/_search?source=%7B%22password%22%3A%22s3cret%22%7D&source_content_type=a&_source=b"), "url.query",
		"source=***&source_content_type=a&_source=b")
	f(get("/http:%2F%2Fu:s3cret@h/"), "url.path", "/http:%2F%2F***@h/")
	f(get("/", "X-Opaque-Id", "http://u:s3cret@h"), "elasticsearch.http.request.x_opaque_id", "http://***@h")
	known := get("/", "X-Opaque-Id", "a;http://u:s3cret@h")
	known.Request.User = []byte("ann")
	f(known, "weir.caller.context", "http://***@h")
	f(get("/http://u:s3cret@h/"), "url.path", "/http://***@h/")
	f(get("/", "User-Agent", "bot (+https://u:s3cret@h/)"), "user_agent.original", "bot (+https://***@h/)")
	f(get("/", "Authorization", "Basic s3cret"), "http.request.body.content", nil)

	post := func(target, body string, header ...string) *flows.Exchange {
		x := flows.Explaining("POST", target, header...)
		x.Request.Body.Replace([]byte(body))
		return x
	}
	const content = "http.request.body.content"
	f(post("/_search", `{"a":1}`), content, `{"a":1}`)
	f(post("/_security/user/u", `{"password":"s3cret"}`), content, nil)
	f(post("/_reindex", `{"source":{"remote":{"password":"s3cret"}}}`), content, nil)
	f(post("/_search", "\x1f\x8b\x08", "Content-Encoding", "gzip"), content, nil)
	f(post("/_search", `"`+strings.Repeat("x", 1010)+` http://u:s3cret@h"`), content, nil) // no object
	const object = `{"a":"`
	long := strings.Repeat("x", 1010-len(object))
	f(post("/_search", object+long+` http://u:s3cret@h"}`), content, object+long+" http://")
	f(post("/_search", `{"a":"http:\/\/u:s3cret@h"}`), content, `{"a":"http:\/\/***@h"}`)
	f(post("/_search", object+long+` http:\/\/u:s3cret@h"}`), content, object+long+` http:\/\/`)
	for _, target := range []string{
		"/_connector/_secret", "/_plugins/_alerting/destinations", "/_plugins/_ml/connectors/_create", "/_license", "/_snapshot/r",
		"/_nodes/reload_secure_settings", "/_plugins/_query/_datasources", "/_plugins/_flow_framework/workflow", "/_unheard/of",
	} {
		f(post(target, `{"value":"s3cret"}`), content, nil)
	}
	f(post("/i/_unheard", `{"a":1}`), content, `{"a":1}`)
	f(post("/_search", `{"password":"s3cret","a":1}`), content, `{"password":"***","a":1}`)
}

func TestParametersInHeadersAreHidden(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{RequestHeaders: []string{"Referer"}})
	f := func(referer, want string) {
		t.Helper()
		got, _ := s.record(t, end, flows.Explaining("GET", "/", "Referer", referer))["weir.headers"].([]any)
		if len(got) != 1 || got[0] != "referer: "+want {
			t.Errorf("%s: %v, want %s", referer, got, want)
		}
	}
	f("http://h/?token=s3cret&a=1", "http://h/?token=***&a=1")
	f("http://h/?a=1#access_token=s3cret", "http://h/?a=1#access_token=***")
	f("http://u:s3cret@h/?password=s3cret", "http://***@h/?password=***")
	f("http://u:s3?cret@h/", "http://***@h/")
	f("http://h/app#/dashboards", "http://h/app#/dashboards")
}

func TestHeaderSecretsStayOut(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	x := flows.Explaining("GET", "/", "Authorization", "ApiKey s3cret", "Cookie", "s3cret", "es-secondary-authorization", "s3cret")
	if line := s.records(t, end, x)[0]; bytes.Contains(line, []byte("s3cret")) {
		t.Errorf("a secret in %s", line)
	}
}

func TestFullQueueIsCounted(t *testing.T) {
	// A block of one record, and a disk that is given no chance to be faster than a loop is slow.
	s := start(t, queuetest.New(t, nil, nil, disk.Options{MaxBytes: 16 << 10, BlockSize: 2 << 10, MaxRecord: 2 << 10}), RequestLoggingConfig{})
	for range 2000 {
		if err := s.Serve(snapshot(), end); err != nil {
			t.Fatal(err)
		}
	}
	if queued, refused := s.count(t, "queued"), s.count(t, "refused"); refused == 0 || queued == 0 || queued+refused != 2000 {
		t.Errorf("%v queued, %v refused of 2000", queued, refused)
	}
}

func TestTooLargeIsCounted(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{MaxRecord: 100}), RequestLoggingConfig{})
	_ = s.Serve(snapshot(), end)
	if got := s.count(t, "failed"); got != 1 {
		t.Errorf("%v failed, want 1", got)
	}
}

func TestMetricNames(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	if err := errors.Join(obs.CheckNames(s.metrics.Describe()), s.metrics.Err()); err != nil {
		t.Error(err)
	}
}

func TestBadQueueNames(t *testing.T) {
	p := new(conf.Problems)
	b := flows.NewBuilder(flows.NewRegistry(), p)
	b.Provide("queues", "default", new(queuetest.Queues), nil)
	if f := RequestLogging().Build(b, RequestLoggingConfig{QueueName: "a/b"}); f != nil || !p.HasErrors() {
		t.Errorf("built %v with problems %v", f, p.Err())
	}
}

func TestExamplesLoad(t *testing.T) {
	reg := flows.NewRegistry()
	flows.Register(reg, RequestLogging())
	for _, e := range RequestLogging().Examples {
		list, p := conf.Parse("example.yml", "- name: main\n  filter:\n  "+e.YAML, nil)
		b := flows.NewBuilder(reg, p)
		b.Provide("queues", "default", new(queuetest.Queues), nil)
		b.Define(list)
		if err := p.Err(); err != nil {
			t.Errorf("%s: %v", e.Title, err)
		}
	}
}

func TestStopWithoutStart(*testing.T) { new(requestLogging).Stop() }

func TestTraceID(t *testing.T) {
	f := func(parent, want string) {
		t.Helper()
		if got, _ := traceOf([]byte(parent)); string(got) != want {
			t.Errorf("%q: %q, want %q", parent, got, want)
		}
	}
	const id = "0af7651916cd43dd8448eb211c80319c"
	f("00-"+id+"-b7ad6b7169203331-01", id)
	f("01-"+id+"-b7ad6b7169203331-01-more", id)
	f("00-"+id+"-b7ad6b7169203331-01-more", "")
	f("00-"+id+"-b7ad6b7169203331-0", "")
	f("ff-"+id+"-b7ad6b7169203331-01", "")
	f("00-"+strings.ToUpper(id)+"-b7ad6b7169203331-01", "")
	f("00-"+strings.Repeat("0", 32)+"-b7ad6b7169203331-01", "")
	f("00-"+id+"-0000000000000000-01", "")
	f("00-"+id+"_b7ad6b7169203331-01", "")
	f("", "")
}

func TestAppendText(t *testing.T) {
	f := func(in string, limit int, want string) {
		t.Helper()
		if got := string(appendText(nil, []byte(in), limit)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	f("", 9, `""`)
	f("a\"b\\c", 9, `"a\"b\\c"`)
	f("\x00\n\t\x1f\x7f", 9, "\"\\u0000\\n\\u0009\\u001f\x7f\"")
	f("größe", 99, `"größe"`)
	f("a\xff\xc3", 99, "\"a\uFFFD\uFFFD\"")
	f("\uFFFD", 99, "\"\uFFFD\"")
	f("größe", 3, `"gr"`)
	f("größe", 4, `"grö"`)
	f("abc\U0001F600", 6, `"abc"`)
	f("\x80\x80\x80\x80\x80", 4, "\"\uFFFD\uFFFD\uFFFD\uFFFD\"")
}

func FuzzRecord(f *testing.F) {
	f.Add("/a/_search", "q=x&token=y", "ua", []byte(`{"a":"ü"}`), "weir; hit")
	f.Add("/%zz/\xff", ";&=%", "\x00\"\\", []byte("\xff\xfe\n"), "\r\n")
	f.Add("/http://u:p@h/", "jwt=%", "http://", []byte("://@"), "")
	var n ids
	n.begin()
	e := new(encoder)
	f.Fuzz(func(t *testing.T, path, query, agent string, body []byte, cache string) {
		x := flows.Explaining("GET", path+"?"+query, "User-Agent", agent, "X-Opaque-Id", query, "traceparent", agent)
		x.Tracing = len(path)%2 == 0
		x.Request.Body.Replace(body)
		x.Response.Body.Replace(body)
		x.Request.User = []byte(agent)
		x.Trace = flows.Trace{Attempts: 1, Flow: path, Cluster: agent, Cache: []byte(cache), Err: elastic.Errorf(500, path, "%s", query)}
		line := e.record(x, x.Trace.Err, &n, &settings{RequestLoggingConfig: RequestLoggingConfig{RequestBody: 64, ResponseBody: 8, Shapes: true}}, 0.5)
		if !json.Valid(line) || !utf8.Valid(line) || bytes.IndexByte(line, '\n') >= 0 {
			t.Fatalf("not one line of JSON: %q", line)
		}
	})
}

func TestRecordDoesNotAllocate(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), everything)
	x := snapshot()
	x.Trace.Err = nil
	n := testing.AllocsPerRun(1000, func() { _ = s.Serve(x, end) })
	if n > 0 && !raced {
		t.Errorf("%v allocations a record, want 0", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	x := snapshot()
	x.Trace.Err = nil
	var n ids
	n.begin()
	e := new(encoder)
	c := &settings{RequestLoggingConfig: RequestLoggingConfig{Shapes: true}}
	b.ReportAllocs()
	for b.Loop() {
		e.record(x, nil, &n, c, 1)
	}
}

// The time of a record is what the library makes of it, whatever the encoder keeps from the one before.
func TestTimeOfARecord(t *testing.T) {
	e := new(encoder)
	rapid.Check(t, func(rt *rapid.T) {
		at := time.UnixMilli(rapid.OneOf(rapid.Int64Range(-1<<40, 1<<50), rapid.Int64Range(1709251199000, 1709251202000)).Draw(rt, "time")).
			Add(time.Duration(rapid.IntRange(0, 999_999).Draw(rt, "rest")))
		e.buf = e.buf[:0]
		e.time(at)
		if want := at.UTC().Format("2006-01-02T15:04:05.000Z"); string(e.buf) != want {
			rt.Fatalf("%s, want %s", e.buf, want)
		}
	})
}

// BenchmarkPlainRecord is a record of what a gateway answers by itself, on its way into the queue.
func BenchmarkPlainRecord(b *testing.B) {
	s := start(b, queuetest.New(b, nil, nil, disk.Options{Full: disk.DropOldest, Sync: disk.SyncNever}), RequestLoggingConfig{Shapes: true})
	x := flows.Explaining("GET", "/", "Host", "bench")
	x.Tracing, x.Start, x.Entry = true, time.Now(), "bench"
	x.Request.Peer = netip.MustParseAddrPort("127.0.0.1:40000")
	x.Request.ClientIP = x.Request.Peer.Addr()
	x.Response.Status = 200
	x.Response.Body.Replace([]byte("{}"))
	x.Trace.Flow = "bench"
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Serve(x, end)
	}
}
