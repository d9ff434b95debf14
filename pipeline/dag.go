package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"weir/internal/conf"
	"weir/queue"
)

// DAGConfig is the configuration of dag.
type DAGConfig struct {
	// Queue that records are taken from.
	InputQueue string `conf:"input_queue"`
	// Processors that get each block at the same time, as in [{json_indexing: {...}}, {file: {...}}]. They have no queue of
	// their own.
	Parallel *conf.Node `conf:"parallel,required"`
	// Processors that get a block one after the other when all of parallel have settled it.
	End *conf.Node `conf:"end"`
	// When a block goes on: wait_all, when all of parallel have settled it.
	Mode string `conf:"mode" enum:"wait_all"`
}

// DAG declares the processor dag.
func DAG() Factory[DAGConfig] {
	return Factory[DAGConfig]{
		Name: "dag",
		Summary: "Gives the records of one queue to several processors. A block is taken off the queue when all of them have settled it, so the " +
			"slowest sets the pace; after a crash those that had settled the block get it once more.",
		Default: func() DAGConfig { return DAGConfig{Mode: "wait_all"} },
		Build: func(b *Builder, c DAGConfig) Processor {
			o := &dagOutlet{}
			keys := ""
			names := map[string]int{}
			for i, stage := range []*conf.Node{c.Parallel, c.End} {
				for _, n := range stage.Items() {
					kinds := n.Keys()
					if len(kinds) != 1 {
						b.problems.Errorf(n, "a processor, as in {json_indexing: {...}}, has one name; here are %d", len(kinds))
						continue
					}
					kind := kinds[0]
					inner := *b
					inner.inner = true
					p, key := inner.processor(kind, n.KeyPos(kind), n.Get(kind))
					b.off = b.off || inner.off
					d, ok := p.(*drain)
					if !ok {
						continue // reported, or switched off
					}
					names[kind]++
					name := kind
					if n := names[kind]; n > 1 {
						name = fmt.Sprintf("%s-%d", kind, n)
					}
					o.parts = append(o.parts, dagPart{name, i == 1, d.outlet})
					keys += fmt.Sprintf(" %d %s %s", i, name, key)
				}
			}
			if c.Parallel.Len() == 0 {
				b.Errorf("parallel", "a dag needs processors in parallel")
			}
			b.key = keys
			return b.drain(c.InputQueue, false, o)
		},
		Examples: []Example{{
			Title: "Store records and keep them in files",
			YAML:  "- {name: both, dag: {input_queue: request_logging, parallel: [{json_indexing: {index_name: gateway_requests, elasticsearch: default}}, {file: {path: data/requests.ndjson}}]}}",
		}},
	}
}

// dagPart is one processor of a dag.
type dagPart struct {
	name   string
	end    bool // it comes after the others
	outlet outlet
}

// dagOutlet gives blocks to several outlets.
type dagOutlet struct{ parts []dagPart }

// open implements outlet.
func (o *dagOutlet) open(env Env, f feed) (opened, error) {
	sinks := make([]dagSink, f.consumers)
	var closers []func() error
	closeAll := func() error {
		var err error
		for _, c := range closers {
			err = errors.Join(err, c())
		}
		return err
	}
	for _, part := range o.parts {
		inner := f
		inner.name += "/" + part.name
		inner.logger = f.logger.With("processor", part.name)
		p, err := part.outlet.open(env, inner)
		if err != nil {
			return opened{}, errors.Join(err, closeAll())
		}
		closers = append(closers, p.close)
		for i := range sinks {
			if part.end {
				sinks[i].end = append(sinks[i].end, p.sinks[i])
			} else {
				sinks[i].parallel = append(sinks[i].parallel, p.sinks[i])
			}
		}
	}
	out := opened{sinks: make([]sink, f.consumers), close: closeAll}
	for i := range sinks {
		out.sinks[i] = &sinks[i]
	}
	return out, nil
}

// dagSink settles the blocks of one consumer.
type dagSink struct{ parallel, end []sink }

// settle implements sink.
func (d *dagSink) settle(take, finish context.Context, block queue.Block) bool {
	var all sync.WaitGroup
	var stopped atomic.Bool
	for _, s := range d.parallel {
		all.Go(func() {
			if !s.settle(take, finish, block) {
				stopped.Store(true)
			}
		})
	}
	all.Wait()
	if stopped.Load() {
		return false
	}
	for _, s := range d.end {
		if !s.settle(take, finish, block) {
			return false
		}
	}
	return true
}
