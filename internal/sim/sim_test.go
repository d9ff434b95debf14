package main

import (
	"slices"
	"testing"
	"time"

	"weir/elastic/balance"
)

// One of six nodes is four times slower, at 70 % load: it gets its part of the work, and nobody waits for it.
func TestSlowNodeIsNoOutage(t *testing.T) {
	r := run(slowNode(balance.PowerOfTwo, 1))
	if p99 := r.quantile(0.99); p99 > 130*time.Millisecond {
		t.Errorf("p99 is %v, want at most 130ms", p99)
	}
	if share := r.share(0, 0); share < 0.01 || share > 0.06 {
		t.Errorf("the slow node got %.1f%%: it must be measured, and spared", 100*share)
	}
	if p99 := run(slowNode(balance.RoundRobin, 1)).quantile(0.99); p99 < 10*time.Second {
		t.Errorf("p99 of round robin is %v: the scenario is too easy", p99)
	}
}

func TestColdNodeIsNotFlooded(t *testing.T) {
	r := run(coldNode(balance.PowerOfTwo, 1))
	if p99 := r.quantile(0.99); p99 > 110*time.Millisecond || r.peak[0] > 12 {
		t.Errorf("p99 is %v, and up to %d wait at the node", p99, r.peak[0])
	}
}

// A node that was away for 20 seconds has its share again a minute later, within a tenth.
func TestLoadComesBack(t *testing.T) {
	r := run(returningNode(balance.PowerOfTwo, 1))
	if share := r.share(0, 80*time.Second); share < 0.9/nodes || share > 1.1/nodes {
		t.Errorf("the node that came back has %.1f%%", 100*share)
	}
	if r.failed > 0 {
		t.Errorf("%d exchanges found no node", r.failed)
	}
}

func TestSameSeedSameResult(t *testing.T) {
	play := func(seed uint64) *result {
		s := slowNode(balance.PowerOfTwo, seed)
		s.length = 2 * time.Second
		return run(s)
	}
	a, b := play(7), play(7)
	if !slices.Equal(a.times, b.times) || !slices.Equal(a.served, b.served) {
		t.Error("two runs with one seed differ")
	}
	if slices.Equal(a.times, play(8).times) {
		t.Error("the seed changes nothing")
	}
}
