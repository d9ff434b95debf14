package cache

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/generation"
	"weir/flows"
	"weir/internal/simtime"
)

// known answers the polls of a tracker for a cluster with the indices i and users.
type known struct{}

// Perform implements generation.Client.
func (known) Perform(req *http.Request) (*http.Response, error) {
	const index = `{"uuid":"u","shards":{"0":[{"routing":{"node":"n"},"seq_no":{"max_seq_no":1},"refresh":{"external_total":1}}]}}`
	w := httptest.NewRecorder()
	switch req.URL.Path {
	case "/_cluster/state/version":
		fmt.Fprint(w, `{"version":1,"state_uuid":"s"}`)
	case "/_cluster/state/metadata,nodes":
		fmt.Fprint(w, `{"metadata":{"indices":{"i":{},"users":{}}}}`)
	case "/_alias":
		fmt.Fprint(w, `{}`)
	case "/i/_stats/refresh":
		fmt.Fprintf(w, `{"_shards":{"failed":0},"indices":{"i":%s}}`, index)
	default:
		w.WriteHeader(404)
	}
	return w.Result(), nil
}

// What is written to an index that only the body of a search names is seen by the next search.
func TestWritesToIndicesThatAreLookedUp(t *testing.T) {
	const body = `{"explain":true,"query":{"terms":{"user":{"index":"users","id":"1","path":"ids"}}}}`
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{cache: {ttl: 1h}}, {node: {}}]}]`)
		tracker := generation.New(generation.Options{Cluster: "c", Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler)})
		defer tracker.Close()
		defer tracker.Use(known{})()
		answer := multiNode(nil)
		r.node = func(x *flows.Exchange, call int64) error {
			if a := flows.Stamps.Get(x); a != nil {
				a.Fill(tracker)
			}
			c := x.Call()
			if c.Name == "index" {
				reply(x, 200, `{"_index":"users","result":"updated"}`)
				tracker.Note(&generation.Write{
					Call: c, Method: x.Request.Method, Query: x.Request.Query, Status: 200, Answer: []byte(bodyOf(x)),
				})
				return nil
			}
			return answer(x, call)
		}
		r.ask("/i/_search", `{}`) // by which it is known what the path stands for
		synctest.Wait()
		<-time.After(time.Millisecond)
		r.ask("/i/_search", body)
		wantHit(t, r.ask("/i/_search", body))
		<-time.After(time.Millisecond)
		r.ask("/users/_doc?refresh=true", `{}`)
		wantStatus(t, r.ask("/i/_search", body), "weir; fwd=stale; stored")
		wantHit(t, r.ask("/_msearch", lines(head, body)))
		<-time.After(time.Millisecond)
		r.ask("/users/_doc?refresh=true", `{}`)
		wantStatus(t, r.ask("/_msearch", lines(head, body)), "weir; fwd=miss; stored")
		<-time.After(time.Millisecond)
		r.ask("/users/_doc?refresh=true", `{}`)
		wantStatus(t, r.ask("/i/_search", body), "weir; fwd=stale; stored")
		wantHit(t, r.ask("/i/_search", `{}`)) // what does not look there is left alone
	})
}
