package generation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"weir/elastic/query"
)

const (
	// maxPoll bounds one poll.
	maxPoll = 10 * time.Second
	// maxAnswer is the largest answer to a poll that is read: ten thousand shards take under 2 MB.
	maxAnswer = 64 << 20
	// share is the part of the time that polls may take: after a long one comes a pause that many times as long.
	share = 4
)

// A token is a digest of all that is known to change when what an index expression finds changes. Tokens are compared,
// never ordered: counters begin anew when a shard moves (elastic/elasticsearch#77990).
type token [sha256.Size]byte

// metadata is what is known of an index.
type metadata struct {
	versions string // of its mapping, settings and aliases, and the copies of its shards that count
	piped    bool   // documents go through an ingest pipeline, which may put them into another index
}

// An aliasFilter is what an alias leaves of its indices.
type aliasFilter struct {
	text  string
	moves bool // what it leaves may change although the indices do not, as with a time that counts from now
}

// run polls until the context ends.
func (t *Tracker) run(ctx context.Context) {
	defer close(t.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.kick:
		case <-timer.C:
		}
		began := time.Now()
		wait := t.round(ctx)
		if pause := share * time.Since(began); pause > wait {
			wait = pause
		}
		timer.Reset(wait)
	}
}

// longWait is how long run sleeps when nothing is due; a scope that is new or no longer idle wakes it.
const longWait = time.Hour

// round polls what is due, and returns the time until something is again.
func (t *Tracker) round(ctx context.Context) time.Duration {
	began := t.at(time.Now())
	t.mu.Lock()
	shaped := t.shaped // what is learned from here on may be what was so before a change that is seen later
	var due []*Scope
	for _, s := range t.scopes {
		// What is due soon is polled along, so that rounds do not multiply.
		if s.wanted(began) && s.due <= began+int64(s.key.every/4) {
			due = append(due, s)
		}
	}
	var client Client
	if n := len(t.clients); n > 0 {
		client = t.clients[n-1]
	}
	t.mu.Unlock()
	if client != nil && len(due) > 0 {
		if err := t.look(ctx, client); err != nil {
			t.refused(ctx, "the metadata of the cluster", err)
			for _, s := range due {
				t.lapse(s)
			}
		} else {
			for _, s := range due {
				t.poll(ctx, client, s, shaped)
			}
		}
	}
	now := t.at(time.Now())
	wait := longWait
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.scopes {
		switch {
		case s.wanted(now):
			s.idle = false
			wait = min(wait, max(time.Duration(s.due-now), time.Millisecond))
		case s.polled():
			s.idle = true
			t.forget(s)
		}
	}
	return wait
}

// wanted tells whether the scope is polled and was used lately.
func (s *Scope) wanted(now int64) bool {
	return s.polled() && now-s.used.Load() < int64(max(idleAfter, 4*s.key.every))
}

// lapse notes that the state of a scope could not be learned. What was proven before stays so until it is too long ago; what
// it stood for may not be so any more.
func (t *Tracker) lapse(s *Scope) {
	t.metrics.failed.Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	s.due = t.at(time.Now()) + int64(s.key.every)
	t.forget(s)
}

// unprove notes that polls have nothing to say of a scope any more. If they had, that is a change: what was found before is
// not there, or moves by itself. t.mu is held.
func (t *Tracker) unprove(s *Scope) {
	t.forget(s)
	if s.proven.Swap(0) != 0 {
		t.metrics.polls.Inc()
		s.version.Add(1)
	}
}

func (t *Tracker) refused(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && !errors.Is(err, errMissing) {
		t.faults.Log(slog.LevelWarn, "poll", "cannot learn whether indices have changed; answers about them live for their time only", "what", what, "error", err)
	}
}

// poll learns the state of a scope. shaped is how many changes of what expressions stand for had been seen before the metadata
// was looked at.
func (t *Tracker) poll(ctx context.Context, client Client, s *Scope, shaped uint64) {
	began := t.at(time.Now())
	fresh, names, moves, err := t.read(ctx, client, s)
	if err != nil {
		t.refused(ctx, "the counters of "+s.key.index, err)
		t.lapse(s)
		if errors.Is(err, errMissing) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.unprove(s)
		}
		return
	}
	t.metrics.proved.Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	s.due = began + int64(s.key.every)
	if t.shaped != shaped {
		names = nil // it may be what was so before
	}
	if moves {
		t.unprove(s)
		s.names = names
		return
	}
	// The first token says nothing of changes. A stamp that was taken before it may be older than a change that the token has
	// seen: such a stamp is never proven.
	if s.proven.Load() != 0 && s.token != fresh {
		t.metrics.polls.Inc()
		s.version.Add(1)
	}
	s.token = fresh
	if s.names == nil || !maps.Equal(s.names, names) {
		s.names = names
		clear(t.byName)
	}
	s.proven.Store(max(began, 1))
}

// statsFilter leaves of the statistics what makes a token.
const statsFilter = "_shards.failed,indices.*.uuid,indices.*.shards.*.routing.node,indices.*.shards.*.seq_no.max_seq_no," +
	"indices.*.shards.*.refresh.external_total"

// stats is what is read of _stats. A shard that nobody searches stops to refresh (index.search.idle.after), so that the number
// of refreshes alone would stand still while documents come in; and a write is not seen by searches until a refresh, so that
// the sequence number alone does not do either. Each copy refreshes by itself, so all are looked at. What a copy that is opened
// again has found in its log is visible to searches, and its refreshes are counted from the same number as ever: which process
// has it, and how often the shard has begun anew, are part of the token too.
type stats struct {
	Shards struct {
		Failed *int `json:"failed"`
	} `json:"_shards"`
	Indices map[string]struct {
		UUID   string `json:"uuid"`
		Shards map[string][]struct {
			Routing struct {
				Node string `json:"node"`
			} `json:"routing"`
			SeqNo struct {
				Max *int64 `json:"max_seq_no"`
			} `json:"seq_no"`
			Refresh struct {
				External *int64 `json:"external_total"`
			} `json:"refresh"`
		} `json:"shards"`
	} `json:"indices"`
}

var (
	errIncomplete = errors.New("counters of a shard are missing")
	errMissing    = errors.New("there is no such index") // nothing is stored about it either, and it may come
)

// read makes the token of a scope. The names are those of the indices that the expression stands for; moves tells that what
// it finds in them may change by itself.
func (t *Tracker) read(ctx context.Context, client Client, s *Scope) (_ token, _ map[string]bool, moves bool, _ error) {
	target := "/_stats/refresh?level=shards&filter_path=" + statsFilter + s.key.options
	if s.key.index != "" {
		target = "/" + s.key.index + target
	}
	var a stats
	if err := get(ctx, client, target, &a); err != nil {
		return token{}, nil, false, err
	}
	if a.Shards.Failed == nil || *a.Shards.Failed > 0 {
		return token{}, nil, false, errIncomplete
	}
	t.mu.Lock()
	known, filters, processes := t.known, t.filters, t.processes
	t.mu.Unlock()
	h := sha256.New()
	for _, alias := range slices.Sorted(maps.Keys(filters)) {
		if s.mayName(alias) {
			f := filters[alias]
			moves = moves || f.moves
			fmt.Fprintf(h, "%q %q\n", alias, f.text)
		}
	}
	names := make(map[string]bool, len(a.Indices))
	for _, name := range slices.Sorted(maps.Keys(a.Indices)) {
		ix := a.Indices[name]
		if ix.UUID == "" || len(ix.Shards) == 0 {
			return token{}, nil, false, errIncomplete
		}
		names[name] = true
		fmt.Fprintf(h, "%q %q %q\n", name, ix.UUID, known[name].versions)
		for _, number := range slices.Sorted(maps.Keys(ix.Shards)) {
			var copies []string
			for _, c := range ix.Shards[number] {
				if c.SeqNo.Max == nil || c.Refresh.External == nil {
					return token{}, nil, false, errIncomplete
				}
				copies = append(copies, fmt.Sprintf("%q %q %d %d", c.Routing.Node, processes[c.Routing.Node], *c.SeqNo.Max, *c.Refresh.External))
			}
			slices.Sort(copies)
			fmt.Fprintf(h, "%q %q\n", number, copies)
		}
	}
	return sum(h), names, moves, nil
}

func sum(h hash.Hash) (out token) {
	h.Sum(out[:0])
	return out
}

// look learns which indices there are, the versions of their mappings, settings and aliases, the data streams, the filters of
// aliases, and which nodes were started again, when the version of the cluster's state says that something changed.
func (t *Tracker) look(ctx context.Context, client Client) error {
	var version struct {
		Version *int64 `json:"version"`
		UUID    string `json:"state_uuid"`
	}
	if err := get(ctx, client, "/_cluster/state/version?filter_path=version,state_uuid", &version); err != nil {
		return err
	}
	if version.Version == nil {
		return errors.New("the cluster state has no version")
	}
	state := fmt.Sprint(*version.Version, " ", version.UUID)
	t.mu.Lock()
	same := t.known != nil && t.state == state
	t.mu.Unlock()
	if same {
		return nil
	}
	var meta struct {
		Metadata struct {
			Indices map[string]struct {
				Mapping  int64 `json:"mapping_version"`
				Settings int64 `json:"settings_version"`
				Aliases  int64 `json:"aliases_version"`
				Terms    any   `json:"primary_terms"`
				Copies   any   `json:"in_sync_allocations"`
				Set      struct {
					Index struct {
						Pipeline string `json:"default_pipeline"`
					} `json:"index"`
				} `json:"settings"`
			} `json:"indices"`
			DataStreams any `json:"data_stream"`
		} `json:"metadata"`
		Nodes map[string]struct {
			Process string `json:"ephemeral_id"`
		} `json:"nodes"`
	}
	const filter = "metadata.indices.*.mapping_version,metadata.indices.*.settings_version,metadata.indices.*.aliases_version," +
		"metadata.indices.*.primary_terms,metadata.indices.*.in_sync_allocations,nodes.*.ephemeral_id," +
		"metadata.indices.*.settings.index.default_pipeline,metadata.data_stream" // a final pipeline must not change the index
	if err := get(ctx, client, "/_cluster/state/metadata,nodes?filter_path="+filter, &meta); err != nil {
		return err
	}
	known := make(map[string]metadata, len(meta.Metadata.Indices))
	shape := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(meta.Metadata.Indices)) {
		ix := meta.Metadata.Indices[name]
		pipeline := ix.Set.Index.Pipeline
		known[name] = metadata{fmt.Sprint(ix.Mapping, " ", ix.Settings, " ", ix.Aliases, " ", ix.Terms, " ", ix.Copies), pipeline != "" && pipeline != "_none"}
		fmt.Fprintf(shape, "%q %d\n", name, ix.Aliases)
	}
	if err := json.NewEncoder(shape).Encode(meta.Metadata.DataStreams); err != nil {
		return fmt.Errorf("read the data streams: %w", err)
	}
	processes := make(map[string]string, len(meta.Nodes))
	for id, n := range meta.Nodes {
		processes[id] = n.Process
	}
	var aliased map[string]struct {
		Aliases map[string]struct {
			Filter json.RawMessage `json:"filter"`
		} `json:"aliases"`
	}
	if err := get(ctx, client, "/_alias?expand_wildcards=all&filter_path=*.aliases.*.filter", &aliased); err != nil {
		return err
	}
	filters := map[string]aliasFilter{}
	var canon query.Canon
	for _, index := range slices.Sorted(maps.Keys(aliased)) {
		for alias, a := range aliased[index].Aliases {
			if len(a.Filter) == 0 {
				continue
			}
			f := filters[alias]
			f.text += index + string(a.Filter)
			_, facts, err := canon.Body(nil, slices.Concat([]byte(`{"query":`), a.Filter, []byte{'}'}))
			f.moves = f.moves || err != nil || !facts.Steady()
			filters[alias] = f
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.filters, t.processes, t.state = known, filters, processes, state
	clear(t.byName)
	if now := sum(shape); now != t.shape {
		t.shape = now
		for _, s := range t.scopes {
			t.forget(s) // an index that is known now may be behind an expression that was polled before it was there
		}
	}
	return nil
}

// get asks the cluster and reads its answer into out.
func get(ctx context.Context, client Client, target string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, maxPoll)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fmt.Errorf("poll %s: %w", target, err)
	}
	resp, err := client.Perform(req)
	if err != nil {
		return fmt.Errorf("poll %s: %w", target, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return errMissing
	default:
		return fmt.Errorf("poll %s: the node answered %d", target, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("poll %s: %w", target, err)
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("poll %s: the answer has over %d bytes", target, maxAnswer)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("poll %s: %w", target, err)
	}
	return nil
}
