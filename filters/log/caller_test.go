package log

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
	"weir/queue/queuetest"
)

func TestCaller(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{})
	f := func(change func(r *flows.Request), kind, id any, header ...string) {
		t.Helper()
		x := flows.Explaining("GET", "/", header...)
		change(&x.Request)
		got := s.record(t, end, x)
		if got["weir.caller.kind"] != kind || got["weir.caller.id"] != id {
			t.Errorf("%v %v, want %v %v", got["weir.caller.kind"], got["weir.caller.id"], kind, id)
		}
	}
	addr := func(r *flows.Request) { r.ClientIP = netip.MustParseAddr("::ffff:192.0.2.7") }
	cert := func(r *flows.Request) {
		addr(r)
		r.Cert = &x509.Certificate{Subject: pkix.Name{CommonName: "shipper-3"}}
	}
	key := base64.StdEncoding.EncodeToString([]byte("key-7:s3cret"))
	f(func(*flows.Request) {}, nil, nil)
	f(addr, "address", "192.0.2.7")
	f(cert, "certificate", "shipper-3")
	f(cert, "api_key", "key-7", "Authorization", "apikey "+key)
	f(addr, "address", "192.0.2.7", "Authorization", "ApiKey !"+key)
	f(addr, "address", "192.0.2.7", "Authorization", "Bearer "+key)
	f(func(r *flows.Request) { r.User = []byte("ann"); addr(r) }, "user", "ann", "Authorization", "ApiKey "+key)
}

func TestFamily(t *testing.T) {
	f := func(agent, want string) {
		t.Helper()
		if got := string(appendFamily(nil, []byte(agent))); got != want {
			t.Errorf("%q: %q, want %q", agent, got, want)
		}
	}
	f("curl/8.5", "curl")
	f("Elasticsearch-Py/8.1 (Python/3.12)", "elasticsearch-py")
	f("Go-http-client/1.1", "go-http-client")
	f("Mozilla/5.0 (X11; Linux) Chrome/120", "browser")
	f("Kibana", "kibana")
	f("opensearch-js(2.5)", "opensearch-js")
	f("/1", "unknown")
	f(strings.Repeat("x", 99), strings.Repeat("x", maxFamily))
}

// TestFingerprint holds that searches have one fingerprint if they differ in values only.
func TestFingerprint(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{Shapes: true})
	of := func(target, body string, header ...string) (any, any) {
		x := flows.Explaining("POST", target, header...)
		x.Request.Body.Replace([]byte(body))
		got := s.record(t, end, x)
		return got["weir.query.fingerprint"], got["weir.query.shape"]
	}
	one, shape := of("/a/_search", `{"query":{"term":{"user":"ann"}},"size":1}`)
	if shape != `{"query":{"term":{"user":?}},"size":?}` {
		t.Errorf("shape %v", shape)
	}
	if two, _ := of("/b/_search", ` {"size":20, "query":{"term":{"user":"bob"}}}`); two != one || len(one.(string)) != 16 {
		t.Errorf("fingerprints %v and %v", one, two)
	}
	if other, _ := of("/a/_count", `{"query":{"term":{"user":"ann"}},"size":1}`); other == one {
		t.Error("another API has the same fingerprint")
	}
	if _, shape := of("/_msearch", "{}\n{\"size\":1}\n{\"index\":\"b\"}\n{\"size\":2}\n{}\n{\"from\":3}\n"); shape != "{\"size\":?}\n{\"from\":?}" {
		t.Errorf("shape of an msearch: %q", shape)
	}
	if _, shape := of("/a/_search", ""); shape != "{}" {
		t.Errorf("shape of a search without a body: %v", shape)
	}
	for _, none := range [][3]string{
		{"/a/_doc/1", `{"a":1}`}, {"/a/_search", `{"a":`}, {"/a/_search", `{"a":"` + strings.Repeat("x", maxShaped) + `"}`}, {"/_msearch", "{}\n{\n"},
	} {
		if id, _ := of(none[0], none[1]); id != nil {
			t.Errorf("%s %.20s has the fingerprint %v", none[0], none[1], id)
		}
	}
	if id, _ := of("/a/_search", `{"a":1}`, "Content-Encoding", "gzip"); id != nil {
		t.Errorf("a compressed body has the fingerprint %v", id)
	}
}

func TestSampling(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{}), RequestLoggingConfig{Sample: 10, Slow: conf.Duration(time.Hour)})
	serve := func(status int, parent string) *flows.Exchange {
		x := flows.Explaining("GET", "/", "traceparent", parent)
		x.Tracing, x.Response.Status = true, status
		_ = s.Serve(x, end)
		return x
	}
	const n = 5000
	for range n {
		serve(200, "")
	}
	// Five deviations of a binomial distribution are 106.
	if got := s.count(t, "queued"); got < n/10-110 || got > n/10+110 || got+s.count(t, "skipped") != n {
		t.Errorf("%v of %d were recorded, %v skipped", got, n, s.count(t, "skipped"))
	}
	before := s.count(t, "queued")
	for range 50 {
		serve(429, "")
	}
	slow := flows.Explaining("GET", "/")
	slow.Response.Status, slow.Start = 200, time.Now().Add(-2*time.Hour)
	_ = s.Serve(slow, end)
	if got := s.count(t, "queued") - before; got != 51 {
		t.Errorf("%v of 51 that failed or were slow were recorded", got)
	}
	for n := range 20 { // of each trace all or none
		before := s.count(t, "queued")
		for range 10 {
			serve(200, "00-0af7651916cd43dd8448eb211c8031"+string("0123456789"[n/10])+string("0123456789"[n%10])+"-b7ad6b7169203331-01")
		}
		if got := s.count(t, "queued") - before; got != 0 && got != 10 {
			t.Errorf("%v of the 10 exchanges of a trace were recorded", got)
		}
	}
}

// slowDisk is a queue whose records never reach the disk.
type slowDisk struct{ queue.Queue }

func (slowDisk) PutSync(ctx context.Context, _ []byte) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestAuditHoldsTheAnswerBack(t *testing.T) {
	s := start(t, queuetest.New(t, nil, nil, disk.Options{BlockAge: time.Hour}), RequestLoggingConfig{Audit: true, AuditWait: conf.Duration(20 * time.Second)})
	answered := handler(func(x *flows.Exchange) error { x.Response.Status = 200; return nil })
	if err := s.Serve(flows.Explaining("PUT", "/a/_doc/1"), answered); err != nil {
		t.Fatal(err)
	}
	if n := s.queue.Stats(); n.Records != 1 || n.OpenRecords != 0 {
		t.Errorf("when the answer leaves %d records are on disk and %d are not", n.Records, n.OpenRecords)
	}

	s.requestLogging.Queue = slowDisk{s.requestLogging.Queue}
	s.config.AuditWait = conf.Duration(time.Millisecond)
	x := flows.Explaining("PUT", "/a/_doc/1")
	err := s.Serve(x, answered)
	if e := elastic.AsError(err); e == nil || e.Status != 503 || e.Type != "audit_exception" || !errors.Is(err, errAuditWait) {
		t.Errorf("an exchange without a record: %v", err)
	}
	x.Tracing = true
	if err := s.Serve(x, answered); err != nil {
		t.Errorf("a client that has its answer: %v", err)
	}
	if got := s.count(t, "failed"); got != 2 {
		t.Errorf("%v failed, want 2", got)
	}
}

func TestTraceContext(t *testing.T) {
	f := func(parent string, kept bool) {
		t.Helper()
		x := flows.Explaining("GET", "/", "Traceparent", parent)
		var during []byte
		_ = traceContext{}.Serve(x, handler(func(x *flows.Exchange) error {
			during = x.Request.Header.Get("traceparent")
			return nil
		}))
		if trace, span := traceOf(during); trace == nil || span == nil || (string(during) == parent) != kept || x.Request.Header.Len() != 1 {
			t.Errorf("%q became %q in %d fields", parent, during, x.Request.Header.Len())
		}
	}
	f("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true)
	f("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false)
	f("", false)
}

func TestRefusedParameters(t *testing.T) {
	f := func(c RequestLoggingConfig, want string) {
		t.Helper()
		c.QueueName = "requests"
		p := new(conf.Problems)
		b := flows.NewBuilder(flows.NewRegistry(), p)
		b.Provide("queues", "default", new(queuetest.Queues), nil)
		RequestLogging().Build(b, c)
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	f(RequestLoggingConfig{Redact: []string{"a..b"}}, `"a..b" is not a path`)
	f(RequestLoggingConfig{RequestHeaders: []string{"x y"}}, `"x y" is not the name`)
	f(RequestLoggingConfig{RequestHeaders: []string{"Cookie"}}, "Cookie carries credentials")
	f(RequestLoggingConfig{RequestHeaders: []string{"X-My-Token"}}, "X-My-Token carries credentials")
	if obs.RedactHeader("X-Tenant", "x") != "x" {
		t.Error("a plain field is taken for a secret")
	}
}
