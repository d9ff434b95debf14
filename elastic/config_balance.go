package elastic

import (
	"time"

	"weir/elastic/balance"
	"weir/internal/conf"
)

// BalanceConfig says how exchanges are spread over the nodes of a cluster, and when a node is taken out. A refusal (429),
// an error of the request, a slow answer and a client that leaves never take a node out.
type BalanceConfig struct {
	// How a node is chosen among those that are well. `p2c` compares two that are drawn at random, and all where there are up
	// to three, by exchanges in flight, time to the first byte and weight; `least` compares all by exchanges in flight and
	// weight; `round_robin` goes round by weight; `first` takes the first as long as it is well.
	Policy string `conf:"policy" enum:"p2c,least,round_robin,first"`
	// Failures in a row that take a node out: refused and reset connections, answers that do not begin in time, 502 and 504.
	Failures int `conf:"failures" min:"1"`
	// Share of failures, among at least 20 attempts within 10 seconds, that takes a node out.
	FailureRatio conf.Percent `conf:"failure_ratio" min:"1%"`
	// Share of the nodes that may be out at the same time. Of two or more one always may, the only one never.
	MaxEjected conf.Percent `conf:"max_ejected" min:"1%"`
	// Time for which a node is out the first time, doubled each time that follows soon. A check that succeeds ends it.
	Ejection conf.Duration `conf:"ejection" min:"100ms"`
	// Longest time for which a node is out.
	MaxEjection conf.Duration `conf:"max_ejection" min:"100ms"`
	// Zone that the gateway is in. While at least two nodes of the zone are well, they are preferred.
	Zone string `conf:"zone"`
	// Attributes of nodes that may name their zone; the first that a node has counts.
	ZoneAttributes conf.Strings `conf:"zone_attributes"`
	// Factor by which a node of another zone counts as more loaded than it is.
	ZonePenalty float64 `conf:"zone_penalty" min:"1"`
}

// SetDefaults makes c power of two choices, with half of the nodes out at most.
func (c *BalanceConfig) SetDefaults() {
	*c = BalanceConfig{
		Policy: "p2c", Failures: 5, FailureRatio: 50, MaxEjected: 50, Ejection: conf.Duration(5 * time.Second),
		MaxEjection: conf.Duration(2 * time.Minute), ZoneAttributes: conf.Strings{"zone", "availability_zone"}, ZonePenalty: 1.5,
	}
}

// policies are the values of policy and what they mean.
var policies = map[string]balance.Policy{
	"p2c": balance.PowerOfTwo, "least": balance.Least, "round_robin": balance.RoundRobin, "first": balance.First,
}

// options returns c as the picker takes it.
func (c *BalanceConfig) options(o PoolOptions, d Deps, k *Cluster) balance.Options {
	policy := c.Policy
	if o.Policy != "" {
		policy = o.Policy
	}
	penalty := c.ZonePenalty
	if c.Zone == "" {
		penalty = 0
	}
	return balance.Options{
		ZonePenalty: penalty,
		Policy:      policies[policy], MaxInFlight: o.MaxConns, MaxWaiting: o.MaxWaiting,
		Outlier: balance.Outlier{
			Failures: c.Failures, Ratio: c.FailureRatio.Fraction(), MaxEjected: c.MaxEjected.Fraction(),
			First: c.Ejection.Std(), Longest: c.MaxEjection.Std(),
		},
		Now: d.Now, Rand: d.Rand, OnChange: k.nodeChanged, OnPanic: k.panicChanged,
	}
}
