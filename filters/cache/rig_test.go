package cache

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// rig is flows at work over a scripted node.
type rig struct {
	t       *testing.T
	keeper  *flows.Keeper
	metrics *obs.Metrics
	gen     *flows.Generation
	flows   map[string]*flows.Flow
	rt      *flows.Runtime
	calls   atomic.Int64

	mu   sync.Mutex // guards the field below
	open []*flows.Exchange
	node func(x *flows.Exchange, call int64) error // fills the response
}

type nodeFilter struct{ r *rig }

func (f nodeFilter) Serve(x *flows.Exchange, next flows.Handler) error {
	n := f.r.calls.Add(1)
	x.Trace.Outcome = flows.Upstream
	if err := f.r.node(x, n); err != nil {
		return err
	}
	return next.Serve(x)
}

type limitFilter struct{}

func (limitFilter) Serve(x *flows.Exchange, next flows.Handler) error {
	if x.Request.Header.Has("limited") {
		x.Trace.Outcome = flows.Limited
		return errLimited
	}
	return next.Serve(x)
}

const (
	classic = `[{name: main, filter: [{get_cache: {}}, {limit: {}}, {node: {}}, {set_cache: {}}]}]`
	short   = `[{name: main, filter: [{cache: {}}, {limit: {}}, {node: {}}]}]`
)

func (r *rig) registry() *flows.Registry {
	reg := flows.NewRegistry()
	flows.Register(reg, GetCache())
	flows.Register(reg, SetCache())
	flows.Register(reg, Cache())
	type none struct{}
	flows.Register(reg, flows.Factory[none]{
		Name: "node", Default: func() none { return none{} },
		Build: func(*flows.Builder, none) flows.Filter { return nodeFilter{r} },
	})
	flows.Register(reg, flows.Factory[none]{
		Name: "limit", Default: func() none { return none{} },
		Build: func(*flows.Builder, none) flows.Filter { return limitFilter{} },
	})
	return reg
}

// newRig runs the flows that text lists.
func newRig(t *testing.T, text string) *rig {
	t.Helper()
	r := &rig{t: t, keeper: flows.NewKeeper(), metrics: obs.NewMetrics()}
	r.node = func(x *flows.Exchange, call int64) error { reply(x, 200, complete(x, call)); return nil }
	r.load(text)
	t.Cleanup(func() {
		r.end()
		r.gen.Retire()
		<-r.gen.Drained()
	})
	return r
}

// load puts flows into force in place of those before.
func (r *rig) load(text string) {
	r.t.Helper()
	root, p := conf.Parse("test.yml", "router: [{name: default, default_flow: main}]\nflow: "+text, nil)
	b := flows.NewBuilder(r.registry(), p)
	b.Define(root.Get("flow"))
	routers := map[string]*flows.Router{}
	for _, n := range root.Get("router").Items() {
		routers["default"] = b.Router(n)
	}
	if err := p.Err(); err != nil {
		r.t.Fatal(err)
	}
	r.rt = &flows.Runtime{Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler), Budget: flows.NewBudget(64 << 20)}
	gen := b.Generation(1, routers, r.rt, r.keeper)
	if err := gen.Start(); err != nil {
		r.t.Fatal(err)
	}
	if old := r.gen; old != nil {
		r.end()
		old.Retire()
		<-old.Drained()
	}
	r.gen, r.flows = gen, map[string]*flows.Flow{}
	for _, n := range root.Get("flow").Items() {
		name := n.Get("name").Scalar()
		r.flows[name] = b.Flow(name, n)
	}
}

// end ends all exchanges that were served.
func (r *rig) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.open {
		x.End()
	}
	r.open = nil
}

// shared returns what the filters share.
func (r *rig) shared() *shared {
	r.t.Helper()
	s, err := sharedOf(r.rt)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// serve runs x through a flow.
func (r *rig) serve(flow string, x *flows.Exchange) error {
	r.mu.Lock()
	if !slices.Contains(r.open, x) {
		if !r.gen.Adopt(x) {
			r.t.Error("the generation has ended")
		}
		r.open = append(r.open, x)
	}
	r.mu.Unlock()
	return r.flows[flow].Serve(x)
}

// request makes an exchange. fields are names and values in turn.
func request(target, body string, fields ...string) *flows.Exchange {
	x := flows.Explaining("POST", target, append([]string{"Content-Type", "application/json"}, fields...)...)
	if body != "" {
		x.Request.Body.Replace([]byte(body))
	}
	return x
}

// ask sends a search through the flow main and returns its exchange, which was answered.
func (r *rig) ask(target, body string, fields ...string) *flows.Exchange {
	r.t.Helper()
	x := request(target, body, fields...)
	if err := r.serve("main", x); err != nil {
		r.t.Fatalf("%s %s: %v", target, body, err)
	}
	return x
}

// reply fills a response as a node does.
func reply(x *flows.Exchange, status int, body string) {
	x.Reply(status, "application/json; charset=UTF-8", []byte(body))
	x.Response.Header.AddString("X-elastic-product", "Elasticsearch")
	if id := x.Request.Header.Get("x-opaque-id"); id != nil {
		x.Response.Header.AddString("X-Opaque-Id", string(id))
	}
}

// complete is the body of a complete answer, which says the number of the call.
func complete(x *flows.Exchange, call int64) string {
	const shards = `"_shards":{"total":2,"successful":2,"skipped":0,"failed":0}`
	if strings.HasSuffix(string(x.Request.Path), "_count") {
		return fmt.Sprintf(`{"count":%d,%s}`, call, shards)
	}
	return fmt.Sprintf(`{"took":%d,"timed_out":false,%s,"hits":{"hits":[]}}`, call, shards)
}

func bodyOf(x *flows.Exchange) string {
	b, _ := x.Response.Body.Bytes(1 << 30)
	return string(b)
}

func field(x *flows.Exchange, name string) string { return string(x.Response.Header.Get(name)) }

// wantStatus checks the Cache-Status of an answer.
func wantStatus(t *testing.T, x *flows.Exchange, want string) {
	t.Helper()
	if got := field(x, "cache-status"); got != want {
		t.Errorf("%s %s: Cache-Status %q, want %q", x.Request.Target, x.Request.Header.Get("authorization"), got, want)
	}
	if got := string(x.Trace.Cache); got != want {
		t.Errorf("%s: the trace says %q, want %q", x.Request.Target, got, want)
	}
}

// wantCalls checks how often the node was asked so far.
func (r *rig) wantCalls(want int64) {
	r.t.Helper()
	if got := r.calls.Load(); got != want {
		r.t.Errorf("the node was asked %d times, want %d", got, want)
	}
}

// count returns the value of a metric with these label values in any order.
func (r *rig) count(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if hasLabels(m, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	r.t.Fatalf("no series %s %q", name, labels)
	return 0
}

func hasLabels(m *dto.Metric, want []string) bool {
	for _, w := range want {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetValue() == w
		}
		if !found {
			return false
		}
	}
	return true
}
