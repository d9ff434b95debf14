package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"weir/internal/dashboards"
)

// A platform is one that asks through the gateway in the demo.
type platform struct {
	credentials, agent, opaqueID string
	bodies                       []string // %d is another number each time
	again                        int      // how often each search is repeated
}

// platforms ask differently much, and differently slowly.
var platforms = []platform{
	{
		credentials: basic("shop"), agent: "elasticsearch-py/8.15 (Python/3.12)", again: 3,
		bodies: []string{`{"size":10,"query":{"range":{"status":{"gte":%d}}}}`},
	},
	{
		credentials: basic("kibana"), agent: "Kibana/8.15", opaqueID: "5f2c;kibana:application:dashboards:sales", again: 1,
		bodies: []string{`{"size":0,"query":{"range":{"latency_ms":{"gte":%d}}},"aggs":{"per":{"terms":{"field":"service","size":50},"aggs":{"p":{"avg":{"field":"latency_ms"}}}}}}`},
	},
	{
		credentials: "ApiKey " + base64.StdEncoding.EncodeToString([]byte("reports:secret")), agent: "Go-http-client/1.1",
		bodies: []string{
			`{"size":200,"sort":["status"],"query":{"bool":{"filter":[{"range":{"latency_ms":{"lte":%d}}}]}}}`,
			`{"size":5,"query":{"term":{"status":%d}}}`,
		},
	},
}

func basic(user string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":secret"))
}

// rounds is how often each platform asks each of its searches with other numbers.
const rounds = 12

// insight sends traffic of several platforms and shows, by the searches of the dashboards, what the records tell of it.
func insight(ctx context.Context, g *gateway, b *backend, out io.Writer) error {
	since := time.Now()
	sent := 0
	send := func(p *platform, target, body string) (status int, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+target, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", p.credentials)
		req.Header.Set("User-Agent", p.agent)
		if p.opaqueID != "" {
			req.Header.Set("X-Opaque-Id", p.opaqueID)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		sent++
		return resp.StatusCode, errors.Join(err, resp.Body.Close())
	}
	for n := range rounds {
		for i := range platforms {
			p := &platforms[i]
			for _, text := range p.bodies {
				body := fmt.Sprintf(text, 400+n)
				for range 1 + p.again {
					if _, err := send(p, "/"+index+"/_search", body); err != nil {
						return err
					}
				}
			}
		}
	}
	for refused, n := 0, 0; refused < 3; n++ {
		status, err := send(&platforms[2], "/"+limited+"/_search", fmt.Sprintf(`{"from":%d}`, n))
		switch {
		case err != nil:
			return err
		case status == http.StatusTooManyRequests:
			refused++
		case n > 1000:
			return fmt.Errorf("of %d searches of %s, %d were refused", n, limited, refused)
		}
	}
	if err := arrived(ctx, b, since, sent); err != nil {
		return err
	}
	for _, id := range []string{"top-callers", "slow-shapes", "hit-ratio-index", "limited-callers"} {
		p := dashboards.Find(id)
		rows, err := panel(ctx, b, p, since)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("the panel %q has nothing to show", p.Title)
		}
		fmt.Fprintf(out, "   %s\n", p.Title)
		for _, r := range rows[:min(len(rows), 5)] {
			fmt.Fprintf(out, "     %s\n", row(p, r))
		}
	}
	fmt.Fprintf(out, "   (dashboards with these and more: dist/kibana, dist/opensearch-dashboards, or weir setup)\n")
	return nil
}

// arrived waits until the cluster has the records of all requests.
func arrived(ctx context.Context, b *backend, since time.Time, sent int) error {
	p := dashboards.Find("requests")
	return until(ctx, 30*time.Second, func() error {
		if _, err := call(ctx, http.MethodPost, b.url+"/"+records+"/_refresh", nil); err != nil {
			return err
		}
		rows, err := panel(ctx, b, p, since)
		if err != nil {
			return err
		}
		if n := int(rows[0].Values[0][0]); n < sent {
			return fmt.Errorf("%d of %d records are there", n, sent)
		}
		return nil
	})
}

// panel asks the cluster what a panel of the dashboards asks.
func panel(ctx context.Context, b *backend, p *dashboards.Panel, since time.Time) ([]dashboards.Row, error) {
	// The clock of records is that of milliseconds.
	a, err := call(ctx, http.MethodPost, b.url+"/"+records+"/_search", p.Search(since.Truncate(time.Millisecond)))
	if err != nil {
		return nil, err
	}
	return p.Rows(a.body)
}

// row writes a row of a panel in one line.
func row(p *dashboards.Panel, r dashboards.Row) string {
	var line strings.Builder
	for i, m := range p.Metrics {
		var values []string
		for _, v := range r.Values[i] {
			switch {
			case m.Agg == "count":
				values = append(values, fmt.Sprintf("%.0f", v))
			case m.Field == "weir.hit":
				values = append(values, fmt.Sprintf("%.0f%%", 100*v))
			default:
				values = append(values, time.Duration(v).Round(10*time.Microsecond).String())
			}
		}
		fmt.Fprintf(&line, "%s %s   ", m.Label, strings.Join(values, " "))
	}
	return line.String() + strings.Join(r.Keys, "  ")
}
