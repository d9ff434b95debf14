package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/queuetest"
)

func TestStoresEachRecordOnce(t *testing.T) {
	for _, flavor := range []estest.Flavor{estest.Elasticsearch7, estest.Elasticsearch8, estest.OpenSearch2, estest.OpenSearch3} {
		t.Run(flavor.String(), func(t *testing.T) {
			r := newRig(t, estest.Options{Flavor: flavor})
			running := r.start("")
			for n := range 5 {
				r.putMany(100*n, 100*n+100)
			}
			r.drained()
			r.stop(running)
			r.wantStored(500)
			r.wantRecords("stored", 500)
			r.letters(0)
		})
	}
}

func TestRecordsWithoutID(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.start("")
	// Their ids are made of what they hold, so that a second delivery stores nothing twice.
	r.put(`{"a":1}`, `{"a":2}`, `{"event":{"id":7}}`)
	r.put(`{"a":1}`)
	r.drained()
	r.wantStored(3)
	r.wantRecords("duplicate", 1)
}

func TestOnlyRefusedItemsAreSentAgain(t *testing.T) {
	r := newRig(t, estest.Options{})
	item := func(n, status int, errorType string) string {
		if errorType == "" {
			return fmt.Sprintf(`{"create":{"_index":"logs","_id":"id-%04d","status":%d}}`, n, status)
		}
		return fmt.Sprintf(`{"create":{"_index":"logs","_id":"id-%04d","status":%d,"error":{"type":%q,"reason":"r"}}}`, n, status, errorType)
	}
	answer := func(items ...string) []byte {
		return []byte(`{"took":1,"errors" : true,"items":[` + strings.Join(items, ",") + `]}`)
	}
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Body: answer(
		item(0, 201, ""), item(1, 429, "es_rejected_execution_exception"), item(2, 201, ""),
		item(3, 503, "unavailable_shards_exception"), item(4, 403, "cluster_block_exception"))}))
	r.putMany(0, 5)
	r.start("")
	r.drained()
	calls := r.bulks()
	if len(calls) != 2 || ids(calls[0]) != "id-0000 id-0001 id-0002 id-0003 id-0004" || ids(calls[1]) != "id-0001 id-0003 id-0004" {
		t.Errorf("bulk requests: %v", calls)
		for _, c := range calls {
			t.Log(ids(c))
		}
	}
	r.wantStored(3)
	r.wantRecords("stored", 5)
	if got := r.metric("weir_pipeline_retries_total", "main"); got != 3 {
		t.Errorf("%v retries, want 3", got)
	}
}

func TestWholeRequestIsTriedAgain(t *testing.T) {
	f := func(name string, fault estest.Fault, duplicates float64) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, estest.Options{})
			if fault.Times == 0 {
				fault.Times = 3
			}
			injection := r.es.Inject(bulkOnly(fault))
			r.putMany(0, 10)
			r.start("")
			r.drained()
			r.wantStored(10)
			r.wantRecords("duplicate", duplicates)
			r.letters(0)
			if injection.Hits() != fault.Times {
				t.Errorf("%d faults, want %d", injection.Hits(), fault.Times)
			}
		})
	}
	f("429", estest.Fault{Status: 429}, 0)
	f("503", estest.Fault{Status: 503}, 0)
	f("502 of a proxy", estest.Fault{Status: 502}, 0)
	f("401", estest.Fault{Status: 401}, 0)
	f("403", estest.Fault{Status: 403}, 0)
	f("400 of a proxy", estest.Fault{Times: 10, Status: 400, Body: []byte("<html>plain HTTP to an HTTPS port</html>"), ContentType: "text/html"}, 0)
	f("reset before reading", estest.Fault{Cut: estest.ResetBeforeBody}, 0)
	f("reset after reading", estest.Fault{Cut: estest.ResetAfterRequest}, 0)
	f("not an answer", estest.Fault{Body: []byte(`{"took":1}`)}, 0)
	f("no JSON", estest.Fault{Body: []byte(`hello`)}, 0)
	f("one item less", estest.Fault{Body: []byte(`{"items":[{"create":{"status":201}}]}`)}, 0)
	// The node has stored everything, and the answer is lost.
	f("answer cut off", estest.Fault{Missing: 5}, 10)
}

func TestAnswerThatNeverComes(t *testing.T) {
	r := newRig(t, estest.Options{})
	hold := make(chan struct{})
	defer close(hold)
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Hold: hold}))
	r.putMany(0, 3)
	r.start(", timeout: 1s")
	r.drained()
	r.wantStored(3)
}

func TestPoisonIsPutAside(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.do("PUT", "/logs", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	bad := `{"event":{"id":"bad"},"n":"word"}`
	r.putMany(0, 5)
	r.put(bad, `{"event":{"id":"broken"},`)
	r.putMany(5, 9)
	r.start("")
	r.drained()
	r.wantStored(9)
	r.wantRecords("rejected", 2)
	letters := r.letters(2)
	if want := `"index":"logs","record":` + bad + `}`; !strings.HasSuffix(letters[0], want) || !strings.Contains(letters[0], `"reason":"`) {
		t.Errorf("letter %s, want %s at its end", letters[0], want)
	}
	if want := `"record":"{\"event\":{\"id\":\"broken\"},"}`; !strings.HasSuffix(letters[1], want) {
		t.Errorf("letter %s, want %s at its end", letters[1], want)
	}
	if !strings.Contains(r.logs.String(), "put aside") {
		t.Error("nothing was logged")
	}
}

func TestRequestSpoiledByOneRecord(t *testing.T) {
	r := newRig(t, estest.Options{})
	// A tab inside of an id makes the whole request malformed.
	r.put(record(0), record(1), "{\"event\":{\"id\":\"a\tb\"}}", record(2), record(3))
	r.start("")
	r.drained()
	r.wantStored(4)
	r.wantRecords("rejected", 1)
	r.letters(1)
}

func TestTooLargeRequestsAreHalved(t *testing.T) {
	r := newRig(t, estest.Options{MaxContentLength: 10 << 10})
	long := func(n, size int) string {
		return fmt.Sprintf(`{"event":{"id":"id-%d"},"text":%q}`, n, strings.Repeat("x", size))
	}
	var list []string
	for n := range 8 {
		list = append(list, long(n, 3<<10))
	}
	r.put(append(list, long(8, 20<<10))...)
	r.start("")
	r.drained()
	r.wantStored(8)
	r.letters(1)
	before := len(r.bulks())
	for n := range 8 {
		list[n] = long(100+n, 3<<10)
	}
	r.put(list...)
	r.drained()
	r.wantStored(16)
	for _, c := range r.bulks()[before:] {
		if c.Status() != 200 {
			t.Errorf("%s of %d bytes after the limit was known", c, len(c.Body))
		}
	}
}

func TestClusterAway(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.es.Node(0).Stop()
	r.putMany(0, 50)
	r.start("")
	eventually(t, "a failure", func() bool { return r.metric("weir_pipeline_batches_total", "main", "failed") > 2 })
	if d := r.in.Stats().Depth; d == 0 {
		t.Error("the queue was advanced without a cluster")
	}
	if err := r.es.Node(0).Start(); err != nil {
		t.Fatal(err)
	}
	r.drained()
	r.wantStored(50)
	r.letters(0)
}

func TestCutOffAndStartedAgain(t *testing.T) {
	r := newRig(t, estest.Options{})
	hold := make(chan struct{})
	defer close(hold)
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Missing: 5})) // stored, and not known
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Hold: hold}))
	r.putMany(0, 20)
	running := r.start("")
	if _, err := r.es.WaitCall(t.Context(), func(*estest.Call) bool { return len(r.bulks()) == 2 }); err != nil {
		t.Fatal(err)
	}
	if err := running.Stop(expired()); !errors.Is(err, context.Canceled) {
		t.Errorf("stop said %v", err)
	}
	if d := r.in.Stats().Depth; d == 0 {
		t.Fatal("the queue was advanced over records that are not known to be stored")
	}
	if n := r.metric("weir_pipeline_batches_total", "main", "failed"); n != 1 {
		t.Errorf("%v failures, want 1: being cut off is none", n)
	}
	r.start("")
	r.drained()
	r.wantStored(20)
	r.wantRecords("duplicate", 20)
}

func TestStopFinishesWhatIsInHand(t *testing.T) {
	r := newRig(t, estest.Options{})
	hold := make(chan struct{})
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Hold: hold}))
	r.putMany(0, 20)
	running := r.start("")
	if _, err := r.es.WaitCall(t.Context(), estest.Path("/_bulk")); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error)
	go func() { stopped <- running.Stop(t.Context()) }()
	select {
	case err := <-stopped:
		t.Fatalf("stopped with a request under way: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(hold)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if d := r.in.Stats().Depth; d != 0 {
		t.Errorf("%d blocks are left", d)
	}
	r.wantStored(20)
}

func TestStopDoesNotWaitForBetterTimes(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.es.Node(0).Stop()
	r.putMany(0, 1)
	running := r.start("")
	eventually(t, "a failure", func() bool { return r.metric("weir_pipeline_batches_total", "main", "failed") > 0 })
	r.stop(running)
	r.stop(running)
	if d := r.in.Stats().Depth; d != 1 {
		t.Errorf("%d blocks are left, want 1", d)
	}
}

func TestNothingIsSentBeforeReady(t *testing.T) {
	r := newRig(t, estest.Options{})
	ready := make(chan struct{})
	r.env.Ready = ready
	r.putMany(0, 1)
	r.stop(r.start(""))
	running := r.start("")
	select {
	case <-running.done:
		t.Fatal("the pipeline has ended")
	case <-time.After(50 * time.Millisecond):
	}
	if n := len(r.bulks()); n != 0 {
		t.Errorf("%d bulk requests before the templates were there", n)
	}
	close(ready)
	r.drained()
	r.stop(running)
	r.wantStored(1)
}

func TestWorkersSendAtTheSameTime(t *testing.T) {
	r := newRig(t, estest.Options{})
	hold := make(chan struct{})
	r.es.Inject(bulkOnly(estest.Fault{Hold: hold}))
	r.queues.Options.BlockAge = time.Minute
	r.in = r.open("requests")
	r.putMany(0, 1000)
	r.start(", worker_size: 4")
	eventually(t, "four requests under way", func() bool { return len(r.bulks()) == 4 })
	close(hold)
	r.drained()
	r.wantStored(1000)
}

func TestBulkSizeBoundsRequests(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.putMany(0, 100)
	r.start(", bulk_size: 30")
	r.drained()
	for _, c := range r.bulks() {
		if n := len(strings.Fields(ids(c))); n > 30 {
			t.Errorf("a request of %d records", n)
		}
	}
	r.wantStored(100)
}

func TestDeadLettersWithoutRoom(t *testing.T) {
	r := newRig(t, estest.Options{})
	r.do("PUT", "/logs", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	r.queues.Options.MaxRecord = 80 // the letter is longer than the record
	r.put(`{"event":{"id":"bad"},"n":"word"}`, record(1))
	r.start("")
	r.drained()
	r.wantStored(1)
	r.wantRecords("dropped", 1)
	r.letters(0)
}

// slowDisk is a queue whose Flush fails at first.
type slowDisk struct {
	queue.Queue
	flushed chan struct{} // gets a value for each failure
	fails   int
}

func (q *slowDisk) Flush(ctx context.Context) error {
	if q.fails == 0 {
		return q.Queue.Flush(ctx)
	}
	q.fails--
	q.flushed <- struct{}{}
	return errors.New("the disk is away")
}

// opener opens dead letter queues on a slow disk.
type opener struct {
	*queuetest.Queues
	dead *slowDisk
}

func (o opener) Open(name string) (queue.Queue, error) {
	q, err := o.Queues.Open(name)
	if err == nil && strings.HasSuffix(name, deadSuffix) {
		o.dead.Queue = q
		return o.dead, nil
	}
	return q, err
}

func TestLettersAreOnDiskBeforeTheQueueAdvances(t *testing.T) {
	r := newRig(t, estest.Options{})
	dead := &slowDisk{flushed: make(chan struct{}), fails: 2}
	r.env.Queues = opener{r.queues, dead}
	r.put(`{"event":{"id":"broken"},`)
	r.start("")
	for range 2 {
		if d := r.in.Stats().Depth; d != 1 {
			t.Errorf("%d blocks before the letter was on disk, want 1", d)
		}
		<-dead.flushed
	}
	r.drained()
	r.letters(1)
}

// TestRandomFaults lets anything go wrong, stops and starts in between, and counts at the end.
func TestRandomFaults(t *testing.T) {
	r := newRig(t, estest.Options{Nodes: 2})
	rnd := rand.New(rand.NewPCG(1, 2))
	faults := []estest.Fault{
		{Status: 429},
		{Status: 503},
		{Status: 502},
		{Missing: 7},
		{Cut: estest.ResetAfterRequest},
		{Cut: estest.ResetBeforeBody},
		{Cut: estest.CloseAfterAnswer},
		{Body: []byte("{}")},
		{Status: 413},
	}
	const blocks, size = 40, 25
	running := r.start(", worker_size: 3, bulk_size: 10")
	for n := range blocks {
		f := faults[rnd.IntN(len(faults))]
		f.Times = 1 + rnd.IntN(2)
		if f.Status == 413 { // once for a request of several records; again and again it would be a letter
			f.Match = func(c *estest.Call) bool { return len(c.Header.Get("Content-Length")) > 3 }
		}
		r.es.Inject(bulkOnly(f))
		r.putMany(n*size, n*size+size)
		switch rnd.IntN(8) {
		case 0:
			_ = running.Stop(expired())
			running = r.start(", worker_size: 3, bulk_size: 10")
		case 1:
			r.stop(running)
			running = r.start(", worker_size: 2, bulk_size: 7")
		case 2:
			r.es.Node(0).Stop()
			if err := r.es.Node(0).Start(); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.drained()
	r.stop(running)
	r.wantStored(blocks * size)
	r.letters(0)
}

func TestMetricsAreNamedAndTakenAway(t *testing.T) {
	r := newRig(t, estest.Options{})
	hold := make(chan struct{})
	r.es.Inject(bulkOnly(estest.Fault{Times: 1, Hold: hold}))
	r.putMany(0, 3)
	running := r.start("")
	eventually(t, "a lag", func() bool { return r.metric("weir_queue_lag_seconds", "requests") > 0 })
	if got := r.metric("weir_queue_records", "requests"); got != 3 {
		t.Errorf("weir_queue_records is %v, want 3", got)
	}
	close(hold)
	r.drained()
	if got := r.metric("weir_queue_lag_seconds", "requests"); got != 0 {
		t.Errorf("a lag of %v with an empty queue", got)
	}
	if got := r.metric("weir_pipeline_requests_allowed", "main"); got != 1 {
		t.Errorf("%v requests allowed, want 1", got)
	}
	if err := errors.Join(obs.CheckNames(r.env.Metrics.Describe()), r.env.Metrics.Err()); err != nil {
		t.Error(err)
	}
	r.stop(running)
	if _, open := r.queues.Manager.Stats()["requests.dead"]; open {
		t.Error("the queue for dead letters is still open")
	}
	if got := r.metric("weir_pipeline_requests_allowed", "main"); got != -1 {
		t.Errorf("it is still there: %v", got)
	}
}

func TestStartFails(t *testing.T) {
	r := newRig(t, estest.Options{})
	if err := r.queues.Manager.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.plan("").Start(r.env); err == nil || !strings.Contains(err.Error(), "start pipeline main") {
		t.Errorf("started over closed queues: %v", err)
	}
}

func TestQueueClosedUnderneath(t *testing.T) {
	r := newRig(t, estest.Options{})
	running := r.start("")
	if err := r.queues.Manager.Close(); err != nil {
		t.Fatal(err)
	}
	<-running.done
	if err := running.Stop(t.Context()); err == nil {
		t.Error("no error says that the pipeline had ended")
	}
}

func TestBadIndexNames(t *testing.T) {
	f := func(name string, bad bool) {
		t.Helper()
		if got := badIndexName(name); (got != "") != bad {
			t.Errorf("%q: %q", name, got)
		}
	}
	f("gateway_requests", false)
	f("<logs-{now/d}>", false)
	f("größe", false)
	f("Logs", true)
	f("_x", true)
	f("-x", true)
	f("..", true)
	f("a b", true)
	f("a*", true)
	f(strings.Repeat("x", 256), true)
}
