package limit

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"weir/elastic/api"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/wire"
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
		switch x.Call().Name {
		case "bulk", "streaming_bulk":
			return 1, withBody
		case "index", "create", "update", "delete":
			return 1, atOnce
		}
		return 0, never
	case searches:
		switch call := x.Call(); {
		case call.Name == "msearch", call.Name == "msearch_template":
			return 1, withBody
		case call.Class == api.ClassSearch:
			return 1, atOnce
		}
		return 0, never
	}
	return 1, atOnce
}

// weigh reads the request's body and counts what is in it: the documents of a bulk, the searches of an _msearch. A body of
// a coding that nodes do not know counts as one.
func weigh(x *flows.Exchange) (int64, error) {
	body, err := x.Request.Body.Bytes(math.MaxInt64)
	if err != nil {
		return 0, err
	}
	searches := x.Call().Class == api.ClassSearch
	coding := x.Request.Header.Get("content-encoding")
	switch {
	case len(coding) == 0, wire.EqualFold(coding, "identity"):
		c := lineCounter{searches: searches}
		_, _ = c.Write(body) // never fails
		return c.count(), nil
	case wire.EqualFold(coding, "gzip"), wire.EqualFold(coding, "x-gzip"):
		return weighGzip(body, searches), nil
	}
	return 1, nil
}

// mostInflated is how much of a compressed body is looked at. Nodes take no bulk that is larger.
const mostInflated = 256 << 20

// weighGzip counts what is in a compressed body, as far as it can be read.
func weighGzip(body []byte, searches bool) int64 {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return 1
	}
	c := lineCounter{searches: searches}
	_, _ = io.Copy(&c, io.LimitReader(z, mostInflated)) // the node will say what is wrong with it
	return c.count()
}

// verbRoom is how much of an action's line is kept to read its verb.
const verbRoom = 64

// A lineCounter counts actions or searches by their lines. It keeps no more than the beginning of one line.
type lineCounter struct {
	searches bool
	lines    int64 // other than blank ones between actions
	actions  int64
	source   bool // the next line belongs to the action before
	begin    [verbRoom]byte
	n        int // of begin
	blank    bool
	open     bool // a line has begun
}

// Write counts the lines that end in p. It never fails.
func (c *lineCounter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		if !c.open {
			c.open, c.blank, c.n = true, true, 0
		}
		c.n += copy(c.begin[c.n:], line)
		c.blank = c.blank && len(bytes.TrimSpace(line)) == 0
		if ended {
			c.end()
		}
		p = rest
	}
	return total, nil
}

func (c *lineCounter) end() {
	c.open = false
	if c.searches {
		c.lines++
		return
	}
	switch {
	case c.source:
		c.source = false
	case !c.blank:
		c.actions++
		c.source = !deletes(c.begin[:c.n])
	}
}

// count returns what was counted, at least 1. A last line without an end counts.
func (c *lineCounter) count() int64 {
	if c.open && !c.blank {
		c.end()
	}
	if c.searches {
		return max(1, (c.lines+1)/2)
	}
	return max(1, c.actions)
}

// deletes tells whether the line of an action that begins so is that of a delete, which has no second line.
func deletes(begin []byte) bool {
	begin, _ = bytes.CutPrefix(begin, []byte("\xef\xbb\xbf"))
	begin, ok := bytes.CutPrefix(bytes.TrimLeft(begin, " \t"), []byte{'{'})
	return ok && bytes.HasPrefix(bytes.TrimLeft(begin, " \t"), []byte(`"delete"`))
}

// tookOf returns how many milliseconds a cluster worked on an exchange: what its answer says, or else how long it took to
// come. An answer that no cluster gave took none.
func tookOf(x *flows.Exchange) int64 {
	if x.Trace.Attempts == 0 || x.Trace.Outcome == flows.Hit || x.Trace.Outcome == flows.Shared {
		return 0
	}
	if x.Response.Body.Buffered() && !x.Response.Header.Has("content-encoding") {
		if body, err := x.Response.Body.Bytes(math.MaxInt64); err == nil {
			if ms, ok := parseTook(body); ok {
				return ms
			}
		}
	}
	return int64((x.Trace.Upstream + time.Millisecond - 1) / time.Millisecond)
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
	for _, name := range n.Keys() {
		if !knownCall(name) {
			q := p.Errorf(n.Get(name), "%q is neither an API nor a class of APIs", name)
			q.Suggestion, _ = conf.Nearest(name, callNames())
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

func knownCall(name string) bool {
	_, known := api.ID(name)
	return known || name == api.Name(0) || slices.Contains(classNames(), name)
}

func classNames() []string {
	var names []string
	for c := api.ClassUnknown; c <= api.ClassAdmin; c++ {
		names = append(names, c.String())
	}
	return names
}

func callNames() []string {
	names := classNames()
	for id := range uint16(api.Count) {
		names = append(names, api.Name(id))
	}
	return names
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
