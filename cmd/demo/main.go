// Command demo shows the gateway's main job: it starts a cluster, loads documents, runs weir with the repository's
// gateway.yml in front of it and walks through a tour.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	once := flag.Bool("once", false, "end after the tour; the exit code is 1 if a step failed")
	config := flag.String("c", "gateway.yml", "configuration file of the gateway")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *config, *once, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, config string, once bool, out io.Writer) error {
	folder, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()

	backend, err := startBackend(ctx, out)
	if err != nil {
		return err
	}
	defer backend.close()
	if err := load(ctx, backend.url, out); err != nil {
		return err
	}
	g, err := startGateway(ctx, config, folder, backend.url, out)
	if err != nil {
		return err
	}
	defer g.stop()

	failed := tour(ctx, g, backend, out)
	fmt.Fprintf(out, "\ngateway   %s\nadmin     %s (/metrics, /_weir/clusters)\ncluster   %s\n", g.url, g.admin, backend.url)
	if backend.theirs {
		fmt.Fprintf(out, "left in the cluster: the indices %s, %s and %s\n", index, limited, records)
	}
	if len(failed) > 0 {
		fmt.Fprintf(out, "failed    %s\n", strings.Join(failed, ", "))
	}
	if !once {
		fmt.Fprintf(out, "\nTry    curl -i '%s/%s/_search?size=1'\nEnd    Ctrl-C\n", g.url, index)
		<-ctx.Done()
		return nil
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d steps of the tour failed", len(failed))
	}
	return nil
}

// gateway is a running weir.
type gateway struct {
	cmd        *exec.Cmd
	exited     chan error
	url, admin string
}

// startGateway builds weir and runs it.
func startGateway(ctx context.Context, config, folder, cluster string, out io.Writer) (*gateway, error) {
	binary := filepath.Join(folder, "weir")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/weir")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build weir: %w", err)
	}
	address, err := freeAddress("127.0.0.1:8000")
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress("127.0.0.1:2900")
	if err != nil {
		return nil, err
	}
	logFile, err := os.Create(filepath.Join(folder, "weir.log"))
	if err != nil {
		return nil, err
	}
	g := &gateway{url: "http://" + address, admin: "http://" + admin, exited: make(chan error, 1)}
	g.cmd = exec.Command(binary, "run", "-c", config)
	g.cmd.Env = append(os.Environ(), "ES_URL="+cluster, "WEIR_ADDRESS="+address, "WEIR_ADMIN="+admin, "WEIR_DATA="+filepath.Join(folder, "data"))
	g.cmd.Stdout, g.cmd.Stderr = logFile, logFile
	// Ctrl-C goes to the whole group; the gateway is ended by us, after the tour.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { g.exited <- g.cmd.Wait() }()
	fmt.Fprintf(out, "starting weir with %s on %s\n", config, g.url)
	err = until(ctx, 20*time.Second, func() error {
		select {
		case err := <-g.exited:
			g.exited <- err
			return fatal{fmt.Errorf("weir ended: %v", err)}
		default:
		}
		_, err := get(ctx, g.admin+"/readyz")
		return err
	})
	if err != nil {
		g.stop()
		log, _ := os.ReadFile(logFile.Name())
		return nil, fmt.Errorf("weir does not become ready: %w\n%s", err, log)
	}
	return g, nil
}

// stop ends weir in order, or by force if it takes too long.
func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.exited:
	case <-time.After(20 * time.Second):
		_ = g.cmd.Process.Kill()
		<-g.exited
	}
}
