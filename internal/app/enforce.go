package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/pipeline"
	"weir/queue"
)

// queues opens queues for filters. A plan is made before there is a folder to open them in.
type queues struct {
	open func(name string) (queue.Queue, error)
}

// Open opens the queue called name.
func (q *queues) Open(name string) (queue.Queue, error) { return q.open(name) }

// startGeneration starts the plan's flows beside those in force.
func (a *App) startGeneration(plan *Plan) (*flows.Generation, error) {
	plan.queues.open = a.openQueue
	number := uint64(1)
	if old := a.current.Load(); old != nil {
		number = old.Number + 1
	}
	rt := &flows.Runtime{Metrics: a.metrics, Logger: a.logger, Budget: a.budget}
	g := plan.builder.Generation(number, plan.Routers, rt, a.keeper)
	if err := g.Start(); err != nil {
		g.Abandon()
		<-g.Drained()
		return nil, err
	}
	return g, nil
}

// fixed are the settings that a reload cannot change.
type fixed struct {
	path   PathConfig
	admin  AdminConfig
	log    LogConfig
	bodies conf.Bytes
}

// warnFixed names settings that a reload cannot change and that differ from what is in force.
func (a *App) warnFixed(plan *Plan) {
	is := fixed{plan.Config.Path, plan.Config.Admin, plan.Config.Log, plan.Config.Limits.Bodies}
	if a.fixed == nil {
		a.fixed = &is
		return
	}
	was := a.fixed
	for name, changed := range map[string]bool{
		"path.data": was.path.Data != is.path.Data, "path.logs": was.path.Logs != is.path.Logs,
		"admin": !reflect.DeepEqual(was.admin, is.admin), "log": was.log != is.log,
		"limits.bodies": was.bodies != is.bodies,
	} {
		if changed {
			a.logger.Warn("a changed setting needs a restart", "setting", name)
		}
	}
}

// listen opens the entries of plan that are new or shaped otherwise than before. On an error all that it opened is
// closed again.
func (a *App) listen(ctx context.Context, plan *Plan) (map[string]*running, error) {
	fresh := map[string]*running{}
	for _, c := range plan.Entries {
		old := a.entries[c.Name]
		if old != nil && reflect.DeepEqual(old.config, c) {
			continue
		}
		e, err := a.newEntry(c)
		if err == nil {
			err = a.listenOn(ctx, e, c, plan)
		}
		if err != nil {
			for _, r := range fresh {
				r.Abandon()
			}
			return nil, err
		}
		fresh[c.Name] = &running{Entry: e, config: c}
	}
	return fresh, nil
}

// listenOn gives e a listener: that of the entry it replaces, if the network settings are the same, or a new one. It
// replaces the one of its name, or one that the plan has under another name.
func (a *App) listenOn(ctx context.Context, e *flows.Entry, c flows.EntryConfig, plan *Plan) error {
	if old := a.entries[c.Name]; old != nil && old.config.Network.Binding == c.Network.Binding {
		if old.config.Network.ReusePort != c.Network.ReusePort {
			a.logger.Warn("reuse_port of a port that is open cannot be changed: it needs a restart", "entry", c.Name)
		}
		return e.Inherit(old.Entry)
	}
	for name, old := range a.entries {
		gone := !slices.ContainsFunc(plan.Entries, func(other flows.EntryConfig) bool { return other.Name == name })
		if gone && old.config.Network == c.Network {
			return e.Inherit(old.Entry)
		}
	}
	return e.Listen(ctx)
}

func (a *App) newEntry(c flows.EntryConfig) (*flows.Entry, error) {
	var t *tls.Config
	if c.TLS.Enabled {
		folder := filepath.Join(a.planning.Load().Config.Path.Data, "tls", c.Name)
		cert, err := flows.OpenCertificate(c.TLS, folder, a.logger)
		if err != nil {
			return nil, fmt.Errorf("entry %s: %w", c.Name, err)
		}
		if t, err = cert.TLSConfig(c.TLS); err != nil {
			return nil, fmt.Errorf("entry %s: %w", c.Name, err)
		}
	}
	return flows.NewEntry(c, t, a.metrics, a.budget, a.logger)
}

// replaceEntries puts g into force: it serves the fresh entries and ends those that the plan no longer has, or has in
// another shape. Running exchanges of ended entries finish within the drain time. The generation old is retired when
// nothing can meet it any more.
func (a *App) replaceEntries(plan *Plan, fresh map[string]*running, g, old *flows.Generation) {
	wanted := map[string]bool{}
	for _, c := range plan.Entries {
		wanted[c.Name] = true
	}
	var ending []*running
	var strangers sync.WaitGroup // ended entries that the plan does not know: they end as they were
	for name, e := range a.entries {
		if wanted[name] {
			e.Use(g)
			if fresh[name] == nil {
				continue
			}
		} else {
			strangers.Add(1)
		}
		ending = append(ending, e)
		delete(a.entries, name)
	}
	for name, e := range fresh {
		a.entries[name] = e
		e.Use(g)
		e.Serve()
		a.logger.Info("entry is listening", "entry", name, "address", e.Addr(), "tls", e.config.TLS.Enabled)
	}
	for _, e := range ending {
		a.draining.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), plan.Config.Limits.Drain.Std())
			defer cancel()
			if err := e.Shutdown(ctx); err != nil {
				a.logger.Warn("entry was replaced and its last exchanges were cut off", "entry", e.Name(), "error", err)
			}
			if !wanted[e.Name()] {
				strangers.Done()
			}
		})
	}
	if old != nil {
		a.draining.Go(func() {
			strangers.Wait()
			old.Retire()
			<-old.Drained()
		})
	}
}

// replacePipelines ends the pipelines that the plan no longer has, or has in another shape, and only then starts those
// that are new, so that a queue never has two consumers.
func (a *App) replacePipelines(ctx context.Context, plan *Plan) {
	same := a.plan != nil && reflect.DeepEqual(a.plan.Clusters, plan.Clusters) && reflect.DeepEqual(a.plan.Templates, plan.Templates)
	wanted := map[string]bool{}
	for _, p := range plan.Pipelines {
		wanted[p.Key()] = same
	}
	a.stopPipelines(ctx, plan.Config.Limits.Drain.Std(), func(key string) bool { return !wanted[key] })
	if !same {
		a.closeClusters()
		a.startSetup(plan)
	}
	env := pipeline.Env{
		Queues: plan.queues, Metrics: a.metrics, Logger: a.logger, Ready: a.setup.done, Stdout: a.stdout,
		Cluster: func(name string) (*elastic.Cluster, error) { return a.openCluster(plan, name) }, Flows: a.current.Load,
	}
	var broken []string
	for _, p := range plan.Pipelines {
		if a.pipelines[p.Key()] != nil {
			continue
		}
		r, err := p.Start(env)
		if err != nil {
			a.logger.Error("pipeline does not start; its queue fills up", "pipeline", p.Name, "error", err)
			broken = append(broken, fmt.Sprintf("the pipeline %s does not start", p.Name))
			continue
		}
		a.pipelines[p.Key()] = r
	}
	a.broken.Store(&broken)
}

// stopPipelines ends pipelines, all at the same time.
func (a *App) stopPipelines(ctx context.Context, within time.Duration, which func(key string) bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var stopping sync.WaitGroup
	for key, r := range a.pipelines {
		if !which(key) {
			continue
		}
		delete(a.pipelines, key)
		stopping.Go(func() {
			switch err := r.Stop(ctx); {
			case err == nil:
			case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
				a.logger.Warn("pipeline did not end in time; what it had in hand is delivered again", "error", err)
			default:
				a.logger.Error("pipeline did not end in order", "error", err)
			}
		})
	}
	stopping.Wait()
}

// openCluster returns the cluster called name for the gateway's own calls. The caller holds mu.
func (a *App) openCluster(plan *Plan, name string) (*elastic.Cluster, error) {
	if c := a.clusters[name]; c != nil {
		return c, nil
	}
	c, err := elastic.NewCluster(plan.Clusters[name], elastic.DefaultPool(), elastic.Deps{Metrics: a.metrics, Logger: a.logger})
	if err != nil {
		return nil, err
	}
	c.Start()
	a.clusters[name] = c
	return c, nil
}

func (a *App) closeClusters() {
	if a.setup != nil {
		a.setup.stop()
		a.setup = nil
	}
	for name, c := range a.clusters {
		c.Close()
		delete(a.clusters, name)
	}
}

// A setup installs index templates in the background. Pipelines wait for it, so that the first record meets the right
// mapping.
type setup struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (s *setup) stop() {
	s.cancel()
	<-s.done
}

func (a *App) startSetup(plan *Plan) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &setup{cancel: cancel, done: make(chan struct{})}
	a.setup = s
	type job struct {
		cluster  *elastic.Cluster
		template pipeline.Template
	}
	var jobs []job
	for _, t := range plan.Templates {
		c, err := a.openCluster(plan, t.Cluster)
		if err != nil {
			a.logger.Error("index template is not installed", "cluster", t.Cluster, "error", err)
			continue
		}
		jobs = append(jobs, job{c, t})
	}
	go func() {
		defer close(s.done)
		for _, j := range jobs {
			if err := pipeline.Setup(ctx, j.cluster, j.template, a.logger); err != nil && ctx.Err() == nil {
				a.logger.Error("index template is not installed", "cluster", j.template.Cluster, "error", err)
			}
		}
	}()
}

// replaceStatsD sends metrics where the plan wants them.
func (a *App) replaceStatsD(plan *Plan) {
	if a.plan != nil && a.plan.Config.StatsD == plan.Config.StatsD {
		return
	}
	a.stopStatsD()
	if !plan.Config.StatsD.Enabled {
		return
	}
	s, err := obs.NewStatsD(a.metrics, plan.Config.StatsD.options(), a.logger)
	if err != nil {
		a.logger.Error("metrics are not sent", "error", err)
		return
	}
	s.Start()
	a.statsd = s
}

func (a *App) stopStatsD() {
	if a.statsd == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := a.statsd.Stop(ctx); err != nil {
		a.logger.Warn("the last metrics were not sent", "error", err)
	}
	a.statsd = nil
}

// Addr returns the address that an entry listens on, or "" if there is no such entry.
func (a *App) Addr(entry string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[entry]; e != nil {
		return e.Addr()
	}
	return ""
}

// AdminAddr returns the address of the admin listener, or "".
func (a *App) AdminAddr() string {
	if a.admin == nil {
		return ""
	}
	return a.admin.Addr()
}

// ready returns what keeps the gateway from being ready.
func (a *App) ready() []string {
	var reasons []string
	if a.current.Load() == nil {
		reasons = append(reasons, "no configuration is in force")
	}
	if a.ending.Load() {
		reasons = append(reasons, "the gateway is shutting down")
	}
	if broken := a.broken.Load(); broken != nil {
		reasons = append(reasons, *broken...)
	}
	return reasons
}

// Shutdown ends in order: entries take no new connections and finish what runs within the drain time, pipelines deliver what
// they can within the rest of it, queues are written to disk. A disk that has no room is tried until the drain time is over; then
// the error is queue.ErrLost.
func (a *App) Shutdown(ctx context.Context) error {
	problems := a.stop(ctx)
	if a.admin != nil {
		problems = append(problems, a.admin.Close(ctx)) // what is asked of it may wait for the lock
	}
	return errors.Join(append(problems, a.instance.Close())...)
}

// inHand is how long pipelines have, at the end of the drain time, for what they have in hand. It is half of a short drain time.
const inHand = 5 * time.Second

// lastMoment is what a pipeline needs to end that has nothing in hand, although exchanges have used up the drain time.
const lastMoment = 100 * time.Millisecond

// stop is Shutdown but for the admin listener.
func (a *App) stop(ctx context.Context) []error {
	a.ending.Store(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.manager.Linger()
	drain := 30 * time.Second
	if a.plan != nil {
		drain = a.plan.Config.Limits.Drain.Std()
	}
	limited, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	errs := make(chan error, len(a.entries))
	for name, e := range a.entries {
		go func() {
			err := e.Shutdown(limited)
			if err != nil {
				err = fmt.Errorf("entry %s: exchanges were cut off: %w", name, err)
			}
			errs <- err
		}()
	}
	var problems []error
	for range a.entries {
		problems = append(problems, <-errs)
	}
	a.draining.Wait()
	end, _ := limited.Deadline()
	taking, cease := context.WithDeadline(limited, end.Add(-min(inHand, drain/2)))
	defer cease()
	for _, r := range a.pipelines {
		r.Drain(taking)
	}
	a.stopPipelines(ctx, max(time.Until(end), lastMoment), func(string) bool { return true })
	if g := a.current.Load(); g != nil { // after the pipelines, some of which make requests by its flows
		g.Retire()
		<-g.Drained()
	}
	a.closeClusters()
	if a.adopter != nil {
		a.adopter.Close()
	}
	a.manager.Drain(limited)
	problems = append(problems, a.manager.Close())
	a.stopStatsD()
	return problems
}
