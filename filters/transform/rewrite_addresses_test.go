package transform

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"weir/elastic"
	"weir/flows"
	"weir/flows/flowstest"
	"weir/internal/conf"
)

func TestReplaceAddresses(t *testing.T) {
	f := func(places [][]string, body, want string, addresses ...string) {
		t.Helper()
		got, ok := replaceAddresses([]byte(body), places, addresses)
		if !ok || string(got) != want {
			t.Errorf("%s\nbecame %s (%t)\nwant   %s", body, got, ok, want)
		}
	}
	const one, two = "gw.test:8000", "[::1]:8001"
	info, state := nodesInfoAddresses, clusterStateAddresses
	f(info, `{"nodes":{"a":{"http":{"publish_address":"10.0.0.1:9200"}}}}`, `{"nodes":{"a":{"http":{"publish_address":"gw.test:8000"}}}}`, one)
	f(info, `{"nodes":{"a":{"http":{"publish_address":"es.test/10.0.0.1:9200","x":1}}}}`, `{"nodes":{"a":{"http":{"publish_address":"gw.test:8000","x":1}}}}`, one)
	f(info, `{"nodes":{"a":{"http":{"bound_address":["[::]:9200", "0.0.0.0:9200"]}}}}`, `{"nodes":{"a":{"http":{"bound_address":["gw.test:8000", "gw.test:8000"]}}}}`, one)
	// Each node gets one of the addresses, and only the places that are named are touched.
	f(info, `{"nodes":{"a":{"http":{"publish_address":"1"}},"b":{"http":{"publish_address":"2"}},"c":{"http":{"publish_address":"3"}}}}`,
		`{"nodes":{"a":{"http":{"publish_address":"gw.test:8000"}},"b":{"http":{"publish_address":"[::1]:8001"}},"c":{"http":{"publish_address":"gw.test:8000"}}}}`, one, two)
	for _, same := range []string{
		`{"nodes":{"a":{"transport":{"publish_address":"10.0.0.1:9300"},"transport_address":"10.0.0.1:9300"}}}`,
		`{"http":{"publish_address":"x"}}`,
		`{"nodes":{"a":{"x":{"http":{"publish_address":"x"}},"http":{"publish_address":{"publish_address":"x"},"bound_address":[1,null,{"a":"x"}]}}}}`,
		`{"nodes":[{"http":{"publish_address":"x"}}]}`, `[]`, `"a"`, `{"error":"x","status":500}`,
	} {
		f(info, same, same, one)
	}
	f(state, `{"nodes":{"a":{"transport_address":"1:9300","attributes":{"transport_address":"kept"}}}}`,
		`{"nodes":{"a":{"transport_address":"gw.test:8000","attributes":{"transport_address":"kept"}}}}`, one)
	// White space, numbers and escapes are not written anew.
	f(info, "{ \"nodes\" :\n{\"\\u0061\": {\"http\":{ \"publish_address\" : \"1\\u002e2\" , \"n\":1.0e+2,\"big\":9007199254740993, \"s\":\"\\u00e9\\/\"}}}}\n",
		"{ \"nodes\" :\n{\"\\u0061\": {\"http\":{ \"publish_address\" : \"gw.test:8000\" , \"n\":1.0e+2,\"big\":9007199254740993, \"s\":\"\\u00e9\\/\"}}}}\n", one)

	for _, body := range []string{"", "{", "---\nnodes: {}", `{"nodes":{}} {}`, strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, 1<<20)} {
		if got, ok := replaceAddresses([]byte(body), info, []string{one}); ok {
			t.Errorf("%.40q became %.40q", body, got)
		}
	}
}

func FuzzReplaceAddresses(f *testing.F) {
	f.Add([]byte(`{"nodes":{"a":{"http":{"publish_address":"1","bound_address":["2"]}},"b":{"http":{"publish_address":"3"}}}}`))
	f.Add([]byte("{ \"nodes\":{ \"\\u0061\" :{\"http\":{\"publish_address\" :\t\"\\\"\" , \"n\":[1.0,-2e9,null,true,{}]}}}}\n"))
	f.Add([]byte(`{"nodes":{"a":{"http":{"publish_address":"1"}},"a":{"http":{"http":"publish_address"}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, ok := replaceAddresses(body, nodesInfoAddresses, []string{`"q"`})
		if !ok {
			return
		}
		if !json.Valid(body) || !json.Valid(got) {
			t.Fatalf("%q (valid: %t) became %q (valid: %t)", body, json.Valid(body), got, json.Valid(got))
		}
		again, _ := replaceAddresses(got, nodesInfoAddresses, []string{`"q"`})
		if !bytes.Equal(again, got) {
			t.Errorf("%q became %q, and that became %q", body, got, again)
		}
	})
}

func TestOwnAddress(t *testing.T) {
	f := func(host string, tls bool, want string) {
		t.Helper()
		if got, ok := ownAddress(host, tls); got != want || ok != (want != "") {
			t.Errorf("%q with TLS %t: %q (%t), want %q", host, tls, got, ok, want)
		}
	}
	f("gw.test:8000", false, "gw.test:8000")
	f("gw.test", false, "gw.test:80")
	f("gw.test", true, "gw.test:443")
	f("[::1]:8000", true, "[::1]:8000")
	f("[::1]", false, "[::1]:80")
	f("192.0.2.1", false, "192.0.2.1:80")
	f("", false, "")
}

func TestRewriteAddressesConfig(t *testing.T) {
	f := func(parameters string, wants ...string) {
		t.Helper()
		reg := flows.NewRegistry()
		flows.Register(reg, RewriteAddresses())
		_, _, p := flowstest.Build(reg, flowstest.Main("{rewrite_addresses: "+parameters+"}"))
		var got []string
		for _, q := range p.Sorted() {
			got = append(got, q.Message)
		}
		if !slices.EqualFunc(got, wants, strings.Contains) {
			t.Errorf("%s: got %q, want %q", parameters, got, wants)
		}
	}
	f("{}")
	f("{addresses: 'gw.test:8000'}")
	f("{addresses: ['gw.test:8000', '[::1]:8000']}")
	f("{addresses: gw.test}", `"gw.test": missing port in address, want host:port`)
	f("{addresses: ':8000'}", "the host is missing")
	f("{addresses: 'gw.test:http'}", "the port is not a number")
	f("{addresses: 'http://gw.test:8000'}", "too many colons")
	f("{max_size: 0}", "want at least 1")
}

// answered is what follows the filter: an answer.
type answered struct{ contentType, body string }

func (a answered) Serve(x *flows.Exchange) error {
	x.Reply(200, a.contentType, []byte(a.body))
	return nil
}

func TestRewriteAddressesServes(t *testing.T) {
	const body = `{"nodes":{"a":{"http":{"publish_address":"10.0.0.1:9200"},"transport_address":"10.0.0.1:9300"}}}`
	f := func(path, contentType, want string, c RewriteAddressesConfig) error {
		t.Helper()
		r := &rewriteAddresses{addresses: c.Addresses, maxSize: int64(c.MaxSize)}
		x := &flows.Exchange{}
		x.Request.Method, x.Request.Target, x.Request.Path, x.Request.Host = []byte("GET"), []byte(path), []byte(path), []byte("gw.test:8000")
		x.Request.Header.AddString("Accept-Encoding", "gzip")
		err := r.Serve(x, answered{contentType: contentType, body: body})
		if err != nil {
			return err
		}
		got, _ := x.Response.Body.Bytes(1 << 20)
		if string(got) != want {
			t.Errorf("%s as %s: %s, want %s", path, contentType, got, want)
		}
		if changed := want != body; changed && x.Request.Header.Has("accept-encoding") {
			t.Errorf("%s: the node was asked for a coded answer", path)
		}
		return nil
	}
	own := RewriteAddressesConfig{MaxSize: 1 << 20}
	info := strings.Replace(body, "10.0.0.1:9200", "gw.test:8000", 1)
	for _, path := range []string{"/_nodes/http", "/_nodes/_all/http", "/_nodes", "/_nodes/a", "/_nodes/a/http,os", "//_nodes/http"} {
		_ = f(path, "application/json; charset=UTF-8", info, own)
	}
	_ = f("/_nodes/http", "application/vnd.elasticsearch+json;compatible-with=7", info, own)
	_ = f("/_cluster/state", "application/json", strings.Replace(body, "10.0.0.1:9300", "gw.test:8000", 1), own)
	_ = f("/_cluster/state/nodes", "application/json", strings.Replace(body, "10.0.0.1:9300", "gw.test:8000", 1), own)
	_ = f("/_nodes/http", "application/yaml", body, own)
	_ = f("/_nodes/stats", "application/json", body, own)
	_ = f("/i/_doc/_nodes", "application/json", body, own)
	_ = f("/_nodes/http", "application/json", strings.Replace(body, "10.0.0.1:9200", "other.test:1", 1),
		RewriteAddressesConfig{Addresses: conf.Strings{"other.test:1"}, MaxSize: 1 << 20})
	if got := elastic.AsError(f("/_nodes/http", "application/json", "", RewriteAddressesConfig{MaxSize: 10})); got == nil || got.Status != 502 {
		t.Errorf("an answer over max_size gives %v, want 502", got)
	}
}
