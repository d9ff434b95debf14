package pipeline

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/elastic"
	"weir/elastic/estest"
	"weir/filters"
	"weir/flows"
	"weir/internal/conf"
	"weir/queue/message"
)

// writes puts a flow into force that is called writes.
func (r *rig) writes(filter string) {
	r.t.Helper()
	root, p := conf.Parse("flow.yml", "elasticsearch: [{name: default, endpoint: \""+r.url+"\"}]\nflow: [{name: writes, filter: ["+filter+"]}]", nil)
	b := flows.NewBuilder(filters.Registry(), p)
	for name, c := range elastic.DecodeClusters(root.Get("elasticsearch"), p) {
		b.Provide("elasticsearch", name, c, nil)
	}
	b.Provide("queues", "default", Queues(r.queues), nil)
	b.Define(root.Get("flow"))
	if err := p.Err(); err != nil {
		r.t.Fatal(err)
	}
	g := b.Generation(1, nil, &flows.Runtime{Metrics: r.env.Metrics, Logger: r.env.Logger, Budget: flows.NewBudget(64 << 20)}, flows.NewKeeper())
	if err := g.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		g.Retire()
		<-g.Drained()
	})
	r.env.Flows = func() *flows.Generation { return g }
}

const toCluster = "{elasticsearch: {elasticsearch: default}}"

// replay starts the consumer; params are further parameters in YAML.
func (r *rig) replay(params string) *Running {
	r.t.Helper()
	return r.run(r.planOf("queue_consumer: {input_queue: requests, flow: writes" + params + "}"))
}

// write returns a request as it lies in the queue.
func write(t *testing.T, method, target, body string) string {
	t.Helper()
	m := message.Message{Time: time.Now(), Method: method, Target: target, Host: "es", Body: []byte(body)}
	m.Fields = []message.Field{{Name: "Content-Type", Value: "application/json"}}
	line, err := m.AppendTo(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

// creating returns the body of a bulk of documents with these ids.
func creating(ids ...string) string {
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&b, "{\"create\":{\"_index\":\"logs\",\"_id\":%q}}\n{\"n\":1}\n", id)
	}
	return b.String()
}

func TestRequestsOfAQueueAreMadeInOrder(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	r.put(
		write(t, "PUT", "/logs/_doc/1", `{"n":1}`), write(t, "PUT", "/logs/_doc/1", `{"n":2}`),
		write(t, "PUT", "/logs/_doc/2", `{"n":1}`), write(t, "DELETE", "/logs/_doc/2", ""), write(t, "DELETE", "/logs/_doc/2", ""),
		write(t, "POST", "/_bulk", creating("3", "4")),
	)
	r.replay("")
	r.drained()
	r.letters(0)
	r.wantStored(3)
	if doc := string(r.get("/logs/_doc/1")); !strings.Contains(doc, `"n":2`) {
		t.Errorf("the second write was not the last: %s", doc)
	}
	r.wantRecords("stored", 7)
}

// A block that comes again after a crash stores nothing twice, if its documents are created with ids.
func TestRequestsThatComeAgainAreDuplicates(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	once := []string{write(t, "POST", "/logs/_doc/1?op_type=create", `{"n":1}`), write(t, "PUT", "/logs/_create/2", `{}`), write(t, "POST", "/_bulk", creating("3"))}
	r.put(slices.Concat(once, once)...)
	r.replay("")
	r.drained()
	r.letters(0)
	r.wantStored(3)
	r.wantRecords("duplicate", 3)
}

func TestRequestsAreMadeAgain(t *testing.T) {
	f := func(name string, fault estest.Fault) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, estest.Options{})
			r.writes(toCluster)
			fault.Times = 3
			r.es.Inject(fault)
			r.put(write(t, "PUT", "/logs/_create/1", `{}`), write(t, "POST", "/_bulk", creating("2", "3")))
			r.replay("")
			r.drained()
			r.letters(0)
			r.wantStored(3)
		})
	}
	f("429", estest.Fault{Method: "PUT", Status: http.StatusTooManyRequests})
	f("503", estest.Fault{Method: "PUT", Status: http.StatusServiceUnavailable})
	f("502", bulkOnly(estest.Fault{Status: http.StatusBadGateway}))
	f("408", bulkOnly(estest.Fault{Status: http.StatusRequestTimeout}))
	f("403", bulkOnly(estest.Fault{Status: http.StatusForbidden}))
	f("closed", bulkOnly(estest.Fault{Cut: estest.CloseAfterRequest}))
	f("answer that says nothing", bulkOnly(estest.Fault{Status: http.StatusOK, Body: []byte(`{"took":1}`)}))
}

func TestOnlyFailedActionsAreMadeAgain(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	const item, busy = `{"create":{"_index":"logs","_id":"x","status":201}}`, `{"create":{"_index":"logs","_id":"x","status":429,"error":{"type":"t","reason":"r"}}}`
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Body: []byte(`{"errors":true,"items":[` + strings.Join([]string{item, busy, item, busy, item}, ",") + `]}`)}))
	r.put(write(t, "POST", "/_bulk", creating("a", "b", "c", "d", "e")))
	r.replay("")
	r.drained()
	var sent []string
	for _, c := range r.bulks() {
		sent = append(sent, ids(c))
	}
	if want := []string{"a b c d e", "b d"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
	r.wantStored(2) // the others the cluster had by what it said
	r.wantRecords("stored", 5)
}

func TestRefusedRequestsAreLetters(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	r.do("PUT", "/logs", `{"mappings":{"properties":{"n":{"type":"integer"}}}}`)
	r.put(
		write(t, "PUT", "/logs/_doc/bad", `{"n":"no number"}`), "no JSON", write(t, "PUT", "/logs/_doc/good", `{"n":1}`),
		write(t, "POST", "/_bulk", creating("1")+"{\"create\":{\"_index\":\"logs\",\"_id\":\"2\"}}\n{\"n\":\"x\"}\n"+creating("3")),
	)
	r.replay("")
	r.drained()
	letters := r.letters(3)
	for i, want := range []string{
		`"target":"/logs/_doc/bad"`, `"record":"no JSON"`, `"body":"{\"create\":{\"_index\":\"logs\",\"_id\":\"2\"}}\n{\"n\":\"x\"}\n"`,
	} {
		if !strings.Contains(letters[i], want) {
			t.Errorf("letter %s\nwant %s in it", letters[i], want)
		}
	}
	r.wantStored(3)
	r.wantRecords("rejected", 3)
}

// Many actions that are refused are as many letters, each with its reason, in time that does not grow with their square.
func TestEachRefusedActionIsALetter(t *testing.T) {
	const n = 20_000
	r := newRig(t, estest.Options{})
	r.queues.Options.MaxRecord = 8 << 20
	r.in = r.open("many")
	r.writes(toCluster)
	r.do("PUT", "/logs", `{"mappings":{"properties":{"n":{"type":"integer"}}}}`)
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	r.put(write(t, "POST", "/_bulk", strings.ReplaceAll(creating(ids...), `{"n":1}`, `{"n":"x"}`)))
	r.run(r.planOf("queue_consumer: {input_queue: many, flow: writes}"))
	r.drained()
	for i, letter := range r.letters(n) {
		if want := fmt.Sprintf(`\"_id\":\"%d\"}}\n{\"n\":\"x\"}\n"`, i); !strings.Contains(letter, want) || !strings.Contains(letter, `"type":"mapper_parsing_exception"`) {
			t.Fatalf("letter %d is %s\nwant %s in it", i, letter, want)
		}
	}
	r.wantStored(0)
}

// A bulk whose actions the gateway cannot tell apart is not made for ever, whatever a cluster makes of it.
func TestBulkThatCannotBeRead(t *testing.T) {
	f := func(body, reason string) {
		t.Helper()
		r := newRig(t, estest.Options{})
		r.writes(toCluster)
		r.es.Inject(bulkOnly(estest.Fault{Body: []byte(`{"errors":false,"items":[{"create":{"_index":"logs","_id":"1","status":201}}]}`)}))
		r.put(write(t, "POST", "/_bulk", body), write(t, "PUT", "/logs/_doc/2", "{}"))
		r.replay("")
		r.drained()
		if l := r.letters(1)[0]; !strings.Contains(l, `"type":"malformed_action"`) || !strings.Contains(l, reason) {
			t.Errorf("letter %s\nwant %s in it", l, reason)
		}
		r.wantStored(1)
	}
	f(creating("1")+"{\"unknown\":{}}\n{}\n", "none of index")
	f(creating("1")+"junk\n", "no object")
}

// A request of the queue does not say what the answer looks like, in which the consumer reads what became of its actions.
func TestAnswersAreReadAsJSON(t *testing.T) {
	f := func(o estest.Options, query string, fields ...message.Field) *estest.Call {
		t.Helper()
		r := newRig(t, o)
		r.writes(toCluster)
		m := message.Message{Method: "POST", Target: "/_bulk?" + query, Host: "es", Fields: fields, Body: []byte(creating("1"))}
		line, err := m.AppendTo(nil)
		if err != nil {
			t.Fatal(err)
		}
		r.put(string(line))
		r.replay("")
		r.drained()
		r.letters(0)
		r.wantStored(1)
		return r.bulks()[0]
	}
	ndjson := message.Field{Name: "Content-Type", Value: "application/x-ndjson"}
	if c := f(estest.Options{}, "filter_path=took&refresh=true&format=yaml", ndjson); c.Query != "refresh=true" {
		t.Errorf("asked with %s", c.Query)
	}
	c := f(estest.Options{Gzip: true}, "", ndjson, message.Field{Name: "Accept-Encoding", Value: "gzip"}, message.Field{Name: "accept", Value: "application/yaml"})
	if c.Header.Get("Accept-Encoding")+c.Header.Get("Accept") != "" {
		t.Errorf("asked with %s", c.Head)
	}
	// As clients of version 8 send it.
	f(estest.Options{Flavor: estest.Elasticsearch8}, "", message.Field{Name: "Content-Type", Value: "application/vnd.elasticsearch+x-ndjson; compatible-with=8"})
}

// Whoever names a version wants a conflict to be one, also when the request is made again.
func TestConflictsAreLetters(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	conflict := `{"index":{"_index":"logs","_id":"1","status":409,"error":{"type":"version_conflict_engine_exception","reason":"[1]: version conflict"}}}`
	r.es.Inject(bulkOnly(estest.Fault{Body: []byte(`{"errors":true,"items":[` + conflict + `]}`)}))
	r.es.Inject(estest.Fault{Method: "PUT", Status: http.StatusConflict})
	r.put(
		write(t, "POST", "/_bulk", `{"index":{"_index":"logs","_id":"1","if_seq_no":3,"if_primary_term":1}}`+"\n{}\n"),
		write(t, "PUT", "/logs/_doc/2?version=1&version_type=external", `{}`),
	)
	r.replay("")
	r.drained()
	for _, letter := range r.letters(2) {
		if !strings.Contains(letter, `"status":409`) {
			t.Errorf("letter %s", letter)
		}
	}
	r.wantRecords("duplicate", 0)
}

// What a cluster stores whose answer is lost is created once, and nothing of it is a letter.
func TestAnswerToARequestIsLost(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Missing: 20}))
	r.es.Inject(estest.Fault{Method: "PUT", Times: 1, Missing: 20})
	r.put(write(t, "POST", "/_bulk", creating("1", "2")), write(t, "PUT", "/logs/_create/3", `{}`))
	r.replay("")
	r.drained()
	r.letters(0)
	r.wantStored(3)
	r.wantRecords("duplicate", 3)
}

func TestTooLargeBulkIsHalved(t *testing.T) {
	r := newRig(t, estest.Options{MaxContentLength: 200})
	r.writes(toCluster)
	r.put(write(t, "POST", "/_bulk", creating("1", "2", "3", "4", "5", "6", "7")+`{"create":{"_index":"logs","_id":"8"}}`+"\n{\"n\":"+strings.Repeat("9", 200)+"}\n"))
	r.replay("")
	r.drained()
	r.letters(1)
	r.wantStored(7)
}

// A node that hangs does not hold the queue for ever.
func TestRequestThatIsNeverAnswered(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	never := make(chan struct{})
	defer close(never)
	r.es.Inject(estest.Fault{Method: "PUT", Hold: never, Times: 1})
	r.put(write(t, "PUT", "/logs/_create/1", `{}`))
	r.replay(", timeout: 1s")
	r.drained()
	r.wantStored(1)
}

func TestStoppedReplayLeavesItsBlock(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes(toCluster)
	away := r.es.Inject(estest.Fault{Status: http.StatusServiceUnavailable})
	r.put(write(t, "PUT", "/logs/_create/1", `{}`), write(t, "PUT", "/logs/_create/2", `{}`))
	running := r.replay(", worker_size: 2")
	eventually(t, "an attempt", func() bool { return r.es.Count("/logs/*") > 0 })
	r.stop(running)
	if s := r.in.Stats(); s.Records != 2 {
		t.Errorf("%d requests are left, want 2", s.Records)
	}
	away.Remove()
	r.replay("")
	r.drained()
	r.wantStored(2)
}

func TestRetryLimiter(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.writes("{retry_limiter: {max_retry_times: 2, queue_name: given_up}}, " + toCluster)
	r.es.Inject(estest.Fault{Path: "/poison/*", Status: http.StatusInternalServerError})
	poison := write(t, "PUT", "/poison/_doc/1", `{"a":"é"}`)
	r.put(poison, write(t, "PUT", "/logs/_doc/1", `{}`))
	r.replay("")
	r.drained()
	r.wantStored(1)
	r.letters(0)
	if n := r.es.Count("/poison/*"); n != 3 {
		t.Errorf("made %d times, want once and 2 times again", n)
	}
	given := r.open("given_up")
	consumers, err := given.Consumers(1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := consumers[0].Peek(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for record := range b.Records() {
		if string(record) != poison {
			t.Errorf("given up: %s\nwant %s", record, poison)
		}
	}
}

// Where the queue for what is given up takes nothing, the request stays.
func TestRetryLimiterWithoutRoom(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.queues.Options.MaxRecord = 300
	r.writes("{retry_limiter: {max_retry_times: 0, queue_name: given_up}}, " + toCluster)
	r.queues.Options.MaxRecord = 0
	r.in = r.open("more")
	away := r.es.Inject(estest.Fault{Path: "/logs/*", Method: "PUT", Status: http.StatusServiceUnavailable})
	r.put(write(t, "PUT", "/logs/_doc/1", `{"a":"`+strings.Repeat("x", 400)+`"}`))
	r.run(r.planOf("queue_consumer: {input_queue: more, flow: writes}"))
	eventually(t, "an attempt to give up", func() bool { return r.metric("weir_queue_messages_total", "given_up", "failed") > 0 })
	away.Remove()
	if r.in.Stats().Records != 1 {
		t.Error("the request is gone")
	}
}

func TestFlowThatIsNotThere(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.env.Flows = func() *flows.Generation { return nil }
	r.put(write(t, "PUT", "/logs/_doc/1", `{}`))
	running := r.replay("")
	eventually(t, "a consumer that waits", running.work.Idle)
	r.stop(running)
}
