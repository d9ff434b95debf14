package transport

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// Defaults of Options.
const (
	DefaultMaxConns        = 256
	DefaultMaxWaiting      = 1000
	DefaultDialTimeout     = 5 * time.Second
	DefaultIdleTimeout     = 45 * time.Second // load balancers close at 60 s and later (ICIJ/datashare#2210)
	DefaultMaxAge          = 10 * time.Minute // under load none is ever idle, and a name may lead elsewhere by now
	DefaultMinRateWindow   = 10 * time.Second
	DefaultMaxHeadBytes    = 128 << 10 // deprecation warnings alone reach 20 KB (elastic/elasticsearch#28301)
	DefaultMaxBufferedBody = 1 << 20
)

// Options say how a Node is reached and what it may use. They are copied by New; a zero field takes its default.
type Options struct {
	Addr    string      // host:port to dial
	Network string      // "tcp" if empty
	TLS     *tls.Config // nil for plain connections; ServerName defaults to the host of Addr

	MaxConns   int // connections open or being opened; further exchanges wait in the order in which they came
	MaxWaiting int // exchanges that wait for a connection; above it Do fails at once with ErrPoolFull

	WaitTimeout     time.Duration // waiting for a connection; 0 = until Request.Deadline
	DialTimeout     time.Duration // connecting, TLS handshake included
	IdleTimeout     time.Duration // a connection unused for so long is closed
	MaxAge          time.Duration // a connection open for so long serves no further exchange
	HeadTimeout     time.Duration // from the request being written until the head of its answer is read; 0 = none
	IdleReadTimeout time.Duration // between two reads of a body; 0 = none
	MinRate         int64         // bytes a second at which bodies must come, by the time spent waiting for them; 0 = any
	MinRateWindow   time.Duration // over which MinRate is measured
	WriteTimeout    time.Duration // for each write of at most 256 KiB; 0 = none

	MaxHeadBytes    int   // head of an answer; over it Warning fields are dropped, and if that is not enough Do fails
	MaxBufferedBody int64 // longer bodies become Response.Stream

	Dial func(ctx context.Context, network, addr string) (net.Conn, error) // net.Dialer's if nil
	Now  func() time.Time                                                  // time.Now if nil
}

func (o Options) withDefaults() Options {
	if o.Network == "" {
		o.Network = "tcp"
	}
	if o.MaxConns <= 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.MaxWaiting <= 0 {
		o.MaxWaiting = DefaultMaxWaiting
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = DefaultIdleTimeout
	}
	if o.MaxAge <= 0 {
		o.MaxAge = DefaultMaxAge
	}
	if o.MinRateWindow <= 0 {
		o.MinRateWindow = DefaultMinRateWindow
	}
	if o.MaxHeadBytes <= 0 {
		o.MaxHeadBytes = DefaultMaxHeadBytes
	}
	if o.MaxBufferedBody <= 0 {
		o.MaxBufferedBody = DefaultMaxBufferedBody
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.TLS != nil {
		o.TLS = o.named(o.TLS)
	}
	return o
}

// named returns a copy of config that says whose certificate is wanted.
func (o *Options) named(config *tls.Config) *tls.Config {
	config = config.Clone()
	if config.ServerName == "" {
		config.ServerName = o.Addr
		if host, _, err := net.SplitHostPort(o.Addr); err == nil {
			config.ServerName = host
		}
	}
	return config
}
