package e2e

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"weir/internal/searchnode"
)

// makeTwins makes the indices of both sides anew.
func makeTwins(tb testing.TB, client *http.Client, cluster string) {
	tb.Helper()
	var both sync.WaitGroup
	for _, letter := range []string{"a", "b"} {
		both.Go(func() { makeTwin(tb, client, cluster, letter) })
	}
	both.Wait()
}

// makeTwin makes the index and the aliases of a side, with some documents.
func makeTwin(tb testing.TB, client *http.Client, cluster, letter string) {
	tb.Helper()
	for _, index := range []string{"twin-" + letter, "made-" + letter, "other-" + letter} {
		if _, err := ask(tb.Context(), client, http.MethodDelete, cluster+"/"+index, ""); err != nil {
			tb.Fatal(err)
		}
	}
	must(tb, client, http.MethodPut, cluster+"/twin-"+letter, `{"settings":{"number_of_shards":1,"number_of_replicas":0,"refresh_interval":-1},
		"aliases":{"twin-`+letter+`-alias":{}},"mappings":{"properties":{"n":{"type":"long"},"kind":{"type":"keyword"},"text":{"type":"text"},
		"at":{"type":"date"},"place":{"type":"geo_point"},"hidden":{"type":"keyword","doc_values":false}}}}`)
	var bulk strings.Builder
	for i := range 8 {
		fmt.Fprintf(&bulk, "{\"index\":{\"_id\":\"%d\"}}\n", i)
		fmt.Fprintf(&bulk, "{\"n\":%d,\"kind\":\"k%d\",\"text\":\"é \\u00e9 quick fox %d\",\"big\":9007199254740993,\"at\":\"2026-01-0%dT00:00:00Z\",\"place\":\"1,%d\"}\n", i, i%3, i, i+1, i)
	}
	must(tb, client, http.MethodPost, cluster+"/twin-"+letter+"/_bulk?refresh=true", bulk.String())
}

// parameters are what stands in the paths of the table's APIs; what is not named here is "x".
var parameters = map[string]string{
	"{index}": "twin-~", "{target}": "made-~", "{new_index}": "made-~", "{target_index}": "made-~", "{alias}": "twin-~-alias", "{dest}": "made-~", "{source}": "twin-~",
	"{id}": "1", "{name}": "made-~", "{type}": "_doc", "{field}": "n", "{fields}": "n,kind", "{node_id}": "_local", "{node_id_or_metric}": "_local",
	"{metric}": "_all", "{index_metric}": "docs", "{stat}": "docs", "{task_id}": "AAAAAAAAAAAAAAAAAAAAAA:1", "{block}": "write", "{context}": "score",
	"{thread_pool_patterns}": "search", "{attribute}": "n", "{x}": "0", "{y}": "0", "{zoom}": "0", "{repository}": "made-~", "{snapshot}": "made-~",
}

// names of their own for APIs whose {name} is another thing than a new name.
var parameterOf = map[string]map[string]string{
	"cat.aliases": {"{name}": "twin-~-alias"}, "indices.get_alias": {"{name}": "twin-~-alias"}, "indices.exists_alias": {"{name}": "twin-~-alias"},
	"indices.resolve_index": {"{name}": "twin-~*"}, "indices.rollover": {"{alias}": "twin-~-alias"}, "cluster.state": {"{metric}": "metadata"},
	"put_script": {"{id}": "made-~"}, "get_script": {"{id}": "made-~"}, "delete_script": {"{id}": "made-~"}, "ingest.put_pipeline": {"{id}": "made-~"},
	"ingest.get_pipeline": {"{id}": "made-~"}, "ingest.delete_pipeline": {"{id}": "made-~"}, "search_pipeline.put": {"{id}": "made-~"},
	"nodes.info": {"{metric}": "http"}, "nodes.stats": {"{metric}": "indices"}, "nodes.usage": {"{metric}": "_all"}, "indices.stats": {"{metric}": "docs"},
}

const (
	matchAll  = `{"query":{"match_all":{}},"sort":["n"]}`
	bulkLines = "{\"index\":{\"_index\":\"twin-~\",\"_id\":\"b1\"}}\n{\"n\":101}\n{\"create\":{\"_index\":\"twin-~\",\"_id\":\"1\"}}\n{\"n\":102}\n" +
		"{\"delete\":{\"_index\":\"twin-~\",\"_id\":\"none\"}}\n{\"update\":{\"_index\":\"twin-~\",\"_id\":\"2\"}}\n{\"doc\":{\"n\":103}}\n"
	template = `{"index_patterns":["made-~-*"],"template":{"settings":{"number_of_shards":1}}}`
)

// bodies are what APIs are sent that want one.
var bodies = map[string]string{
	"search": matchAll, "count": `{"query":{"term":{"kind":"k1"}}}`, "explain": `{"query":{"term":{"kind":"k1"}}}`, "indices.validate_query": `{"query":{"term":{"kind":"k1"}}}`,
	"msearch": "{\"index\":\"twin-~\"}\n" + matchAll + "\n{\"index\":\"nothing-here\"}\n{}\n", "mget": `{"docs":[{"_index":"twin-~","_id":"1"},{"_index":"twin-~","_id":"none"}]}`,
	"bulk": bulkLines, "index": `{"n":7,"text":"é"}`, "create": `{"n":8}`, "update": `{"doc":{"n":9}}`,
	"delete_by_query": `{"query":{"term":{"n":5}}}`, "update_by_query": `{"query":{"term":{"n":4}}}`, "reindex": `{"source":{"index":"twin-~"},"dest":{"index":"made-~"}}`,
	"termvectors": `{"fields":["text"]}`, "mtermvectors": `{"docs":[{"_index":"twin-~","_id":"1","fields":["text"]}]}`, "indices.analyze": `{"analyzer":"standard","text":"Two Words"}`,
	"search_template": `{"source":{"query":{"term":{"kind":"{{k}}"}}},"params":{"k":"k1"}}`, "render_search_template": `{"source":{"query":{"term":{"kind":"{{k}}"}}},"params":{"k":"k1"}}`,
	"msearch_template": "{\"index\":\"twin-~\"}\n{\"source\":\"{\\\"query\\\":{\\\"match_all\\\":{}},\\\"sort\\\":[\\\"n\\\"]}\"}\n",
	"rank_eval":        `{"requests":[{"id":"q","request":{"query":{"match":{"text":"fox"}}},"ratings":[{"_index":"twin-a","_id":"1","rating":1}]}],"metric":{"precision":{"k":3,"relevant_rating_threshold":1}}}`,
	"scroll":           `{"scroll_id":"c2Nyb2xs"}`, "clear_scroll": `{"scroll_id":["c2Nyb2xs"]}`, "put_script": `{"script":{"lang":"mustache","source":"{\"query\":{\"match_all\":{}}}"}}`,
	"indices.create": `{"settings":{"number_of_shards":1,"number_of_replicas":0}}`, "indices.put_mapping": `{"properties":{"added":{"type":"keyword"}}}`,
	"indices.put_settings": `{"index":{"refresh_interval":"30s"}}`, "indices.update_aliases": `{"actions":[{"add":{"index":"twin-~","alias":"other-~"}}]}`,
	"indices.put_template": `{"index_patterns":["made-~-*"],"order":1}`, "indices.put_index_template": template, "indices.simulate_template": template,
	"indices.simulate_index_template": template, "cluster.put_component_template": `{"template":{"settings":{"number_of_shards":1}}}`,
	"ingest.put_pipeline": `{"processors":[]}`, "ingest.simulate": `{"pipeline":{"processors":[]},"docs":[{"_index":"i","_id":"1","_source":{"n":1}}]}`,
	"cluster.put_settings": `{"transient":{"cluster.routing.allocation.node_concurrent_recoveries":3}}`, "cluster.reroute": `{"commands":[]}`,
	"cluster.allocation_explain": `{"index":"twin-~","shard":0,"primary":true}`, "indices.rollover": `{"conditions":{"max_docs":1}}`,
	"indices.shrink": `{"settings":{"index.number_of_replicas":0}}`, "snapshot.create_repository": `{"type":"fs","settings":{"location":"/nowhere"}}`,
	"scripts_painless_execute": `{"script":{"source":"1+1"}}`, "delete_pit": `{"pit_id":["eA=="]}`, "search_mvt": `{}`,
	"terms_enum": `{"field":"kind"}`,
}

// queries are parameters without which an answer is long, slow or another each time.
var queries = map[string]string{
	"nodes.hot_threads": "interval=1ms&snapshots=1", "field_caps": "fields=*", "search": "pretty", "mget": "realtime=true", "create_pit": "keep_alive=1m",
	"cluster.health": "timeout=1s", "indices.forcemerge": "max_num_segments=1",
}

// looseAPIs answer with measurements, or with a list of what the node does at this moment.
func looseAPI(name string) bool {
	for _, prefix := range []string{
		"cat.", "nodes.info", "nodes.usage", "cluster.stats", "cluster.state", "cluster.health", "indices.stats", "indices.field_usage_stats",
		"indices.segments", "indices.recovery", "indices.shard_stores", "list.", "indices.get_settings", "indices.get", "cluster.allocation_explain", "cluster.pending_tasks", "cluster.reroute",
		"reindex", "delete_by_query", "update_by_query",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// apiProbes are a request for each line of the table of APIs that is about the engine, those that it does not know included:
// what nodes say then is part of what they say.
func apiProbes(t *testing.T, engine string) (probes []probe) {
	text, err := os.ReadFile("../../elastic/api/apis.tsv")
	if err != nil {
		t.Fatal(err)
	}
	type line struct{ method, path, api, engines, class string }
	var lines []line
	for l := range strings.Lines(string(text)) {
		// EO is both engines, T the typed paths that Elasticsearch 7 still has.
		words := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if strings.HasPrefix(l, "#") || len(words) < 6 || !strings.ContainsAny(words[3], map[string]string{searchnode.OpenSearch2: "O", searchnode.Elasticsearch7: "ET"}[engine]) {
			continue
		}
		lines = append(lines, line{words[0], words[1], words[2], words[3], words[4]})
	}
	if len(lines) < 500 {
		t.Fatalf("the table of APIs has %d lines", len(lines))
	}
	// First what puts things there, then what reads, then what changes, then what deletes.
	rank := func(l line) int {
		switch {
		case l.method == http.MethodDelete:
			return 4
		case strings.Contains(l.api, "put_") || strings.HasSuffix(l.api, "create_repository"):
			return 0
		case l.class == "inspect" || l.class == "search" || l.class == "cursor":
			return 1
		case l.class == "write":
			return 2
		}
		return 3
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(rank(a), rank(b)) })
	for _, l := range lines {
		path := l.path
		body := bodies[l.api]
		if l.api == "rank_eval" && strings.Contains(l.path, "{index}") {
			body = strings.ReplaceAll(body, "twin-a", "twin-~")
		}
		for _, name := range pathParameters(path) {
			value, ok := parameterOf[l.api][name]
			if !ok {
				value, ok = parameters[name]
			}
			if !ok {
				value = "x"
			}
			path = strings.Replace(path, name, value, 1)
		}
		if q := queries[l.api]; q != "" {
			path += "?" + q
		}
		p := probe{
			kind: "APIs of the table",
			name: fmt.Sprintf("%s: %s %s", l.api, l.method, path), loose: looseAPI(l.api), momentary: momentary(l.api),
			changes: rank(l) >= 3 && strings.Contains(l.path, "{index}"),
		}
		p.raw = []string{request(l.method, path, body)}
		probes = append(probes, p)
	}
	return probes
}

// momentary tells whether what an API answers is another from one call to the next.
func momentary(api string) bool {
	return api == "nodes.hot_threads" || api == "nodes.stats" || strings.HasPrefix(api, "tasks.") || api == "cat.tasks"
}

func pathParameters(path string) (names []string) {
	for s := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(s, "{") {
			names = append(names, s)
		}
	}
	return names
}

// request writes a request as clients do: with a media type and a length if it has a body.
func request(method, target, body string, fields ...string) string {
	mediaType := "application/json"
	if strings.Contains(body, "}\n{") {
		mediaType = "application/x-ndjson"
	}
	text := method + " " + target + " HTTP/1.1\r\nHost: node.test:9200\r\n"
	for _, f := range fields {
		text += f + "\r\n"
		if strings.HasPrefix(strings.ToLower(f), "content-type:") {
			mediaType = ""
		}
	}
	if body != "" {
		if mediaType != "" {
			text += "Content-Type: " + mediaType + "\r\n"
		}
		length := strconv.Itoa(len(body))
		if strings.Contains(body, "@ID@") {
			length = "@LENGTH@"
		}
		text += "Content-Length: " + length + "\r\n"
	}
	return text + "\r\n" + body
}

func gzipped(body string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write([]byte(body)) // to memory
	_ = w.Close()
	return out.String()
}

// oddProbes are requests that some proxy breaks: paths, queries, framing, codings, media types, methods, fields.
func oddProbes(engine string) (probes []probe) {
	kind := "paths and queries"
	add := func(name string, raw ...string) *probe {
		probes = append(probes, probe{kind: kind, name: name, raw: raw})
		return &probes[len(probes)-1]
	}
	for _, target := range oddTargets {
		add("path", request("GET", target, ""))
	}
	for _, target := range []string{"/twin-~/_doc/orders%2F17", "/twin-~/_doc/a+b%20c%25d", "/twin-~/_doc/%E2%82%AC", "/twin-~/_doc/a;v=1", "/twin-~/_doc/..%2Fx"} {
		add("path: written and read", request("PUT", target, `{"n":1}`), request("GET", target, ""), request("HEAD", target, ""), request("DELETE", target, ""))
	}

	const search = "/twin-~/_search"
	kind = "methods"
	for _, target := range []string{"/", "/twin-~", "/twin-~/_doc/1", "/twin-~/_doc/none", "/none", search, "/_nodes/http", "/_cluster/health", "/twin-~/_alias/twin-~-alias", "/_bulk"} {
		add("method HEAD", request("HEAD", target, ""))
		add("method OPTIONS", request("OPTIONS", target, ""))
		add("method DELETE of what may be there", request("DELETE", target+"-none", ""))
	}
	add("method PATCH", request("PATCH", "/twin-~/_doc/1", `{}`))
	add("method TRACE", request("TRACE", "/twin-~/_doc/1", ""))
	add("method GET where only others are", request("GET", "/_aliases/x", ""), request("GET", "/_reindex", ""), request("GET", "/twin-~/_update/1", ""))
	add("no length and no body", request("POST", "/twin-~/_refresh", ""), request("PUT", "/made-~", ""), request("DELETE", "/made-~", ""))

	// Bodies, and what is said of them.
	kind = "bodies and media types"
	add("GET with a body", request("GET", search, `{"query":{"term":{"n":1}}}`), request("GET", search, `{"query":{"term":{"n":2}}}`))
	add("DELETE with a body", request("DELETE", "/_search/scroll", `{"scroll_id":["c2Nyb2xs"]}`))
	add("HEAD with a body", request("HEAD", search, `{"query":{"term":{"n":1}}}`))
	for _, body := range []string{
		`{`, `{"query":{"none":{}}}`, `{"query":`, `[]`, `{"size":1,"size":2}`, `{"size":"x"}`, `nothing`, "\xef\xbb\xbf{}", "{\"query\":{\"term\":{\"kind\":\"\xff\"}}}", " \n{}\n ",
		`{"query":{"term":{"big":9007199254740993}}}`, `{"query":{"term":{"n":1e0}}}`, `{"query":{"range":{"n":{"gte":-0.0,"lt":3.000}}},"sort":[{"n":"desc"}]}`,
		`{"query":{"query_string":{"query":"/*"}}}`, `{"aggs":{"k":{"terms":{"field":"kind"},"aggs":{"m":{"max":{"field":"n"}}}}},"size":0}`,
		`{"query":{"term":{"hidden":"x"}},"sort":["hidden"]}`, `{"from":20000,"size":1}`, `{"query":{"match":{"text":"é fox"}},"highlight":{"fields":{"text":{}}}}`,
		`{"query":{"geo_distance":{"distance":"300km","place":"1,1"}},"sort":["n"]}`, `{"_source":false,"docvalue_fields":["at","n"],"sort":["n"]}`, `{"suggest":{"s":{"text":"fxo","term":{"field":"text"}}}}`,
		`{"profile":false,"explain":true,"query":{"term":{"n":1}}}`, `{"slice":{"id":0,"max":2},"sort":["n"]}`, `{"search_after":[3],"sort":["n"],"size":2}`, `{"collapse":{"field":"kind"},"sort":["n"]}`,
	} {
		add("body of a search", request("POST", search, body))
	}
	add("long numbers, repeated members and escapes", request("PUT", "/twin-~/_doc/odd?refresh=true", `{"big":742241735434043391,"f":1.0,"e":1e2,"z":-0,"d":0.1000,"u":"\u00e9\/","a":1,"a":1}`),
		request("PUT", "/twin-~/_doc/odd?refresh=true", `{ "big":742241735434043391 ,"f":1.0,"e":1e2,"z":-0,"d":0.1000,"u":"\u00e9\/" }`),
		request("GET", "/twin-~/_doc/odd", ""), request("GET", "/twin-~/_source/odd", ""), request("GET", "/twin-~/_doc/odd?filter_path=_source", ""), request("GET", "/twin-~/_doc/odd?pretty", ""), request("DELETE", "/twin-~/_doc/odd?refresh=true", ""))
	for _, mediaType := range []string{
		"application/json", "application/json; charset=UTF-8", "APPLICATION/JSON", "application/json;charset=latin1", "application/x-ndjson", "application/x-www-form-urlencoded", "text/plain", "text/json", "application/xml",
		"application/vnd.elasticsearch+json; compatible-with=7", "application/vnd.elasticsearch+json; compatible-with=8", "application/vnd.elasticsearch+x-ndjson;compatible-with=7", "application/yaml",
		"application/cbor", "application/smile", "application/*", "nonsense", "",
	} {
		add("Content-Type "+mediaType, request("POST", "/twin-a/_search?filter_path=hits", `{"query":{"term":{"n":1}}}`, "Content-Type: "+mediaType))
		add("Content-Type of a bulk "+mediaType, request("POST", "/_bulk", bulkLines, "Content-Type: "+mediaType))
	}
	add("no Content-Type", "POST "+search+" HTTP/1.1\r\nHost: node.test\r\nContent-Length: 2\r\n\r\n{}")
	add("two Content-Types", request("POST", search, "{}", "Content-Type: application/json", "Content-Type: text/plain"))
	add("YAML", request("POST", "/twin-a/_search?filter_path=hits", "---\nquery:\n  term:\n    n: 1\n", "Content-Type: application/yaml"))
	for _, accept := range []string{
		"application/json", "application/yaml", "application/cbor", "application/smile", "text/plain", "text/html", "*/*", "application/vnd.elasticsearch+json; compatible-with=7", "application/vnd.elasticsearch+json;compatible-with=8",
		"application/json, text/plain;q=0.5", "nonsense", "",
	} {
		add("Accept "+accept, request("GET", "/_cat/aliases/twin-~-alias?v", "", "Accept: "+accept), request("GET", "/twin-~/_doc/1", "", "Accept: "+accept), request("GET", "/none/_doc/1", "", "Accept: "+accept))
	}
	for _, format := range []string{"format=json", "format=yaml", "format=cbor", "format=smile", "format=text", "format=none", "pretty", "pretty=false", "human", "error_trace=false", "filter_path=hits.hits._id,-hits.total", "filter_path=none&x=1", "flat_settings", "typed_keys", "rest_total_hits_as_int=true", "case=1", "source={%22size%22:1}&source_content_type=application/json"} {
		add("parameter "+format, request("GET", "/twin-a/_search?sort=n&filter_path=hits&"+format, ""), request("GET", "/twin-a?"+format, ""))
	}

	kind = "bulks"
	bulk := func(name, body string, fields ...string) {
		add("bulk: "+name, request("POST", "/twin-~/_bulk?refresh=true", body, append(fields, "Content-Type: application/x-ndjson")...))
	}
	const doc = "{\"index\":{\"_id\":\"l1\"}}\n{\"n\":1}"
	bulk("lines end with CRLF", strings.ReplaceAll(doc, "\n", "\r\n")+"\r\n")
	bulk("no line feed at the end", doc)
	bulk("two line feeds at the end", doc+"\n\n")
	bulk("an empty line", "{\"index\":{\"_id\":\"l1\"}}\n\n{\"n\":1}\n")
	bulk("delete alone", "{\"delete\":{\"_id\":\"l1\"}}\n")
	bulk("delete between", "{\"index\":{\"_id\":\"l1\"}}\n{\"n\":1}\n{\"delete\":{\"_id\":\"l1\"}}\n{\"index\":{\"_id\":\"l2\"}}\n{\"n\":\"delete\"}\n")
	bulk("unknown verb", "{\"upsert\":{\"_id\":\"l1\"}}\n{\"n\":1}\n")
	bulk("mapping error", "{\"index\":{\"_id\":\"l1\"}}\n{\"n\":\"x\"}\n{\"index\":{\"_id\":\"l3\"}}\n{\"n\":3}\n")
	bulk("empty", "")
	bulk("a line feed", "\n")
	bulk("no JSON", "a\nb\n")
	bulk("another index", "{\"index\":{\"_index\":\"twin-~\",\"_id\":\"l4\",\"require_alias\":false}}\n{\"n\":4}\n")
	bulk("ids of the node", "{\"index\":{}}\n{\"n\":1}\n{\"create\":{}}\n{\"n\":2}\n")
	bulk("gzip", gzipped(doc+"\n"), "Content-Encoding: gzip")
	add("bulk with PUT", request("PUT", "/twin-~/_bulk", doc+"\n", "Content-Type: application/x-ndjson"))
	add("msearch: order and errors", request("POST", "/_msearch", "{\"index\":\"twin-~\"}\n"+matchAll+"\n{\"index\":\"none\"}\n{}\n{}\n{\"query\":{\"none\":{}}}\n{\"index\":[\"twin-~\"]}\n{\"size\":0}\n"),
		request("POST", "/twin-~/_msearch", "{}\n"+matchAll),
		request("POST", "/twin-~/_msearch", "{}\n{}\n\n{\"size\":1}\n"), request("POST", "/twin-~/_msearch", "\n{\"size\":1}\n"),
		request("POST", "/twin-~/_msearch", "\n{}\n{}\n{}\n"), request("POST", "/twin-~/_msearch", "\n\n{}\n"))

	kind = "codings"
	query := `{"query":{"term":{"kind":"k1"}},"sort":["n"]}`
	for _, coding := range []string{"gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "none"} {
		add("Content-Encoding of a plain body "+coding, request("POST", search, query, "Content-Encoding: "+coding)).loose = true
		add("Content-Encoding of a gzip body "+coding, request("POST", search, gzipped(query), "Content-Encoding: "+coding)).loose = true
	}
	add("gzip body in two members", request("POST", search, gzipped(query[:10])+gzipped(query[10:]), "Content-Encoding: gzip"))
	add("gzip body, chunked", "POST "+search+" HTTP/1.1\r\nHost: node.test\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"+chunked(gzipped(query), 16))
	add("Content-Encoding without a body", request("GET", "/twin-~/_doc/1", "", "Content-Encoding: gzip"))
	for _, coding := range []string{"gzip", "GZIP", "deflate", "gzip;q=0", "gzip;q=0.5, deflate;q=0.7", "*", "*;q=0", "identity", "snappy", "br", "zstd", "gzip, deflate, br, zstd", "identity;q=0", "", "nonsense"} {
		// The same for both, so that the bytes are.
		for _, target := range []string{"/twin-a/_search?sort=n&filter_path=hits", "/twin-a/_doc/1", "/none/_doc/1", "/twin-a/_mapping"} {
			add("Accept-Encoding "+coding, request("GET", target, "", "Accept-Encoding: "+coding))
		}
		add("Accept-Encoding of HEAD "+coding, request("HEAD", "/twin-~/_doc/1", "", "Accept-Encoding: "+coding))
	}

	kind = "framing and connections"
	post := "POST " + search + " HTTP/1.1\r\nHost: node.test\r\nContent-Type: application/json\r\n"
	add("chunked", post+"Transfer-Encoding: chunked\r\n\r\n"+chunked(query, 7), request("GET", "/", ""))
	add("chunked in one chunk", post+"transfer-encoding: Chunked\r\n\r\n"+chunked(query, len(query)))
	add("chunked, a chunk at a time", post+"Transfer-Encoding: chunked\r\n\r\n7\r\n"+query[:7]+"\r\n"+chunked(query[7:], 100))
	add("chunked with extensions", post+"Transfer-Encoding: chunked\r\n\r\n"+fmt.Sprintf("%X;a=b;c=\"d\"\r\n%s\r\n0;e\r\n\r\n", len(query), query))
	add("chunked with trailers", post+"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.TrimSuffix(chunked(query, 20), "\r\n")+"X-Sum: 1\r\n\r\n", request("GET", "/twin-~/_count", ""))
	add("chunked without anything", post+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", request("GET", "/twin-~/_count", ""))
	add("length 0", post+"Content-Length: 0\r\n\r\n", request("GET", "/twin-~/_count", ""))
	add("chunked bulk", "POST /twin-~/_bulk HTTP/1.1\r\nHost: node.test\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"+chunked(doc+"\n", 5))
	add("Expect", post+fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(query)), query)
	add("Expect, chunked", post+"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n", chunked(query, 9))
	add("pipelined", request("GET", search+"?sort=n", "")+request("HEAD", "/twin-~", "")+request("GET", "/twin-~/_doc/2", "")+request("GET", "/none", ""))
	add("pipelined behind a body", request("POST", "/twin-~/_count", `{"query":{"term":{"kind":"k1"}}}`)+request("GET", "/twin-~/_doc/3", ""), request("GET", "/", ""))
	add("pipelined behind chunks", post+"Transfer-Encoding: chunked\r\n\r\n"+chunked(query, 11)+request("DELETE", "/twin-~/_doc/none", ""))
	add("Connection: close", request("GET", "/twin-~/_doc/1", "", "Connection: close")).ends = true
	add("Connection: Close, and an error", request("GET", "/none", "", "Connection: Close")).ends = true
	add("Connection: keep-alive", request("GET", "/twin-~/_doc/1", "", "Connection: keep-alive"), request("GET", "/twin-~/_doc/1", "", "Connection: Keep-Alive", "Keep-Alive: timeout=5"))
	add("HTTP/1.0", "GET /twin-~/_doc/1 HTTP/1.0\r\n\r\n").ends = true
	add("HTTP/1.0 with Host", "GET /twin-~/_doc/1 HTTP/1.0\r\nHost: node.test\r\n\r\n").ends = true
	add("HTTP/1.0, kept", "GET /twin-~/_doc/1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /twin-~/_doc/2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
	add("HTTP/1.0 with a body", fmt.Sprintf("POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", search, len(query), query)).ends = true

	kind = "header fields"
	add("X-Opaque-Id", request("GET", "/twin-~/_doc/1", "", "X-Opaque-Id: é a/b"), request("GET", "/none", "", "x-opaque-id: 7"), request("GET", "/twin-~/_doc/1", ""))
	add("traceparent", request("GET", "/twin-~/_doc/1", "", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate: a=b"))
	add("Origin", request("GET", "/twin-~/_doc/1", "", "Origin: http://dash.test"), request("OPTIONS", search, "", "Origin: http://dash.test", "Access-Control-Request-Method: POST"))
	add("long Authorization", request("GET", "/twin-~/_doc/1", "", "Authorization: Bearer "+strings.Repeat("a", 6000)))
	add("long Cookie", request("GET", "/twin-~/_doc/1", "", "Cookie: a="+strings.Repeat("b", 3000), "Cookie: c="+strings.Repeat("d", 3000)))
	add("many fields", request("GET", "/twin-~/_doc/1", "", slices.Repeat([]string{"X-Many: 1"}, 100)...))
	add("Upgrade of Apache HttpClient", request("GET", "/twin-~/_doc/1", "", "Connection: Upgrade", "Upgrade: TLS/1.2"))
	add("Upgrade to h2c", request("GET", "/twin-~/_doc/1", "", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"))
	add("conditional fields, which nodes ignore", request("GET", "/twin-~/_doc/1", "", "If-None-Match: *", "If-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT", "Range: bytes=0-3", "Cache-Control: no-cache"))
	add("fields that name another client", request("GET", "/twin-~/_doc/1", "", "X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "Via: 1.1 other", "X-HTTP-Method-Override: DELETE"))
	add("fields of a browser", request("GET", "/twin-~/_doc/1", "", "User-Agent: Mozilla/5.0", "Referer: http://dash.test/", "Accept-Language: de;q=0.9", "DNT: 1"))
	add("TE", request("GET", "/twin-~/_doc/1", "", "TE: trailers", "Connection: TE"))
	for range 2 {
		add("warnings", request("GET", "/twin-~/_search?sort=n&batched_reduce_size=2&q=n:1&default_operator=and", ""),
			request("PUT", "/_template/made-~-old", `{"template":"made-~-*","index_patterns":["made-~-*"],"order":2}`), request("DELETE", "/_template/made-~-old", ""),
			request("PUT", "/made-~", `{"mappings":{"properties":{"m":{"type":"keyword","boost":2},"k":{"type":"keyword","boost":3}}}}`), request("DELETE", "/made-~", ""),
			request("GET", "/_cat/nodes?h=master&local=true", ""), request("GET", "/_cluster/health?master_timeout=5s&level=cluster", "")).loose = true
	}

	// Long bodies, which go through in pieces.
	kind = "long bodies"
	long := `{"long":"` + strings.Repeat("0123456789abcdef", 20_000) + `"}`
	add("long body", request("PUT", "/twin-~/_doc/long?refresh=true", long), request("GET", "/twin-~/_doc/long", ""), request("HEAD", "/twin-~/_doc/long", ""), request("GET", "/twin-~/_doc/long", "", "Accept-Encoding: gzip"),
		request("POST", search, `{"query":{"ids":{"values":["long"]}}}`))
	add("long body, chunked", "PUT /twin-~/_doc/long?refresh=true HTTP/1.1\r\nHost: node.test\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"+chunked(long, 30_000), request("GET", "/twin-~/_source/long", ""))
	add("long gzip body", request("PUT", "/twin-~/_doc/long?refresh=true", gzipped(long), "Content-Encoding: gzip"), request("GET", "/twin-~/_source/long", ""), request("DELETE", "/twin-~/_doc/long?refresh=true", ""))

	// What is kept on the node between requests: @ID@ is the id that came last.
	kind = "cursors and versions"
	page := `{"scroll":"1m","scroll_id":"@ID@"}`
	scroll := add("scroll", request("POST", search+"?scroll=1m&size=3", matchAll), request("POST", "/_search/scroll", page), request("GET", "/_search/scroll", page), request("POST", "/_search/scroll", page),
		request("DELETE", "/_search/scroll", `{"scroll_id":["@ID@"]}`), request("POST", "/_search/scroll", page))
	scroll.loose = true
	add("scroll in the path", request("GET", search+"?scroll=1m&size=5&sort=n", ""), request("GET", "/_search/scroll/@ID@?scroll=1m", ""), request("DELETE", "/_search/scroll/@ID@", "")).loose = true
	if engine == searchnode.OpenSearch2 {
		add("point in time", request("POST", "/twin-~/_search/point_in_time?keep_alive=1m", ""), request("POST", "/_search", `{"pit":{"id":"@ID@"},"sort":["n"],"size":2}`), request("DELETE", "/_search/point_in_time", `{"pit_id":["@ID@"]}`)).loose = true
	}
	add("conflicts", request("PUT", "/twin-~/_doc/v?version=7&version_type=external", `{"n":1}`), request("PUT", "/twin-~/_doc/v?version=6&version_type=external", `{"n":1}`), request("PUT", "/twin-~/_create/v", `{"n":1}`),
		request("PUT", "/twin-~/_doc/v?if_seq_no=0&if_primary_term=1", `{"n":1}`), request("DELETE", "/twin-~/_doc/v", ""), request("DELETE", "/twin-~/_doc/v", "")).changes = true
	return probes
}

// chunked writes a body in chunks of n bytes.
func chunked(body string, n int) string {
	var out strings.Builder
	for len(body) > 0 {
		piece := body[:min(n, len(body))]
		body = body[len(piece):]
		fmt.Fprintf(&out, "%x\r\n%s\r\n", len(piece), piece)
	}
	return out.String() + "0\r\n\r\n"
}

// oddTargets are targets that some proxy decodes, encodes, resolves or drops.
var oddTargets = []string{
	"/%3Ctwin-~-%7Bnow%2Fd%7D%3E/_search", "/<twin-~-{now/d}>/_search", "/%3Ctwin-~%3E/_count", "/twin-~/_doc/orders%252F17", "/twin-~/../_cluster/settings", "/twin-~/./_search", "/twin-~/_doc/..", "/twin-~/_doc/.",
	"//_search", "//twin-~//_search", "/twin-~//_doc/1", "/twin-~/_doc//1", "/twin-~/_search/", "/twin-~/", "/_cat/", "/_cat//aliases", "/twin-~/_count/",
	"/twin-~%2Cnone/_search?ignore_unavailable=true&sort=n", "/twin-~,none/_search?ignore_unavailable=true&sort=n", "/twin-~%252Cnone/_search", "/r%3Ai-*/_search", "/r:i-%2A/_search", "/twin-%2A/_count", "/twin-*,-twin-~/_count",
	"/twin-~/_count?q=%zz", "/twin-~/_count?q=%2", "/twin-~/_count?q=a;b=c&d", "/twin-~/_count?q=kind:k1+n:2%20x&&=&q=n:1", "/twin-~/_count?", "/twin-~/_count??q=n:1", "/twin-~/_count?q=n%3A1&q=n%3A2", "/twin-~/_count?none=1",
	"/twin-~/_count?q", "/twin-~/_count?q=", "/twin-~/_count?=", "/twin-~/_count?&&&", "/twin-~/_search?q=\"x\"&b=[1]|{2}^`", "/twin-~/_count?q=%22a%20b%22", "/twin-~/_count?q=text:%C3%A9", "/twin-~/_count?q=text:é",
	"/twin-~/_doc/%ff", "/twin-~/_doc/€", "/twin-~/_doc/" + strings.Repeat("a", 513), "/twin-~/_count?q=" + strings.Repeat("a", 3500), "/?pretty", "/?human&pretty", "/?", "/??", "/%5Fcat/aliases", "/twin-~/%5Fsearch", "/twin-~/%5Fdoc/1",
	"/Twin-x/_search", "/_none", "/none/_none/1", "/_cat/none", "/_nodes/none/http", "/_cluster/none", "/twin-~/_doc", "/twin-~/_doc/1/_none", "/twin-~/_source/none", "/favicon.ico", "/_plugin/x/..%2f..%2fetc", "/%", "/%0d%0aX-A:1", "/a%00b",
	"/-twin", "/_all/_count?q=n:1", "/*/_count?q=n:1", "/_count?q=n:1", "/twin-~/_doc/1?_source=n,kind&_source_excludes=kind", "/twin-~/_doc/1?routing=x", "/twin-~/_doc/1?preference=_local&realtime=false", "/twin-~/_search?preference=_shards:0%7C_local&sort=n",
	"/twin-~/_search_shards?local=true", "/twin-~/_validate/query?q=n:x&explain=true", "/twin-~/_field_caps?fields=n%2Ckind", "/_cat/aliases?h=alias,index&s=alias&v", "/_cat/aliases/twin-~-alias?help", "/_resolve/index/twin-~", "/twin-~/_settings/index.number*?flat_settings",
}
