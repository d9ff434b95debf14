// Package app is the life of the process: it turns configuration files into a plan, puts a plan into force, replaces it
// by another one without losing a connection, and ends in order.
//
// It holds no traffic logic. A plan is made without I/O, so that a configuration can be checked anywhere; whatever
// fails while a plan is put into force leaves the one before it in force.
package app

import (
	"time"

	"weir/internal/conf"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
)

// Config is the whole configuration, as it stands in the files.
type Config struct {
	// Folders.
	Path PathConfig `conf:"path"`
	// Listeners.
	Entry *conf.Node `conf:"entry"`
	// Flows of filters.
	Flow *conf.Node `conf:"flow"`
	// Routers that turn requests into flows.
	Router *conf.Node `conf:"router"`
	// Clusters.
	Elasticsearch *conf.Node `conf:"elasticsearch"`
	// Background pipelines in the short form; the classic form has them in the module pipeline.
	Pipeline *conf.Node `conf:"pipeline"`
	// Parts in the classic form: elastic, pipeline, queue.
	Modules *conf.Node `conf:"modules"`
	// Queues on disk.
	Queue QueueConfig `conf:"queue"`
	// Metrics sent to StatsD.
	StatsD StatsDConfig `conf:"statsd"`
	// Listener for metrics, health and administration.
	Admin AdminConfig `conf:"admin"`
	// Logs of the gateway itself.
	Log LogConfig `conf:"log"`
	// Limits of the process.
	Limits LimitsConfig `conf:"limits"`
}

// PathConfig says where files are kept.
type PathConfig struct {
	// Queues, certificates and all else that must survive a restart. Several processes may share it.
	Data string `conf:"data"`
	// Log files of the gateway. Empty: only the standard error gets them.
	Logs string `conf:"logs"`
}

// QueueConfig shapes the queues on disk.
type QueueConfig struct {
	// A classic switch; queues exist when something names them.
	Enabled bool `conf:"enabled"`
	// Shortest record.
	MinMsgSize conf.Bytes `conf:"min_msg_size"`
	// Longest record; at most an eighth of max_bytes.
	MaxMsgSize conf.Bytes `conf:"max_msg_size" min:"1b"`
	// Size at which a file is closed and the next begun; at most a quarter of max_bytes.
	MaxBytesPerFile conf.Bytes `conf:"max_bytes_per_file" min:"1b"`
	// Most that a queue keeps on disk. The consumers of a queue share it: a quarter of what each gets must hold the longest
	// record, and a block.
	MaxBytes conf.Bytes `conf:"max_bytes" min:"1mb"`
	// What a full queue does with a record: refuse it, drop_oldest records to make room, or wait, which slows down whoever
	// puts the record, at most full_wait.
	WhenFull string `conf:"when_full" enum:"refuse,drop_oldest,wait"`
	// Longest wait of when_full: wait. After it the record is refused.
	FullWait conf.Duration `conf:"full_wait" min:"1ms" max:"1m"`
	// Age at which records are given up, by whole files. 0 keeps them however old they are.
	MaxAge conf.Duration `conf:"max_age" min:"0s"`
	// Space that is left free on the disk. With less a queue counts as full.
	Reserve conf.Bytes `conf:"reserve" min:"0"`
	// When written blocks are synced, which decides what a loss of power costs: block, each when it is written; interval, at
	// most sync_interval later; never, when the system likes. The end of a process costs nothing that was written.
	Sync string `conf:"sync" enum:"block,interval,never"`
	// Longest time that a written block waits for sync: interval.
	SyncInterval conf.Duration `conf:"sync_interval" min:"1ms"`
	// How blocks are written: none, as they are, or zstd, which takes a third of the space and some 2 ms of CPU a megabyte.
	Compression string `conf:"compression" enum:"none,zstd"`
	// Records of a block that is written and synced at once: its most bytes; at most an eighth of max_bytes.
	BlockSize conf.Bytes `conf:"block_size" min:"1b" max:"64mb"`
	// Age at which a block is written. It is what a kill of the process can lose.
	BlockAge conf.Duration `conf:"block_age"`
	// Classic: time between syncs. Without sync, it means sync: interval, with the lesser of this and sync_timeout_in_seconds.
	SyncEveryInSeconds int `conf:"sync_every_in_seconds" min:"0" deprecated:"use sync: interval and sync_interval"`
	// Classic: longest time without a sync; see sync_every_in_seconds.
	SyncTimeoutInSeconds int `conf:"sync_timeout_in_seconds" min:"0" deprecated:"use sync: interval and sync_interval"`
	// Classic: length of the read channel. Weir reads one block ahead.
	ReadChanBuffer int `conf:"read_chan_buffer" deprecated:"one block is read ahead"`
}

// DecodeConf implements conf.Decoder: it warns of lengths that the size of a whole queue does not leave room for, and refuses
// what no queue can be opened with.
func (c *QueueConfig) DecodeConf(n *conf.Node, p *conf.Problems) {
	type fields QueueConfig
	before, _ := p.Count()
	conf.Decode(n, (*fields)(c), p)
	if after, _ := p.Count(); after > before {
		return // of what follows from those
	}
	if n.Get("sync").IsZero() && n.Get("sync_interval").IsZero() {
		for _, seconds := range []int{c.SyncEveryInSeconds, c.SyncTimeoutInSeconds} {
			if d := conf.Duration(time.Duration(seconds) * time.Second); d > 0 && (c.Sync != "interval" || d < c.SyncInterval) {
				c.Sync, c.SyncInterval = "interval", d
			}
		}
	}
	for _, f := range []struct {
		name        string
		given, most conf.Bytes
	}{
		{"max_msg_size", c.MaxMsgSize, c.mostMsg()},
		{"max_bytes_per_file", c.MaxBytesPerFile, c.mostFile()},
		{"block_size", c.BlockSize, c.mostMsg()},
	} {
		if at := n.Get(f.name); !at.IsZero() && f.given > f.most {
			p.Warnf(at, "%s %s is more than a queue of max_bytes %s has room for: %s is used; lower it, or raise max_bytes", f.name, f.given, c.MaxBytes, f.most)
		}
	}
	if err := c.Options().Check(1); err != nil {
		p.Errorf(n.At("min_msg_size", "max_msg_size", "block_size", "max_bytes"), "no queue can be opened: %s", err)
	}
}

// JSONSchema implements conf.Shaper.
func (QueueConfig) JSONSchema() map[string]any {
	type fields QueueConfig
	schema, _ := conf.JSONSchema(conf.Describe(fields(DefaultConfig().Queue), nil)).(map[string]any)
	delete(schema, "$schema")
	return schema
}

// mostMsg is the longest record, and the longest block, that a queue of this size takes.
func (c QueueConfig) mostMsg() conf.Bytes { return c.MaxBytes / 8 }

// mostFile is the largest file: a queue gives room back by whole files.
func (c QueueConfig) mostFile() conf.Bytes { return c.MaxBytes / 4 }

// Options returns the options for a queue.
func (c QueueConfig) Options() disk.Options {
	o := disk.Options{
		BlockSize: int(min(c.BlockSize, c.mostMsg())), BlockAge: c.BlockAge.Std(), MinRecord: max(1, int(c.MinMsgSize)),
		MaxRecord: int(min(c.MaxMsgSize, c.mostMsg())), MaxBytes: int64(c.MaxBytes),
		MaxBytesPerFile: int64(min(c.MaxBytesPerFile, c.mostFile())),
		Full:            policies[c.WhenFull], FullWait: c.FullWait.Std(), MaxAge: c.MaxAge.Std(), Reserve: int64(c.Reserve),
		Sync: syncs[c.Sync], SyncInterval: c.SyncInterval.Std(),
	}
	if c.Compression == queue.CodecZstd.String() {
		o.Codec = queue.CodecZstd
	}
	return o
}

var (
	policies = map[string]disk.Policy{"refuse": disk.Refuse, "drop_oldest": disk.DropOldest, "wait": disk.Wait}
	syncs    = map[string]disk.Sync{"block": disk.SyncBlock, "interval": disk.SyncInterval, "never": disk.SyncNever}
)

// StatsDConfig says where metrics are sent to.
type StatsDConfig struct {
	// Send metrics.
	Enabled bool `conf:"enabled"`
	// Name or address of the StatsD server.
	Host string `conf:"host"`
	// Its port.
	Port int `conf:"port" min:"1" max:"65535"`
	// Put before all names.
	Namespace string `conf:"namespace"`
	// Only udp.
	Protocol string `conf:"protocol" enum:"udp"`
	// Time between two sendings.
	Interval conf.Duration `conf:"interval" min:"100ms"`
	// Classic: size of the send buffer.
	BufferSize int `conf:"buffer_size" deprecated:"packets are bounded to 1,432 bytes"`
	// Classic: time between two sendings in seconds.
	IntervalInSeconds int `conf:"interval_in_seconds" deprecated:"use interval"`
}

// options returns c in the form that the sender takes.
func (c StatsDConfig) options() obs.StatsDOptions {
	o := obs.DefaultStatsD()
	o.Host, o.Port, o.Namespace, o.Protocol, o.Interval = c.Host, c.Port, c.Namespace, c.Protocol, c.Interval.Std()
	if c.IntervalInSeconds > 0 {
		o.Interval = time.Duration(c.IntervalInSeconds) * time.Second
	}
	return o
}

// AdminConfig says where the admin listener is.
type AdminConfig struct {
	// Serve metrics, health and administration.
	Enabled bool `conf:"enabled"`
	// Address and port. If the port is taken, the next free one is used and the log says so.
	Binding string `conf:"binding"`
	// Names, without port, under which requests may come, besides localhost, addresses and the binding's own: a guard
	// against pages that make a browser call this listener.
	Hosts conf.Strings `conf:"hosts"`
}

// LogConfig shapes the gateway's own logs.
type LogConfig struct {
	// Least level that is logged.
	Level string `conf:"level" enum:"debug,info,warn,error"`
	// Form of the lines on the standard error and in the log file.
	Format string `conf:"format" enum:"text,json"`
}

// LimitsConfig bounds the process.
type LimitsConfig struct {
	// Memory for bodies of requests and answers over 16 kB, all exchanges together. Above it requests are refused with 429.
	// What is shorter is bounded by the connections: a busy one takes some 50 kB beside its body.
	Bodies conf.Bytes `conf:"bodies"`
	// Time that running exchanges get to finish when the process ends.
	Drain conf.Duration `conf:"drain"`
}

// DefaultConfig returns the configuration of an empty file.
func DefaultConfig() Config {
	statsd := obs.DefaultStatsD()
	return Config{
		Path: PathConfig{Data: "data"},
		Queue: QueueConfig{
			Enabled: true, MinMsgSize: 1, MaxMsgSize: 16 << 20, MaxBytesPerFile: 64 << 20, MaxBytes: 2 << 30,
			WhenFull: "refuse", FullWait: conf.Duration(5 * time.Second), Reserve: 256 << 20, Sync: "block",
			SyncInterval: conf.Duration(2 * time.Second), Compression: queue.CodecNone.String(),
			BlockSize: 1 << 20, BlockAge: conf.Duration(100 * time.Millisecond),
		},
		StatsD: StatsDConfig{
			Host: statsd.Host, Port: statsd.Port, Namespace: statsd.Namespace, Protocol: statsd.Protocol,
			Interval: conf.Duration(statsd.Interval),
		},
		Admin:  AdminConfig{Enabled: true, Binding: "127.0.0.1:2900"},
		Log:    LogConfig{Level: "info", Format: "text"},
		Limits: LimitsConfig{Bodies: 512 << 20, Drain: conf.Duration(30 * time.Second)},
	}
}
