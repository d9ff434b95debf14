package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/dashboards"
)

func TestDashboards(t *testing.T) {
	testDashboards(t, estest.New(t, estest.Options{}).URL())
}

// testDashboards sends traffic of all kinds through a gateway and asks the cluster what each panel of the dashboards asks:
// every one has something to show.
func testDashboards(t *testing.T, cluster string) {
	client := newClient(t)
	deleteRecords(t, client, cluster)
	fill(t, client, cluster, "medcl", "others")
	g := newSite(t, cluster, highLimit).start()
	key := base64.StdEncoding.EncodeToString([]byte("key-7:secret"))
	user := base64.StdEncoding.EncodeToString([]byte("ann:secret"))
	send := func(method, path, body string, fields ...string) int {
		t.Helper()
		a, err := g.ask(t.Context(), method, g.url+path, body, append(fields, "CACHE: true")...)
		if err != nil {
			t.Fatal(err)
		}
		return a.status
	}
	const shape = `{"query":{"range":{"n":{"gte":%d}}},"size":1,"track_total_hits":true}`
	for i := range 4 {
		for range 2 { // a miss and a hit
			send("POST", "/others/_search", fmt.Sprintf(shape, i), "Authorization: Basic "+user, "User-Agent: elasticsearch-py/8.1 (Python/3.12)")
		}
		send("GET", "/others/_doc/1", "", "Authorization: ApiKey "+key, "User-Agent: curl/8")
		send("GET", "/missing/_search", "", "User-Agent: Kibana/8.1", "X-Opaque-Id: 1f;kibana:application:dashboards:sales")
	}
	for i := 0; send("POST", "/medcl/_search", fmt.Sprintf(shape, i)) != http.StatusTooManyRequests; i++ {
		if i > 1000 {
			t.Fatal("no search was refused")
		}
	}
	g.awaitEmptyQueue()
	until(t, 20*time.Second, func(ctx context.Context) error {
		if _, err := ask(ctx, client, http.MethodPost, cluster+"/"+recordsIndex+"/_refresh", ""); err != nil {
			return err
		}
		for _, d := range dashboards.All {
			for _, p := range d.Panels {
				if err := shows(ctx, client, cluster, &p); err != nil {
					return fmt.Errorf("panel %s: %w", p.ID, err)
				}
			}
		}
		return nil
	})
}

// shows tells whether a panel has a row whose numbers are all there.
func shows(ctx context.Context, client *http.Client, cluster string, p *dashboards.Panel) error {
	a, err := ask(ctx, client, http.MethodPost, cluster+"/"+recordsIndex+"/_search", string(p.Search(time.Now().Add(-time.Hour))))
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("status %d: %.500s", a.status, a.body)
	}
	rows, err := p.Rows(a.body)
	if err != nil {
		return fmt.Errorf("%w: %.500s", err, a.body)
	}
	for _, r := range rows {
		whole := len(r.Keys) == len(p.Splits)
		for i, values := range r.Values {
			whole = whole && len(values) > 0 && (p.Metrics[i].Agg != "count" || values[0] > 0)
		}
		if whole {
			return nil
		}
	}
	return errors.New("nothing to show: " + string(a.body[:min(len(a.body), 500)]))
}
