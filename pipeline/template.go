package pipeline

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"weir/elastic"
	"weir/internal/obs"
)

// A Template says where index templates for the gateway's records belong. Two are the same if they are equal.
type Template struct {
	Cluster string // name of the cluster
	Prefix  string // index_prefix of the cluster; may be empty
	Stream  Stream // a data stream beside
}

const (
	// templateVersion is raised with every change of requests.json. A template of the same or a higher version is left as it
	// is, so that people can have their own.
	templateVersion = 2
	// classicPattern are the indices that the classic configuration writes its records to.
	classicPattern = "gateway_requests*"
	// templateWait is how long one attempt to install templates may take.
	templateWait = 30 * time.Second
)

// requestTemplate holds settings and mappings for the records of request_logging. Strings are keywords, since people count
// and filter by them; ignore_above keeps long ones from making a record unstorable (Lucene takes 32766 bytes a term).
//
//go:embed requests.json
var requestTemplate []byte

// patterns returns the patterns of indices that get the template.
func (t Template) patterns() []string {
	if t.Prefix == "" || strings.HasPrefix(t.Prefix, strings.TrimRight(classicPattern, "*")) {
		return []string{classicPattern}
	}
	pattern := t.Prefix + "_*"
	if strings.HasSuffix(t.Prefix, "_") || strings.HasSuffix(t.Prefix, "-") {
		pattern = t.Prefix + "*"
	}
	if pattern == "gateway_*" {
		return []string{pattern} // it covers the classic one
	}
	return []string{pattern, classicPattern}
}

// Setup installs the index templates that t asks for, and tries again with growing pauses until that has worked, the cluster
// refuses them for good, or ctx ends; the error tells which. It must come before the first record: a mapping cannot change
// the fields that an index has.
func Setup(ctx context.Context, c *elastic.Cluster, t Template, l *slog.Logger) error {
	throttle := obs.NewThrottle(l, time.Minute)
	defer throttle.Close()
	for pause := defaultBackoff; ; {
		err := install(ctx, c, t, l)
		var failed *failure
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("install index templates in cluster %s: %w", t.Cluster, context.Cause(ctx))
		case errors.As(err, &failed) && failed.permanent():
			return fmt.Errorf("install index templates in cluster %s: %w", t.Cluster, err)
		}
		throttle.Log(slog.LevelWarn, "setup", "index templates cannot be installed yet, trying again", "cluster", t.Cluster,
			"error", obs.RedactError(err))
		if !pause.wait(ctx, 0) {
			return fmt.Errorf("install index templates in cluster %s: %w", t.Cluster, context.Cause(ctx))
		}
	}
}

// permanent tells whether asking again is of no use.
func (f *failure) permanent() bool {
	return f.status >= 400 && f.status < 500 && f.status != http.StatusTooManyRequests && f.status != http.StatusRequestTimeout
}

func install(ctx context.Context, c *elastic.Cluster, t Template, l *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, templateWait)
	defer cancel()
	e, err := engineOf(ctx, c)
	if err != nil {
		return err
	}
	l = l.With("cluster", t.Cluster)
	for _, pattern := range t.patterns() {
		// One template a pattern, named after it: gateways with other prefixes share the cluster.
		if err := ensure(ctx, c, "weir-"+strings.TrimRight(pattern, "-_*"), pattern, e.composable, l); err != nil {
			return err
		}
	}
	switch {
	case t.Stream.Name == "":
		return nil
	case !e.composable:
		l.Warn("the cluster has no data streams: records go into an ordinary index of that name", "data_stream", t.Stream.Name)
		return ensure(ctx, c, t.Stream.policy(), t.Stream.Name, false, l)
	}
	return installStream(ctx, c, t.Stream, e, l)
}

// ensure installs a template unless one of this version or a later one is there.
func ensure(ctx context.Context, c *elastic.Cluster, name, pattern string, composable bool, l *slog.Logger) error {
	have, _, err := installed(ctx, c, name, composable)
	if err != nil || have >= templateVersion {
		return err
	}
	if err := put(ctx, c, name, pattern, composable); err != nil {
		return err
	}
	l.Info("index template installed", "template", name, "pattern", pattern, "version", templateVersion)
	return nil
}

// engine is what a cluster runs.
type engine struct {
	openSearch bool
	composable bool // it has composable index templates
}

// engineOf asks the cluster what it runs. Composable index templates are in Elasticsearch since 7.8, and in every OpenSearch.
// What older ones have instead is gone in Elasticsearch 9.
func engineOf(ctx context.Context, c *elastic.Cluster) (engine, error) {
	var info struct {
		Version struct{ Number, Distribution string }
	}
	if _, err := call(ctx, c, esapi.InfoRequest{}, &info); err != nil {
		return engine{}, err
	}
	major, rest, _ := strings.Cut(info.Version.Number, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	if err := errors.Join(err, err2); err != nil {
		return engine{}, fmt.Errorf("version %q of the cluster: %w", info.Version.Number, err)
	}
	openSearch := info.Version.Distribution == "opensearch"
	return engine{openSearch, openSearch || x > 7 || x == 7 && y >= 8}, nil
}

// installed returns the version of an installed template, 0 if there is none or it has none, and the lifecycle policy in it.
func installed(ctx context.Context, c *elastic.Cluster, name string, composable bool) (version int, lifecycle string, err error) {
	if !composable {
		var list map[string]struct{ Version int }
		_, err := call(ctx, c, esapi.IndicesGetTemplateRequest{Name: []string{name}}, &list)
		return list[name].Version, "", err
	}
	var list struct {
		Templates []struct {
			Template struct {
				Version  int
				Template struct {
					Settings struct {
						Index struct{ Lifecycle struct{ Name string } }
					}
				}
			} `json:"index_template"`
		} `json:"index_templates"`
	}
	_, err = call(ctx, c, esapi.IndicesGetIndexTemplateRequest{Name: name}, &list)
	if err != nil || len(list.Templates) == 0 {
		return 0, "", err
	}
	t := list.Templates[0].Template
	return t.Version, t.Template.Settings.Index.Lifecycle.Name, nil
}

// put installs a template. The longer of two patterns that match an index is the more particular one and wins; composable
// templates of the same priority may not overlap at all.
func put(ctx context.Context, c *elastic.Cluster, name, pattern string, composable bool) error {
	var template struct{ Settings, Mappings json.RawMessage }
	if err := json.Unmarshal(requestTemplate, &template); err != nil {
		return fmt.Errorf("BUG: requests.json: %w", err)
	}
	parts := map[string]any{"settings": template.Settings, "mappings": template.Mappings}
	body := map[string]any{"index_patterns": []string{pattern}, "version": templateVersion}
	rank := 100 + len(pattern)
	if composable {
		body["template"], body["priority"] = parts, rank
		body["_meta"] = map[string]string{"description": "Records of requests through Weir"}
	} else {
		body["settings"], body["mappings"], body["order"] = template.Settings, template.Mappings, rank
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("BUG: index template: %w", err)
	}
	var request esapi.Request = esapi.IndicesPutTemplateRequest{Name: name, Body: bytes.NewReader(text)}
	if composable {
		request = esapi.IndicesPutIndexTemplateRequest{Name: name, Body: bytes.NewReader(text)}
	}
	found, err := call(ctx, c, request, nil)
	if err == nil && !found {
		return &failure{status: http.StatusNotFound, reason: "no such API"}
	}
	return err
}

// call makes a call and reads its answer into out. It returns false for a 404, and a *failure for other answers than 2xx.
func call(ctx context.Context, c *elastic.Cluster, r esapi.Request, out any) (found bool, err error) {
	res, err := r.Do(ctx, c)
	if err != nil {
		return false, err
	}
	answer, err := readAnswer(res)
	switch {
	case err != nil:
		return false, err
	case res.StatusCode == http.StatusNotFound:
		return false, nil
	case res.StatusCode/100 != 2:
		return false, &failure{status: res.StatusCode, reason: clip(string(answer))}
	case out == nil:
		return true, nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return false, fmt.Errorf("read the cluster's answer: %w", err)
	}
	return true, nil
}
