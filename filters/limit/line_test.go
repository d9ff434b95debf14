package limit

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowLine is a line as a plain list, for comparison: of fair, the callers in the order of their turns.
type slowLine struct {
	order   order
	callers []uint64
	waiters map[uint64][]*waiter
}

func (l *slowLine) push(w *waiter) {
	caller := w.caller
	if l.order != fair {
		caller = 0
	}
	if len(l.waiters[caller]) == 0 {
		l.callers = append(l.callers, caller)
	}
	l.waiters[caller] = append(l.waiters[caller], w)
}

func (l *slowLine) pop() *waiter {
	if len(l.callers) == 0 {
		return nil
	}
	caller := l.callers[0]
	list := l.waiters[caller]
	w := list[0]
	if l.order == lifo {
		w = list[len(list)-1]
	}
	l.callers = append(l.callers[1:], caller)
	l.remove(w)
	return w
}

func (l *slowLine) remove(w *waiter) {
	for i, caller := range l.callers {
		at := slices.Index(l.waiters[caller], w)
		if at < 0 {
			continue
		}
		l.waiters[caller] = slices.Delete(l.waiters[caller], at, at+1)
		if len(l.waiters[caller]) == 0 {
			l.callers = slices.Delete(l.callers, i, i+1)
		}
		return
	}
}

// TestLineAgainstList holds a line against the plain list, whatever comes, leaves and is served.
func TestLineAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		how := rapid.SampledFrom([]order{fair, fifo, lifo}).Draw(t, "order")
		l, slow := line{order: how}, slowLine{order: how, waiters: map[uint64][]*waiter{}}
		var in []*waiter
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				w := newWaiter(rapid.Uint64Range(1, 5).Draw(t, "caller"))
				l.push(w)
				slow.push(w)
				in = append(in, w)
			case 2:
				first, got, want := l.first(), l.pop(), slow.pop()
				if got != want || first != want {
					t.Fatalf("popped %p, first %p, want %p", got, first, want)
				}
				in = slices.DeleteFunc(in, func(w *waiter) bool { return w == got })
			case 3:
				if len(in) > 0 {
					i := rapid.IntRange(0, len(in)-1).Draw(t, "leaver")
					l.remove(in[i])
					slow.remove(in[i])
					in = slices.Delete(in, i, i+1)
				}
			}
			if l.n != len(in) {
				t.Fatalf("%d wait, want %d", l.n, len(in))
			}
		}
		for range in {
			if got, want := l.pop(), slow.pop(); got != want {
				t.Fatalf("popped %p in the end, want %p", got, want)
			}
		}
		if l.first() != nil || l.ring != nil || len(l.turns) != 0 {
			t.Fatal("an empty line is not empty")
		}
	})
}
