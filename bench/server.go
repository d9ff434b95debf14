package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"
)

//go:embed peers weir wrk
var files embed.FS

const (
	startLimit = 15 * time.Second
	stopLimit  = 5 * time.Second
)

// A server is a running process that listens, pinned to a core.
type server struct {
	target  target
	address string
	cmd     *exec.Cmd
	log     string
	done    chan struct{} // closed when the process has ended
}

// binaries says what to run for a name: a path, or empty if it is not there.
type binaries map[string]string

// peers are the programs of others that may be measured, and what makes them say their version.
var peers = []struct{ name, program, version string }{
	{"nginx", "nginx", "-v"}, {"haproxy", "haproxy", "-v"}, {"varnish", "varnishd", "-V"},
}

// startServer starts a target in a folder of its own under dir and returns when it accepts connections.
func startServer(ctx context.Context, t target, bin, dir string, core int, upstream string) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, t.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var config string
	if t.file != "" && t.name != "fasthttp" {
		if config, err = writeConfig(t, dir, address, upstream); err != nil {
			return nil, err
		}
	}
	command := []string{"taskset", "-c", strconv.Itoa(core), bin}
	switch t.program() {
	case "weir":
		command = append(command, "run", "-c", config)
	case "nginx":
		command = append(command, "-p", dir, "-c", config, "-g", "daemon off;")
	case "haproxy":
		command = append(command, "-db", "-f", config)
	case "varnish":
		command = append(command, "-F", "-a", address, "-b", upstream, "-n", dir, "-s", "malloc,64m", "-t", "3600")
	default: // this project's own programs
		command = append(command, address)
		if t.file != "" {
			command = append(command, t.file)
		}
	}
	s := &server{target: t, address: address, log: filepath.Join(dir, "output.log"), done: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(command[0], command[1:]...)
	s.cmd.Dir = dir
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = append(os.Environ(), "BENCH_ADDRESS="+address, "BENCH_UPSTREAM="+upstream)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", t.name, err)
	}
	go func() {
		_ = s.cmd.Wait() // how it ended stands in its log
		close(s.done)
	}()
	if err := s.waitListening(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// writeConfig writes a target's configuration to dir. The gateway's own files take their values from the environment, as
// any of its files may; those of the peers are templates.
func writeConfig(t target, dir, address, upstream string) (string, error) {
	path := filepath.Join(dir, filepath.Base(t.file))
	text, err := files.ReadFile(t.file)
	if err != nil {
		return "", err
	}
	if t.program() != "weir" {
		tmpl, err := template.ParseFS(files, "peers/*.conf")
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		err = tmpl.ExecuteTemplate(&out, filepath.Base(t.file), map[string]any{
			"Address": address, "Upstream": upstream, "Dir": dir, "Root": os.Geteuid() == 0,
		})
		if err != nil {
			return "", err
		}
		text = out.Bytes()
	}
	return path, os.WriteFile(path, text, 0o644)
}

// freeAddress returns a loopback address on which nothing listens.
func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

func (s *server) waitListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := net.Dial("tcp", s.address); err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case <-s.done:
			return fmt.Errorf("start %s: it ended: %s", s.target.name, s.output())
		case <-ctx.Done():
			return fmt.Errorf("start %s: does not listen on %s: %w: %s", s.target.name, s.address, ctx.Err(), s.output())
		}
	}
}

// output returns the end of what the process printed.
func (s *server) output() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-2000):]))
}

// stop ends the process, in order if it can, and waits for that.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", s.target.name, err)
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-s.done:
		return nil
	case <-limit.C:
	}
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", s.target.name, err)
	}
	<-s.done
	return nil
}
