package limit

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"time"

	"weir/elastic/api"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/conf"
)

// A unit is what a limit counts.
type unit uint8

const (
	requests unit = iota
	requestBytes
	responseBytes
	bulkDocs
	searches
	took
)

// units are the units by their names in the configuration.
var units = map[string]unit{
	"requests": requests, "request_bytes": requestBytes, "response_bytes": responseBytes, "bulk_docs": bulkDocs, "searches": searches, "took": took,
}

// quotaUnits are the names of units in RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-10 section 5.1); requests need
// none. Those that are registered nowhere have a prefix of ours.
var quotaUnits = [...]string{"", "content-bytes", "content-bytes", "weir-documents", "weir-searches", "weir-milliseconds"}

// A moment is when it is known what a request costs.
type moment uint8

const (
	never    moment = iota // it costs nothing
	free                   // it costs nothing, but passes only while the budget is not used up
	atOnce                 // from its head
	withBody               // when its body has been read
	after                  // when it has been answered
)

// price tells what one request counts in the unit, before the limit's cost, and when that is known.
func (u unit) price(x *flows.Exchange) (int64, moment) {
	switch u {
	case requestBytes:
		n := x.Request.Body.Len()
		if x.Tracing {
			n = x.RequestBytes
		}
		if n < 0 {
			return 0, after
		}
		return n, atOnce
	case responseBytes, took:
		return 0, after
	case bulkDocs:
		if query.SourceOf(x.Call()) == query.InActions {
			return 1, withBody
		}
		switch x.Call().Name {
		case "index", "create", "update", "delete":
			return 1, atOnce
		}
		return 0, never
	case searches:
		switch call := x.Call(); {
		case query.SourceOf(call) == query.InSearches:
			return 1, withBody
		case call.Class == api.ClassSearch:
			return 1, atOnce
		}
		return 0, never
	}
	return 1, atOnce
}

// saysTook tells whether answers of an API begin with the field took. Those of others may be documents, which say there what
// whoever wrote them likes: GET /{index}/_source/{id}, and the lines of SQL in CSV.
func saysTook(name string) bool {
	switch name {
	case "search", "search_template", "scroll", "msearch", "msearch_template", "knn_search", "fleet.search", "fleet.msearch",
		"rollup.rollup_search", "search_application.search", "graph.explore",
		"bulk", "monitoring.bulk", "delete_by_query", "update_by_query", "reindex":
		return true
	}
	return false
}

// tookOf returns how many milliseconds a cluster worked on an exchange: what its answer says, at most how long that took to
// come, or else the latter. An answer that no cluster gave took none.
func tookOf(x *flows.Exchange) int64 {
	if x.Trace.Attempts == 0 || x.Trace.Outcome == flows.Hit || x.Trace.Outcome == flows.Shared {
		return 0
	}
	measured := int64((x.Trace.Upstream + time.Millisecond - 1) / time.Millisecond)
	if saysTook(x.Call().Name) && x.Response.Body.Buffered() && !x.Response.Header.Has("content-encoding") {
		if body, err := x.Response.Body.Bytes(math.MaxInt64); err == nil {
			if ms, ok := parseTook(body); ok {
				return min(ms, measured)
			}
		}
	}
	return measured
}

// parseTook reads the field took of an answer, which is the first one of those that have it.
func parseTook(body []byte) (int64, bool) {
	rest := bytes.TrimLeft(body[:min(len(body), 128)], " \t\r\n")
	for _, token := range [...]string{"{", `"took"`, ":"} {
		if len(rest) < len(token) || string(rest[:len(token)]) != token {
			return 0, false
		}
		rest = bytes.TrimLeft(rest[len(token):], " \t\r\n")
	}
	var ms int64
	i := 0
	for ; i < len(rest) && i < 15 && rest[i] >= '0' && rest[i] <= '9'; i++ {
		ms = 10*ms + int64(rest[i]-'0')
	}
	return ms, i > 0
}

// Costs say how much a request counts, by its API or its class: a number for all, or a mapping of names to numbers in which
// the API goes before its class and what is not named costs 1. 0 costs nothing.
type Costs struct {
	all    int64
	byAPI  map[string]int64
	prices []int64 // by number of API; nil for all alike
}

// mostCost bounds what one request may cost.
const mostCost = 1_000_000

// DecodeConf implements conf.Decoder.
func (c *Costs) DecodeConf(n *conf.Node, p *conf.Problems) {
	if n.Kind() != conf.Map {
		c.all = readCost(n, p)
		return
	}
	c.all, c.byAPI = 1, map[string]int64{}
	known := append(api.ClassNames(), api.Names()...)
	for _, name := range n.Keys() {
		if !slices.Contains(known, name) {
			q := p.Errorf(n.Get(name), "%q is neither an API nor a class of APIs", name)
			q.Suggestion, _ = conf.Nearest(name, known)
			continue
		}
		c.byAPI[name] = readCost(n.Get(name), p)
	}
	c.prices = make([]int64, api.Count)
	for id := range uint16(api.Count) {
		price := int64(1)
		for _, name := range []string{api.ClassOf(id).String(), api.Name(id)} {
			if named, ok := c.byAPI[name]; ok {
				price = named
			}
		}
		c.prices[id] = price
	}
}

func readCost(n *conf.Node, p *conf.Problems) int64 {
	cost := int64(1)
	before, _ := p.Count()
	conf.Decode(n, &cost, p)
	if now, _ := p.Count(); now == before && (cost < 0 || cost > mostCost) {
		p.Errorf(n, "a cost is between 0 and %d, found %d", mostCost, cost)
	}
	return min(max(cost, 0), mostCost)
}

// String returns the costs as the configuration writes them, and "" where there are none.
func (c Costs) String() string {
	if c.byAPI == nil {
		return conf.Amount{N: c.all}.String()
	}
	var parts []string
	for name, cost := range c.byAPI {
		parts = append(parts, name+": "+conf.Amount{N: cost}.String())
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ", ") + "}"
}

// TypeDoc implements conf.Documenter.
func (Costs) TypeDoc() (name, example string) { return "number or map of numbers", "2" }

// JSONSchema implements conf.Shaper.
func (Costs) JSONSchema() map[string]any {
	return map[string]any{"type": []string{"integer", "string", "object"}, "additionalProperties": map[string]any{"type": []string{"integer", "string"}}}
}

// of returns what x costs.
func (c *Costs) of(x *flows.Exchange) int64 {
	if c.prices == nil {
		return c.all
	}
	return c.prices[x.Call().ID]
}

// most returns the largest cost.
func (c *Costs) most() int64 {
	most := c.all
	for _, cost := range c.byAPI {
		most = max(most, cost)
	}
	return most
}
