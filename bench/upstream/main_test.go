package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// get asks u as a client does.
func get(u *upstream, path string) (int, string) {
	var ctx fasthttp.RequestCtx
	ctx.Request.SetRequestURI(path)
	u.serve(&ctx)
	return ctx.Response.StatusCode(), string(ctx.Response.Body())
}

func TestAnswersAreValidAndOfTheSizeAskedFor(t *testing.T) {
	u := &upstream{address: "127.0.0.1:9200"}
	f := func(path string, size int) {
		t.Helper()
		status, body := get(u, path)
		if status != 200 || size > 0 && len(body) != size {
			t.Errorf("%s: status %d with %d bytes, want 200 with %d", path, status, len(body), size)
		}
		if !json.Valid([]byte(body)) {
			t.Errorf("%s: not JSON: %.200s", path, body)
		}
	}
	f("/size-1024/_search", 1024)
	f("/size-1024/_search?size=1", 1024)
	f("/size-1048576/_search", 1<<20)
	f("/", 0)
	f("/_nodes/http", 0)
	f("/_nodes/_all/http", 0)
	f("/_cluster/health", 0)
	if _, body := get(u, "/_nodes/http"); !strings.Contains(body, `"publish_address":"127.0.0.1:9200"`) {
		t.Errorf("a gateway would not find the way back: %s", body)
	}
}

func TestSizesThatCannotBeAreRefused(t *testing.T) {
	u := &upstream{}
	for _, path := range []string{"/size-1/_search", "/logs/_search", "/size-99999999999/_search", "/_search"} {
		if status, body := get(u, path); status != 400 || !json.Valid([]byte(body)) {
			t.Errorf("%s: status %d: %s", path, status, body)
		}
	}
}

func TestSearchesAreCounted(t *testing.T) {
	u := &upstream{}
	for _, path := range []string{"/size-1024/_search", "/", "/size-1024/_search", "/size-1/_search"} {
		get(u, path)
	}
	if _, body := get(u, "/_bench/searches"); body != "2" {
		t.Errorf("counted %s, want 2", body)
	}
}
