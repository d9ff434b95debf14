package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"weir/elastic"
	"weir/internal/conf"
)

// A Stream is a data stream for records, whose indices the cluster begins and deletes by itself. Two are the same if they
// are equal. The zero value is none.
type Stream struct {
	Name         string
	Retention    conf.Duration // age at which records are deleted; 0 keeps them
	RolloverAge  conf.Duration // age and
	RolloverSize conf.Bytes    // size of an index at which the next is begun
}

// BadName returns why a cluster would refuse the name of a data stream, or "".
func (s Stream) BadName() string {
	if strings.HasPrefix(s.Name, "<") {
		return "is date math, which the indices of a data stream need none of"
	}
	return badIndexName(s.Name)
}

// policy is the name of the lifecycle policy and of the index template.
func (s Stream) policy() string { return "weir-" + s.Name }

const (
	// streamRank is the priority of templates of data streams. It is higher than that of templates for indices, whose patterns
	// may cover the name of the stream.
	streamRank = 500
	// ismPath is where OpenSearch has its lifecycle policies.
	ismPath = "/_plugins/_ism/policies/"
)

// installStream installs the lifecycle policy and the template of a data stream. A cluster without the one or the other gets
// what it has an API for, and a warning is logged.
func installStream(ctx context.Context, c *elastic.Cluster, s Stream, e engine, l *slog.Logger) error {
	l = l.With("data_stream", s.Name)
	lifecycle := ""
	switch err := s.installPolicy(ctx, c, e); {
	case lacks(err):
		l.Warn("the cluster has no lifecycle policies: nobody deletes records that are older than retention, and indices of the stream grow",
			"error", err)
	case err != nil:
		return fmt.Errorf("lifecycle policy %s: %w", s.policy(), err)
	case !e.openSearch: // OpenSearch finds the indices of a policy by their names
		lifecycle = s.policy()
	}
	have, used, err := installed(ctx, c, s.policy(), true)
	switch {
	case err != nil && !lacks(err):
		return err
	case have > templateVersion || have == templateVersion && used == lifecycle:
		return nil
	}
	body, err := s.template(lifecycle, true)
	if err != nil {
		return err
	}
	_, err = call(ctx, c, esapi.IndicesPutIndexTemplateRequest{Name: s.policy(), Body: bytes.NewReader(body)}, nil)
	if lacks(err) {
		l.Warn("the cluster has no data streams: records go into an ordinary index of that name", "error", err)
		if body, err = s.template("", false); err != nil {
			return err
		}
		_, err = call(ctx, c, esapi.IndicesPutIndexTemplateRequest{Name: s.policy(), Body: bytes.NewReader(body)}, nil)
	}
	if err != nil {
		return fmt.Errorf("index template %s: %w", s.policy(), err)
	}
	l.Info("index template installed", "template", s.policy(), "version", templateVersion)
	return nil
}

// lacks tells whether a cluster answered as one does that has not got the API that was called.
func lacks(err error) bool {
	var f *failure
	return errors.Is(err, errNoAPI) || errors.As(err, &f) && (f.status == http.StatusBadRequest || f.status == http.StatusMethodNotAllowed)
}

var errNoAPI = errors.New("no such API")

// template returns the index template, with the lifecycle policy if there is one.
func (s Stream) template(lifecycle string, stream bool) ([]byte, error) {
	var parts struct {
		Settings map[string]any  `json:"settings"`
		Mappings json.RawMessage `json:"mappings"`
	}
	if err := json.Unmarshal(requestTemplate, &parts); err != nil {
		return nil, fmt.Errorf("BUG: requests.json: %w", err)
	}
	if lifecycle != "" {
		parts.Settings["index.lifecycle.name"] = lifecycle
	}
	body := map[string]any{
		"index_patterns": []string{s.Name}, "version": templateVersion, "priority": streamRank, "template": parts,
		"_meta": map[string]string{"description": "Records of requests through Weir"},
	}
	if stream {
		body["data_stream"] = map[string]any{}
	}
	return json.Marshal(body)
}

// installPolicy makes the cluster's lifecycle policy say what s says. A policy that says so already is left alone.
func (s Stream) installPolicy(ctx context.Context, c *elastic.Cluster, e engine) error {
	if e.openSearch {
		return s.installISM(ctx, c)
	}
	return s.installILM(ctx, c)
}

// installILM installs a policy of index lifecycle management (Elasticsearch).
func (s Stream) installILM(ctx context.Context, c *elastic.Cluster) error {
	type hot struct {
		MinAge  string `json:"min_age"`
		Actions struct {
			Rollover struct {
				MaxAge  string `json:"max_age"`
				MaxSize string `json:"max_size"`
			} `json:"rollover"`
		} `json:"actions"`
	}
	type end struct {
		MinAge  string `json:"min_age"`
		Actions struct {
			Delete struct{} `json:"delete"`
		} `json:"actions"`
	}
	type policy struct {
		Phases struct {
			Hot    hot  `json:"hot"`
			Delete *end `json:"delete,omitempty"`
		} `json:"phases"`
	}
	var want policy
	want.Phases.Hot.MinAge = "0ms"
	want.Phases.Hot.Actions.Rollover.MaxAge, want.Phases.Hot.Actions.Rollover.MaxSize = age(s.RolloverAge), size(s.RolloverSize)
	if s.Retention > 0 {
		want.Phases.Delete = &end{MinAge: age(s.Retention)}
	}
	var have map[string]struct{ Policy policy }
	if _, err := call(ctx, c, esapi.ILMGetLifecycleRequest{Policy: s.policy()}, &have); err != nil {
		return err
	}
	if p, found := have[s.policy()]; found && p.Policy.Phases.Hot == want.Phases.Hot &&
		(p.Policy.Phases.Delete == nil) == (want.Phases.Delete == nil) &&
		(want.Phases.Delete == nil || *p.Policy.Phases.Delete == *want.Phases.Delete) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"policy": want})
	if err != nil {
		return err
	}
	return known(call(ctx, c, esapi.ILMPutLifecycleRequest{Policy: s.policy(), Body: bytes.NewReader(body)}, nil))
}

// installISM installs a policy of index state management (OpenSearch). Indices take it when they are created; those that are
// there already keep the one that they have.
func (s Stream) installISM(ctx context.Context, c *elastic.Cluster) error {
	type object = map[string]any
	// Policies come back with members that nobody set, so a description tells what one says.
	description := fmt.Sprintf("Weir: the next index at %s or %s, deleted at %s", age(s.RolloverAge), size(s.RolloverSize), age(s.Retention))
	var have struct {
		SeqNo  int `json:"_seq_no"`
		Term   int `json:"_primary_term"`
		Policy struct{ Description string }
	}
	found, err := call(ctx, c, ismRequest{method: http.MethodGet, name: s.policy()}, &have)
	if err != nil || found && have.Policy.Description == description {
		return err
	}
	transitions := []object{}
	states := []object{{"name": "hot", "actions": []object{{"rollover": object{"min_index_age": age(s.RolloverAge), "min_size": size(s.RolloverSize)}}}}}
	if s.Retention > 0 {
		transitions = append(transitions, object{"state_name": "delete", "conditions": object{"min_index_age": age(s.Retention)}})
		states = append(states, object{"name": "delete", "actions": []object{{"delete": object{}}}, "transitions": []object{}})
	}
	states[0]["transitions"] = transitions
	body, err := json.Marshal(object{"policy": object{
		"description": description, "default_state": "hot", "states": states,
		"ism_template": []object{{"index_patterns": []string{s.Name}, "priority": streamRank}},
	}})
	if err != nil {
		return err
	}
	put := ismRequest{method: http.MethodPut, name: s.policy(), body: body}
	if found {
		put.query = fmt.Sprintf("if_seq_no=%d&if_primary_term=%d", have.SeqNo, have.Term)
	}
	return known(call(ctx, c, put, nil))
}

// known turns the answer 404 to a call that writes into errNoAPI.
func known(found bool, err error) error {
	if err == nil && !found {
		return errNoAPI
	}
	return err
}

// age writes a duration as both engines read it, in the largest unit that it is a whole number of.
func age(d conf.Duration) string {
	for _, u := range []struct {
		unit int64
		name string
	}{{86_400e9, "d"}, {3600e9, "h"}, {60e9, "m"}, {1e9, "s"}} {
		if n := int64(d); n%u.unit == 0 {
			return strconv.FormatInt(n/u.unit, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d)/1e6, 10) + "ms"
}

// size writes a number of bytes as both engines read it.
func size(b conf.Bytes) string { return strconv.FormatInt(int64(b), 10) + "b" }

// ismRequest is a call of OpenSearch's index state management, which esapi does not know.
type ismRequest struct {
	method, name, query string
	body                []byte
}

// Do implements esapi.Request.
func (r ismRequest) Do(ctx context.Context, t esapi.Transport) (*esapi.Response, error) {
	target := url.URL{Path: ismPath + r.name, RawQuery: r.query}
	req, err := http.NewRequestWithContext(ctx, r.method, target.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := t.Perform(req)
	if err != nil {
		return nil, err
	}
	return &esapi.Response{StatusCode: res.StatusCode, Header: res.Header, Body: res.Body}, nil
}
