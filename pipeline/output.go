package pipeline

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
)

// FileOutputConfig is the configuration of file.
type FileOutputConfig struct {
	// File that records are appended to, each as one line. Its folder is made if need be.
	Path string `conf:"path,required"`
	// Size at which the file is renamed, with the time behind its name, and a new one begun.
	MaxSize conf.Bytes `conf:"max_size" min:"1mb"`
	// How many renamed files are kept.
	Keep int `conf:"keep" min:"1" max:"10000"`
	// Queue that records are taken from. Within a dag it is left out.
	InputQueue string `conf:"input_queue"`
}

// FileOutput declares the processor file.
func FileOutput() Factory[FileOutputConfig] {
	return Factory[FileOutputConfig]{
		Name: "file",
		Summary: "Takes records off a queue and appends them to a file, which is synced before a block is taken off, and rotated by size. " +
			"After a crash, or when the disk was full, a block may be in the file twice, or once more in part.",
		Default: func() FileOutputConfig {
			return FileOutputConfig{MaxSize: obs.DefaultFileSize, Keep: obs.DefaultFileKeep}
		},
		Build: func(b *Builder, c FileOutputConfig) Processor {
			return b.drain(c.InputQueue, false, &writerOutlet{create: func(Env) (syncWriter, error) {
				return obs.OpenFile(c.Path, int64(c.MaxSize), c.Keep)
			}, backoff: defaultBackoff})
		},
		Examples: []Example{{
			Title: "Keep the records of request_logging in files",
			YAML:  "- {name: archive, file: {path: data/requests.ndjson, max_size: 500mb, keep: 10, input_queue: request_logging}}",
		}},
	}
}

// StdoutOutputConfig is the configuration of stdout.
type StdoutOutputConfig struct {
	// Queue that records are taken from. Within a dag it is left out.
	InputQueue string `conf:"input_queue"`
}

// StdoutOutput declares the processor stdout.
func StdoutOutput() Factory[StdoutOutputConfig] {
	return Factory[StdoutOutputConfig]{
		Name:    "stdout",
		Summary: "Takes records off a queue and writes them to the standard output, each as one line, for those who collect it from there.",
		Default: func() StdoutOutputConfig { return StdoutOutputConfig{} },
		Build: func(b *Builder, c StdoutOutputConfig) Processor {
			return b.drain(c.InputQueue, false, &writerOutlet{create: func(env Env) (syncWriter, error) {
				return stdout{env.Stdout}, nil
			}, backoff: defaultBackoff})
		},
		Examples: []Example{{
			Title: "Let the container's log collector have the records",
			YAML:  "- {name: print, stdout: {input_queue: request_logging}}",
		}},
	}
}

// A syncWriter keeps what was written when Sync returned.
type syncWriter interface {
	io.WriteCloser
	Sync() error
}

// stdout is an output that is not ours to close, and that cannot be synced.
type stdout struct{ io.Writer }

func (stdout) Sync() error  { return nil }
func (stdout) Close() error { return nil }

// writerOutlet writes records as lines.
type writerOutlet struct {
	create  func(Env) (syncWriter, error)
	backoff backoff
}

// open implements outlet.
func (o *writerOutlet) open(env Env, f feed) (opened, error) {
	out, err := o.create(env)
	if err != nil {
		return opened{}, err
	}
	s := &writerSink{
		feed: f, out: out, backoff: o.backoff, stored: newMetrics(env.Metrics, f.name).stored, throttle: obs.NewThrottle(f.logger, time.Minute),
	}
	sinks := make([]sink, f.consumers)
	for i := range sinks {
		sinks[i] = s
	}
	return opened{sinks, func() error {
		s.throttle.Close()
		return out.Close()
	}}, nil
}

// writerSink writes the blocks of all consumers, one after the other.
type writerSink struct {
	feed
	backoff  backoff
	stored   obs.Counter
	throttle *obs.Throttle

	mu  sync.Mutex // guards the field below
	out syncWriter
}

// settle implements sink.
func (s *writerSink) settle(take, _ context.Context, block queue.Block) bool {
	for pause := s.backoff; ; {
		err := s.write(block.Payload)
		if err == nil {
			s.stored.Add(float64(block.Count))
			return true
		}
		s.throttle.Log(slog.LevelError, "write", "records cannot be written, trying again", "error", err)
		if !pause.waitIn(take, 0, s.waiting) {
			return false
		}
	}
}

// write writes a block at once: it is lines already, and so no file ends within a record.
func (s *writerSink) write(lines []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.out.Write(lines); err != nil {
		return err
	}
	return s.out.Sync()
}
