package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/elastic"
	"weir/filters"
	"weir/flows"
	"weir/internal/admin"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/pipeline"
	"weir/queue"
	"weir/queue/disk"
)

// adoptEvery is how often a process looks for the queues of processes that are gone.
const adoptEvery = time.Minute

// An App is a running gateway.
type App struct {
	load    func() (*Plan, *conf.Problems)
	logger  *slog.Logger
	metrics *obs.Metrics
	version string
	stdout  io.Writer

	instance *disk.Instance
	manager  *disk.Manager
	adopter  *disk.Adopter
	keeper   *flows.Keeper
	budget   *flows.Budget
	admin    *admin.Server
	started  time.Time
	ending   atomic.Bool
	current  atomic.Pointer[flows.Generation]
	numbers  appMetrics

	planning atomic.Pointer[Plan]     // being put into force, or in force
	broken   atomic.Pointer[[]string] // pipelines of the plan that did not start: why the gateway is not ready

	mu        sync.Mutex // guards the fields below; held for as long as a reload takes
	plan      *Plan      // in force
	loaded    string     // checksum of the files as they were loaded last, "" if they may have changed meanwhile
	entries   map[string]*running
	pipelines map[string]*pipeline.Running
	clusters  map[string]*elastic.Cluster // for pipelines and templates
	setup     *setup
	statsd    *obs.StatsD
	fixed     *fixed         // what the process began with
	draining  sync.WaitGroup // entries that were replaced, and generations
}

// running is an entry at work with what shaped it.
type running struct {
	*flows.Entry
	config flows.EntryConfig
}

// appMetrics are the numbers about the life of the process.
type appMetrics struct {
	reloads, failed obs.Counter
	generation      obs.Gauge
	invalid         obs.Gauge
}

// Options say how an App is made.
type Options struct {
	Load    func() (*Plan, *conf.Problems) // called at start and at each reload
	Logger  *slog.Logger
	Version string
	Stdout  io.Writer // for pipelines that print records
}

// Start loads the configuration and puts it into force.
func Start(ctx context.Context, o Options) (*App, error) {
	plan, problems := o.Load()
	if plan == nil {
		return nil, problems.Err()
	}
	a := &App{
		load: o.Load, logger: o.Logger, version: o.Version, stdout: o.Stdout, metrics: obs.NewMetrics(), keeper: flows.NewKeeper(),
		budget:  flows.NewBudget(int64(plan.Config.Limits.Bodies)),
		started: time.Now(), entries: map[string]*running{}, pipelines: map[string]*pipeline.Running{},
		clusters: map[string]*elastic.Cluster{},
	}
	a.registerMetrics()
	if err := a.openFolder(plan); err != nil {
		return nil, err
	}
	if err := a.startAdmin(plan); err != nil {
		return nil, errors.Join(err, a.Shutdown(ctx))
	}
	for _, q := range problems.Sorted() {
		a.logger.Warn("configuration", "problem", q.String())
	}
	a.mu.Lock()
	err := a.enforce(ctx, plan)
	a.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, a.Shutdown(ctx))
	}
	a.tellStranded(plan)
	a.adopter = disk.StartAdopter(plan.Config.Path.Data, adoptEvery, a.openQueue, a.logger)
	a.metrics.CounterFunc("weir_queue_adopted_blocks_total", "Blocks taken over from the queues of processes that are gone.").
		Set(func() float64 { return float64(a.adopter.Blocks()) })
	return a, nil
}

func (a *App) registerMetrics() {
	reloads := a.metrics.Counter("weir_config_reloads_total", "Reloads of the configuration.", "outcome")
	a.numbers = appMetrics{
		reloads: reloads.With("applied"), failed: reloads.With("refused"),
		generation: a.metrics.Gauge("weir_config_generation", "Number of the configuration in force, counted from the start.").With(),
		invalid: a.metrics.Gauge("weir_config_invalid",
			"1 while the files hold a configuration that was refused and an older one is in force.").With(),
	}
	a.metrics.GaugeFunc("weir_body_budget_used_bytes", "Memory that bodies of requests and answers take.").
		Set(func() float64 { return float64(a.budget.Used()) })
	a.metrics.CounterFunc("weir_body_budget_refusals_total", "Bodies that the memory budget had no room for.").
		Set(func() float64 { return float64(a.budget.Refusals()) })
}

// startAdmin opens the admin listener.
func (a *App) startAdmin(plan *Plan) error {
	if !plan.Config.Admin.Enabled {
		return nil
	}
	server, err := admin.New(admin.Options{
		Addr: plan.Config.Admin.Binding, Hosts: plan.Config.Admin.Hosts, SkipOccupied: true, Metrics: a.metrics.Handler(a.logger), Logger: a.logger,
		Info: a.info, Ready: a.ready, Reload: func() error { return a.Reload(context.Background()) },
	})
	if err != nil {
		return err
	}
	server.Handle("GET /_weir/clusters", elastic.ClustersHandler(a.liveClusters))
	filters.Publish(server, a.keeper, a.way)
	server.Handle("PUT /_weir/clusters/{cluster}/nodes/{node}", elastic.WeightHandler(a.allClusters))
	if err := server.Start(); err != nil {
		return err
	}
	a.admin = server
	return nil
}

// liveClusters returns the clusters that flows use.
func (a *App) liveClusters() []*elastic.Cluster {
	list := flows.Kept[*elastic.Cluster](a.keeper)
	slices.SortFunc(list, func(x, y *elastic.Cluster) int { return strings.Compare(x.Name(), y.Name()) })
	return list
}

// way returns the flows that a request to an entry meets.
func (a *App) way(entry string, x *flows.Exchange) ([]*flows.Flow, error) {
	plan := a.planning.Load()
	if plan == nil || a.current.Load() == nil {
		return nil, errors.New("no configuration is in force")
	}
	return plan.Way(entry, x)
}

// allClusters returns the clusters that flows use, and those of pipelines.
func (a *App) allClusters() []*elastic.Cluster {
	list := a.liveClusters()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.clusters {
		list = append(list, k)
	}
	return list
}

// info is what the admin listener tells about the process.
func (a *App) info() admin.Info {
	i := admin.Info{Version: a.version, ConfigFiles: a.Files()}
	if g := a.current.Load(); g != nil {
		i.Generation = g.Number
	}
	return i
}

// Files returns the configuration files that were last read.
func (a *App) Files() []string {
	if plan := a.planning.Load(); plan != nil {
		return plan.Files
	}
	return nil
}

// openFolder takes this process's instance folder.
func (a *App) openFolder(plan *Plan) error {
	in, err := disk.AcquireInstance(plan.Config.Path.Data)
	if err != nil {
		return fmt.Errorf("path.data %s: %w", plan.Config.Path.Data, err)
	}
	a.instance, a.manager = in, disk.NewManager(in, a.metrics, a.logger)
	return nil
}

// openQueue opens a queue of this process.
func (a *App) openQueue(name string) (queue.Queue, error) {
	return a.manager.Open(name, a.planning.Load().Config.Queue.Options())
}

// Reload reads the configuration again and puts it into force. On any error the one in force stays.
func (a *App) Reload(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reload(ctx)
}

// ReloadChanged is Reload for those who have seen files change. It does nothing if the files are as they were loaded last, since
// somebody may have changed them and called Reload.
func (a *App) ReloadChanged(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loaded != "" && conf.Checksum(a.Files()) == a.loaded {
		return nil
	}
	return a.reload(ctx)
}

// reload is Reload for who holds mu.
func (a *App) reload(ctx context.Context) error {
	if a.ending.Load() {
		return errors.New("the gateway is shutting down")
	}
	files := a.Files()
	before := conf.Checksum(files)
	plan, problems := a.load()
	if a.loaded = before; conf.Checksum(files) != before || plan != nil && !slices.Equal(files, plan.Files) {
		a.loaded = ""
	}
	if plan == nil {
		return a.refused(problems.Err())
	}
	for _, q := range problems.Sorted() {
		a.logger.Warn("configuration", "problem", q.String())
	}
	if err := a.enforce(ctx, plan); err != nil {
		return a.refused(err)
	}
	a.tellStranded(plan)
	a.numbers.reloads.Inc()
	a.logger.Info("configuration reloaded", "generation", a.current.Load().Number)
	return nil
}

func (a *App) refused(err error) error {
	a.numbers.failed.Inc()
	a.numbers.invalid.Set(1)
	a.logger.Error("configuration refused, the old one stays in force", "error", err)
	return err
}

// enforce puts plan into force: it starts everything new, swaps, and lets go of everything old. The caller holds mu.
func (a *App) enforce(ctx context.Context, plan *Plan) error {
	before := a.planning.Swap(plan)
	g, err := a.startGeneration(plan)
	if err != nil {
		a.planning.Store(before)
		return err
	}
	fresh, err := a.listen(ctx, plan)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w; reuse_port: true shares a port among processes that all say so, skip_occupied_port: true takes the next free one", err)
	}
	if err != nil {
		a.planning.Store(before)
		g.Abandon()
		<-g.Drained()
		return err
	}
	a.replaceEntries(plan, fresh, g, a.current.Swap(g))
	a.warnFixed(plan)
	a.replacePipelines(ctx, plan)
	a.replaceStatsD(plan)
	a.plan = plan
	a.numbers.generation.Set(float64(g.Number))
	a.numbers.invalid.Set(0)
	return nil
}
