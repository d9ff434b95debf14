package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// tour shows what the gateway does, step by step, and returns the names of the steps that failed.
func tour(ctx context.Context, g *gateway, b *backend, out io.Writer) []string {
	var failed []string
	for _, s := range []struct {
		name string
		do   func(context.Context, *gateway, *backend, io.Writer) error
	}{
		{"a miss and a hit", missAndHit},
		{"a limited index", limitedIndex},
		{"a list of nodes", nodeList},
		{"log records", logRecords},
		{"who asks what", insight},
	} {
		fmt.Fprintf(out, "\n== %s\n", s.name)
		if err := s.do(ctx, g, b, out); err != nil {
			fmt.Fprintf(out, "   FAILED: %v\n", err)
			failed = append(failed, s.name)
		}
	}
	return failed
}

// missAndHit asks the same twice.
func missAndHit(ctx context.Context, g *gateway, _ *backend, out io.Writer) error {
	query := []byte(fmt.Sprintf(`{"size":3,"query":{"range":{"status":{"gte":%d}}},"aggs":{"services":{"terms":{"field":"service"},`+
		`"aggs":{"latency":{"avg":{"field":"latency_ms"}}}}}}`, time.Now().UnixNano()%100+400))
	var bodies [2][]byte
	for i, want := range []string{"fwd=miss", "hit"} {
		a, err := call(ctx, http.MethodPost, g.url+"/"+index+"/_search", query)
		if err != nil {
			return err
		}
		status := a.Header.Get("Cache-Status")
		fmt.Fprintf(out, "   POST /%s/_search   %s in %s   Cache-Status: %s\n", index, a.Status, a.took.Round(10*time.Microsecond), status)
		if !strings.Contains(status, want) {
			return fmt.Errorf("Cache-Status is %q, want %s", status, want)
		}
		bodies[i] = a.body
	}
	if !bytes.Equal(bodies[0], bodies[1]) {
		return errors.New("the hit has other bytes than the miss")
	}
	return nil
}

// limitedIndex asks an index that takes three searches a second four times, each time something else. On a slow machine
// four searches may take so long that the fourth is let through: then it tries again.
func limitedIndex(ctx context.Context, g *gateway, _ *backend, out io.Writer) error {
	var statuses []int
	for try := range 5 {
		var lines strings.Builder
		statuses = statuses[:0]
		for i := range 4 {
			a, err := ask(ctx, http.MethodPost, g.url+"/"+limited+"/_search", []byte(fmt.Sprintf(`{"size":%d}`, 4*try+i)))
			if err != nil {
				return err
			}
			statuses = append(statuses, a.StatusCode)
			fmt.Fprintf(&lines, "   POST /%s/_search   %s", limited, a.Status)
			if a.StatusCode == http.StatusTooManyRequests {
				fmt.Fprintf(&lines, "   Retry-After: %s   %s", a.Header.Get("Retry-After"), clip(a.body))
			}
			fmt.Fprintln(&lines)
		}
		if fmt.Sprint(statuses) == "[200 200 200 429]" {
			_, err := io.WriteString(out, lines.String())
			return err
		}
		if err := pause(ctx, 1500*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("statuses are %v, want three 200 and one 429", statuses)
}

// pause waits, for the limit to be at rest again.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nodeList shows the cluster's nodes, as the cluster and as the gateway see them.
func nodeList(ctx context.Context, g *gateway, _ *backend, out io.Writer) error {
	a, err := get(ctx, g.url+"/_cat/nodes?v")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(a.body)) {
		fmt.Fprintf(out, "   %s", line)
	}
	a, err = get(ctx, g.admin+"/_weir/clusters")
	if err != nil {
		return err
	}
	var seen struct {
		Clusters []struct {
			Name, Version string
			Nodes         []struct{ Node string }
		}
	}
	if err := json.Unmarshal(a.body, &seen); err != nil {
		return err
	}
	for _, c := range seen.Clusters {
		fmt.Fprintf(out, "   weir sees cluster %s, version %s, with %d nodes\n", c.Name, c.Version, len(c.Nodes))
	}
	if len(seen.Clusters) == 0 {
		return errors.New("the gateway knows no cluster")
	}
	return nil
}

// logRecords finds the requests of this tour in the index that the gateway logs to.
func logRecords(ctx context.Context, g *gateway, b *backend, out io.Writer) error {
	mark := fmt.Sprintf("tour-%d", time.Now().UnixNano())
	if _, err := get(ctx, g.url+"/"+index+"/_count?preference="+mark); err != nil {
		return err
	}
	query := []byte(`{"size":1,"query":{"term":{"url.query":"preference=` + mark + `"}}}`)
	var found struct {
		Hits struct {
			Hits []struct {
				Source json.RawMessage `json:"_source"`
			}
		}
	}
	err := until(ctx, 30*time.Second, func() error {
		// The index is there once the first record is.
		_, _ = call(ctx, http.MethodPost, b.url+"/"+records+"/_refresh", nil)
		a, err := call(ctx, http.MethodPost, b.url+"/"+records+"/_search", query)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(a.body, &found); err != nil {
			return err
		}
		if len(found.Hits.Hits) == 0 {
			return errors.New("the record is not there yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "   %s\n", found.Hits.Hits[0].Source)
	a, err := get(ctx, b.url+"/"+records+"/_count")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "   %s has %s\n", records, clip(a.body))
	return nil
}
