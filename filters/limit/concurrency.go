package limit

import (
	"errors"
	"strings"
	"sync"
	"time"

	"weir/elastic"
	"weir/elastic/api"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
)

// ConcurrencyConfig is the configuration of concurrency.
type ConcurrencyConfig struct {
	// Exchanges of a key that may be past this point at once. One is until its answer has been read from the cluster.
	Max int `conf:"max,required" min:"1" max:"1000000"`
	// What the number is for; selectors as in rate_limit. Of several filters in a row the narrow ones come first: a slot that
	// all share must not be held by somebody who waits for one of its own.
	Key conf.Strings `conf:"key"`
	// Those that wait for a slot.
	Queue QueueConfig `conf:"queue"`
	// How important exchanges are: the first entry whose condition holds decides. Without one searches and what reads state are
	// interactive, all others batch.
	Priority []PriorityRule `conf:"priority"`
	// Header field in which callers may say that an exchange is less important than that: one of critical, interactive, batch
	// and background. It never makes one more important.
	PriorityHeader string `conf:"priority_header"`
	// Share of the slots and places that a class is sure of when others want them as well. What a class does not use is lent,
	// and comes back as slots become free; what is left goes to the most important class that waits.
	Share map[string]conf.Percent `conf:"share"`
	// Bodies up to this size are read before a slot is taken, so that a client that sends slowly holds none. 0 reads none.
	BodyFirst conf.Bytes `conf:"body_first" max:"100mb"`
	// Exchanges that need no slot.
	Exempt *conf.Node `conf:"exempt"`
	// What is done: enforce lets wait and refuses; shadow counts what would have to wait and lets it pass; off does nothing.
	Mode string `conf:"mode" enum:"enforce,shadow,off"`
	// Text of the refusal. By default it names the filter and says why.
	Message string `conf:"message"`
	// Status of the refusal.
	Status int `conf:"status" min:"400" max:"599"`
	// Type of the refusal. By default the one of a node whose queue is full, which clients know.
	Type string `conf:"type"`
	// Whether refusals have the fields RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-10): draft or off.
	Headers string `conf:"headers" enum:"draft,off"`
}

// QueueConfig is the line in front of a concurrency limit.
type QueueConfig struct {
	// Places for those that wait; by default twice max. 0 refuses at once. When all are taken, less important classes and then
	// callers with many waiting give up places.
	Size *int `conf:"size" min:"0" max:"1000000"`
	// Longest wait; also no longer than the parameter timeout of the request. Then it is refused.
	MaxWait conf.Duration `conf:"max_wait" min:"1ms"`
	// Who is next within a class: fair lets callers take turns; fifo is the first that came; lifo the last, which keeps at
	// least some callers quick under overload.
	Order string `conf:"order" enum:"fair,fifo,lifo"`
	// What a caller is for fair. Selectors as in key. Nobody has checked an identity here: who makes up a name for each
	// request gets a turn for each, and can keep all others waiting. Where callers are not trusted write ip, which cannot be
	// made up; then those behind one address share a turn.
	FairBy conf.Strings `conf:"fair_by"`
}

// PriorityRule gives exchanges a class.
type PriorityRule struct {
	// The exchanges.
	When *conf.Node `conf:"when,required"`
	// Their class.
	Class string `conf:"class,required" enum:"critical,interactive,batch,background"`
}

// concurrency is the filter.
type concurrency struct {
	config   ConcurrencyConfig
	flow     string
	name     string
	key      []selector
	fairBy   []selector
	exempt   flows.Condition
	priority []priorityRule
	shape    gateShape
	refusals [passages]*elastic.Error
	slots    sync.Pool // of *slot
	header   string    // priority_header in lower case

	gates    *gates
	outcomes [classes][passages]obs.Counter
	waits    obs.Histogram
	release  []func()
}

type priorityRule struct {
	when  flows.Condition
	class class
}

// A slot is an exchange's place past a gate.
type slot struct {
	owner *concurrency
	gate  *gate // nil when it has been left
	class class
	key   []byte
}

func (s *slot) leave() {
	if s.gate != nil {
		s.owner.gates.leave(s.gate, s.class)
		s.gate = nil
	}
}

// Release implements flows.Releaser: the answer has been written, or could not be.
func (s *slot) Release() {
	s.leave()
	s.owner.slots.Put(s)
}

// Concurrency declares the filter concurrency.
func Concurrency() flows.Factory[ConcurrencyConfig] {
	return flows.Factory[ConcurrencyConfig]{
		Name: "concurrency", Family: "limit",
		Summary: "Lets a number of exchanges pass at once; the others wait, callers in turn and important ones first, and are refused with 429 when that takes too long.",
		Default: func() ConcurrencyConfig {
			return ConcurrencyConfig{
				Key: conf.Strings{"global"}, Queue: QueueConfig{MaxWait: conf.Duration(time.Second), Order: "fair", FairBy: conf.Strings{"identity"}},
				Share: map[string]conf.Percent{"critical": 10, "interactive": 50, "batch": 20, "background": 5}, BodyFirst: 1 << 20,
				Mode: "enforce", Status: 429, Type: "es_rejected_execution_exception", Headers: "draft",
			}
		},
		Build: buildConcurrency,
		Examples: []flows.Example{
			{Title: "64 at once, callers in turn", YAML: "- concurrency: {max: 64}"},
			{Title: "No caller more than 8 of 64", YAML: `- concurrency: {name: per_caller, key: [identity], max: 8}
- concurrency: {name: cluster, max: 64}`},
			{Title: "Alerts before people before nightly jobs", YAML: `- concurrency:
    max: 64
    queue: {size: 256, max_wait: 2s}
    priority:
      - {when: {user: alerting}, class: critical}
      - {when: {user: "job-*"}, class: background}
    share: {critical: 25%, interactive: 50%, background: 5%}`},
		},
	}
}

func buildConcurrency(b *flows.Builder, c ConcurrencyConfig) flows.Filter {
	before, _ := b.Problems.Count()
	f := &concurrency{
		config: c, flow: b.FlowName(), name: b.FilterName(), key: parseSelectors(b.Problems, b.Node("key"), c.Key),
		fairBy: parseSelectors(b.Problems, b.Node("queue").At("fair_by"), c.Queue.FairBy), header: strings.ToLower(c.PriorityHeader),
	}
	if len(c.Key) == 0 {
		b.Errorf("key", "an empty key; write [global] for one number that all share")
	}
	if !c.Exempt.IsZero() {
		f.exempt = b.Condition(c.Exempt, b.Problems)
		warnOfStatus(b.Problems, c.Exempt)
	}
	switch f.header {
	case "authorization", "proxy-authorization", "cookie":
		b.Warnf("priority_header", "%s is where callers put their credentials, which are no class: it has no effect; name another field, such as X-Priority",
			c.PriorityHeader)
	}
	for _, r := range c.Priority {
		known, _ := parseClass(r.Class)
		f.priority = append(f.priority, priorityRule{b.Condition(r.When, b.Problems), known})
		warnOfStatus(b.Problems, r.When)
	}
	f.shape = gateShape{max: c.Max, places: 2 * c.Max, order: orders[c.Queue.Order]}
	if c.Queue.Size != nil {
		f.shape.places = *c.Queue.Size
	}
	if f.shape.places == 0 {
		for _, name := range []string{"max_wait", "order", "fair_by"} {
			if n := b.Node("queue").Get(name); n != nil {
				b.Problems.Warnf(n, "%s has no effect with size: 0, which refuses at once", name)
			}
		}
	}
	f.readShares(b)
	if after, _ := b.Problems.Count(); after > before {
		return nil
	}
	f.prepare()
	f.slots.New = func() any { return &slot{owner: f} }
	return f
}

// readShares reads what classes are sure of.
func (f *concurrency) readShares(b *flows.Builder) {
	sum := conf.Percent(0)
	for name, share := range f.config.Share {
		c, ok := parseClass(name)
		if !ok {
			q := b.Problems.Errorf(b.Node("share").At(name), "%q is no class: known are %s", name, strings.Join(classNamesByNumber[:], ", "))
			q.Suggestion, _ = conf.Nearest(name, classNamesByNumber[:])
			continue
		}
		f.shape.share[c] = share.Fraction()
		sum += share
	}
	if sum > 100 {
		b.Errorf("share", "the shares make %s together, over 100%%", sum)
	}
}

// prepare makes the refusals.
func (f *concurrency) prepare() {
	why := map[passage]string{
		full:        "and all places to wait for one are taken",
		displacedBy: "and others needed the place to wait for one more",
		timedOut:    "and none became free within " + f.config.Queue.MaxWait.String(),
		clientLeft:  "and the client left",
	}
	name := quoted(f.name)
	for p, reason := range why {
		e := &elastic.Error{Status: f.config.Status, Type: f.config.Type, Reason: f.config.Message, RetryAfter: time.Second}
		if e.Reason == "" {
			e.Reason = "[" + f.name + "] all " + conf.Amount{N: int64(f.shape.max)}.String() + " slots are in use, " + reason
		}
		if f.config.Headers == "draft" {
			e.Fields = []wire.Field{
				{Name: policyName, Value: policyOf(name, int64(f.shape.max), 0, "concurrent-requests")},
				{Name: rateLimitName, Value: []byte(name + ";r=0;t=1")},
			}
		}
		f.refusals[p] = e.Prepared()
	}
}

// KeyParts returns how many selectors tell keys apart: the more, the narrower is the limit.
func (f *concurrency) KeyParts() int {
	n := 0
	for i := range f.key {
		if f.key[i].kind != byNothing {
			n++
		}
	}
	return n
}

// Start finds the gates of the filter that had its place before: those who are past them count on.
func (f *concurrency) Start(rt *flows.Runtime) error {
	name, leave, err := takeSeat(rt, "concurrency", f.flow, f.name, f)
	if err != nil {
		return err
	}
	f.release = append(f.release, leave)
	// Keys of other selectors are other keys, which must not be mixed up with those of before.
	key := "concurrency gates " + f.flow + " " + name + " " + strings.Join(f.config.Key, "\x00")
	f.gates, err = flows.Keep(rt, key, func() (*gates, func(), error) { return newGates(), nil, nil })
	if err != nil {
		return err
	}
	f.name = name
	f.release = append(f.release, f.gates.adopt(&f.shape))
	return f.measure(rt.Metrics, name)
}

func (f *concurrency) measure(m *obs.Metrics, name string) error {
	outcomes := m.Counter("weir_concurrency_decisions_total",
		"Exchanges that came to a concurrency limit, by class and by how they came past it or why not: passed, waited, full, displaced, timeout, client_left, and would_wait in shadow mode.",
		"flow", "filter", "class", "outcome")
	for c := range class(classes) {
		for p := range passages {
			f.outcomes[c][p] = outcomes.With(f.flow, name, c.String(), passageNames[p])
		}
	}
	f.waits = m.Histogram("weir_concurrency_wait_seconds", "Waits in front of a concurrency limit, also those that ended with a refusal.",
		obs.DurationBuckets, "flow", "filter").With(f.flow, name)
	inFlight := m.GaugeFunc("weir_concurrency_in_flight", "Exchanges that are past a concurrency limit.", "flow", "filter")
	f.release = append(f.release, inFlight.Set(func() float64 { return float64(f.gates.inFlight.Load()) }, f.flow, name))
	waiting := m.GaugeFunc("weir_concurrency_waiting", "Exchanges that wait in front of a concurrency limit.", "flow", "filter")
	f.release = append(f.release, waiting.Set(func() float64 { return float64(f.gates.waiting.Load()) }, f.flow, name))
	return m.Err()
}

// Stop gives up the filter's part of the gates.
func (f *concurrency) Stop() {
	for _, release := range f.release {
		release()
	}
	f.release = nil
}

func (f *concurrency) Serve(x *flows.Exchange, next flows.Handler) error {
	if f.config.Mode == "off" || x.Tracing || f.exempt != nil && f.exempt.Match(x) {
		return next.Serve(x)
	}
	s, _ := f.slots.Get().(*slot)
	x.ReleaseWith(s)
	s.class = f.classOf(x)
	s.key, _ = appendKey(s.key[:0], 0, f.key, x, hit{}, nil)
	if err := f.pass(x, s); err != nil {
		return err
	}
	err := next.Serve(x)
	if err != nil || x.Response.Body.Buffered() {
		s.leave()
	}
	return err
}

// classOf returns how important x is.
func (f *concurrency) classOf(x *flows.Exchange) class {
	c := batch
	if kind := x.Call().Class; kind == api.ClassSearch || kind == api.ClassInspect {
		c = interactive
	}
	for i := range f.priority {
		if f.priority[i].when.Match(x) {
			c = f.priority[i].class
			break
		}
	}
	if f.header != "" {
		if said := x.Request.Header.Get(f.header); said != nil {
			for lower := c + 1; int(lower) < classes; lower++ {
				if wire.EqualFold(said, lower.String()) {
					c = lower
				}
			}
		}
	}
	return c
}

// pass takes a slot, or returns the refusal.
func (f *concurrency) pass(x *flows.Exchange, s *slot) error {
	if f.config.Mode == "shadow" {
		gt, free := f.gates.open(s.key, s.class, true)
		s.gate = gt
		how := passed
		if !free {
			how = passedBeyond
		}
		f.outcomes[s.class][how].Inc()
		return nil
	}
	if f.config.BodyFirst > 0 && !x.Request.Body.Buffered() {
		// What is refused in any case is refused before its body comes.
		if f.gates.refuses(s.key, s.class, callerOf(f.gates.seed, x, f.fairBy)) {
			return f.refuse(x, s, full)
		}
		if err := readAhead(x, int64(f.config.BodyFirst)); err != nil {
			return err
		}
	}
	gt, free := f.gates.open(s.key, s.class, false)
	if free {
		s.gate = gt
		f.outcomes[s.class][passed].Inc()
		return nil
	}
	w := newWaiter(callerOf(f.gates.seed, x, f.fairBy))
	w.class = s.class
	before := time.Now()
	gt, how := f.gates.pass(s.key, w, f.patience(x), x.Cancel())
	if how != passed && how != full {
		took := time.Since(before)
		x.Trace.Queued += took
		f.waits.Observe(took.Seconds())
	}
	if s.gate = gt; gt == nil {
		return f.refuse(x, s, how)
	}
	f.outcomes[s.class][how].Inc()
	return nil
}

// patience returns how long x may wait: as long as is configured, and no longer than its client gives the cluster.
func (f *concurrency) patience(x *flows.Exchange) time.Duration {
	wait := f.config.Queue.MaxWait.Std()
	if text, ok := api.QueryValue(x.Request.Query, "timeout"); ok {
		if own, err := conf.ParseDuration(string(text)); err == nil && own > 0 {
			wait = min(wait, own.Std())
		}
	}
	return wait
}

// readAhead reads a request's body of at most limit bytes. A longer one, or one for which there is no memory now, stays a
// stream.
func readAhead(x *flows.Exchange, limit int64) error {
	body := &x.Request.Body
	if body.Len() < 0 {
		_, _, err := body.Prefetch(limit)
		return err
	}
	_, err := body.Bytes(limit)
	if errors.Is(err, flows.ErrBodyTooLarge) || errors.Is(err, flows.ErrBudget) {
		return nil
	}
	return err
}

// refuse counts a refusal and returns it.
func (f *concurrency) refuse(x *flows.Exchange, s *slot, why passage) error {
	f.outcomes[s.class][why].Inc()
	x.Trace.Outcome, x.Trace.Limit = flows.Limited, f.name
	return f.refusals[why]
}

// ConcurrencyStatus is what is known of a concurrency limit.
type ConcurrencyStatus struct {
	Max      int          `json:"max"`
	Places   int          `json:"queue_size"`
	InFlight int          `json:"in_flight"`
	Top      []GateStatus `json:"top"`
}

// GateStatus is what is known of one key.
type GateStatus struct {
	Key      []string       `json:"key"`
	InFlight int            `json:"in_flight"`
	Waiting  map[string]int `json:"waiting,omitempty"` // by class
	Callers  int            `json:"callers"`           // that wait
}

// explain implements explainer.
func (f *concurrency) explain() *FilterStatus {
	return &FilterStatus{
		Flow: f.flow, Filter: f.name, Kind: "concurrency", Mode: f.config.Mode, Waiting: int(f.gates.waiting.Load()),
		Concurrency: &ConcurrencyStatus{
			Max: f.shape.max, Places: f.shape.places, InFlight: int(f.gates.inFlight.Load()), Top: f.gates.top(f.key),
		},
	}
}

var (
	_ flows.Starter  = (*concurrency)(nil)
	_ flows.Stopper  = (*concurrency)(nil)
	_ flows.Releaser = (*slot)(nil)
)
