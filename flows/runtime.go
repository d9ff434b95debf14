package flows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"weir/internal/obs"
)

// A Runtime is what filters get when they start.
type Runtime struct {
	Metrics *obs.Metrics
	Logger  *slog.Logger
	Budget  *Budget // memory for bodies
	// Resources is a digest of what all resources of the generation are; see Identified.
	Resources string

	keeper *Keeper
	kept   []string        // keys that this generation holds
	life   context.Context // see Life
	end    context.CancelFunc
}

// Life returns a context that ends when the filters are stopped, which is when none of them serves an exchange any more.
func (rt *Runtime) Life() context.Context {
	if rt.life == nil {
		return context.Background() // of a runtime without a generation
	}
	return rt.life
}

// A Keeper holds what survives a reload: caches, limiter cells, listeners, connections to nodes. A value is known by a
// key that names its kind, its name and the configuration that shaped it; it is closed when no generation holds it.
type Keeper struct {
	mu   sync.Mutex // guards kept
	kept map[string]*keptValue
}

type keptValue struct {
	value any
	refs  int
	close func()
}

// NewKeeper returns an empty keeper.
func NewKeeper() *Keeper { return &Keeper{kept: map[string]*keptValue{}} }

// Keep returns the value kept under key, or makes it. The generation of rt holds it until it has drained. open returns
// the value and what closes it, which may be nil.
func Keep[T any](rt *Runtime, key string, open func() (T, func(), error)) (T, error) {
	k := rt.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.kept[key]
	if e == nil {
		value, closer, err := open()
		if err != nil {
			return value, err
		}
		e = &keptValue{value: value, close: closer}
		k.kept[key] = e
	}
	value, ok := e.value.(T)
	if !ok {
		return value, fmt.Errorf("%s is kept as a %T", key, e.value)
	}
	e.refs++
	rt.kept = append(rt.kept, key)
	return value, nil
}

// release gives up all that rt holds.
func (rt *Runtime) release() {
	var closers []func()
	rt.keeper.mu.Lock()
	for _, key := range rt.kept {
		e := rt.keeper.kept[key]
		if e.refs--; e.refs == 0 {
			delete(rt.keeper.kept, key)
			if e.close != nil {
				closers = append(closers, e.close)
			}
		}
	}
	rt.kept = nil
	rt.keeper.mu.Unlock()
	for _, closer := range closers {
		closer()
	}
}

// A Generation is one loaded configuration at work: its flows, started, and the exchanges that run in them.
type Generation struct {
	Number  uint64
	rt      *Runtime
	routers map[string]*Router
	flows   map[string]*Flow
	filters []Filter
	started int
	refs    atomic.Int64 // exchanges in the generation, and one for being in force
	drained chan struct{}
	life    context.Context // ends when the generation goes out of force
	retire  context.CancelFunc
}

// Generation makes a generation of all that b has built. Nothing runs before Start.
func (b *Builder) Generation(number uint64, routers map[string]*Router, rt *Runtime, keeper *Keeper) *Generation {
	rt.keeper, rt.Resources = keeper, b.identity()
	g := &Generation{Number: number, rt: rt, routers: routers, flows: b.flows, drained: make(chan struct{})}
	g.life, g.retire = context.WithCancel(context.Background())
	rt.life, rt.end = context.WithCancel(context.Background())
	for _, f := range b.flows {
		for _, l := range f.links {
			g.filters = append(g.filters, l.filter)
		}
	}
	g.refs.Store(1)
	return g
}

// Start starts all filters. If one fails, those that had started are stopped and the error is returned.
func (g *Generation) Start() error {
	for _, f := range g.filters {
		if s, ok := f.(Starter); ok {
			if err := s.Start(g.rt); err != nil {
				g.stop()
				return err
			}
		}
		g.started++
	}
	return nil
}

// Router returns the router called name, or nil.
func (g *Generation) Router(name string) *Router { return g.routers[name] }

// Retire takes the generation out of force. When its last exchange has ended its filters are stopped, what only it
// held is closed, and the channel that Drained returns is closed.
func (g *Generation) Retire() {
	g.retire()
	g.leave()
}

// Drained returns a channel that is closed when the retired generation has stopped.
func (g *Generation) Drained() <-chan struct{} { return g.drained }

// Abandon ends a generation that failed to start or was never put in force.
func (g *Generation) Abandon() { g.Retire() }

// enter counts an exchange in. It returns false if the generation has drained.
func (g *Generation) enter() bool {
	for {
		n := g.refs.Load()
		if n == 0 {
			return false
		}
		if g.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *Generation) leave() {
	if g.refs.Add(-1) == 0 {
		go func() {
			g.stop()
			close(g.drained)
		}()
	}
}

func (g *Generation) stop() {
	for i := g.started - 1; i >= 0; i-- {
		if s, ok := g.filters[i].(Stopper); ok {
			s.Stop()
		}
	}
	g.started = 0
	g.rt.end()
	g.rt.release()
}

var errNoRouter = errors.New("the entry's router is not in the configuration")

// Kept returns all values of type T that are kept, in no order.
func Kept[T any](k *Keeper) []T {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []T
	for _, e := range k.kept {
		if v, ok := e.value.(T); ok {
			out = append(out, v)
		}
	}
	return out
}
