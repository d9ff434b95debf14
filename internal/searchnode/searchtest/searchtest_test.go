package searchtest

import (
	"context"
	"path/filepath"
	"testing"
	"time"
)

// A process whose tests use no cluster for the moment must not keep another one waiting until it ends.
func TestWhoWaitsGetsTheMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, second := &clusters{path: path}, &clusters{path: path}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := first.lockMachine(ctx); err != nil {
		t.Fatal(err)
	}
	if err := first.giveWay(); err != nil || first.lock == nil {
		t.Fatalf("the lock was given up although nobody waits: %v", err)
	}
	got := make(chan error, 1)
	go func() { got <- second.lockMachine(ctx) }()
	used := &entry{users: 1}
	first.all = append(first.all, used)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 30 { // long enough for the second to wait
		<-tick.C
		if err := first.giveWay(); err != nil || first.lock == nil {
			t.Fatalf("the lock was given up while a test uses a cluster: %v", err)
		}
	}
	first.all = nil
	for first.lock != nil {
		<-tick.C
		if err := first.giveWay(); err != nil {
			t.Fatal(err)
		}
		if ctx.Err() != nil {
			t.Fatal("the lock was not given up although somebody waits")
		}
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := second.close(); err != nil {
		t.Fatal(err)
	}
}
