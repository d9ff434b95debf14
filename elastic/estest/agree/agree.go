// Package agree holds requests with the answers that real nodes gave to them, and a runner that compares a node's answers
// with these. It keeps the in-memory cluster of estest honest: the same list runs against that cluster and against
// Elasticsearch and OpenSearch. go test ./elastic/estest/agree -node URL -engine opensearch3 runs it against a real node;
// with -update the node's answers become those of its engine.
//
// It is not a conformance suite of either product. It compares what clients read: times, ids made by the node, scores,
// nested causes and positions in error texts are left out, and the order of members within an object is not compared.
package agree

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

//go:embed testdata/agree.txtar
var archive []byte

// A Case is one request and the answers to it.
type Case struct {
	// Name says what the case is about.
	Name string
	// Method and Target begin the request; Body is its body.
	Method, Target, Body string
	// Answers are the normalised answers, by engine. The most specific one counts: "opensearch3", "opensearch", "".
	Answers map[string]string
}

// Cases returns the cases in the order in which they must run: later ones build on earlier ones.
func Cases() ([]Case, error) {
	var cases []Case
	for _, f := range txtar.Parse(archive).Files {
		if engine, ok := strings.CutPrefix(f.Name, "answer"); ok {
			if len(cases) == 0 {
				return nil, fmt.Errorf("agree: %q comes before any request", f.Name)
			}
			cases[len(cases)-1].Answers[strings.TrimSpace(engine)] = string(f.Data)
			continue
		}
		line, body, _ := strings.Cut(string(f.Data), "\n")
		method, target, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("agree: case %q: request line %q lacks a target", f.Name, line)
		}
		cases = append(cases, Case{Name: f.Name, Method: method, Target: target, Body: body, Answers: map[string]string{}})
	}
	return cases, nil
}

// Want returns the answer that an engine ("elasticsearch7", "opensearch3") should give.
func (c Case) Want(engine string) string {
	for _, name := range []string{engine, strings.TrimRight(engine, "0123456789")} {
		if want, ok := c.Answers[name]; ok {
			return want
		}
	}
	return c.Answers[""]
}

// Send sends the case to a node and returns its normalised answer: the status and the JSON body.
func (c Case) Send(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, c.Method, url+c.Target, strings.NewReader(c.Body))
	if err != nil {
		return "", fmt.Errorf("agree: case %q: %w", c.Name, err)
	}
	if c.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("agree: case %q: %w", c.Name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("agree: case %q: read the answer: %w", c.Name, err)
	}
	return fmt.Sprintf("%d\n%s", resp.StatusCode, Normalise(body)), nil
}

// dropped are members that differ from run to run, or that only help people to find an error.
var dropped = []string{
	"took", "_type", "line", "col", "caused_by", "failed_shards", "creation_date", "created", "provided_name", "replication",
	"grouped", "phase", "_scroll_id",
}

// masked are members whose presence counts, but not their value.
var masked = []string{"uuid", "index_uuid", "node", "_score", "max_score", "state_uuid", "cluster_uuid", "cluster_name"}

var (
	uuidInText     = regexp.MustCompile(`/[\w-]{22}\]`)
	positionInText = regexp.MustCompile(`\[\d+:\d+\]`)
)

// Normalise writes a JSON body with sorted members and without what differs from run to run. What is no JSON stays as it
// is.
func Normalise(body []byte) string {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return string(body)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(normalise(v)); err != nil {
		return string(body)
	}
	return out.String()
}

func normalise(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range dropped {
			delete(v, name)
		}
		for _, name := range masked {
			if v[name] != nil && v[name] != "_na_" {
				v[name] = "*"
			}
		}
		if v["type"] == "json_parse_exception" {
			delete(v, "reason")
		}
		for name := range v {
			v[name] = normalise(v[name])
		}
	case []any:
		for i := range v {
			v[i] = normalise(v[i])
		}
	case string:
		return positionInText.ReplaceAllString(uuidInText.ReplaceAllString(v, "/*]"), "[*]")
	}
	return v
}
