package estest

import (
	"sync"
	"time"
)

// A Clock tells the time to a cluster: refreshes, scroll time-outs, date math and delays go by it.
type Clock interface {
	// Now returns the present time.
	Now() time.Time
	// After returns a channel that gets one value once d has passed.
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// A ManualClock is a Clock that moves only when told to. Make it with NewManualClock.
type ManualClock struct {
	mu     sync.Mutex // guards the fields below
	now    time.Time
	alarms []alarm
}

type alarm struct {
	at time.Time
	ch chan time.Time
}

// NewManualClock returns a clock that stands at now.
func NewManualClock(now time.Time) *ManualClock { return &ManualClock{now: now} }

// Now returns the time at which the clock stands.
func (c *ManualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After returns a channel that gets one value once the clock was moved on by d.
func (c *ManualClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	if d <= 0 {
		ch <- c.now
		return ch
	}
	c.alarms = append(c.alarms, alarm{c.now.Add(d), ch})
	return ch
}

// Waiting returns how many wait for a time to come.
func (c *ManualClock) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.alarms)
}

// Advance moves the clock on by d and wakes who waited for a time up to then.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	waiting := c.alarms[:0]
	for _, a := range c.alarms {
		if a.at.After(c.now) {
			waiting = append(waiting, a)
		} else {
			a.ch <- c.now
		}
	}
	c.alarms = waiting
}

var (
	_ Clock = systemClock{}
	_ Clock = (*ManualClock)(nil)
)
