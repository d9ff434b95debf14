package cache

import (
	"strings"
	"time"

	"weir/flows"
	"weir/internal/conf"
)

// leastPoll is the shortest interval of polls that is not warned of: below it they are a load of their own.
const leastPoll = 100 * time.Millisecond

// warnTimes warns of times that have no effect, or one that nobody wants.
func warnTimes(b *flows.Builder, proof *ProofConfig) {
	switch every := proof.PollInterval.Std(); {
	case every == 0 && given(b, "proven_ttl") && proof.ProvenTTL > 0:
		b.Warnf("proven_ttl", "proven_ttl has no effect with poll_interval: 0s: nothing proves answers")
	case 0 < every && every < leastPoll:
		b.Warnf("poll_interval", "a poll of each index expression every %s is a load for the cluster: 1s is short enough for most, and writes through the "+
			"gateway are noticed without polls", every)
	}
}

// given tells whether the configuration of the filter being built has a field.
func given(b *flows.Builder, name string) bool { return b.Node().Get(name) != nil }

// warnNowTTL warns of a time for searches that count from now which is longer than that for all.
func warnNowTTL(b *flows.Builder, now, all conf.Duration, field string) {
	if given(b, "now_ttl") && now > all {
		b.Warnf("now_ttl", "now_ttl %s has no effect: no answer is given longer than %s %s", now, field, all)
	}
}

// warnSizes warns of limits that leave no answer to be stored.
func warnSizes(b *flows.Builder, least, most conf.Bytes) {
	if most >= 0 && least > most {
		b.Warnf("min_response_size", "no answer is stored: none has at least %s and at most %s; lower min_response_size", least, most)
	}
}

// warnLargest warns of a limit that the store goes before.
func warnLargest(b *flows.Builder, field string, most conf.Bytes, l limits) {
	if largest := l.largest(); given(b, field) && int64(most) > largest {
		b.Warnf(field, "%s %s has no effect: no answer may take more than a quarter of the store, %s", field, most, conf.Bytes(largest))
	}
}

// warnSegments warns of words at n that are no segment of any path.
func warnSegments(b *flows.Builder, n *conf.Node, words []string) {
	for i, s := range words {
		at := n.Item(i)
		switch {
		case s == "":
			b.Problems.Warnf(at, "an empty word matches nothing: leave it out")
		case strings.Contains(s, "/"):
			b.Problems.Warnf(at, "%q never matches: it is compared with what stands between two slashes of the path; write one segment, such as %q", s, longest(s))
		case strings.Contains(s, "*"):
			b.Problems.Warnf(at, "%q is compared as it stands: * is no wildcard here; name each word", s)
		case strings.Contains(s, "%"):
			b.Problems.Warnf(at, "%q never matches: it is compared with the path when that is decoded; write it without escapes", s)
		}
	}
}

// longest returns the longest segment of a path.
func longest(path string) string {
	best := ""
	for s := range strings.SplitSeq(path, "/") {
		if len(s) > len(best) {
			best = s
		}
	}
	return best
}

// warnNames warns of words at n that are no name of a URL parameter.
func warnNames(b *flows.Builder, n *conf.Node, words []string) {
	for i, s := range words {
		if strings.ContainsAny(s, "?&=") {
			name, _, _ := strings.Cut(strings.TrimLeft(s[strings.IndexByte(s, '?')+1:], "&"), "=")
			b.Problems.Warnf(n.Item(i), "%q never matches: it is compared with the names of parameters; write %q", s, name)
		}
	}
}

// warnPass warns of words that neither a segment of a path nor the name of a parameter can be.
func warnPass(b *flows.Builder, n *conf.Node, words []string) {
	warnSegments(b, n, words)
	warnNames(b, n, words)
}

// warnMethods warns of methods that no request has.
func warnMethods(b *flows.Builder, n *conf.Node, methods []string) {
	for i, m := range methods {
		if up := strings.ToUpper(m); up != m {
			b.Problems.Warnf(n.Item(i), "methods are case-sensitive, and %q never matches; write %s", m, up)
		}
	}
}
