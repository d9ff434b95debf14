package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// recordsIndex is where the classic file sends the records of requests.
const recordsIndex = "gateway_requests"

// A record is what the tests read of a record of a request.
type record struct {
	URL  struct{ Path, Query string }
	HTTP struct {
		Response struct {
			Status int `json:"status_code"`
		}
	}
}

// mark returns the value of the parameter preference, which the tests use to know requests again: it is part of the cache's
// key, and nodes take any value.
func (r *record) mark() string {
	q, err := url.ParseQuery(r.URL.Query)
	if err != nil {
		return "?"
	}
	return q.Get("preference")
}

// readRecords returns the records that are in the cluster, by mark.
func readRecords(ctx context.Context, client *http.Client, cluster string) (map[string][]record, error) {
	a, err := ask(ctx, client, http.MethodPost, cluster+"/"+recordsIndex+"/_refresh", "")
	if err != nil || a.status == http.StatusNotFound {
		return nil, err // no record has come yet
	}
	const search = `{"size":10000,"track_total_hits":true,"_source":["url","http"]}`
	a, err = ask(ctx, client, http.MethodPost, cluster+"/"+recordsIndex+"/_search", search)
	if err != nil {
		return nil, err
	}
	var found struct {
		Hits struct {
			Total struct{ Value int }
			Hits  []struct {
				Source record `json:"_source"`
			}
		}
	}
	if err := json.Unmarshal(a.body, &found); err != nil || a.status != http.StatusOK {
		return nil, fmt.Errorf("search for records: status %d, %w: %.300s", a.status, err, a.body)
	}
	if found.Hits.Total.Value > len(found.Hits.Hits) {
		return nil, fmt.Errorf("there are %d records, too many for one search", found.Hits.Total.Value)
	}
	marks := map[string][]record{}
	for _, h := range found.Hits.Hits {
		marks[h.Source.mark()] = append(marks[h.Source.mark()], h.Source)
	}
	return marks, nil
}

// deleteRecords removes the records of earlier tests from a shared cluster.
func deleteRecords(tb testing.TB, client *http.Client, cluster string) {
	tb.Helper()
	if _, err := ask(tb.Context(), client, http.MethodDelete, cluster+"/"+recordsIndex, ""); err != nil {
		tb.Fatal(err)
	}
}

// awaitRecords waits until each request that was answered before a time has its record and the gateways have no more to
// deliver, and checks then that no request has two.
func awaitRecords(tb testing.TB, cluster string, shots []shot, mark func(n int) string, before time.Time, gateways ...*gateway) {
	tb.Helper()
	client := gateways[0].client
	var wanted []shot
	for _, s := range shots {
		if s.err == nil && s.ended.Before(before) {
			wanted = append(wanted, s)
		}
	}
	if len(wanted) == 0 {
		tb.Error("no request was answered early enough: the test shows nothing")
	}
	until(tb, time.Minute, func(ctx context.Context) error {
		marks, err := readRecords(ctx, client, cluster)
		if err != nil {
			return err
		}
		missing := 0
		var first shot
		for _, s := range wanted {
			if len(marks[mark(s.n)]) == 0 {
				if missing++; missing == 1 {
					first = s
				}
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d requests have no record; number %d was answered %s before the time",
				missing, len(wanted), first.n, before.Sub(first.ended))
		}
		return nil
	})
	for _, g := range gateways {
		g.awaitEmptyQueue()
	}
	marks, err := readRecords(tb.Context(), client, cluster)
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range shots {
		if n := len(marks[mark(s.n)]); n > 1 {
			tb.Errorf("request %d has %d records", s.n, n)
		}
	}
}

// awaitEmptyQueue waits until the gateway has delivered all of its records.
func (g *gateway) awaitEmptyQueue() {
	g.tb.Helper()
	until(g.tb, time.Minute, func(context.Context) error {
		m := g.metrics()
		if n := m.sum("weir_queue_blocks") + m.sum("weir_queue_open_records"); n > 0 {
			return fmt.Errorf("%v blocks and records are in the queues", n)
		}
		return nil
	})
}
