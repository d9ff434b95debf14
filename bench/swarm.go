package main

import (
	"context"
	"fmt"
	"time"
)

const (
	// swarmCase measures what many connections that all ask cost the slowest answers.
	swarmCase = "swarm"
	// swarmConnections is how many there are, instead of the case's own number.
	swarmConnections = 1000
	// swarmAim is the most by which the gateway's 99th percentile may grow, as a multiple of how much nginx's grows.
	swarmAim = 3
)

// swarmed measures a case with its number of connections and with many, in turns: two rows a server.
func (h *harness) swarmed(ctx context.Context, c benchCase, servers []*server) (result, error) {
	r := result{benchCase: c}
	many := c
	many.connections = swarmConnections
	for _, s := range servers {
		r.rows = append(r.rows, row{name: s.target.name}, row{name: fmt.Sprintf("%s, %d connections", s.target.name, swarmConnections)})
	}
	for round := range h.o.rounds + 1 {
		for i, s := range servers {
			for j, c := range []benchCase{c, many} {
				duration := h.o.duration
				if round == 0 { // caches fill, connections open
					duration = time.Second
				}
				m, err := h.measure(ctx, c, s, duration)
				if err == nil {
					err = h.forwarded(c, m)
				}
				if err != nil {
					return r, fmt.Errorf("%s, %d connections: round %d is invalid: %w\n%s", s.target.name, c.connections, round, err, s.output())
				}
				if round > 0 {
					r.rows[2*i+j].rounds = append(r.rows[2*i+j].rounds, m)
				}
			}
		}
	}
	return r, nil
}

// growth returns how many times as long the 99th percentile is with many connections: first the gateway's, then nginx's.
func (r result) growth() (gateway, nginx float64, ok bool) {
	if len(r.rows) < 4 || r.rows[0].name != "weir" || r.rows[2].name != "nginx" {
		return 0, 0, false
	}
	return ratio(r.rows[1], r.rows[0], p99), ratio(r.rows[3], r.rows[2], p99), true
}

func p99(m measurement) float64 { return float64(m.p99) }
