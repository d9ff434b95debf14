package app

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/elastic/estest"
	"weir/filters/cache"
	"weir/internal/conf"
	"weir/queue"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// files is a configuration in memory that tests rewrite.
type files struct {
	mu   sync.Mutex
	text string
}

func (f *files) set(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text = text
}

func (f *files) load() (*Plan, *conf.Problems) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := f.text
	return Load(conf.Options{Files: []string{"a.yml"}, ReadFile: func(string) ([]byte, error) { return []byte(text), nil }})
}

// start runs a gateway over text.
func start(t *testing.T, text string) (*App, *files) {
	t.Helper()
	a, f := launch(t, text, slog.DiscardHandler)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return a, f
}

// launch is start for those who shut the gateway down themselves, or read its log.
func launch(t *testing.T, text string, log slog.Handler) (*App, *files) {
	t.Helper()
	f := &files{text: text}
	a, err := Start(t.Context(), Options{Load: f.load, Logger: slog.New(log), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return a, f
}

// config is a configuration with one entry, called main, in front of the cluster at url; more is appended.
func config(t *testing.T, url, more string) string {
	t.Helper()
	return fmt.Sprintf(`
path.data: %s
entry: [{name: main, router: default, network: {binding: "127.0.0.1:0"}}]
flow: [{name: main, filter: [{cache: {ttl: 1h}}, {elasticsearch: {elasticsearch: up}}]}]
router: [{name: default, default_flow: main}]
elasticsearch: [{name: up, endpoint: "%s"}]
admin: {binding: "127.0.0.1:0"}
%s`, dataOf(t), url, more)
}

var folders sync.Map // of tests by name: a reload must not move path.data

func dataOf(t *testing.T) string {
	folder, ok := folders.Load(t.Name())
	if !ok {
		folder, _ = folders.LoadOrStore(t.Name(), t.TempDir())
	}
	return folder.(string)
}

// ask makes a request and returns status, Cache-Status and body.
func ask(t *testing.T, method, url string) (int, string, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Cache-Status"), string(body)
}

func TestReloadPointsToAnotherCluster(t *testing.T) {
	one, two := estest.New(t, estest.Options{}), estest.New(t, estest.Options{})
	for _, c := range []*estest.Cluster{one, two} {
		ask(t, "PUT", c.URL()+"/i")
	}
	a, f := start(t, config(t, one.URL(), ""))
	search := "http://" + a.Addr("main") + "/i/_search"
	ask(t, "GET", search)
	if _, cache, _ := ask(t, "GET", search); !strings.HasPrefix(cache, "weir; hit") {
		t.Fatalf("Cache-Status is %q, want a hit", cache)
	}
	f.set(config(t, one.URL(), "log: {level: warn}"))
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, cache, _ := ask(t, "GET", search); !strings.HasPrefix(cache, "weir; hit") {
		t.Errorf("after a reload that changed something else Cache-Status is %q, want a hit", cache)
	}
	f.set(config(t, two.URL(), ""))
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, cache, _ := ask(t, "GET", search); strings.Contains(cache, "hit") || two.Count("/i/_search") != 1 {
		t.Errorf("the old cluster's answer was given for the new one: Cache-Status %q", cache)
	}
}

// A setting that a reload cannot change is told of while it differs from the one in force, and no longer when it is put back.
func TestSettingsThatNeedARestart(t *testing.T) {
	es := estest.New(t, estest.Options{})
	log := new(logText)
	text := config(t, es.URL(), "")
	a, f := launch(t, text, slog.NewTextHandler(log, nil))
	t.Cleanup(func() { _ = a.Shutdown(context.Background()) })
	told := func() int {
		return strings.Count(log.String(), `msg="a changed setting needs a restart" setting=path.data`)
	}
	for i, want := range []int{1, 1, 2} {
		next := text
		if i%2 == 0 {
			next = strings.Replace(text, dataOf(t), dataOf(t)+"/other", 1)
		}
		f.set(next)
		if err := a.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if told() != want {
			t.Errorf("after reload %d: told %d times, want %d", i, told(), want)
		}
	}
}

// The pages of the cache tell of the flows that are in force, before a reload and after.
func TestPagesOfTheCache(t *testing.T) {
	es := estest.New(t, estest.Options{})
	ask(t, "PUT", es.URL()+"/i")
	a, f := start(t, config(t, es.URL(), ""))
	search := "http://" + a.Addr("main") + "/i/_search"
	post := func(page, body string) string {
		t.Helper()
		resp, err := http.Post("http://"+a.AdminAddr()+page, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s %s: %d %s %v", page, body, resp.StatusCode, text, err)
		}
		return string(text)
	}
	for round := range 2 {
		ask(t, "GET", search)
		if _, cache, _ := ask(t, "GET", search); !strings.HasPrefix(cache, "weir; hit") {
			t.Fatalf("round %d: Cache-Status is %q, want a hit", round, cache)
		}
		if _, _, text := ask(t, "GET", "http://"+a.AdminAddr()+"/_weir/cache"); !strings.Contains(text, `"request":"GET /i/_search"`) {
			t.Errorf("round %d: %s", round, text)
		}
		explained := post("/_weir/cache/explain", `{"entry":"main","method":"GET","path":"/i/_search"}`)
		if !strings.Contains(explained, `"cacheable":true`) || !strings.Contains(explained, `"entry":{"key"`) {
			t.Errorf("round %d: %s", round, explained)
		}
		if got := post("/_weir/cache/purge", `{"index":"i"}`); got != `{"purged":1}`+"\n" {
			t.Errorf("round %d: %s", round, got)
		}
		f.set(config(t, es.URL(), "log: {level: warn}"))
		if err := a.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := es.Count("/i/_search"); n != 2 {
		t.Errorf("the cluster was asked %d times, want once a round", n)
	}
	http.DefaultClient.CloseIdleConnections()
}

// An explanation has in the key what the entry leaves of the header, and nothing else.
func TestExplainTakesCallersLikeTheEntry(t *testing.T) {
	f := func(client, field, want string) {
		t.Helper()
		text := strings.Replace(config(t, "http://127.0.0.1:1", ""), "router: default,",
			"router: default, trusted_proxies: [10.0.0.0/8], identity_fields: [x-proxy-user, user-agent],", 1)
		plan, p := (&files{text: text}).load()
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		q := cache.Question{Path: "/i/_search", Client: client, Header: map[string]string{field: "alice"}}
		e, err := q.Ask(plan.Way)
		if got := strings.Join(e.Identity, " "); err != nil || got != want {
			t.Errorf("%s from %q: identity %q, want %q; %v", field, client, got, want, err)
		}
	}
	f("", "X-Proxy-User", "")
	f("192.0.2.1", "X-Proxy-User", "")
	f("10.1.2.3", "X-Proxy-User", "x-proxy-user")
	f("192.0.2.1", "User-Agent", "")
	f("10.1.2.3", "User-Agent", "user-agent")
	f("192.0.2.1", "X-Team", "x-team")
}

// Callers who are the same to the cluster share answers, as it says by the API that it has, on the way that their searches take.
func TestPrincipalsThroughTheGateway(t *testing.T) {
	jwt := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	first, second, other := jwt(`{"sub":"bob","exp":1}`), jwt(`{"sub":"bob","exp":2}`), jwt(`{"sub":"eve","exp":1}`)
	for _, flavor := range []estest.Flavor{estest.Elasticsearch8, estest.OpenSearch2} {
		es := estest.New(t, estest.Options{Flavor: flavor, Users: []estest.User{
			{Name: "bob", Password: "b", Tokens: []string{first, second}}, {Name: "eve", Password: "e", Tokens: []string{other}},
		}})
		a, _ := start(t, strings.Replace(config(t, es.URL(), ""), "ttl: 1h", "ttl: 1h, identity: principal", 1))
		f := func(token, want string) {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+a.Addr("main")+"/_search", strings.NewReader(`{"size":1}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if got := resp.Header.Get("Cache-Status"); resp.StatusCode != 200 || !strings.HasPrefix(got, want) {
				t.Errorf("%s: %d, Cache-Status %q, want %q", flavor, resp.StatusCode, got, want)
			}
		}
		f(first, "weir; fwd=miss; stored")
		f(second, "weir; hit")
		f(other, "weir; fwd=miss; stored")
		f(first, "weir; hit")
		if n := es.Count("/_search"); n != 2 {
			t.Errorf("%s: %d searches, want 2", flavor, n)
		}
	}
}

func TestRefusedReloadChangesNothing(t *testing.T) {
	es := estest.New(t, estest.Options{})
	a, f := start(t, config(t, es.URL(), ""))
	for _, text := range []string{
		"", // a file that is being written
		"entry: [",
		config(t, es.URL(), "unknown: 1"),
		strings.Replace(config(t, es.URL(), ""), "127.0.0.1:0\"}}]", "127.0.0.1:0\"}}, {name: b, router: default, network: {binding: \"192.0.2.1:1\"}}]", 1),
		strings.Replace(config(t, es.URL(), ""), "default_flow: main", "default_flow: mian", 1),
	} {
		f.set(text)
		if err := a.Reload(t.Context()); err == nil {
			t.Errorf("accepted: %s", text)
		}
		if status, _, _ := ask(t, "GET", "http://"+a.Addr("main")+"/"); status != 200 {
			t.Errorf("after a refused reload: %d", status)
		}
	}
	if _, _, metrics := ask(t, "GET", "http://"+a.AdminAddr()+"/metrics"); !strings.Contains(metrics, "\nweir_config_invalid 1\n") {
		t.Error("weir_config_invalid is not 1")
	}
}

// Who edits a file and calls for a reload has it loaded once, although the watcher notices the change a moment later.
func TestChangeIsLoadedOnce(t *testing.T) {
	c := estest.New(t, estest.Options{})
	file := filepath.Join(t.TempDir(), "gateway.yml")
	write := func(more string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(config(t, c.URL(), more)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	loads := 0
	write("")
	a, err := Start(t.Context(), Options{
		Load: func() (*Plan, *conf.Problems) {
			loads++
			return Load(conf.Options{Files: []string{file}})
		},
		Logger: slog.New(slog.DiscardHandler), Version: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	f := func(what string, reload func(context.Context) error, want int) {
		t.Helper()
		loads = 0
		if _ = reload(t.Context()); loads != want {
			t.Errorf("%s: loaded %d times, want %d", what, loads, want)
		}
	}
	write("limits: {drain: 3s}")
	f("an edit", a.ReloadChanged, 1)
	f("noticed again", a.ReloadChanged, 0)
	write("limits: {drain: 4s}")
	f("a call", a.Reload, 1)
	f("noticed after the call", a.ReloadChanged, 0)
	f("a second call", a.Reload, 1)
	write("limits: {drain: nonsense}")
	f("a mistake", a.Reload, 1)
	f("noticed after the mistake", a.ReloadChanged, 0)
	write("limits: {drain: 5s}")
	f("mended", a.ReloadChanged, 1)
}

func TestEntriesComeAndGo(t *testing.T) {
	es := estest.New(t, estest.Options{})
	a, f := start(t, config(t, es.URL(), ""))
	addr := a.Addr("main")
	f.set(strings.Replace(config(t, es.URL(), ""), `entry: [`, `entry: [{name: second, router: default, network: {binding: "127.0.0.1:0"}}, `, 1))
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.Addr("main") != addr || a.Addr("second") == "" {
		t.Fatalf("entries at %q and %q", a.Addr("main"), a.Addr("second"))
	}
	second := "http://" + a.Addr("second") + "/"
	if status, _, _ := ask(t, "GET", second); status != 200 {
		t.Errorf("second entry: %d", status)
	}
	// Another limit: the listener stays, so that no connection is lost.
	f.set(strings.Replace(config(t, es.URL(), ""), `router: default, network`, `router: default, max_body_size: 1kb, network`, 1))
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.Addr("main") != addr {
		t.Errorf("a changed limit moved the entry from %s to %s", addr, a.Addr("main"))
	}
	if status, _, _ := ask(t, "GET", "http://"+addr+"/"); status != 200 {
		t.Errorf("got %d", status)
	}
	a.draining.Wait()
	if resp, err := http.Get(second); err == nil {
		_ = resp.Body.Close()
		t.Error("the removed entry still answers")
	}
}

func TestDisabledCluster(t *testing.T) {
	a, _ := start(t, strings.Replace(config(t, "http://127.0.0.1:1", ""), "{name: up,", "{name: up, enabled: false,", 1))
	if status, _, body := ask(t, "GET", "http://"+a.Addr("main")+"/"); status != 503 || !strings.Contains(body, "cluster [up] is switched off") {
		t.Errorf("got %d %s", status, body)
	}
}

// A pipeline that cannot start is told of by whoever asks whether the gateway is ready, until a reload mends it. One that can
// be told from the configuration is refused, and that in force goes on.
func TestPipelinesThatDoNotStart(t *testing.T) {
	es := estest.New(t, estest.Options{})
	piped := func(more string) string {
		return config(t, es.URL(), "pipeline: [{name: store, "+more+"}]")
	}
	a, f := start(t, piped("file: {input_queue: q, path: "+dataOf(t)+"/nodes}")) // which is a folder
	ready := func() (int, string) {
		status, _, body := ask(t, "GET", "http://"+a.AdminAddr()+"/readyz")
		return status, body
	}
	if status, body := ready(); status != 503 || !strings.Contains(body, "the pipeline store does not start") {
		t.Errorf("got %d %s", status, body)
	}
	f.set(piped("file: {input_queue: q, path: " + dataOf(t) + "/records}"))
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, body := ready(); status != 200 {
		t.Errorf("got %d %s", status, body)
	}
	running := len(a.pipelines)
	f.set(piped("consumers: 40, file: {input_queue: q, path: " + dataOf(t) + "/records}"))
	if err := a.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be split among 40 consumers") {
		t.Errorf("got %v", err)
	}
	if status, _ := ready(); status != 200 || running != 1 || len(a.pipelines) != 1 {
		t.Errorf("got %d, %d pipelines before and %d after", status, running, len(a.pipelines))
	}
}

// A disk that takes nothing is tried until the drain time is over, and the end says what is lost.
func TestShutdownTellsOfLostRecords(t *testing.T) {
	es := estest.New(t, estest.Options{})
	a, _ := launch(t, strings.Replace(config(t, es.URL(), "limits: {drain: 1s}\nqueue: {block_age: 1h}\n"+
		"pipeline: [{name: store, json_indexing: {elasticsearch: up, input_queue: q, index_name: i}}]"),
		"{elasticsearch: {elasticsearch: up}}", "{elasticsearch: {elasticsearch: up}}, {request_logging: {queue_name: q}}", 1), slog.DiscardHandler)
	ask(t, "GET", "http://"+a.Addr("main")+"/")
	if err := os.Rename(dataOf(t)+"/nodes/0/queue/q", dataOf(t)+"/away"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := a.Shutdown(context.Background()); !errors.Is(err, queue.ErrLost) || time.Since(began) < time.Second {
		t.Errorf("after %s: %v, want %v after the drain time", time.Since(began), err, queue.ErrLost)
	}
}
