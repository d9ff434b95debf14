package bulk

import (
	"encoding/json"
	"fmt"
)

// An Outcome is what became of one action.
type Outcome struct {
	Status    int    // HTTP status of the action, never 0
	Index     string // concrete index, where the action got as far
	ID        string
	ErrorType string // empty without an error
	Reason    string // for people; may quote the document
}

// Kind says what to do about an outcome.
type Kind uint8

// The kinds of outcomes.
const (
	Stored    Kind = iota // done; a Delete of what is not there is done too
	Duplicate             // a Create met its document: stored already, if this was a redelivery; a conflict if not
	Retry                 // send it again later: the node was full or failed (429, 5xx)
	Rejected              // will never be stored as it is: mapping errors, conflicts, missing documents and indices
)

var kindNames = [...]string{"stored", "duplicate", "retry", "rejected"}

// String returns the kind as metric labels spell it.
func (k Kind) String() string { return kindNames[k] }

// Kind judges the outcome of an action of the given verb.
func (o *Outcome) Kind(v Verb) Kind {
	switch {
	case o.Status >= 200 && o.Status < 300,
		v == Delete && o.Status == 404 && o.ErrorType == "":
		return Stored
	case v == Create && o.Status == 409:
		return Duplicate
	case o.Status == 429 || o.Status >= 500:
		return Retry
	}
	return Rejected
}

// Outcomes reads the uncompressed answer to a _bulk request of n actions. The outcomes stand in the order of the actions. An
// answer that does not tell what became of each action is an error: one cut short, one with another number of items (an unknown
// verb has none on Elasticsearch 7.17), or one from which filter_path took the items or their status. The errors flag of the
// answer is not looked at, since filter_path may have removed it as well.
func Outcomes(answer []byte, n int) ([]Outcome, error) {
	var a struct {
		Items []map[string]item `json:"items"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("read bulk answer: %w", err)
	}
	if len(a.Items) != n {
		return nil, fmt.Errorf("read bulk answer: %d items for %d actions", len(a.Items), n)
	}
	out := make([]Outcome, n)
	for i, verbs := range a.Items {
		if len(verbs) != 1 {
			return nil, fmt.Errorf("read bulk answer: item %d has %d verbs", i, len(verbs))
		}
		for _, it := range verbs {
			if it.Status == 0 {
				return nil, fmt.Errorf("read bulk answer: item %d has no status", i)
			}
			out[i] = Outcome{it.Status, it.Index, it.ID, it.Error.Type, it.Error.Reason}
		}
	}
	return out, nil
}

type item struct {
	Index  string    `json:"_index"`
	ID     string    `json:"_id"`
	Status int       `json:"status"`
	Error  itemError `json:"error"`
}

type itemError struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// UnmarshalJSON reads an error object, or the plain sentence that Elasticsearch 1 and some gateways answer.
func (e *itemError) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		e.Type = "exception"
		return json.Unmarshal(b, &e.Reason)
	}
	type plain itemError
	return json.Unmarshal(b, (*plain)(e))
}
