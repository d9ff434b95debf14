package flows

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/conf"
	"weir/internal/obs"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// gateway is an entry at work over flows written in YAML.
type gateway struct {
	*Entry
	t       testing.TB
	keeper  *Keeper
	number  uint64
	logs    *bytes.Buffer
	metrics *obs.Metrics
}

// answerConfig configures the filter answer of these tests.
type answerConfig struct {
	// Text of the answer.
	Text string `conf:"text"`
	// Status of the answer.
	Status int `conf:"status"`
	// Answer with the request's body.
	Mirror bool `conf:"mirror"`
	// Panic.
	Panic bool `conf:"panic"`
	// Wait until the client has left.
	Wait bool `conf:"wait"`
	// Go on with the next filter.
	Continue bool `conf:"continue"`
}

type answerFilter struct {
	answerConfig
	seen func(x *Exchange)
}

func (f *answerFilter) Serve(x *Exchange, next Handler) error {
	if f.seen != nil {
		f.seen(x)
	}
	if f.Panic {
		panic("planted")
	}
	if f.Wait {
		<-x.Cancel().Done()
		return io.ErrClosedPipe
	}
	body := []byte(f.Text)
	if f.Mirror {
		got, err := x.Request.Body.Bytes(1 << 30)
		if err != nil {
			return err
		}
		body = got
	}
	x.Reply(f.Status, "text/plain", body)
	if f.Continue {
		return next.Serve(x)
	}
	return nil
}

// testRegistry has the filter answer, which calls seen, if not nil, with every exchange.
func testRegistry(seen func(x *Exchange)) *Registry {
	r := NewRegistry()
	Register(r, Factory[answerConfig]{
		Name: "answer", Default: func() answerConfig { return answerConfig{Status: 200, Text: "ok"} },
		Build: func(_ *Builder, c answerConfig) Filter { return &answerFilter{c, seen} },
	})
	return r
}

const oneFlow = `
flow: [{name: main, filter: [{answer: {}}]}]
router: [{name: default, default_flow: main}]
`

// build makes a generation of a configuration's flows and routers.
func build(t testing.TB, text string, reg *Registry) (*Builder, map[string]*Router, *conf.Problems) {
	t.Helper()
	root, p := conf.Parse("test.yml", text, nil)
	b := NewBuilder(reg, p)
	b.Define(root.Get("flow"))
	routers := map[string]*Router{}
	for _, n := range root.Get("router").Items() {
		if r := b.Router(n); r != nil {
			routers[r.Name()] = r
		}
	}
	return b, routers, p
}

// newGateway serves text on a free port of the loopback.
func newGateway(t testing.TB, text string, reg *Registry, shape func(*EntryConfig)) *gateway {
	t.Helper()
	return newGatewayWith(t, text, reg, shape, func(*gateway) {})
}

// newGatewayWith is newGateway; change changes the entry before it serves.
func newGatewayWith(t testing.TB, text string, reg *Registry, shape func(*EntryConfig), change func(*gateway)) *gateway {
	t.Helper()
	g := &gateway{t: t, keeper: NewKeeper(), logs: new(bytes.Buffer), metrics: obs.NewMetrics()}
	c := DefaultEntry()
	c.Name, c.Router, c.Network.Binding = "test", "default", "127.0.0.1:0"
	if shape != nil {
		shape(&c)
	}
	var err error
	g.Entry, err = NewEntry(c, nil, g.metrics, NewBudget(64<<20), slog.New(slog.NewTextHandler(g.logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	change(g)
	g.load(text, reg)
	if err := g.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.Serve()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		last := g.current.Load()
		last.Retire()
		<-last.Drained()
	})
	return g
}

// load puts text into force.
func (g *gateway) load(text string, reg *Registry) {
	g.t.Helper()
	b, routers, p := build(g.t, text, reg)
	if err := p.Err(); err != nil {
		g.t.Fatal(err)
	}
	g.number++
	gen := b.Generation(g.number, routers, &Runtime{Metrics: g.metrics, Logger: slog.New(slog.DiscardHandler)}, g.keeper)
	if err := gen.Start(); err != nil {
		g.t.Fatal(err)
	}
	old := g.current.Load()
	g.Use(gen)
	if old != nil {
		old.Retire()
		<-old.Drained()
	}
}

// client is a raw connection.
type client struct {
	*net.TCPConn
	r *bufio.Reader
	t testing.TB
}

func (g *gateway) dial() *client {
	g.t.Helper()
	nc, err := net.Dial("tcp", g.Addr())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	tcp, _ := nc.(*net.TCPConn)
	return &client{tcp, bufio.NewReader(nc), g.t}
}

func (c *client) send(text string) *client {
	c.t.Helper()
	if _, err := io.WriteString(c, strings.ReplaceAll(text, "\n", "\r\n")); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// answer reads one answer.
func (c *client) answer() (*http.Response, string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(body)
}

// closed tells whether the gateway has closed the connection, after all that it still sends.
func (c *client) closed() bool {
	_, err := io.Copy(io.Discard, c.r)
	return err == nil
}
