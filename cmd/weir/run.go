package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"weir/internal/app"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
)

// files are the configuration files of a command.
type files struct {
	Config []string `short:"c" name:"config" placeholder:"FILE" help:"Configuration file; may be repeated. Default: gateway.yml of the working folder."`
}

// options returns what is to be loaded.
func (f files) options() conf.Options {
	if len(f.Config) == 0 {
		return conf.Options{Files: []string{defaultFile}}
	}
	return conf.Options{Files: f.Config}
}

// load makes a plan of the configuration. If that has errors, it prints what is wrong.
func (f files) load(e env) (*app.Plan, error) {
	plan, problems := app.Load(f.options())
	if plan == nil {
		_ = problems.WriteText(e.stderr)
		return nil, &exitError{code: exitFailed}
	}
	return plan, nil
}

type runCmd struct{ files }

// Run runs the gateway until SIGTERM or SIGINT. SIGHUP and changed files reload the configuration.
func (r *runCmd) Run(e env) error {
	plan, err := r.load(e)
	if err != nil {
		return err
	}
	logger, closeLog, err := openLog(plan.Config, e.stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	changed := make(chan struct{}, 1)
	// The files are watched before they are read: what changes in between would be missed for good.
	var running atomic.Pointer[app.App]
	watched := func() []string {
		if a := running.Load(); a != nil {
			return a.Files()
		}
		return plan.Files
	}
	watcher, err := conf.Watch(watched, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		logger.Warn("changed files are not noticed; reload with SIGHUP", "error", err)
	} else {
		defer func() { _ = watcher.Close() }()
	}
	a, err := app.Start(ctx, app.Options{
		Load:   func() (*app.Plan, *conf.Problems) { return app.Load(r.options()) },
		Logger: logger, Version: versionString(), Stdout: e.stdout,
	})
	if err != nil {
		return err
	}
	running.Store(a)
	logger.Info("ready", "version", versionString(), "configuration", strings.Join(a.Files(), ", "), "admin", a.AdminAddr())
	for ctx.Err() == nil {
		// A refusal has been logged; the configuration in force goes on.
		select {
		case <-hup:
			_ = a.Reload(ctx)
		case <-changed:
			_ = a.ReloadChanged(ctx)
		case <-ctx.Done():
		}
	}
	stop() // a second signal ends the process at once
	logger.Info("shutting down", "drain", plan.Config.Limits.Drain.String())
	err = a.Shutdown(context.WithoutCancel(ctx))
	switch {
	case errors.Is(err, queue.ErrLost):
		logger.Error("the gateway ended, and records of its queues are lost", "error", err)
		return &exitError{code: exitLost}
	case errors.Is(err, context.DeadlineExceeded):
		return &exitError{code: exitCutOff, err: err}
	case err != nil:
		return err
	}
	logger.Info("ended in order")
	return nil
}

const (
	logFileSize = 100 << 20 // bytes of a log file before the next is begun
	logFiles    = 5         // that are kept
)

// openLog makes the gateway's own log: the standard error, and a file where path.logs is given.
func openLog(c app.Config, stderr io.Writer) (*slog.Logger, func(), error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		return nil, nil, err
	}
	out, closeLog := stderr, func() {}
	if c.Path.Logs != "" {
		if err := os.MkdirAll(c.Path.Logs, 0o755); err != nil {
			return nil, nil, fmt.Errorf("path.logs: %w", err)
		}
		f, err := obs.OpenFile(filepath.Join(c.Path.Logs, "weir.log"), logFileSize, logFiles)
		if err != nil {
			return nil, nil, fmt.Errorf("path.logs: %w", err)
		}
		out, closeLog = io.MultiWriter(stderr, f), func() { _ = f.Close() }
	}
	logger, err := obs.NewLogger(out, level, c.Log.Format)
	if err != nil {
		return nil, nil, err
	}
	return logger.With("pid", os.Getpid()), closeLog, nil
}
