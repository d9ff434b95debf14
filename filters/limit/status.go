package limit

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"weir/flows"
)

// FilterStatus is what a filter of this family tells about itself, for people.
type FilterStatus struct {
	Flow        string             `json:"flow"`
	Filter      string             `json:"filter"`
	Kind        string             `json:"kind"`
	Mode        string             `json:"mode"`
	Waiting     int                `json:"waiting"`
	Keys        *int               `json:"keys,omitempty"`
	Limits      []LimitStatus      `json:"limits,omitempty"`
	Concurrency *ConcurrencyStatus `json:"concurrency,omitempty"`
}

// LimitStatus is what is known of a limit: its shape, and the keys that have used most of it.
type LimitStatus struct {
	Name  string      `json:"name"`
	Unit  string      `json:"unit"`
	Rate  string      `json:"rate"`
	Burst int64       `json:"burst"`
	Keys  int         `json:"keys"`       // that are not rested
	Near  int         `json:"near_limit"` // of them with less than a fifth of the burst left
	Top   []KeyStatus `json:"top"`
}

// KeyStatus is what is known of a key.
type KeyStatus struct {
	Key  []string `json:"key"`          // the values of the limit's selectors; what may be a secret is hidden
	Used float64  `json:"used"`         // share of the burst; above 1 the key is in debt
	Rest float64  `json:"rest_seconds"` // until the whole burst is there again
}

// topKeys is how many keys are told of each limit.
const topKeys = 10

// explain implements explainer.
func (f *rateLimit) explain() *FilterStatus {
	keys := f.table.Len()
	out := &FilterStatus{Flow: f.flow, Filter: f.name, Kind: "rate_limit", Mode: f.config.Mode, Keys: &keys}
	if f.rooms != nil {
		out.Waiting = int(f.rooms.waiting.Load())
	}
	byID := map[uint64]*found{}
	all := make([]found, len(f.limits))
	for i, l := range f.limits {
		all[i] = found{limit: l, status: LimitStatus{Name: l.name, Unit: unitName(l.unit), Rate: l.rate, Burst: l.burst, Top: []KeyStatus{}}}
		byID[l.id] = &all[i]
		for _, b := range l.overrides {
			byID[b.id] = &all[i]
		}
	}
	f.table.Walk(func(key string, rest time.Duration) {
		if of := byID[binary.BigEndian.Uint64([]byte(key[:idBytes]))]; of != nil {
			of.add(key, rest)
		}
	})
	for i := range all {
		out.Limits = append(out.Limits, all[i].finish())
	}
	return out
}

// found is a limit with the keys of it that were found.
type found struct {
	limit  *limit
	status LimitStatus
	top    []used // at most twice topKeys, unsorted
}

type used struct {
	key   string
	share float64
	rest  time.Duration
}

func (f *found) add(key string, rest time.Duration) {
	shape := &f.limit.Limit
	if other := f.limit.overrides[key[idBytes:]]; other != nil {
		shape = &other.Limit
	}
	share := float64(rest) / float64(shape.tolerance)
	f.status.Keys++
	if share > 0.8 {
		f.status.Near++
	}
	f.top = append(f.top, used{key, share, rest})
	if len(f.top) == 2*topKeys {
		f.cut()
	}
}

// cut keeps those that have used most.
func (f *found) cut() {
	slices.SortFunc(f.top, func(a, b used) int { return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.key, b.key)) })
	f.top = f.top[:min(topKeys, len(f.top))]
}

func (f *found) finish() LimitStatus {
	f.cut()
	for _, u := range f.top {
		f.status.Top = append(f.status.Top, KeyStatus{Key: describeKey(f.limit.selectors, []byte(u.key)), Used: u.share, Rest: u.rest.Seconds()})
	}
	return f.status
}

func unitName(u unit) string {
	for name, known := range units {
		if known == u {
			return name
		}
	}
	return ""
}

// Handler answers with what all limits at work know: their shapes, the keys that have used most, and who waits.
func Handler(k *flows.Keeper) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		out := []*FilterStatus{}
		for _, s := range flows.Kept[*seat](k) {
			if f := s.current(); f != nil {
				out = append(out, f.explain())
			}
		}
		slices.SortFunc(out, func(a, b *FilterStatus) int {
			return cmp.Or(cmp.Compare(a.Flow, b.Flow), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Filter, b.Filter))
		})
		w.Header().Set("Content-Type", "application/json")
		// The client may have left; there is nobody else to tell.
		_ = json.NewEncoder(w).Encode(map[string]any{"filters": out})
	})
}
