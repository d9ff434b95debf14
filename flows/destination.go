package flows

// A Destined is a Filter that sends exchanges to a cluster, and can tell beforehand to which one. An answer that another one gave
// after all is not kept under its name.
type Destined interface{ Destination(x *Exchange) string }

// Destination returns the name of the cluster to which the chain that begins with next would send x now, as far as conditions
// can be judged; empty if it sends x to none that is known.
func Destination(next Handler, x *Exchange) string {
	for {
		l, ok := next.(*link)
		if !ok {
			return ""
		}
		if l.when == nil || l.when.Match(x) {
			switch f := l.filter.(type) {
			case Destined:
				return f.Destination(x)
			case inlined:
				next = f.chain // what comes behind it is a part of it
				continue
			}
		}
		next = l.next
	}
}
