package cache

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/elastic/generation"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/simtime"
)

// The model of the cache is the cluster itself: after each step that changes what searches find, everybody's searches are
// sent to it directly, and an answer through the cache must be one of those that were right at some moment within the bound.

const (
	modelTTL   = 10 * time.Second
	modelPolls = 5 * time.Second
	// modelBound is how long a change around the gateway may stay unseen: the time to live with its spread, which is over
	// twice the interval of polls.
	modelBound = modelTTL + modelTTL/10
)

// A modelSearch is a search that is asked again and again.
type modelSearch struct{ index, api, body string }

var modelSearches = []modelSearch{
	{"i1", "_count", `{"query":{"range":{"n":{"gte":1}}}}`},
	{"i1", "_search", `{"size":3,"sort":{"a":"asc","b":"desc"}}`},
	{"i1", "_search", `{"size":3,"sort":{"b":"desc","a":"asc"}}`},
	{"i1", "_search", `{"query":{"term":{"k":1}},"sort":["n"]}`},
	{"i1", "_search", `{"query":{"term":{"k":1.0}},"sort":["n"]}`},
	{"i2", "_search", `{"size":0,"aggs":{"n":{"sum":{"field":"n"}}}}`},
	{"al", "_search", `{"sort":["n","a"],"size":5}`},
	{"i*", "_search", `{"sort":["n","a"],"size":5}`},
}

var modelCallers = []string{"alice", "bob"}

// A step is one thing that happens.
type step struct {
	what    string
	through bool // the gateway
	index   string
	n       int
}

func (s step) String() string {
	return fmt.Sprintf("%s(%s,%d,through=%v)", s.what, s.index, s.n, s.through)
}

// modelSteps draws what happens.
func modelSteps(r *rand.Rand, kind modelKind) []step {
	kinds := []string{
		"search", "search", "search", "search", "msearch", "put", "put", "put visibly", "put visibly", "delete", "refresh", "switch", "filter", "map",
		"create", "pass", "pass", "pass long", "lose a shard", "search while writing", "search while writing", "stop", "reload",
	}
	if kind == byPrincipal {
		kinds = append(kinds, "grant", "grant")
	}
	steps := make([]step, 10+r.IntN(40))
	for i := range steps {
		steps[i] = step{kinds[r.IntN(len(kinds))], r.IntN(2) == 0, []string{"i1", "i2"}[r.IntN(2)], r.IntN(1000)}
	}
	return steps
}

// A modelKind is a configuration of the cache.
type modelKind uint8

const (
	byCredentials modelKind = iota
	byPrincipal             // the cluster is asked who callers are, as often as changes are looked for
	pastTheirTime           // answers are given past their time
	modelKinds
)

var modelKindNames = [modelKinds]string{"by credentials", "by principal", "past their time"}

// modelPast is how long past their time answers are given.
const modelPast = 4 * time.Second

// A plant is a fault in the cache that the model must find.
type plant uint8

const (
	plantNothing plant = iota
	plantNoIdentity
	plantNoSortOrder
	plantNumbersFolded
	plantPartialStored
	plantStampAfterwards
	plantWritesUnseen
	plantPollsFrozen
	plantOnePrincipal
)

var plantNames = []string{
	"nothing", "identity dropped", "sort order ignored", "numbers folded", "partial answers stored", "generation read after the query", "writes not seen",
	"counters that stand still", "everybody one principal",
}

// plantRounds are rounds that find the faults.
var plantRounds = []uint64{0, 0, 8, 2, 0, 26, 6, 60, 0}

// A direct answer was right from its time on until the next one.
type direct struct {
	at   time.Time
	text string
}

// A model is the cache over a scripted cluster, in simulated time.
type model struct {
	*rig
	plant   plant
	cluster *estest.Cluster
	http    *http.Client
	tracker *generation.Tracker
	history map[string][]direct  // by caller and number of the search
	own     map[string]time.Time // when the last change through the gateway was visible, by what is searched
	moved   time.Time            // when the alias was last changed around the gateway
	aliased map[string]bool      // indices that have the alias
	frozen  sync.Map             // answers to polls, by target
	during  func()               // happens between a node's answer and its arrival
	failing atomic.Int64         // answers that lost shards
	running []modelAsync
	losing  int // shards that async searches lose
	users   []estest.User
	kind    modelKind
	bound   time.Duration // on how long a change around the gateway may stay unseen
	turn    int           // of the callers' tokens
	wrong   string
}

// A modelAsync is an async search that runs.
type modelAsync struct{ caller, id string }

// A way is one of those in which a search is asked.
type way uint8

const (
	alone way = iota
	inMulti
	async
)

const modelSecret = "secret"

func basic(name string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+modelSecret))
}

// playModel plays steps and returns what was wrong, or "".
func playModel(t *testing.T, p plant, kind modelKind, steps []step) string {
	t.Helper()
	wrong := ""
	simtime.Test(t, func(t *testing.T) {
		m := newModel(t, p, kind)
		defer m.tracker.Close()
		defer m.tracker.Use(m)()
		defer m.http.CloseIdleConnections()
		for i, s := range steps {
			m.step(s)
			if m.wrong != "" {
				wrong = fmt.Sprintf("%s, at the end of %v", m.wrong, steps[:i+1])
				return
			}
		}
	})
	return wrong
}

func newModel(t *testing.T, p plant, kind modelKind) *model {
	flow := modelFlow(kind)
	if p == plantNoIdentity {
		flow = strings.Replace(flow, "ttl:", "identity: shared, ttl:", 1)
	}
	m := &model{rig: newRig(t, flow), plant: p, kind: kind, bound: modelBound, history: map[string][]direct{}, own: map[string]time.Time{}, aliased: map[string]bool{"i1": true}}
	if kind == pastTheirTime {
		m.bound += modelPast
	}
	m.users = []estest.User{
		{Name: "alice", Password: modelSecret, Filter: `{"term":{"team":"a"}}`, Tokens: []string{"alice0", "alice1"}},
		{Name: "bob", Password: modelSecret, Tokens: []string{"bob0", "bob1"}},
		{Name: "weir", Password: modelSecret},
	}
	m.cluster = estest.New(t, estest.Options{InMemory: true, RefreshInterval: -1, Users: m.users})
	m.http = &http.Client{Transport: &http.Transport{DialContext: m.cluster.Dial}}
	m.tracker = generation.New(generation.Options{Cluster: "c", Metrics: m.metrics, Logger: slog.New(slog.DiscardHandler)})
	m.node = m.answer
	m.direct("PUT", "/i1", modelMapping)
	m.direct("PUT", "/i2", modelMapping)
	m.direct("POST", "/_aliases", `{"actions":[{"add":{"index":"i1","alias":"al"}}]}`)
	for i := range 20 {
		s := step{index: []string{"i1", "i2"}[i%2], n: i * 37}
		m.direct("PUT", fmt.Sprintf("/%s/_doc/%d?refresh=true", s.index, s.n%20), s.document())
	}
	m.record()
	return m
}

// modelFlow returns the flow with the cache. Where the cluster is asked who callers are, that is bound as changes are.
func modelFlow(kind modelKind) string {
	more := ""
	switch kind {
	case byPrincipal:
		more = fmt.Sprintf(", identity: principal, auth_ttl: %s", modelBound)
	case pastTheirTime:
		more = fmt.Sprintf(", stale_while_revalidate: %[1]s, stale_if_error: %[1]s, refresh_ahead: 2s", modelPast)
	}
	return fmt.Sprintf(`[{name: main, filter: [{cache: {ttl: %s, poll_interval: %s%s}}, {node: {}}]}]`, modelTTL, modelPolls, more)
}

const modelMapping = `{"settings":{"number_of_shards":2,"number_of_replicas":0},"mappings":{"properties":{"k":{"type":"keyword"},"n":{"type":"long"},
	"a":{"type":"long"},"b":{"type":"long"},"team":{"type":"keyword"}}}}`

// Perform implements generation.Client.
func (m *model) Perform(req *http.Request) (*http.Response, error) {
	req.URL.Scheme, req.URL.Host = "http", m.cluster.Node(0).Addr()
	req.Header.Set("Authorization", basic("weir"))
	if m.plant != plantPollsFrozen {
		return m.http.Do(req)
	}
	answer, ok := m.frozen.Load(req.URL.String())
	if !ok {
		resp, err := m.http.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		answer, _ = m.frozen.LoadOrStore(req.URL.String(), string(text))
	}
	text, _ := answer.(string)
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(text))}, nil
}

// send sends a call to the cluster.
func (m *model) send(caller, method, target, body string) (int, string, http.Header, error) {
	req, err := http.NewRequestWithContext(m.t.Context(), method, m.cluster.URL()+target, strings.NewReader(body))
	if err != nil {
		return 0, "", nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", caller)
	resp, err := m.http.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer), resp.Header, err
}

// direct makes a change around the gateway.
func (m *model) direct(method, target, body string) {
	if _, _, _, err := m.send(basic("weir"), method, target, body); err != nil {
		m.t.Fatal(err)
	}
}

var errNodeDown = errors.New("the node is down")

// answer is what the filter elasticsearch does with an exchange.
func (m *model) answer(x *flows.Exchange, _ int64) error {
	body, err := x.Request.Body.Bytes(1 << 20)
	if err != nil {
		return err
	}
	sent := string(body)
	if original := x.Request.Header.Get("x-correlation-id"); original != nil {
		sent = string(original)
	}
	a := flows.Stamps.Get(x)
	if a != nil && m.plant != plantStampAfterwards {
		a.Fill(m.tracker)
	}
	if m.plant == plantOnePrincipal && x.Call().Name == "security.authenticate" {
		x.Request.Header.Set("Authorization", "Bearer bob0")
	}
	status, text, header, err := m.send(string(x.Request.Header.Get("authorization")), string(x.Request.Method), string(x.Request.Target), sent)
	if during := m.during; during != nil && (x.Call().Name == "search" || query.BeginsAsync(x.Call().Name)) {
		m.during = nil
		during()
	}
	if a != nil && m.plant == plantStampAfterwards {
		a.Fill(m.tracker)
	}
	if strings.Contains(text, `"failed":1`) {
		m.failing.Add(1)
		// The scripted cluster finds all documents in spite of it; a real one does not.
		text = strings.Replace(text, `"relation":"eq"`, `"relation":"lost"`, 1)
		if m.plant == plantPartialStored {
			text = failedShards.ReplaceAllString(text, `"_shards":{"total":2,"successful":2,"skipped":0,"failed":0},"hits"`)
		}
	}
	if m.plant != plantWritesUnseen {
		m.tracker.Note(&generation.Write{
			Call: x.Call(), Method: x.Request.Method, Query: x.Request.Query, Body: body, Status: status, Answer: []byte(text),
		})
	}
	if err != nil {
		return errNodeDown
	}
	x.Reply(status, header.Get("Content-Type"), []byte(text))
	return nil
}

var (
	failedShards = regexp.MustCompile(`"_shards":\{.*?\},"hits"`)
	// essential is what an answer says about documents.
	essential = regexp.MustCompile(`"(hits|count)":.*`)
)

// essence is what of an answer must be right.
func essence(text string) string {
	if item, ok := strings.CutSuffix(text, `,"status":200}`); ok {
		text = item + "}"
	}
	return essential.FindString(text)
}

// record asks the cluster directly, and remembers what is right from now on.
func (m *model) record() {
	var body strings.Builder
	for _, s := range modelSearches {
		if s.api == "_search" {
			fmt.Fprintf(&body, "{\"index\":%q}\n%s\n", s.index, s.body)
		}
	}
	for _, caller := range modelCallers {
		_, text, _, err := m.send(basic(caller), "POST", "/_msearch", body.String())
		if err != nil {
			return // the node is down
		}
		items, ok := query.Responses([]byte(text))
		if !ok {
			m.t.Fatalf("no answer to a _msearch: %s", text)
		}
		for i, s := range modelSearches {
			if s.api == "_search" {
				text, items = string(items[0]), items[1:]
			} else if _, text, _, err = m.send(basic(caller), "POST", "/"+s.index+"/"+s.api, s.body); err != nil {
				return
			}
			key := fmt.Sprint(caller, i)
			list := m.history[key]
			if d := (direct{time.Now(), essence(text)}); len(list) == 0 || list[len(list)-1].text != d.text {
				m.history[key] = append(list, d)
			}
		}
	}
}

// right tells whether an answer to a search that was sent at some time was right at a moment that is not too long ago.
func (m *model) right(caller string, search int, text string, sent, own time.Time) bool {
	since := sent.Add(-m.bound)
	if own.After(since) {
		since = own
	}
	list := m.history[fmt.Sprint(caller, search)]
	for i, d := range list {
		if d.text == text && (i+1 == len(list) || list[i+1].at.After(since)) {
			return true
		}
	}
	return false
}

// folded is the body as a cache with a planted fault sees it.
func (m *model) folded(body string) string {
	switch m.plant {
	case plantNoSortOrder:
		return strings.Replace(body, `{"b":"desc","a":"asc"}`, `{"a":"asc","b":"desc"}`, 1)
	case plantNumbersFolded:
		return strings.Replace(body, `1.0`, `1`, 1)
	}
	return body
}

// exchange makes an exchange through the gateway, and returns its status and body.
func (m *model) exchange(caller, method, target, body string) (int, string) {
	credentials := basic(caller)
	if m.turn++; m.kind == byPrincipal && caller != "weir" && m.turn%3 > 0 {
		credentials = fmt.Sprintf("Bearer %s%d", caller, m.turn%3-1)
	}
	x := request(target, m.folded(body), "Authorization", credentials, "X-Correlation-Id", body)
	x.Request.Method = []byte(method)
	if err := m.serve("main", x); err != nil {
		return 0, ""
	}
	return x.Response.Status, bodyOf(x)
}

// check asks a search through the gateway. An async one may run for a while.
func (m *model) check(caller string, i int, how way, runs time.Duration) {
	s, sent, failing := modelSearches[i], time.Now(), m.failing.Load()
	own := m.own[s.index]
	var status int
	var text string
	switch {
	case how == inMulti && s.api == "_search":
		m.checkMulti(caller, i)
		return
	case how == async && s.api == "_search":
		fault := m.cluster.Inject(estest.Fault{Path: "*/_async_search", FailedShards: m.losing, Running: runs})
		status, text = m.exchange(caller, "POST", "/"+s.index+"/_async_search?wait_for_completion_timeout=0", s.body)
		fault.Remove()
		a, ok := query.ReadAsync([]byte(text))
		if ok && a.Judge(true) == query.ReasonRunning {
			m.running = append(m.running, modelAsync{caller, string(a.ID)})
			return
		}
		text = string(a.Response)
	default:
		status, text = m.exchange(caller, "POST", "/"+s.index+"/"+s.api, s.body)
	}
	if status != 200 || m.failing.Load() > failing {
		return // the truth, and a matter between the node and this caller
	}
	if got := essence(text); !m.right(caller, i, got, sent, own) {
		m.wrong = fmt.Sprintf("%s got %s to %s/%s %s", caller, got, s.index, s.api, s.body)
	}
}

// checkMulti asks a search and the next one of all in one _msearch.
func (m *model) checkMulti(caller string, i int) {
	asked, body := []int{i, 1 + i%(len(modelSearches)-1)}, "" // the first is a _count
	sent, failing := time.Now(), m.failing.Load()
	var own []time.Time
	for _, n := range asked {
		body += fmt.Sprintf("{\"index\":%q}\n%s\n", modelSearches[n].index, modelSearches[n].body)
		own = append(own, m.own[modelSearches[n].index])
	}
	status, text := m.exchange(caller, "POST", "/_msearch", body)
	answers, ok := query.Responses([]byte(text))
	if status != 200 || !ok || m.failing.Load() > failing {
		return
	}
	for k, n := range asked {
		if query.ItemStatus(answers[k]) != 200 {
			continue
		}
		if got := essence(string(answers[k])); !m.right(caller, n, got, sent, own[k]) {
			m.wrong = fmt.Sprintf("%s got %s to %s %s in a _msearch", caller, got, modelSearches[n].index, modelSearches[n].body)
		}
	}
}

// change makes a change of an index, or of all if index is empty, through or around the gateway. Searches see it at once if
// it is visible.
func (m *model) change(through, visible bool, index, method, target, body string) {
	now := time.Now()
	if through {
		status, _ := m.exchange("weir", method, target, body)
		if status == 0 {
			return
		}
		if status >= 400 && index == "" { // refused; the scripted cluster may have done a part, unlike a real one
			through, m.moved = false, now
		}
	} else {
		m.direct(method, target, body)
	}
	if !visible {
		return
	}
	for _, s := range modelSearches {
		// Who changes the alias around the gateway hides for a while what writes to the index behind it are about.
		concerned := index == "" || s.index == index || s.index == "i*" || s.index == "al" && m.aliased[index] && now.Sub(m.moved) > m.bound
		if through && concerned {
			m.own[s.index] = now
		}
	}
	m.record()
}

// alias notes which indices have the alias now.
func (m *model) alias(through bool, index string, has bool) {
	m.aliased[index] = has
	if !through {
		m.moved = time.Now()
	}
}

func (m *model) put(s step, query string) {
	m.change(s.through, query != "", s.index, "PUT", fmt.Sprintf("/%s/_doc/%d%s", s.index, s.n%20, query), s.document())
}

// document is what a step writes.
func (s step) document() string {
	return fmt.Sprintf(`{"n":%d,"a":%d,"b":%d,"k":%q,"team":%q}`, s.n, s.n%3, s.n%5, []string{"1", "1.0"}[s.n/2%2], "ab"[s.n%2:][:1])
}

// fetch asks for the async searches that run. Those that are over by then may be kept.
func (m *model) fetch() {
	m.running = slices.DeleteFunc(m.running, func(a modelAsync) bool {
		status, text := m.exchange(a.caller, "GET", "/_async_search/"+a.id, "")
		return status != 0 && !strings.Contains(text, `"is_running":true`)
	})
}

// step makes one thing happen, and the moment pass in which it does.
func (m *model) step(s step) {
	defer func() { <-time.After(time.Millisecond) }()
	caller, which := modelCallers[s.n%len(modelCallers)], s.n/2%len(modelSearches)
	how, runs := alone, time.Duration(s.n/50%5)*time.Second
	if s.n/20%3 == 0 {
		how = async
	}
	switch s.what {
	case "search":
		m.check(caller, which, how, runs)
	case "msearch":
		m.check(caller, which, inMulti, 0)
	case "put":
		m.put(s, "")
	case "put visibly":
		m.put(s, "?refresh=true")
	case "delete":
		m.change(s.through, true, s.index, "DELETE", fmt.Sprintf("/%s/_doc/%d?refresh=wait_for", s.index, s.n%20), "")
	case "refresh":
		m.change(s.through, true, s.index, "POST", "/"+s.index+"/_refresh", "")
	case "switch":
		other := map[string]string{"i1": "i2", "i2": "i1"}[s.index]
		m.alias(s.through, s.index, true)
		m.alias(s.through, other, false)
		m.change(s.through, true, "", "POST", "/_aliases",
			fmt.Sprintf(`{"actions":[{"add":{"index":%q,"alias":"al"}},{"remove":{"index":%q,"alias":"al"}}]}`, s.index, other))
	case "filter":
		m.alias(s.through, s.index, true)
		m.change(s.through, true, "", "POST", "/_aliases",
			fmt.Sprintf(`{"actions":[{"add":{"index":%q,"alias":"al","filter":{"range":{"n":{"gte":%d}}}}}]}`, s.index, s.n))
	case "map":
		m.change(s.through, true, "", "PUT", "/"+s.index+"/_mapping", `{"properties":{"other":{"type":"long"}}}`)
	case "create":
		m.alias(s.through, s.index, false)
		m.change(s.through, true, "", "DELETE", "/"+s.index, "")
		m.change(s.through, true, "", "PUT", "/"+s.index, modelMapping)
	case "pass":
		<-time.After(time.Duration(s.n) * 7 * time.Millisecond)
		m.fetch()
	case "pass long":
		<-time.After(time.Duration(s.n) * 70 * time.Millisecond)
	case "lose a shard":
		fault := m.cluster.Inject(estest.Fault{Path: "*/_search", FailedShards: 1})
		m.losing = 1
		m.check(caller, which, how, runs)
		fault.Remove()
		m.losing = 0
		m.check(caller, which, alone, 0) // the whole answer, not what was found of it
	case "search while writing":
		// The answer is worked out, then a write is made and acknowledged, then the answer arrives.
		write := func() { m.put(step{through: s.through, index: s.index, n: s.n}, "?refresh=true") }
		if m.kind == pastTheirTime { // what is overtaken may be a renewal, for which nobody waits
			m.check(caller, which, how, 0)
			write()
			return
		}
		m.during = write
		m.check(caller, which, how, 0)
		m.during = nil
	case "stop":
		m.cluster.Node(0).Stop()
		<-time.After(time.Duration(s.n) * 30 * time.Millisecond)
		if err := m.cluster.Node(0).Start(); err != nil {
			m.t.Fatal(err)
		}
	case "reload":
		m.load(modelFlow(m.kind))
	case "grant": // around the gateway: other roles, and other documents
		u := &m.users[s.n%2]
		u.Roles, u.Filter = []string{fmt.Sprint("r", s.n/2%3)}, []string{`{"term":{"team":"a"}}`, `{"term":{"team":"b"}}`, ``}[s.n/2%3]
		if err := m.cluster.SetUsers(m.users...); err != nil {
			m.t.Fatal(err)
		}
		m.record()
	default:
		m.t.Fatalf("no step %s", s.what)
	}
}

// playFor plays random steps from a round on, until time is up or something is wrong.
func playFor(t *testing.T, p plant, kind modelKind, seed, round uint64, limit time.Duration) (steps []step, wrong string, rounds int) {
	t.Helper()
	for until := time.Now().Add(limit); time.Now().Before(until); rounds++ {
		steps = modelSteps(rand.New(rand.NewPCG(seed, round+uint64(rounds))), kind)
		if wrong = playModel(t, p, kind, steps); wrong != "" {
			return steps, wrong, rounds
		}
	}
	return nil, "", rounds
}

// Whatever happens, an answer from the cache is one that the cluster could have given to this caller within the bound.
func TestModel(t *testing.T) {
	for kind := range modelKinds {
		t.Run(modelKindNames[kind], func(t *testing.T) {
			limit, seed := 3*time.Second, uint64(1)
			if os.Getenv("WEIR_SOAK") == "1" {
				limit, seed = 10*time.Minute, rand.Uint64()
			}
			steps, wrong, rounds := playFor(t, plantNothing, kind, seed, 0, limit)
			t.Logf("seed %d, %d rounds", seed, rounds)
			if wrong == "" {
				return
			}
			for i := len(steps) - 1; i >= 0; i-- { // the shortest steps that go wrong are the easiest to read
				fewer := slices.Delete(slices.Clone(steps), i, i+1)
				if w := playModel(t, plantNothing, kind, fewer); w != "" {
					steps, wrong = fewer, w
				}
			}
			t.Error(wrong)
		})
	}
}

// Each fault that was planted is found within a minute. Where that takes many rounds, it begins with one that is known to find
// it, unless there is time.
func TestModelFindsFaults(t *testing.T) {
	for p := plantNoIdentity; int(p) < len(plantNames); p++ {
		t.Run(plantNames[p], func(t *testing.T) {
			first := plantRounds[p]
			if os.Getenv("WEIR_SOAK") == "1" {
				first = 0
			}
			kind := byCredentials
			if p == plantOnePrincipal {
				kind = byPrincipal
			}
			_, wrong, rounds := playFor(t, p, kind, uint64(p), first, time.Minute)
			if wrong == "" {
				t.Errorf("not found in %d rounds", rounds)
			}
			t.Logf("round %d: %s", int(first)+rounds, wrong)
		})
	}
}
