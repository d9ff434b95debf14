package api

import (
	"slices"
	"strings"
)

// Class groups APIs by what they do to a cluster, for limits, logs and metrics.
type Class uint8

// The classes.
const (
	ClassUnknown Class = iota // not in the table
	ClassSearch               // asks for documents or runs a query
	ClassCursor               // opens, moves or closes something kept on the nodes between requests
	ClassWrite                // changes documents
	ClassInspect              // reads state, mappings or statistics
	ClassAdmin                // changes anything else
)

var classNames = [...]string{"unknown", "search", "cursor", "write", "inspect", "admin"}

// String returns the class in lower case, as metric labels and configuration spell it.
func (c Class) String() string { return classNames[c] }

// ClassNames returns the names of all classes. It is for reading configuration.
func ClassNames() []string { return slices.Clone(classNames[:]) }

// ParseClass returns the class of a name, false when there is none.
func ParseClass(name string) (Class, bool) {
	i := slices.Index(classNames[:], name)
	return Class(max(i, 0)), i >= 0
}

// Idempotency says when a request may be sent a second time. All classes may be repeated when nothing of the request left
// this process.
//
//	                  after a 429 or 503    after a reset, 502 or 504    hedged
//	Unsafe            if wholly rejected    never                        no
//	Idempotent        yes                   only if configured           no
//	Cursor            yes                   never                        no
//	Context           yes                   never                        no
//	Read              yes                   yes, on another node         yes
type Idempotency uint8

// The idempotency classes. The zero value is the careful one.
const (
	Unsafe     Idempotency = iota // a repetition may do it twice; all unknown calls
	Idempotent                    // a repetition leaves the same state, but its answer may differ (version, 404)
	Cursor                        // moves a cursor: a lost answer is a lost page
	Context                       // leaves a context on the nodes, which a lost answer would leak
	Read                          // changes nothing
)

var idempotencyNames = [...]string{"unsafe", "idempotent", "cursor", "context", "read"}

// String returns the class in lower case.
func (i Idempotency) String() string { return idempotencyNames[i] }

// Long tells whether a call runs for minutes or hours by nature, or waits for something that does: time limits for
// answers do not fit it, and one that was cut off still runs (elastic/elasticsearch#84577).
func (c *Call) Long() bool {
	switch c.Name {
	case "indices.forcemerge", "reindex", "update_by_query", "delete_by_query", "indices.shrink", "indices.split",
		"indices.clone", "indices.downsample", "indices.disk_usage", "indices.upgrade", "migration.post_feature_upgrade", "enrich.execute_policy",
		"searchable_snapshots.mount", "remote_store.restore", "tasks.get", "tasks.list", "cluster.health":
		return true
	}
	return strings.HasPrefix(c.Name, "snapshot.")
}
