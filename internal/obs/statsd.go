package obs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cactus/go-statsd-client/v5/statsd"
	dto "github.com/prometheus/client_model/go"
)

// StatsDOptions say where StatsD lines go. DefaultStatsD fills them all.
type StatsDOptions struct {
	Host      string        // name or address
	Port      int           // 1 to 65535
	Protocol  string        // "udp" is the only one
	Namespace string        // before all names, with or without a dot at its end; may be empty
	Interval  time.Duration // at least 100 ms
	MaxPacket int           // payload of a datagram in bytes, 256 to 65507
}

// DefaultStatsD returns what people expect: a StatsD server on the same machine, names under gateway., the ten seconds
// in which StatsD servers flush, and datagrams that fit an Ethernet frame with IPv6 and options (1,432 bytes).
func DefaultStatsD() StatsDOptions {
	return StatsDOptions{Host: "127.0.0.1", Port: 8125, Protocol: "udp", Namespace: "gateway.", Interval: 10 * time.Second, MaxPacket: 1432}
}

const (
	sendTimeout = time.Second // a datagram leaves at once or the machine has trouble
	resolveTTL  = time.Minute // how long a resolved server name is believed
	lineRoom    = 40          // bytes of a line besides its name: separators, type and the longest number
)

var namespaceRule = regexp.MustCompile(`^[A-Za-z0-9_.-]*$`)

// StatsD sends the values of a [Metrics] to a StatsD server. What it could not send is lost, counted in
// weir_statsd_packets_total and logged once a minute; nothing that counts ever waits for it.
type StatsD struct {
	m         *Metrics
	opts      StatsDOptions
	namespace string
	dial      func() (statsd.Sender, error)
	out       *packetCounter
	throttle  *Throttle
	tooLong   Counter
	sent      map[string]int64 // series → units sent so far; used by the one goroutine

	mu      sync.Mutex // guards the fields below
	started bool
	stopped bool
	stop    chan struct{}
	done    chan struct{}
}

// NewStatsD checks the options and prepares a sender; nothing is resolved or sent before Start. The errors name the
// option.
func NewStatsD(m *Metrics, opts StatsDOptions, logger *slog.Logger) (*StatsD, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("statsd: "+format, args...)) }
	if opts.Host == "" {
		bad("host is empty")
	}
	if opts.Port < 1 || opts.Port > 65535 {
		bad("port %d is not between 1 and 65535", opts.Port)
	}
	if opts.Protocol != "udp" {
		bad("protocol %q is not supported, only udp", opts.Protocol)
	}
	if !namespaceRule.MatchString(opts.Namespace) {
		bad("namespace %q has bytes other than A-Z a-z 0-9 _ . -", opts.Namespace)
	}
	if opts.Interval < 100*time.Millisecond {
		bad("interval %v is shorter than 100ms", opts.Interval)
	}
	if opts.MaxPacket < 256 || opts.MaxPacket > 65507 {
		bad("packet size %d is not between 256 and 65507", opts.MaxPacket)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	address := net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port))
	packets := m.Counter("weir_statsd_packets_total", "Datagrams for the StatsD server, by outcome.", "outcome")
	s := &StatsD{
		m:         m,
		opts:      opts,
		namespace: strings.Trim(opts.Namespace, "."),
		dial:      func() (statsd.Sender, error) { return dialUDP(address) },
		throttle:  NewThrottle(logger.With("statsd", address), time.Minute),
		tooLong:   m.Counter("weir_statsd_dropped_lines_total", "Values not sent to the StatsD server because their name is longer than a datagram.").With(),
		stop:      make(chan struct{}),
		done:      make(chan struct{}),
	}
	s.out = &packetCounter{throttle: s.throttle, sent: packets.With("sent"), failed: packets.With("failed")}
	return s, nil
}

// Start begins to send: gauges at once and everything at each interval. What was counted before Start is not sent, so
// that a sender which replaces another does not repeat it.
func (s *StatsD) Start() {
	s.mu.Lock()
	again := s.started || s.stopped
	s.started = !s.stopped
	s.mu.Unlock()
	if again {
		return
	}
	s.pass(func(string, int64) {}, func(string, float64) {})
	go s.run()
}

// Stop sends once more what was counted since, and waits until that is done or ctx ends. It may be called twice, and
// without Start.
func (s *StatsD) Stop(ctx context.Context) error {
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		close(s.stop)
		if !s.started {
			close(s.done)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the statsd sender: %w", ctx.Err())
	}
}

func (s *StatsD) run() {
	defer close(s.done)
	defer s.throttle.Close()
	defer s.out.hangUp()
	tick := time.NewTicker(s.opts.Interval)
	defer tick.Stop()
	for {
		s.flush()
		select {
		case <-tick.C:
		case <-s.stop:
			s.flush()
			return
		}
	}
}

// flush sends one round. The buffered sender lives for one round because closing it is its only way to flush; the
// socket under it stays.
func (s *StatsD) flush() {
	s.out.begin(s.dial)
	buffer, err := statsd.NewBufferedSenderWithSender(s.out, time.Hour, s.opts.MaxPacket)
	if err != nil {
		s.throttle.Log(slog.LevelError, "buffer", "statsd buffer failed", "err", err)
		return
	}
	client, err := statsd.NewClientWithSender(buffer, s.namespace, 0)
	if err != nil {
		s.throttle.Log(slog.LevelError, "client", "statsd client failed", "err", err)
		_ = buffer.Close()
		return
	}
	exact, _ := client.(statsd.ExtendedStatSender)
	// The buffer takes every line; whether a packet went out is known, counted and logged in s.out.
	s.pass(func(name string, n int64) {
		if s.fits(name) {
			_ = client.Inc(name, n, 1)
		}
	}, func(name string, v float64) {
		switch {
		case !s.fits(name):
			return
		case v < 0:
			// A sign makes a StatsD gauge relative, so a negative value is a step down from zero.
			_ = client.Gauge(name, 0, 1)
			fallthrough
		default:
			if whole := int64(v); float64(whole) == v && math.Abs(v) < 1<<53 {
				_ = client.Gauge(name, whole, 1)
			} else if exact != nil {
				_ = exact.GaugeFloat(name, v, 1)
			}
		}
	})
	if err := client.Close(); err != nil {
		s.throttle.Log(slog.LevelError, "flush", "statsd flush failed", "err", err)
	}
}

func (s *StatsD) fits(name string) bool {
	if len(s.namespace)+len(name)+lineRoom <= s.opts.MaxPacket {
		return true
	}
	s.tooLong.Inc()
	return false
}

// pass goes over all values: count gets what counters grew by since the last pass, gauge the value of gauges.
func (s *StatsD) pass(count func(name string, n int64), gauge func(name string, v float64)) {
	families, err := s.m.Gather()
	if err != nil {
		s.throttle.Log(slog.LevelError, "gather", "some metrics could not be gathered", "err", err)
	}
	seen := make(map[string]int64, len(s.sent))
	grown := func(key, name string, total float64) {
		if math.IsNaN(total) || total > 1<<62 {
			return
		}
		now, before := int64(math.Round(total)), s.sent[key]
		if now < before {
			before = 0 // the series was deleted and made again
		}
		if now > before {
			count(name, now-before)
		}
		seen[key] = now
	}
	names := make(map[string]bool, len(families))
	for _, f := range families {
		names[f.GetName()] = true
	}
	for _, f := range families {
		base, scale := statsdBase(f.GetName())
		if plain, cut := strings.CutSuffix(f.GetName(), "_total"); cut && names[plain] {
			base += "_total" // the Go runtime has a gauge of the same name; one name must not have two types
		}
		labels := s.m.labels(f.GetName())
		for _, one := range f.GetMetric() {
			values := labelValues(one, labels)
			name := statsdName(base, values)
			key := f.GetName() + "\xff" + seriesKey(values)
			switch {
			case one.Counter != nil:
				grown(key, name, one.Counter.GetValue()*scale)
			case one.Gauge != nil:
				if v := one.Gauge.GetValue() * scale; !math.IsNaN(v) && !math.IsInf(v, 0) {
					gauge(name, v)
				}
			case one.Histogram != nil:
				grown(key+"\xffcount", name+".count", float64(one.Histogram.GetSampleCount()))
				grown(key+"\xffsum", name+".sum", one.Histogram.GetSampleSum()*scale)
			case one.Summary != nil:
				grown(key+"\xffcount", name+".count", float64(one.Summary.GetSampleCount()))
				grown(key+"\xffsum", name+".sum", one.Summary.GetSampleSum()*scale)
			}
		}
	}
	s.sent = seen
}

// labelValues returns the values of a series in the order of labels; Gather sorts them by name.
func labelValues(one *dto.Metric, labels []string) []string {
	values := make([]string, len(one.GetLabel()))
	for i, pair := range one.GetLabel() {
		at := i
		for j, l := range labels {
			if l == pair.GetName() {
				at = j
			}
		}
		values[at] = pair.GetValue()
	}
	return values
}

// statsdBase returns the StatsD name of a metric without labels and the factor from its unit to StatsD's.
func statsdBase(name string) (base string, scale float64) {
	base = strings.TrimSuffix(strings.TrimPrefix(name, "weir_"), "_total")
	if b, ok := strings.CutSuffix(base, "_seconds"); ok {
		return b + "_ms", 1000
	}
	return base, 1
}

func statsdName(base string, values []string) string {
	b := []byte(base)
	for _, v := range values {
		b = append(b, '.')
		if v == "" {
			b = append(b, "none"...)
		}
		for i := range len(v) {
			c := v[i]
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			default:
				c = '_'
			}
			b = append(b, c)
		}
	}
	return string(b)
}

// statsdPatterns returns the StatsD names of a metric with its labels in angle brackets.
func statsdPatterns(name, kind string, labels []string) []string {
	pattern, _ := statsdBase(name)
	for _, l := range labels {
		pattern += ".<" + l + ">"
	}
	if kind == "histogram" {
		return []string{pattern + ".count", pattern + ".sum"}
	}
	return []string{pattern}
}

// packetCounter stands between the buffered sender, which throws errors away, and the socket. It counts them, and stays
// open when the buffered sender closes it. The buffered sender calls Send from one goroutine at a time and has ended it
// when Close returns.
type packetCounter struct {
	throttle *Throttle
	sent     Counter
	failed   Counter
	dial     func() (statsd.Sender, error)
	conn     statsd.Sender
	dialed   time.Time
	down     bool // in this round
}

// begin starts a round; a server that failed in the last one gets a new chance.
func (p *packetCounter) begin(dial func() (statsd.Sender, error)) {
	p.dial, p.down = dial, false
	if p.conn != nil && time.Since(p.dialed) >= resolveTTL {
		p.hangUp()
	}
}

// Send implements statsd.Sender. When a new socket fails, the rest of the round is dropped, so that a round ends soon
// whatever the network does.
func (p *packetCounter) Send(packet []byte) (int, error) {
	if p.down {
		p.failed.Inc()
		return 0, net.ErrClosed
	}
	if p.conn != nil {
		n, err := p.conn.Send(packet)
		if err == nil {
			p.sent.Inc()
			return n, nil
		}
		// A connected socket reports with this packet that the one before was refused (ICMP comes late). That one is
		// lost; this one gets a socket without a past.
		p.lost(err)
		p.hangUp()
	}
	conn, err := p.dial()
	if err != nil {
		return 0, p.giveUp(err)
	}
	p.conn, p.dialed = conn, time.Now()
	n, err := conn.Send(packet)
	if err != nil {
		p.hangUp()
		return 0, p.giveUp(err)
	}
	p.sent.Inc()
	return n, nil
}

func (p *packetCounter) lost(err error) {
	p.failed.Inc()
	p.throttle.Log(slog.LevelWarn, "send", "statsd packets are lost", "err", err)
}

func (p *packetCounter) giveUp(err error) error {
	p.down = true
	p.lost(err)
	return err
}

// Close implements statsd.Sender and keeps the socket.
func (p *packetCounter) Close() error { return nil }

func (p *packetCounter) hangUp() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// udpSender is a connected UDP socket. The library's own is not connected and so never learns that nobody listens, and
// it has no time limit.
type udpSender struct{ net.Conn }

func dialUDP(address string) (statsd.Sender, error) {
	conn, err := net.DialTimeout("udp", address, sendTimeout)
	if err != nil {
		return nil, err
	}
	return udpSender{conn}, nil
}

// Send implements statsd.Sender.
func (u udpSender) Send(packet []byte) (int, error) {
	if err := u.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return 0, err
	}
	return u.Write(packet)
}

var (
	_ statsd.Sender = (*packetCounter)(nil)
	_ statsd.Sender = udpSender{}
)
