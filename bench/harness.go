package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A harness holds what all cases share.
type harness struct {
	o        options
	dir      string
	scripts  string
	bin      binaries
	upstream *server
	missing  []string // one line for each target that could not be measured
}

func newHarness(ctx context.Context, o options) (h *harness, err error) {
	for _, tool := range []string{"wrk", "taskset"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("needs %s on the PATH", tool)
		}
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return nil, err
	}
	h = &harness{o: o, dir: dir, scripts: filepath.Join(dir, "wrk"), bin: binaries{"weir": o.weir}}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	scripts, err := fs.Sub(files, "wrk")
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(h.scripts, scripts); err != nil {
		return nil, err
	}
	for _, p := range peers {
		if h.bin[p.name], err = exec.LookPath(p.program); err != nil && listed(o.targets, p.name) {
			h.missing = append(h.missing, p.name+" is not installed: not measured")
		}
	}
	build := map[string]string{"fasthttp": "weir/bench/barefasthttp", "upstream": "weir/bench/upstream"}
	if o.weir == "" && listed(o.targets, "weir") {
		build["weir"] = "weir/cmd/weir"
	}
	for name, pkg := range build {
		h.bin[name] = filepath.Join(dir, "bin", name)
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", h.bin[name], pkg).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", pkg, err, out)
		}
	}
	if h.bin["weir"] != "" {
		if h.bin["weir"], err = filepath.Abs(h.bin["weir"]); err != nil {
			return nil, err
		}
	}
	h.upstream, err = startServer(ctx, target{name: "upstream"}, h.bin["upstream"], dir, o.loadCore, "")
	return h, err
}

// close stops the upstream and removes the working folder, unless it is to be kept.
func (h *harness) close() {
	if h.upstream != nil {
		if err := h.upstream.stop(); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		}
	}
	if h.o.keep {
		fmt.Fprintf(os.Stderr, "bench: configurations and logs are in %s\n", h.dir)
		return
	}
	_ = os.RemoveAll(h.dir) // in the system's folder for such things anyway
}

// run measures a case.
func (h *harness) run(ctx context.Context, c benchCase) (r result, err error) {
	r.benchCase = c
	dir := filepath.Join(h.dir, c.name)
	var servers []*server
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.stop())
		}
	}()
	for _, t := range c.targets {
		if h.bin[t.program()] == "" || !listed(h.o.targets, t.program()) {
			continue
		}
		s, err := startServer(ctx, t, h.bin[t.program()], dir, h.o.gatewayCore, h.upstream.address)
		if err != nil {
			return r, err
		}
		servers = append(servers, s)
		r.rows = append(r.rows, row{name: t.name})
	}
	if len(servers) == 0 {
		return r, errors.New("no target to measure")
	}
	switch c.name {
	case idleCase:
		for i, s := range servers {
			if r.rows[i].idle, err = idleMemory(s, c); err != nil {
				return r, fmt.Errorf("%s: %w", s.target.name, err)
			}
		}
		return r, nil
	case crowdCase:
		return h.crowded(ctx, c, servers[0])
	case swarmCase:
		return h.swarmed(ctx, c, servers)
	case limitCase:
		return h.limited(ctx, r, servers)
	}
	for round := range h.o.rounds + 1 {
		for i, s := range servers {
			if round == 0 { // caches fill, connections open
				if _, err := h.measure(ctx, c, s, time.Second); err != nil {
					return r, fmt.Errorf("%s: warm-up is invalid: %w\n%s", s.target.name, err, s.output())
				}
				continue
			}
			m, err := h.measure(ctx, c, s, h.o.duration)
			if err == nil {
				err = h.forwarded(c, m)
			}
			if err != nil {
				return r, fmt.Errorf("%s: round %d is invalid: %w\n%s", s.target.name, round, err, s.output())
			}
			r.rows[i].rounds = append(r.rows[i].rounds, m)
		}
	}
	if log := servers[0].output(); c.name == loggedCase && strings.Contains(log, "records of exchanges are dropped") {
		return r, fmt.Errorf("requests were not recorded: %s", log)
	}
	return r, nil
}

// A measurement is one round of one target.
type measurement struct {
	load
	cpu      time.Duration // of the target and its children
	searches int64         // that the upstream saw
}

func (m measurement) perSecond() float64    { return float64(m.requests) / m.duration.Seconds() }
func (m measurement) perCPUSecond() float64 { return float64(m.requests) / m.cpu.Seconds() }
func (m measurement) core() float64         { return m.cpu.Seconds() / m.duration.Seconds() }

func (h *harness) measure(ctx context.Context, c benchCase, s *server, duration time.Duration) (m measurement, err error) {
	size, err := probe(s.address, c)
	if err == nil && (c.upstream == upstreamOnce || c.upstream == upstreamTwentieth) {
		size, err = probe(s.address, c) // the first may have filled the cache, and a hit has other fields
	}
	if err != nil {
		return m, err
	}
	searches, err := h.searches()
	if err != nil {
		return m, err
	}
	before, _, err := usage(s.cmd.Process.Pid)
	if err != nil {
		return m, err
	}
	if m.load, err = runWrk(ctx, c, s.address, h.scripts, h.o.loadCore, duration); err != nil {
		return m, err
	}
	after, _, err := usage(s.cmd.Process.Pid)
	if err != nil {
		return m, err
	}
	now, err := h.searches()
	if err != nil {
		return m, err
	}
	m.cpu, m.searches = after-before, now-searches
	if m.cpu <= 0 {
		return m, fmt.Errorf("%d requests took no CPU time: not the process that answered", m.requests)
	}
	return m, m.valid(size, c.connections)
}

// limited measures what each target lets pass over a long time, the burst used up before, and then in turns what refusals cost.
func (h *harness) limited(ctx context.Context, r result, servers []*server) (result, error) {
	for round := range h.o.rounds + 1 {
		for i, s := range servers {
			duration := h.o.duration
			if round == 0 {
				if _, err := runWrk(ctx, r.benchCase, s.address, h.scripts, h.o.loadCore, time.Second); err != nil {
					return r, fmt.Errorf("%s: warm-up is invalid: %w\n%s", s.target.name, err, s.output())
				}
				duration *= limitRounds
			}
			m, err := h.measureLimit(ctx, r.benchCase, s, duration)
			if err != nil {
				return r, fmt.Errorf("%s: round %d is invalid: %w\n%s", s.target.name, round, err, s.output())
			}
			if round == 0 {
				r.rows[i].long = m
				continue
			}
			r.rows[i].rounds = append(r.rows[i].rounds, m)
		}
	}
	return r, nil
}

// measureLimit measures a target that is asked for more than it lets pass.
func (h *harness) measureLimit(ctx context.Context, c benchCase, s *server, duration time.Duration) (m measurement, err error) {
	before, _, err := usage(s.cmd.Process.Pid)
	if err != nil {
		return m, err
	}
	if m.load, err = runWrk(ctx, c, s.address, h.scripts, h.o.loadCore, duration); err != nil {
		return m, err
	}
	after, _, err := usage(s.cmd.Process.Pid)
	if err != nil {
		return m, err
	}
	m.cpu = after - before
	for _, e := range m.errors {
		if !strings.HasPrefix(e, "status=") {
			return m, fmt.Errorf("wrk counted errors: %s", e)
		}
	}
	if m.refused == 0 || m.cpu <= 0 {
		return m, fmt.Errorf("%d of %d requests refused in %v of CPU time: no limit was measured", m.refused, m.requests, m.cpu)
	}
	return m, nil
}

// admitted returns how many requests were let pass, as a share of what the limit's rate allows.
func (m measurement) admitted() float64 {
	return float64(m.requests-m.refused) / (limitRate * m.duration.Seconds())
}

// forwarded checks that a round measured what its case says: answers from a cache, or requests forwarded.
func (h *harness) forwarded(c benchCase, m measurement) error {
	switch {
	case c.upstream == upstreamOnce && m.searches > m.requests/100:
		return fmt.Errorf("the upstream saw %d of %d requests, which a cache should have answered", m.searches, m.requests)
	case c.upstream == upstreamTwentieth && (m.searches < m.requests/25 || m.searches > m.requests/16):
		return fmt.Errorf("the upstream saw %d of %d requests, of which a cache should have answered 95 %%", m.searches, m.requests)
	case c.upstream == upstreamEvery && m.searches < m.requests:
		return fmt.Errorf("the upstream saw %d of %d requests, which should all have been forwarded", m.searches, m.requests)
	}
	return nil
}

// searches asks the upstream how many searches it has seen.
func (h *harness) searches() (int64, error) {
	resp, err := http.Get("http://" + h.upstream.address + "/_bench/searches")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// probe sends one request and returns the size of the answer, head and body, if it is 200 with a body of the case's size.
func probe(address string, c benchCase) (int64, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return exchange(conn, c)
}

// exchange sends the case's request on an open connection and reads the answer. The request has no body: for the size of
// an answer that makes no difference.
func exchange(conn net.Conn, c benchCase) (int64, error) {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "GET "+c.path+" HTTP/1.1\r\nHost: bench\r\n\r\n"); err != nil {
		return 0, err
	}
	var raw bytes.Buffer
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &raw)), nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK || len(body) != c.size {
		return 0, fmt.Errorf("probe %s: status %d with %d bytes, want 200 with %d: %.200q", c.path, resp.StatusCode, len(body), c.size, body)
	}
	return int64(raw.Len()), nil
}

// idle is what open connections cost a server.
type idle struct{ before, after int64 }

// idleMemory opens the case's connections, sends one request on each, and leaves them open. What the server holds before
// is measured after a first request, when it has started in full.
func idleMemory(s *server, c benchCase) (m idle, err error) {
	if _, err := probe(s.address, c); err != nil {
		return m, err
	}
	if _, m.before, err = usage(s.cmd.Process.Pid); err != nil {
		return m, err
	}
	for range c.connections {
		conn, err := net.DialTimeout("tcp", s.address, 5*time.Second)
		if err != nil {
			return m, err
		}
		defer conn.Close()
		if _, err := exchange(conn, c); err != nil {
			return m, err
		}
	}
	_, m.after, err = usage(s.cmd.Process.Pid)
	return m, err
}
