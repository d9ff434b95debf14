package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/elastic/estest"
)

// A node's 429 reaches the client as it is and costs the node no further call, unless retries may repeat it; it is told
// apart from the gateway's own in the answer, the metrics and the records (elastic/kibana#42134, rsyslog/rsyslog#4757,
// fluent/fluent-bit#731).
func TestRefusalsOfNodesAreNotTheGateways(t *testing.T) {
	const requests, pass = 30, 20
	f := func(name, retry string, fault estest.Fault) {
		t.Run(name, func(t *testing.T) {
			es := estest.New(t, estest.Options{})
			calls := 0
			es.Script(func(c *estest.Call) *estest.Fault {
				if c.Path != "/i/_search" {
					return nil
				}
				if calls++; calls%2 == 0 {
					return nil
				}
				return &fault
			})
			client := newClient(t)
			must(t, client, http.MethodPut, es.URL()+"/i", "")
			g := newPlainSite(t, es.URL(), fmt.Sprintf("      - rate_limit: {limits: [{name: ours, key: [global], rate: 1/h, burst: %d, when: {api: search}}]}\n", pass),
				swap("default_flow: main}", "default_flow: main, tracing_flow: log}"),
				swap("flow:\n", "flow:\n  - {name: log, filter: [{request_logging: {queue_name: requests}}]}\n"),
				swap("elasticsearch:\n  -", "pipeline:\n  - {name: records, json_indexing: {index_name: "+recordsIndex+", elasticsearch: default, input_queue: requests}}\nelasticsearch:\n  -"),
				swap(es.URL()+"}", es.URL()+retry+"}"),
			).start()

			answers := map[string]int{}
			for range requests {
				a := g.get("/i/_search")
				kind := fmt.Sprint(a.status)
				switch {
				case a.status == http.StatusTooManyRequests && a.header.Get("X-Weir-Error") != "":
					kind += " ours"
				case a.status == http.StatusTooManyRequests:
					kind += " the node's"
					if !strings.Contains(string(a.body), `"type":"es_rejected_execution_exception"`) || a.header.Get("Retry-After") != strings.TrimPrefix(strings.Join(fault.Header, ""), "Retry-After: ") {
						t.Fatalf("a node's refusal is passed on as %s with %v", a.body, a.header)
					}
				}
				answers[kind]++
			}
			if answers["200"] != pass/2 || answers["429 the node's"] != pass/2 || answers["429 ours"] != requests-pass {
				t.Errorf("answers are %v", answers)
			}
			if n := es.Count("/i/_search"); n != pass {
				t.Errorf("%d calls reached the node, want the %d that clients made and the gateway let pass", n, pass)
			}
			m := g.metrics()
			if of := func(outcome string) float64 {
				return m.sum("weir_http_requests_total", `status="4xx"`, `outcome="`+outcome+`"`)
			}; of("upstream") != pass/2 || of("limited") != requests-pass {
				t.Errorf("metrics count %v refusals of nodes and %v of the gateway", of("upstream"), of("limited"))
			}
			until(t, 30*time.Second, func(ctx context.Context) error {
				return refusalsInRecords(ctx, client, es.URL(), pass/2, requests-pass)
			})
		})
	}
	f("no retries", ", retry: {max: 0}", estest.Fault{Status: 429})
	f("a wait too long for retries", "", estest.Fault{Status: 429, Header: []string{"Retry-After: 5"}})
}

// refusalsInRecords returns an error as long as there are not so many records of refusals by nodes and by the gateway.
func refusalsInRecords(ctx context.Context, client *http.Client, cluster string, nodes, gateway int) error {
	if a, err := ask(ctx, client, http.MethodPost, cluster+"/"+recordsIndex+"/_refresh", ""); err != nil || a.status != http.StatusOK {
		return fmt.Errorf("refresh: status %d, %w", a.status, err)
	}
	a, err := ask(ctx, client, http.MethodPost, cluster+"/"+recordsIndex+"/_search", `{"size":100}`)
	if err != nil {
		return err
	}
	var found struct {
		Hits struct {
			Hits []struct {
				Source struct {
					HTTP struct {
						Response struct {
							Status int `json:"status_code"`
						}
					}
					Weir struct{ Outcome, Limit string }
				} `json:"_source"`
			}
		}
	}
	if err := json.Unmarshal(a.body, &found); err != nil {
		return fmt.Errorf("read records: %w: %.300s", err, a.body)
	}
	got := map[string]int{}
	for _, h := range found.Hits.Hits {
		if s := h.Source; s.HTTP.Response.Status == http.StatusTooManyRequests {
			got[s.Weir.Outcome+" "+s.Weir.Limit]++
		}
	}
	if got["upstream "] != nodes || got["limited ours"] != gateway {
		return fmt.Errorf("records of refusals are %v, want %d of nodes and %d of the gateway", got, nodes, gateway)
	}
	return nil
}
