package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/elastic/estest"
)

// withGeneration makes the gateway answer /generation with a number, so that a client can tell which file is in force, and
// changes what a reload must replace besides: a limit's message and the number of bulk requests under way.
func withGeneration(n int) []edit {
	return []edit{
		swap("    rules:\n      - id: 1\n", "    rules:\n      - {id: generation, method: [\"*\"], pattern: [/generation], flow: [not_found]}\n      - id: 1\n"),
		swap(`str: '{"message":"not found"}'`, fmt.Sprintf("str: 'generation %d'", n)),
		swap("request limit!", fmt.Sprintf("request limit! (%d)", n)),
		swap("worker_size: 6", fmt.Sprint("worker_size: ", 1+n%6)),
	}
}

// mistakes make a file that is refused.
var mistakes = []edit{
	swap("max_connection: 1000", "max_conection: 1000"),
	swap("elasticsearch: default\n          max_connection", "elasticsearch: defualt\n          max_connection"),
	swap("router:\n", "router: [\n"),
	swap("max_qps: 3\n", "max_qps: many\n"),
	func(testing.TB, string) string { return "" },
}

func TestReloadsUnderLoad(t *testing.T) {
	c := estest.New(t, estest.Options{})
	client := newClient(t)
	fill(t, client, c.URL(), spread...)
	s := newSite(t, c.URL())
	text := func(n int, more ...edit) string {
		text := s.text
		for _, e := range append(withGeneration(n), more...) {
			text = e(t, text)
		}
		return text
	}
	s.write("gateway.yml", text(0))
	g := s.start()
	inForce := func(n int) error {
		a, err := g.ask(t.Context(), http.MethodGet, g.url+"/generation", "")
		if want := fmt.Sprint("generation ", n); err == nil && string(a.body) != want {
			err = fmt.Errorf("/generation is answered with %d %s, want %q", a.status, a.body, want)
		}
		return err
	}
	request, mark := logged("reload")
	l := startLoad(t, g.addr, 8, 20*time.Millisecond, request)
	l.await(200)
	before := g.census()

	reload := func(body string, status int) {
		t.Helper()
		s.write("gateway.yml", body)
		// Changed files are noticed too: then this is a second reload, of the same file.
		until(t, 20*time.Second, func(ctx context.Context) error {
			a, err := g.ask(ctx, http.MethodPost, g.adminURL+"/_weir/reload", "")
			if err == nil && a.status != status {
				err = fmt.Errorf("reload is answered with %d %s, want %d", a.status, a.body, status)
			}
			return err
		})
	}
	last := 0
	for n := 1; n <= 50; n++ {
		if n%3 == 0 {
			reload(text(n, mistakes[n/3%len(mistakes)]), http.StatusBadRequest)
		} else {
			reload(text(n), http.StatusOK)
			last = n
		}
		if err := inForce(last); err != nil {
			t.Fatalf("reload %d: %v", n, err)
		}
		if invalid := g.metrics()["weir_config_invalid"]; (invalid == 1) != (n%3 == 0) {
			t.Errorf("reload %d: weir_config_invalid is %v", n, invalid)
		}
	}
	l.await(100)

	// What is left behind must be what was there before, times the number of reloads or not.
	until(t, 30*time.Second, func(context.Context) error {
		if after := g.census(); after != before {
			return fmt.Errorf("after 50 reloads there are %+v, before them %+v", after, before)
		}
		return nil
	})
	shots := l.stop()
	checkShots(t, shots, every)
	for _, s := range shots {
		if s.fresh && s.n >= 8 {
			t.Errorf("request %d came over a fresh connection: a reload closed one", s.n)
		}
	}
	awaitRecords(t, c.URL(), shots, mark, time.Now(), g)
}

// A census counts what reloads must not multiply.
type census struct {
	listeners, pipelines, entries, adopters int
}

// census counts the gateway's listeners on its port, and goroutines by what they do.
func (g *gateway) census() census {
	g.tb.Helper()
	stacks := strings.Split(string(must(g.tb, g.client, http.MethodGet, g.adminURL+"/debug/pprof/goroutine?debug=2", "").body), "\n\n")
	having := func(function string) (n int) {
		for _, s := range stacks {
			if strings.Contains(s, function) {
				n++
			}
		}
		return n
	}
	return census{
		listeners: listeners(g.tb, g.addr), pipelines: having("weir/pipeline."), entries: having("weir/flows.(*Entry).accept("),
		adopters: having("weir/queue/disk.(*Adopter)"),
	}
}

// listeners counts the sockets that listen on the port of addr, by what the kernel says.
func listeners(tb testing.TB, addr string) (n int) {
	tb.Helper()
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	const listening = "0A"
	for _, file := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join("/proc/net", file))
		if err != nil {
			tb.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // number, local address, remote address, state
			if len(f) > 3 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", tcp.Port)) {
				n++
			}
		}
	}
	return n
}

func TestReloadComesInThreeWays(t *testing.T) {
	s := newSite(t, estest.New(t, estest.Options{}).URL(), withGeneration(0)...)
	g := s.start()
	applied := func() float64 { return g.metrics()[`weir_config_reloads_total{outcome="applied"}`] }
	await := func(what string, done func() error) {
		t.Helper()
		until(t, 20*time.Second, func(context.Context) error {
			if err := done(); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	s.write("gateway.yml", swap("generation 0", "generation 1")(t, s.text))
	await("changed file", func() error {
		if a := g.get("/generation"); string(a.body) != "generation 1" {
			return fmt.Errorf("/generation is answered with %s", a.body)
		}
		return nil
	})
	for what, do := range map[string]func(){
		"SIGHUP": func() {
			if err := g.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		},
		"POST /_weir/reload": func() { must(t, g.client, http.MethodPost, g.adminURL+"/_weir/reload", "") },
	} {
		before := applied()
		do()
		await(what, func() error {
			if n := applied() - before; n != 1 {
				return fmt.Errorf("%v reloads, want one", n)
			}
			return nil
		})
	}
}
