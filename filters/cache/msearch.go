package cache

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"time"

	"weir/elastic"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/wire"
)

// maxMerged is the largest answer that is taken apart to be put together with stored ones.
const maxMerged = 64 << 20

// A multi is what the cache knows of one _msearch. Its searches are looked up one by one, under the keys that they have as
// requests of their own, and those that are missing are asked for in one _msearch.
type multi struct {
	searches query.Searches
	items    []item
	header   wire.Header // as each search would have it
	body     []byte      // of the request

	asked  []int // items that were sent last, in their order
	merged []byte

	launch   *launch      // of flights for items of this one
	launched *multi       // what is asked for there
	fields   []wire.Field // of the answer to that

	// What came of a launched one, set before its flights land.
	came   *Entry // the answer, if it may be given to others
	failed error  // instead of an answer
}

// An item is one search of a multi.
type item struct {
	wanted
	index []byte // as a path spells it
	same  int    // the first item that is alike in what is not in the key too, or this one

	answer []byte  // its answer as it came, for those without an entry
	status int     // of an answer that is no success, if the node was heard
	flight *flight // which it leads or waits for
	leads  bool
	from   origin
	past   *Entry // an entry that does not answer it while nodes do
	detail string // why an entry was given whose time is over
	renew  bool   // the entry is to be asked for anew

	launched *item // the same search where it is asked for in an exchange that was begun for it
}

// An origin says where the answer to an item came from.
type origin uint8

const (
	fromNode origin = iota
	fromStore
	fromFlight
	fromPast // an answer past its time
	origins
)

var originNames = [origins]string{"miss", "hit", "shared", "stale"}

// serveMulti is serve for a _msearch.
func (l *lookup) serveMulti(x *flows.Exchange, next flows.Handler, t *ticket) error {
	m, why, err := l.judgeMulti(x, next, t)
	if err != nil {
		return err
	}
	if why != "" {
		return l.bypass(x, next, t, why)
	}
	now := time.Now()
	missing := 0
	for i := range m.items {
		it := &m.items[i]
		if it.same == i && !l.lookUp(t, it, now) {
			missing++
		}
	}
	l.renewMulti(x, next, t, m, now)
	if missing == 0 {
		l.mergeHits(x, t, m, now)
		return nil
	}
	if t.verdict.OnlyIfCached {
		l.requests[outcomeRefused].Inc()
		x.Trace.Outcome = flows.Denied
		t.sayForward(x, "miss", "", "")
		return elastic.Errorf(504, "not_cached_exception", "only-if-cached was asked for, and there are no stored answers to %d of %d searches",
			missing, len(m.items))
	}
	return l.fetchMulti(x, next, t, m)
}

// judgeMulti takes a _msearch apart, or says why it passes the cache by.
func (l *lookup) judgeMulti(x *flows.Exchange, next flows.Handler, t *ticket) (m *multi, why query.Reason, err error) {
	defer func() {
		if p := recover(); p != nil {
			l.shared.fault(p)
			m, why, err = nil, reasonFault, nil
		}
	}()
	c := x.Call()
	if c.Param("type") != nil {
		return nil, query.ReasonArguments, nil
	}
	body, why, err := requestBody(x, int64(l.options.MaxBody))
	if why != "" || err != nil {
		return nil, why, err
	}
	m = &multi{body: body}
	if why = m.searches.Split(body, x.Request.Query); why != "" {
		return nil, why, nil
	}
	if !singleHeader(&m.header, &x.Request.Header) {
		return nil, query.ReasonRequestType, nil
	}
	r := query.Request{API: "search", Method: x.Request.Method, Header: &m.header}
	t.caller(x, l.options.ByAddress, &r)
	m.items = make([]item, len(m.searches.List))
	// What is not in the key changes no complete answer, but others: who lets an answer be partial is not the same as who
	// does not.
	type likeness struct{ key, dropped query.Key }
	first := map[likeness]int{}
	keys := 0
	for i := range m.items {
		s, it := &m.searches.List[i], &m.items[i]
		it.same, it.index = i, s.Index
		if s.Index == nil {
			it.index = c.Index
		}
		if s.Unknown {
			it.verdict.Bypass = query.ReasonArguments
			continue
		}
		r.Index, r.RawQuery, r.Body = it.index, s.RawQuery, s.Body
		if it.key, it.verdict = l.keyer.Key(&r); it.verdict.Bypass != "" {
			continue
		}
		if err := l.identify(x, next, t, &it.verdict); err != nil {
			return nil, "", err
		}
		it.key = l.scoped(t, it.key, &it.verdict, t.who)
		keys++
		t.verdict = it.verdict // what the header says is the same for all
		like := likeness{it.key, it.verdict.Dropped}
		if same, ok := first[like]; ok {
			it.same = same
		} else {
			first[like] = i
		}
	}
	if keys == 0 {
		return nil, m.items[0].verdict.Bypass, nil
	}
	return m, "", nil
}

// singleHeader makes h the header that each search of a _msearch with the header of would have: lines of JSON become JSON. It
// returns false for another type.
func singleHeader(h, of *wire.Header) bool {
	for _, f := range of.Fields() {
		if wire.EqualFold(f.Name, "content-type") {
			switch {
			case wire.EqualFold(f.Value, "application/x-ndjson"):
				f.Value = typeJSON
			case len(f.Value) > len(vendorLines) && wire.EqualFold(f.Value[:len(vendorLines)], vendorLines):
				f.Value = append([]byte(vendorJSON), f.Value[len(vendorLines):]...)
			case !wire.EqualFold(f.Value, "application/json"):
				return false
			}
		}
		h.Add(f.Name, f.Value)
	}
	return true
}

const (
	vendorLines = "application/vnd.elasticsearch+x-ndjson"
	vendorJSON  = "application/vnd.elasticsearch+json"
)

var typeJSON = []byte("application/json")

// lookUp looks for a stored answer to an item.
func (l *lookup) lookUp(t *ticket, it *item, now time.Time) bool {
	if it.verdict.Bypass != "" {
		return false
	}
	t.key, t.verdict = it.key, it.verdict
	e := l.find(t)
	switch {
	case e == nil || e.warns():
		return false
	case l.refusal(t, e, now) == "":
		it.renew = l.renewsAhead(e, now)
		l.giveItem(it, e, now, "")
		return true
	case l.mayRevalidate(t, e, now):
		it.renew = true
		l.giveItem(it, e, now, detailRevalidate)
		return true
	}
	it.past = e
	return false
}

// giveItem makes e the answer to an item. If its time is over, detail says why it is given.
func (l *lookup) giveItem(it *item, e *Entry, now time.Time, detail string) {
	e.hits.Add(1)
	l.ages.Observe(e.age(now).Seconds())
	it.entry, it.answer, it.from, it.detail = e, nil, fromStore, detail
	if detail != "" {
		it.from = fromPast
	}
}

// rescueItem is rescue for one search of a _msearch.
func (l *lookup) rescueItem(t *ticket, it *item) bool {
	now := time.Now()
	if t.verdict, t.past = it.verdict, it.past; !l.mayRescue(t, now) {
		return false
	}
	l.giveItem(it, it.past, now, detailError)
	return true
}

// renewMulti asks for what is to be renewed of the answers that are stored, in the background and in one _msearch.
func (l *lookup) renewMulti(x *flows.Exchange, next flows.Handler, t *ticket, m *multi, now time.Time) {
	var due []int
	for i := range m.items {
		if it := &m.items[i]; it.renew && it.entry.claim(now) {
			due = append(due, i)
		}
	}
	if len(due) == 0 || !l.shared.beginRenewal() {
		return
	}
	var led []*flight
	due = slices.DeleteFunc(due, func(i int) bool {
		f := l.leadRenewal(&m.items[i].key, &m.items[i].verdict, now)
		if f != nil {
			led = append(led, f)
		}
		return f == nil
	})
	d, td, md := l.detachMulti(x, t, m, due, led, renewLimit)
	if d == nil {
		l.shared.renewals.Add(-1)
		for _, f := range led {
			l.shared.flights.land(f, now, false)
		}
		return
	}
	l.inBackground(d, func() {
		defer l.shared.renewals.Add(-1)
		err := l.fillMulti(d, next, td, md)
		for i := range md.items {
			it := &md.items[i]
			l.shared.countRenewal(it.stored, failed(d, err) || failing(it.status))
		}
	})
}

// detachMulti returns an exchange of its own that asks for some searches of m, whose flights led are, with its ticket and what is
// known of it, or nil if there can be none, or there is no search.
func (l *lookup) detachMulti(x *flows.Exchange, t *ticket, m *multi, which []int, led []*flight, limit time.Duration) (*flows.Exchange, *ticket, *multi) {
	if len(which) == 0 {
		return nil, nil, nil
	}
	d, td := l.detach(x, t, limit)
	if d == nil {
		return nil, nil, nil
	}
	md := &multi{items: make([]item, len(which))}
	for _, i := range which {
		md.body = m.searches.List[i].Append(md.body)
	}
	_ = md.searches.Split(md.body, d.Request.Query) // which has been split before
	for n, i := range which {
		it, s := &m.items[i], &md.searches.List[n]
		md.items[n] = item{wanted: wanted{key: it.key, verdict: it.verdict}, index: s.Index, same: n, flight: led[n], leads: true}
		if s.Index == nil {
			md.items[n].index = d.Call().Index
		}
		md.asked = append(md.asked, n)
	}
	return d, td, md
}

// fillMulti sends the items of m, all of which lead flights, and lands these with what comes of it.
func (l *lookup) fillMulti(x *flows.Exchange, next flows.Handler, t *ticket, m *multi) (err error) {
	returned := false
	defer func() { l.landMulti(x, t, m, err, returned) }() // also when a filter below panics
	err = l.askMulti(x, next, t, m)
	if m.failed = err; err == nil && m.launch != nil {
		m.came = failure(x, t.asked)
	}
	returned = true
	return err
}

// mayLaunch tells whether older answers are at hand for all that is asked for, so that nobody waits for the new ones at any price.
func (l *lookup) mayLaunch(t *ticket, m *multi) bool {
	now := time.Now()
	return !slices.ContainsFunc(m.asked, func(i int) bool {
		it := &m.items[i]
		t.verdict, t.past = it.verdict, it.past
		return !it.leads || !l.mayRescue(t, now)
	})
}

// launchMulti is launch for the flights that m leads, which are for all that is asked for.
func (l *lookup) launchMulti(x *flows.Exchange, next flows.Handler, t *ticket, m *multi, led []*flight) bool {
	d, td, md := l.detachMulti(x, t, m, m.asked, led, launchLimit)
	if d == nil {
		return false
	}
	m.launch, m.launched = &launch{cancel: d.Cancel(), flights: led}, md
	md.launch = m.launch
	for n, i := range m.asked {
		it := &m.items[i]
		it.leads, it.launched = false, &md.items[n]
		l.shared.flights.await(it.flight)
		it.flight.launch.Store(m.launch)
	}
	l.inBackground(d, func() { _ = l.fillMulti(d, next, td, md) }) // an error is given to those who wait
	return true
}

// takeLaunched takes what was answered where m has launched flights, if they have landed, for the items that are still to be asked
// for. It tells whether that is the answer to the whole request.
func (l *lookup) takeLaunched(x *flows.Exchange, t *ticket, m *multi) (whole bool, err error) {
	if m.launch == nil || !m.launch.flights[0].landed.Load() {
		return false, nil
	}
	traceAs(x, &m.launch.flights[0].trace)
	came := m.launched.came
	switch {
	case came != nil && came.status == 200:
		m.fields = came.fields
		answers, ok := query.Responses(came.body)
		if !ok || len(answers) != len(m.launched.items) {
			return false, nil
		}
		for n := range answers {
			m.launched.items[n].answer = answers[n]
		}
		m.asked = slices.DeleteFunc(m.asked, func(i int) bool {
			it := &m.items[i]
			if it.launched == nil {
				return false
			}
			it.answer, it.why = it.launched.answer, it.launched.why
			return true
		})
		return false, nil
	case !slices.ContainsFunc(m.asked, func(i int) bool { return m.items[i].launched != nil }):
		return false, nil
	case m.launched.failed != nil:
		t.why = reasonUnanswered
	case came == nil: // it is for nobody else
		return false, nil
	default:
		t.why = query.ReasonStatus
		came.give(x, false)
	}
	l.passWhole(x, t, m, false)
	return true, m.launched.failed
}

// passWhole counts, and says, that x was answered as a whole by a node. Unless it was asked for all, what was there already is not
// what the client is given.
func (l *lookup) passWhole(x *flows.Exchange, t *ticket, m *multi, all bool) {
	if !all {
		for i := range m.items {
			m.items[i].from, m.items[i].stored, m.items[i].detail = fromNode, false, ""
		}
	}
	l.countMulti(m)
	l.requests[outcomeMiss].Inc()
	t.sayMulti(x, m)
}

// warns tells whether e came with a warning. In a _msearch nobody knows which search it was about.
func (e *Entry) warns() bool {
	for _, f := range e.fields {
		if wire.EqualFold(f.Name, "warning") {
			return true
		}
	}
	return false
}

// fetchMulti gets the answers that are missing, from next and by flights of other requests, and puts all together.
func (l *lookup) fetchMulti(x *flows.Exchange, next flows.Handler, t *ticket, m *multi) (err error) {
	returned := false
	defer func() { // also when a filter below panics
		l.landMulti(x, t, m, err, returned)
		l.leaveMulti(m)
	}()
	l.joinMulti(t, m)
	var led []*flight
	for i := range m.items {
		it := &m.items[i]
		if it.same == i && it.entry == nil && (it.flight == nil || it.leads) {
			m.asked = append(m.asked, i)
		}
		if it.leads {
			led = append(led, it.flight)
		}
	}
	switch {
	case len(m.asked) == 0:
	case l.mayLaunch(t, m) && l.launchMulti(x, next, t, m, led):
		m.asked = nil // it waits for them like others
	default:
		// It is asked from another goroutine, so it looks at what does not change.
		x.HoldCancel(func() bool { return slices.ContainsFunc(led, (*flight).held) })
		whole, err := l.callMulti(x, next, t, m)
		returned = true
		if err != nil || whole {
			return err
		}
	}
	// What this request leads lands before it waits for others, so that two requests never wait for each other.
	returned = true
	l.landMulti(x, t, m, nil, returned)
	if err := l.waitMulti(x, t, m); err != nil {
		return err
	}
	if whole, err := l.takeLaunched(x, t, m); whole {
		return err
	}
	if len(m.asked) > 0 {
		whole, err := l.callMulti(x, next, t, m)
		if err != nil || whole {
			return err
		}
	}
	l.merge(x, t, m)
	return nil
}

// joinMulti joins the flights for what is missing, or begins them.
func (l *lookup) joinMulti(t *ticket, m *multi) {
	for i := range m.items {
		it := &m.items[i]
		if it.same != i || it.entry != nil || it.verdict.Bypass != "" {
			continue
		}
		now := time.Now()
		if it.past != nil && l.shared.flights.overdue(&it.key, now, l.stale.maxWait) && l.rescueItem(t, it) {
			continue
		}
		f, lead := l.shared.flights.join(&it.key, now, l.joiner(&it.verdict))
		if f != nil && !lead && m.leads(f) { // for another search of the request, which is sent together with this one
			l.shared.flights.leave(f)
			continue
		}
		it.flight, it.leads = f, lead
		if it.leads && l.lookUp(t, it, now) { // another flight has landed meanwhile
			if it.from == fromStore {
				it.flight.entry = it.entry
			}
			l.shared.flights.land(it.flight, now, false)
			it.flight, it.leads = nil, false
		}
	}
}

// leads tells whether m leads f.
func (m *multi) leads(f *flight) bool {
	for i := range m.items {
		if it := &m.items[i]; it.leads && it.flight == f {
			return true
		}
	}
	return false
}

// askMulti sends the items that are to be asked for, and offers their answers to the cache.
func (l *lookup) askMulti(x *flows.Exchange, next flows.Handler, t *ticket, m *multi) error {
	body := m.body
	if len(m.asked) < len(m.items) {
		body = nil
		for _, i := range m.asked {
			body = m.searches.List[i].Append(body)
		}
	}
	t.ask.Reset()
	for part, i := range m.asked {
		it := &m.items[i]
		l.stampOf(&t.ask, &it.verdict, it.index, m.searches.List[i].RawQuery)
		if it.leads {
			l.shared.flights.stampedBy(it.flight, &t.ask, part)
		}
	}
	x.Request.Body.Replace(body)
	defer x.Request.Body.Replace(m.body)
	t.multi = m
	err := l.call(x, next, t)
	t.multi = nil
	if x.Trace.Outcome == flows.Upstream && err == nil {
		l.forgetRefused(x, t, m)
	}
	switch {
	case err != nil || !x.Response.Answered():
		t.why = reasonUnanswered
	case x.Response.Status != 200:
		t.why = query.ReasonStatus
	}
	return err
}

// callMulti sends the items that are to be asked for, and lands the flights that m leads. It tells whether the answer of next is
// the answer to the whole request.
func (l *lookup) callMulti(x *flows.Exchange, next flows.Handler, t *ticket, m *multi) (whole bool, err error) {
	all := len(m.asked) == len(m.items)
	err = l.askMulti(x, next, t, m)
	l.landMulti(x, t, m, err, true) // before what is older takes the place of what has failed
	switch {
	case l.rescueMulti(x, t, m, err):
		return false, nil
	case err != nil, !x.Response.Answered(), x.Response.Status != 200:
	case all:
	default:
		if m.takeApart(x) {
			return false, nil
		}
		// It cannot be put together with the others: all is asked for as if there were no cache.
		x.Request.Body.Replace(m.body)
		t.why = query.ReasonMalformed
		err = next.Serve(x)
	}
	l.passWhole(x, t, m, all)
	return true, err
}

// rescueMulti gives the asked items for which the cluster failed what is kept of before, if there is such an answer to any. The
// others are then told of the failure, each by itself, as nodes do where one search fails.
func (l *lookup) rescueMulti(x *flows.Exchange, t *ticket, m *multi, err error) bool {
	whole := failed(x, err)
	rescuable := func(i int) bool {
		it := &m.items[i]
		t.verdict, t.past = it.verdict, it.past
		return (whole || failing(it.status)) && l.mayRescue(t, time.Now())
	}
	if !slices.ContainsFunc(m.asked, rescuable) || !whole && !m.takeApart(x) {
		return false
	}
	var failure []byte
	if whole {
		failure = m.failure(x, err)
	}
	for _, i := range m.asked {
		it := &m.items[i]
		if (whole || failing(it.status)) && l.rescueItem(t, it) {
			continue
		}
		if whole {
			it.answer, it.why = failure, t.why
		}
	}
	if whole {
		x.Reply(200, "", nil) // as of which merge takes the place
		m.addFields(x)
		x.Trace.Outcome = flows.Hit
	}
	return true
}

// failure returns the failure of a whole _msearch as that of one search.
func (m *multi) failure(x *flows.Exchange, err error) []byte {
	if err != nil {
		return elastic.AsError(err).Body()
	}
	status := x.Response.Status
	if body, err := x.Response.Body.Bytes(maxFailure); err == nil && query.ItemStatus(body) == status {
		return bytes.Clone(body)
	}
	return elastic.Errorf(status, "answer_exception", "the cluster answered %d to all searches", status).Body()
}

// forgetRefused ends what is kept for the searches that the node has refused, each by itself or all.
func (l *lookup) forgetRefused(x *flows.Exchange, t *ticket, m *multi) {
	for _, i := range m.asked {
		it := &m.items[i]
		if it.verdict.Bypass == "" && l.refused(t, max(x.Response.Status, it.status)) {
			l.shared.forget(&it.key)
		}
	}
}

// takeApart gives the asked items their answers.
func (m *multi) takeApart(x *flows.Exchange) bool {
	body, err := x.Response.Body.Bytes(maxMerged)
	if err != nil {
		return false
	}
	answers, ok := query.Responses(body)
	if !ok || len(answers) != len(m.asked) {
		return false
	}
	for n, i := range m.asked {
		m.items[i].answer = answers[n]
	}
	return true
}

// offerMulti stores the complete answers among the items of the answer of x. It returns why nothing of it is stored, and an
// error only if the answer cannot be given to the client either.
func (k *storing) offerMulti(x *flows.Exchange, t *ticket) (query.Reason, error) {
	m, most := t.multi, k.limit(t)
	body, why, err := k.answer(x, t, min(maxMerged, most*int64(len(m.asked))))
	if why != "" || err != nil {
		return why, err
	}
	answers, ok := query.Responses(body)
	if !ok || len(answers) != len(m.asked) {
		return query.ReasonMalformed, nil
	}
	for n, i := range m.asked {
		m.items[i].why = k.offerItem(x, t, n, answers[n], most)
	}
	return "", nil
}

// offerItem stores the answer to the n-th search that was asked for, if it is complete, or says why it does not.
func (k *storing) offerItem(x *flows.Exchange, t *ticket, n int, answer []byte, most int64) query.Reason {
	m := t.multi
	i := m.asked[n]
	it := &m.items[i]
	if it.verdict.Bypass != "" {
		return it.verdict.Bypass
	}
	front, end, ok := query.CutItem(answer)
	switch {
	case !ok:
		it.status = query.ItemStatus(answer)
		return query.ReasonStatus
	case x.Response.Header.Has("warning"):
		return reasonWarning // nobody knows about which search
	case int64(len(front)) >= most:
		return reasonTooLarge
	}
	// The status does not matter to it.
	if ok, why := query.Complete("search", &it.verdict, 200, &x.Response.Header, answer); !ok {
		return why
	}
	search := query.Request{API: "search", Index: it.index, Body: m.searches.List[i].Body}
	return k.keep(x, t, &it.wanted, n, &search, front, end)
}

// landMulti ends the flights that m leads.
func (l *lookup) landMulti(x *flows.Exchange, t *ticket, m *multi, err error, returned bool) {
	for i := range m.items {
		it := &m.items[i]
		if !it.leads {
			continue
		}
		f := it.flight
		mark, why := false, cmp.Or(t.why, it.why)
		f.failed = returned && (failed(x, err) || failing(it.status))
		switch {
		case it.entry != nil:
			f.entry = it.entry
		case !returned, x.Cancel().Fired():
			f.lost = true
		case err != nil:
			if x.Trace.Outcome == flows.Upstream {
				f.err, f.partial, f.dropped, f.why = err, true, it.verdict.Dropped, why
			}
		case why != "" && !passing(why):
			mark = true
		}
		if m.launch != nil {
			f.trace, f.stored = x.Trace, it.stored
		}
		l.shared.flights.land(f, time.Now(), mark)
		it.flight, it.leads = nil, false
	}
}

// waitMulti waits for the flights of others that m has joined, and puts what they did not bring into asked.
func (l *lookup) waitMulti(x *flows.Exchange, t *ticket, m *multi) error {
	left := false
	m.asked = m.asked[:0]
	for i := range m.items {
		it := &m.items[i]
		f := it.flight
		if f == nil {
			continue
		}
		end := waitLeft
		if !left {
			end = f.wait(x, l.stale.maxWait)
			left = end == waitLeft
		}
		switch {
		case end == waitLanded && f.entry != nil && !f.partial && !f.entry.warns():
			if it.entry, it.from = f.entry, fromFlight; it.launched != nil {
				it.from, it.stored = fromNode, it.launched.stored
			}
		case end == waitLate && l.rescueItem(t, it):
			f.late.Store(true)
		case end == waitLanded && f.failed && l.rescueItem(t, it):
		default:
			m.asked = append(m.asked, i)
		}
	}
	l.leaveMulti(m)
	if left {
		return errClientLeft
	}
	if len(m.asked) > 0 {
		for i := range m.items {
			m.items[i].answer = bytes.Clone(m.items[i].answer) // the next answer may be read into the same memory
		}
	}
	return nil
}

// leaveMulti takes back what m has joined as a waiter.
func (l *lookup) leaveMulti(m *multi) {
	for i := range m.items {
		if it := &m.items[i]; it.flight != nil && !it.leads {
			l.shared.flights.leave(it.flight)
			it.flight = nil
		}
	}
}

// merge puts the answer to x together.
func (l *lookup) merge(x *flows.Exchange, t *ticket, m *multi) {
	l.write(x, m)
	if x.Response.Answered() {
		x.Response.Body.Replace(m.merged)
	} else {
		switch {
		case m.has(fromNode): // by a launch
		case m.has(fromFlight):
			x.Trace.Outcome = flows.Shared
		default:
			x.Trace.Outcome = flows.Hit
		}
		m.reply(x)
	}
	if m.has(fromNode) || m.has(fromFlight) {
		l.requests[outcomeMiss].Inc()
		l.countMulti(m)
		t.sayMulti(x, m)
		return
	}
	l.sayHits(x, t, m, time.Now())
}

// has tells whether an answer came from there.
func (m *multi) has(from origin) bool {
	for i := range m.items {
		if m.items[i].same == i && m.items[i].from == from {
			return true
		}
	}
	return false
}

// mergeHits answers x when all its items are stored.
func (l *lookup) mergeHits(x *flows.Exchange, t *ticket, m *multi, now time.Time) {
	l.write(x, m)
	x.Trace.Outcome = flows.Hit
	m.reply(x)
	l.sayHits(x, t, m, now)
}

// sayHits counts, and says, that x was answered by entries that are stored.
func (l *lookup) sayHits(x *flows.Exchange, t *ticket, m *multi, now time.Time) {
	l.countMulti(m)
	oldest := m.items[0].entry
	left, detail := oldest.left(now), m.detail()
	for i := range m.items {
		e := m.items[m.items[i].same].entry
		if left = min(left, e.left(now)); e.asked.Before(oldest.asked) {
			oldest = e
		}
	}
	if detail != "" {
		l.requests[outcomeStale].Inc()
		t.sayHit(x, oldest.age(now), left, detail)
		return
	}
	l.requests[outcomeHit].Inc()
	l.sayHit(x, t, oldest.age(now), left)
}

// detail returns why entries were given whose time is over, or "". That the cluster failed says more.
func (m *multi) detail() string {
	detail := ""
	for i := range m.items {
		if it := &m.items[i]; it.detail != "" && detail != detailError {
			detail = it.detail
		}
	}
	return detail
}

// write puts the items together as a node does. took is the time that the request took here.
func (l *lookup) write(x *flows.Exchange, m *multi) {
	out := append(m.merged[:0], `{"took":`...)
	out = strconv.AppendInt(out, time.Since(x.Start).Milliseconds(), 10)
	out = append(out, `,"responses":[`...)
	for i := range m.items {
		if i > 0 {
			out = append(out, ',')
		}
		it := &m.items[m.items[i].same]
		if it.answer != nil {
			out = append(out, it.answer...)
		} else {
			out, _ = query.AppendItem(out, it.entry.body) // complete answers end as objects do
		}
	}
	m.merged = append(out, "]}"...)
}

// reply makes the merged answer the response of x, with the fields of a stored one.
func (m *multi) reply(x *flows.Exchange) {
	x.Reply(200, "", m.merged)
	m.addFields(x)
}

// addFields gives the response of x the fields of the answer to what was launched for it, or else of a stored answer.
func (m *multi) addFields(x *flows.Exchange) {
	fields := m.fields
	if stored := slices.IndexFunc(m.items, func(it item) bool { return it.entry != nil }); fields == nil && stored >= 0 {
		fields = m.items[stored].entry.fields
	}
	for _, f := range fields {
		x.Response.Header.Add(f.Name, f.Value)
	}
	if id := x.Request.Header.Get("x-opaque-id"); id != nil {
		x.Response.Header.Add(opaqueID, id)
	}
}

// countMulti counts where the answers to the items came from.
func (l *lookup) countMulti(m *multi) {
	for i := range m.items {
		it := &m.items[m.items[i].same]
		from := it.from
		if it.same != i && from == fromNode {
			from = fromFlight // asked for once, given twice
		}
		if from != fromNode && it.entry != nil {
			l.save(it.entry, int64(len(it.entry.body)))
		}
		l.items[from].Inc()
	}
}

// sayMulti says what the cache did with a _msearch of which not all was stored: for how many of the searches there was an
// answer already.
func (t *ticket) sayMulti(x *flows.Exchange, m *multi) {
	had, stored, why := 0, 0, t.why
	for i := range m.items {
		switch it := &m.items[m.items[i].same]; {
		case it.from != fromNode:
			had++
		case it.stored:
			stored++
		case why == "":
			why = it.why
		}
	}
	from := len(t.scratch)
	switch {
	case had > 0:
		t.scratch = append(t.scratch, `weir; fwd=partial; detail="`...)
		t.scratch = strconv.AppendInt(t.scratch, int64(had), 10)
		t.scratch = append(t.scratch, '/')
		t.scratch = strconv.AppendInt(t.scratch, int64(len(m.items)), 10)
		if detail := m.detail(); detail != "" {
			t.scratch = append(append(t.scratch, ' '), detail...)
		}
		t.scratch = append(t.scratch, '"')
	case stored > 0:
		t.scratch = append(t.scratch, "weir; fwd=miss; stored"...)
	default:
		t.sayForward(x, "miss", "", why)
		return
	}
	t.say(x, from)
}
