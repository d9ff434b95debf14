// Command sim plays load against a modelled cluster and prints how the gateway's own picker spreads it: the code of
// package elastic/balance itself, under a simulated clock.
//
// It is not a benchmark: nothing is timed, and a seed gives the same table on every machine. It trades the detail of real
// nodes for a model in which only queues matter: each node serves a fixed number of exchanges at once, in order, with
// log-normal times.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"weir/elastic/balance"
)

func main() {
	seed := flag.Uint64("seed", 1, "seed of the dice; the same seed gives the same table")
	flag.Parse()
	if err := table(os.Stdout, *seed); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// policies are those that a configuration may name, but for first, which does not spread load.
var policies = []struct {
	name   string
	policy balance.Policy
}{
	{"round_robin", balance.RoundRobin},
	{"least", balance.Least},
	{"p2c", balance.PowerOfTwo},
}

// table writes what becomes of each scenario under each policy.
func table(w io.Writer, seed uint64) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tslow: p50 ms\tp99 ms\tshare\tcold: p99 ms\tpeak queue\tone out: p99 ms\tafter a minute, share\t")
	for _, p := range policies {
		slow, cold, back := run(slowNode(p.policy, seed)), run(coldNode(p.policy, seed)), run(returningNode(p.policy, seed))
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.1f%%\t%.0f\t%d\t%.0f\t%.1f%%\t\n", p.name,
			ms(slow.quantile(0.5)), ms(slow.quantile(0.99)), 100*slow.share(0, 0),
			ms(cold.quantile(0.99)), cold.peak[0], ms(back.quantile(0.99)), 100*back.share(0, back.length-10*time.Second))
	}
	return t.Flush()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// slowNode is one of six nodes that takes four times as long as the others, at 70 % of what six good ones can do.
func slowNode(p balance.Policy, seed uint64) scenario {
	return scenario{
		policy: p, seed: seed, load: 0.7, length: 40 * time.Second,
		slowness: func(node int, _ time.Duration) float64 {
			if node == 0 {
				return 4
			}
			return 1
		},
	}
}

// coldNode joins five others after ten seconds and takes three times as long as they do for five seconds more, at 75 %.
func coldNode(p balance.Policy, seed uint64) scenario {
	const joins = 10 * time.Second
	return scenario{
		policy: p, seed: seed, load: 0.75, length: 40 * time.Second,
		member: func(node int, at time.Duration) bool { return node != 0 || at >= joins },
		slowness: func(node int, at time.Duration) float64 {
			if node == 0 && at < joins+5*time.Second {
				return 3
			}
			return 1
		},
	}
}

// returningNode refuses connections from the tenth to the thirtieth second; five others can carry its part.
func returningNode(p balance.Policy, seed uint64) scenario {
	return scenario{
		policy: p, seed: seed, load: 0.6, length: 90 * time.Second,
		refuses: func(node int, at time.Duration) bool {
			return node == 0 && at >= 10*time.Second && at < 30*time.Second
		},
	}
}
