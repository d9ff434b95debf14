// Command upstream is the node behind the gateways in the benchmark: it answers searches with valid answers of a chosen
// size, and the calls with which a gateway looks for nodes and their health. It does no work, so that what is measured is
// the gateway.
//
//	upstream ADDRESS
//
// A search in the index size-N is answered with N bytes. GET /_bench/searches is answered with the number of searches so
// far, which tells a cached answer from a forwarded one.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

// maxSize bounds the answers that a path can ask for.
const maxSize = 16 << 20

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: upstream ADDRESS")
		os.Exit(2)
	}
	u := &upstream{address: os.Args[1]}
	s := fasthttp.Server{Handler: u.serve, NoDefaultServerHeader: true, NoDefaultDate: true} // as a node
	fmt.Fprintln(os.Stderr, s.ListenAndServe(u.address))
	os.Exit(1)
}

type upstream struct {
	address  string
	searches atomic.Int64
	answers  sync.Map // path of a search (string) → answer ([]byte)
}

func (u *upstream) serve(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.Set("X-Elastic-Product", "Elasticsearch")
	ctx.SetContentType("application/json; charset=UTF-8")
	path := ctx.Path()
	switch {
	case bytes.HasSuffix(path, []byte("/_search")):
		answer, err := u.search(string(path))
		if err != nil {
			ctx.SetStatusCode(fasthttp.StatusBadRequest)
			ctx.SetBodyString(`{"error":` + strconv.Quote(err.Error()) + `,"status":400}`)
			return
		}
		u.searches.Add(1)
		ctx.SetBody(answer)
	case string(path) == "/_bench/searches":
		ctx.SetBodyString(strconv.FormatInt(u.searches.Load(), 10))
	case string(path) == "/":
		ctx.SetBodyString(`{"name":"n1","cluster_name":"bench","cluster_uuid":"YmVuY2g","version":{"number":"7.17.28",` +
			`"build_flavor":"default","lucene_version":"8.11.3","minimum_wire_compatibility_version":"6.8.0"},` +
			`"tagline":"You Know, for Search"}`)
	case bytes.HasPrefix(path, []byte("/_nodes")):
		ctx.SetBodyString(`{"_nodes":{"total":1,"successful":1,"failed":0},"cluster_name":"bench","nodes":{"node-1":{` +
			`"name":"n1","transport_address":"127.0.0.1:1","host":"127.0.0.1","ip":"127.0.0.1","version":"7.17.28",` +
			`"roles":["data","ingest","master"],"http":{"bound_address":["` + u.address + `"],"publish_address":"` +
			u.address + `","max_content_length_in_bytes":104857600}}}}`)
	case bytes.HasPrefix(path, []byte("/_cluster/health")):
		ctx.SetBodyString(`{"cluster_name":"bench","status":"green","timed_out":false,"number_of_nodes":1,` +
			`"number_of_data_nodes":1,"active_primary_shards":1,"active_shards":1}`)
	default:
		ctx.SetStatusCode(fasthttp.StatusNotFound)
		ctx.SetBodyString(`{"error":"not found","status":404}`)
	}
}

// search returns the answer to a search in /size-N, made once.
func (u *upstream) search(path string) ([]byte, error) {
	if answer, ok := u.answers.Load(path); ok {
		return answer.([]byte), nil
	}
	index := strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/_search")
	size, err := strconv.Atoi(strings.TrimPrefix(index, "size-"))
	if err != nil || size > maxSize {
		return nil, fmt.Errorf("search in %q: want an index size-N with N up to %d", index, maxSize)
	}
	head := `{"took":1,"timed_out":false,"_shards":{"total":1,"successful":1,"skipped":0,"failed":0},` +
		`"hits":{"total":{"value":1,"relation":"eq"},"max_score":1.0,"hits":[{"_index":"` + index +
		`","_id":"1","_score":1.0,"_source":{"text":"`
	tail := `"}}]}}`
	fill := size - len(head) - len(tail)
	if fill < 0 {
		return nil, fmt.Errorf("search in %q: an answer has at least %d bytes", index, len(head)+len(tail))
	}
	answer, _ := u.answers.LoadOrStore(path, []byte(head+strings.Repeat("x", fill)+tail))
	return answer.([]byte), nil
}
