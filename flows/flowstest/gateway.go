// Package flowstest serves flows that tests write in YAML: from the text to an entry on a port of the loopback, and to
// what a client reads on its connection.
//
// It is not the gateway of internal/app: there are no files, no reload from outside, no admin listener, and only the
// filters that the test registers. It trades that for a start within a millisecond. Servers in the place of
// Elasticsearch are package estest's.
package flowstest

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"testing"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
)

// Main returns the text of a configuration of one flow, main, and the router default that leads there. filters is its list
// of filters as a flow sequence of YAML, without the brackets.
func Main(filters string) string {
	return "flow: [{name: main, filter: [" + filters + "]}]\nrouter: [{name: default, default_flow: main}]\n"
}

// Build builds what text has in its sections elasticsearch, flow and router. The problems say what is wrong with it.
func Build(reg *flows.Registry, text string) (*flows.Builder, map[string]*flows.Router, *conf.Problems) {
	root, p := conf.Parse("test.yml", text, nil)
	b := flows.NewBuilder(reg, p)
	for name, c := range elastic.DecodeClusters(root.Get("elasticsearch"), p) {
		b.Provide("elasticsearch", name, c, nil)
	}
	b.Define(root.Get("flow"))
	routers := map[string]*flows.Router{}
	for _, n := range root.Get("router").Items() {
		if r := b.Router(n); r != nil {
			routers[r.Name()] = r
		}
	}
	return b, routers, p
}

// Options are what a test wants otherwise. The zero value has the defaults of an entry, plain HTTP and no log.
type Options struct {
	Entry  func(c *flows.EntryConfig) // changes the entry's configuration
	TLS    *tls.Config
	Logger *slog.Logger
}

// A Gateway is an entry at work. It is shut down when its test ends, and has ten seconds for that.
type Gateway struct {
	*flows.Entry
	Metrics *obs.Metrics
	Budget  *flows.Budget

	tb     testing.TB
	reg    *flows.Registry
	logger *slog.Logger
	keeper *flows.Keeper
	gen    *flows.Generation // in force
	number uint64
	ended  sync.Once
	end    error // of Shutdown
}

// New serves the router default of text, with the filters of reg.
func New(tb testing.TB, reg *flows.Registry, text string, o Options) *Gateway {
	tb.Helper()
	g := &Gateway{
		Metrics: obs.NewMetrics(), tb: tb, reg: reg, logger: o.Logger, Budget: flows.NewBudget(256 << 20), keeper: flows.NewKeeper(),
	}
	if g.logger == nil {
		g.logger = slog.New(slog.DiscardHandler)
	}
	c := flows.DefaultEntry()
	c.Name, c.Router, c.Network.Binding = "test", "default", "127.0.0.1:0"
	if o.Entry != nil {
		o.Entry(&c)
	}
	var err error
	if g.Entry, err = flows.NewEntry(c, o.TLS, g.Metrics, g.Budget, g.logger); err != nil {
		tb.Fatal(err)
	}
	g.Load(text)
	if err := g.Listen(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	g.Serve()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			tb.Errorf("shut down the entry: %v", err)
		}
		g.gen.Retire()
		<-g.gen.Drained()
	})
	return g
}

// Shutdown ends the entry, once.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.ended.Do(func() { g.end = g.Entry.Shutdown(ctx) })
	return g.end
}

// Load puts text into force, and returns when what was in force before has ended.
func (g *Gateway) Load(text string) {
	g.tb.Helper()
	b, routers, p := Build(g.reg, text)
	if err := p.Err(); err != nil {
		g.tb.Fatal(err)
	}
	g.number++
	gen := b.Generation(g.number, routers, &flows.Runtime{Metrics: g.Metrics, Logger: g.logger, Budget: g.Budget}, g.keeper)
	if err := gen.Start(); err != nil {
		g.tb.Fatal(err)
	}
	old := g.gen
	g.gen = gen
	g.Use(gen)
	if old != nil {
		old.Retire()
		<-old.Drained()
	}
}
