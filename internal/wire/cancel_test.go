package wire

import (
	"sync"
	"sync/atomic"
	"testing"
)

type counter struct{ closed atomic.Int32 }

func (c *counter) Close() error { c.closed.Add(1); return nil }

func TestCancelClosesWhatIsArmed(t *testing.T) {
	var c Cancel
	first, second := &counter{}, &counter{}
	if !c.Arm(first) || !c.Arm(second) {
		t.Fatal("Arm refused before Fire")
	}
	c.Fire()
	c.Fire()
	if first.closed.Load() != 0 || second.closed.Load() != 1 {
		t.Errorf("closed %d and %d times, want the connection armed last, once", first.closed.Load(), second.closed.Load())
	}
	if !c.Fired() || c.Disarm() || c.Arm(first) {
		t.Error("a fired Cancel behaves as if it had not been")
	}
	<-c.Done()
}

func TestCancelSparesWhatIsDisarmed(t *testing.T) {
	var c Cancel
	conn := &counter{}
	done := c.Done()
	c.Arm(conn)
	if !c.Disarm() {
		t.Error("Disarm says that Fire came")
	}
	c.Fire()
	<-done
	if conn.closed.Load() != 0 {
		t.Error("closed a connection that was disarmed")
	}
	c.Reset()
	if c.Fired() || !c.Arm(conn) {
		t.Error("Reset did not make it ready again")
	}
}

func TestCutEndsOneAttempt(t *testing.T) {
	var c Cancel
	first, second := &counter{}, &counter{}
	c.Arm(first)
	c.Cut()
	c.Cut()
	if first.closed.Load() != 1 || c.Fired() || !c.WasCut() || c.Arm(second) {
		t.Error("Cut must close what is armed, once, and let nothing else be armed, without cancelling")
	}
	if c.Renew(); c.WasCut() || !c.Arm(second) || !c.Disarm() {
		t.Error("Renew must make it ready again")
	}
	c.Cut()
	c.Reset()
	if c.WasCut() || second.closed.Load() != 0 {
		t.Error("Reset must forget a Cut, and Cut spare what was disarmed")
	}
	c.Fire()
	if c.Cut(); c.WasCut() {
		t.Error("what is cancelled cannot be cut")
	}
}

func TestCancelRace(t *testing.T) {
	for range 200 {
		var c Cancel
		conn := &counter{}
		var wg sync.WaitGroup
		wg.Go(c.Fire)
		wg.Go(c.Fire)
		spared := c.Arm(conn) && c.Disarm()
		wg.Wait()
		if got := conn.closed.Load(); spared && got != 0 || got > 1 {
			t.Fatalf("spared %v, closed %d times", spared, got)
		}
	}
}
