// Command dashboards plays the dashboards of a team, in the request shapes of Kibana and Grafana, through the gateway's
// cache, and counts how many of their searches reach the cluster.
//
//	go run ./bench/dashboards [flags]
//
// Without -cluster it asks a cluster in memory, so it measures no engine: only the two counts mean something, and
// whether the answers are right. Each is compared with what the cluster itself says, or said within max_stale.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/elastic/estest"
)

type options struct {
	cluster, weir      string
	viewers, refreshes int
	every, asyncWait   time.Duration
}

const (
	index  = "weir-dashboards"
	panels = 12
	wait   = 30 * time.Second // for the gateway to listen, and for an answer
)

// start is the beginning of the fixed range, and of the documents.
var start = time.Date(2024, 5, 6, 7, 0, 0, 0, time.UTC)

// A scene is one way in which dashboards are looked at.
type scene struct {
	client           string
	relative, writes bool
	async            bool // each panel by an _async_search, as Kibana asks since 7.9
}

var scenes = []scene{
	{client: "kibana"},
	{client: "grafana"},
	{client: "kibana", writes: true},
	{client: "grafana", writes: true},
	{client: "kibana", relative: true},
	{client: "grafana", relative: true},
	{client: "kibana", async: true},
	{client: "kibana", async: true, writes: true},
	{client: "kibana", async: true, relative: true},
}

func (s scene) String() string {
	span, state := "fixed", "quiet"
	if s.relative {
		span = "relative"
	}
	if s.writes {
		state = "written"
	}
	api := "_msearch"
	if s.async {
		api = "_async_search"
	}
	return fmt.Sprintf("%s by %s, %s range, %s index", s.client, api, span, state)
}

// cache returns the options of the filter. On an index that is written, answers may be as stale as refreshes are apart; polls
// come twice in that time, as they do by default with refreshes each 10 s, so that they find out changes within it.
func (s *stage) cache() string {
	if s.writes {
		return fmt.Sprintf("{ttl: %v, max_stale: %v, poll_interval: %v}", s.every, s.every, s.every/2)
	}
	return "{}"
}

func main() {
	var o options
	flag.StringVar(&o.cluster, "cluster", "", "`URL` of a cluster to ask; the index "+index+" is made and deleted there")
	flag.StringVar(&o.weir, "weir", "", "gateway `binary`; built from ./cmd/weir if empty")
	flag.IntVar(&o.viewers, "viewers", 30, "how many people look, each with a session of their own")
	flag.IntVar(&o.refreshes, "refreshes", 6, "how often each refreshes")
	flag.DurationVar(&o.every, "every", 10*time.Second, "time between two refreshes")
	flag.DurationVar(&o.asyncWait, "async-wait", 200*time.Millisecond, "how long they wait for an async search before they ask again, as Kibana does by default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	results, err := run(ctx, o)
	for _, r := range results {
		fmt.Println(r)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "dashboards: %v\n", err)
		os.Exit(1)
	}
}

// A result is what came of a scene.
type result struct {
	scene           scene
	asked, upstream int64 // searches of the viewers, and those that reached the cluster
	wrong           int64 // answers that the cluster would not have given
}

func (r result) String() string {
	return fmt.Sprintf("%s: %d searches asked, %d upstream (%.1f-fold fewer), %d wrong answers", r.scene, r.asked, r.upstream,
		float64(r.asked)/float64(max(r.upstream, 1)), r.wrong)
}

func run(ctx context.Context, o options) (results []result, err error) {
	if o.viewers < 1 || o.refreshes < 1 || o.every <= 0 {
		return nil, fmt.Errorf("%d viewers, %d refreshes, every %v: want more than none", o.viewers, o.refreshes, o.every)
	}
	dir, err := os.MkdirTemp("", "weir-dashboards-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.weir == "" {
		o.weir = filepath.Join(dir, "weir-built")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", o.weir, "weir/cmd/weir").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build weir/cmd/weir: %w: %s", err, out)
		}
	}
	if o.cluster == "" {
		c, err := estest.Start(estest.Options{})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		o.cluster = c.URL()
	}
	hasAsync := o.hasAsync(ctx)
	for i, s := range scenes {
		if s.async && !hasAsync {
			fmt.Fprintf(os.Stderr, "dashboards: %s is not played: the cluster has no _async_search\n", s)
			continue
		}
		r, err := play(ctx, o, s, filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return results, fmt.Errorf("%s: %w", s, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// hasAsync tells whether the cluster has async searches: they are an extension of Elasticsearch.
func (o options) hasAsync(ctx context.Context) bool {
	_, err := send(ctx, http.MethodPost, o.cluster+"/_async_search?size=0", "")
	return err == nil
}

// A stage is what a scene is played on.
type stage struct {
	options
	scene
	gateway         string
	asked, upstream atomic.Int64

	mu       sync.Mutex // guards the fields below
	versions []version
	seen     []sight
}

// A version is what the cluster itself answers, by panel, from the beginning of a write on.
type version struct {
	from, until time.Time // until is zero for the newest
	answers     []string
}

// A sight is an answer that a viewer got.
type sight struct {
	asked, got time.Time
	answers    []string
}

func play(ctx context.Context, o options, s scene, dir string) (r result, err error) {
	st := &stage{options: o, scene: s}
	if err := st.prepare(ctx); err != nil {
		return r, err
	}
	defer func() {
		_, gone := send(context.WithoutCancel(ctx), http.MethodDelete, o.cluster+"/"+index, "")
		err = errors.Join(err, gone)
	}()
	target, err := url.Parse(o.cluster)
	if err != nil {
		return r, err
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	up := &http.Server{ReadHeaderTimeout: wait, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		st.count(r)
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = up.Serve(listener) }() // ends with Close
	defer func() { err = errors.Join(err, up.Close()) }()
	stop, err := st.startGateway(ctx, dir, listener.Addr().String())
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := st.watch(ctx); err != nil {
		return r, err
	}
	return result{scene: s, asked: st.asked.Load(), upstream: st.upstream.Load(), wrong: st.wrong()}, nil
}

// prepare makes the index, with a document for each second of an hour's every fourth.
func (s *stage) prepare(ctx context.Context) error {
	const mapping = `{"settings":{"number_of_replicas":0},"mappings":{"properties":{"@timestamp":{"type":"date"},"host":{"type":"keyword"},"took":{"type":"long"}}}}`
	if _, err := send(ctx, http.MethodPut, s.cluster+"/"+index, mapping); err != nil {
		return err
	}
	var bulk strings.Builder
	for i := range 900 {
		bulk.WriteString(`{"index":{}}` + "\n" + document(i) + "\n")
	}
	if _, err := send(ctx, http.MethodPost, s.cluster+"/"+index+"/_bulk?refresh=true", bulk.String()); err != nil {
		return err
	}
	return s.look(ctx, time.Now())
}

func document(i int) string {
	return fmt.Sprintf(`{"@timestamp":%d,"host":"host-%d","took":%d}`, start.UnixMilli()+int64(i)*4000, i%7, i%100)
}

// count adds the searches of a request that has come to the cluster. The body is read to its end before it is passed on: the
// library's proxy breaks off an answer that comes while it still looks for the end.
func (s *stage) count(r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a body that breaks off is the cluster's to refuse
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch {
	case strings.HasSuffix(r.URL.Path, "/_async_search"):
		s.upstream.Add(1)
	case strings.HasSuffix(r.URL.Path, "/_msearch"):
		s.upstream.Add(int64(bytes.Count(body, []byte("\n")) / 2))
	}
}

// startGateway returns when the gateway listens.
func (s *stage) startGateway(ctx context.Context, dir, upstream string) (stop func() error, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.gateway = "http://" + free.Addr().String()
	config := fmt.Sprintf(`path.data: data
path.logs: log
entry: [{name: main, router: main, network: {binding: %q}}]
flow: [{name: main, filter: [{cache: %s}, {elasticsearch: {elasticsearch: up}}]}]
router: [{name: main, default_flow: main}]
elasticsearch: [{name: up, enabled: true, endpoint: "http://%s"}]
`, free.Addr(), s.cache(), upstream)
	if err := errors.Join(free.Close(), os.WriteFile(filepath.Join(dir, "weir.yml"), []byte(config), 0o644)); err != nil {
		return nil, err
	}
	var log bytes.Buffer
	cmd := exec.Command(s.weir, "run", "-c", "weir.yml")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.weir, err)
	}
	stop = func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop the gateway: %w", err)
		}
		_ = cmd.Wait() // how it ended stands in its log
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		if _, err := send(ctx, http.MethodGet, s.gateway+"/", ""); err == nil {
			return stop, nil
		}
		select {
		case <-ctx.Done():
			err := stop()
			return nil, errors.Join(fmt.Errorf("wait for the gateway: %w: %s", ctx.Err(), log.Bytes()), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// watch lets all viewers look, and the writer write, and returns when the viewers have seen enough.
func (s *stage) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var viewers, writer sync.WaitGroup
	for i := range s.viewers {
		viewers.Go(func() {
			if err := s.view(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	done := make(chan struct{})
	if s.writes {
		writer.Go(func() {
			if err := s.write(ctx, done); err != nil {
				cancel(err)
			}
		})
	}
	viewers.Wait()
	close(done)
	writer.Wait()
	return context.Cause(ctx)
}

// view refreshes one viewer's dashboard.
func (s *stage) view(ctx context.Context, i int) error {
	session := time.Now().UnixMilli() + int64(i) // Kibana's preference is when the page was loaded
	next := time.NewTimer(s.every * time.Duration(i) / time.Duration(s.viewers))
	defer next.Stop()
	for range s.refreshes {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		next.Reset(s.every)
		asked := time.Now()
		answers, err := s.ask(ctx, s.gateway, session, asked)
		if err != nil {
			return err
		}
		s.asked.Add(panels)
		if !s.relative {
			s.mu.Lock()
			s.seen = append(s.seen, sight{asked, time.Now(), answers})
			s.mu.Unlock()
		}
	}
	return nil
}

// write adds documents around the gateway, two between two refreshes.
func (s *stage) write(ctx context.Context, done <-chan struct{}) error {
	tick := time.NewTicker(s.every / 2)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		begun := time.Now()
		if _, err := send(ctx, http.MethodPost, s.cluster+"/"+index+"/_doc?refresh=true", document(i*7%900)); err != nil {
			return err
		}
		if err := s.look(ctx, begun); err != nil {
			return err
		}
	}
}

// look notes what the cluster itself answers since a write that began at from.
func (s *stage) look(ctx context.Context, from time.Time) error {
	written := time.Now()
	answers, err := s.ask(ctx, s.cluster, 1, written)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.versions); n > 0 {
		s.versions[n-1].until = written
	}
	s.versions = append(s.versions, version{from: from, answers: answers})
	return nil
}

// wrong counts the answers that the cluster gave at no moment within the bound: max_stale, and the tenth by which times to
// live differ.
func (s *stage) wrong() (n int64) {
	bound := time.Duration(0)
	if s.writes {
		bound = s.every + s.every/10
	}
	for _, seen := range s.seen {
		for i, answer := range seen.answers {
			if !slices.ContainsFunc(s.versions, func(v version) bool {
				within := !v.from.After(seen.got) && (v.until.IsZero() || !v.until.Before(seen.asked.Add(-bound)))
				return within && v.answers[i] == answer
			}) {
				n++
			}
		}
	}
	return n
}

// ask sends a dashboard's panels as the client does, and returns the answers without what differs each time.
func (s *stage) ask(ctx context.Context, to string, session int64, now time.Time) ([]string, error) {
	gte, lte := start, start.Add(time.Hour)
	if s.relative {
		gte, lte = now.Add(-time.Hour), now
	}
	if s.async {
		return s.askAsync(ctx, to, session, gte, lte)
	}
	var body strings.Builder
	for i := range panels {
		if s.client == "kibana" {
			fmt.Fprintf(&body, `{"index":%q,"ignore_unavailable":true,"preference":"%d"}`+"\n", index, session)
			body.WriteString(kibanaPanel(i, gte, lte) + "\n")
			continue
		}
		fmt.Fprintf(&body, `{"ignore_unavailable":true,"index":%q,"search_type":"query_then_fetch"}`+"\n", index)
		fmt.Fprintf(&body, `{"size":0,"query":{"bool":{"filter":[{"range":{"@timestamp":{"gte":%d,"lte":%d,"format":"epoch_millis"}}}]}},"aggs":{"3":{"terms":{"field":"host","size":%d,"order":{"_key":"desc"},"min_doc_count":1},"aggs":{"1":{"avg":{"field":"took"}}}}}}`+"\n",
			gte.UnixMilli(), lte.UnixMilli(), i+1)
	}
	answer, err := send(ctx, http.MethodPost, to+"/_msearch?max_concurrent_shard_requests=5", body.String())
	if err != nil {
		return nil, err
	}
	var a struct {
		Responses []map[string]json.RawMessage
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("read the answer to _msearch: %w", err)
	}
	if len(a.Responses) != panels {
		return nil, fmt.Errorf("%d answers to %d searches", len(a.Responses), panels)
	}
	var answers []string
	for _, item := range a.Responses {
		if string(item["status"]) != "200" {
			return nil, fmt.Errorf("a search is answered with %s: %s", item["status"], item["error"])
		}
		text, err := essence(item)
		if err != nil {
			return nil, err
		}
		answers = append(answers, text)
	}
	return answers, nil
}

// kibanaPanel is the search of a panel.
func kibanaPanel(i int, gte, lte time.Time) string {
	const form = "2006-01-02T15:04:05.000Z07:00"
	return fmt.Sprintf(`{"size":0,"track_total_hits":true,"aggs":{"0":{"date_histogram":{"field":"@timestamp","fixed_interval":"%dm","time_zone":"UTC","min_doc_count":1},"aggs":{"1":{"avg":{"field":"took"}}}}},"query":{"bool":{"must":[],"filter":[{"range":{"@timestamp":{"format":"strict_date_optional_time","gte":%q,"lte":%q}}}],"should":[],"must_not":[]}},"script_fields":{},"stored_fields":["*"],"runtime_mappings":{},"_source":{"excludes":[]}}`,
		i+1, gte.Format(form), lte.Format(form))
}

// essence is the answer to a search without what differs each time.
func essence(answer map[string]json.RawMessage) (string, error) {
	delete(answer, "took")
	text, err := json.Marshal(answer)
	return string(text), err
}

// askAsync asks for each panel by itself, and asks again as long as its search runs.
func (s *stage) askAsync(ctx context.Context, to string, session int64, gte, lte time.Time) ([]string, error) {
	waits := fmt.Sprintf("wait_for_completion_timeout=%dms&keep_alive=60000ms", s.asyncWait.Milliseconds())
	var answers []string
	for i := range panels {
		target := fmt.Sprintf("%s/%s/_async_search?batched_reduce_size=64&ignore_unavailable=true&keep_on_completion=false&preference=%d&%s", to, index, session, waits)
		answer, err := send(ctx, http.MethodPost, target, kibanaPanel(i, gte, lte))
		for {
			if err != nil {
				return nil, err
			}
			var a struct {
				ID        string
				IsRunning bool `json:"is_running"`
				IsPartial bool `json:"is_partial"`
				Response  map[string]json.RawMessage
			}
			if err := json.Unmarshal(answer, &a); err != nil {
				return nil, fmt.Errorf("read the answer to _async_search: %w", err)
			}
			if a.IsRunning {
				answer, err = send(ctx, http.MethodGet, to+"/_async_search/"+url.PathEscape(a.ID)+"?"+waits, "")
				continue
			}
			if a.IsPartial || a.Response == nil {
				return nil, fmt.Errorf("an async search is answered with %.300s", answer)
			}
			text, err := essence(a.Response)
			if err != nil {
				return nil, err
			}
			answers = append(answers, text)
			break
		}
	}
	return answers, nil
}

// send asks and returns the body of an answer with status 200 or 201.
func send(ctx context.Context, method, target, body string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, target, err)
	}
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("%s %s is answered with %d: %.300s", method, target, answer.StatusCode, text)
	}
	return text, nil
}
