package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// crowdCase measures what many connections that do little cost those that do much.
	crowdCase = "crowd"
	// crowdAim is the most by which the median latency may grow.
	crowdAim   = 1.5
	crowdIdle  = 5000
	crowdSlow  = 1000
	crowdEvery = 500 * time.Millisecond // each slow client sends a byte
)

// A crowd is connections that are idle, or send their requests byte by byte.
type crowd struct {
	idle []net.Conn
	slow []net.Conn
	stop context.CancelFunc
	done sync.WaitGroup
}

// gather opens a crowd's connections. Idle ones have had an answer; of the slow ones one half sends a head and the other a
// body, and who is cut off comes again.
func gather(ctx context.Context, s *server, c benchCase) (*crowd, error) {
	ctx, stop := context.WithCancel(ctx)
	k := &crowd{stop: stop}
	for range crowdIdle {
		conn, err := net.DialTimeout("tcp", s.address, 5*time.Second)
		if err != nil {
			k.disperse()
			return nil, fmt.Errorf("idle connection %d: %w", len(k.idle)+1, err)
		}
		k.idle = append(k.idle, conn)
		if _, err := exchange(conn, c); err != nil {
			k.disperse()
			return nil, fmt.Errorf("idle connection %d: %w", len(k.idle), err)
		}
	}
	for i := range crowdSlow {
		conn, err := slowClient(s.address, i)
		if err != nil {
			k.disperse()
			return nil, fmt.Errorf("slow connection %d: %w", i+1, err)
		}
		k.slow = append(k.slow, conn)
	}
	k.done.Go(func() {
		tick := time.NewTicker(crowdEvery / 10)
		defer tick.Stop()
		for turn := 0; ; turn++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for i := turn % 10; i < len(k.slow); i += 10 {
				if _, err := k.slow[i].Write([]byte{'x'}); err != nil {
					_ = k.slow[i].Close()
					if conn, err := slowClient(s.address, i); err == nil {
						k.slow[i] = conn
					}
				}
			}
		}
	})
	return k, nil
}

// slowClient begins a request that will be long in coming.
func slowClient(address string, i int) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	begin := "GET / HTTP/1.1\r\nHost: bench\r\nX-Slow: "
	if i%2 == 1 {
		begin = "POST /size-1024/_search HTTP/1.1\r\nHost: bench\r\nContent-Length: 100000\r\n\r\n"
	}
	if _, err := io.WriteString(conn, begin); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// disperse closes the crowd's connections.
func (k *crowd) disperse() {
	k.stop()
	k.done.Wait()
	for _, conn := range append(k.idle, k.slow...) {
		_ = conn.Close()
	}
}

// crowded measures a case without and with a crowd, in turns.
func (h *harness) crowded(ctx context.Context, c benchCase, s *server) (r result, err error) {
	r = result{benchCase: c, rows: []row{{name: s.target.name}, {name: s.target.name + " in a crowd"}}}
	for round := range h.o.rounds + 1 {
		alone, err := h.measure(ctx, c, s, h.o.duration)
		if err != nil {
			return r, err
		}
		k, err := gather(ctx, s, c)
		if err != nil {
			return r, err
		}
		amid, err := h.measure(ctx, c, s, h.o.duration)
		k.disperse()
		if err != nil {
			return r, err
		}
		if round > 0 { // the first is the warm-up
			r.rows[0].rounds = append(r.rows[0].rounds, alone)
			r.rows[1].rounds = append(r.rows[1].rounds, amid)
		}
	}
	return r, nil
}

func p50(m measurement) float64 { return float64(m.p50) }
