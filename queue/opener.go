package queue

// An Opener opens queues by name. Whoever opens one closes it.
type Opener interface {
	// Open opens the queue called name, and makes it if there is none. All who open a name share one queue.
	Open(name string) (Queue, error)
}
