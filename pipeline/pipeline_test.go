package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/elastic"
	"weir/elastic/estest"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/searchnode/searchtest"
	"weir/queue"
	"weir/queue/disk"
	"weir/queue/queuetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(searchtest.Main(m))
}

// lockedBuffer keeps log lines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a scripted cluster, a queue, and what a pipeline between them needs.
type rig struct {
	t       testing.TB
	url     string
	es      *estest.Cluster // nil for a real cluster
	cluster *elastic.Cluster
	queues  *queuetest.Queues
	in      queue.Queue
	env     Env
	logs    *lockedBuffer
	client  *http.Client // that the test itself asks with
}

func newRig(t testing.TB, o estest.Options) *rig {
	t.Helper()
	es := estest.New(t, o)
	var r *rig
	if o.InMemory {
		r = newRigAt(t, es.URL(), es.Dial)
	} else {
		r = newRigAt(t, es.URL(), nil)
	}
	r.es = es
	return r
}

// newRigAt is newRig over the cluster at url, which dial connects to, or the network if it is nil.
func newRigAt(t testing.TB, url string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *rig {
	t.Helper()
	r := &rig{t: t, url: url, logs: new(lockedBuffer), client: &http.Client{Transport: &http.Transport{DialContext: dial}}}
	t.Cleanup(r.client.CloseIdleConnections)
	logger := slog.New(slog.NewTextHandler(r.logs, nil))
	m := obs.NewMetrics()
	c := elastic.DefaultCluster()
	c.Name, c.Endpoint = "default", url
	var err error
	if r.cluster, err = elastic.NewCluster(&c, elastic.DefaultPool(), elastic.Deps{Metrics: m, Logger: logger, Dial: dial}); err != nil {
		t.Fatal(err)
	}
	r.cluster.Start()
	t.Cleanup(r.cluster.Close)
	r.queues = queuetest.New(t, m, logger, disk.Options{BlockAge: 50 * time.Millisecond})
	r.in = r.open("requests")
	r.env = Env{
		Queues: r.queues, Metrics: m, Logger: logger,
		Cluster: func(string) (*elastic.Cluster, error) { return r.cluster, nil },
	}
	return r
}

func (r *rig) open(name string) queue.Queue {
	r.t.Helper()
	q, err := r.queues.Open(name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = q.Close() })
	return q
}

// resolve knows the cluster default, and off, which is switched off.
func resolve(name string, n *conf.Node, p *conf.Problems) *elastic.ClusterConfig {
	switch name {
	case "default", "off":
		return &elastic.ClusterConfig{Name: name, Enabled: name != "off"}
	}
	p.Errorf(n, "no elasticsearch called %q", name).Suggestion = "default"
	return nil
}

// names knows the clusters of resolve, and two flows.
var names = Names{resolve, func(name string, _ *conf.Node) bool { return name == "writes" || name == "to_cluster" }}

// plan makes a plan of json_indexing; params are further parameters in YAML.
func (r *rig) plan(params string) *Plan {
	r.t.Helper()
	return r.planOf("json_indexing: {index_name: logs, elasticsearch: default, input_queue: requests" + params + "}")
}

// planOf makes a plan of a pipeline in YAML without its name.
func (r *rig) planOf(text string) *Plan {
	r.t.Helper()
	n, p := conf.Parse("test.yml", "- {name: main, "+text+"}", nil)
	plans := Build(Processors(), n, names, p)
	if err := p.Err(); err != nil || len(plans) != 1 {
		r.t.Fatalf("%d plans, %v", len(plans), err)
	}
	hasten(plans[0].processor.(*drain).outlet)
	return plans[0]
}

// hasten lets an outlet not wait as long as in a gateway.
func hasten(o outlet) {
	short := backoff{time.Millisecond, 20 * time.Millisecond}
	switch o := o.(type) {
	case *bulkOutlet:
		o.backoff = short
	case *writerOutlet:
		o.backoff = short
	case *replayOutlet:
		o.backoff = short
	case *dagOutlet:
		for _, part := range o.parts {
			hasten(part.outlet)
		}
	}
}

func (r *rig) start(params string) *Running {
	r.t.Helper()
	return r.run(r.plan(params))
}

func (r *rig) run(p *Plan) *Running {
	r.t.Helper()
	running, err := p.Start(r.env)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = running.Stop(expired()) })
	return running
}

// expired returns a context that has ended.
func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (r *rig) stop(running *Running) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	if err := running.Stop(ctx); err != nil {
		r.t.Error(err)
	}
}

func record(n int) string {
	return fmt.Sprintf(`{"@timestamp":"2024-02-29T12:00:00.000Z","event":{"id":"id-%04d"},"n":%d}`, n, n)
}

// put puts records on the queue and waits until they are on disk, in one block if they fit.
func (r *rig) put(records ...string) {
	r.t.Helper()
	for _, text := range records {
		if err := r.in.PutWait(r.t.Context(), []byte(text)); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.in.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// putMany puts records from first to before last.
func (r *rig) putMany(first, last int) {
	r.t.Helper()
	var list []string
	for n := first; n < last; n++ {
		list = append(list, record(n))
	}
	r.put(list...)
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// drained waits until the queue holds nothing.
func (r *rig) drained() {
	r.t.Helper()
	eventually(r.t, "an empty queue", func() bool {
		s := r.in.Stats()
		return s.Depth == 0 && s.OpenRecords == 0
	})
}

func (r *rig) get(target string) []byte {
	r.t.Helper()
	res, err := r.client.Get(r.url + target)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return body
}

// do sends a request straight to the cluster.
func (r *rig) do(method, target, body string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+target, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != 200 {
		r.t.Fatalf("%s %s: status %d", method, target, res.StatusCode)
	}
}

// stored returns how many documents the index has.
func (r *rig) stored() int {
	r.t.Helper()
	r.get("/logs/_refresh")
	var a struct{ Count int }
	body := r.get("/logs/_count")
	if err := json.Unmarshal(body, &a); err != nil {
		r.t.Fatalf("%v in %s", err, body)
	}
	return a.Count
}

func (r *rig) wantStored(want int) {
	r.t.Helper()
	if got := r.stored(); got != want {
		r.t.Errorf("%d documents stored, want %d", got, want)
	}
}

// metric returns the value of a series with those label values, -1 if there is none.
func (r *rig) metric(name string, values ...string) float64 {
	r.t.Helper()
	all, err := r.env.Metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && sameSet(have, values) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func sameSet(a, b []string) bool {
	seen := map[string]int{}
	for _, s := range a {
		seen[s]++
	}
	for _, s := range b {
		seen[s]--
	}
	for _, n := range seen {
		if n != 0 {
			return false
		}
	}
	return true
}

func (r *rig) wantRecords(outcome string, want float64) {
	r.t.Helper()
	if got := r.metric("weir_pipeline_records_total", "main", outcome); got != want {
		r.t.Errorf("%v records %s, want %v", got, outcome, want)
	}
}

// bulks returns the bulk calls that came.
func (r *rig) bulks() []*estest.Call {
	var out []*estest.Call
	for _, c := range r.es.Calls() {
		if c.Path == "/_bulk" {
			out = append(out, c)
		}
	}
	return out
}

var idPattern = regexp.MustCompile(`"_id":"([^"]*)"`)

// ids returns the ids in a bulk request.
func ids(c *estest.Call) string {
	var out []string
	for _, m := range idPattern.FindAllSubmatch(c.Body, -1) {
		out = append(out, string(m[1]))
	}
	return strings.Join(out, " ")
}

// letters returns the dead letters.
func (r *rig) letters(want int) []string {
	r.t.Helper()
	dead := r.open(r.in.Name() + deadSuffix)
	consumers, err := dead.Consumers(1)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	var out []string
	for len(out) < want {
		b, err := consumers[0].Peek(ctx)
		if err != nil {
			r.t.Fatalf("%d dead letters, want %d: %v", len(out), want, err)
		}
		for line := range b.Records() {
			out = append(out, string(line))
		}
		if err := consumers[0].Advance(); err != nil {
			r.t.Fatal(err)
		}
	}
	if s := dead.Stats(); len(out) != want || s.Depth+s.OpenRecords != 0 {
		r.t.Errorf("%d dead letters and %d blocks, want %d; logs:\n%s", len(out), s.Depth, want, r.logs)
	}
	return out
}

func bulkOnly(f estest.Fault) estest.Fault {
	f.Path = "/_bulk"
	return f
}
