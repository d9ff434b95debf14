package cache

import (
	"time"

	"weir/internal/conf"
)

// ProofConfig says what changes of indices mean for stored answers. All cache filters that look for answers have it.
type ProofConfig struct {
	// How old an answer may be that is given although a change of its indices was seen: a write through this process, or
	// one that a poll noticed. With 0 a write with refresh is seen by the next search; an index that is written all the
	// time then has no hits.
	MaxStale conf.Duration `conf:"max_stale" min:"0s"`
	// How old an answer may be that is given after its time to live, because polls show that its indices have not
	// changed. Searches that count time from now, and others whose answers depend on more than their indices, do not live
	// longer for it.
	ProvenTTL conf.Duration `conf:"proven_ttl" min:"0s"`
	// How often the counters of the indices of stored answers are polled, with the credentials of the cluster's basic_auth.
	// A change that did not come through this process is noticed after twice this time at most. With 0 nothing is polled,
	// and each write to the cluster counts as a change of all indices.
	PollInterval conf.Duration `conf:"poll_interval" min:"0s"`
	// How long credentials are trusted since a node has accepted them. A caller is given an answer that is older only if a node
	// has let the same credentials in within that time; else the request goes to a node, and who is let in has proven it for
	// that long. So it bounds for how long answers are given under credentials that were taken back. Requests without
	// credentials have nothing to prove, nor have those that share answers by `identity: shared`. With 0 credentials are
	// trusted for as long as answers live.
	AuthTTL conf.Duration `conf:"auth_ttl" min:"0s"`
}

func defaultProof() ProofConfig {
	return ProofConfig{
		ProvenTTL: conf.Duration(time.Minute), PollInterval: conf.Duration(5 * time.Second), AuthTTL: conf.Duration(time.Minute),
	}
}
