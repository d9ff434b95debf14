package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/elastic/estest"
)

// secretsFile logs as much of each request as it can, into a queue that is delivered and one that keeps everything. Writes wait in
// a third one, which nothing empties.
const secretsFile = `
path.data: data
entry: [{name: es, router: all, network: {binding: "%s"}}]
router:
  - name: all
    default_flow: main
    tracing_flow: log
    rules:
      - {pattern: ["/broken/*"], flow: broken}
      - {pattern: ["/queued/*"], flow: queued}
flow:
  - {name: main, filter: [{trace_context: {}}, {get_cache: {}}, {elasticsearch: {elasticsearch: default}}, {set_cache: {}}]}
  - {name: broken, filter: [{elasticsearch: {elasticsearch: broken}}]}
  - {name: queued, filter: [{queue: {queue_name: writes}}, {elasticsearch: {elasticsearch: broken}}]}
  - name: log
    filter:
      - request_logging: &all {queue_name: delivered, request_body: 64kb, response_body: 64kb, request_headers: [X-Tenant, Referer], redact: ["**.email"]}
      - request_logging: {<<: *all, queue_name: kept}
elasticsearch:
  - {name: default, endpoint: "%s", basic_auth: {username: weir, password: "%s"}}
  - {name: broken, endpoint: "http://weir:%s@127.0.0.1:1"}
pipeline: [{name: p, json_indexing: {input_queue: delivered, elasticsearch: default, index_name: gateway_requests}}]
modules: [{name: elastic, elasticsearch: default, init_template: true}]
log: {level: debug}
`

// TestSecretsStayInside sends secrets in every place where a request or a configuration has one, and looks for them in
// everything that leaves the gateway but what goes to the nodes: records, files of queues, logs, answers that the gateway
// makes, and the pages of the admin listener (logstash-plugins/logstash-output-elasticsearch#526).
func TestSecretsStayInside(t *testing.T) {
	var secrets []string
	secret := func(place string) string {
		s := "S3CRET" + place + "x"
		secrets = append(secrets, s)
		return s
	}
	coded := func(text string) string {
		s := base64.StdEncoding.EncodeToString([]byte(text))
		secrets = append(secrets, s)
		return s
	}
	es := estest.New(t, estest.Options{})
	s := newSite(t, es.URL())
	s.write("gateway.yml", fmt.Sprintf(secretsFile, s.addr, es.URL(), secret("ownpassword"), secret("upstreamurl")))
	g := s.start()

	var answers bytes.Buffer
	sent := 0
	send := func(method, target, body string, fields ...string) {
		t.Helper()
		a, err := g.ask(t.Context(), method, g.url+target, body, fields...)
		if err != nil {
			t.Fatal(err)
		}
		sent++
		if a.header.Get("X-Weir-Error") != "" {
			fmt.Fprintf(&answers, "%v %s\n", a.header, a.body)
		}
	}
	// What nodes answer holds secrets as well.
	must(t, g.client, http.MethodPut, es.URL()+"/shop/_doc/1?refresh=true", `{"password":"`+secret("answerpassword")+`","user":{"email":"`+secret("answeremail")+
		`"},"link":"http://ann:`+secret("answerurl")+`@h/"}`)
	send("GET", "/shop/_doc/1", "")
	for _, target := range []string{"/shop/_search", "/broken/_search", "/queued/_doc/1"} {
		for _, field := range []string{
			"Authorization: Basic " + coded("ann:"+secret("password")),
			"Authorization: ApiKey " + coded("key-7:"+secret("apikey")),
			"Authorization: Bearer " + secret("bearer"),
			"Authorization: Negotiate " + secret("kerberos"),
			"Authorization: " + secret("nothingbutasecret"),
			"Proxy-Authorization: Basic " + coded("p:"+secret("proxypassword")),
			"Cookie: sid=" + secret("cookie"),
			"es-secondary-authorization: ApiKey " + secret("secondary"),
			"X-Api-Key: " + secret("fieldapikey"),
			"X-Amz-Security-Token: " + secret("aws"),
			"X-Auth-Request-Access-Token: " + secret("oauthproxy"),
			"Referer: http://ann:" + secret("referer") + "@kibana/app",
			"User-Agent: bot (+http://ann:" + secret("agent") + "@h/)",
			"X-Tenant: http://ann:" + secret("tenant") + "@h/",
		} {
			send("POST", target, "{}", field)
		}
		for _, name := range []string{"token", "access_token", "api%5Fkey", "password", "X-Amz-Signature", "jwt", "client_secret", "code"} {
			send("POST", target+"?q=a&"+name+"="+secret("query"+name), "{}")
		}
		send("POST", target+"?source=http://ann:"+secret("queryurl")+"@h/", "{}")
		if target == "/queued/_doc/1" {
			break // the body of a write is what its queue is there to keep
		}
		for _, body := range []string{
			`{"query":{"term":{"password":"` + secret("bodypassword") + `"}}}`,
			`{"query":{"bool":{"filter":[{"term":{"user.email":{"value":"` + secret("bodyemail") + `"}}}]}}}`,
			`{"query":{"match":{"a":"b"}},"api_key":["` + secret("bodyapikey") + `"]}`,
			`{"query":{"match":{"url":"https://ann:` + secret("bodyurl") + `@h/"}}}`,
			`{"query":{"term":{"p\u0061ssword":"` + secret("bodyescape") + `"}}}`,
			`{"query":{"term":{/* no JSON */"password":"` + secret("bodycomment") + `"}}}`,
			`password=` + secret("bodyform"),
		} {
			send("POST", target, body)
		}
	}
	send("PUT", "/_security/user/ann", `{"pass_phrase":"`+secret("securityapi")+`"}`)
	send("POST", "/_security/oauth2/token", `{"grant":"`+secret("oauth")+`"}`)
	send("POST", "/_reindex", `{"source":{"remote":{"host":"http://h","pw":"`+secret("reindex")+`"}}}`)
	send("PUT", "/_snapshot/s", `{"settings":{"sas":"`+secret("snapshot")+`"}}`)
	send("POST", "/_bulk?api_key="+secret("bulk"), bulkLines)
	send("GET", "/http://ann:"+secret("path")+"@h/", "")

	until(t, endLimit, func(context.Context) error {
		if n := g.metrics().sum("weir_log_records_total", `queue="kept"`, `outcome="queued"`); int(n) < sent {
			return fmt.Errorf("%v of %d records are queued", n, sent)
		}
		if n := g.metrics().sum("weir_queue_open_records"); n > 0 {
			return fmt.Errorf("%v records are not on disk yet", n)
		}
		if n := g.metrics().sum("weir_queue_blocks", `queue="delivered"`); n > 0 {
			return fmt.Errorf("%v blocks are not delivered yet", n)
		}
		return nil
	})
	places := map[string][]byte{"answers": answers.Bytes()}
	must(t, g.client, http.MethodPost, es.URL()+"/gateway_requests/_refresh", "")
	places["records"] = must(t, g.client, http.MethodPost, es.URL()+"/gateway_requests/_search", `{"size":1000}`).body
	for _, page := range []string{"/metrics", "/readyz", "/_weir", "/_weir/clusters", "/_weir/limits"} {
		places[page] = must(t, g.client, http.MethodGet, g.adminURL+page, "").body
	}
	g.stop()
	places["log"] = []byte(g.log.String())
	err := filepath.WalkDir(filepath.Join(s.dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			places[path], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	kept, queued := false, false
	for place, text := range places {
		kept = kept || strings.Contains(place, "kept") && bytes.Contains(text, []byte(`"/shop/_search"`))
		queued = queued || strings.Contains(place, "writes") && bytes.Contains(text, []byte(`"/queued/_doc/1"`))
		for _, s := range secrets {
			if i := bytes.Index(text, []byte(s)); i >= 0 {
				t.Errorf("%s: %s stands in ...%s", place, s, text[max(0, i-150):min(len(text), i+len(s)+20)])
			}
		}
	}
	if !kept || !queued || !bytes.Contains(places["records"], []byte(`"key-7"`)) || answers.Len() == 0 {
		t.Error("not all that secrets could stand in was looked at")
	}
}
