package e2e

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weir/elastic/estest"
	"weir/internal/searchnode/searchtest"
)

//go:embed clients/refused.js
var refusedNode []byte

// Whoever is refused while its body is on the way learns why, whichever client it is, however it sends and whatever refuses it,
// and so does its next request (valyala/fasthttp#1348, elastic/elasticsearch#120934).
func TestRefusalsReachEveryClient(t *testing.T) {
	const size, times = 8 << 20, 50
	c := estest.New(t, estest.Options{})
	site := func(entry string) *gateway {
		s := newPlainSite(t, c.URL(), "      - rate_limit: {limits: [{key: [global], rate: 1/h, burst: 1, index: limited}]}\n",
			swap("router: main, network:", "router: main, "+entry+"network:"),
			swap("  - {name: main, default_flow: main}\n", "  - {name: main, default_flow: main, rules: [{index: denied, method: [POST], flow: denied}, {method: [GET], flow: small}]}\n"),
			swap("flow:\n", "flow:\n  - {name: denied, filter: [{request_header_filter: {include: {X-Never: sent}}}, {echo: {}}]}\n  - {name: small, filter: [{echo: {}}]}\n"))
		s.build = buildUnraced
		return s.start()
	}
	g, narrow := site(""), site("max_body_size: 1mb, ")
	must(t, g.client, http.MethodPut, c.URL()+"/limited", "")
	must(t, g.client, http.MethodPost, g.url+"/limited/_doc", "{}") // which the limit lets through
	body := bytes.Repeat([]byte("x"), size)
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}

	clients := map[string]func(t *testing.T, url, framing string, seen map[string]int){
		"go": func(t *testing.T, url, framing string, seen map[string]int) {
			client := newClient(t)
			for range times {
				var sent io.Reader = bytes.NewReader(body)
				if framing == "chunked" {
					sent = io.MultiReader(sent) // of which net/http does not know the length
				}
				for _, send := range []func() (*http.Response, error){
					func() (*http.Response, error) { return client.Post(url, "application/json", sent) },
					func() (*http.Response, error) { return client.Get(url) },
				} {
					resp, err := send()
					if err != nil {
						seen[err.Error()]++
						continue
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					seen[strconv.Itoa(resp.StatusCode)]++
				}
			}
		},
		"curl": func(t *testing.T, url, framing string, seen map[string]int) {
			args := []string{"-sS", "--noproxy", "*"}
			for range times {
				args = append(args, "-o", os.DevNull, "-w", "%{http_code}\n", "-H", "Content-Type: application/json", "-H", "Expect:", "--data-binary", "@"+file, url)
				if framing == "chunked" {
					args = append(args, "-H", "Transfer-Encoding: chunked")
				}
				args = append(args, "--next", "-o", os.DevNull, "-w", "%{http_code}\n", url, "--next")
			}
			out, err := exec.CommandContext(t.Context(), "curl", args[:len(args)-1]...).Output()
			if err != nil {
				t.Errorf("curl: %v", err)
			}
			for _, status := range strings.Fields(string(out)) {
				seen[status]++
			}
		},
		"node": func(t *testing.T, url, framing string, seen map[string]int) {
			out := runClient(t, "", "node", writeScript(t, "refused.js", refusedNode), url, strconv.Itoa(size), strconv.Itoa(times), framing)
			if err := json.Unmarshal(out, &seen); err != nil {
				t.Errorf("node printed %q: %v", out, err)
			}
		},
	}
	for name, send := range clients {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil && name != "go" {
				searchtest.Require(t, name+" is not installed")
			}
			for url, status := range map[string]string{narrow.url + "/i/_doc": "413", g.url + "/denied/_doc": "403", g.url + "/limited/_doc": "429"} {
				for _, framing := range []string{"length", "chunked"} {
					seen := map[string]int{}
					send(t, url, framing, seen)
					if want := map[string]int{status: times, "200": times}; !maps.Equal(seen, want) {
						t.Errorf("%s, %s: clients saw %v, want %v", url, framing, seen, want)
					}
				}
			}
		})
	}
	if n := c.Count("/i/_doc"); n > 0 {
		t.Errorf("%d bodies over the limit came to the node", n)
	}
}
