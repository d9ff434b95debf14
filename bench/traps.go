package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// trapTargets are the caches that the traps are laid for.
var trapTargets = []target{
	{"weir", "weir/cache.yml"},
	{"nginx", "peers/nginx-search-cache.conf"},
	{"varnish", ""}, // with the rules that it comes with
}

// A trap is a pair of requests of which a cache in front of Elasticsearch may answer the second one wrongly.
type trap struct {
	name string
	// why says why the second answer must not be the first.
	why string
	// first and second are asked one after the other. The index in the path says how the node behaves; see trapNode.
	first, second question
	between       *question // asked in between
	// right judges the second answer.
	right func(first, second reply) bool
}

type question struct {
	method, path, body string
	header             []string // names and values in turn
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error // the answer broke off
}

const searchBody = `{"query":{"match_all":{}},"size":%s}`

func bodyOf(size string) string { return fmt.Sprintf(searchBody, size) }

// long is a body of 20 kB.
func long(end string) string {
	return `{"query":{"terms":{"k":["` + strings.Repeat("x", 20<<10) + `"]}},"size":` + end + `}`
}

func post(path, body string, header ...string) question {
	return question{http.MethodPost, path, body, append([]string{"Content-Type", "application/json"}, header...)}
}

func get(path string, header ...string) question {
	return question{http.MethodGet, path, "", header}
}

// differs judges that the second answer is another one, whole and good.
func differs(first, second reply) bool { return good(second) && first.body != second.body }

func good(r reply) bool { return r.err == nil && r.status == 200 && strings.HasSuffix(r.body, "}") }

// traps are ten ways to a wrong answer.
var traps = []trap{
	{
		name: "two bodies", why: "Two searches, the same URL.",
		first: post("/echo/_search", bodyOf("1")), second: post("/echo/_search", bodyOf("2")), right: differs,
	},
	{
		name: "two long bodies", why: "Two searches of 20 kB that differ at the end.",
		first: post("/echo/_search?long", long("1")), second: post("/echo/_search?long", long("2")), right: differs,
	},
	{
		name: "GET with a body", why: "Clients send searches by GET too; the second body is not the first.",
		first: question{http.MethodGet, "/echo/_search?get", bodyOf("1"), []string{"Content-Type", "application/json"}},
		second: question{
			http.MethodGet, "/echo/_search?get", bodyOf("2"), []string{"Content-Type", "application/json"},
		},
		right: func(_, second reply) bool { return good(second) && strings.Contains(second.body, `\"size\":2`) },
	},
	{
		name: "two users", why: "Document level security shows each of them other documents.",
		first: get("/users/_search?q=a", "Authorization", "Basic YWxpY2U6YQ=="), second: get("/users/_search?q=a", "Authorization", "Basic Ym9iOmI="),
		right: differs,
	},
	{
		name: "partial answer", why: "A search that ran out of time, or lost shards, is answered with 200; the next one would be whole.",
		first: get("/partial/_search?q=a"), second: get("/partial/_search?q=a"),
		right: func(_, second reply) bool { return good(second) && strings.Contains(second.body, `"timed_out":false`) },
	},
	{
		name: "answer broken off", why: "The node dies in the middle of its first answer.",
		first: get("/broken/_search?q=a"), second: get("/broken/_search?q=a"),
		right: func(_, second reply) bool { return good(second) },
	},
	{
		name: "compressed answer", why: "Nodes compress for who asks for it and send no Vary; the second client cannot read gzip.",
		first: get("/coded/_search?q=a", "Accept-Encoding", "gzip"), second: get("/coded/_search?q=a", "Accept-Encoding", "identity"),
		right: func(_, second reply) bool { return good(second) && second.header.Get("Content-Encoding") == "" },
	},
	{
		name: "cursor", why: "Each call opens a scroll of its own.",
		first: get("/scroll/_search?scroll=1m"), second: get("/scroll/_search?scroll=1m"), right: differs,
	},
	{
		name: "X-Opaque-Id", why: "Nodes send it back; the second caller's is another one.",
		first: get("/opaque/_search?q=a", "X-Opaque-Id", "one"), second: get("/opaque/_search?q=a", "X-Opaque-Id", "two"),
		right: func(_, second reply) bool { return good(second) && second.header.Get("X-Opaque-Id") == "two" },
	},
	{
		name: "write in between", why: "A document is written through the proxy, with refresh, before the second search.",
		first: get("/written/_search?q=a"), second: get("/written/_search?q=a"), right: differs,
		between: &question{http.MethodPut, "/written/_doc/1?refresh=true", `{"a":1}`, []string{"Content-Type", "application/json"}},
	},
}

// trapNode is a node whose answers depend on the index that is asked.
type trapNode struct {
	mu    sync.Mutex // guards the fields below
	calls map[string]int
	docs  int
}

func (n *trapNode) count(path string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls[path]++
	return n.calls[path]
}

// searches returns how often a path was asked, and begins anew.
func (n *trapNode) searches(path string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.calls[path]
	delete(n.calls, path)
	return c
}

const wholeShards = `"_shards":{"total":2,"successful":2,"skipped":0,"failed":0}`

func (n *trapNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Elastic-Product", "Elasticsearch")
	h.Set("Content-Type", "application/json; charset=UTF-8")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if id := r.Header.Get("X-Opaque-Id"); id != "" {
		h.Set("X-Opaque-Id", id)
	}
	call := n.count(r.URL.Path)
	answer := func(found string) string {
		return `{"took":1,"timed_out":false,` + wholeShards + `,"hits":{"hits":[` + found + `]}}`
	}
	switch r.URL.Path {
	case "/":
		_, _ = io.WriteString(w, `{"name":"n","cluster_name":"traps","cluster_uuid":"dHJhcHM","version":{"number":"7.17.28"},"tagline":"You Know, for Search"}`)
	case "/echo/_search":
		_, _ = io.WriteString(w, answer(strconv.Quote(string(body[max(0, len(body)-40):]))))
	case "/users/_search":
		_, _ = io.WriteString(w, answer(strconv.Quote(r.Header.Get("Authorization"))))
	case "/partial/_search":
		if call == 1 {
			_, _ = io.WriteString(w, `{"took":1,"timed_out":true,"_shards":{"total":2,"successful":1,"skipped":0,"failed":1},"hits":{"hits":[]}}`)
			return
		}
		_, _ = io.WriteString(w, answer(""))
	case "/broken/_search":
		if call == 1 {
			breakOff(w)
			return
		}
		_, _ = io.WriteString(w, answer(""))
	case "/coded/_search":
		text := answer(strconv.Quote(strings.Repeat("x", 2000)))
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = io.WriteString(w, text)
			return
		}
		h.Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
	case "/scroll/_search":
		_, _ = fmt.Fprintf(w, `{"_scroll_id":"cursor%d","took":1,"timed_out":false,`+wholeShards+`,"hits":{"hits":[]}}`, call)
	case "/opaque/_search", "/control/_search":
		_, _ = io.WriteString(w, answer(""))
	case "/written/_search":
		n.mu.Lock()
		docs := n.docs
		n.mu.Unlock()
		_, _ = io.WriteString(w, answer(strconv.Itoa(docs)))
	case "/written/_doc/1":
		n.mu.Lock()
		n.docs++
		n.mu.Unlock()
		_, _ = io.WriteString(w, `{"_index":"written","_id":"1","_version":1,"result":"created","forced_refresh":true,"_shards":{"total":1,"successful":1,"failed":0},"_seq_no":0,"_primary_term":1}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":"not found","status":404}`)
	}
}

// breakOff sends a part of an answer and ends the connection.
func breakOff(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the server of this program can
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-Elastic-Product: Elasticsearch\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"took\":1,")
	_ = conn.Close()
}

// outcome is what became of a trap.
type outcome struct {
	right bool
	asked int // how often the node was asked for the two
}

func (o outcome) String() string {
	switch {
	case !o.right:
		return "**wrong**"
	case o.asked < 2:
		return "right, from the cache"
	}
	return "right, asked of the node"
}

// runTraps lays the traps and writes the table.
func runTraps(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "weir-traps-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // in the system's folder for such things anyway
	bin := binaries{}
	if o.weir != "" {
		if bin["weir"], err = filepath.Abs(o.weir); err != nil {
			return err
		}
	} else {
		bin["weir"] = filepath.Join(dir, "weir-built")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", bin["weir"], "weir/cmd/weir").CombinedOutput(); err != nil {
			return fmt.Errorf("build weir/cmd/weir: %w: %s", err, out)
		}
	}
	versions := []string{}
	for _, p := range peers {
		bin[p.name], _ = exec.LookPath(p.program) // empty if it is not there
		versions = appendVersion(ctx, versions, p.name, p.program, p.version)
	}
	var columns []string
	results := map[string][]outcome{}
	controls := map[string][2]outcome{}
	for _, t := range trapTargets {
		if !listed(o.targets, t.name) {
			continue
		}
		if bin[t.name] == "" {
			fmt.Println(t.name + " is not installed: no trap was laid for it")
			continue
		}
		list, control, err := trapsFor(ctx, t, bin[t.name], dir, o.gatewayCore)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		columns = append(columns, t.name)
		results[t.name], controls[t.name] = list, control
	}
	text := trapTable(columns, results, controls, versions)
	fmt.Println(text)
	if o.output != "" {
		return os.WriteFile(o.output, []byte(text), 0o644)
	}
	return nil
}

// trapsFor lays the traps for one target, with a node of its own.
func trapsFor(ctx context.Context, t target, bin, dir string, core int) (list []outcome, control [2]outcome, err error) {
	node := &trapNode{calls: map[string]int{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, control, err
	}
	up := &http.Server{Handler: node, ReadHeaderTimeout: startLimit}
	go func() { _ = up.Serve(listener) }() // ends with Close
	defer func() { err = errors.Join(err, up.Close()) }()
	s, err := startServer(ctx, t, bin, dir, core, listener.Addr().String())
	if err != nil {
		return nil, control, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()

	for i, q := range []question{get("/control/_search?q=a"), post("/control/_search", bodyOf("1"))} {
		first, second := s.ask(ctx, q), s.ask(ctx, q)
		if !good(first) || !good(second) {
			return nil, control, fmt.Errorf("%s %s is answered with %d %s and %d %s: %s", q.method, q.path, first.status, first.body, second.status, second.body, s.output())
		}
		control[i] = outcome{true, node.searches("/control/_search")}
	}
	for _, trap := range traps {
		first := s.ask(ctx, trap.first)
		if trap.between != nil {
			if r := s.ask(ctx, *trap.between); !good(r) {
				return nil, control, fmt.Errorf("%s: %s %s is answered with %d %s", trap.name, trap.between.method, trap.between.path, r.status, r.body)
			}
		}
		second := s.ask(ctx, trap.second)
		path, _, _ := strings.Cut(trap.first.path, "?")
		list = append(list, outcome{trap.right(first, second), node.searches(path)})
	}
	return list, control, nil
}

// ask sends a question on a connection of its own. A failure to get an answer is one more outcome.
func (s *server) ask(ctx context.Context, q question) reply {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, "http://"+s.address+q.path, strings.NewReader(q.body))
	if err != nil {
		return reply{err: err}
	}
	for i := 0; i < len(q.header); i += 2 {
		req.Header.Set(q.header[i], q.header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if z, zerr := gzip.NewReader(bytes.NewReader(body)); zerr == nil {
			if plain, zerr := io.ReadAll(z); zerr == nil {
				body = plain
			}
		}
	}
	return reply{resp.StatusCode, resp.Header, string(body), err}
}

func trapTable(columns []string, results map[string][]outcome, controls map[string][2]outcome, versions []string) string {
	var b strings.Builder
	b.WriteString("# Ten wrong answers\n\nWritten by `go run ./bench -traps -o docs/comparison-cache.md` on " + time.Now().UTC().Format("2006-01-02") +
		"; do not edit.\n\n" + trapIntroduction)
	b.WriteString("\n| trap | why it is one |")
	for _, c := range columns {
		for _, v := range versions {
			if name, number, _ := strings.Cut(v, ": "); name == c {
				c += " " + number
			}
		}
		b.WriteString(" " + c + " |")
	}
	b.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(columns)) + "\n")
	row := func(name, why string, of func(c string) outcome) {
		fmt.Fprintf(&b, "| %s | %s |", name, why)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", of(c))
		}
		b.WriteString("\n")
	}
	for i, t := range traps {
		row(t.name, t.why, func(c string) outcome { return results[c][i] })
	}
	row("*no trap: GET twice*", "The same search of the same caller.", func(c string) outcome { return controls[c][0] })
	row("*no trap: POST twice*", "The same with a body.", func(c string) outcome { return controls[c][1] })
	b.WriteString("\n" + trapNotes)
	return b.String()
}

const trapIntroduction = `A scripted node behaves as Elasticsearch does in each of these cases. A cache in front of it gets two requests, and the second
answer is judged. nginx is configured as it is usually told to cache searches (` + "`bench/peers/nginx-search-cache.conf`" + `): GET and POST, with
method, URI and body in the key. Varnish runs with the rules that it comes with. Weir has the filter ` + "`cache: {}`" + ` and no other settings.
`

const trapNotes = `In the rows without a trap "asked of the node" means that the cache was of no use: Varnish passes POST on, and requests with
` + "`Authorization`" + ` too.

Some of nginx's wrong answers have a remedy that one must know: ` + "`$http_authorization`" + ` and whatever else says who asks in the key, a body
buffer larger than any search, ` + "`Accept-Encoding`" + ` taken off the request, ` + "`proxy_cache_bypass`" + ` and ` + "`proxy_no_cache`" + ` for scrolls,
` + "`X-Opaque-Id`" + ` hidden. Varnish can learn the same in its language, and to hash bodies with a module. That a 200 is only a part of the answer,
and that a write has made it old, neither can see.
`
