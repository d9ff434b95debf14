package searchnode

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// stopLimit is how long an orderly stop may take. A node that holds no shard to move is gone in two seconds.
const stopLimit = 30 * time.Second

// A Node is one node of a cluster and its process. Its methods may be called from several goroutines.
type Node struct {
	url     string
	command []string
	log     string
	client  *http.Client

	// mu guards the fields below.
	mu      sync.Mutex
	process *process // nil from the moment somebody stops or kills it
}

// A process is one run of a node.
type process struct {
	cmd *exec.Cmd
	// done is closed when the process has ended and cmd.ProcessState is set.
	done chan struct{}
}

// URL returns the node's base address, without a slash at the end.
func (n *Node) URL() string { return n.url }

// Running tells whether the node's process is alive. A paused node runs.
func (n *Node) Running() bool {
	p := n.current()
	return p != nil && !p.ended()
}

func (n *Node) current() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// fault returns an error with the end of the node's log if its process ended though nobody asked for it.
func (n *Node) fault() error {
	p := n.current()
	if p == nil || !p.ended() {
		return nil
	}
	return fmt.Errorf("node %s ended by itself (%s): %s", n.url, p.cmd.ProcessState, n.logEnd())
}

func (n *Node) logEnd() string {
	log, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	return lastBytes(log, 4000)
}

// launch starts the process. The caller holds no lock.
func (n *Node) launch() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil && !n.process.ended() {
		return fmt.Errorf("node %s runs already", n.url)
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start node %s: %w", n.url, err)
	}
	defer log.Close()
	cmd := exec.Command(n.command[0], n.command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C in a terminal goes to this process alone, which then ends its nodes when it is ready to.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Nothing is ever written: the pipe ends when this process does, which the launcher waits for.
	if _, err := cmd.StdinPipe(); err != nil {
		return fmt.Errorf("start node %s: %w", n.url, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start node %s: %w", n.url, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended stands in cmd.ProcessState
		close(p.done)
	}()
	n.process = p
	return nil
}

// Start starts a stopped or killed node again, on the same port and with the same data, and returns once it answers.
func (n *Node) Start(ctx context.Context) error {
	if err := n.launch(); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		// The engines open the HTTP port only when the node has joined, or has waited 30 s for that.
		status, err := get(ctx, n.client, n.url+"/")
		if status != 0 {
			return nil
		}
		if err := n.fault(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("start node %s: %w: last try: %w", n.url, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Stop ends the node in order (SIGTERM) and waits for that. A paused node is resumed first. It fails, and the node is
// killed, when that takes more than 30 s.
func (n *Node) Stop() error {
	p, err := n.take()
	if err != nil {
		return err
	}
	if err := errors.Join(p.cmd.Process.Signal(syscall.SIGTERM), p.cmd.Process.Signal(syscall.SIGCONT)); err != nil {
		return errors.Join(fmt.Errorf("stop node %s: %w", n.url, err), p.kill())
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.done:
		return nil
	case <-limit.C:
		return errors.Join(fmt.Errorf("stop node %s: still there after %v", n.url, stopLimit), p.kill())
	}
}

// Kill ends the node at once (SIGKILL) and waits for that.
func (n *Node) Kill() error {
	p, err := n.take()
	if err != nil {
		return err
	}
	if err := p.kill(); err != nil {
		return fmt.Errorf("kill node %s: %w", n.url, err)
	}
	return nil
}

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// take returns the running process and detaches it, so that its end is no fault.
func (n *Node) take() (*process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.process
	if p == nil || p.ended() {
		return nil, fmt.Errorf("node %s does not run", n.url)
	}
	n.process = nil
	return p, nil
}

// Pause halts the node (SIGSTOP): its connections stay open and nothing answers. A node that is paused when this process
// dies stays behind.
func (n *Node) Pause() error { return n.signal(syscall.SIGSTOP) }

// Resume lets a paused node go on (SIGCONT).
func (n *Node) Resume() error { return n.signal(syscall.SIGCONT) }

func (n *Node) signal(s syscall.Signal) error {
	p := n.current()
	if p == nil || p.ended() {
		return fmt.Errorf("send %v to node %s: it does not run", s, n.url)
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to node %s: %w", s, n.url, err)
	}
	return nil
}
